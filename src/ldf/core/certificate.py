"""Certificates: for each constraint, how far predictions are from feasible."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..io.text import table
from .batch import Widened, join
from .constraint import Constraint, check_names

Tolerance = float | Mapping[str, float | Tensor]
"""One number for all constraints, or a mapping by name to one number, or to one per column [k]."""
TOLERANCE = 1e-4
"""Default tolerance, in σ's units: a ν up to this is not a violation."""


@dataclass(frozen=True)
class Finding:
    """Summary of one constraint: ν over all rows (samples, pairs or group comparisons) and columns."""

    constraint: str
    rows: int
    mean: float
    max: float
    """Largest ν; of columns with tolerances of their own, that of the worst column: the largest multiple of its own."""
    violated: float
    """Fraction of rows with a ν above its tolerance in any column."""
    tolerance: float
    """The tolerance; if there is one per column, that of the worst column."""
    worst: int | None
    """Index of the row with the largest ν, in the worst column."""


@dataclass(frozen=True)
class Certificate:
    """The findings of all constraints; it holds if no row violates any constraint beyond its tolerance."""

    findings: tuple[Finding, ...]

    @property
    def holds(self) -> bool:
        """Whether every constraint was evaluated on at least one row and none is violated beyond its tolerance."""
        return all(finding.rows > 0 and finding.violated == 0 for finding in self.findings)

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.constraint == name:
                return finding
        known = ", ".join(finding.constraint for finding in self.findings)
        raise KeyError(f"no constraint {name!r} in this certificate; it has: {known}")

    def __str__(self) -> str:
        headers = ["constraint", "rows", "mean ν", "max ν", "% violated", "tolerance"]
        rows = [[f.constraint, f.rows, f.mean, f.max, 100 * f.violated, f.tolerance] for f in self.findings]
        return f"{table(headers, rows)}\n{'holds' if self.holds else 'does not hold'}"

    def to_dict(self) -> dict[str, Any]:
        """The certificate as a dict: `holds`, and one finding per constraint."""
        return {"holds": self.holds, "constraints": [asdict(finding) for finding in self.findings]}

    def to_json(self) -> str:
        """The certificate as JSON; values of a constraint without any rows are null."""
        plain = self.to_dict()
        for finding in plain["constraints"]:
            for key, value in finding.items():
                finding[key] = None if isinstance(value, float) and not math.isfinite(value) else value
        return json.dumps(plain, indent=2, ensure_ascii=False)


def certify(
    constraints: Iterable[Constraint],
    predictions: Any,
    batch: Any,
    *,
    tolerance: Tolerance = TOLERANCE,
    k: int = 0,
) -> Certificate:
    """Evaluate every constraint on these predictions.

    Args:
        constraints: as given to `Lagrangian` or `fit`.
        predictions: predictions for all rows of the batch.
        batch: the rows; with `ids` if a constraint looks rows up by id (for pairs, both partners must be among them;
            without ids the rows are numbered from 0).
        tolerance: a ν up to this is not a violation, in σ's units; one number, or a mapping by name to one number or
            one per column [k].
        k: number of dual updates so far, for a slack schedule.

    >>> from ldf import Batch, inequality
    >>> capacity = inequality("capacity", lambda y, batch: y - batch.inputs)
    >>> print(certify([capacity], torch.tensor([[1.0], [3.0]]), Batch(inputs=torch.tensor([[2.0], [2.0]]))))
    constraint  rows  mean ν  max ν  % violated  tolerance
    capacity       2     0.5      1          50     0.0001
    does not hold
    """
    tally = Tally(constraints, k)
    tally.add(predictions, batch)
    return tally.certificate(tolerance)


class Tally:
    """A certificate of rows that come in several batches: σ of all of them is kept, the rows are not.

    Pairs are found within a batch only.

    Args:
        constraints: the constraints to evaluate.
        k: number of dual updates so far, for a slack schedule.

    >>> from .constraint import inequality
    >>> tally = Tally([inequality("capacity", lambda y, batch: y - batch)])
    >>> for y in (1.0, 3.0):
    ...     tally.add(torch.full((1, 1), y), torch.full((1, 1), 2.0))
    >>> tally.certificate()["capacity"].mean
    0.5
    """

    def __init__(self, constraints: Iterable[Constraint], k: int = 0) -> None:
        self.constraints, self.k = check_names(constraints), k
        self.found: list[list[tuple[Tensor, Tensor | None]]] = [[] for _ in self.constraints]

    @torch.no_grad()
    def add(self, predictions: Any, batch: Any) -> None:
        """Evaluate every constraint on these rows."""
        for constraint, found in zip(self.constraints, self.found, strict=True):
            if (part := _evaluate(constraint, predictions, batch, exact=True)) is not None:
                found.append(part)

    @torch.no_grad()
    def certificate(self, tolerance: Tolerance = TOLERANCE) -> Certificate:
        """The findings on all rows so far."""
        bounds = limits(tolerance, self.constraints)
        findings = []
        for constraint, found in zip(self.constraints, self.found, strict=True):
            nu = _violation(constraint, found, self.k)
            if nu.numel() == 0:
                least = float(torch.as_tensor(bounds[constraint.name]).min())
                findings.append(Finding(constraint.name, 0, math.nan, math.nan, math.nan, least, None))
                continue
            limit = torch.as_tensor(bounds[constraint.name]).to(nu)
            if limit.ndim and limit.shape != nu.shape[1:]:
                raise ValueError(
                    f"constraint {constraint.name!r}: tolerance must be one number, or one for each of "
                    f"{nu.shape[1]} columns, got shape {list(limit.shape)}"
                )
            limit = limit.expand(nu.shape[1])
            # ν in units of the largest tolerance, so that columns can be compared; 0/0 is a column like all others.
            relative = nu * (limit.max() / limit).nan_to_num(1.0)
            row, column = divmod(int(relative.argmax()), nu.shape[1])
            findings.append(
                Finding(
                    constraint=constraint.name,
                    rows=len(nu),
                    mean=float(nu.mean()),
                    max=float(nu[row, column]),
                    violated=float((nu > limit).any(1).double().mean()),
                    tolerance=float(limit[column]),
                    worst=row,
                )
            )
        return Certificate(tuple(findings))


def limits(tolerance: Tolerance, constraints: Iterable[Constraint]) -> dict[str, float | Tensor]:
    """The tolerance of every constraint, by name: a number, or one per column [k]."""
    names = [constraint.name for constraint in constraints]
    if not isinstance(tolerance, Mapping):
        if not tolerance >= 0:
            raise ValueError(f"tolerance must be a number ≥ 0, got {tolerance!r}")
        return dict.fromkeys(names, float(tolerance))
    unknown = sorted(set(tolerance) - set(names))
    if unknown or not set(names) <= set(tolerance):
        raise ValueError(f"tolerance must have one number for each of {names}; unknown: {unknown}")
    for name in names:
        if not bool((torch.as_tensor(tolerance[name]) >= 0).all()):
            raise ValueError(f"tolerance must be ≥ 0, got {tolerance[name]!r} for {name!r}")
    return {name: tolerance[name] for name in names}


def violations(constraint: Constraint, predictions: Any, batch: Any, k: int = 0, exact: bool = True) -> Tensor:
    """ν of one constraint on all these rows: [rows, k]; [pairs, k] for pairs, [comparisons, 1] for groups.

    Args:
        k: number of dual updates so far, for a slack schedule.
        exact: use the constraint's `exact` function if it has one; False: use σ itself, which is differentiable.
    """
    found = _evaluate(constraint, predictions, batch, exact)
    return _violation(constraint, [] if found is None else [found], k)


def _evaluate(constraint: Constraint, predictions: Any, batch: Any, exact: bool) -> tuple[Tensor, Tensor | None] | None:
    """σ on all rows of the scope, and what its comparison needs; None if there are no rows."""
    scope = constraint.scope
    side = scope.gather(predictions, batch)
    if scope.rows(side.predictions) == 0:
        return None
    with Widened():  # repaired predictions are float64, a constraint's constants often float32
        sigma = constraint.evaluate(*side, exact=exact)
    constraint.check_finite(sigma)
    return sigma, scope.membership(side.batch)


def _violation(constraint: Constraint, found: Sequence[tuple[Tensor, Tensor | None]], k: int) -> Tensor:
    """ν of the rows of several batches as one set."""
    if not found:
        return torch.zeros(0, 1)
    sigma, member = join(found)
    return constraint.violation(constraint.scope.compared(sigma, member), k)

"""Certificates: for each constraint, how far predictions are from feasible."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..io.text import table
from .constraint import Constraint, check_names

Tolerance = float | Mapping[str, float]
"""One number for all constraints, or a mapping with one per constraint name."""
TOLERANCE = 1e-4
"""Default tolerance, in σ's units: a ν up to this is not a violation."""


@dataclass(frozen=True)
class Finding:
    """Summary of one constraint: ν over all rows (samples, pairs or group comparisons) and columns."""

    constraint: str
    rows: int
    mean: float
    max: float
    violated: float
    """Fraction of rows with a ν above the tolerance."""
    tolerance: float
    worst: int | None
    """Index of the row with the largest ν."""


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
        tolerance: a ν up to this is not a violation, in σ's units; one number, or a mapping by name.
        k: number of dual updates so far, for a slack schedule.

    >>> from ldf import Batch, inequality
    >>> capacity = inequality("capacity", lambda y, batch: y - batch.inputs)
    >>> print(certify([capacity], torch.tensor([[1.0], [3.0]]), Batch(inputs=torch.tensor([[2.0], [2.0]]))))
    constraint  rows  mean ν  max ν  % violated  tolerance
    capacity       2     0.5      1          50     0.0001
    does not hold
    """
    constraints = check_names(constraints)
    names = [constraint.name for constraint in constraints]
    if isinstance(tolerance, Mapping):
        unknown = sorted(set(tolerance) - set(names))
        if unknown or not set(names) <= set(tolerance):
            raise ValueError(f"tolerance must have one number for each of {names}; unknown: {unknown}")
    elif not tolerance >= 0:
        raise ValueError(f"tolerance must be a number ≥ 0, got {tolerance!r}")
    findings = []
    for constraint in constraints:
        limit = float(tolerance[constraint.name] if isinstance(tolerance, Mapping) else tolerance)
        with torch.no_grad():
            nu = violations(constraint, predictions, batch, k)
        if nu.numel() == 0:
            findings.append(Finding(constraint.name, 0, math.nan, math.nan, math.nan, limit, None))
            continue
        worst = nu.amax(1)
        findings.append(
            Finding(
                constraint=constraint.name,
                rows=len(nu),
                mean=float(nu.mean()),
                max=float(worst.max()),
                violated=float((worst > limit).double().mean()),
                tolerance=limit,
                worst=int(worst.argmax()),
            )
        )
    return Certificate(tuple(findings))


def violations(constraint: Constraint, predictions: Any, batch: Any, k: int = 0, exact: bool = True) -> Tensor:
    """ν of one constraint on all these rows: [rows, k]; [pairs, k] for pairs, [comparisons, 1] for groups.

    Args:
        k: number of dual updates so far, for a slack schedule.
        exact: use the constraint's `exact` function if it has one; False: use σ itself, which is differentiable.
    """
    scope = constraint.scope
    side = scope.gather(predictions, batch)
    if scope.rows(side.predictions) == 0:
        return torch.zeros(0, 1)
    sigma = constraint.evaluate(*side, exact=exact)
    constraint.check_finite(sigma)
    return constraint.violation(scope.compared(sigma, side.batch), k)

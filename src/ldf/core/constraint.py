"""Constraints: a satisfiability degree σ with a name, and the violation degree ν that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .batch import describe
from .samples import SAMPLES
from .scope import ConstraintError, Scope

Schedule = Callable[[int], float]
"""A number that changes with k = 0, 1, …, the count of dual updates so far."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """One constraint, σ ≤ 0 or σ = 0; made by `inequality` and `equality`.

    The violation degree is ν = max(0, σ) for an inequality and ν = |σ| for an equality. With a slack ε > 0 the
    constraint is σ ≤ ε, or |σ| ≤ ε.
    """

    name: str
    sigma: Callable[[Any, Any], Tensor] = field(repr=False)
    kind: Literal["inequality", "equality"]
    scope: Scope = SAMPLES
    degree: Literal["violation", "satisfiability"] = "violation"
    multiplier: Literal["constraint", "column", "sample"] = "constraint"
    slack: float | Schedule = 0.0
    cap: float | None = None
    tolerance: float | None = None
    exact: Callable[[Any, Any], Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a constraint's name must be a non-empty string, got {self.name!r}")
        if not callable(self.sigma):
            raise TypeError(f"constraint {self.name!r}: σ must be a function (predictions, batch) → [batch, k]")
        _choice(self.name, "degree", self.degree, ("violation", "satisfiability"))
        _choice(self.name, "multiplier", self.multiplier, ("constraint", "column", "sample"))
        if not isinstance(self.scope, Scope):
            raise TypeError(f"constraint {self.name!r}: scope must be Pairs, Groups or None, got {self.scope!r}")
        if self.multiplier == "sample" and not self.scope.rowwise:
            raise ValueError(
                f"constraint {self.name!r}: a constraint on groups has no multiplier per sample; "
                "take multiplier='column' for one per comparison"
            )
        if self.exact is not None and (self.scope.rowwise or not callable(self.exact)):
            raise TypeError(f"constraint {self.name!r}: exact must be a function, and goes with a constraint on groups")
        self.slack_at(0)
        for what, value in (("cap", self.cap), ("tolerance", self.tolerance)):
            if value is not None and not value > 0:
                raise ValueError(f"constraint {self.name!r}: {what} must be > 0, got {value}")

    @property
    def observable(self) -> bool:
        """Whether its multipliers can ascend by rows that are not trained on: those of pairs and samples cannot."""
        return self.scope.name is None and self.multiplier != "sample"

    def slack_at(self, k: int) -> float:
        """ε after k dual updates, in σ's units."""
        slack = self.slack(k) if callable(self.slack) else self.slack
        if not isinstance(slack, int | float) or not math.isfinite(slack) or slack < 0:
            raise ValueError(f"constraint {self.name!r}: slack must be a number ≥ 0, got {slack!r} (update {k})")
        return float(slack)

    def evaluate(
        self, predictions: Any, batch: Any, rows: int | None = None, columns: int | None = None, exact: bool = False
    ) -> Tensor:
        """σ, [rows, k]: one row per sample or pair; for groups the statistic of each row.

        Args:
            predictions: of the rows that the scope looks at.
            batch: of the same rows.
            rows: of σ, where they are counted already.
            columns: k, where it is known from before.
            exact: what multipliers ascend by and certificates report: `exact` where there is one, else σ.
        """
        function = self.exact if exact and self.exact is not None else self.sigma
        sigma = function(predictions, batch)
        self._check(sigma, self.scope.rows(predictions) if rows is None else rows, columns)
        return sigma

    def _check(self, sigma: Any, rows: int, columns: int | None) -> None:
        """Refuse what is not a floating tensor [rows, k]."""
        if not isinstance(sigma, Tensor) or sigma.ndim != 2 or not sigma.is_floating_point():
            raise ConstraintError(
                f"constraint {self.name!r}: its function must return a floating tensor of shape [rows, k], "
                f"got {describe(sigma)}"
                + ("; keepdim=True or [:, None] gives a column" if isinstance(sigma, Tensor) else "")
            )
        found = sigma.shape
        if found[0] != rows or found[1] == 0:
            raise ConstraintError(
                f"constraint {self.name!r}: its function must return [{rows}, k], a row per "
                f"{self.scope.unit}, got {list(found)}"
            )
        if columns is not None and found[1] != columns:
            raise ConstraintError(
                f"constraint {self.name!r}: its function gave {columns} columns at first and {found[1]} now; the "
                "number of columns must stay the same"
            )

    def check_finite(self, sigma: Tensor) -> None:
        """Refuse a value that is not finite, and say where it stands."""
        if not bool(torch.isfinite(sigma).all()):
            flat = sigma.reshape(len(sigma), -1)
            row, column = (~torch.isfinite(flat)).nonzero()[0].tolist()
            raise ConstraintError(
                f"constraint {self.name!r}: its function gave {flat[row, column].item()} in row {row}, "
                f"column {column}; every value must be finite"
            )

    def violation(self, sigma: Tensor, k: int = 0) -> Tensor:
        """ν = max(0, σ − ε) or max(0, |σ| − ε), elementwise."""
        size = sigma.abs() if self.kind == "equality" else sigma
        return (size - self.slack_at(k)).clamp_min(0)


def inequality(
    name: str,
    sigma: Callable[[Any, Any], Tensor],
    *,
    scope: Scope | None = None,
    degree: Literal["violation", "satisfiability"] = "violation",
    multiplier: Literal["constraint", "column", "sample"] = "constraint",
    slack: float | Schedule = 0.0,
    cap: float | None = None,
    tolerance: float | None = None,
    exact: Callable[[Any, Any], Tensor] | None = None,
) -> Constraint:
    """The constraint σ(predictions, batch) ≤ slack, with violation degree ν = max(0, σ − slack).

    Args:
        name: under which multiplier, violation and advice are found.
        sigma: (predictions, batch) → [rows, k], ≤ 0 where the constraint holds.
        scope: None for each sample, `Pairs` or `Groups`.
        degree: what the multiplier is multiplied with: the violation degree ν, or the plain satisfiability degree σ
            (then λ ≥ 0 is kept by projection).
        multiplier: one for the whole "constraint" (its ν is the mean over its columns, as in the paper's laws), one per
            "column", or one per "sample" and column (for pairs: per pair).
        slack: ε ≥ 0 in σ's units, a number or a function of the count of dual updates.
        cap: an upper bound for |λ|.
        tolerance: a mean ν up to this counts as satisfied; by default a thousandth of σ's own scale.
        exact: for groups: what `sigma` stands in for, such as the 0/1 decision behind a probability. Nothing is
            differentiated through it: the loss has `sigma`, and the multiplier ascends by the means of `exact`.

    >>> capacity = inequality("capacity", lambda y, batch: y - batch.inputs)
    >>> capacity.violation(torch.tensor([[-1.0, 2.0]]))
    tensor([[0., 2.]])
    """
    return Constraint(name, sigma, "inequality", scope or SAMPLES, degree, multiplier, slack, cap, tolerance, exact)


def equality(
    name: str,
    sigma: Callable[[Any, Any], Tensor],
    *,
    scope: Scope | None = None,
    degree: Literal["violation", "satisfiability"] = "violation",
    multiplier: Literal["constraint", "column", "sample"] = "constraint",
    slack: float | Schedule = 0.0,
    cap: float | None = None,
    tolerance: float | None = None,
    exact: Callable[[Any, Any], Tensor] | None = None,
) -> Constraint:
    """The constraint |σ(predictions, batch)| ≤ slack, with violation degree ν = max(0, |σ| − slack).

    The arguments are those of `inequality`; with degree="satisfiability" the multiplier is signed.

    >>> equality("balance", lambda y, batch: y.sum(1, keepdim=True)).violation(torch.tensor([[-3.0]]))
    tensor([[3.]])
    """
    return Constraint(name, sigma, "equality", scope or SAMPLES, degree, multiplier, slack, cap, tolerance, exact)


def check_names(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The constraints as a tuple, each a Constraint under a name of its own."""
    constraints = tuple(constraints)
    seen: set[str] = set()
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise TypeError(f"constraints are made by ldf.inequality and ldf.equality, got {type(constraint).__name__}")
        if constraint.name in seen:
            raise ValueError(f"two constraints are named {constraint.name!r}: each needs a name of its own")
        seen.add(constraint.name)
    return constraints


def _choice(name: str, what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"constraint {name!r}: {what} must be one of {', '.join(allowed)}, got {value!r}")

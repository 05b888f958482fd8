"""Constraints: a named satisfiability degree σ, and the violation degree ν derived from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .batch import describe
from .samples import SAMPLES
from .scope import ConstraintError, Scope

Schedule = Callable[[int], float]
"""A function of k = 0, 1, …, the number of dual updates so far."""
Degree = Literal["violation", "satisfiability"]
Kind = Literal["constraint", "column", "sample"]


@dataclass(frozen=True, eq=False)
class Constraint:
    """One constraint, σ ≤ 0 or σ = 0. Create it with `inequality` or `equality`.

    The violation degree is ν = max(0, σ) for an inequality and ν = |σ| for an equality. With a slack ε > 0 the
    constraint is σ ≤ ε, or |σ| ≤ ε.
    """

    name: str
    sigma: Callable[[Any, Any], Tensor] = field(repr=False)
    kind: Literal["inequality", "equality"]
    scope: Scope = SAMPLES
    degree: Degree | None = None
    multiplier: Kind | None = None
    slack: float | Schedule = 0.0
    cap: float | None = None
    tolerance: float | None = None
    exact: Callable[[Any, Any], Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a constraint's name must be a non-empty string, got {self.name!r}")
        if not callable(self.sigma):
            raise TypeError(f"constraint {self.name!r}: σ must be a function (predictions, batch) → [batch, k]")
        _choice(self.name, "degree", self.degree, get_args(Degree))
        _choice(self.name, "multiplier", self.multiplier, get_args(Kind))
        if not isinstance(self.scope, Scope):
            raise TypeError(f"constraint {self.name!r}: scope must be Pairs, Groups or None, got {self.scope!r}")
        if self.multiplier == "sample" and not self.scope.rowwise:
            raise ValueError(
                f"constraint {self.name!r}: a constraint on groups has no multiplier per sample; "
                "use multiplier='column' for one per comparison"
            )
        if self.exact is not None and (self.scope.rowwise or not callable(self.exact)):
            raise TypeError(f"constraint {self.name!r}: exact must be a function, and requires scope=Groups(…)")
        self.slack_at(0)
        for what, value in (("cap", self.cap), ("tolerance", self.tolerance)):
            if value is not None and not value > 0:
                raise ValueError(f"constraint {self.name!r}: {what} must be > 0, got {value}")

    @property
    def observable(self) -> bool:
        """Whether held-out rows can update its multipliers: not if they belong to pairs or single samples."""
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
        """σ, [rows, k]: one row per sample or pair; for groups, the statistic of each row.

        Args:
            predictions: predictions for the rows of the scope.
            batch: the same rows.
            rows: expected number of rows of σ, if already known.
            columns: expected k, if already known.
            exact: evaluate `exact` instead of σ if the constraint has one, as dual updates and certificates do.
        """
        function = self.exact if exact and self.exact is not None else self.sigma
        sigma = function(predictions, batch)
        self._check(sigma, self.scope.rows(predictions) if rows is None else rows, columns)
        return sigma

    def _check(self, sigma: Any, rows: int, columns: int | None) -> None:
        """Raise unless σ is a floating tensor [rows, k]."""
        if isinstance(sigma, Tensor) and sigma.shape == (rows, columns) and columns and sigma.is_floating_point():
            return  # as in every step but the first
        if not isinstance(sigma, Tensor) or sigma.ndim != 2 or not sigma.is_floating_point():
            raise ConstraintError(
                f"constraint {self.name!r}: its function must return a floating tensor of shape [rows, k], "
                f"got {describe(sigma)}"
                + ("; use keepdim=True or [:, None] to get a column" if isinstance(sigma, Tensor) else "")
            )
        found = sigma.shape
        if found[0] != rows or found[1] == 0:
            raise ConstraintError(
                f"constraint {self.name!r}: its function must return [{rows}, k], one row per "
                f"{self.scope.unit}, got {list(found)}"
            )
        if columns is not None and found[1] != columns:
            raise ConstraintError(
                f"constraint {self.name!r}: its function returned {columns} columns before and {found[1]} now; the "
                "number of columns must not change"
            )

    def check_finite(self, sigma: Tensor) -> None:
        """Raise if a value is not finite, naming its row and column."""
        if not bool(torch.isfinite(sigma).all()):
            flat = sigma.reshape(len(sigma), -1)
            row, column = (~torch.isfinite(flat)).nonzero()[0].tolist()
            raise ConstraintError(
                f"constraint {self.name!r}: its function returned {flat[row, column].item()} in row {row}, "
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
    degree: Degree | None = None,
    multiplier: Kind | None = None,
    slack: float | Schedule = 0.0,
    cap: float | None = None,
    tolerance: float | None = None,
    exact: Callable[[Any, Any], Tensor] | None = None,
) -> Constraint:
    """The constraint σ(predictions, batch) ≤ slack, with violation degree ν = max(0, σ − slack).

    Args:
        name: unique name, the key for its multiplier, its violations and the doctor's advice.
        sigma: (predictions, batch) → [rows, k], ≤ 0 where the constraint holds.
        scope: None (each sample), `Pairs` or `Groups`.
        degree: what λ multiplies in the loss: "violation", the violation degree ν, or "satisfiability", plain σ (λ is
            then projected to λ ≥ 0). By default ν; the automatic rule takes plain σ for groups.
        multiplier: one for the whole "constraint" (its ν is the mean over its columns), one per "column", or one per
            "sample" and column (for pairs: per pair). By default one per constraint; the automatic rule has one per
            column.
        slack: ε ≥ 0 in σ's units, a number or a function of the number of dual updates.
        cap: upper bound for |λ|.
        tolerance: a mean ν up to this counts as satisfied; by default 1/1000 of the scale of σ.
        exact: only for groups: the quantity that `sigma` approximates, such as the 0/1 decision of a probability. It
            is not differentiated: the loss uses `sigma`, and the dual update uses the group means of `exact`.

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
    degree: Degree | None = None,
    multiplier: Kind | None = None,
    slack: float | Schedule = 0.0,
    cap: float | None = None,
    tolerance: float | None = None,
    exact: Callable[[Any, Any], Tensor] | None = None,
) -> Constraint:
    """The constraint |σ(predictions, batch)| ≤ slack, with violation degree ν = max(0, |σ| − slack).

    Same arguments as `inequality`; with degree="satisfiability" the multiplier is signed.

    >>> equality("balance", lambda y, batch: y.sum(1, keepdim=True)).violation(torch.tensor([[-3.0]]))
    tensor([[3.]])
    """
    return Constraint(name, sigma, "equality", scope or SAMPLES, degree, multiplier, slack, cap, tolerance, exact)


def check_names(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The constraints as a tuple; raises unless all are constraints with distinct names."""
    constraints = tuple(constraints)
    seen: set[str] = set()
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise TypeError(f"create constraints with ldf.inequality or ldf.equality, got {type(constraint).__name__}")
        if constraint.name in seen:
            raise ValueError(f"two constraints are named {constraint.name!r}: names must be unique")
        seen.add(constraint.name)
    return constraints


def _choice(name: str, what: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ValueError(f"constraint {name!r}: {what} must be one of {', '.join(allowed)}, got {value!r}")

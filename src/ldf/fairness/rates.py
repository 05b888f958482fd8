"""Rates that must be equal across groups: the comparisons, the constraint, and confidence intervals of the gaps.

A rate is the share of positive decisions in a cell: a group (demographic parity), a group's rows with positive label
(equal opportunity), or a group's rows with positive and with negative label (equalised odds). Within an event, σ is the
difference of the rates of each pair of groups; for two groups and demographic parity it is the paper's

    σ = E[ŷ | z = 1] − E[ŷ | z = 0],   DT = |σ| on 0/1 decisions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from ..core.constraint import Constraint, equality, inequality
from ..core.groups import Groups, every_pair

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NAME = "rate gap"
"""Name of the constraint in multipliers and histories."""

EVENTS: dict[str, tuple[str, ...]] = {
    "demographic parity": ("all",),
    "equal opportunity": ("y = 1",),
    "equalised odds": ("y = 1", "y = 0"),
}
"""Events that the rates are conditioned on, by constraint."""

SPELLINGS = {"equalized odds": "equalised odds", "true positive rate parity": "equal opportunity"}


@dataclass(frozen=True)
class Rates:
    """The rates that a constraint compares.

    Args:
        constraint: "demographic parity", "equal opportunity" or "equalised odds".
        groups: names of the groups, in sorted order.
    """

    constraint: str
    groups: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraint", canonical(self.constraint))

    @property
    def events(self) -> tuple[str, ...]:
        """Events that the comparisons are conditioned on."""
        return EVENTS[self.constraint]

    @property
    def pairs(self) -> list[tuple[str, str, str]]:
        """(event, a, b) of every σ = rate of b − rate of a."""
        first, second = np.triu_indices(len(self.groups), 1)
        names = [(self.groups[a], self.groups[b]) for a, b in zip(first, second, strict=True)]
        return [(event, a, b) for event in self.events for a, b in names]

    @property
    def count(self) -> int:
        """Number of cells: events × groups."""
        return len(self.events) * len(self.groups)

    @property
    def differences(self) -> Floats:
        """C, [pairs, cells]: σ = C · rates."""
        return self.compare(torch.eye(self.count, dtype=torch.float64), columns=True).numpy()

    def compare(self, means: Tensor, columns: bool = False) -> Tensor:
        """σ of every pair within every event: [cells, 1] → [pairs]; with `columns` [cells, k] → [pairs, k]."""
        parts = [every_pair(part).view(-1, part.shape[1]) for part in means.split(len(self.groups))]
        together = torch.cat(parts)
        return together if columns else together[:, 0]

    def both(self, means: Tensor) -> Tensor:
        """σ and −σ."""
        sigma = self.compare(means)
        return torch.cat([sigma, -sigma])

    def cells(self, groups: Ints, labels: Ints) -> Ints:
        """The cell of each row, [n]; −1 if it belongs to none."""
        if self.constraint == "demographic parity":
            return groups
        negative = groups + len(self.groups) if self.constraint == "equalised odds" else np.full_like(groups, -1)
        return np.where(labels == 1, groups, negative)

    def chances(self, of_groups: Floats, positive: Floats) -> Floats:
        """q, [n, cells]: P(cell | x).

        Args:
            of_groups: [n, G] P(group | x), or [n, 2G] P(group | x, y = 0) followed by P(group | x, y = 1).
            positive: [n] P(y = 1 | x).
        """
        if self.constraint == "demographic parity":
            return of_groups
        given_negative, given_positive = np.split(of_groups, 2, axis=1) if self.halves(of_groups) else (of_groups,) * 2
        parts = [positive[:, None] * given_positive]
        if self.constraint == "equalised odds":
            parts.append((1 - positive)[:, None] * given_negative)
        return np.concatenate(parts, axis=1)

    def halves(self, of_groups: Floats) -> bool:
        """Whether the group probabilities are conditioned on the label."""
        return bool(of_groups.shape[1] == 2 * len(self.groups))

    def rates(self, decisions: NDArray[Any], cells: Ints) -> Floats:
        """Share of positive decisions in each cell, [cells]; NaN for a cell without rows."""
        inside = cells >= 0
        counts = np.bincount(cells[inside], minlength=self.count)
        sums = np.bincount(cells[inside], decisions[inside].astype(np.float64), minlength=self.count)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def gaps(self, decisions: NDArray[Any], cells: Ints) -> Floats:
        """σ of every pair, [pairs]."""
        rates = self.rates(decisions, cells)
        return np.concatenate([_pairs(part) for part in np.split(rates, len(self.events))])

    def law(
        self,
        slack: float = 0.0,
        degree: Literal["violation", "satisfiability"] = "satisfiability",
        name: str = NAME,
    ) -> Constraint:
        """The constraint on logits [n, k], whose first column decides, with one multiplier per pair.

        The loss uses expected rates, computed from probabilities. With "satisfiability" (plain σ) the multipliers are
        updated by the exact rates of 0/1 decisions: one signed multiplier per pair for σ = 0, two per pair for σ ≤ ε
        and −σ ≤ ε. With "violation" (ν = |σ|) they are updated by the expected rates, as in the paper.
        """
        if not (math.isfinite(slack) and slack >= 0):
            raise ValueError(f"slack must be a number ≥ 0, got {slack!r}")
        names = [f"{group}, {event}" if event != "all" else group for event in self.events for group in self.groups]

        if degree == "violation":
            scope = Groups("cell", self.count, compare=self.compare, names=names)
            return equality(name, expected, scope=scope, degree=degree, multiplier="column", slack=slack)
        if slack == 0:
            scope = Groups("cell", self.count, compare=self.compare, names=names)
            return equality(name, expected, scope=scope, degree=degree, multiplier="column", exact=decided)
        scope = Groups("cell", self.count, compare=self.both, names=names)
        return inequality(name, expected, scope=scope, degree=degree, multiplier="column", slack=slack, exact=decided)

    def initial(self, multipliers: Floats, slack: float) -> tuple[float, ...]:
        """Initial multipliers λ⁰ of `law` from one signed multiplier per pair."""
        if slack == 0:
            return tuple(multipliers.tolist())
        return tuple(np.concatenate([multipliers, -multipliers]).clip(min=0).tolist())


def covariance(groups: tuple[str, ...], shares: Floats) -> Constraint:
    """Zafar's constraint for a network, as in the paper: zero covariance of z and the distance to the boundary.

    Cov(z, d) = E[(z − z̄) d] = π₀ π₁ (E[d | z = 1] − E[d | z = 0]), where d is the logit. Two groups only. It uses
    ν = |Cov|: with a signed multiplier the loss is unbounded below once λ exceeds the slope of the cross-entropy.
    """
    if len(groups) != 2:
        raise ValueError(f"the covariance constraint needs exactly two groups, got {len(groups)}")
    scope = Groups("cell", 2, compare=partial(_scaled, float(np.prod(shares))), names=list(groups))
    return equality("covariance", _logit, scope=scope, multiplier="column")


def expected(logits: Tensor, batch: Any) -> Tensor:
    """Probability of a positive decision, [n, 1]."""
    return torch.sigmoid(logits[:, :1])


def decided(logits: Tensor, batch: Any) -> Tensor:
    """Decision, 0 or 1, [n, 1]."""
    return (logits[:, :1] > 0).to(logits.dtype)


def _logit(logits: Tensor, batch: Any) -> Tensor:
    return logits[:, :1]


def _scaled(scale: float, means: Tensor) -> Tensor:
    return scale * every_pair(means)


def canonical(constraint: str) -> str:
    """Normalise the name of a constraint (case, hyphens, underscores, synonyms)."""
    name = str(constraint).lower().replace("_", " ").replace("-", " ").strip()
    name = SPELLINGS.get(name, name)
    if name not in EVENTS:
        raise ValueError(f"constraint must be one of {', '.join(EVENTS)}, got {constraint!r}")
    return name


def _pairs(rates: Floats) -> Floats:
    first, second = np.triu_indices(len(rates), 1)
    return np.asarray(rates[second] - rates[first])


def sigmoid(logits: Floats) -> Floats:
    """1/(1 + exp(−x)), without overflow."""
    return np.asarray(expit(logits))


def wilson(positive: float, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion: within [0, 1], and accurate for small samples and extreme proportions.

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    if rows == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = positive / rows
    centre = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    # Exact at 0 and 1: rounding would exclude the proportion itself.
    return 0.0 if positive == 0 else max(0.0, centre - half), 1.0 if positive == rows else min(1.0, centre + half)


def newcombe(first: tuple[float, int], second: tuple[float, int], level: float = 0.95) -> tuple[float, float]:
    """Newcombe's interval of p₂ − p₁ from the Wilson intervals of both proportions, each passed as (positive, rows).

    >>> [round(end, 3) for end in newcombe((48, 80), (56, 70))]
    [0.052, 0.334]
    """
    (low1, high1), (low2, high2) = wilson(*first, level), wilson(*second, level)
    if first[1] == 0 or second[1] == 0:
        return math.nan, math.nan
    share1, share2 = first[0] / first[1], second[0] / second[1]
    gap = share2 - share1
    return (
        gap - math.hypot(share2 - low2, high1 - share1),
        gap + math.hypot(high2 - share2, share1 - low1),
    )

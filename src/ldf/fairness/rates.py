"""Rates that must be equal across groups: what is compared, the constraint, and how sure a measured gap is.

A rate is the share of positive decisions in a cell: a group (demographic parity), a group's positive labels (equal
opportunity), or a group's positive and its negative labels (equalised odds). Within an event, σ is the difference of
every two groups' rates; for two groups and demographic parity it is the paper's

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
"""Under which the constraint is found in multipliers and histories."""

EVENTS: dict[str, tuple[str, ...]] = {
    "demographic parity": ("all",),
    "equal opportunity": ("y = 1",),
    "equalised odds": ("y = 1", "y = 0"),
}
"""The events that rates are taken over, by constraint."""

SPELLINGS = {"equalized odds": "equalised odds", "true positive rate parity": "equal opportunity"}


@dataclass(frozen=True)
class Rates:
    """Which rates are compared.

    Args:
        constraint: "demographic parity", "equal opportunity" or "equalised odds".
        groups: their names, in order.
    """

    constraint: str
    groups: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraint", canonical(self.constraint))

    @property
    def events(self) -> tuple[str, ...]:
        """What each comparison is conditioned on."""
        return EVENTS[self.constraint]

    @property
    def pairs(self) -> list[tuple[str, str, str]]:
        """(event, a, b) of every σ = rate of b − rate of a."""
        first, second = np.triu_indices(len(self.groups), 1)
        names = [(self.groups[a], self.groups[b]) for a, b in zip(first, second, strict=True)]
        return [(event, a, b) for event in self.events for a, b in names]

    @property
    def count(self) -> int:
        """The number of cells: events × groups."""
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
        """[n]: the cell of each row, −1 where its rate is in none."""
        if self.constraint == "demographic parity":
            return groups
        negative = groups + len(self.groups) if self.constraint == "equalised odds" else np.full_like(groups, -1)
        return np.where(labels == 1, groups, negative)

    def chances(self, of_groups: Floats, positive: Floats) -> Floats:
        """q, [n, cells]: P(cell | x).

        Args:
            of_groups: [n, G] P(group | x), or [n, 2G] P(group | x, y = 0) beside P(group | x, y = 1).
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
        """Whether the chances of groups are given for each label."""
        return bool(of_groups.shape[1] == 2 * len(self.groups))

    def rates(self, decisions: NDArray[Any], cells: Ints) -> Floats:
        """[cells]: the share of positive decisions in each; NaN in one without rows."""
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
        """The constraint on logits [n, k], of which the first column decides, with a multiplier for every pair.

        The loss has the expected rates, of probabilities. On plain σ ("satisfiability") the multipliers ascend by the
        exact rates, of 0/1 decisions: signed for σ = 0, and two of each pair for σ ≤ ε and −σ ≤ ε. On ν = |σ| they
        ascend by the expected ones, as in the paper.
        """
        if not (math.isfinite(slack) and slack >= 0):
            raise ValueError(f"slack must be a number ≥ 0, got {slack!r}")
        names = [f"{group}, {event}" if event != "all" else group for event in self.events for group in self.groups]

        if degree == "violation":
            scope = Groups("cell", self.count, compare=self.compare, names=names)
            return equality(name, expected, scope=scope, slack=slack, multiplier="column")
        if slack == 0:
            scope = Groups("cell", self.count, compare=self.compare, names=names)
            return equality(name, expected, scope=scope, degree=degree, multiplier="column", exact=decided)
        scope = Groups("cell", self.count, compare=self.both, names=names)
        return inequality(name, expected, scope=scope, degree=degree, multiplier="column", slack=slack, exact=decided)

    def initial(self, multipliers: Floats, slack: float) -> tuple[float, ...]:
        """λ⁰ of `law` from a signed multiplier for every pair."""
        if slack == 0:
            return tuple(multipliers.tolist())
        return tuple(np.concatenate([multipliers, -multipliers]).clip(min=0).tolist())


def covariance(groups: tuple[str, ...], shares: Floats) -> Constraint:
    """Zafar's constraint as the paper reads it for a network: no covariance of z and the distance to the boundary.

    Cov(z, d) = E[(z − z̄) d] = π₀ π₁ (E[d | z = 1] − E[d | z = 0]), with the logit for d. Two groups only. On ν = |Cov|:
    with a signed multiplier the loss has no minimum once λ outweighs the slope of the cross-entropy.
    """
    if len(groups) != 2:
        raise ValueError(f"the covariance with a group's membership is of two groups, got {len(groups)}")
    scope = Groups("cell", 2, compare=partial(_scaled, float(np.prod(shares))), names=list(groups))
    return equality("covariance", _logit, scope=scope, multiplier="column")


def expected(logits: Tensor, batch: Any) -> Tensor:
    """The probability of a positive decision, [n, 1]."""
    return torch.sigmoid(logits[:, :1])


def decided(logits: Tensor, batch: Any) -> Tensor:
    """The decision, 0 or 1, [n, 1]."""
    return (logits[:, :1] > 0).to(logits.dtype)


def _logit(logits: Tensor, batch: Any) -> Tensor:
    return logits[:, :1]


def _scaled(scale: float, means: Tensor) -> Tensor:
    return scale * every_pair(means)


def canonical(constraint: str) -> str:
    """The name of a constraint, however it is written."""
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
    """Wilson's score interval of a share: it stays within [0, 1], and holds where normal intervals fail.

    >>> [round(end, 3) for end in wilson(8, 10)]
    [0.49, 0.943]
    """
    if rows == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = positive / rows
    centre = (share + z * z / (2 * rows)) / (1 + z * z / rows)
    half = z / (1 + z * z / rows) * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    # At the ends exactly: rounding would leave the share itself out.
    return 0.0 if positive == 0 else max(0.0, centre - half), 1.0 if positive == rows else min(1.0, centre + half)


def newcombe(first: tuple[float, int], second: tuple[float, int], level: float = 0.95) -> tuple[float, float]:
    """Newcombe's interval of share₂ − share₁, from the Wilson intervals of both. Each is (positive, rows).

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

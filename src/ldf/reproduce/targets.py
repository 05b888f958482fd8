"""Figures to reach: which of our figures should be at or below which others, and whether they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .options import NETWORKS
from .tables import Part, Row, Section, key_of, sections_of

GAP = 0.01
"""A pooled difference of rates that is as good as none."""
STANDARD_ERROR = {"bank-balanced-age": 0.0225}
"""Where that is less than what chance does: the standard error of the difference of rates in its test rows."""


@dataclass(frozen=True)
class Check:
    """One figure to reach."""

    goal: str
    """What many such checks say together."""
    key: tuple[Any, ...]
    """Table, case, sampling, slack and quantity of the figure."""
    what: str
    ours: float
    sign: str
    """≤ or <."""
    bound: float

    @property
    def table(self) -> str:
        """Of results.json."""
        return str(self.key[0])

    @property
    def case(self) -> str:
        """A network, a size of training sets, or a variant."""
        return str(self.key[1])

    @property
    def sampling(self) -> str | None:
        """How demands are drawn."""
        return None if self.key[2] is None else str(self.key[2])

    @property
    def reached(self) -> bool:
        """Whether it is; a figure that is not a number is not."""
        return self.ours < self.bound if self.sign == "<" else self.ours <= self.bound


def checks(parts: Sequence[Part]) -> list[Check]:
    """Every figure to reach of these tables, in their order."""
    found: list[Check] = []
    for section in (section for part in parts for section in sections_of(part.rows)):
        row = next(iter(section.cells.values()))
        if row["table"] in NETWORKS and row["recipe"] == "tuned":
            found += _networks(section, row)
        elif row["table"] == "transprecision":
            found += _transprecision(section, row)
        elif row["table"] == "fairness":
            found += _fairness(section, row)
    return found


def counts(found: Sequence[Check]) -> list[tuple[str, int, int]]:
    """(goal, reached, all) in the order in which goals come."""
    goals = dict.fromkeys(check.goal for check in found)
    return [
        (goal, sum(c.reached for c in found if c.goal == goal), sum(c.goal == goal for c in found)) for goal in goals
    ]


def summary(parts: Sequence[Part]) -> list[str]:
    """A line for each goal."""
    return [
        f"{'✓' if reached == count else '✗'} {goal}: {reached} of {count}"
        for goal, reached, count in counts(checks(parts))
    ]


def _networks(section: Section, row: Row) -> Iterator[Check]:
    like = "as in the paper" if row["sampling"] == "shared" else "harder than the paper's"
    goal = f"{row['table']}, {row['sampling']} demands ({like}): MCD at or below the paper's M_C^D"
    for quantity in section.quantities:
        bound = section.paper(quantity, "MCD")
        if not math.isnan(bound):
            yield Check(goal, key_of(row, quantity), f"{quantity}: MCD", section.mean(quantity, "MCD"), "≤", bound)


def _transprecision(section: Section, row: Row) -> Iterator[Check]:
    if row["recipe"] == "tuned":
        ours, bound = section.mean("MAE y", "MCD repaired"), section.mean("MAE y", "LightGBM")
        goal = "transprecision, tuned: after repair, MAE below LightGBM's"
        yield Check(goal, key_of(row, "MAE"), "MAE y: MCD repaired, LightGBM", ours, "<", bound)
        goal = "transprecision, tuned: after repair, no violated pair"
        yield Check(goal, key_of(row, "VC"), "VC: MCD repaired", section.mean("VC", "MCD repaired"), "≤", 0.0)
        return
    for model, words in (("MCD directed", "with directed pairs"), ("MCD", "with the printed dual step")):
        if model not in section.models:
            continue
        for quantity in ("VC", "SMVC"):
            others = [section.mean(quantity, other) for other in ("M", "MC")]
            bound = math.nan if any(math.isnan(other) for other in others) else min(others)
            goal = f"transprecision, the paper's network, {words}: VC and SMVC below M's and M_C's"
            ours = section.mean(quantity, model)
            yield Check(goal, key_of(row, quantity), f"{quantity}: {model}, M and MC", ours, "<", bound)
        goal = f"transprecision, the paper's network, {words}: MAE no worse than M's"
        ours, bound = section.mean("MAE", model), section.mean("MAE", "M")
        yield Check(goal, key_of(row, "MAE"), f"MAE: {model}, M", ours, "≤", bound)


def _fairness(section: Section, row: Row) -> Iterator[Check]:
    if row["recipe"] == "paper":
        goal = "fairness, the paper's recipe: DT of MCD at or below the paper's M_C^D"
        ours, bound = section.mean("DT", "MCD"), section.paper("DT", "MCD")
        yield Check(goal, key_of(row, "DT"), "DT: MCD", ours, "≤", bound)
        return
    for model in ("MCD", "boosting MCD"):
        if model in section.models:
            bound = max(GAP, STANDARD_ERROR.get(row["case"], 0.0))
            ours = abs(section.mean("signed DT", model))
            goal = "fairness, tuned: |mean signed DT| below .01, or one standard error where that is more"
            yield Check(goal, key_of(row, "DT"), f"|signed DT|: {model}", ours, "<", bound)

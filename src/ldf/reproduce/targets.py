"""Targets: which of our results should be at or below which others, and whether each target is met."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .options import NETWORKS
from .tables import Key, Part, Section, digits, sections_of

GAP = 0.01
"""A mean signed difference of rates below this counts as zero."""
STANDARD_ERROR = {"bank-balanced-age": 0.0225}
"""Standard error of the difference of rates on the test rows of a variant, where it exceeds `GAP`."""
WORDS = {
    "power-errors": "Errors on power networks",
    "gas-errors": "Errors on gas networks",
    "violations": "Distance moved by repair",
}
"""Names of the network tables in the wording of a target."""


@dataclass(frozen=True)
class Check:
    """One target: a result of one model, and the bound that it should meet.

    Args:
        goal: what was asked for, in words; many checks share a goal.
        key: table, case, sampling, recipe, slack and quantity of the row that is judged.
        model: the model that is judged.
        ours: its result.
        sign: ≤ or <.
        bound: the value to compare with.
        source: where the bound comes from.
    """

    goal: str
    key: Key
    model: str
    ours: float
    sign: str
    bound: float
    source: str

    @property
    def met(self) -> bool:
        """Whether the target is met; NaN misses it."""
        return self.ours < self.bound if self.sign == "<" else self.ours <= self.bound

    @property
    def mark(self) -> str:
        """✓ if the target is met, else ✗."""
        return "✓" if self.met else "✗"

    def __str__(self) -> str:
        return f"{self.model} {self.sign} {digits(self.bound)} {self.mark}"


def checks(parts: Sequence[Part]) -> list[Check]:
    """Every target of these tables, in their order."""
    found: list[Check] = []
    for section in (section for part in parts for section in sections_of(part.rows)):
        if section.table in NETWORKS and section.recipe == "tuned":
            found += _networks(section)
        elif section.table == "transprecision":
            found += _transprecision(section)
        elif section.table == "fairness":
            found += _fairness(section)
    return found


def counts(found: Sequence[Check]) -> list[tuple[str, int, int]]:
    """(goal, number met, number of checks), in the order in which goals first appear."""
    goals = dict.fromkeys(check.goal for check in found)
    return [(goal, sum(c.met for c in found if c.goal == goal), sum(c.goal == goal for c in found)) for goal in goals]


def summary(parts: Sequence[Part]) -> list[str]:
    """One line for each goal: the mark, what was asked for, and how many checks meet it."""
    return [
        f"{'✓' if met == count else '✗'} {goal}: {met} of {count} met" for goal, met, count in counts(checks(parts))
    ]


def _networks(section: Section) -> Iterator[Check]:
    like = "as in the paper" if section.sampling == "shared" else "harder than the paper's"
    goal = f"{WORDS[section.table]}, {section.sampling} demands ({like}): MCD at or below the paper's M_C^D"
    for quantity in section.quantities:
        bound = section.paper(quantity, "MCD")
        if not math.isnan(bound):
            ours = section.mean(quantity, "MCD")
            yield Check(goal, section.key_of(quantity), "MCD", ours, "≤", bound, "the paper's M_C^D")


def _transprecision(section: Section) -> Iterator[Check]:
    if section.recipe == "tuned":
        ours, bound = section.mean("MAE y", "MCD repaired"), section.mean("MAE y", "LightGBM")
        goal = "Reduced precision, tuned recipe: after repair, error below LightGBM's"
        yield Check(goal, section.key_of("MAE y"), "MCD repaired", ours, "<", bound, "LightGBM")
        goal = "Reduced precision, tuned recipe: after repair, no violated pair"
        ours = section.mean("VC", "MCD repaired")
        yield Check(goal, section.key_of("VC"), "MCD repaired", ours, "≤", 0.0, "no violated pair")
        return
    for model, words in (("MCD directed", "directed pairs"), ("MCD", "the printed dual step")):
        if model not in section.models:
            continue
        for quantity in ("VC", "SMVC"):
            others = [section.mean(quantity, other) for other in ("M", "MC")]
            bound = math.nan if any(math.isnan(other) for other in others) else min(others)
            goal = f"Reduced precision, the paper's network with {words}: violations below those of M and M_C"
            ours = section.mean(quantity, model)
            yield Check(goal, section.key_of(quantity), model, ours, "<", bound, "the lower of M and MC")
        goal = f"Reduced precision, the paper's network with {words}: error no larger than M's"
        ours, bound = section.mean("MAE", model), section.mean("MAE", "M")
        yield Check(goal, section.key_of("MAE"), model, ours, "≤", bound, "M")


def _fairness(section: Section) -> Iterator[Check]:
    if section.recipe == "paper":
        goal = "Fair classifiers, the paper's recipe: gap of MCD at or below the paper's M_C^D"
        ours, bound = section.mean("DT", "MCD"), section.paper("DT", "MCD")
        yield Check(goal, section.key_of("DT"), "MCD", ours, "≤", bound, "the paper's M_C^D")
        return
    for model in ("MCD", "boosting MCD"):
        if model in section.models:
            error = STANDARD_ERROR.get(section.case, 0.0)
            ours = abs(section.mean("signed DT", model))
            goal = "Fair classifiers, tuned recipe: |mean signed gap| below .01, or below one standard error if larger"
            source = "one standard error" if error > GAP else "as good as none"
            yield Check(goal, section.key_of("signed DT"), model, ours, "<", max(GAP, error), source)

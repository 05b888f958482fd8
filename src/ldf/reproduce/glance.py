"""The tables at a glance: M, MC, MCD, the repaired model, the best baseline and the best peer side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from . import targets
from .options import NETWORKS
from .tables import BASELINES, HIGHER, Key, Part, Section, sections_of
from .targets import Check

TITLES = targets.WORDS | {
    "transprecision": "Reduced precision, by number of training rows",
    "fairness": "Fair classifiers",
    "relaxed-fairness": "Fair classifiers with slack",
}
"""The paper's six tables, in its order."""
TRAINED = ("M", "MC", "MCD")
"""Without constraints, with λ = 1, with λ by dual ascent."""
REPAIRED = ("MCD repaired", "M + plug-in")
"""Predictions after repair: isotonic regression (transprecision); the closed-form rule (fairness)."""
PEERS = ("LightGBM", "scikit-learn", "Zafar")
"""Methods of others: boosting with monotone constraints, and Zafar's covariance constraint."""
COLUMNS = (*TRAINED, "repaired", "best baseline", "best peer")
LEAD = {"transprecision": "MAE", "fairness": "accuracy", "relaxed-fairness": "accuracy"}
"""By table, the quantity that decides which baseline and which peer are shown. A constant has no violations and no gap
at all, so that choosing by those would always show the constant."""


@dataclass(frozen=True)
class Entry:
    """A result: the value, and the text that shows it, with the model if the column does not name it."""

    value: float
    text: str


@dataclass(frozen=True)
class Line:
    """One quantity of one table.

    Args:
        key: table, case, sampling, recipe, slack and quantity.
        unit: unit of the quantity, or an empty string.
        entries: results by column; a column without a result is absent.
        paper: the paper's M_C^D; NaN if it has none.
        checks: the targets that judge this line.
    """

    key: Key
    unit: str
    entries: Mapping[str, Entry]
    paper: float
    checks: Sequence[Check]

    @property
    def case(self) -> str:
        """The case, with the slack if there is one."""
        return self.key[1] if self.key[4] is None else f"{self.key[1]}, slack {self.key[4]}"

    @property
    def quantity(self) -> str:
        """The quantity with its unit."""
        return f"{self.key[5]} ({self.unit})" if self.unit else self.key[5]

    @property
    def target(self) -> str:
        """Each target of this line: the model judged, the bound, ✓ or ✗."""
        return "; ".join(map(str, self.checks))


def glance(parts: Sequence[Part]) -> list[Line]:
    """A line for each quantity of MCD that the paper reports or that a target judges."""
    judged: dict[Key, list[Check]] = {}
    for check in targets.checks(parts):
        judged.setdefault(check.key, []).append(check)
    lines = []
    for section in (section for part in parts for section in sections_of(part.rows)):
        if section.table == "fairness-traces":  # its last epochs are the rows of the fairness table
            continue
        for quantity in section.quantities:
            key, paper = section.key_of(quantity), section.paper(quantity, "MCD")
            if (quantity, "MCD") in section.cells and (key in judged or not math.isnan(paper)):
                entries = _entries(section, quantity)
                lines.append(Line(key, section.unit(quantity), entries, paper, judged.get(key, [])))
    return lines


def grouped(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Lines by title: one group for each table, sampling and recipe, in the paper's order of tables."""
    found: dict[str, list[Line]] = {}
    order = {table: place for place, table in enumerate(TITLES)}
    for line in sorted(lines, key=lambda line: order.get(line.key[0], len(order))):
        table, _, sampling, recipe, _, _ = line.key
        words = [TITLES.get(table, table)]
        words += [f"{sampling} demands"] if sampling in ("shared", "independent") else []
        words += [f"{recipe} recipe"] if recipe else []
        found.setdefault(", ".join(words), []).append(line)
    return found


def lowest(parts: Sequence[Part]) -> Counter[str]:
    """How often each of M, MC and MCD has the lowest mean, over the lines on networks; ties count for the first."""
    found: Counter[str] = Counter()
    for line in glance(parts):
        if line.key[0] in NETWORKS:
            means = {model: line.entries[model].value for model in TRAINED if model in line.entries}
            found[min(means, key=means.__getitem__)] += 1
    return found


def best(section: Section, models: Sequence[str], quantity: str) -> str | None:
    """Which of these models is best at a quantity; None if none has a value."""
    sign = -1 if quantity in HIGHER else 1
    means = {model: sign * section.mean(quantity, model) for model in models}
    means = {model: mean for model, mean in means.items() if not math.isnan(mean)}
    return min(means, key=means.__getitem__) if means else None


def _entries(section: Section, quantity: str) -> dict[str, Entry]:
    lead = LEAD.get(section.table, quantity)
    shown: dict[str, str | None] = {model: model for model in TRAINED}
    shown |= {"repaired": best(section, REPAIRED, lead)}
    shown |= {"best baseline": best(section, BASELINES, lead), "best peer": best(section, PEERS, lead)}
    found = {}
    for column, model in shown.items():
        if model is not None and not math.isnan(section.mean(quantity, model)):
            named = "" if column in (*TRAINED, "repaired") else f" {model}"
            found[column] = Entry(section.mean(quantity, model), section.text(quantity, model) + named)
    return found

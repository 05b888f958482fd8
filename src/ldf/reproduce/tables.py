"""Rows of results, and the tables made from them, as Markdown and as text.

A row is {"table", "case", "sampling", "recipe", "model", "quantity", "mean", "std", "seeds", "unit", "paper"}, where
`paper` is the paper's value for this model or None. A row may have more keys. Rows with the same table, case,
sampling, recipe and, if present, slack form one table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from ..io.text import table
from . import published

Row = Mapping[str, Any]
Key = tuple[str, str, str | None, str | None, float | None, str]
"""Table, case, sampling, recipe, slack and quantity: the address of a line in the tables."""

KEYS = ("table", "case", "sampling", "recipe", "model", "quantity", "mean", "std", "seeds", "unit", "paper")
"""Keys of every row."""

BASELINES = ("mean", "linear", "previous")
"""Simple models to compare networks with."""

MODELS = (*BASELINES, "M", "MC", "MCD")
"""The order of models; others follow in the order in which they appear."""

HIGHER = frozenset({"accuracy", "certified"})
"""Quantities for which larger is better; for all others, smaller is."""

CENTRED = frozenset({"signed DT"})
"""Quantities that are best near zero."""

LEGEND = (
    "Mean ± standard deviation over the seeds. Bold: the best model, baselines excluded. "
    "✓: our mean is at least as good as the paper's value for the same model."
)


@dataclass(frozen=True)
class Figure:
    """A plot in the folder of a report."""

    path: str
    """File name, relative to the folder."""
    caption: str
    group: str = ""
    """Plots of one group are folded away together; plots without a group are always visible."""


@dataclass(frozen=True)
class Shown:
    """One answered demand, as an operator sees it.

    Args:
        title: heading.
        verdict: one sentence: certified or not, cost, time.
        certified: whether the answer is certified.
        map: the network before and after repair.
        facts: demand, cost, route, time, by name.
        tables: by title, a list of lines; the first line has the heads.
    """

    title: str
    verdict: str
    certified: bool
    map: Figure
    facts: Mapping[str, str]
    tables: Mapping[str, Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Part:
    """One table of the paper with its plots, notes and settings.

    Args:
        name: name of the table on the command line.
        title: heading.
        rows: rows of results.json.
        figures: plots, already in the folder.
        notes: what differs from the paper, and why.
        facts: how the table was made, by name.
        repeats: what the means are taken over.
        quick: whether this is a quick run (few labels, epochs and repeats), not for comparison.
        missing: cases that are not available, and why.
        answer: what an operator sees of one demand; only in the demo.
    """

    name: str
    title: str
    rows: Sequence[Row]
    figures: Sequence[Figure] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    repeats: str = "seeds"
    quick: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    answer: Shown | None = None

    def command(self, row: Row) -> str:
        """The command that reproduces this row and the others of its table."""
        words = ["ldf demo" if self.name == "demo" else f"ldf reproduce {self.name}"]
        kernel = str(row["table"]).removeprefix("transprecision-")
        words += ["--kernel", kernel] if kernel != row["table"] else []
        options = ("case", "sampling", "recipe", "samples", "epochs", "repairs")
        for option in ("case", "samples", "epochs") if self.name == "demo" else options:
            value = row.get(option)
            if value is not None and (option != "sampling" or value in ("shared", "independent")):
                words += [f"--{option}", str(value)]
        return " ".join([*words, "--seeds", str(self.count(row)), "--out DIR"])

    def count(self, row: Row) -> int:
        """Number of repeats in the table of this row."""
        same = ("table", "case", "sampling", "recipe")
        return max(int(other["seeds"]) for other in self.rows if all(other[key] == row[key] for key in same))

    def settings(self, row: Row) -> str:
        """The settings of this row's table, in words."""
        words = ["Quick run, not for comparison"] if self.quick else []
        for key, unit in (("samples", "labels"), ("epochs", "epochs"), ("repairs", "test rows repaired")):
            words += [f"{row[key]} {unit}"] if row.get(key) else []
        return ", ".join([*words, f"{self.count(row)} {self.repeats}"])


@dataclass(frozen=True)
class Section:
    """The rows of one table: one line per quantity, one column per model.

    Args:
        key: table, case, sampling, recipe and slack, which all rows share.
        heading: the same in words.
        cells: rows by quantity and model.
    """

    key: tuple[str, str, str | None, str | None, float | None]
    heading: str
    quantities: list[str]
    models: list[str]
    cells: dict[tuple[str, str], Row]

    @property
    def table(self) -> str:
        """Name of the table in results.json."""
        return self.key[0]

    @property
    def case(self) -> str:
        """A network, a size of training sets (transprecision), or a variant of a data set (fairness)."""
        return self.key[1]

    @property
    def sampling(self) -> str | None:
        """How demands or training sets are sampled."""
        return self.key[2]

    @property
    def recipe(self) -> str | None:
        """The recipe: "paper" or "tuned"."""
        return self.key[3]

    def key_of(self, quantity: str) -> Key:
        """The address of a quantity's line."""
        return (*self.key, quantity)

    @property
    def papers(self) -> list[str]:
        """The models for which the paper has a value."""
        return [m for m in self.models if any(not math.isnan(self.paper(q, m)) for q in self.quantities)]

    def mean(self, quantity: str, model: str) -> float:
        """Mean over the seeds; NaN if the table has no such cell."""
        return _float(self.cells.get((quantity, model), {}).get("mean"))

    def std(self, quantity: str, model: str) -> float:
        """Standard deviation over the seeds; 0 if the table has no such cell."""
        value = _float(self.cells.get((quantity, model), {}).get("std"))
        return 0.0 if math.isnan(value) else value

    def paper(self, quantity: str, model: str) -> float:
        """The paper's value; NaN if it has none."""
        return _float(self.cells.get((quantity, model), {}).get("paper"))

    def unit(self, quantity: str) -> str:
        """The unit of a quantity, or an empty string."""
        units = {str(row["unit"] or "") for (name, _), row in self.cells.items() if name == quantity}
        return ", ".join(sorted(units))

    def best(self, quantity: str) -> set[str]:
        """The models with the best mean, baselines excluded."""
        sign = -1 if quantity in HIGHER else 1
        found = {m: sign * self.mean(quantity, m) for m in self.models if m not in BASELINES}
        if quantity in CENTRED:
            found = {model: abs(value) for model, value in found.items()}
        found = {model: value for model, value in found.items() if not math.isnan(value)}
        return {model for model, value in found.items() if value == min(found.values())}

    def matches_paper(self, quantity: str, model: str) -> bool:
        """Whether our mean is at least as good as the paper's value for the same model."""
        ours, theirs = self.mean(quantity, model), self.paper(quantity, model)
        return ours >= theirs if quantity in HIGHER else ours <= theirs

    def text(self, quantity: str, model: str) -> str:
        """Mean ± std in three and two significant digits; the spread only if there is more than one seed."""
        row = self.cells.get((quantity, model))
        if row is None:
            return ""
        mean, std = self.mean(quantity, model), self.std(quantity, model)
        spread = f" ± {digits(std, 2)}" if std > 0 or (row["seeds"] > 1 and model not in BASELINES) else ""
        return digits(mean) + spread

    def paper_text(self, quantity: str, model: str) -> str:
        """The paper's value, ticked if ours is at least as good."""
        value = self.paper(quantity, model)
        if math.isnan(value):
            return ""
        return digits(value) + (" ✓" if self.matches_paper(quantity, model) else "")


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def digits(value: float, count: int = 3) -> str:
    """A number with this many significant digits.

    >>> digits(0.00055), digits(9.996), digits(1234.5), digits(1.5e-7), digits(0.0), digits(0.0123, 2)
    ('0.000550', '10.0', '1234', '1.50e-07', '0', '0.012')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    short = f"{value:.{count - 1}e}"
    power = int(short.partition("e")[2])
    return f"{value:.{max(0, count - 1 - power)}f}" if -5 < power < 6 else short


def sections_of(rows: Sequence[Row]) -> list[Section]:
    """The tables formed by these rows, in the order in which they appear."""
    groups: dict[tuple[str, str, str | None, str | None, float | None], list[Row]] = {}
    for row in rows:
        missing = [key for key in KEYS if key not in row]
        if missing:
            raise ValueError(f"a row of results lacks {', '.join(missing)}: {dict(row)}")
        key = (*(row[part] for part in ("table", "case", "sampling", "recipe")), row.get("slack"))
        groups.setdefault(key, []).append(row)
    sections = []
    for key, members in groups.items():
        name, case, sampling, recipe, slack = key
        words = [name, case, sampling and f"{sampling} sampling", recipe and f"{recipe} recipe"]
        words.append("" if slack is None else f"slack {slack}")
        heading = " · ".join(str(word) for word in words if word)
        cells: dict[tuple[str, str], Row] = {}
        for row in members:
            at = (str(row["quantity"]), str(row["model"]))
            if at in cells:
                raise ValueError(f"{heading}: two rows for {at[0]} of {at[1]}; there should be one")
            cells[at] = row
        quantities = list(dict.fromkeys(quantity for quantity, _ in cells))
        sections.append(Section(key, heading, quantities, ordered(model for _, model in cells), cells))
    return sections


def ordered(models: Iterable[str]) -> list[str]:
    """Each model once, in the order of `MODELS`; others follow in the order in which they appear."""
    found = list(dict.fromkeys(models))
    return [model for model in MODELS if model in found] + [model for model in found if model not in MODELS]


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, with the keys of a row; NaN if no seed has a value."""
    return {
        "mean": fmean(values) if values else math.nan,
        "std": stdev(values) if len(values) > 1 else 0.0,
        "seeds": len(values),
    }


def row_of(
    name: str,
    model: str,
    quantity: str,
    unit: str | None,
    values: Sequence[float],
    *,
    case: str,
    sampling: str | None,
    recipe: str,
    **more: Any,
) -> dict[str, Any]:
    """A row of the table of this name: mean and spread of the values (one per seed), and the paper's value."""
    return {
        "table": name,
        "case": case,
        "sampling": sampling,
        "recipe": recipe,
        "model": model,
        "quantity": quantity,
        **summary(values),
        "unit": unit,
        "paper": published.figure(name, case, model, quantity, more.get("slack")),
        **more,
    }


def markdown(rows: Sequence[Row]) -> str:
    """One Markdown table per section: one line per quantity, one column per model, then the paper's values."""
    parts = []
    for section in sections_of(rows):
        headers = ["quantity", "unit", *section.models, *(f"paper {model}" for model in section.papers)]
        lines = [headers, ["---", "---", *["---:"] * (len(headers) - 2)]]
        for quantity in section.quantities:
            best = section.best(quantity)
            values = [
                f"**{section.text(quantity, model)}**" if model in best else section.text(quantity, model)
                for model in section.models
            ]
            papers = [section.paper_text(quantity, model) for model in section.papers]
            lines.append([plain(quantity), plain(section.unit(quantity)), *values, *papers])
        lines[0] = [plain(header) for header in headers]
        parts.append(f"## {plain(section.heading)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([*parts, LEGEND]) + "\n"


def plain(text: str) -> str:
    """Text with the characters escaped that Markdown would interpret."""
    for sign, shown in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("\n", " ")):
        text = text.replace(sign, shown)
    return text


def terminal(rows: Sequence[Row]) -> str:
    """The same as text for a console; of the paper's values only MCD's, ticked if ours is at least as good."""
    parts = []
    for section in sections_of(rows):
        paper = ["paper MCD"] if "MCD" in section.papers else []
        lines = []
        for quantity in section.quantities:
            unit = section.unit(quantity)
            values = [section.text(quantity, model).replace(" ", "") for model in section.models]
            papers = [section.paper_text(quantity, "MCD") for _ in paper]
            lines.append([f"{quantity} ({unit})" if unit else quantity, *values, *papers])
        parts.append(f"{section.heading}\n{table(['', *section.models, *paper], lines)}")
    return "\n\n".join(parts)

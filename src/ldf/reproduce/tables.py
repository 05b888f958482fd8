"""Rows of results, and the tables they make: as Markdown, as text, and beside the paper's figures at a glance.

A row is {"table", "case", "sampling", "recipe", "model", "quantity", "mean", "std", "seeds", "unit", "paper"}, where
`paper` is the paper's figure for this model or None; more keys may stand beside them. Rows of the same table, case,
sampling, recipe and, where there is one, slack make one table.
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

KEYS = ("table", "case", "sampling", "recipe", "model", "quantity", "mean", "std", "seeds", "unit", "paper")
"""What every row has."""

BASELINES = ("mean", "linear", "previous")
"""Models that are no networks."""

MODELS = (*BASELINES, "M", "MC", "MCD")
"""The order of models; others follow as they come."""

HIGHER = frozenset({"accuracy", "certified"})
"""Quantities of which more is better; of all others, less is."""

CENTRED = frozenset({"signed DT"})
"""Quantities that are best near zero."""

LEGEND = (
    "Mean ± standard deviation over the seeds. Bold: the best, simple baselines aside. "
    "✓: our mean is at least as good as the paper's figure for the same model."
)


@dataclass(frozen=True)
class Figure:
    """A picture in the folder of a report."""

    path: str
    """Its name, relative to the folder."""
    caption: str
    group: str = ""
    """Pictures of one group are shown together, when they are asked for; those of none at once."""


@dataclass(frozen=True)
class Part:
    """One table of the paper with all that belongs to it.

    Args:
        name: of the table on the command line.
        title: above it.
        rows: of results.json.
        figures: pictures that are in the folder already.
        notes: what differs from the paper, and why.
        facts: what is to be known of its making, by name.
        repeats: what its means are over.
        quick: whether it is a look only, with few labels, epochs and repeats.
        missing: cases that could not be had, and why.
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

    def command(self, row: Row) -> str:
        """What makes this row again, and those of its table."""
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
        """How many repeats the table of this row has."""
        same = ("table", "case", "sampling", "recipe")
        return max(int(other["seeds"]) for other in self.rows if all(other[key] == row[key] for key in same))

    def settings(self, row: Row) -> str:
        """In words, what the table of this row is made with."""
        words = ["Quick run, a look and no result"] if self.quick else []
        for key, unit in (("samples", "labels"), ("epochs", "epochs"), ("repairs", "test rows repaired")):
            words += [f"{row[key]} {unit}"] if row.get(key) else []
        return ", ".join([*words, f"{self.count(row)} {self.repeats}"])


@dataclass(frozen=True)
class Section:
    """The rows of one table: a line a quantity, a column a model."""

    table: str
    heading: str
    quantities: list[str]
    models: list[str]
    cells: dict[tuple[str, str], Row]
    """By quantity and model."""

    @property
    def papers(self) -> list[str]:
        """The models for which the paper has a figure."""
        return [m for m in self.models if any(not math.isnan(self.paper(q, m)) for q in self.quantities)]

    def mean(self, quantity: str, model: str) -> float:
        """NaN where there is none."""
        return _float(self.cells.get((quantity, model), {}).get("mean"))

    def std(self, quantity: str, model: str) -> float:
        """Zero where there is none."""
        value = _float(self.cells.get((quantity, model), {}).get("std"))
        return 0.0 if math.isnan(value) else value

    def paper(self, quantity: str, model: str) -> float:
        """NaN where the paper has none."""
        return _float(self.cells.get((quantity, model), {}).get("paper"))

    def unit(self, quantity: str) -> str:
        """The unit of a quantity; one without a unit has none."""
        units = {str(row["unit"] or "") for (name, _), row in self.cells.items() if name == quantity}
        return ", ".join(sorted(units))

    def best(self, quantity: str) -> set[str]:
        """The models with the best mean, simple baselines aside."""
        sign = -1 if quantity in HIGHER else 1
        found = {m: sign * self.mean(quantity, m) for m in self.models if m not in BASELINES}
        if quantity in CENTRED:
            found = {model: abs(value) for model, value in found.items()}
        found = {model: value for model, value in found.items() if not math.isnan(value)}
        return {model for model, value in found.items() if value == min(found.values())}

    def reached(self, quantity: str, model: str) -> bool:
        """Whether our mean is at least as good as the paper's figure."""
        ours, theirs = self.mean(quantity, model), self.paper(quantity, model)
        return ours >= theirs if quantity in HIGHER else ours <= theirs

    def figure(self, quantity: str, model: str) -> str:
        """Mean ± std in three and two significant digits, the spread only of more than one seed."""
        row = self.cells.get((quantity, model))
        if row is None:
            return ""
        mean, std = self.mean(quantity, model), self.std(quantity, model)
        spread = f" ± {digits(std, 2)}" if std > 0 or (row["seeds"] > 1 and model not in BASELINES) else ""
        return digits(mean) + spread

    def paper_figure(self, quantity: str, model: str) -> str:
        """The paper's figure, ticked where ours is at least as good."""
        value = self.paper(quantity, model)
        if math.isnan(value):
            return ""
        return digits(value) + (" ✓" if self.reached(quantity, model) else "")


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def digits(value: float, count: int = 3) -> str:
    """A number in so many significant digits.

    >>> digits(0.00055), digits(9.996), digits(1234.5), digits(1.5e-7), digits(0.0), digits(0.0123, 2)
    ('0.000550', '10.0', '1234', '1.50e-07', '0', '0.012')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    short = f"{value:.{count - 1}e}"
    power = int(short.partition("e")[2])
    return f"{value:.{max(0, count - 1 - power)}f}" if -5 < power < 6 else short


def sections_of(rows: Sequence[Row]) -> list[Section]:
    """The tables that rows make, in the order in which they come."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        missing = [key for key in KEYS if key not in row]
        if missing:
            raise ValueError(f"a row of results lacks {', '.join(missing)}: {dict(row)}")
        key = (*(row[part] for part in ("table", "case", "sampling", "recipe")), row.get("slack"))
        groups.setdefault(key, []).append(row)
    sections = []
    for (name, case, sampling, recipe, slack), members in groups.items():
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
        sections.append(Section(str(name), heading, quantities, ordered(model for _, model in cells), cells))
    return sections


def ordered(models: Iterable[str]) -> list[str]:
    """Each once, in the order of `MODELS`; others follow as they come."""
    found = list(dict.fromkeys(models))
    return [model for model in MODELS if model in found] + [model for model in found if model not in MODELS]


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and spread over seeds, as a row of results has them; NaN where no seed has a value."""
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
    """A row of the table of this name: mean and spread of the values, one for each seed, and the paper's figure."""
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
    """A table for each table, case, sampling and recipe: a line a quantity, a column a model, then the paper's."""
    parts = []
    for section in sections_of(rows):
        headers = ["quantity", "unit", *section.models, *(f"paper {model}" for model in section.papers)]
        lines = [headers, ["---", "---", *["---:"] * (len(headers) - 2)]]
        for quantity in section.quantities:
            best = section.best(quantity)
            figures = [
                f"**{section.figure(quantity, model)}**" if model in best else section.figure(quantity, model)
                for model in section.models
            ]
            papers = [section.paper_figure(quantity, model) for model in section.papers]
            lines.append([plain(quantity), plain(section.unit(quantity)), *figures, *papers])
        lines[0] = [plain(header) for header in headers]
        parts.append(f"## {plain(section.heading)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([*parts, LEGEND]) + "\n"


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign, shown in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*"), ("\n", " ")):
        text = text.replace(sign, shown)
    return text


def terminal(rows: Sequence[Row]) -> str:
    """The same as text for a console, with the paper's figure for MCD alone, ticked where ours is at least as good."""
    parts = []
    for section in sections_of(rows):
        paper = ["paper MCD"] if "MCD" in section.papers else []
        lines = []
        for quantity in section.quantities:
            unit = section.unit(quantity)
            figures = [section.figure(quantity, model).replace(" ", "") for model in section.models]
            papers = [section.paper_figure(quantity, "MCD") for _ in paper]
            lines.append([f"{quantity} ({unit})" if unit else quantity, *figures, *papers])
        parts.append(f"{section.heading}\n{table(['', *section.models, *paper], lines)}")
    return "\n\n".join(parts)


@dataclass(frozen=True)
class Line:
    """A figure of the paper's M_C^D, and what stands against it."""

    key: tuple[Any, ...]
    """Table, case, sampling, slack and quantity."""
    table: str
    case: str
    sampling: str
    quantity: str
    paper: float
    values: Mapping[str, float]
    """Means: paper (its recipe), tuned, baseline."""
    figures: Mapping[str, str]
    """The same as people read them."""


def glance(parts: Sequence[Part]) -> list[Line]:
    """A line for each figure that the paper has of M_C^D: its own, ours in both recipes, and the best baseline."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for section in (section for part in parts for section in sections_of(part.rows)):
        for quantity in section.quantities:
            row = section.cells.get((quantity, "MCD"))
            if row is None or row["paper"] is None or row["table"] == "fairness-traces":  # the ends of its lines
                continue
            line = lines.setdefault(
                key_of(row), {"values": {}, "figures": {}, "paper": row["paper"], "unit": row["unit"]}
            )
            line["values"][row["recipe"]] = section.mean(quantity, "MCD")
            line["figures"][row["recipe"]] = section.figure(quantity, "MCD")
            simple = {model: section.mean(quantity, model) for model in section.models if model in BASELINES}
            simple = {model: value for model, value in simple.items() if not math.isnan(value)}
            if simple:
                sign = -1 if quantity in HIGHER else 1
                best = min(simple, key=lambda model: sign * simple[model])
                if sign * simple[best] < sign * line["values"].get("baseline", sign * math.inf):
                    line["values"]["baseline"] = simple[best]
                    line["figures"]["baseline"] = f"{digits(simple[best])} {best}"
    found = []
    for key, line in lines.items():
        name, case, sampling, slack, quantity = key
        unit = line.pop("unit")
        words = quantity + (f" ({unit})" if unit else "")
        shown = case if slack is None else f"{case}, slack {slack}"
        found.append(Line(key, name, shown, sampling or "", words, **line))
    return found


def key_of(row: Row, quantity: str | None = None) -> tuple[Any, ...]:
    """Table, case, sampling, slack and quantity: what a figure of the paper and ours have in common.

    Both kinds of training sets of transprecision stand against the same figure: there, the sampling is None.
    """
    sampling = row["sampling"] if row["sampling"] in ("shared", "independent") else None
    return (row["table"], row["case"], sampling, row.get("slack"), quantity or row["quantity"])

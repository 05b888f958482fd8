"""Rows of results as JSON, Markdown, text, figures and a page that needs no network.

A row is {"table", "case", "sampling", "recipe", "model", "quantity", "mean", "std", "seeds", "unit", "paper"}, where
`paper` is the paper's figure for this model or None; more keys may stand beside them. Rows of the same table, case,
sampling, recipe and, where there is one, slack make one table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from urllib.parse import quote

from ..text import table, write_whole

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


@dataclass(frozen=True)
class Section:
    """The rows of one table: a line a quantity, a column a model."""

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
        found = list(dict.fromkeys(model for _, model in cells))
        models = [m for m in MODELS if m in found] + [m for m in found if m not in MODELS]
        sections.append(Section(heading, list(dict.fromkeys(q for q, _ in cells)), models, cells))
    return sections


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and spread over seeds, as a row of results has them; NaN where no seed has a value."""
    return {
        "mean": fmean(values) if values else math.nan,
        "std": stdev(values) if len(values) > 1 else 0.0,
        "seeds": len(values),
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
            lines.append([_plain(quantity), _plain(section.unit(quantity)), *figures, *papers])
        lines[0] = [_plain(header) for header in headers]
        parts.append(f"## {_plain(section.heading)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join([*parts, LEGEND]) + "\n"


def _plain(text: str) -> str:
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


def write(
    folder: Path,
    title: str,
    rows: Sequence[Row],
    figures: Sequence[Figure],
    notes: Sequence[str],
    facts: Mapping[str, str],
) -> Path:
    """Write results.json, table.md and index.html, and return the path of the page.

    Args:
        figures: pictures that are in the folder already.
        notes: what differs from the paper, and why.
        facts: what the page says of its making, by name: the command, the seeds, the samples.
    """
    for figure in figures:
        if not (folder / figure.path).is_file():
            raise ValueError(f"there is no figure {figure.path!r} in {folder}; draw it before the report is written")
    sections = sections_of(rows)
    finite = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
    write_whole(folder / "results.json", json.dumps(finite, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_whole(folder / "table.md", _document(title, rows, notes, facts))
    page = folder / "index.html"
    write_whole(page, _page(title, sections, figures, notes, facts))
    return page


def _document(title: str, rows: Sequence[Row], notes: Sequence[str], facts: Mapping[str, str]) -> str:
    parts = [f"# {_plain(title)}\n", markdown(rows)]
    if notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {_plain(note)}" for note in notes) + "\n")
    if facts:
        parts.append("## How this was made\n\n" + "\n".join(f"- {_plain(k)}: `{v}`" for k, v in facts.items()) + "\n")
    return "\n".join(parts)


CSS = """
:root { color-scheme: light dark; --back: #ffffff; --fore: #1c2430; --soft: #5b6675; --line: #d9dee5; --band: #f4f6f9;
  --accent: #0060a0; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181f; --fore: #e4e8ee; --soft: #9aa5b4; --line: #323a46; --band: #1c222b; --accent: #6cb8f0; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem clamp(1rem, 3vw, 3rem); max-width: 110rem; background: var(--back);
  color: var(--fore); font: 16px/1.55 system-ui, sans-serif; }
h1 { margin: 0 0 1rem; font-size: 1.8rem; line-height: 1.25; }
h2 { margin: 2.2rem 0 0.8rem; font-size: 1.25rem; }
a { color: var(--accent); }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 1.2rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: 0.9em ui-monospace, monospace; }
.beside { display: grid; gap: 1rem 2.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 44rem), 1fr));
  align-items: start; }
.wide { overflow-x: auto; margin: 0 0 1.8rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
caption { padding: 0 0 0.5rem; text-align: left; font-weight: 600; font-size: 1rem; }
th, td { padding: 0.35rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); color: var(--soft); font-weight: 600; }
th:first-child { text-align: left; }
tbody tr:hover { background: var(--band); }
.unit, .paper { color: var(--soft); }
.unit { font-weight: 400; }
figure { margin: 0 0 1.8rem; }
img { display: block; max-width: 100%; height: auto; padding: 0.4rem; border: 1px solid var(--line);
  border-radius: 0.4rem; background: #ffffff; }
figcaption, .legend { color: var(--soft); font-size: 0.9rem; }
figcaption { margin-top: 0.4rem; }
"""


def _page(
    title: str,
    sections: Sequence[Section],
    figures: Sequence[Figure],
    notes: Sequence[str],
    facts: Mapping[str, str],
) -> str:
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{CSS}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
    ]
    if facts:
        lines.append("<dl>")
        for name, value in facts.items():
            shown = f"<code>{escape(value)}</code>" if name.lower() == "command" else escape(value)
            lines.append(f"<dt>{escape(name)}</dt><dd>{shown}</dd>")
        lines.append("</dl>")
    lines += ["<h2>Results</h2>", '<div class="beside">']
    if figures:
        lines.append("<div>")
        for figure in figures:
            source, caption = escape(quote(figure.path)), escape(figure.caption)
            lines.append(f'<figure><a href="{source}"><img src="{source}" alt="{caption}"></a>')
            lines.append(f"<figcaption>{caption}</figcaption></figure>")
        lines.append("</div>")
    lines.append("<div>")
    for section in sections:
        lines += _html_table(section)
    lines += [f'<p class="legend">{escape(LEGEND)}</p>', "</div>", "</div>"]
    if notes:
        lines += ["<h2>Notes</h2>", "<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    lines.append('<p class="legend">The same as data: <a href="results.json">results.json</a>, ')
    lines += ['as text: <a href="table.md">table.md</a>.</p>', "</body>", "</html>"]
    return "\n".join(lines) + "\n"


def _html_table(section: Section) -> list[str]:
    heads = [f'<th scope="col">{escape(model)}</th>' for model in section.models]
    heads += [f'<th scope="col" class="paper">paper {escape(model)}</th>' for model in section.papers]
    lines = [
        f'<div class="wide"><table><caption>{escape(section.heading)}</caption>',
        f'<thead><tr><th scope="col">quantity</th>{"".join(heads)}</tr></thead>',
        "<tbody>",
    ]
    for quantity in section.quantities:
        best, unit = section.best(quantity), section.unit(quantity)
        name = escape(quantity) + (f' <span class="unit">{escape(unit)}</span>' if unit else "")
        cells = [f'<th scope="row">{name}</th>']
        for model in section.models:
            figure = escape(section.figure(quantity, model))
            cells.append(f"<td>{f'<strong>{figure}</strong>' if model in best else figure}</td>")
        for model in section.papers:
            cells.append(f'<td class="paper">{escape(section.paper_figure(quantity, model))}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return [*lines, "</tbody>", "</table></div>"]

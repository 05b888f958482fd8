"""Rows of results as JSON, Markdown, text, figures and a page that needs no network.

A row is {"table", "case", "sampling", "recipe", "model", "quantity", "mean", "std", "seeds", "unit", "paper"}, where
`paper` is the paper's figure for this model or None; more keys may stand beside them. Rows of the same table, case,
sampling, recipe and, where there is one, slack make one table.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..history import History
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

COLOURS = {
    "mean": "#999999",
    "linear": "#56B4E9",
    "previous": "#CC79A7",
    "M": "#E69F00",
    "MC": "#009E73",
    "MCD": "#0072B2",
}
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""

OTHERS = ("#D55E00", "#000000", "#F0E442")
"""Colours of models without one of their own."""

MARKERS = {"mean": "v", "linear": "^", "previous": "P", "M": "o", "MC": "s", "MCD": "D"}
STYLES: dict[str, Any] = {"M": ":", "MC": "--", "MCD": "-"}

LEGEND = (
    "Mean ± standard deviation over the seeds. Bold: the best of the networks. "
    "✓: our mean is at least as good as the paper's figure for the same model."
)


@dataclass(frozen=True)
class Figure:
    """A picture in the folder of a report."""

    path: str
    """Its name, relative to the folder."""
    caption: str


@dataclass(frozen=True)
class _Section:
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
        """The networks with the best mean."""
        sign = -1 if quantity in HIGHER else 1
        found = {m: sign * self.mean(quantity, m) for m in self.models if m not in BASELINES}
        found = {model: value for model, value in found.items() if not math.isnan(value)}
        return {model for model, value in found.items() if value == min(found.values())}

    def reached(self, quantity: str, model: str) -> bool:
        """Whether our mean is at least as good as the paper's figure."""
        ours, theirs = self.mean(quantity, model), self.paper(quantity, model)
        return ours >= theirs if quantity in HIGHER else ours <= theirs

    def figure(self, quantity: str, model: str) -> str:
        """Mean ± std in three significant digits, the spread only of more than one seed."""
        row = self.cells.get((quantity, model))
        if row is None:
            return ""
        mean, std = self.mean(quantity, model), self.std(quantity, model)
        spread = f" ± {digits(std)}" if std > 0 or (row["seeds"] > 1 and model not in BASELINES) else ""
        return digits(mean) + spread

    def paper_figure(self, quantity: str, model: str) -> str:
        """The paper's figure, ticked where ours is at least as good."""
        value = self.paper(quantity, model)
        if math.isnan(value):
            return ""
        return digits(value) + (" ✓" if self.reached(quantity, model) else "")


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def digits(value: float) -> str:
    """A number in three significant digits.

    >>> digits(0.00055), digits(9.996), digits(1234.5), digits(1.5e-7), digits(0.0)
    ('0.000550', '10.0', '1234', '1.50e-07', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    power = int(f"{value:.2e}".partition("e")[2])
    return f"{value:.{max(0, 2 - power)}f}" if -5 < power < 6 else f"{value:.2e}"


def _sections(rows: Sequence[Row]) -> list[_Section]:
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
        sections.append(_Section(heading, list(dict.fromkeys(q for q, _ in cells)), models, cells))
    return sections


def markdown(rows: Sequence[Row]) -> str:
    """A table for each table, case, sampling and recipe: a line a quantity, a column a model, then the paper's."""
    parts = []
    for section in _sections(rows):
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
    for section in _sections(rows):
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
    sections = _sections(rows)
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
    sections: Sequence[_Section],
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
    lines += ["<h2>Results</h2>", '<div class="beside">', "<div>"]
    for section in sections:
        lines += _html_table(section)
    lines += [f'<p class="legend">{escape(LEGEND)}</p>', "</div>"]
    if figures:
        lines.append("<div>")
        for figure in figures:
            source, caption = escape(quote(figure.path)), escape(figure.caption)
            lines.append(f'<figure><a href="{source}"><img src="{source}" alt="{caption}"></a>')
            lines.append(f"<figcaption>{caption}</figcaption></figure>")
        lines.append("</div>")
    lines.append("</div>")
    if notes:
        lines += ["<h2>Notes</h2>", "<ul>", *(f"<li>{escape(note)}</li>" for note in notes), "</ul>"]
    lines.append('<p class="legend">The same as data: <a href="results.json">results.json</a>, ')
    lines += ['as text: <a href="table.md">table.md</a>.</p>', "</body>", "</html>"]
    return "\n".join(lines) + "\n"


def _html_table(section: _Section) -> list[str]:
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


def _palette(models: Sequence[str]) -> dict[str, str]:
    """The colour of each model."""
    others = [model for model in models if model not in COLOURS]
    return COLOURS | {model: OTHERS[i % len(OTHERS)] for i, model in enumerate(others)}


def _grid(panels: int, width: float, height: float, columns: int, sharey: bool = False) -> tuple[Any, list[Any]]:
    """A figure and its panels, side by side and below each other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(columns, panels)
    lines = math.ceil(panels / columns)
    size = (width * columns, height * lines)
    figure, grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False, sharey=sharey, layout="constrained")
    for axes in grid.flat[panels:]:
        axes.remove()
    for axes in grid.flat[:panels]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    return figure, list(grid.flat[:panels])


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    pyplot.close(figure)
    write_whole(path, buffer.getvalue())


def _floor(values: Sequence[float]) -> float:
    """Where a log scale begins: below all positive values; zeros are drawn there."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return min(positive) / 2.5 if positive else 0.1


def errors_figure(rows: Sequence[Row], path: Path, quantity_names: Mapping[str, str]) -> None:
    """Draw mean ± std by quantity and model on a log scale, a panel a table; the paper's figures are hollow.

    Args:
        quantity_names: how to call the quantities; others keep their name.
    """
    sections = _sections(rows)
    if not sections:
        raise ValueError("there are no rows to draw; at least one is needed")
    models = list(dict.fromkeys(m for name in MODELS for s in sections for m in s.models if m == name))
    models += list(dict.fromkeys(m for s in sections for m in s.models if m not in MODELS))
    units = {section.unit(quantity) for section in sections for quantity in section.quantities}
    colours = _palette(models)
    slots = max(len(section.quantities) * (len(section.models) + 1.5) for section in sections)
    figure, panels = _grid(
        len(sections),
        min(12.0, max(4.5, 1.2 + 0.2 * slots)),
        3.9,
        columns=2 if slots > 20 else 3,
        sharey=len(units) == 1,
    )
    shown: dict[str, Any] = {}
    floors, tops = [], []
    for section in sections:
        pairs = [(q, m) for q in section.quantities for m in section.models]
        every = [value for pair in pairs for value in (section.mean(*pair), section.paper(*pair))]
        every = [value for value in every if math.isfinite(value)]
        floors.append(_floor(every))
        highest = [section.mean(*pair) + section.std(*pair) for pair in pairs]
        tops.append(max([value for value in [*every, *highest] if math.isfinite(value)], default=1.0))
    if len(units) == 1:
        floors, tops = [min(floors)] * len(sections), [max(tops)] * len(sections)
    for section, axes, floor, top in zip(sections, panels, floors, tops, strict=True):
        axes.set_yscale("log")
        axes.set_ylim(floor / 1.3, 2 * max(top, 2 * floor))
        wide = len(section.models)
        for place, quantity in enumerate(section.quantities):
            if place % 2:
                axes.axvspan(place - 0.5, place + 0.5, color="#000000", alpha=0.035, linewidth=0)
            for i, model in enumerate(section.models):
                mean, std = section.mean(quantity, model), section.std(quantity, model)
                at = place + 0.8 * ((i + 0.5) / wide - 0.5)
                marker, colour = MARKERS.get(model, "X"), colours[model]
                if math.isfinite(mean):
                    height = max(mean, floor)
                    whiskers = [[max(0.0, min(std, height - floor / 1.3))], [std]]
                    axes.errorbar(
                        at, height, whiskers, color=colour, marker=marker, markersize=6.5, capsize=2, elinewidth=1.2
                    )
                    if mean <= 0:
                        axes.annotate("0", (at, height), (0, 6), textcoords="offset points", ha="center", fontsize=7)
                    shown.setdefault(model, _key(colour, marker, colour))
                theirs = section.paper(quantity, model)
                if math.isfinite(theirs):
                    beside = at + 0.26 / wide
                    axes.plot(
                        beside, max(theirs, floor), marker=marker, markersize=6, color=colour, markerfacecolor="white",
                        markeredgewidth=1.3, zorder=1.9,
                    )  # fmt: skip
                    shown.setdefault("", _key("#555555", "o", "white"))
        names = [quantity_names.get(quantity, quantity) for quantity in section.quantities]
        if len(units) > 1:
            own = [section.unit(quantity) for quantity in section.quantities]
            names = [f"{name}\n({unit})" if unit else name for name, unit in zip(names, own, strict=True)]
        axes.set_xticks(range(len(names)), names)
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.5, len(names) - 0.5)
        words = section.heading.split(" · ")
        axes.set_title("\n".join(" · ".join(part) for part in (words[:2], words[2:]) if part), fontsize=10)
    unit = next(iter(units)) if len(units) == 1 else ""
    for axes in panels:
        if axes.get_subplotspec().is_first_col() or len(units) > 1:
            axes.set_ylabel(f"mean ± std ({unit})" if unit else "mean ± std")
    order = [model for model in models if model in shown] + [name for name in shown if not name]
    figure.legend(
        [shown[name] for name in order], [name or "hollow: the paper" for name in order], loc="outside lower center",
        ncols=min(len(order), 4 if figure.get_figwidth() < 7 else 10), frameon=False, fontsize=9,
    )  # fmt: skip
    _save(figure, path)


def _key(colour: str, marker: str, face: str) -> Any:
    """A marker of the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, color=colour, markerfacecolor=face, markersize=6.5)


def traces_figure(histories: Mapping[str, History], path: Path, titles: Mapping[str, str] | None = None) -> None:
    """Draw the mean ν of every law over the epochs on a log scale, a panel a law, a line a model.

    Args:
        histories: by model; a model need not know every law.
        titles: what to write above the panel of a law; others are headed by their name.
    """
    from matplotlib.lines import Line2D

    laws = list(dict.fromkeys(law for history in histories.values() for law in history.constraints))
    if not laws:
        raise ValueError("there is no law in these histories; a column nu_mean/… of a history holds one")
    colours = _palette(list(histories))
    columns = 3 if len(laws) > 4 or len(laws) == 3 else 2
    figure, panels = _grid(len(laws), 3.7 if len(laws) > 1 else 6.0, 2.6 if len(laws) > 1 else 3.8, columns)
    for law, axes in zip(laws, panels, strict=True):
        lines = {
            model: (history["epoch"], history[f"nu_mean/{law}"])
            for model, history in histories.items()
            if law in history.constraints
        }
        values = [value for _, trace in lines.values() for value in trace if math.isfinite(value)]
        floor = _floor(values)
        for model, (epochs, trace) in lines.items():
            shown = [max(value, floor) if math.isfinite(value) else math.nan for value in trace]
            only = {"marker": ".", "markersize": 7} if len(shown) == 1 else {}
            axes.plot(epochs, shown, color=colours[model], linestyle=STYLES.get(model, "-."), linewidth=1.7, **only)
        axes.set_yscale("log")
        if values and max(values) <= 0:
            axes.set_yticks([floor], ["0"])
            axes.minorticks_off()
            axes.text(
                0.5, 0.6, "no violation at all", transform=axes.transAxes, ha="center", color="#666666", fontsize=9
            )
        elif min(values, default=1.0) <= 0:
            axes.set_ylim(floor / 1.3, max(axes.get_ylim()[1], 10 * floor))
            axes.set_yticks([tick for tick in axes.get_yticks() if floor < tick / 1.3 and tick <= axes.get_ylim()[1]])
            axes.axhline(floor, color="#888888", linewidth=0.8, zorder=1)
            axes.annotate(
                "0", (1, floor), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                va="center", fontsize=8,
            )  # fmt: skip
        axes.set_title((titles or {}).get(law, law), fontsize=10)
        axes.tick_params(labelsize=8)
    for axes in panels:
        spec = axes.get_subplotspec()
        if spec.is_first_col():
            axes.set_ylabel("mean violation ν", fontsize=9)
        if panels.index(axes) + columns >= len(panels):
            axes.set_xlabel("epoch", fontsize=9)
    keys = [
        Line2D([], [], color=colours[model], linestyle=STYLES.get(model, "-."), linewidth=1.7) for model in histories
    ]
    figure.legend(keys, list(histories), loc="outside lower center", ncols=len(keys), frameon=False, fontsize=9)
    _save(figure, path)

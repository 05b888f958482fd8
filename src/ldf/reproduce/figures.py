"""Figures of reports: errors by model, violations over the epochs, and what other figures are drawn with."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..history import History
from ..text import write_whole
from .report import MODELS, Row, sections_of

COLOURS = {
    "mean": "#999999",
    "linear": "#56B4E9",
    "previous": "#CC79A7",
    "M": "#E69F00",
    "MC": "#009E73",
    "MCD": "#0072B2",
    "MCD repaired": "#D55E00",
    "MCD directed": "#000000",
    "LightGBM": "#7A4EAB",
    "scikit-learn": "#8C6D31",
}
"""Okabe and Ito's colours, which people with any colour vision can tell apart, and two more."""

OTHERS = ("#D55E00", "#000000", "#F0E442")
"""Colours of models without one of their own."""

OTHER_MARKERS = ("X", "*", "p")
MARKERS = {
    "mean": "v",
    "linear": "^",
    "previous": "P",
    "M": "o",
    "MC": "s",
    "MCD": "D",
    "MCD repaired": "X",
    "MCD directed": "*",
    "LightGBM": "p",
    "scikit-learn": "h",
}
STYLES: dict[str, Any] = {"M": ":", "MC": "--", "MCD": "-"}


def palette(models: Sequence[str]) -> dict[str, str]:
    """The colour of each model."""
    others = [model for model in models if model not in COLOURS]
    return COLOURS | {model: OTHERS[i % len(OTHERS)] for i, model in enumerate(others)}


def markers_of(models: Sequence[str]) -> dict[str, str]:
    """The marker of each model."""
    others = [model for model in models if model not in MARKERS]
    return MARKERS | {model: OTHER_MARKERS[i % len(OTHER_MARKERS)] for i, model in enumerate(others)}


def grid(panels: int, width: float, height: float, columns: int, sharey: bool = False) -> tuple[Any, list[Any]]:
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


def save(figure: Any, path: Path) -> None:
    """Write a PNG file, whole or not at all."""
    from matplotlib import pyplot

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    pyplot.close(figure)
    write_whole(path, buffer.getvalue())


def floor_of(values: Sequence[float]) -> float:
    """Where a log scale begins: below all positive values; zeros are drawn there."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return min(positive) / 2.5 if positive else 0.1


def errors_figure(rows: Sequence[Row], path: Path, quantity_names: Mapping[str, str]) -> None:
    """Draw mean ± std by quantity and model on a log scale, a panel a table; the paper's figures are hollow.

    Args:
        quantity_names: how to call the quantities; others keep their name.
    """
    sections = sections_of(rows)
    if not sections:
        raise ValueError("there are no rows to draw; at least one is needed")
    models = list(dict.fromkeys(m for name in MODELS for s in sections for m in s.models if m == name))
    models += list(dict.fromkeys(m for s in sections for m in s.models if m not in MODELS))
    units = {section.unit(quantity) for section in sections for quantity in section.quantities}
    colours, markers = palette(models), markers_of(models)
    slots = max(len(section.quantities) * (len(section.models) + 1.5) for section in sections)
    figure, panels = grid(
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
        floors.append(floor_of(every))
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
                marker, colour = markers[model], colours[model]
                if math.isfinite(mean):
                    height = max(mean, floor)
                    whiskers = [[max(0.0, min(std, height - floor / 1.3))], [std]]
                    axes.errorbar(
                        at, height, whiskers, color=colour, marker=marker, markersize=6.5, capsize=2, elinewidth=1.2
                    )
                    if mean <= 0:
                        axes.annotate("0", (at, height), (0, 6), textcoords="offset points", ha="center", fontsize=7)
                    shown.setdefault(model, key(colour, marker, colour))
                theirs = section.paper(quantity, model)
                if math.isfinite(theirs):
                    beside = at + 0.26 / wide
                    axes.plot(
                        beside, max(theirs, floor), marker=marker, markersize=6, color=colour, markerfacecolor="white",
                        markeredgewidth=1.3, zorder=1.9,
                    )  # fmt: skip
                    shown.setdefault("", key("#555555", "o", "white"))
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
    save(figure, path)


def key(colour: str, marker: str, face: str) -> Any:
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
    colours = palette(list(histories))
    columns = 3 if len(laws) > 4 or len(laws) == 3 else 2
    figure, panels = grid(len(laws), 3.7 if len(laws) > 1 else 6.0, 2.6 if len(laws) > 1 else 3.8, columns)
    for law, axes in zip(laws, panels, strict=True):
        lines = {
            model: (history["epoch"], history[f"nu_mean/{law}"])
            for model, history in histories.items()
            if law in history.constraints
        }
        values = [value for _, trace in lines.values() for value in trace if math.isfinite(value)]
        floor = floor_of(values)
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
    save(figure, path)


def curves_figure(rows: Sequence[Row], path: Path, quantities: Sequence[str], label: str) -> None:
    """Draw quantities against the case, a number, a panel a quantity, a line a model; the paper's are dashed.

    Args:
        label: what the case is.
    """
    sections = sections_of(rows)
    if not sections:
        raise ValueError("there are no rows to draw; at least one is needed")
    models = [m for m in MODELS if any(m in s.models for s in sections)]
    models += list(dict.fromkeys(m for s in sections for m in s.models if m not in MODELS))
    places = [float(next(iter(section.cells.values()))["case"]) for section in sections]
    colours, markers = palette(models), markers_of(models)
    figure, panels = grid(len(quantities), 4.6, 4.0, columns=3)
    for quantity, axes in zip(quantities, panels, strict=True):
        shown = {model: [section.mean(quantity, model) for section in sections] for model in models}
        paper = {model: [section.paper(quantity, model) for section in sections] for model in models}
        every = [v for line in (*shown.values(), *paper.values()) for v in line if math.isfinite(v)]
        floor = floor_of(every)
        for model in models:
            style = {"color": colours[model], "marker": markers[model], "markersize": 5}
            spread = [section.std(quantity, model) for section in sections]
            heights = [max(value, floor) for value in shown[model]]
            low = [max(value - std, floor) for value, std in zip(heights, spread, strict=True)]
            high = [value + std for value, std in zip(heights, spread, strict=True)]
            axes.fill_between(places, low, high, color=colours[model], alpha=0.12, linewidth=0)
            axes.plot(places, heights, linewidth=1.6, label=model, **style)
            if any(math.isfinite(value) for value in paper[model]):
                axes.plot(places, paper[model], linestyle=":", linewidth=1.2, markerfacecolor="white", **style)
        axes.set_yscale("log")
        if min(every, default=1.0) <= 0:
            axes.axhline(floor, color="#888888", linewidth=0.8, zorder=1)
            axes.annotate(
                "0", (1, floor), (3, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                va="center", fontsize=8,
            )  # fmt: skip
        unit = sections[0].unit(quantity)
        axes.set_title(f"{quantity} ({unit})" if unit and unit != quantity.split()[-1] else quantity, fontsize=10)
        axes.set_xticks(places)
        axes.set_xlabel(label, fontsize=9)
    handles = [key(colours[model], markers[model], colours[model]) for model in models]
    names = list(models)
    if any(section.papers for section in sections):
        handles.append(key("#555555", "o", "white"))
        names.append("hollow: the paper")
    figure.legend(handles, names, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    save(figure, path)

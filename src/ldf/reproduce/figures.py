"""Pictures of tables: errors by model on a log scale, and quantities against a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..viewing.figures import floor_of, grid, key, markers_of, palette, save
from .tables import MODELS, Row, sections_of


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

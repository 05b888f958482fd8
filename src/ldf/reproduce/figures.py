"""Plots of tables: errors by model, quantities against a number, profiles, trade-offs, traces over the epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..viewing.figures import floor_of, grid, key, markers_of, palette, save
from . import published
from .tables import Row, Section, ordered, sections_of, summary

ROLES = {
    "M": "#E69F00", "MC": "#009E73", "MCD": "#0072B2", "MCD expected": "#56B4E9", "MCD separate": "#CC79A7",
    "Zafar": "#8C6D31", "linear": "#888888", "M + plug-in": "#D55E00", "M + thresholds (z)": "#000000",
}  # fmt: skip
"""Colours in the trade-off plots; squares are boosted trees."""


def _sections(rows: Sequence[Row]) -> tuple[list[Section], list[str]]:
    """The tables formed by these rows, and all their models; an error if there are no rows."""
    if not rows:
        raise ValueError("no rows to draw; at least one is needed")
    sections = sections_of(rows)
    return sections, ordered(model for section in sections for model in section.models)


def errors_figure(rows: Sequence[Row], path: Path, quantity_names: Mapping[str, str]) -> None:
    """Draw mean ± std by quantity and model on a log scale, one panel per table; the paper's values are hollow.

    Args:
        quantity_names: labels of quantities; others keep their name.
    """
    sections, models = _sections(rows)
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
    """Draw quantities against the case (a number), one panel per quantity, one line per model; dotted: the paper.

    Args:
        label: label of the horizontal axis.
    """
    sections, models = _sections(rows)
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


def profiles_figure(variables: Sequence[str], widths: Sequence[int], picture: Mapping[str, Any], path: Path) -> None:
    """Left: g of every variable over its widths. Right: predicted against measured y.

    Args:
        picture: "profiles" by variable, one value for each width; "measured" and "predicted" y of test configurations.
    """
    figure, (left, right) = grid(2, 5.2, 4.2, columns=2)
    for i, (name, profile) in enumerate(zip(variables, picture["profiles"], strict=True)):
        style = ("-", "--", "-.", ":")[i // 7 % 4]
        left.plot(widths, profile, linestyle=style, linewidth=1.4, label=name)
    left.set_xlabel("mantissa bits", fontsize=9)
    left.set_ylabel("profile g: y if all other variables were exact", fontsize=9)
    left.legend(fontsize=7, ncols=2 if len(variables) > 7 else 1, frameon=False)
    top = max(*picture["measured"], *picture["predicted"])
    right.plot([0, top], [0, top], color="#888888", linewidth=0.8)
    right.scatter(picture["measured"], picture["predicted"], s=6, alpha=0.5, color="#0072B2", linewidths=0)
    right.set_xlabel("y measured", fontsize=9)
    right.set_ylabel("y predicted", fontsize=9)
    save(figure, path)


def tradeoff_figure(
    variant: str,
    scores: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
) -> None:
    """Accuracy against |signed DT|, one mark per model: up and left is better. Bars: standard error over the folds.

    Args:
        scores: by panel (such as the recipe) and model: accuracy and signed DT of each fold.
        curves: lines by name, (DT, accuracy), drawn in the last panel.
    """
    figure, panels = grid(len(scores), 6.4, 4.8, columns=2)
    for place, ((recipe, own), axes) in enumerate(zip(scores.items(), panels, strict=True)):
        models = [model for model in own if model != "mean"]
        colours, markers = palette(models), markers_of(models)
        for model in models:
            role = model.removeprefix("boosting ")
            if role in ROLES:
                colours[model], markers[model] = ROLES[role], "s" if role != model else "o"
        if place == len(panels) - 1:
            for (name, points), dashes in zip(curves.items(), ("-", "--"), strict=False):
                axes.plot(*zip(*points, strict=True), color="#999999", linestyle=dashes, linewidth=1.2, zorder=1)
                axes.annotate(name, points[len(points) // 2], (4, -9), textcoords="offset points", fontsize=7)
        for model in models:
            gaps = [score["signed DT"] for score in own[model]]
            right = [score["accuracy"] for score in own[model]]
            error = [summary(values)["std"] / len(values) ** 0.5 for values in (gaps, right)]
            style = {"color": colours[model], "marker": markers[model]}
            at = (abs(fmean(gaps)), fmean(right))
            axes.errorbar(*at, xerr=error[0], yerr=error[1], markersize=7, elinewidth=0.8, label=model, **style)
            gap, accuracy = (published.figure("fairness", variant, model, quantity) for quantity in ("DT", "accuracy"))
            if recipe == "paper" and gap is not None:
                axes.plot(gap, accuracy, markersize=7, markerfacecolor="white", linestyle="", **style)
        axes.set_xlim(left=-0.002)
        axes.set_xlabel("|signed DT|, mean over the folds", fontsize=9)
        axes.set_ylabel("accuracy", fontsize=9)
        axes.set_title(f"{variant} · {recipe}", fontsize=10)
        axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)
    save(figure, path)


def relaxed_figure(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """DT and accuracy against ε, one column per variant."""
    variants = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys((row["recipe"], row["model"]) for row in rows))
    labels = [f"{model} ({recipe})" for recipe, model in names]
    colours, markers = {}, {}
    for (recipe, model), label in zip(names, labels, strict=True):
        role = model.removeprefix("boosting ")
        colours[label] = "#56B4E9" if recipe == "paper" else ROLES[role]
        markers[label] = "D" if recipe == "paper" else "s" if role != model else "o"
    figure, panels = grid(2 * len(variants), 3.6, 3.0, columns=len(variants))
    for index, axes in enumerate(panels):
        variant, quantity = variants[index % len(variants)], ("DT", "accuracy")[index // len(variants)]
        for (recipe, model), label in zip(names, labels, strict=True):
            own = [
                row
                for row in rows
                if (row["case"], row["quantity"], row["recipe"], row["model"]) == (variant, quantity, recipe, model)
            ]
            places = [row["epsilon"] for row in own]
            style = {"color": colours[label], "marker": markers[label], "markersize": 4.5}
            dashes = "--" if markers[label] == "s" else "-"
            axes.errorbar(
                places, [row["mean"] for row in own], [row["std"] for row in own], linewidth=1.2, elinewidth=0.8,
                linestyle=dashes, **style,
            )  # fmt: skip
            if own and own[0]["paper"] is not None and label == labels[0]:
                hollow = {"color": "#555555", "marker": "o", "markerfacecolor": "white", "markersize": 5}
                axes.plot(places, [row["paper"] for row in own], linestyle=":", **hollow)
        if quantity == "DT":
            axes.set_title(variant, fontsize=10)
            ends = sorted({row["epsilon"] for row in rows if row["case"] == variant})
            axes.plot(ends, ends, color="#999999", linestyle=":", linewidth=1)
        axes.set_xlabel("ε", fontsize=9)
        axes.set_ylabel(quantity, fontsize=9)
        axes.tick_params(labelsize=8)
    handles = [key(colours[label], markers[label], colours[label]) for label in labels]
    handles.append(key("#555555", "o", "white"))
    figure.legend(
        handles, [*labels, "the paper's MCD"], loc="outside lower center", ncols=min(6, len(handles)), frameon=False,
        fontsize=8,
    )  # fmt: skip
    save(figure, path)


def epochs_figure(traces: Mapping[str, Mapping[str, Any]], models: Sequence[str], path: Path) -> None:
    """One line of panels per variant: accuracy on the left, DT on the right.

    Args:
        traces: by variant, model and quantity: for each fold the values over the epochs.
        models: the models to draw.
    """
    figure, panels = grid(2 * len(traces), 5.4, 2.7, columns=2)
    for index, axes in enumerate(panels):
        variant, quantity = list(traces)[index // 2], ("accuracy", "DT")[index % 2]
        for model in models:
            folds = list(zip(*traces[variant][model][quantity], strict=True))
            epochs = range(1, len(folds) + 1)
            axes.fill_between(
                epochs, [min(e) for e in folds], [max(e) for e in folds], color=ROLES[model], alpha=0.13, linewidth=0
            )
            axes.plot(epochs, [fmean(e) for e in folds], color=ROLES[model], linewidth=1.5, label=model)
        axes.set_title(f"{variant}: {quantity}", fontsize=10)
        axes.tick_params(labelsize=8)
        if quantity == "DT":
            axes.set_ylim(bottom=0)
        else:  # the first epochs are far below the rest
            later = [
                v for model in models for fold in traces[variant][model][quantity] for v in fold[len(fold) // 10 :]
            ]
            axes.set_ylim(min(later) - 0.02, max(later) + 0.01)
        if index >= len(panels) - 2:
            axes.set_xlabel("epoch", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    save(figure, path)

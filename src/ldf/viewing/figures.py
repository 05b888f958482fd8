"""Plots of loss, violations and multipliers over the epochs, and helpers shared by all figures."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.history import History
from ..io.text import write_whole

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
"""The Okabe-Ito palette, which is safe for colour-blind readers, and two more colours."""

OTHERS = ("#D55E00", "#000000", "#F0E442")
"""Colours for models that are not in `COLOURS`."""

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


def pyplot() -> Any:
    """matplotlib's pyplot with the file-only backend."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ModuleNotFoundError("figures need matplotlib: pip install 'ldf[cli]'", name="matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def grid(panels: int, width: float, height: float, columns: int, sharey: bool = False) -> tuple[Any, list[Any]]:
    """A figure and its panels in a grid of at most `columns` columns."""
    columns = min(columns, panels)
    lines = math.ceil(panels / columns)
    size = (width * columns, height * lines)
    figure, grid = pyplot().subplots(lines, columns, figsize=size, squeeze=False, sharey=sharey, layout="constrained")
    for axes in grid.flat[panels:]:
        axes.remove()
    for axes in grid.flat[:panels]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
        axes.set_axisbelow(True)
    return figure, list(grid.flat[:panels])


def save(figure: Any, path: Path, text: Mapping[str, str] | None = None) -> None:
    """Write a PNG file atomically, with at most 256 colours: a third of the size without a visible difference.

    Args:
        text: text to store in the file, by keyword.
    """
    from PIL import Image, PngImagePlugin  # comes with matplotlib

    drawn, small, stored = io.BytesIO(), io.BytesIO(), PngImagePlugin.PngInfo()
    for keyword, value in (text or {}).items():
        stored.add_text(keyword, value)
    figure.savefig(drawn, format="png", dpi=140)
    pyplot().close(figure)
    Image.open(drawn).convert("RGB").quantize(256).save(small, format="png", optimize=True, pnginfo=stored)
    write_whole(path, small.getvalue())


def floor_of(values: Sequence[float]) -> float:
    """Lower end of a log scale, below all positive values; zeros are drawn there."""
    positive = [value for value in values if value > 0 and math.isfinite(value)]
    return min(positive) / 2.5 if positive else 0.1


def key(colour: str, marker: str, face: str) -> Any:
    """Legend entry for a marker."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, color=colour, markerfacecolor=face, markersize=6.5)


def stroke(**look: Any) -> Any:
    """Legend entry for a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def losses_figure(histories: Mapping[str, History], path: Path) -> None:
    """Plot the loss over the epochs, one line per model; dashed: held-out rows."""
    colours = palette(list(histories))
    figure, (axes,) = grid(1, 6.4, 3.8, columns=1)
    every: list[float] = []
    for model, history in histories.items():
        for column, dashes in (("loss", "-"), ("val_loss", "--")):
            if column in history.columns:
                every += history[column]
                name = model if column == "loss" else f"{model}, held out"
                axes.plot(history["epoch"], history[column], dashes, color=colours[model], linewidth=1.7, label=name)
    if every and min(every) > 0:
        axes.set_yscale("log")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("epoch", fontsize=9)
    axes.set_ylabel("loss", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save(figure, path)


def multipliers_figure(histories: Mapping[str, History], path: Path, titles: Mapping[str, str] | None = None) -> None:
    """Plot every multiplier over the epochs, one panel per history, one line per constraint.

    The scale is logarithmic if no multiplier is negative, since constraints have different units. A line starts where
    its multiplier becomes nonzero.

    Args:
        titles: display names of constraints; others are shown by name.
    """
    names = list(dict.fromkeys(name for history in histories.values() for name in history.constraints))
    if not names:
        raise ValueError("these histories have no constraints: expected columns named lambda/…")
    hues = [COLOURS[name] for name in ("MCD", "M", "MC", "MCD repaired", "previous", "linear", "scikit-learn", "mean")]
    looks: dict[str, dict[str, Any]] = {
        name: {"color": hues[i % len(hues)], "linestyle": ("-", "--", ":")[i // len(hues) % 3], "linewidth": 1.6}
        for i, name in enumerate(names)
    }
    figure, panels = grid(len(histories), 4.6 if len(histories) > 1 else 6.4, 3.2, columns=3)
    for (label, history), axes in zip(histories.items(), panels, strict=True):
        traces = {name: history[f"lambda/{name}"] for name in history.constraints}
        values = [value for trace in traces.values() for value in trace if math.isfinite(value)]
        positive = any(value > 0 for value in values) and min(values) >= 0
        for name, trace in traces.items():
            shown = [value if value > 0 or not positive else math.nan for value in trace]
            axes.plot(history["epoch"], shown, **looks[name])
        if positive:
            axes.set_yscale("log")
        elif values and not any(values):
            axes.text(0.5, 0.6, "all multipliers are 0", transform=axes.transAxes, ha="center", color="#666666")
        if len(histories) > 1:
            axes.set_title(label, fontsize=10)
        axes.tick_params(labelsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel("multiplier", fontsize=9)
        axes.set_xlabel("epoch", fontsize=9)
    keys = [stroke(**looks[name]) for name in names]
    figure.legend(
        keys, [(titles or {}).get(name, name) for name in names], loc="outside lower center", ncols=min(len(keys), 5),
        frameon=False, fontsize=9,
    )  # fmt: skip
    save(figure, path)


def traces_figure(histories: Mapping[str, History], path: Path, titles: Mapping[str, str] | None = None) -> None:
    """Plot the mean ν of every constraint over the epochs on a log scale, one panel per constraint, one line per model.

    Args:
        histories: history of each model; a model need not have every constraint.
        titles: panel titles by constraint; other panels show the constraint's name.
    """
    laws = list(dict.fromkeys(law for history in histories.values() for law in history.constraints))
    if not laws:
        raise ValueError("these histories have no constraints: expected columns named nu_mean/…")
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
            axes.plot(epochs, shown, color=colours[model], linestyle=STYLES.get(model, "-"), linewidth=1.7, **only)
        axes.set_yscale("log")
        if values and max(values) <= 0:
            axes.set_yticks([floor], ["0"])
            axes.minorticks_off()
            axes.text(0.5, 0.6, "no violations", transform=axes.transAxes, ha="center", color="#666666", fontsize=9)
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
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in panels:
        spec = axes.get_subplotspec()
        if spec.is_first_col():
            axes.set_ylabel("mean violation ν", fontsize=9)
        if panels.index(axes) + columns >= len(panels):
            axes.set_xlabel("epoch", fontsize=9)
    keys = [stroke(color=colours[model], linestyle=STYLES.get(model, "-"), linewidth=1.7) for model in histories]
    figure.legend(keys, list(histories), loc="outside lower center", ncols=len(keys), frameon=False, fontsize=9)
    save(figure, path)

"""Helpers to plot any network: positions of nodes, paths of arcs, and red marks for violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.certificate import TOLERANCE
from ..viewing.figures import pyplot, save

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

RED, INK = "#E3001B", "#222222"
GROWTH = 1.2
"""Largest relative increase of a node's area when it is violated."""
NAMED = 60
"""Nodes are labelled with their names in networks of up to this many nodes."""


def check(name: str, what: str, given: Floats, size: int) -> None:
    """Raise if a vector does not have the shape [size], or has an entry that is not finite."""
    if np.shape(given) != (size,):
        raise ValueError(f"{name}: a {what} has shape ({size},), got {np.shape(given)}")
    if not np.isfinite(given).all():
        first = int(np.flatnonzero(~np.isfinite(given))[0])
        raise ValueError(f"{name}: entry {first} of the {what} is {given[first]}; every entry must be finite")


def layout(nodes: int, source: Ints, target: Ints) -> Floats:
    """[nodes, 2] positions of nodes without coordinates: distance follows the number of arcs between them."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    if nodes <= 500 and networkx.is_connected(graph):
        places = networkx.kamada_kawai_layout(graph)
    else:
        places = networkx.spring_layout(graph, pos=networkx.spectral_layout(graph), seed=0)
    points = np.array([places[node] for node in range(nodes)])
    points -= points.mean(0)
    _, _, axes = np.linalg.svd(points, full_matrices=False)
    turned: Floats = points @ axes.T  # the longest axis is horizontal
    return turned


def paths(points: Floats, source: Ints, target: Ints) -> Floats:
    """[E, 15, 2] path of each arc, from source to target; arcs between the same two nodes are bent apart."""
    low, high = np.minimum(source, target), np.maximum(source, target)
    _, pair, of = np.unique(low * len(points) + high, return_inverse=True, return_counts=True)
    rank = np.empty(len(pair), np.int64)  # number of earlier arcs between the same pair
    rank[np.argsort(pair, kind="stable")] = np.arange(len(pair)) - np.repeat(np.cumsum(of) - of, of)
    # Both directions bend to the same side: otherwise two opposite arcs would coincide.
    across = (points[high] - points[low])[:, ::-1] * [-1, 1]
    bow = 0.3 * (rank - (of[pair] - 1) / 2)[:, None] * across
    along = np.linspace(0, 1, 15)[:, None]
    first, last = points[source][:, None], points[target][:, None]
    lines: Floats = first + along * (last - first) + 2 * along * (1 - along) * bow[:, None]
    return lines


def share(amount: Floats, every: Sequence[Floats]) -> Floats:
    """√(amount / largest amount of `every` panel) where violated, 0 elsewhere; the root keeps small ones visible."""
    largest = max(float(other.max(initial=0)) for other in every)
    ratio: Floats = np.where(amount > TOLERANCE, np.sqrt(amount / max(largest, TOLERANCE)), 0.0)
    return ratio


def panels(before: Floats, after: Floats | None) -> dict[str, Floats]:
    """The states to plot, by name: the prediction, and its repair if there is one."""
    return {"prediction": before} | ({} if after is None else {"repaired": after})


def canvas(count: int, points: Floats) -> tuple[Any, list[Any]]:
    """A figure with `count` panels side by side, as high as the network needs, and their axes."""
    low, high = points.min(0), points.max(0)
    middle, longer = (low + high) / 2, (high - low).max()
    width, height = high - low
    height = 7.2 * float(np.clip(height / max(width, 1e-9), 0.55, 1.0))
    figure, grid = pyplot().subplots(
        1, count, figsize=(7.6 * count + 1.2, height + 1.6), squeeze=False, layout="constrained"
    )
    for axes in grid[0]:
        axes.set_aspect("equal")
        axes.margins(0.06)
        axes.axis("off")
        axes.update_datalim([middle - longer / 8, middle + longer / 8])  # some height for a network on a line
    return figure, list(grid[0])


def heading(name: str, count: int, balance: str) -> str:
    """Title of a panel: number of violations, and the largest residual of a balance."""
    return f"{name}: {count} {'violation' if count == 1 else 'violations'}, largest imbalance {balance}"


def lines(axes: Any, runs: Floats, colours: Any, widths: Any, zorder: float) -> None:
    """Draw arcs along their paths [E, k, 2]."""
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(list(runs), colors=colours, linewidths=widths, zorder=zorder, capstyle="round"))


def halos(axes: Any, runs: Floats, marks: Floats, widths: Any) -> None:
    """Draw red lines of these widths [E] behind the arcs where marks [E] > 0."""
    hit = np.flatnonzero(marks)
    lines(axes, runs[hit], RED, np.broadcast_to(widths, marks.shape)[hit], 1)


def dots(axes: Any, points: Floats, kinds: Mapping[str, Bools], sizes: Floats, fills: Floats, red: Floats) -> Floats:
    """Draw nodes by marker, with sizes [N] in points² and colours [N, 4]; red and larger where red [N] > 0.

    Returns:
        [N, 4] the colours used.
    """
    from matplotlib.colors import to_rgba

    colours: Floats = np.where(red[:, None] > 0, np.array(to_rgba(RED)), fills)
    for marker, which in kinds.items():
        axes.scatter(
            *points[which].T, s=sizes[which] * (1 + GROWTH * red[which]), c=colours[which], marker=marker,
            edgecolors=INK, linewidths=0.8, zorder=4, clip_on=False,
        )  # fmt: skip
    return colours


def rings(axes: Any, points: Floats, marks: Floats, sizes: Floats, marker: str = "o", width: float = 1.1) -> None:
    """Draw red outlines of these sizes [N] in points² around nodes where marks [N] > 0."""
    hit = np.flatnonzero(marks)
    axes.scatter(
        *points[hit].T, s=sizes[hit], facecolors="none", edgecolors=RED, marker=marker, linewidths=width, zorder=5,
        clip_on=False,
    )  # fmt: skip


def mark(label: str, marker: str, face: str, edge: str = INK, size: float = 9) -> Any:
    """A legend entry for a marker."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=marker, mfc=face, mec=edge, markersize=size, label=label)


def stroke(label: str, colour: str, width: float) -> Any:
    """A legend entry for a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linewidth=width, label=label)


def finish(figure: Any, keys: Sequence[Any], columns: int, title: str, path: Path) -> None:
    """Add the legend below and the title above, and write the PNG atomically."""
    figure.legend(
        handles=list(keys),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=10,
        columnspacing=1.4,
        title="red: violated; larger marks, larger violations",
    )
    if title:
        figure.suptitle(title, fontsize=14)
    save(figure, path)

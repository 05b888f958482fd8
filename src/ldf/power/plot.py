"""Pictures of a power network: how loaded it is, and what a state violates."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..text import write_whole
from .case import Case
from .constraints import PowerLaws

Floats = NDArray[np.float64]

TOLERANCE = 1e-4
"""Above this, per unit or in radians, something is violated."""

RED = "#E3001B"
BRANCHES, VOLTAGES = "viridis", "Greys"


@dataclass(frozen=True)
class Violations:
    """By how much a state violates the laws of its network, element by element; zero where it keeps them."""

    voltage: Floats
    """[N] per unit."""
    active: Floats
    """[G] per unit."""
    reactive: Floats
    """[G] per unit."""
    thermal: Floats
    """[E] apparent power of the fuller end above the limit, per unit."""
    angle: Floats
    """[E] radians."""
    balance_p: Floats
    """[N] |σ7a|, per unit."""
    balance_q: Floats
    """[N] |σ7b|, per unit."""
    loading: Floats
    """[E] apparent power of the fuller end in % of the limit; NaN where there is none."""
    level: Floats
    """[N] where the voltage is between its limits: 0 at the lower, 1 at the upper."""

    @property
    def count(self) -> int:
        """How many limits and balances, of single buses, generators and branches, are violated above `TOLERANCE`."""
        laws = (self.voltage, self.active, self.reactive, self.thermal, self.angle, self.balance_p, self.balance_q)
        return sum(int((law > TOLERANCE).sum()) for law in laws)

    @property
    def balance(self) -> Floats:
        """[N] the larger of |σ7a| and |σ7b|."""
        return np.maximum(self.balance_p, self.balance_q)

    def dispatch(self, case: Case) -> Floats:
        """[N] the largest violation of p^g and q^g limits of the generators at a bus."""
        worst = np.zeros(case.buses)
        np.maximum.at(worst, case.at, np.maximum(self.active, self.reactive))
        return worst


def violations(case: Case, state: Floats, demand: Floats) -> Violations:
    """What a state [p^g, q^g, v, θ] violates under a demand [p^d, q^d], both per unit and in radians."""
    size = 2 * case.generators + 2 * case.buses
    for name, given, right in (("state", state, size), ("demand", demand, 2 * case.buses)):
        if np.shape(given) != (right,):
            raise ValueError(f"{case.name}: a {name} has shape ({right},), got {np.shape(given)}")
        if not np.isfinite(given).all():
            first = int(np.flatnonzero(~np.isfinite(given))[0])
            raise ValueError(f"{case.name}: entry {first} of the {name} is {given[first]}; every entry must be finite")
    laws = PowerLaws(case, torch.float64)
    at = laws.states(torch.as_tensor(np.asarray(state), dtype=torch.float64)[None])
    demands = torch.as_tensor(np.asarray(demand), dtype=torch.float64)[None]

    def array(tensor: torch.Tensor) -> Floats:
        return np.asarray(tensor[0].numpy(), np.float64)

    def outside(value: Floats, low: Floats, high: Floats) -> Floats:
        return np.maximum(low - value, value - high).clip(0)

    v = array(at.v)
    apparent = np.hypot(array(at.p), array(at.q)).reshape(2, -1).max(0)
    rated = np.isfinite(case.limit)
    room = case.v_max - case.v_min
    ranged = np.isfinite(room) & (room > 0)
    return Violations(
        voltage=outside(v, case.v_min, case.v_max),
        active=outside(array(at.pg), case.p_min, case.p_max),
        reactive=outside(array(at.qg), case.q_min, case.q_max),
        thermal=np.where(rated, apparent - case.limit, 0.0).clip(0),
        angle=outside(array(at.difference)[: case.branches], case.angle_min, case.angle_max),
        balance_p=np.abs(array(laws.balance_p(at, demands))),
        balance_q=np.abs(array(laws.balance_q(at, demands))),
        loading=np.where(rated, 100 * apparent / case.limit, np.nan),
        level=np.divide(v - case.v_min, room, out=np.full(case.buses, 0.5), where=ranged),
    )


def layout(case: Case) -> Floats:
    """[N, 2] where to draw the buses: the network has no coordinates, so that distance is the number of branches."""
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(case.buses))
    graph.add_edges_from(zip(case.source.tolist(), case.target.tolist(), strict=True))
    if case.buses <= 500 and networkx.is_connected(graph):
        places = networkx.kamada_kawai_layout(graph)
    else:
        places = networkx.spring_layout(graph, pos=networkx.spectral_layout(graph), seed=0)
    points = np.array([places[bus] for bus in range(case.buses)])
    points -= points.mean(0)
    _, _, axes = np.linalg.svd(points, full_matrices=False)
    turned: Floats = points @ axes.T  # the long side lies flat
    return turned


def draw(case: Case, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
    """Draw a prediction and, beside it, its repair: loadings, voltages and, in red, what is violated.

    Args:
        before: the prediction [S]: p^g, q^g, v, θ, per unit and radians.
        after: its repair; None draws the prediction alone.
        demand: [2N] per unit, active then reactive.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    states = {"prediction": before} | ({} if after is None else {"repaired": after})
    found = {name: violations(case, state, demand) for name, state in states.items()}
    points = layout(case)
    spans = np.ptp(points, axis=0)
    height = 7.2 * float(np.clip(spans[1] / spans[0], 0.55, 1.0))
    figure, grid = pyplot.subplots(
        1, len(found), figsize=(7.6 * len(found) + 1.2, height + 1.6), squeeze=False, layout="constrained"
    )
    shades = Normalize(0, 100), Normalize(0, 1)
    for axes, (name, seen) in zip(grid[0], found.items(), strict=True):
        _panel(axes, case, points, seen, list(found.values()), shades)
        plural = "violation" if seen.count == 1 else "violations"
        axes.set_title(f"{name}: {seen.count} {plural}, largest balance {seen.balance.max():.2g} p.u.", fontsize=12)
    last = grid[0][-1]
    bar = figure.colorbar(ScalarMappable(shades[0], BRANCHES), ax=last, extend="max", shrink=0.8, pad=0.01, aspect=30)
    bar.set_label("branch: apparent power in % of its limit")
    bar.set_ticks([0, 25, 50, 75, 100], labels=["0", "25", "50", "75", "100+"])
    bar = figure.colorbar(ScalarMappable(shades[1], VOLTAGES), ax=last, shrink=0.8, pad=0.02, aspect=30)
    bar.set_label("bus: voltage between its limits")
    bar.set_ticks([0, 1], labels=["lower", "upper"])
    _legend(figure)
    if title:
        figure.suptitle(title, fontsize=14)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    pyplot.close(figure)
    write_whole(path, buffer.getvalue())


def _panel(
    axes: Any, case: Case, points: Floats, seen: Violations, every: list[Violations], shades: tuple[Any, Any]
) -> None:
    """One network; marks are as large as the violation is beside the largest in `every` panel."""
    from matplotlib import colormaps
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    thick = float(np.clip(20 / np.sqrt(case.buses), 1.2, 3.0))
    dot = float(np.clip(8000 / case.buses, 22, 190))

    def share(amount: Floats, largest: float) -> Floats:
        """In (0, 1] where violated, 0 elsewhere; the root keeps small ones visible."""
        ratio: Floats = np.where(amount > TOLERANCE, np.sqrt(amount / max(largest, TOLERANCE)), 0.0)
        return ratio

    thermal = share(seen.thermal, max(v.thermal.max(initial=0) for v in every))
    angle = share(seen.angle, max(v.angle.max(initial=0) for v in every))
    voltage = share(seen.voltage, max(v.voltage.max() for v in every))
    balance = share(seen.balance, max(v.balance.max() for v in every))
    dispatch = share(seen.dispatch(case), max(v.dispatch(case).max() for v in every))

    paths = _paths(case, points)
    halo = np.maximum(thermal, angle)
    hit = np.flatnonzero(halo)
    axes.add_collection(
        LineCollection([paths[i] for i in hit], colors=RED, linewidths=thick * (1.8 + 2.5 * halo[hit]), zorder=1)
    )
    colours = colormaps[BRANCHES](shades[0](np.nan_to_num(seen.loading)))
    colours[np.isnan(seen.loading)] = (0.72, 0.72, 0.72, 1.0)
    axes.add_collection(LineCollection(paths, colors=colours, linewidths=thick, zorder=2, capstyle="round"))

    fills = colormaps[VOLTAGES](shades[1](seen.level))
    fills[voltage > 0] = to_rgba(RED)
    generators = np.isin(np.arange(case.buses), case.at)
    loads = np.isin(np.arange(case.buses), case.loads) & ~generators
    for marker, which, size in (("s", generators, 1.15), ("o", loads, 1.0), ("o", ~generators & ~loads, 0.4)):
        axes.scatter(
            *points[which].T, s=dot * size * (1 + 1.2 * voltage[which]), c=fills[which], marker=marker,
            edgecolors="#222222", linewidths=0.8, zorder=4,
        )  # fmt: skip
    for marker, marks, most in (("s", dispatch, 2.0), ("o", balance, 6.0)):
        hit = np.flatnonzero(marks)
        start = 2.2 if marker == "s" else 1.3
        axes.scatter(
            *points[hit].T, s=dot * (start + most * marks[hit]), facecolors="none", edgecolors=RED, marker=marker,
            linewidths=1.8 if marker == "s" else 1.1, zorder=5,
        )  # fmt: skip
    if case.buses <= 60:
        dark = (fills[:, :3] @ np.array([0.299, 0.587, 0.114])) < 0.55
        for i, number in enumerate(case.bus):
            if generators[i] or loads[i]:
                axes.annotate(
                    str(number), points[i], ha="center", va="center", fontsize=7, zorder=6,
                    color="white" if dark[i] else "#222222",
                )  # fmt: skip
    axes.set_aspect("equal")
    axes.margins(0.06)
    axes.autoscale_view()
    axes.axis("off")


def _paths(case: Case, points: Floats) -> list[Floats]:
    """The line of each branch; branches between the same two buses are bent apart."""
    pairs = [tuple(sorted(pair)) for pair in zip(case.source.tolist(), case.target.tolist(), strict=True)]
    along = np.linspace(0, 1, 15)[:, None]
    of, drawn = Counter(pairs), Counter[tuple[int, ...]]()
    paths = []
    for pair in pairs:
        first, last = points[pair[0]], points[pair[1]]
        bow = 0.3 * (drawn[pair] - (of[pair] - 1) / 2) * np.array([first[1] - last[1], last[0] - first[0]])
        drawn[pair] += 1
        paths.append(first + along * (last - first) + 2 * along * (1 - along) * bow)
    return paths


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    def mark(label: str, marker: str, face: str, edge: str, size: float = 9) -> Any:
        return Line2D([], [], linestyle="", marker=marker, mfc=face, mec=edge, markersize=size, label=label)

    keys = [
        mark("generator", "s", "#BBBBBB", "#222222"),
        mark("load", "o", "#BBBBBB", "#222222"),
        mark("neither", "o", "#BBBBBB", "#222222", 5),
        Line2D([], [], color="#B8B8B8", linewidth=2.5, label="no limit"),
        mark("power balance", "o", "none", RED, 12),
        mark("voltage limit", "o", RED, "#222222"),
        mark("generator limit", "s", "none", RED, 12),
        Line2D([], [], color=RED, linewidth=6, label="branch limit"),
    ]
    figure.legend(
        handles=keys,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=10,
        title="red: violated; the larger, the more",
    )

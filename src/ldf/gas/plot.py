"""Plots of a gas network: pressures, flows, compressors and the violations of a state."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.certificate import TOLERANCE
from ..proxies import plot
from ..proxies.plot import GROWTH, INK, NAMED, RED
from .constraints import GasLaws
from .network import BAR, Network

Floats = NDArray[np.float64]

PRESSURES, RATIOS = "YlGnBu", "Greys"
PIPE, ARROW = "#9AA5B1", "#3D4853"
RUNNING = 1.005
"""Ratio above which a compressor counts as running; in small networks its ratio is printed next to it."""


@dataclass(frozen=True)
class Violations:
    """Violation of each constraint by a state, element by element; zero where it is satisfied."""

    balance: Floats
    """[N] |σ10|, in units of base flow."""
    pressure: Floats
    """[N] distance of p outside its limits, in units of base pressure; at the slack both limits are p^T."""
    limits: Floats
    """[E] distance of q outside its limits, in units of base flow."""
    ratio: Floats
    """[C] distance of R outside its limits."""
    weymouth: Floats
    """[E] |R² p_i² − p_j² − W q|q||, in units of base pressure squared; |R p_i − p_j| without resistance."""

    @property
    def count(self) -> int:
        """Number of violations above `TOLERANCE`, counting each junction, arc and compressor separately."""
        return sum(int((getattr(self, law.name) > TOLERANCE).sum()) for law in fields(self))


def violations(network: Network, state: Floats, demand: Floats) -> Violations:
    """Violations of a state [R, p, q] under a demand [N], both in units of base pressure and base flow."""
    n, e, c = network.junctions, network.arcs, network.compressors
    plot.check(network.name, "state", state, c + n + e)
    plot.check(network.name, "demand", demand, n)
    laws = GasLaws(network, torch.float64)
    at = laws.states(laws.number(state)[None])

    def outside(sigma: torch.Tensor, limited: torch.Tensor, size: int) -> Floats:
        """max(0, σ) for elements with a limit, 0 for the others."""
        found = np.zeros(size)
        found[limited.numpy()] = sigma[0].clamp_min(0).numpy()
        return found

    return Violations(
        balance=laws.balance(at.q, laws.number(demand)[None])[0].abs().numpy(),
        pressure=outside(laws.pressure(at), laws.pressures[0], n),
        limits=outside(laws.limits(at.q), laws.flows[0], e),
        ratio=outside(laws.ratio(at), laws.ratios[0], c),
        weymouth=laws.weymouth(at)[0].abs().numpy(),
    )


def layout(network: Network) -> Floats:
    """[N, 2] positions of the junctions: geographic if all places are known, otherwise by number of arcs between them.

    Longitudes are scaled by the cosine of the latitude. Junctions that are too close to be drawn separately, such as
    those of a compressor station, are moved apart.
    """
    places = network.places
    if places is None or not _known(places):
        points = plot.layout(network.junctions, network.source, network.target)
    else:
        degrees = (np.abs(places).max(0) <= [180, 90]).all()
        points = places * [np.cos(np.radians(places[:, 1].mean())) if degrees else 1.0, 1.0]
    gap = 0.42 / np.sqrt(network.junctions) * float(np.ptp(points, axis=0).max())
    # Coinciding junctions are shifted towards their neighbours, so that pipes leaving a station do not cross it.
    ends, others = np.r_[network.source, network.target], np.r_[network.target, network.source]
    towards = np.zeros_like(points)
    np.add.at(towards, ends, points[others] - points[ends])
    far = np.hypot(*towards.T)[:, None]
    return _apart(points + gap / 30 * np.divide(towards, far, out=np.zeros_like(points), where=far > 0), gap)


def _known(places: Floats) -> bool:
    """Whether places [N, 2] are known for all junctions and not all the same."""
    nowhere = (places == 0).all(1)  # files use (0, 0) for unknown places; one junction may really be there
    return bool(np.ptp(places, axis=0).any() and nowhere.sum() < 2)


def _apart(points: Floats, gap: float) -> Floats:
    """[N, 2] points moved apart, as little as necessary, until no two are closer than `gap`."""
    from scipy.spatial import cKDTree

    turn = np.pi * (3 - np.sqrt(5)) * np.arange(len(points))  # one direction per point, in case some still coincide
    found = points + 1e-3 * gap * np.column_stack([np.cos(turn), np.sin(turn)])
    for _ in range(300):  # limited, since crowded points may never settle
        one, other = cKDTree(found).query_pairs(0.99 * gap, output_type="ndarray").T
        if not len(one):
            break
        between = found[one] - found[other]
        distance = np.hypot(*between.T)[:, None]
        push = 0.4 * between * (gap / distance - 1)
        np.add.at(found, one, push)
        np.add.at(found, other, -push)
    return found


@dataclass(frozen=True)
class _Scale:
    """Scales of sizes and colours, shared by all panels and the legend."""

    bar: tuple[float, float]
    """Pressures of the first and last colour, bar."""
    ratio: float
    """R of the darkest compressor; the lightest has R = 1."""
    flow: float
    """Reference flow of line widths, kg/s; widths stop growing at 1.5 times this flow."""
    load: float
    """Largest load, kg/s."""
    thick: float
    """Line width at the reference flow, points."""
    dot: float
    """Marker area of the largest load, points²."""

    @classmethod
    def of(cls, network: Network, states: list[Floats], demand: Floats) -> _Scale:
        """Scales that show all of these states under one demand."""
        ratio, p, _ = (np.concatenate(parts) for parts in zip(*(_split(network, s) for s in states), strict=True))
        # Flows of the repair, so that outliers of a prediction do not make all other arcs thin.
        _, _, q = _split(network, states[-1])
        # Pressures outside the limits are red, so the colours only cover the range of the limits.
        low, high = np.clip([p.min(), p.max()], network.p_min.min() / BAR, network.p_max.max() / BAR)
        return cls(
            bar=(low, high) if high - low > 0.01 else (low - 1, high + 1),
            ratio=float(np.clip(ratio.max(initial=1), 1.1, max(1.1, network.ratio_max.max(initial=1)))),
            flow=_largest(q, network.base_flow),
            load=_largest(demand * network.base_flow, network.base_flow),
            thick=float(np.clip(38 / np.sqrt(network.junctions), 2.0, 6.0)),
            dot=float(np.clip(9000 / network.junctions, 24, 220)),
        )

    def width(self, flow: Any) -> Any:
        """Line width of an arc with this flow in kg/s, points."""
        return 0.6 + self.thick * np.minimum(np.abs(flow) / self.flow, 1.5)

    def area(self, load: Any) -> Any:
        """Marker area of a junction with this load in kg/s, points²."""
        return self.dot * (0.25 + 0.75 * np.abs(load) / self.load)


def _largest(values: Floats, base: float) -> float:
    """Largest |value|, or `base` if all values are negligible."""
    largest = float(np.abs(values).max())
    return largest if largest > TOLERANCE * base else base


def _split(network: Network, state: Floats) -> tuple[Floats, Floats, Floats]:
    """Split a state into R, p in bar and q in kg/s."""
    c, n = network.compressors, network.junctions
    return state[:c], state[c : c + n] * network.base_pressure / BAR, state[c + n :] * network.base_flow


def draw(network: Network, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
    """Draw a prediction and, next to it, its repair: pressures, flows, compressors and, in red, violations.

    Args:
        before: the prediction [S]: R, p, q, in units of base pressure and base flow.
        after: its repair; None draws only the prediction.
        demand: [N] in units of base flow.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    states = plot.panels(before, after)
    found = {name: violations(network, state, demand) for name, state in states.items()}
    points = layout(network)
    scale = _Scale.of(network, list(states.values()), demand)
    shades = Normalize(*scale.bar), Normalize(1, scale.ratio)
    figure, grid = plot.canvas(len(found), points)
    for axes, (name, seen) in zip(grid, found.items(), strict=True):
        red = {
            law.name: plot.share(getattr(seen, law.name), [getattr(other, law.name) for other in found.values()])
            for law in fields(seen)
        }
        _arcs(axes, network, points, states[name], red, scale, shades[1])
        _junctions(axes, network, points, states[name], demand, red, scale, shades[0])
        axes.autoscale_view()
        balance = f"{seen.balance.max() * network.base_flow:.3f} kg/s"
        axes.set_title(plot.heading(name, seen.count, balance), fontsize=12)
    bar = figure.colorbar(ScalarMappable(shades[0], PRESSURES), ax=grid[-1], shrink=0.8, pad=0.01, aspect=30)
    bar.set_label("junction: pressure in bar")
    if network.compressors:
        bar = figure.colorbar(ScalarMappable(shades[1], RATIOS), ax=grid[-1], shrink=0.8, pad=0.02, aspect=30)
        bar.set_label("compressor: ratio R")
    plot.finish(figure, _keys(scale), 6, title, path)


def _arcs(
    axes: Any, network: Network, points: Floats, state: Floats, red: dict[str, Floats], scale: _Scale, shade: Any
) -> None:
    """Draw pipes, with width and arrow by flow, and compressors, which also point in the direction of flow."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba

    ratio, _, q = _split(network, state)
    at = network.compressor
    runs = plot.paths(points, network.source, network.target)
    widths = scale.width(q)
    plot.halos(axes, runs, red["weymouth"], widths + scale.thick * (0.2 + 1.3 * red["weymouth"]))
    plot.lines(axes, runs, PIPE, widths, 2)

    middle, ahead = runs[:, 7], (runs[:, 8] - runs[:, 6]) * np.where(q < 0, -1.0, 1.0)[:, None]
    pipes = np.abs(q) > TOLERANCE * network.base_flow  # no arrow without flow
    pipes[at] = False
    sizes = 0.3 * np.sqrt(scale.dot) + 1.4 * widths
    sizes[at] = 0.9 * np.sqrt(scale.dot)
    _triangles(axes, middle[pipes], ahead[pipes], sizes[pipes], ARROW, ARROW, 3)
    fills = np.where(red["ratio"][:, None] > 0, to_rgba(RED), colormaps[RATIOS](shade(ratio)))
    _triangles(axes, middle[at], ahead[at], sizes[at] * (1 + 0.6 * red["ratio"]), fills, INK, 6)
    limits = red["limits"]
    hit = np.flatnonzero(limits)
    _triangles(axes, middle[hit], ahead[hit], sizes[hit] * (1.7 + 0.8 * limits[hit]), "none", RED, 7, 1.6)
    if network.junctions <= NAMED:
        for k, value in zip(at, ratio, strict=True):
            if value > RUNNING:
                _label(axes, middle[k], _free(middle[k], ahead[k], points), sizes[k] / 2, f"×{value:.2f}", "bold")


def _free(at: Floats, ahead: Floats, points: Floats) -> Floats:
    """[2] unit vector across an arc, at this point and direction, to the side with more free space."""
    across = np.array([-ahead[1], ahead[0]]) / np.linalg.norm(ahead)
    reach = 0.06 * np.ptp(points, axis=0).max()
    left, right = (np.linalg.norm(points - (at + side * reach * across), axis=1).min() for side in (1, -1))
    side: Floats = across if left > right else -across
    return side


def _triangles(
    axes: Any, at: Floats, ahead: Floats, sizes: Any, faces: Any, edges: Any, zorder: float, width: float = 0.8
) -> None:
    """Draw triangles at points [k, 2], pointing along `ahead` [k, 2], with sides of these sizes [k] in points."""
    from matplotlib.collections import PolyCollection
    from matplotlib.transforms import Affine2D

    x, y = (ahead / np.linalg.norm(ahead, axis=1, keepdims=True).clip(1e-12)).T
    corners = np.array([[2.0, 0.0], [-1.0, 1.6], [-1.0, -1.6]]) / 3.2
    turned = corners @ np.array([[x, y], [-y, x]]).transpose(2, 0, 1)
    axes.add_collection(
        PolyCollection(
            list(turned * np.reshape(sizes, (-1, 1, 1))), offsets=at, offset_transform=axes.transData,
            transform=Affine2D().scale(1 / 72) + axes.figure.dpi_scale_trans,
            facecolors=faces, edgecolors=edges, linewidths=width, joinstyle="round", zorder=zorder,
        ),
        autolim=False,
    )  # fmt: skip


def _junctions(
    axes: Any, network: Network, points: Floats, state: Floats, demand: Floats, red: dict[str, Floats],
    scale: _Scale, shade: Any,
) -> None:  # fmt: skip
    """Draw entries, loads and other junctions coloured by pressure, with a star on the slack."""
    from matplotlib import colormaps

    _, p, _ = _split(network, state)
    entries = network.share > 0
    loads = ~entries & ((network.demand != 0) | (demand != 0))
    areas: Floats = np.select([entries, loads], [scale.dot, scale.area(demand * network.base_flow)], 0.12 * scale.dot)
    fills = colormaps[PRESSURES](shade(p))
    plot.dots(axes, points, {"s": entries, "o": ~entries}, areas, fills, red["pressure"])
    axes.scatter(*points[network.slack], s=0.5 * scale.dot, marker="*", c="white", ec=INK, lw=0.7, zorder=6)
    drawn = areas * (1 + GROWTH * red["pressure"])
    # A circle that encloses a square marker needs twice its marker size.
    plot.rings(axes, points, red["balance"], 2.1 * drawn + scale.dot * (0.3 + 5.5 * red["balance"]))
    if network.junctions <= NAMED:
        away = _away(points, network)
        for i in np.flatnonzero(entries | loads).tolist():
            _label(axes, points[i], away[i], np.sqrt(drawn[i]) / 2, network.junction[i])


def _away(points: Floats, network: Network) -> Floats:
    """[N, 2] direction of most free space at each junction: the middle of the widest gap between its arcs."""
    ends, others = np.r_[network.source, network.target], np.r_[network.target, network.source]
    towards = np.arctan2(*(points[others] - points[ends]).T[::-1])
    found = np.zeros(len(points))
    for i in range(len(points)):
        angles = np.sort(towards[ends == i])
        gaps = np.diff(angles, append=angles[0] + 2 * np.pi)
        found[i] = angles[gaps.argmax()] + gaps.max() / 2
    return np.column_stack([np.cos(found), np.sin(found)])


def _label(axes: Any, at: Floats, direction: Floats, radius: float, text: str, weight: str = "normal") -> None:
    """Write a text next to a mark of this radius in points."""
    from matplotlib.patheffects import withStroke

    x, y = direction / np.linalg.norm(direction)
    axes.annotate(
        text, at, xytext=((radius + 2) * x, (radius + 2) * y), textcoords="offset points", fontsize=7, color=INK,
        ha="center" if abs(x) < 0.4 else "left" if x > 0 else "right",
        va="center" if abs(y) < 0.4 else "bottom" if y > 0 else "top",
        weight=weight, zorder=8, path_effects=[withStroke(linewidth=2, foreground="white")],
    )  # fmt: skip


def _keys(scale: _Scale) -> list[Any]:
    """Legend entries, column by column: each element, followed by its constraint."""
    flow, load, grey = _round(scale.flow), _round(scale.load), "#BBBBBB"
    return [
        plot.mark("entry", "s", grey),
        plot.mark("mass balance", "o", "none", RED, 12),
        plot.mark(f"load of {load:g} kg/s", "o", grey, size=np.sqrt(scale.area(load))),
        plot.mark("pressure limit", "o", RED),
        plot.stroke(f"flow of {flow:g} kg/s", PIPE, scale.width(flow)),
        plot.stroke("Weymouth's law", RED, 6),
        plot.mark("compressor", ">", grey),
        plot.mark("ratio limit", ">", RED),
        plot.mark("slack", "*", "white", size=10),
        plot.mark("flow limit", ">", "none", RED, 12),
        plot.mark("other junction", "o", grey, size=4),
    ]


def _round(value: float) -> float:
    """Largest of …, 1, 2, 5, 10, … that does not exceed the value, up to rounding."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(max(step * power for step in (1, 2, 5) if step * power <= value * (1 + 1e-9)))

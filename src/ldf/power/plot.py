"""Plots of a power network: its loading, and the violations of a state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.certificate import TOLERANCE
from ..proxies import plot
from ..proxies.plot import INK, NAMED, RED
from .case import Case
from .constraints import PowerLaws

Floats = NDArray[np.float64]

BRANCHES, VOLTAGES = "viridis", "Greys"


@dataclass(frozen=True)
class Violations:
    """Constraint violations of a state, element by element; zero where a constraint is satisfied."""

    voltage: Floats
    """[N] per unit."""
    active: Floats
    """[G] per unit."""
    reactive: Floats
    """[G] per unit."""
    thermal: Floats
    """[E] apparent power above the limit at the more loaded end, per unit."""
    angle: Floats
    """[E] radians."""
    balance_p: Floats
    """[N] |σ7a|, per unit."""
    balance_q: Floats
    """[N] |σ7b|, per unit."""
    loading: Floats
    """[E] apparent power at the more loaded end in % of the limit; NaN if the branch has none."""
    level: Floats
    """[N] position of the voltage between its limits: 0 at the lower, 1 at the upper."""

    @property
    def count(self) -> int:
        """Number of limits and balances violated by more than `TOLERANCE`, over all buses, generators and branches."""
        laws = (self.voltage, self.active, self.reactive, self.thermal, self.angle, self.balance_p, self.balance_q)
        return sum(int((law > TOLERANCE).sum()) for law in laws)

    @property
    def balance(self) -> Floats:
        """[N] the larger of |σ7a| and |σ7b|."""
        return np.maximum(self.balance_p, self.balance_q)

    def dispatch(self, case: Case) -> Floats:
        """[N] largest violation of p^g and q^g limits by the generators at each bus."""
        worst = np.zeros(case.buses)
        np.maximum.at(worst, case.at, np.maximum(self.active, self.reactive))
        return worst


def violations(case: Case, state: Floats, demand: Floats) -> Violations:
    """Violations of a state [p^g, q^g, v, θ] under a demand [p^d, q^d], both per unit and in radians."""
    plot.check(case.name, "state", state, 2 * case.generators + 2 * case.buses)
    plot.check(case.name, "demand", demand, 2 * case.buses)
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
    """[N, 2] positions of the buses in the plot. Cases have no coordinates, so distance is the number of branches."""
    return plot.layout(case.buses, case.source, case.target)


def draw(case: Case, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
    """Draw a prediction and, next to it, its repair: loadings, voltages and, in red, violations.

    Args:
        before: the prediction [S]: p^g, q^g, v, θ, per unit and radians.
        after: its repair; None draws the prediction alone.
        demand: [2N] per unit, active then reactive.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    found = {name: violations(case, state, demand) for name, state in plot.panels(before, after).items()}
    points = layout(case)
    figure, grid = plot.canvas(len(found), points)
    shades = Normalize(0, 100), Normalize(0, 1)
    for axes, (name, seen) in zip(grid, found.items(), strict=True):
        _panel(axes, case, points, seen, list(found.values()), shades)
        axes.set_title(plot.heading(name, seen.count, f"{seen.balance.max():.2g} p.u."), fontsize=12)
    last = grid[-1]
    bar = figure.colorbar(ScalarMappable(shades[0], BRANCHES), ax=last, extend="max", shrink=0.8, pad=0.01, aspect=30)
    bar.set_label("branch: apparent power in % of its limit")
    bar.set_ticks([0, 25, 50, 75, 100], labels=["0", "25", "50", "75", "100+"])
    bar = figure.colorbar(ScalarMappable(shades[1], VOLTAGES), ax=last, shrink=0.8, pad=0.02, aspect=30)
    bar.set_label("bus: voltage between its limits")
    bar.set_ticks([0, 1], labels=["lower", "upper"])
    plot.finish(figure, _keys(), 4, title, path)


def _panel(
    axes: Any, case: Case, points: Floats, seen: Violations, every: list[Violations], shades: tuple[Any, Any]
) -> None:
    """One panel; the size of a mark is its violation relative to the largest in `every` panel."""
    from matplotlib import colormaps

    thick = float(np.clip(20 / np.sqrt(case.buses), 1.2, 3.0))
    dot = float(np.clip(8000 / case.buses, 22, 190))
    thermal = plot.share(seen.thermal, [v.thermal for v in every])
    angle = plot.share(seen.angle, [v.angle for v in every])
    voltage = plot.share(seen.voltage, [v.voltage for v in every])
    balance = plot.share(seen.balance, [v.balance for v in every])
    dispatch = plot.share(seen.dispatch(case), [v.dispatch(case) for v in every])

    runs = plot.paths(points, case.source, case.target)
    halo = np.maximum(thermal, angle)
    plot.halos(axes, runs, halo, thick * (1.8 + 2.5 * halo))
    colours = colormaps[BRANCHES](shades[0](np.nan_to_num(seen.loading)))
    colours[np.isnan(seen.loading)] = (0.72, 0.72, 0.72, 1.0)
    plot.lines(axes, runs, colours, thick, 2)

    generators = np.isin(np.arange(case.buses), case.at)
    loads = np.isin(np.arange(case.buses), case.loads) & ~generators
    sizes = dot * np.select([generators, loads], [1.15, 1.0], 0.4)
    fills = colormaps[VOLTAGES](shades[1](seen.level))
    fills = plot.dots(axes, points, {"s": generators, "o": ~generators}, sizes, fills, voltage)
    plot.rings(axes, points, dispatch, dot * (2.2 + 2.0 * dispatch), "s", 1.8)
    plot.rings(axes, points, balance, dot * (1.3 + 6.0 * balance))
    if case.buses <= NAMED:
        dark = (fills[:, :3] @ np.array([0.299, 0.587, 0.114])) < 0.55
        for i, number in enumerate(case.bus):
            if generators[i] or loads[i]:
                axes.annotate(
                    str(number), points[i], ha="center", va="center", fontsize=7, zorder=6,
                    color="white" if dark[i] else INK,
                )  # fmt: skip
    axes.autoscale_view()


def _keys() -> list[Any]:
    """The legend."""
    return [
        plot.mark("generator", "s", "#BBBBBB"),
        plot.mark("load", "o", "#BBBBBB"),
        plot.mark("neither", "o", "#BBBBBB", size=5),
        plot.stroke("no limit", "#B8B8B8", 2.5),
        plot.mark("power balance", "o", "none", RED, 12),
        plot.mark("voltage limit", "o", RED),
        plot.mark("generator limit", "s", "none", RED, 12),
        plot.stroke("branch limit", RED, 6),
    ]

"""Gas networks: junctions, arcs and compressors in SI units, checked; and what their files leave to be assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..proxies.source import NetworkError, check_connected, fingerprint

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BAR, PSI = 1e5, 6894.757293168361
"""Pa."""


@dataclass(frozen=True)
class Assumptions:
    """What a network's file leaves open, or says in a way that cannot be used: all of it, in one place.

    Args:
        slack_pressure: of the entry whose pressure is held, Pa; None: what the file calls its nominal pressure.
        least_pressure: junctions with a lower limit below this are given this one, Pa.
        density: by which flows of the file are multiplied to have kg/s.
        ratio: limits of R where the file has none.
        gamma: the isentropic coefficient, where the file has none.
        efficiency: μ of every compressor; it scales the objective and nothing else.
    """

    slack_pressure: float | None = None
    least_pressure: float = 0.0
    density: float = 1.0
    ratio: tuple[float, float] = (1.0, 5.0)
    gamma: float = 1.4
    efficiency: float = 1.0

    def raised(self, p_min: Floats, p_max: Floats, names: Sequence[str], where: str) -> Floats:
        """Lower pressure limits, none of them below the least pressure."""
        limits: Floats = np.maximum(p_min, self.least_pressure)
        above = np.flatnonzero((limits > p_min) & (limits > p_max))
        if len(above):
            i = above[0]
            raise NetworkError(
                f"{where}: junction {names[i]} has an upper pressure limit of {p_max[i] / BAR:g} bar, below the "
                f"{self.least_pressure / BAR:g} bar that are assumed to be its least pressure"
            )
        return limits

    def words(self, slack: str, pressure: float, raised: int, of: int) -> list[str]:
        """What was assumed, for people: the slack held at a pressure, and so many lower limits raised."""
        source = "as its file says" if self.slack_pressure is None else "which its file does not say"
        said = [
            f"junction {slack} is held at {pressure / BAR:g} bar, {source}",
            "the other entries follow the total demand, each with its share of the nominal supply",
        ]
        if self.density != 1.0:
            said.append(f"flows of the file were multiplied by {self.density:g}, GasLib's density, to have kg/s")
        if raised:
            said.append(f"{raised} of {of} lower pressure limits were raised to {self.least_pressure / BAR:g} bar")
        return [
            *said,
            "a compressor has no length, and its power no limit",
            f"efficiency μ = {self.efficiency:g}: it scales the objective and nothing else",
        ]


HELD = Assumptions(slack_pressure=50 * BAR)
"""For GasLib's XML files, which hold no pressure."""

GASLIB = replace(HELD, least_pressure=40 * BAR)
"""For gaslib-40 and gaslib-135: with their own limit of 1 bar hardly anything has to be compressed."""


@dataclass(frozen=True, eq=False)
class Network:
    """A gas network in SI units: Pa and kg/s; junctions, arcs and compressors by position.

    N junctions, E arcs, C compressors. An arc is a pipe, or a pipe with a compressor at its inlet; one without
    resistance is a short pipe, an open valve or a compressor station.
    """

    name: str
    junction: Sequence[str]
    """[N] what the file calls its junctions."""
    p_min: Floats
    """[N] Pa."""
    p_max: Floats
    slack: int
    """The junction whose pressure is held, and which supplies what the other entries do not."""
    slack_pressure: float
    """p^T, Pa."""
    demand: Floats
    """[N] nominal withdrawal, kg/s."""
    share: Floats
    """[N] how much of the total demand each entry supplies; together 1."""
    arc: Sequence[str]
    """[E] what the file calls its arcs."""
    source: Ints
    """[E] the position of each arc's first junction."""
    target: Ints
    resistance: Floats
    """[E] w = L λ a² / (D A²), Pa² s²/kg²."""
    flow_min: Floats
    """[E] kg/s; infinite where there is no limit."""
    flow_max: Floats
    compressor: Ints
    """[C] the positions of the arcs with a compressor."""
    ratio_min: Floats
    """[C]"""
    ratio_max: Floats
    gamma: float
    """γ, the isentropic coefficient."""
    efficiency: float
    """μ"""
    places: Floats | None = None
    """[N, 2] where to draw the junctions, if the file says so."""
    assumptions: Sequence[str] = ()
    """What had to be assumed, in words."""

    def __repr__(self) -> str:
        return f"Network({self.name}: {self.junctions} junctions, {self.arcs} arcs, {self.compressors} compressors)"

    def __post_init__(self) -> None:
        _check(self)

    @property
    def junctions(self) -> int:
        """N."""
        return len(self.junction)

    @property
    def arcs(self) -> int:
        """E."""
        return len(self.arc)

    @property
    def compressors(self) -> int:
        """C."""
        return len(self.compressor)

    @cached_property
    def loads(self) -> Ints:
        """Positions of the junctions with a demand."""
        return np.flatnonzero(self.demand != 0)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any number of the network, but not with its name."""
        return fingerprint(self, "name", "places", "assumptions")

    @property
    def base_flow(self) -> float:
        """kg/s: the nominal demand altogether."""
        return float(self.demand.sum())

    @property
    def base_pressure(self) -> float:
        """Pa: that of the slack."""
        return self.slack_pressure

    @cached_property
    def scaled_resistance(self) -> Floats:
        """[E] W = w·F²/p₀², so that Weymouth's law is Δ(p²) = W q|q| in units of base pressure p₀ and base flow F."""
        scaled: Floats = self.resistance * (self.base_flow / self.base_pressure) ** 2
        return scaled

    def position(self, name: str) -> int:
        """The position of the junction with this name."""
        if name not in self.junction:
            some = ", ".join(list(self.junction)[:3])
            raise NetworkError(f"{self.name} has no junction {name!r}; its junctions are {some}, …")
        return list(self.junction).index(name)


def resistance(length: Any, diameter: Any, friction: Any, sound_speed: Any) -> Any:
    """w = L λ a² / (D A²) of a pipe with A = πD²/4, Pa² s²/kg²; length and diameter in m, sound speed in m/s."""
    diameter, sound_speed = np.float64(diameter), np.float64(sound_speed)
    with np.errstate(all="ignore"):  # numbers that are out of range end as infinite ones, and a network refuses these
        area = np.pi * diameter**2 / 4
        return length * friction * sound_speed**2 / (diameter * area**2)


def _check(network: Network) -> None:
    """Refuse what no solver could make sense of."""
    n, where = network, network.name
    _check_shapes(n)
    for what, names in (("junction", n.junction), ("arc", n.arc)):
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise NetworkError(f"{where}: {what} {twice[0]!r} is there more than once")
    compressed = [n.arc[k] for k in n.compressor]
    for what, values, of, least in (
        ("lower pressure limit", n.p_min, n.junction, 0.0),
        ("upper pressure limit", n.p_max, n.junction, 0.0),
        ("demand", n.demand, n.junction, -np.inf),
        ("share of the supply", n.share, n.junction, 0.0),
        ("resistance", n.resistance, n.arc, 0.0),
        ("largest ratio", n.ratio_max, compressed, 0.0),
    ):
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= least)))
        if len(bad):
            right = "a number" if least < 0 else "a number ≥ 0"
            raise NetworkError(f"{where}: the {what} of {of[bad[0]]} is {values[bad[0]]:g}; it must be {right}")
    for what, low, high, of in (
        ("pressure", n.p_min, n.p_max, n.junction),
        ("flow", n.flow_min, n.flow_max, n.arc),
        ("ratio", n.ratio_min, n.ratio_max, compressed),
    ):
        crossed = np.flatnonzero(~((low <= high) & (low < np.inf) & (high > -np.inf)))
        if len(crossed):
            i = crossed[0]
            raise NetworkError(
                f"{where}: {of[i]} has a lower {what} limit of {low[i]:g} and an upper one of {high[i]:g}"
            )
    flat = np.flatnonzero(n.ratio_min <= 0)
    if len(flat):
        i = flat[0]
        raise NetworkError(f"{where}: the least ratio of {compressed[i]} is {n.ratio_min[i]:g}; it must be > 0")
    loops = np.flatnonzero(n.source == n.target)
    if len(loops):
        raise NetworkError(
            f"{where}: arc {n.arc[loops[0]]} begins and ends at junction {n.junction[n.source[loops[0]]]}"
        )
    low, high = n.p_min[n.slack], n.p_max[n.slack]
    if not low <= n.slack_pressure <= high or not n.slack_pressure > 0:
        raise NetworkError(
            f"{where}: the slack, junction {n.junction[n.slack]}, is held at {n.slack_pressure:g} Pa, outside of its "
            f"limits, {low:g} to {high:g}"
        )
    if not np.isclose(n.share.sum(), 1.0, rtol=0, atol=1e-9):
        raise NetworkError(f"{where}: the entries' shares of the supply add up to {n.share.sum():g}, not to 1")
    if not n.demand.sum() > 0:
        raise NetworkError(f"{where}: nothing is withdrawn anywhere, so that there is nothing to transport")
    if not 1 < n.gamma < np.inf or not 0 < n.efficiency < np.inf:
        raise NetworkError(f"{where}: γ must be > 1 and μ > 0, got {n.gamma:g} and {n.efficiency:g}")
    check_connected(where, n.junction, n.source, n.target, [n.slack], ("junctions", "slack junction"))
    _check_free_loops(n)


def _check_shapes(network: Network) -> None:
    """Refuse arrays that do not fit together, and positions of what there is not."""
    n = network
    if not n.arcs:
        raise NetworkError(f"{n.name} has no arcs, so that there is nothing to transport through")
    for what, count, of in (
        ("junctions", n.junctions, ("p_min", "p_max", "demand", "share")),
        ("arcs", n.arcs, ("source", "target", "resistance", "flow_min", "flow_max")),
        ("compressors", n.compressors, ("ratio_min", "ratio_max")),
    ):
        for name in of:
            shape = np.shape(getattr(n, name))
            if shape != (count,):
                raise NetworkError(f"{n.name}: {name} is of the shape {shape}, for {count} {what}")
    if n.places is not None and not (n.places.shape == (n.junctions, 2) and np.isfinite(n.places).all()):
        raise NetworkError(f"{n.name}: places must be two numbers for each of the {n.junctions} junctions, or None")
    for name, positions, count in (
        ("slack", [n.slack], n.junctions),
        ("source", n.source, n.junctions),
        ("target", n.target, n.junctions),
        ("compressor", n.compressor, n.arcs),
    ):
        for position in positions:
            if not 0 <= position < count:
                raise NetworkError(f"{n.name}: {name} has position {position}; there are 0 to {count - 1}")
    if (np.diff(n.compressor) <= 0).any():
        raise NetworkError(f"{n.name}: compressors must come in the order of their arcs, at most one in each")


def _check_free_loops(network: Network) -> None:
    """Refuse a loop of arcs without resistance: nothing would say how gas divides among them."""
    joined = list(range(network.junctions))

    def root(i: int) -> int:
        while joined[i] != i:
            i = joined[i]
        return i

    for k in np.flatnonzero(network.resistance == 0).tolist():
        first, last = root(int(network.source[k])), root(int(network.target[k]))
        if first == last:
            raise NetworkError(
                f"{network.name}: arc {network.arc[k]} closes a loop of arcs without resistance, in which flows are "
                "not unique; leave one of them out, or give it a length"
            )
        joined[first] = last

"""Gas networks: validated junctions, arcs and compressors in SI units, and assumptions about omitted values."""

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
"""One bar and one psi, in Pa."""


@dataclass(frozen=True)
class Assumptions:
    """Assumptions about values that a network file omits or gives in an unusable form.

    Args:
        slack_pressure: fixed pressure of the slack, Pa; None uses the nominal pressure in the file.
        least_pressure: lower pressure limits below this value are raised to it, Pa.
        density: factor that converts flows of the file to kg/s.
        ratio: limits of R if the file has none.
        gamma: isentropic coefficient if the file has none.
        efficiency: μ of every compressor; it only scales the objective.
    """

    slack_pressure: float | None = None
    least_pressure: float = 0.0
    density: float = 1.0
    ratio: tuple[float, float] = (1.0, 5.0)
    gamma: float = 1.4
    efficiency: float = 1.0

    def raised(self, p_min: Floats, p_max: Floats, names: Sequence[str], where: str) -> Floats:
        """Lower pressure limits, raised to at least `least_pressure`."""
        limits: Floats = np.maximum(p_min, self.least_pressure)
        above = np.flatnonzero((limits > p_min) & (limits > p_max))
        if len(above):
            i = above[0]
            raise NetworkError(
                f"{where}: junction {names[i]} has an upper pressure limit of {p_max[i] / BAR:g} bar, below the "
                f"assumed minimum pressure of {self.least_pressure / BAR:g} bar"
            )
        return limits

    def words(self, slack: str, pressure: float, raised: int, of: int) -> list[str]:
        """The assumptions as text; `raised` of `of` lower pressure limits were raised."""
        source = "as given in the file" if self.slack_pressure is None else "which is not given in the file"
        said = [
            f"junction {slack} is held at {pressure / BAR:g} bar, {source}",
            "the other entries supply fixed shares of the total demand, as in the nominal supply",
        ]
        if self.density != 1.0:
            said.append(f"flows in the file were multiplied by {self.density:g}, GasLib's density, to get kg/s")
        if raised:
            said.append(f"{raised} of {of} lower pressure limits were raised to {self.least_pressure / BAR:g} bar")
        return [
            *said,
            "compressors have no length and no power limit",
            f"compressor efficiency μ = {self.efficiency:g}; it only scales the objective",
        ]


HELD = Assumptions(slack_pressure=50 * BAR)
"""Assumptions for GasLib's XML files, which give no slack pressure."""

GASLIB = replace(HELD, least_pressure=40 * BAR)
"""Assumptions for gaslib-40 and gaslib-135, whose own limit of 1 bar requires almost no compression."""


@dataclass(frozen=True, eq=False)
class Network:
    """A gas network in SI units (Pa, kg/s); junctions, arcs and compressors are referred to by position.

    N junctions, E arcs, C compressors. An arc is a pipe, or a pipe with a compressor at its inlet. An arc without
    resistance is a short pipe, an open valve or a compressor station.
    """

    name: str
    junction: Sequence[str]
    """[N] names of the junctions, from the file."""
    p_min: Floats
    """[N] lower pressure limits, Pa."""
    p_max: Floats
    """[N] upper pressure limits, Pa."""
    slack: int
    """Position of the junction with fixed pressure, which supplies what the other entries do not."""
    slack_pressure: float
    """p^T, the pressure at the slack, Pa."""
    demand: Floats
    """[N] nominal withdrawals, kg/s."""
    share: Floats
    """[N] fraction of the total demand supplied by each entry; sums to 1."""
    arc: Sequence[str]
    """[E] names of the arcs, from the file."""
    source: Ints
    """[E] position of each arc's first junction."""
    target: Ints
    """[E] position of each arc's last junction."""
    resistance: Floats
    """[E] w = L λ a² / (D A²), Pa² s²/kg²."""
    flow_min: Floats
    """[E] lower flow limits, kg/s; −∞ if there is none."""
    flow_max: Floats
    """[E] upper flow limits, kg/s; ∞ if there is none."""
    compressor: Ints
    """[C] positions of the arcs with a compressor."""
    ratio_min: Floats
    """[C] minimum ratios."""
    ratio_max: Floats
    """[C] maximum ratios."""
    gamma: float
    """γ, the isentropic coefficient."""
    efficiency: float
    """μ, the compressor efficiency."""
    places: Floats | None = None
    """[N, 2] coordinates for drawing the junctions, if the file has them."""
    assumptions: Sequence[str] = ()
    """Assumptions made, as text."""

    def __repr__(self) -> str:
        return f"Network({self.name}: {self.junctions} junctions, {self.arcs} arcs, {self.compressors} compressors)"

    def __post_init__(self) -> None:
        _check(self)

    @property
    def junctions(self) -> int:
        """Number of junctions, N."""
        return len(self.junction)

    @property
    def arcs(self) -> int:
        """Number of arcs, E."""
        return len(self.arc)

    @property
    def compressors(self) -> int:
        """Number of compressors, C."""
        return len(self.compressor)

    @cached_property
    def loads(self) -> Ints:
        """Positions of the junctions with a demand."""
        return np.flatnonzero(self.demand != 0)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any value of the network, but not with its name."""
        return fingerprint(self, "name", "places", "assumptions")

    @property
    def base_flow(self) -> float:
        """Total nominal demand, kg/s."""
        return float(self.demand.sum())

    @property
    def base_pressure(self) -> float:
        """Pressure at the slack, Pa."""
        return self.slack_pressure

    @cached_property
    def scaled_resistance(self) -> Floats:
        """[E] W = w·F²/p₀², so that Weymouth's law is Δ(p²) = W q|q| in units of base pressure p₀ and base flow F."""
        scaled: Floats = self.resistance * (self.base_flow / self.base_pressure) ** 2
        return scaled

    def position(self, name: str) -> int:
        """Position of the junction with this name."""
        if name not in self.junction:
            some = ", ".join(list(self.junction)[:3])
            raise NetworkError(f"{self.name} has no junction {name!r}; its junctions are {some}, …")
        return list(self.junction).index(name)


def resistance(length: Any, diameter: Any, friction: Any, sound_speed: Any) -> Any:
    """w = L λ a² / (D A²) of a pipe with A = πD²/4, Pa² s²/kg²; length and diameter in m, sound speed in m/s."""
    diameter, sound_speed = np.float64(diameter), np.float64(sound_speed)
    with np.errstate(all="ignore"):  # overflow gives inf, which Network refuses
        area = np.pi * diameter**2 / 4
        return length * friction * sound_speed**2 / (diameter * area**2)


def _check(network: Network) -> None:
    """Refuse networks that are inconsistent or cannot be solved."""
    n, where = network, network.name
    _check_shapes(n)
    for what, names in (("junction", n.junction), ("arc", n.arc)):
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise NetworkError(f"{where}: {what} {twice[0]!r} appears more than once")
    compressed = [n.arc[k] for k in n.compressor]
    for what, values, of, least in (
        ("lower pressure limit", n.p_min, n.junction, 0.0),
        ("upper pressure limit", n.p_max, n.junction, 0.0),
        ("demand", n.demand, n.junction, -np.inf),
        ("share of the supply", n.share, n.junction, 0.0),
        ("resistance", n.resistance, n.arc, 0.0),
        ("maximum ratio", n.ratio_max, compressed, 0.0),
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
        raise NetworkError(f"{where}: the minimum ratio of {compressed[i]} is {n.ratio_min[i]:g}; it must be > 0")
    loops = np.flatnonzero(n.source == n.target)
    if len(loops):
        raise NetworkError(
            f"{where}: arc {n.arc[loops[0]]} begins and ends at junction {n.junction[n.source[loops[0]]]}"
        )
    low, high = n.p_min[n.slack], n.p_max[n.slack]
    if not low <= n.slack_pressure <= high or not n.slack_pressure > 0:
        raise NetworkError(
            f"{where}: the slack, junction {n.junction[n.slack]}, is held at {n.slack_pressure:g} Pa, outside its "
            f"limits of {low:g} to {high:g} Pa"
        )
    if not np.isclose(n.share.sum(), 1.0, rtol=0, atol=1e-9):
        raise NetworkError(
            f"{where}: the entries' shares of the supply add up to {n.share.sum():g}; they must add up to 1"
        )
    if not n.demand.sum() > 0:
        raise NetworkError(f"{where}: the total demand is {n.demand.sum():g}; it must be > 0")
    if not 1 < n.gamma < np.inf or not 0 < n.efficiency < np.inf:
        raise NetworkError(f"{where}: γ must be > 1 and μ > 0, got {n.gamma:g} and {n.efficiency:g}")
    check_connected(where, n.junction, n.source, n.target, [n.slack], ("junctions", "slack junction"))
    _check_free_loops(n)


def _check_shapes(network: Network) -> None:
    """Refuse arrays whose shapes do not match, and positions out of range."""
    n = network
    if not n.arcs:
        raise NetworkError(f"{n.name} has no arcs; it needs at least one")
    for what, count, of in (
        ("junctions", n.junctions, ("p_min", "p_max", "demand", "share")),
        ("arcs", n.arcs, ("source", "target", "resistance", "flow_min", "flow_max")),
        ("compressors", n.compressors, ("ratio_min", "ratio_max")),
    ):
        for name in of:
            shape = np.shape(getattr(n, name))
            if shape != (count,):
                raise NetworkError(f"{n.name}: {name} has shape {shape}, expected ({count},) for {count} {what}")
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
                raise NetworkError(f"{n.name}: {name} has position {position}; positions are 0 to {count - 1}")
    if (np.diff(n.compressor) <= 0).any():
        raise NetworkError(f"{n.name}: compressors must be in the order of their arcs, at most one per arc")


def _check_free_loops(network: Network) -> None:
    """Refuse a loop of arcs without resistance: the flows in it would not be unique."""
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
                "not unique; remove one of them or give it a length"
            )
        joined[first] = last

"""Gas networks: junctions, arcs and compressors in SI units, checked; those there are by name, and files of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import locate
from ..proxies.source import NetworkError, check_connected, fingerprint, read_text

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FORMAT = "ldf-gas-network-1"
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

    def to_json(self) -> str:
        """The network as a JSON document; see `parse`."""
        junctions = []
        for i, name in enumerate(self.junction):
            row: dict[str, Any] = {"id": name, "p_min": self.p_min[i], "p_max": self.p_max[i]}
            row |= {"demand": self.demand[i]} if self.demand[i] else {}
            row |= {"share": self.share[i]} if self.share[i] else {}
            row |= {"place": list(self.places[i])} if self.places is not None else {}
            junctions.append(row)
        ratios = dict(zip(self.compressor.tolist(), zip(self.ratio_min, self.ratio_max, strict=True), strict=True))
        arcs = []
        for k, name in enumerate(self.arc):
            row = {"id": name, "from": self.junction[self.source[k]], "to": self.junction[self.target[k]]}
            row |= {"resistance": self.resistance[k]}
            row |= {"flow_min": self.flow_min[k]} if np.isfinite(self.flow_min[k]) else {}
            row |= {"flow_max": self.flow_max[k]} if np.isfinite(self.flow_max[k]) else {}
            row |= {"compressor": list(ratios[k])} if k in ratios else {}
            arcs.append(row)
        document = {
            "format": FORMAT,
            "name": self.name,
            "gamma": self.gamma,
            "efficiency": self.efficiency,
            "slack": {"junction": self.junction[self.slack], "pressure": self.slack_pressure},
            "assumptions": list(self.assumptions),
        }
        head = json.dumps(document, indent=1)[:-2]
        lists = {"junctions": junctions, "arcs": arcs}
        # A line for each junction and arc: files that people read and compare.
        body = (
            f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]"
            for name, rows in lists.items()
        )
        return head + ",\n" + ",\n".join(body) + "\n}\n"


def resistance(length: Any, diameter: Any, friction: Any, sound_speed: Any) -> Any:
    """w = L λ a² / (D A²) of a pipe with A = πD²/4, Pa² s²/kg²; length and diameter in m, sound speed in m/s."""
    diameter, sound_speed = np.float64(diameter), np.float64(sound_speed)
    with np.errstate(all="ignore"):  # numbers that are out of range end as infinite ones, and a network refuses these
        area = np.pi * diameter**2 / 4
        return length * friction * sound_speed**2 / (diameter * area**2)


def load(network: str | Path) -> Network:
    """A network by name, or from a file: MATGAS (.m), GasLib (.net or .zip, with its .scn), or ldf's own (.json).

    >>> load("24-pipe")
    Network(24-pipe: 25 junctions, 24 arcs, 5 compressors)
    """
    if network in NETWORKS:
        return NETWORKS[str(network)]()
    path = Path(network)
    readers = {".m": _matgas, ".net": _gaslib, ".zip": _gaslib, ".json": _json}
    if path.suffix.lower() in readers:
        return readers[path.suffix.lower()](path)
    raise NetworkError(
        f"{str(network)!r} is neither a network ({', '.join(NETWORKS)}) nor a file (.m, .net, .zip or .json)"
    )


def parse(document: Mapping[str, Any], where: str = "the file") -> Network:
    """A network from JSON: junctions with limits (Pa) and demands (kg/s), arcs with `from` and `to`.

    An arc has its `resistance` (Pa² s²/kg²), or length, diameter (m) and friction, with the document's sound_speed
    (m/s); none of them is no resistance. `compressor`: [least, largest ratio]. Entries have their `share` of the
    supply; without any share the slack supplies everything. `place`: [x, y], used if every junction has one.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise NetworkError(f"{where} is not of the format {FORMAT}")
    whole = _Row(document, DOCUMENT, where)
    held = _Row(whole.given("slack"), "junction pressure", f"{where}: slack")
    junctions, arcs = whole.rows("junctions", JUNCTION), whole.rows("arcs", ARC)
    names = [str(row.given("id")) for row in junctions]
    slack = _position(names, str(held.given("junction")), held.where)
    share = np.array([row.number("share", 0.0) for row in junctions])
    if not share.any():
        share[slack] = 1.0
    compressors = [k for k, row in enumerate(arcs) if "compressor" in row]
    ratios = np.array([arcs[k].pair("compressor") for k in compressors]).reshape(-1, 2)
    placed = all("place" in row for row in junctions)
    assumptions = whole.given("assumptions", [])
    if not isinstance(assumptions, list | tuple):
        raise NetworkError(f"{where}: assumptions must be a list, got {assumptions!r}")
    return Network(
        name=str(whole.given("name")),
        junction=names,
        p_min=np.array([row.number("p_min") for row in junctions]),
        p_max=np.array([row.number("p_max") for row in junctions]),
        slack=slack,
        slack_pressure=held.number("pressure"),
        demand=np.array([row.number("demand", 0.0) for row in junctions]),
        share=share,
        arc=[str(row.given("id")) for row in arcs],
        source=np.array([_position(names, str(row.given("from")), row.where) for row in arcs], np.int64),
        target=np.array([_position(names, str(row.given("to")), row.where) for row in arcs], np.int64),
        resistance=np.array([_resistance(row, whole) for row in arcs]),
        flow_min=np.array([row.number("flow_min", -np.inf) for row in arcs]),
        flow_max=np.array([row.number("flow_max", np.inf) for row in arcs]),
        compressor=np.array(compressors, np.int64),
        ratio_min=ratios[:, 0],
        ratio_max=ratios[:, 1],
        gamma=whole.number("gamma", 1.4),
        efficiency=whole.number("efficiency", 1.0),
        places=np.array([row.pair("place") for row in junctions]) if placed else None,
        assumptions=[str(line) for line in assumptions],
    )


DOCUMENT = "format name gamma efficiency sound_speed slack assumptions junctions arcs"
JUNCTION = "id p_min p_max demand share place"
ARC = "id from to resistance length diameter friction flow_min flow_max compressor"
"""What a JSON document, its junctions and its arcs may say; anything else would be misspelt."""


class _Row:
    """An object of a JSON document: what it says, and what is wrong with it."""

    def __init__(self, values: Any, known: str, where: str) -> None:
        if not isinstance(values, Mapping):
            raise NetworkError(f"{where} must be an object, got {values!r}")
        unknown = [key for key in values if key not in known.split()]
        if unknown:
            raise NetworkError(f"{where} has {unknown[0]!r}, which is not known; known are {', '.join(known.split())}")
        self.values, self.where = values, where

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def given(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key, default)
        if value is None:
            raise NetworkError(f"{self.where} has no {key}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return _number(self.given(key, default), f"{self.where}: {key}")

    def pair(self, key: str) -> list[float]:
        value = self.given(key)
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise NetworkError(f"{self.where}: {key} must be two numbers, got {value!r}")
        return [_number(number, f"{self.where}: {key}") for number in value]

    def rows(self, key: str, known: str) -> list[_Row]:
        values = self.given(key)
        if not isinstance(values, list | tuple) or not values:
            raise NetworkError(f"{self.where}: {key} must be a list with something in it, got {values!r}")
        ids = [row.get("id") if isinstance(row, Mapping) else None for row in values]
        names = [f"number {i}" if name is None else name for i, name in enumerate(ids, 1)]
        return [_Row(row, known, f"{self.where}: {key[:-1]} {name}") for row, name in zip(values, names, strict=True)]


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NetworkError(f"{what} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise NetworkError(f"{what} is too large for a number") from None


def _resistance(row: _Row, document: _Row) -> float:
    pipe = [key for key in ("length", "diameter", "friction") if key in row]
    if not pipe:
        return row.number("resistance", 0.0)
    if "resistance" in row:
        raise NetworkError(f"{row.where} has a resistance and a {pipe[0]}; one of the two says it all")
    facts = {key: row.number(key) for key in ("length", "diameter", "friction")}
    for key, value in facts.items():
        if not 0 < value < np.inf:
            raise NetworkError(f"{row.where}: {key} must be a number > 0, got {value:g}")
    return float(resistance(**facts, sound_speed=document.number("sound_speed")))


def _json(path: Path) -> Network:
    text = read_text(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NetworkError(f"{path} is damaged or no JSON: {error}") from error
    return parse(document, str(path))


def _matgas(path: Path) -> Network:
    from .matgas import parse

    return parse(read_text(path), path.stem, str(path))


def _gaslib(path: Path) -> Network:
    from .gaslib import read

    return read(path)


def _position(names: Sequence[str], name: str, where: str) -> int:
    if name not in names:
        raise NetworkError(f"{where} names junction {name!r}, which there is not")
    return list(names).index(name)


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


PIPES = """
1-2:100C 2-3:30s 3-4:5sC 4-5:15s 5-6:10s 5-7:5s 7-8:10s 2-9:5C 9-10:60 10-11:5s 11-12:8s 11-13:6s 10-14:80 14-15:10C
15-16:20 16-17:3s 17-18:6s 16-19:5s 15-20:40 20-21:5C 21-22:20 22-23:5 23-24:16 22-25:8s
"""
"""The 24-pipe network, arcs as from-to:km; s: 0.635 m in diameter, others 0.9144 m; C: a compressor at the inlet.

Numbers of the 24-pipe benchmark (Zlotnik et al.; Mak et al., Dynamic Compressor Optimization in Natural Gas Pipeline
Systems), as GasModels.jl has them.
"""

DEMANDS = {6: 25.153, 8: 16.469, 12: 23.956, 13: 13.475, 18: 20.362, 19: 17.967, 24: 23.955, 25: 22.458}
"""kg/s by junction of the 24-pipe network."""


def _pipes24() -> Network:
    arcs = []
    for k, word in enumerate(PIPES.split(), 1):
        ends, _, rest = word.partition(":")
        first, last = ends.split("-")
        diameter = 0.635 if "s" in rest else 0.9144
        row = {"id": str(k), "from": first, "to": last, "length": 1000 * float(rest.rstrip("sC"))}
        row |= {"diameter": diameter, "friction": 0.01}
        arcs.append(row | ({"compressor": [1.0, 2.0]} if "C" in rest else {}))
    limits = {"p_min": 500 * PSI, "p_max": 800 * PSI}
    return parse(
        {
            "format": FORMAT,
            "name": "24-pipe",
            "sound_speed": 377.968,
            "gamma": 1.4,
            "slack": {"junction": "1", "pressure": 500 * PSI},
            "junctions": [{"id": str(i), **limits, "demand": DEMANDS.get(i, 0.0)} for i in range(1, 26)],
            "arcs": arcs,
            "assumptions": [
                "junction 1 is held at 500 psi, its lower limit, and supplies everything",
                "compressors raise the pressure by a factor of up to 2 (with 1.4 a quarter of the demands within ±20 % "
                "could not be met); behind a compressor, inside its pipe, there is no limit but R's",
                "efficiency μ = 1: it scales the objective and nothing else",
            ],
        },
        "24-pipe",
    )


def _matgas_of_gaslib(file: str, name: str) -> Network:
    from .matgas import parse

    assumed = replace(GASLIB, density=0.785)
    return parse(read_text(locate(f"gas/{file}")), name, file, assumed)


NETWORKS: dict[str, Callable[[], Network]] = {
    "24-pipe": _pipes24,
    "gaslib-40": lambda: _matgas_of_gaslib("gaslib-40-E.m", "gaslib-40"),
    "gaslib-135": lambda: _matgas_of_gaslib("gaslib-135-F.m", "gaslib-135"),
}
"""The networks there are by name."""

"""Gas networks as JSON documents, ldf's own human-readable format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..proxies.source import NetworkError, read_text
from .network import Network, resistance

FORMAT = "ldf-gas-network-1"


def to_json(network: Network) -> str:
    """The network as a JSON document; see `parse`."""
    junctions = []
    for i, name in enumerate(network.junction):
        row: dict[str, Any] = {"id": name, "p_min": network.p_min[i], "p_max": network.p_max[i]}
        row |= {"demand": network.demand[i]} if network.demand[i] else {}
        row |= {"share": network.share[i]} if network.share[i] else {}
        row |= {"place": list(network.places[i])} if network.places is not None else {}
        junctions.append(row)
    ratios = dict(zip(network.compressor.tolist(), zip(network.ratio_min, network.ratio_max, strict=True), strict=True))
    arcs = []
    for k, name in enumerate(network.arc):
        row = {"id": name, "from": network.junction[network.source[k]], "to": network.junction[network.target[k]]}
        row |= {"resistance": network.resistance[k]}
        row |= {"flow_min": network.flow_min[k]} if np.isfinite(network.flow_min[k]) else {}
        row |= {"flow_max": network.flow_max[k]} if np.isfinite(network.flow_max[k]) else {}
        row |= {"compressor": list(ratios[k])} if k in ratios else {}
        arcs.append(row)
    document = {
        "format": FORMAT,
        "name": network.name,
        "gamma": network.gamma,
        "efficiency": network.efficiency,
        "slack": {"junction": network.junction[network.slack], "pressure": network.slack_pressure},
        "assumptions": list(network.assumptions),
    }
    head = json.dumps(document, indent=1)[:-2]
    lists = {"junctions": junctions, "arcs": arcs}
    # One line per junction and arc, so that files are easy to read and compare.
    body = (
        f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]" for name, rows in lists.items()
    )
    return head + ",\n" + ",\n".join(body) + "\n}\n"


def parse(document: Mapping[str, Any], where: str = "the file") -> Network:
    """Parse a network from JSON: junctions with limits (Pa) and demands (kg/s), arcs with `from` and `to`.

    An arc has either a `resistance` (Pa² s²/kg²) or `length`, `diameter` (m) and `friction`, which need the document's
    `sound_speed` (m/s). An arc with none of them has no resistance. `compressor` is [minimum, maximum ratio]. Entries
    have a `share` of the supply; without any share the slack supplies everything. `place` is [x, y], used if every
    junction has one.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise NetworkError(f"{where} is not in the format {FORMAT}")
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
"""Keys of a JSON document, its junctions and its arcs; any other key is refused as a likely typo."""


class _Row:
    """An object of a JSON document with checked access to its values."""

    def __init__(self, values: Any, known: str, where: str) -> None:
        if not isinstance(values, Mapping):
            raise NetworkError(f"{where} must be an object, got {values!r}")
        unknown = [key for key in values if key not in known.split()]
        if unknown:
            raise NetworkError(f"{where}: unknown key {unknown[0]!r}; known keys are {', '.join(known.split())}")
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
            raise NetworkError(f"{self.where}: {key} must be a non-empty list, got {values!r}")
        ids = [row.get("id") if isinstance(row, Mapping) else None for row in values]
        names = [f"number {i}" if name is None else name for i, name in enumerate(ids, 1)]
        return [_Row(row, known, f"{self.where}: {key[:-1]} {name}") for row, name in zip(values, names, strict=True)]


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NetworkError(f"{what} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise NetworkError(f"{what} is too large for a float") from None


def _resistance(row: _Row, document: _Row) -> float:
    pipe = [key for key in ("length", "diameter", "friction") if key in row]
    if not pipe:
        return row.number("resistance", 0.0)
    if "resistance" in row:
        raise NetworkError(
            f"{row.where} has both resistance and {pipe[0]}; give either resistance or length, diameter and friction"
        )
    facts = {key: row.number(key) for key in ("length", "diameter", "friction")}
    for key, value in facts.items():
        if not 0 < value < np.inf:
            raise NetworkError(f"{row.where}: {key} must be a number > 0, got {value:g}")
    return float(resistance(**facts, sound_speed=document.number("sound_speed")))


def read(path: Path) -> Network:
    """Read a network from a JSON file."""
    text = read_text(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NetworkError(f"{path} is damaged or not JSON: {error}") from error
    return parse(document, str(path))


def _position(names: Sequence[str], name: str, where: str) -> int:
    if name not in names:
        raise NetworkError(f"{where} names junction {name!r}, which does not exist")
    return list(names).index(name)

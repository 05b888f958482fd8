"""Read GasLib's XML files: a network (.net) and its scenario (.scn), in the same folder or in one .zip."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ..proxies.source import NetworkError
from .network import BAR, HELD, Assumptions, Network, resistance

Element = ElementTree.Element

SUPPORTED = ("pipe", "shortPipe", "valve", "compressorStation")
"""Supported arc types; valves are open."""

Units = Mapping[str, float]

PRESSURE: Units = {"bar": BAR, "barg": BAR, "Pa": 1.0}
LENGTH: Units = {"m": 1.0, "meter": 1.0, "km": 1e3, "mm": 1e-3}
DENSITY: Units = {"kg_per_m_cube": 1.0}
MASS: Units = {"kg_per_kmol": 1e-3}
TEMPERATURE: Units = {"K": 1.0, "Celsius": 1.0}
"""GasLib's units in Pa, m, kg/m³, kg/mol and K; flows in 1000 m³/h (normal conditions) also need the density."""

ZERO = {"barg": 1.01325 * BAR, "Celsius": 273.15}
"""Offsets of units whose zero is not 0 Pa or 0 K."""

GAS_CONSTANT, COMPRESSIBILITY = 8.314, 0.8


def read(path: Path, assumed: Assumptions = HELD) -> Network:
    """Read a network from a .net file and the .scn file of the same name next to it, or from a .zip that holds both."""
    if not path.is_file():
        raise NetworkError(f"there is no file {path}")
    if path.suffix.lower() == ".zip":
        net, scenario = _unpacked(path)
    else:
        flows = path.with_suffix(".scn")
        if not flows.is_file():
            raise NetworkError(f"{path} needs a scenario file with the nominal flows, but there is no {flows}")
        net, scenario = path.read_bytes(), flows.read_bytes()
    return parse(net, scenario, path.stem, str(path), assumed)


def parse(net: bytes, scenario: bytes, name: str, where: str = "the file", assumed: Assumptions = HELD) -> Network:
    """Parse a network from the contents of a .net and a .scn file.

    The slack is the first entry with a nonzero flow. Friction follows Nikuradse for rough pipes:
    λ = (2 log₁₀(D/k) + 1.138)⁻².
    """
    root = _root(net, "network", where)
    nodes = _nodes(root, where)
    density, speed = _gas(nodes, where)
    flow_units = {"1000m_cube_per_hour": density / 3.6, "kg_per_s": 1.0}
    names = list(nodes)
    position = {node: i for i, node in enumerate(names)}
    p_min = np.array([_value(node, "pressureMin", PRESSURE, where) for node in nodes.values()])
    p_max = np.array([_value(node, "pressureMax", PRESSURE, where) for node in nodes.values()])
    arcs = list(_arcs(root, where))
    for arc in arcs:
        for end in ("from", "to"):
            if arc.get(end) not in position:
                raise NetworkError(f"{where}: {arc.get('id')} names node {arc.get(end)!r}, which does not exist")
    source = np.array([position[arc.attrib["from"]] for arc in arcs])
    target = np.array([position[arc.attrib["to"]] for arc in arcs])
    compressor = np.array([k for k, arc in enumerate(arcs) if _tag(arc) == "compressorStation"], np.int64)
    for k in compressor:
        first, last = source[k], target[k]
        p_min[first] = max(p_min[first], _value(arcs[k], "pressureInMin", PRESSURE, where, -np.inf))
        p_max[last] = min(p_max[last], _value(arcs[k], "pressureOutMax", PRESSURE, where, np.inf))
    raised = assumed.raised(p_min, p_max, names, where)

    demand, supply = np.zeros(len(names)), np.zeros(len(names))
    for node in _nominations(scenario, where):
        if node.get("id") not in position:
            raise NetworkError(f"{where}: the scenario names node {node.get('id')!r}, which the network does not have")
        of = supply if node.get("type") == "entry" else demand
        of[position[node.attrib["id"]]] += assumed.density * _value(node, "flow", flow_units, where)
    entries = np.flatnonzero(supply)
    if not len(entries):
        raise NetworkError(f"{where}: the scenario has no entry with a nonzero flow")
    slack = int(entries[0])
    pressure = assumed.slack_pressure
    if pressure is None:
        raise NetworkError(f"{where}: GasLib files give no slack pressure; set Assumptions.slack_pressure")
    flow_min = np.array([_value(arc, "flowMin", flow_units, where, -np.inf) for arc in arcs])
    flow_max = np.array([_value(arc, "flowMax", flow_units, where, np.inf) for arc in arcs])
    return Network(
        name=name,
        junction=names,
        p_min=raised,
        p_max=p_max,
        slack=slack,
        slack_pressure=pressure,
        demand=demand,
        share=supply / supply.sum(),
        arc=[arc.attrib["id"] for arc in arcs],
        source=source,
        target=target,
        resistance=np.array([_resistance(arc, speed, where) for arc in arcs]),
        flow_min=assumed.density * flow_min,
        flow_max=assumed.density * flow_max,
        compressor=compressor,
        ratio_min=np.full(len(compressor), assumed.ratio[0]),
        ratio_max=np.full(len(compressor), assumed.ratio[1]),
        gamma=assumed.gamma,
        efficiency=assumed.efficiency,
        places=_places(nodes),
        assumptions=[
            *assumed.words(names[slack], pressure, int((raised > p_min).sum()), len(p_min)),
            f"compressor ratios are between {assumed.ratio[0]:g} and {assumed.ratio[1]:g}; valves are open",
            f"friction by Nikuradse's formula, sound speed {speed:.4g} m/s (compressibility {COMPRESSIBILITY})",
        ],
    )


def _unpacked(path: Path) -> tuple[bytes, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            found = {name: archive.read(name) for name in archive.namelist() if name.endswith((".net", ".scn"))}
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise NetworkError(f"{path} is damaged or not a zip file: {error}") from error
    texts = {suffix: [text for name, text in found.items() if name.endswith(suffix)] for suffix in (".net", ".scn")}
    for suffix, those in texts.items():
        if len(those) != 1:
            raise NetworkError(f"{path} must contain exactly one {suffix} file, but contains {len(those)}")
    return texts[".net"][0], texts[".scn"][0]


def _root(text: bytes, tag: str, where: str) -> Element:
    # GasLib files never define entities; refusing them rules out unbounded expansion. UTF-16 contains zero bytes.
    bare = text.replace(b"\0", b"")
    if b"<!ENTITY" in bare or b"<!DOCTYPE" in bare:
        raise NetworkError(f"{where}: a GasLib file must not contain a document type or entities")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: unknown encoding
        raise NetworkError(f"{where} is damaged or not XML: {error}") from error
    if _tag(root) != tag:
        raise NetworkError(f"{where}: expected GasLib's <{tag}>, got <{_tag(root)}>")
    return root


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _value(element: Element, name: str, units: Units, where: str, default: float | None = None) -> float:
    """Value of a child element in SI units."""
    child = element.find(f"{{*}}{name}")
    if child is None:
        if default is not None:
            return default
        raise NetworkError(f"{where}: {element.get('id')} has no {name}")
    unit, text = child.get("unit", ""), child.get("value", "")
    if unit not in units:
        raise NetworkError(f"{where}: {name} of {element.get('id')} is in {unit!r}; known units are {', '.join(units)}")
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if np.isnan(value):
        raise NetworkError(f"{where}: {name} of {element.get('id')} is {text!r}, which is not a number")
    return value * units[unit] + ZERO.get(unit, 0.0)


def _above_zero(element: Element, name: str, units: Units, where: str) -> float:
    value = _value(element, name, units, where)
    if not 0 < value < np.inf:
        raise NetworkError(f"{where}: {name} of {element.get('id')} must be > 0, got {value:g} in SI units")
    return value


def _nodes(root: Element, where: str) -> dict[str, Element]:
    """Nodes by name."""
    group = root.find("{*}nodes")
    if group is None or not len(group):
        raise NetworkError(f"{where} has no nodes")
    nodes: dict[str, Element] = {}
    for node in group:
        if _tag(node) not in ("source", "sink", "innode"):
            raise NetworkError(f"{where}: a node must be a source, a sink or an innode, not a {_tag(node)}")
        if "id" not in node.attrib:
            raise NetworkError(f"{where}: a {_tag(node)} has no id")
        if node.attrib["id"] in nodes:
            raise NetworkError(f"{where}: node {node.get('id')!r} appears more than once")
        nodes[node.attrib["id"]] = node
    return nodes


def _gas(nodes: Mapping[str, Element], where: str) -> tuple[float, float]:
    """Density at normal conditions in kg/m³, and sound speed a = √(Z R T / M) in m/s."""
    kinds = {
        (
            _above_zero(node, "normDensity", DENSITY, where),
            _above_zero(node, "molarMass", MASS, where),
            _above_zero(node, "gasTemperature", TEMPERATURE, where),
        )
        for node in nodes.values()
        if _tag(node) == "source"
    }
    if not kinds:
        raise NetworkError(f"{where} has no source")
    if len(kinds) > 1:
        raise NetworkError(f"{where}: its sources supply {len(kinds)} kinds of gas; only one is supported")
    density, mass, temperature = kinds.pop()
    return density, float(np.sqrt(COMPRESSIBILITY * GAS_CONSTANT * temperature / mass))


def _arcs(root: Element, where: str) -> Iterator[Element]:
    group = root.find("{*}connections")
    if group is None or not len(group):
        raise NetworkError(f"{where} has no connections")
    for arc in group:
        if _tag(arc) not in SUPPORTED:
            raise NetworkError(
                f"{where}: {arc.get('id')} is a {_tag(arc)}, which is not supported; "
                f"supported are {', '.join(SUPPORTED)}"
            )
        if "id" not in arc.attrib:
            raise NetworkError(f"{where}: a {_tag(arc)} has no id")
        yield arc


def _resistance(arc: Element, speed: float, where: str) -> float:
    if _tag(arc) != "pipe":
        return 0.0
    length, diameter, roughness = (
        _above_zero(arc, name, LENGTH, where) for name in ("length", "diameter", "roughness")
    )
    friction = (2 * np.log10(diameter / roughness) + 1.138) ** -2
    return float(resistance(length, diameter, friction, speed))


def _nominations(scenario: bytes, where: str) -> Iterator[Element]:
    """Nodes of the first scenario, each with its nominal flow."""
    root = _root(scenario, "boundaryValue", f"{where}: the scenario")
    first = root.find("{*}scenario")
    if first is None:
        raise NetworkError(f"{where}: the scenario file has no scenario")
    for node in first.findall("{*}node"):
        if node.get("type") not in ("entry", "exit"):
            raise NetworkError(
                f"{where}: the scenario has {node.get('id')} of type {node.get('type')!r}; it must be entry or exit"
            )
        if [flow.get("bound") for flow in node.findall("{*}flow")] != ["both"]:
            raise NetworkError(
                f"{where}: the scenario does not fix the flow of {node.get('id')}; it needs one flow with bound 'both'"
            )
        yield node


def _places(nodes: Mapping[str, Element]) -> NDArray[np.float64] | None:
    """[N, 2] longitude and latitude, otherwise x and y; None unless all nodes have them."""
    for x, y in (("geoWGS84Long", "geoWGS84Lat"), ("x", "y")):
        try:
            places = np.array([[float(node.get(x, "nan")), float(node.get(y, "nan"))] for node in nodes.values()])
        except ValueError:
            continue
        if np.isfinite(places).all() and np.ptp(places, axis=0).any():
            return places
    return None

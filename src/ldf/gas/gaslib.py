"""Read GasLib's XML files: a network (.net) and a scenario (.scn) of it, side by side or in one .zip."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from ..proxies.source import NetworkError
from .network import BAR, GASLIB, Assumptions, Network, resistance

Element = ElementTree.Element

SUPPORTED = ("pipe", "shortPipe", "valve", "compressorStation")
"""Arcs that the model has; valves are open."""

SCALES = {
    "bar": BAR,
    "barg": BAR,
    "Pa": 1.0,
    "m": 1.0,
    "meter": 1.0,
    "km": 1e3,
    "mm": 1e-3,
    "kg_per_m_cube": 1.0,
    "kg_per_s": 1.0,
    "kg_per_kmol": 1e-3,
}
"""Units of GasLib in SI units; flows in 1000 m³/h are at normal conditions and need the density."""

ATMOSPHERE = 1.01325 * BAR
GAS_CONSTANT, COMPRESSIBILITY = 8.314, 0.8


def read(path: Path, assumed: Assumptions = GASLIB) -> Network:
    """A network from a .net file with a .scn file of the same name beside it, or from a .zip that holds one of each."""
    if not path.is_file():
        raise NetworkError(f"there is no file {path}")
    if path.suffix.lower() == ".zip":
        net, scenario = _unpacked(path)
    else:
        beside = path.with_suffix(".scn")
        if not beside.is_file():
            raise NetworkError(f"{path} needs its scenario, with the nominal flows, beside it: there is no {beside}")
        net, scenario = path.read_bytes(), beside.read_bytes()
    return parse(net, scenario, path.stem, str(path), assumed)


def parse(net: bytes, scenario: bytes, name: str, where: str = "the file", assumed: Assumptions = GASLIB) -> Network:
    """A network from the texts of a .net and a .scn file.

    The slack is the first entry. Friction is Nikuradse's for rough pipes, λ = (2 log₁₀(D/k) + 1.138)⁻².
    """
    root = _root(net, "network", where)
    nodes, density, speed = _nodes(root, where)
    names = list(nodes)
    position = {node: i for i, node in enumerate(names)}
    p_min = np.array([_value(node, "pressureMin", where) for node in nodes.values()])
    p_max = np.array([_value(node, "pressureMax", where) for node in nodes.values()])
    arcs = list(_arcs(root, where))
    for arc in arcs:
        for end in ("from", "to"):
            if arc.get(end) not in position:
                raise NetworkError(f"{where}: {arc.get('id')} names node {arc.get(end)!r}, which there is not")
    source = np.array([position[arc.attrib["from"]] for arc in arcs])
    target = np.array([position[arc.attrib["to"]] for arc in arcs])
    compressor = np.array([k for k, arc in enumerate(arcs) if _tag(arc) == "compressorStation"], np.int64)
    for k in compressor:
        if arcs[k].find("{*}pressureInMin") is not None:
            p_min[source[k]] = max(p_min[source[k]], _value(arcs[k], "pressureInMin", where))
        if arcs[k].find("{*}pressureOutMax") is not None:
            p_max[target[k]] = min(p_max[target[k]], _value(arcs[k], "pressureOutMax", where))
    raised = np.maximum(p_min, assumed.least_pressure)

    demand, supply = np.zeros(len(names)), np.zeros(len(names))
    for node, flow in _nominations(scenario, density, where):
        if node.get("id") not in position:
            raise NetworkError(f"{where}: its scenario names node {node.get('id')!r}, which the network does not have")
        of = supply if node.get("type") == "entry" else demand
        of[position[node.attrib["id"]]] += assumed.density * flow
    entries = np.flatnonzero(supply)
    if not len(entries):
        raise NetworkError(f"{where}: its scenario has no entry that supplies anything")
    slack = int(entries[0])
    pressure = assumed.slack_pressure
    if pressure is None:
        raise NetworkError(f"{where}: GasLib holds no pressure; the assumptions must name the slack's")
    limits = [(_flow(arc, "flowMin", density, where), _flow(arc, "flowMax", density, where)) for arc in arcs]
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
        flow_min=np.array([low for low, _ in limits]),
        flow_max=np.array([high for _, high in limits]),
        compressor=compressor,
        ratio_min=np.full(len(compressor), assumed.ratio[0]),
        ratio_max=np.full(len(compressor), assumed.ratio[1]),
        gamma=assumed.gamma,
        efficiency=assumed.efficiency,
        places=_places(nodes),
        assumptions=[
            *assumed.words(names[slack], pressure, int((raised > p_min).sum()), len(p_min)),
            f"compressors raise the pressure by {assumed.ratio[0]:g} to {assumed.ratio[1]:g} times; valves are open",
            f"friction by Nikuradse's formula, sound speed {speed:.4g} m/s (compressibility {COMPRESSIBILITY})",
        ],
    )


def _unpacked(path: Path) -> tuple[bytes, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            found = {}
            for suffix in (".net", ".scn"):
                names = [name for name in archive.namelist() if name.endswith(suffix)]
                if len(names) != 1:
                    raise NetworkError(f"{path} should hold one {suffix} file, and holds {len(names)}")
                found[suffix] = archive.read(names[0])
    except zipfile.BadZipFile as error:
        raise NetworkError(f"{path} is damaged or no zip file: {error}") from error
    return found[".net"], found[".scn"]


def _root(text: bytes, tag: str, where: str) -> Element:
    # A network never defines entities; refusing them leaves nothing that could expand without end.
    if b"<!ENTITY" in text or b"<!DOCTYPE" in text:
        raise NetworkError(f"{where}: a document type or entities have no place in a GasLib file")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise NetworkError(f"{where} is damaged or no XML: {error}") from error
    if _tag(root) != tag:
        raise NetworkError(f"{where}: expected GasLib's <{tag}>, got <{_tag(root)}>")
    return root


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _value(element: Element, name: str, where: str, default: float | None = None) -> float:
    """A child's value in SI units."""
    child = element.find(f"{{*}}{name}")
    if child is None:
        if default is not None:
            return default
        raise NetworkError(f"{where}: {element.get('id')} has no {name}")
    unit, text = child.get("unit", ""), child.get("value", "")
    if unit not in SCALES:
        raise NetworkError(f"{where}: {name} of {element.get('id')} is in {unit!r}; known are {', '.join(SCALES)}")
    try:
        value = float(text) * SCALES[unit]
    except ValueError:
        raise NetworkError(f"{where}: {name} of {element.get('id')} is {text!r}, which is no number") from None
    return value + ATMOSPHERE if unit == "barg" else value


def _flow(element: Element, name: str, density: float, where: str) -> float:
    """A child's flow in kg/s, infinite where there is none."""
    child = element.find(f"{{*}}{name}")
    if child is None:
        return -np.inf if name == "flowMin" else np.inf
    if child.get("unit") == "1000m_cube_per_hour":
        return float(child.get("value", "nan")) * density / 3.6
    return _value(element, name, where)


def _nodes(root: Element, where: str) -> tuple[dict[str, Element], float, float]:
    """Nodes by name, the density at normal conditions in kg/m³, and the sound speed a = √(Z R T / M) in m/s."""
    group = root.find("{*}nodes")
    if group is None or not len(group):
        raise NetworkError(f"{where} has no nodes")
    nodes: dict[str, Element] = {}
    for node in group:
        if _tag(node) not in ("source", "sink", "innode"):
            raise NetworkError(f"{where}: a node may be a source, a sink or an innode, not a {_tag(node)}")
        if node.attrib.get("id", "") in nodes or "id" not in node.attrib:
            raise NetworkError(f"{where}: node {node.get('id')!r} is there more than once, or has no name")
        nodes[node.attrib["id"]] = node
    sources = [node for node in group if _tag(node) == "source"]
    if not sources:
        raise NetworkError(f"{where} has no source")
    gases = {(_value(s, "normDensity", where), _value(s, "molarMass", where), _celsius(s, where)) for s in sources}
    if len(gases) > 1:
        raise NetworkError(f"{where}: its sources have gas of {len(gases)} kinds; one is supported")
    density, mass, temperature = gases.pop()
    return nodes, density, float(np.sqrt(COMPRESSIBILITY * GAS_CONSTANT * temperature / mass))


def _celsius(source: Element, where: str) -> float:
    """The gas's temperature in K."""
    child = source.find("{*}gasTemperature")
    if child is None or child.get("unit") not in ("Celsius", "K"):
        raise NetworkError(f"{where}: {source.get('id')} has no gasTemperature in Celsius or K")
    return float(child.get("value", "nan")) + (273.15 if child.get("unit") == "Celsius" else 0.0)


def _arcs(root: Element, where: str) -> Iterator[Element]:
    group = root.find("{*}connections")
    if group is None or not len(group):
        raise NetworkError(f"{where} has no connections")
    for arc in group:
        if _tag(arc) not in SUPPORTED:
            raise NetworkError(
                f"{where}: {arc.get('id')} is a {_tag(arc)}, which is not supported; {', '.join(SUPPORTED)} are"
            )
        if "id" not in arc.attrib:
            raise NetworkError(f"{where}: a {_tag(arc)} has no name")
        yield arc


def _resistance(arc: Element, speed: float, where: str) -> float:
    if _tag(arc) != "pipe":
        return 0.0
    length, diameter, roughness = (_value(arc, name, where) for name in ("length", "diameter", "roughness"))
    if not (length > 0 and diameter > 0 and roughness > 0):
        raise NetworkError(f"{where}: length, diameter and roughness of {arc.get('id')} must be > 0")
    friction = (2 * np.log10(diameter / roughness) + 1.138) ** -2
    return float(resistance(length, diameter, friction, speed))


def _nominations(scenario: bytes, density: float, where: str) -> Iterator[tuple[Element, float]]:
    """Nodes of the first scenario with their nominal flows, kg/s."""
    root = _root(scenario, "boundaryValue", f"{where}: its scenario")
    first = root.find("{*}scenario")
    if first is None:
        raise NetworkError(f"{where}: its scenario file has no scenario")
    for node in first.findall("{*}node"):
        flows = node.findall("{*}flow")
        if any(flow.get("bound") != "both" for flow in flows) or len(flows) != 1:
            raise NetworkError(f"{where}: its scenario leaves the flow of {node.get('id')} open; it must be given")
        yield node, _flow(node, "flow", density, where)


def _places(nodes: dict[str, Element]) -> np.ndarray | None:
    found = [
        (node.get("geoWGS84Long") or node.get("x"), node.get("geoWGS84Lat") or node.get("y")) for node in nodes.values()
    ]
    try:
        places = np.array([[float(x or "nan"), float(y or "nan")] for x, y in found])
    except ValueError:
        return None
    return places if np.isfinite(places).all() and np.ptp(places) > 0 else None

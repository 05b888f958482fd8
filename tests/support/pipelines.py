"""A gas network of three junctions as editable MATGAS, GasLib XML and JSON.

Junctions 1 and 2 supply 12 and 4 kg/s, a compressor connects 1 to 2, a pipe 2 to 3, where 16 kg/s are withdrawn.
"""

import copy
import json
import re
from dataclasses import replace
from typing import Any

from helpers import changed

from ldf.gas import gaslib as xml
from ldf.gas import matgas as matlab
from ldf.gas.document import parse
from ldf.gas.network import GASLIB, Assumptions, Network

MATGAS = """function mgc = three
mgc.specific_heat_capacity_ratio = 1.3;
mgc.units = 'si';
mgc.is_per_unit = 0;
mgc.sound_speed = 323.4610812928   % no semicolon
% id p_min p_max p_nominal junction_type status pipeline_name edi_id lat lon
mgc.junction = [
    1  101325  8101325  5500000  1  1  'North Sea'  1  50.5  6.0;
    2  101325  7101325  5500000  0  1  'North Sea'  2  51.0  7.0;  % a comment
    3  101325  8101325  5500000  0  1  'North Sea'  3  51.5  8.5;
];
% id from to diameter length friction p_min p_max status
mgc.pipe = [
    10  2  3  1.0  20000  0.00806093785  101325  8101325  1;
];
% id from to ratio_min ratio_max power_max flow_min flow_max inlet_min inlet_max outlet_min outlet_max status
mgc.compressor = [
    20  1  2  1.0  5.0  1e100  -100  200  101325  8101325  101325  8101325  1;
];
% id junction min max nominal dispatchable status
mgc.receipt = [
    1  1  0  50  12  1  1;
    2  2  0  50  4   0  1;
];
mgc.delivery = [
    1  3  0  50  16  0  1;
];
"""

NET = """<?xml version="1.0" encoding="UTF-8"?>
<network xmlns="http://gaslib.zib.de/Gas" xmlns:framework="http://gaslib.zib.de/Framework">
  <framework:nodes>
    <source id="in_1" geoWGS84Long="6.0" geoWGS84Lat="50.5" x="1" y="2">
      <pressureMin unit="bar" value="1.01325"/>
      <pressureMax unit="barg" value="80"/>
      <gasTemperature unit="Celsius" value="10"/>
      <normDensity unit="kg_per_m_cube" value="0.8"/>
      <molarMass unit="kg_per_kmol" value="18"/>
    </source>
    <source id="in_2" geoWGS84Long="7.0" geoWGS84Lat="51.0" x="3" y="4">
      <pressureMin unit="bar" value="1.01325"/>
      <pressureMax unit="bar" value="81.01325"/>
      <gasTemperature unit="Celsius" value="10"/>
      <normDensity unit="kg_per_m_cube" value="0.8"/>
      <molarMass unit="kg_per_kmol" value="18"/>
    </source>
    <sink id="out" geoWGS84Long="8.5" geoWGS84Lat="51.5" x="5" y="7">
      <pressureMin unit="bar" value="1.01325"/>
      <pressureMax unit="bar" value="81.01325"/>
    </sink>
  </framework:nodes>
  <framework:connections>
    <pipe id="long" from="in_2" to="out">
      <length unit="km" value="20"/>
      <diameter unit="mm" value="1000"/>
      <roughness unit="mm" value="0.01"/>
    </pipe>
    <compressorStation id="station" from="in_1" to="in_2">
      <flowMin unit="1000m_cube_per_hour" value="-450"/>
      <flowMax unit="1000m_cube_per_hour" value="900"/>
      <pressureInMin unit="bar" value="31"/>
      <pressureOutMax unit="bar" value="71.01325"/>
    </compressorStation>
  </framework:connections>
</network>
"""

SCN = """<?xml version="1.0" encoding="UTF-8"?>
<boundaryValue xmlns="http://gaslib.zib.de/Gas">
  <scenario id="nominal">
    <node type="entry" id="in_1">
      <pressure bound="lower" unit="barg" value="0"/>
      <flow bound="both" unit="1000m_cube_per_hour" value="54"/>
    </node>
    <node type="entry" id="in_2">
      <flow bound="both" unit="1000m_cube_per_hour" value="18"/>
    </node>
    <node type="exit" id="out">
      <flow bound="both" unit="1000m_cube_per_hour" value="72"/>
    </node>
  </scenario>
</boundaryValue>
"""

DOCUMENT: dict[str, Any] = {
    "format": "ldf-gas-network-1",
    "name": "three",
    "sound_speed": 323.4610812928,
    "gamma": 1.3,
    "slack": {"junction": "1", "pressure": 5e6},
    "junctions": [
        {"id": "1", "p_min": 4e6, "p_max": 8101325.0, "share": 0.75, "place": [6.0, 50.5]},
        {"id": "2", "p_min": 4e6, "p_max": 7101325.0, "share": 0.25, "place": [7.0, 51.0]},
        {"id": "3", "p_min": 4e6, "p_max": 8101325.0, "demand": 16.0, "place": [8.5, 51.5]},
    ],
    "arcs": [
        {"id": "10", "from": "2", "to": "3", "length": 20000, "diameter": 1, "friction": 0.00806093785},
        {"id": "20", "from": "1", "to": "2", "flow_min": -100.0, "flow_max": 200.0, "compressor": [1, 5]},
    ],
}


def matgas(text: str = MATGAS, assumed: Assumptions | None = GASLIB) -> Network:
    return matlab.parse(text, "three", "three.m", assumed)


def gaslib(net: str | bytes = NET, scn: str | bytes = SCN, assumed: Assumptions = GASLIB) -> Network:
    net, scn = (text.encode() if isinstance(text, str) else text for text in (net, scn))
    return xml.parse(net, scn, "three", "three.net", assumed)


def document(*path: Any, **values: Any) -> dict[str, Any]:
    """The JSON document with other values in the object at this path; None removes a key."""
    changed = copy.deepcopy(DOCUMENT)
    row: Any = changed
    for step in path:
        row = row[step]
    row.update(values)
    for key in [key for key, value in values.items() if value is None]:
        del row[key]
    return changed


def three(**changes: Any) -> Network:
    """The network with other fields."""
    return replace(parse(json.loads(json.dumps(DOCUMENT))), **changes)


def change(table: str, row: int, values: dict[int, object], text: str = MATGAS) -> str:
    """The MATGAS text with other values in some columns, counted from 0, of a table's row, counted from 1."""
    return changed(text, f"mgc.{table}", row, values)


def add(table: str, row: str, text: str = MATGAS) -> str:
    """The MATGAS text with one more row at the end of a table."""
    return re.sub(rf"(mgc\.{table} = \[\n.*?)(?=\];)", rf"\g<1>    {row};\n", text, count=1, flags=re.DOTALL)


def without(table: str, text: str = MATGAS) -> str:
    """The MATGAS text without a table."""
    return re.sub(rf"mgc\.{table} = \[.*?\];", "", text, flags=re.DOTALL)

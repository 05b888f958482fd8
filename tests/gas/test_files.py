"""Gas network files in MATGAS, XML and JSON: values read from them, and error messages for invalid input."""

import json
import math
import re
import zipfile
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import DOCUMENT, MATGAS, NET, SCN, add, change, document, gaslib, matgas, three, without

from ldf.gas.catalogue import load
from ldf.gas.document import parse, to_json
from ldf.gas.matgas import UNSUPPORTED
from ldf.gas.network import GASLIB, Assumptions, Network, resistance
from ldf.proxies.source import NetworkError

# ---------------------------------------------------------------- MATGAS


def test_matgas_ignores_components_out_of_service() -> None:
    text = add("junction", "9  101325  8101325  0  1  0  'gone'  9  0  0")
    text = add("pipe", "11  3  9  1  1  0.01  0  0  0", text)
    text = add("pipe", "12  3  77  -1  0  0.01  0  0  0", text)
    text = add("compressor", "21  2  3  0  0  0  0  0  0  0  0  0  0", text)
    text = add("receipt", "3  9  0  50  100  1  0", add("delivery", "2  9  0  50  100  0  0", text))
    assert matgas(text).fingerprint == matgas().fingerprint


@pytest.mark.parametrize("empty", ["", "mgc.compressor = [\n];", "mgc.compressor = [];", "mgc.compressor=[ ; ];"])
def test_matgas_needs_no_compressor(empty: str) -> None:
    text = add("pipe", "11  1  2  1  10  0.01  0  0  1", without("compressor") + empty)
    network = matgas(text)
    assert (network.arcs, network.compressors) == (2, 0)
    assert network.ratio_min.shape == network.ratio_max.shape == (0,)


@pytest.mark.parametrize("transfer", ["", "1 3 -5 5 0 1 1 9.9 'LDC A'", "1 3 -5 5 2 1 0", "1 77 -5 5 0 1 1"])
def test_matgas_may_have_transfers_without_nominal_flow(transfer: str) -> None:
    assert matgas(f"{MATGAS}\nmgc.transfer = [\n{transfer}\n];").fingerprint == matgas().fingerprint


def test_matgas_adds_up_what_is_withdrawn_and_injected_at_one_junction() -> None:
    network = matgas(
        add("delivery", "2 3 0 9 4 0 1", add("receipt", "3 2 0 9 8 0 1", add("delivery", "3 1 0 9 1 0 1")))
    )
    np.testing.assert_allclose(network.demand, [1, 0, 20])
    np.testing.assert_allclose(network.share, [0.5, 0.5, 0])


def test_matgas_without_nominal_injections_lets_the_slack_supply_everything() -> None:
    network = matgas(change("receipt", 1, {4: 0}, change("receipt", 2, {4: 0})))
    np.testing.assert_array_equal(network.share, [1, 0, 0])


def test_the_slack_of_matgas_is_the_junction_of_type_1() -> None:
    text = change("junction", 3, {4: 1}, change("junction", 1, {4: 0}))
    network = matgas(text)
    assert network.junction[network.slack] == "3", "regardless of dispatchable receipts"
    np.testing.assert_allclose(network.share, [0.75, 0.25, 0])


def test_without_type_1_the_slack_of_matgas_is_the_first_dispatchable_receipt() -> None:
    text = change("junction", 1, {4: 0})
    assert matgas(text).slack == 0
    assert matgas(change("receipt", 2, {5: 1}, text)).slack == 0
    text = change("receipt", 1, {5: 0}, text)
    with pytest.raises(NetworkError, match="no junction is of type 1 and no receipt is dispatchable"):
        matgas(text)
    assert matgas(change("receipt", 2, {5: 1}, text)).slack == 1


def test_matgas_computes_a_missing_sound_speed() -> None:
    facts = "mgc.compressibility_factor = 0.9;\nmgc.temperature = 280;\nmgc.gas_specific_gravity = 0.6;\n"
    ours = matgas(re.sub("mgc.sound_speed.*\n", facts, MATGAS))
    squared = 0.9 * 8.314 * 280 / (0.6 * 0.02896)
    np.testing.assert_allclose(ours.resistance[0], resistance(20e3, 1.0, 0.00806093785, math.sqrt(squared)))
    assert ours.assumptions[-1] == f"friction as in the file, sound speed {math.sqrt(squared):g} m/s"
    assert matgas(MATGAS + facts).fingerprint == matgas().fingerprint, "a given sound speed takes precedence"


def test_matgas_without_a_ratio_of_heat_capacities_has_the_assumed_one() -> None:
    text = MATGAS.replace("mgc.specific_heat_capacity_ratio = 1.3;", "")
    assert matgas(text).gamma == 1.4
    assert matgas(text, replace(GASLIB, gamma=1.2)).gamma == 1.2
    assert matgas().gamma == 1.3


def test_pipes_and_compressors_with_the_same_number_get_prefixes() -> None:
    assert list(matgas(change("compressor", 1, {0: 10})).arc) == ["p10", "c10"]


def test_quoted_text_is_ignored() -> None:
    texts = MATGAS.replace("'North Sea'", "'7 8; and, more'", 1).replace("'North Sea'", "''", 1)
    with_more = change("pipe", 1, {8: "1  1  'a long name'  1"}, texts)
    assert matgas(with_more).fingerprint == matgas().fingerprint
    np.testing.assert_array_equal(matgas(with_more).places, matgas().places)


def test_places_of_matgas_are_longitude_and_latitude() -> None:
    np.testing.assert_array_equal(matgas().places, [[6.0, 50.5], [7.0, 51.0], [8.5, 51.5]])
    assert matgas(MATGAS.replace("  8.5;", ";")).places is None, "one has no longitude"
    unknown = MATGAS.replace("51.0  7.0;", "0.0  0.0;")
    assert matgas(unknown).places is not None, "one may be at 0, 0"
    assert matgas(unknown.replace("51.5  8.5;", "0  0;")).places is None, "two are unknown"
    assert matgas(re.sub("'North Sea'.*;", ";", MATGAS)).places is None


def test_columns_may_be_missing_at_the_end_of_some_rows() -> None:
    text = change("compressor", 1, {12: "1  10.0  2  'station'"})
    assert matgas(add("compressor", "21  2  3  1  2  0  0  0  0  0  0  0  0", text)).fingerprint == matgas().fingerprint


@pytest.mark.parametrize("table", UNSUPPORTED)
@pytest.mark.parametrize("sign", [" = ", "=", "\t= "])
def test_matgas_names_unsupported_tables(table: str, sign: str) -> None:
    with pytest.raises(NetworkError, match=rf"three\.m: mgc\.{table} is not supported; only pipes and compressors are"):
        matgas(f"{MATGAS}\nmgc.{table}{sign}[\n1 2 3;\n];")
    assert matgas(f"{MATGAS}\nmgc.{table}{sign}[\n];").arcs == 2, "an empty table"


WRONG_MATGAS = {
    "US units": (
        MATGAS.replace("'si'", "'usc'"),
        "only SI units are supported; mgc.units is 'usc', mgc.is_per_unit is 0",
    ),
    "per unit": (MATGAS.replace("per_unit = 0", "per_unit = 1"), "mgc.units is 'si', mgc.is_per_unit is 1"),
    "per unit in words": (
        MATGAS.replace("per_unit = 0", "per_unit = yes"),
        "mgc.is_per_unit: expected a number, got 'yes'",
    ),
    "no junctions": (without("junction"), "no table mgc.junction; a MATGAS network needs it"),
    "no pipes": (without("pipe"), "no table mgc.pipe; a MATGAS network needs it"),
    "no receipts": (without("receipt"), "no table mgc.receipt; a MATGAS network needs it"),
    "no deliveries": (without("delivery"), "no table mgc.delivery; a MATGAS network needs it"),
    "an empty table": (without("pipe") + "mgc.pipe = [];", "mgc.pipe is empty"),
    "too few columns": (
        MATGAS.replace("12  1  1;", "12  1;"),
        "mgc.receipt row 1 has 6 columns, at least 7 are needed",
    ),
    "a word": (change("pipe", 1, {4: "long"}), "mgc.pipe row 1: expected a number, got 'long'"),
    "text for a number": (change("delivery", 1, {4: "'16'"}), "mgc.delivery row 1, column 5 is not a number"),
    "NaN": (change("junction", 2, {2: "NaN"}), "mgc.junction row 2, column 3 is not a number"),
    "half a junction": (
        change("junction", 2, {0: 2.5}),
        "mgc.junction row 2 has the id 2.5; it must be an integer",
    ),
    "an infinite id": (change("pipe", 1, {0: "Inf"}), "mgc.pipe row 1 has the id inf; it must be an integer"),
    "a pipe to half a junction": (
        change("pipe", 1, {2: 2.5}),
        "mgc.pipe names junction 2.5, which is not in mgc.junction",
    ),
    "a pipe from nowhere": (change("pipe", 1, {1: 7}), "mgc.pipe names junction 7, which is not in mgc.junction or"),
    "a compressor to nowhere": (change("compressor", 1, {2: 8}), "mgc.compressor names junction 8, which"),
    "a receipt nowhere": (change("receipt", 2, {1: 9}), "mgc.receipt names junction 9, which"),
    "a delivery nowhere": (change("delivery", 1, {1: "Inf"}), "mgc.delivery names junction inf, which"),
    "a junction out of service": (
        change("junction", 3, {5: 0}),
        "junction 3, which is not in mgc.junction or not in service",
    ),
    "no receipt in service": (
        change("receipt", 1, {6: 0}, change("receipt", 2, {6: 0})),
        "no receipt is in service, so there is no supply",
    ),
    "two slacks": (change("junction", 2, {4: 1}), "2 junctions are of type 1 (slack); only one is allowed"),
    "transfers": (
        MATGAS + "mgc.transfer = [1 3 0 5 2 0 1];",
        "mgc.transfer has nominal flows, which are not supported",
    ),
    "transfers in words": (
        MATGAS + "mgc.transfer = [1 3 0 5 'a' 0 1];",
        "mgc.transfer row 1, column 5 is not a number",
    ),
    "no diameter": (change("pipe", 1, {3: 0}), "the diameter of pipe 10 is 0; it must be > 0"),
    "no length": (change("pipe", 1, {4: 0}), "the length of pipe 10 is 0; it must be > 0"),
    "negative friction": (change("pipe", 1, {5: -0.1}), "the friction factor of pipe 10 is -0.1; it must be > 0"),
    "infinite friction": (change("pipe", 1, {5: "inf"}), "the friction factor of pipe 10 is inf; it must be > 0"),
    "a word for gamma": (
        MATGAS.replace("= 1.3;", "= air;"),
        "mgc.specific_heat_capacity_ratio: expected a number, got 'air'",
    ),
    "no sound speed": (
        re.sub("mgc.sound_speed.*", "mgc.compressibility_factor = 1; mgc.temperature = 280;", MATGAS),
        "there is no mgc.sound_speed, and no mgc.gas_specific_gravity to compute it from",
    ),
    "a sound speed of zero": (
        re.sub("(sound_speed =).*", r"\1 0", MATGAS),
        "mgc.sound_speed must be a number > 0, got 0",
    ),
    "gas without mass": (
        re.sub("mgc.sound_speed.*", "mgc.compressibility_factor = 1; mgc.gas_specific_gravity = 0;", MATGAS)
        + "mgc.temperature = 280;",
        "mgc.gas_specific_gravity must be a number > 0, got 0",
    ),
}


@pytest.mark.parametrize("what", WRONG_MATGAS)
def test_errors_in_matgas_are_named(what: str) -> None:
    text, message = WRONG_MATGAS[what]
    assert text != MATGAS
    with pytest.raises(NetworkError, match=re.escape(message)) as caught:
        matgas(text)
    assert str(caught.value).startswith("three.m: "), "the file is named"


def test_a_binary_matgas_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.m"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(NetworkError, match=r"binary\.m is not a text file"):
        load(path)


# ---------------------------------------------------------------- GasLib's XML


def station_as(tag: str) -> str:
    return NET.replace("compressorStation", tag)


@pytest.mark.parametrize("tag", ["shortPipe", "valve"])
def test_short_pipes_and_valves_are_arcs_without_resistance(tag: str) -> None:
    network = gaslib(station_as(tag))
    assert (network.arcs, network.compressors) == (2, 0)
    assert network.resistance[1] == 0
    assert list(network.arc) == ["long", "station"]
    np.testing.assert_allclose(network.p_max, 8101325, err_msg="only a compressor station has pressure limits")
    assert "valves are open" in network.assumptions[-2]


def test_compressor_stations_may_have_no_limits() -> None:
    net = re.sub(r" *<pressure(In|Out)M.*\n| *<flowM.*\n", "", NET)
    network = gaslib(net, assumed=Assumptions(slack_pressure=50e5))
    np.testing.assert_allclose(network.p_min, 101325)
    np.testing.assert_allclose(network.p_max, 8101325)
    assert not np.isfinite([network.flow_min, network.flow_max]).any()


def test_the_limits_of_a_compressor_station_only_tighten() -> None:
    net = NET.replace('value="31"', 'value="0.5"').replace("71.01325", "99")
    network = gaslib(net, assumed=Assumptions(slack_pressure=50e5))
    np.testing.assert_allclose(network.p_min, 101325)
    np.testing.assert_allclose(network.p_max, 8101325)


def test_the_slack_of_gaslib_is_the_first_entry_with_a_nonzero_flow() -> None:
    assert gaslib().slack == 0
    network = gaslib(scn=SCN.replace('value="54"', 'value="0"'))
    assert network.slack == 1
    np.testing.assert_array_equal(network.share, [0, 1, 0])


def test_nodes_that_the_scenario_does_not_name_have_no_flow() -> None:
    scn = re.sub(r'<node type="entry" id="in_2">.*?</node>', "", SCN, flags=re.DOTALL)
    np.testing.assert_array_equal(gaslib(scn=scn).share, [1, 0, 0])
    inner = re.sub(r"<source( id=\"in_2\".*?</)source>", r"<innode\1innode>", NET, flags=re.DOTALL)
    assert inner.count("innode") == 2
    assert gaslib(inner, scn).fingerprint == gaslib(scn=scn).fingerprint


def test_only_the_first_scenario_is_used() -> None:
    more = '<scenario id="other"><node type="exit" id="nowhere"/></scenario></boundaryValue>'
    assert gaslib(scn=SCN.replace("</boundaryValue>", more)).fingerprint == gaslib().fingerprint


def test_places_of_gaslib_are_longitude_and_latitude_otherwise_x_and_y() -> None:
    np.testing.assert_array_equal(gaslib().places, [[6.0, 50.5], [7.0, 51.0], [8.5, 51.5]])
    plane = [[1, 2], [3, 4], [5, 7]]
    np.testing.assert_array_equal(gaslib(NET.replace('geoWGS84Long="7.0" ', "")).places, plane, "never a mixture")
    np.testing.assert_array_equal(gaslib(NET.replace('Long="7.0"', 'Long="east"')).places, plane)
    assert gaslib(re.sub(r' (geoWGS84Long|x)="[^"]*"', "", NET)).places is None


def test_comments_and_namespaces_make_no_difference() -> None:
    bare = NET.replace("framework:", "").replace(' xmlns:framework="http://gaslib.zib.de/Framework"', "")
    bare = bare.replace(' xmlns="http://gaslib.zib.de/Gas"', "").replace("<source", "<!-- a node --><source")
    assert (
        gaslib(re.sub(r" xmlns\S*", "", bare).replace("<network", "<network "), SCN).fingerprint == gaslib().fingerprint
    )
    assert gaslib(NET.replace("UTF-8", "UTF-16").encode("utf-16")).fingerprint == gaslib().fingerprint


DOCTYPE = '<!DOCTYPE network [<!ENTITY a "aaaaaaaa">]>\n<network'


WRONG_NET = {
    "a control valve": (
        station_as("controlValve"),
        "station is a controlValve, which is not supported; supported are pipe, shortPipe, valve, compressorStation",
    ),
    "a resistor": (station_as("resistor"), "station is a resistor, which is not supported"),
    "no XML": ("mgc = 1", "three.net is damaged or not XML: "),
    "an unknown encoding": (NET.replace("UTF-8", "morse"), "three.net is damaged or not XML: unknown encoding: morse"),
    "half of it": (NET[:900], "three.net is damaged or not XML: "),
    "another root": (SCN, "expected GasLib's <network>, got <boundaryValue>"),
    "a document type": (NET.replace("<network", DOCTYPE), "a GasLib file must not contain a document type or entities"),
    "a document type in UTF-16": (
        NET.replace("<network", DOCTYPE).replace("UTF-8", "UTF-16").encode("utf-16"),
        "a GasLib file must not contain a document type or entities",
    ),
    "no nodes": (re.sub(r"<framework:nodes>.*</framework:nodes>", "", NET, flags=re.DOTALL), "three.net has no nodes"),
    "no connections": (
        re.sub(r"<framework:connections>.*</framework:connections>", "", NET, flags=re.DOTALL),
        "three.net has no connections",
    ),
    "empty connections": (
        re.sub(r"(<framework:connections>).*(</framework:connections>)", r"\1\2", NET, flags=re.DOTALL),
        "three.net has no connections",
    ),
    "no source": (NET.replace("source", "innode"), "three.net has no source"),
    "an odd node": (NET.replace("sink", "lake"), "a node must be a source, a sink or an innode, not a lake"),
    "a node twice": (NET.replace('id="out"', 'id="in_2"'), "node 'in_2' appears more than once"),
    "a node without id": (NET.replace('<sink id="out"', "<sink"), "a sink has no id"),
    "an arc without id": (NET.replace('<pipe id="long"', "<pipe"), "a pipe has no id"),
    "an arc to nowhere": (NET.replace('to="out"', 'to="away"'), "long names node 'away', which does not exist"),
    "an arc from nowhere": (NET.replace('from="in_1"', ""), "station names node None, which does not exist"),
    "an unknown unit": (
        NET.replace('unit="mm" value="1000"', 'unit="inch" value="36"'),
        "diameter of long is in 'inch'; known units are m, meter, km, mm",
    ),
    "a unit of something else": (
        NET.replace('unit="bar" value="81.01325"', 'unit="mm" value="81"'),
        "pressureMax of in_2 is in 'mm'; known units are bar, barg, Pa",
    ),
    "an unknown unit of flow": (
        NET.replace('unit="1000m_cube_per_hour" value="900"', 'unit="gallon" value="900"'),
        "flowMax of station is in 'gallon'; known units are 1000m_cube_per_hour, kg_per_s",
    ),
    "an unknown temperature": (NET.replace("Celsius", "Fahrenheit"), "gasTemperature of in_1 is in 'Fahrenheit'"),
    "a length in words": (
        NET.replace('"km" value="20"', '"km" value="far"'),
        "length of long is 'far', which is not a number",
    ),
    "no value": (NET.replace('"km" value="20"', '"km"'), "length of long is '', which is not a number"),
    "a limit of NaN": (
        NET.replace('value="31"', 'value="nan"'),
        "pressureInMin of station is 'nan', which is not a number",
    ),
    "a flow in words": (
        NET.replace('value="900"', 'value="much"'),
        "flowMax of station is 'much', which is not a number",
    ),
    "a warm word": (NET.replace('"Celsius" value="10"', '"K" value="warm"'), "gasTemperature of in_1 is 'warm'"),
    "no length": (re.sub(" *<length.*\n", "", NET), "long has no length"),
    "a length of zero": (
        NET.replace('"km" value="20"', '"km" value="0"'),
        "length of long must be > 0, got 0 in SI units",
    ),
    "no roughness": (NET.replace('value="0.01"', 'value="0"'), "roughness of long must be > 0, got 0"),
    "no diameter": (NET.replace('value="1000"', 'value="-1"'), "diameter of long must be > 0, got -0.001"),
    "no mass": (NET.replace('value="18"', 'value="0"'), "molarMass of in_1 must be > 0, got 0"),
    "colder than cold": (NET.replace('value="10"', 'value="-300"'), "gasTemperature of in_1 must be > 0, got -26.85"),
    "no limit": (re.sub(r" *<pressureMin.*\n", "", NET, count=1), "in_1 has no pressureMin"),
    "two gases": (
        NET.replace('value="0.8"', 'value="0.9"', 1),
        "its sources supply 2 kinds of gas; only one is supported",
    ),
}

WRONG_SCN = {
    "no XML": ("flow = 1", "the scenario is damaged or not XML: "),
    "another root": (NET, "the scenario: expected GasLib's <boundaryValue>, got <network>"),
    "a document type": (
        SCN.replace("<boundaryValue", "<!DOCTYPE b>\n<boundaryValue"),
        "the scenario: a GasLib file must not",
    ),
    "no scenario": (SCN.replace("scenario", "story"), "the scenario file has no scenario"),
    "a lower bound": (
        SCN.replace('"both"', '"lower"', 1),
        "the scenario does not fix the flow of in_1; it needs one flow with bound 'both'",
    ),
    "no bound": (SCN.replace(' bound="both"', "", 2), "the scenario does not fix the flow of in_1"),
    "no flow": (re.sub(" *<flow.*72.*\n", "", SCN), "the scenario does not fix the flow of out"),
    "two flows": (re.sub("( *<flow.*72.*\n)", r"\1\1", SCN), "the scenario does not fix the flow of out"),
    "a missing node": (
        SCN.replace('"out"', '"away"'),
        "the scenario names node 'away', which the network does not",
    ),
    "neither entry nor exit": (
        SCN.replace('"exit"', '"both"'),
        "the scenario has out of type 'both'; it must be entry or exit",
    ),
    "no entry": (SCN.replace('"entry"', '"exit"'), "the scenario has no entry with a nonzero flow"),
    "a flow in words": (SCN.replace('value="72"', 'value="much"'), "flow of out is 'much', which is not a number"),
    "an unknown unit": (
        SCN.replace('unit="1000m_cube_per_hour" value="72"', 'unit="m_cube" value="72"'),
        "flow of out is in 'm_cube'; known units are 1000m_cube_per_hour, kg_per_s",
    ),
}


@pytest.mark.parametrize("what", WRONG_NET)
def test_errors_in_a_gaslib_network_are_named(what: str) -> None:
    net, message = WRONG_NET[what]
    assert net != NET
    with pytest.raises(NetworkError, match=re.escape(message)) as caught:
        gaslib(net)
    assert str(caught.value).startswith("three.net"), "the file is named"


@pytest.mark.parametrize("what", WRONG_SCN)
def test_errors_in_a_gaslib_scenario_are_named(what: str) -> None:
    scn, message = WRONG_SCN[what]
    assert scn != SCN
    with pytest.raises(NetworkError, match=re.escape(message)) as caught:
        gaslib(scn=scn)
    assert str(caught.value).startswith("three.net: "), "the file is named"


def test_a_missing_scenario_is_named(tmp_path: Path) -> None:
    path = tmp_path / "alone.net"
    path.write_text(NET)
    with pytest.raises(NetworkError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path} needs a scenario file with the nominal flows, but there is no {tmp_path / 'alone.scn'}"
    )


def packed(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name.replace("_", "."), text)
    return path


def test_a_zip_file_holds_one_network_and_one_scenario(tmp_path: Path) -> None:
    assert load(packed(tmp_path / "a.zip", x_net=NET, x_scn=SCN)).junctions == 3
    for members, message in (
        ({"x_net": NET}, r"must contain exactly one \.scn file, but contains 0"),
        ({"x_scn": SCN}, r"must contain exactly one \.net file, but contains 0"),
        ({"x_net": NET, "y_net": NET, "x_scn": SCN}, r"must contain exactly one \.net file, but contains 2"),
    ):
        with pytest.raises(NetworkError, match=rf"b\.zip {message}"):
            load(packed(tmp_path / "b.zip", **members))


def test_a_damaged_zip_file_is_refused(tmp_path: Path) -> None:
    whole = packed(tmp_path / "whole.zip", x_net=NET, x_scn=SCN).read_bytes()
    start = whole.index(b"x.net") + 5
    damaged = {
        "none": b"PK and nothing else",
        "cut": whole[: len(whole) // 2],
        "the end": whole[:-40] + b"\xff" * 40,
        "the content": whole[:start] + b"\xff" * 40 + whole[start + 40 :],
        "the checksum": whole.replace(whole[14:18], b"\0\0\0\0"),
    }
    for what, content in damaged.items():
        path = tmp_path / f"{what}.zip"
        path.write_bytes(content)
        with pytest.raises(NetworkError, match=rf"{what}\.zip is damaged or not a zip file: "):
            load(path)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_corrupted_zip_file_is_read_unchanged_or_refused(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("zip")
    content = bytearray(packed(folder / "x.zip", x_net=NET, x_scn=SCN).read_bytes())
    whole = load(folder / "x.zip").fingerprint
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    (folder / "x.zip").write_bytes(content)
    try:
        outcome = load(folder / "x.zip").fingerprint
    except NetworkError as error:
        outcome = str(error)
    assert outcome == whole or str(folder / "x.zip") in outcome


# ---------------------------------------------------------------- JSON

NAMES = st.text(min_size=1, max_size=4)
ABOVE = st.floats(1e-3, 1e12)


@st.composite
def networks(draw) -> Network:
    """Any network of two to six junctions: a tree, and up to three more arcs."""
    count = draw(st.integers(2, 6))

    def some(of, size: int = count) -> np.ndarray:
        return np.array(draw(st.lists(of, min_size=size, max_size=size)), np.float64)

    def names(size: int) -> list[str]:
        return draw(st.lists(NAMES, min_size=size, max_size=size, unique=True))

    tree = [(draw(st.integers(0, i - 1)), i) for i in range(1, count)]
    more = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(1, count - 1)), max_size=3))
    arcs = tree + [(i, (i + step) % count) for i, step in more]
    ends = np.array([draw(st.permutations(arc)) for arc in arcs])
    free = [draw(st.booleans()) if k < len(tree) else False for k in range(len(arcs))]
    compressor = np.flatnonzero(some(st.booleans(), len(arcs)))
    p_min, slack = some(st.floats(0, 1e7)), draw(st.integers(0, count - 1))
    p_max = p_min + some(ABOVE)
    share = some(st.just(0.0) | st.floats(1e-3, 1))
    low, ratio = some(ABOVE | st.just(np.inf), len(arcs)), some(st.floats(1e-3, 2), len(compressor))
    return Network(
        name=draw(NAMES),
        junction=names(count),
        p_min=p_min,
        p_max=p_max,
        slack=slack,
        slack_pressure=float(p_max[slack]),
        demand=some(st.just(0.0) | ABOVE) + np.eye(count)[0],
        share=share / share.sum() if share.any() else np.eye(count)[slack],
        arc=names(len(arcs)),
        source=ends[:, 0],
        target=ends[:, 1],
        resistance=np.where(free, 0.0, some(ABOVE, len(arcs))),
        flow_min=-low,
        flow_max=some(st.floats(-1e-3, 1e9) | st.just(np.inf), len(arcs)),
        compressor=compressor,
        ratio_min=ratio,
        ratio_max=ratio + some(ABOVE | st.just(0.0), len(compressor)),
        gamma=draw(st.floats(1.001, 9)),
        efficiency=draw(st.floats(1e-6, 9)),
        places=some(st.floats(-1e9, 1e9), 2 * count).reshape(count, 2) if draw(st.booleans()) else None,
        assumptions=draw(st.lists(st.text(), max_size=2)),
    )


@settings(max_examples=150, deadline=None)
@given(networks())
def test_a_network_survives_json_bit_for_bit(network: Network) -> None:
    again = parse(json.loads(to_json(network), parse_constant=pytest.fail))
    for field in fields(Network):
        ours, theirs = getattr(network, field.name), getattr(again, field.name)
        if isinstance(ours, np.ndarray):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), field.name
            assert ours.tobytes() == theirs.tobytes(), field.name
        else:
            assert ours == theirs, field.name
    assert again.fingerprint == network.fingerprint
    assert to_json(again) == to_json(network)


def test_json_has_a_line_for_each_junction_and_arc() -> None:
    lines = to_json(three()).splitlines()
    assert sum('"p_min"' in line for line in lines) == 3
    assert '  {"id": "3", "p_min": 4000000.0, "p_max": 8101325.0, "demand": 16.0, "place": [8.5, 51.5]}' in lines
    assert sum('"from"' in line for line in lines) == 2


def test_a_pipe_may_be_given_by_length_diameter_and_friction() -> None:
    expected = resistance(20e3, 1.0, 0.00806093785, 323.4610812928)
    assert parse(DOCUMENT).resistance.tolist() == [expected, 0]
    given = document("arcs", 0, length=None, diameter=None, friction=None, resistance=expected)
    assert parse({**given, "sound_speed": 1.0}).fingerprint == parse(DOCUMENT).fingerprint


def test_json_has_defaults_for_omitted_values() -> None:
    bare = document(gamma=None, sound_speed=None)
    bare["junctions"] = [{key: row[key] for key in ("id", "p_min", "p_max")} for row in bare["junctions"]]
    bare["junctions"][0]["demand"] = 1
    bare["arcs"] = [{"id": k, "from": 1, "to": k} for k in (2, 3)]
    network = parse(bare)
    np.testing.assert_array_equal(network.share, [1, 0, 0])
    np.testing.assert_array_equal(network.resistance, 0)
    assert not np.isfinite([network.flow_min, network.flow_max]).any()
    assert (network.gamma, network.efficiency, network.compressors) == (1.4, 1.0, 0)
    assert network.places is None
    assert list(network.arc) == ["2", "3"], "numbers may be names"


@pytest.mark.parametrize("values", [{"diameter": 1e-200}, {"length": 1e300, "diameter": 1e-4}])
def test_a_resistance_out_of_range_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(NetworkError, match="three: the resistance of 10 is inf; it must be a number ≥ 0"):
        parse(document("arcs", 0, **values))


def test_places_are_used_if_every_junction_has_one() -> None:
    assert parse(document("junctions", 1, place=None)).places is None


WRONG_JSON = {
    "a list": ([], " is not in the format ldf-gas-network-1"),
    "another format": (document(format="ldf-gas-network-9"), " is not in the format ldf-gas-network-1"),
    "no format": (document(format=None), " is not in the format ldf-gas-network-1"),
    "no name": (document(name=None), " has no name"),
    "no slack": (document(slack=None), " has no slack"),
    "a slack in words": (document(slack="1"), ": slack must be an object, got '1'"),
    "no pressure": (document("slack", pressure=None), ": slack has no pressure"),
    "a missing slack": (document("slack", junction="9"), ": slack names junction '9', which does not exist"),
    "no junctions": (document(junctions=None), " has no junctions"),
    "empty junctions": (document(junctions=[]), ": junctions must be a non-empty list, got []"),
    "no arcs": (document(arcs=[]), ": arcs must be a non-empty list, got []"),
    "arcs by name": (document(arcs={"a": 1}), ": arcs must be a non-empty list, got {'a': 1}"),
    "a number for a junction": (document(junctions=[1]), ": junction number 1 must be an object, got 1"),
    "a junction without id": (document("junctions", 1, id=None), ": junction number 2 has no id"),
    "no lower limit": (document("junctions", 1, p_min=None), ": junction 2 has no p_min"),
    "a limit in words": (document("junctions", 1, p_max="80"), ": junction 2: p_max must be a number, got '80'"),
    "a demand of true": (document("junctions", 2, demand=True), ": junction 3: demand must be a number, got True"),
    "a demand too large": (document("junctions", 2, demand=10**400), ": junction 3: demand is too large for a float"),
    "something misspelt": (
        document("junctions", 2, demnad=4),
        ": junction 3: unknown key 'demnad'; known keys are id, p_min, p_max, demand, share, place",
    ),
    "a misspelt arc": (document("arcs", 0, lenght=4), ": arc 10: unknown key 'lenght'"),
    "a misspelt document": (document(Gamma=1.4), ": unknown key 'Gamma'"),
    "a place of one number": (document("junctions", 0, place=[1]), ": junction 1: place must be two numbers, got [1]"),
    "an arc from nowhere": (document("arcs", 0, **{"from": "9"}), ": arc 10 names junction '9', which does not exist"),
    "an arc to nowhere": (document("arcs", 1, to=9), ": arc 20 names junction '9', which does not exist"),
    "no end": (document("arcs", 1, to=None), ": arc 20 has no to"),
    "three ratios": (
        document("arcs", 1, compressor=[1, 2, 3]),
        ": arc 20: compressor must be two numbers, got [1, 2, 3]",
    ),
    "a ratio in words": (document("arcs", 1, compressor=[1, "5"]), ": arc 20: compressor must be a number, got '5'"),
    "one ratio": (document("arcs", 1, compressor=5), ": arc 20: compressor must be two numbers, got 5"),
    "a diameter without length": (document("arcs", 0, length=None), ": arc 10 has no length"),
    "a length without friction": (document("arcs", 0, friction=None), ": arc 10 has no friction"),
    "a diameter of zero": (document("arcs", 0, diameter=0), ": arc 10: diameter must be a number > 0, got 0"),
    "a length of zero": (document("arcs", 0, length=0), ": arc 10: length must be a number > 0, got 0"),
    "two resistances": (document("arcs", 0, resistance=1), ": arc 10 has both resistance and length; give either"),
    "no sound speed": (document(sound_speed=None), " has no sound_speed"),
    "one assumption": (document(assumptions="none"), ": assumptions must be a list, got 'none'"),
}


@pytest.mark.parametrize("what", WRONG_JSON)
def test_errors_in_json_are_named(what: str, tmp_path: Path) -> None:
    wrong, message = WRONG_JSON[what]
    path = tmp_path / "three.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(NetworkError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}{message}")
    with pytest.raises(NetworkError, match=f"^the file{re.escape(message)}"):
        parse(wrong)


@pytest.mark.parametrize("text", ["", '{"format": ', "no", "1" * 5000, "[" * 100_000])
def test_a_damaged_json_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "three.json"
    path.write_text(text)
    with pytest.raises(NetworkError, match=r"three\.json is damaged or not JSON: "):
        load(path)

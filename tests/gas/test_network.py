"""Gas networks: built-in ones, one network in three formats, and inconsistent ones."""

import functools
import json
import math
import os
import re
import zipfile
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from pipelines import DOCUMENT, MATGAS, NET, SCN, document, gaslib, matgas, three

from ldf.gas.catalogue import NETWORKS, load
from ldf.gas.document import parse, to_json
from ldf.gas.gaslib import read as read_gaslib
from ldf.gas.network import BAR, GASLIB, PSI, Assumptions, Network, resistance
from ldf.io.data import DataError, locate
from ldf.proxies.source import NetworkError

# a² = Z R T / M of the network of three junctions, (m/s)²; λ by Nikuradse for D/k = 100,000.
SPEED_SQUARED = 0.8 * 8.314 * 283.15 / 0.018
FRICTION = 1 / (2 * 5 + 1.138) ** 2


@functools.cache
def located(name: str) -> Path | str:
    """The file, or why it is not available; cached, since waiting for an unreachable host takes long."""
    try:
        return locate(f"gas/{name}")
    except DataError as error:
        return str(error)


def data(name: str) -> Path:
    found = located(name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def extra(name: str) -> str:
    """The text of a file that may be in LDF_DATA_DIR, but is not among the files that ldf downloads."""
    path = Path(os.environ.get("LDF_DATA_DIR", ".")) / "gas" / name
    if "LDF_DATA_DIR" not in os.environ or not path.is_file():
        pytest.skip(f"gas/{name} is not in LDF_DATA_DIR")
    return path.read_text()


def rows(text: str, table: str) -> list[list[float]]:
    """The leading numbers of each row of a MATGAS table, from an independent parser."""
    body = text.split(f"mgc.{table} = [")[1].split("]")[0]
    plain = [re.split(r"'|%", line)[0].replace(";", " ").split() for line in body.splitlines()]
    return [[float(cell) for cell in line] for line in plain if line]


def assert_same(one: Network, other: Network, **tolerance: float) -> None:
    """Numbers and order are the same; names may differ."""
    for field in fields(Network):
        if field.name not in ("name", "junction", "arc", "assumptions"):
            np.testing.assert_allclose(
                getattr(one, field.name), getattr(other, field.name), err_msg=field.name, **tolerance
            )


# ---------------------------------------------------------------- 24-pipe

INCHES = {
    36: {(1, 2): 100, (2, 9): 5, (9, 10): 60, (10, 14): 80, (14, 15): 10, (15, 16): 20, (15, 20): 40}
    | {(20, 21): 5, (21, 22): 20, (22, 23): 5, (23, 24): 16},
    25: {(2, 3): 30, (3, 4): 5, (4, 5): 15, (5, 6): 10, (5, 7): 5, (7, 8): 10, (10, 11): 5, (11, 12): 8, (11, 13): 6}
    | {(16, 17): 3, (17, 18): 6, (16, 19): 5, (22, 25): 8},
}
"""Diameter in inches: first and last junction: length in km."""

COMPRESSED = {(1, 2), (3, 4), (2, 9), (14, 15), (20, 21)}

CUSTOMERS = {
    "LDC": {6: 17.9666, 8: 16.4694, 24: 14.9722, 25: 13.4749, 12: 16.4695, 13: 13.4750, 18: 14.9722, 19: 17.9667},
    "LDC, the second": {12: 7.4861},
    "PP": {25: 5.9887, 6: 7.1864, 18: 5.3898, 24: 6.5875},
    "PP, the second": {24: 2.3954, 25: 2.9943},
}
"""kg/s by junction: distribution companies and power plants."""


def ends(network: Network) -> list[tuple[int, int]]:
    return [
        (int(network.junction[i]), int(network.junction[j]))
        for i, j in zip(network.source, network.target, strict=True)
    ]


def test_24_pipe_has_its_known_sizes() -> None:
    network = load("24-pipe")
    assert (network.junctions, network.arcs, network.compressors, len(network.loads)) == (25, 24, 5, 8)
    assert repr(network) == "Network(24-pipe: 25 junctions, 24 arcs, 5 compressors)"
    assert list(network.junction) == [str(i) for i in range(1, 26)]


def test_24_pipe_has_the_pipes_of_the_benchmark() -> None:
    network = load("24-pipe")
    expected = {
        pipe: 16 * 1000 * km * 0.01 * 377.968**2 / (math.pi**2 * (0.0254 * inches) ** 5)
        for inches, pipes in INCHES.items()
        for pipe, km in pipes.items()
    }
    found = dict(zip(ends(network), network.resistance, strict=True))
    assert found == pytest.approx(expected, rel=1e-12)
    assert {ends(network)[k] for k in network.compressor} == COMPRESSED
    np.testing.assert_array_equal(network.ratio_min, 1)
    np.testing.assert_array_equal(network.ratio_max, 2)
    assert not np.isfinite([network.flow_min, network.flow_max]).any()
    assert (network.gamma, network.efficiency) == (1.4, 1.0)


def test_24_pipe_has_the_demands_and_limits_of_the_benchmark() -> None:
    network = load("24-pipe")
    expected = sum((Counter(some) for some in CUSTOMERS.values()), Counter())
    found = {int(network.junction[i]): network.demand[i] for i in network.loads}
    assert found == pytest.approx(expected, abs=6e-4)
    assert network.base_flow == pytest.approx(163.795, abs=1e-9)
    # 1 psi = 0.45359237 kg × 9.80665 m/s² / (0.0254 m)²
    psi = 0.45359237 * 9.80665 / 0.0254**2
    assert pytest.approx(psi) == PSI
    np.testing.assert_allclose(network.p_min, 500 * psi)
    np.testing.assert_allclose(network.p_max, 800 * psi)
    assert network.junction[network.slack] == "1"
    assert network.slack_pressure == network.base_pressure == network.p_min[0]
    np.testing.assert_array_equal(network.share, np.eye(25)[0])
    assert "junction 1 is held at 500 psi" in network.assumptions[0]
    assert "factor of up to 2" in network.assumptions[1]


def test_24_pipe_is_gasmodels_case_30_with_compressors_merged_into_their_outlet_pipes() -> None:
    text, network = extra("case-30.m"), load("24-pipe")
    inlet = {int(row[2]): int(row[1]) for row in rows(text, "compressor")}
    pipes = {
        (inlet.get(int(row[1]), int(row[1])), int(row[2])): (row[4], row[3], row[5], int(row[1]) in inlet)
        for row in rows(text, "pipe")
    }
    compressors = set(network.compressor.tolist())
    # w depends on length, diameter and friction.
    w = {
        pipe: resistance(length, diameter, friction, 377.968) for pipe, (length, diameter, friction, _) in pipes.items()
    }
    assert dict(zip(ends(network), network.resistance, strict=True)) == pytest.approx(w, rel=1e-12)
    assert {pipe: k in compressors for k, pipe in enumerate(ends(network))} == {
        pipe: behind for pipe, (*_, behind) in pipes.items()
    }
    assert {pipe: km for some in INCHES.values() for pipe, km in some.items()} == {
        pipe: length / 1000 for pipe, (length, *_) in pipes.items()
    }
    assert {friction for _, _, friction, _ in pipes.values()} == {0.01}
    withdrawn = Counter()
    for row in rows(text, "delivery"):
        withdrawn[int(row[1])] += row[4]
    assert {int(network.junction[i]): network.demand[i] for i in network.loads} == pytest.approx(withdrawn, abs=6e-4)
    limits = np.array([row[1:3] for row in rows(text, "junction")])
    np.testing.assert_allclose([network.p_min, network.p_max], limits[:25].T, rtol=1e-9)


def test_case_30_itself_is_read(tmp_path: Path) -> None:
    path = tmp_path / "case-30.m"
    path.write_text(extra("case-30.m"))
    network = load(path)
    assert (network.junctions, network.arcs, network.compressors, len(network.loads)) == (30, 29, 5, 8)
    assert network.name == "case-30"
    assert network.slack_pressure == 3447378.645
    np.testing.assert_allclose(network.demand[:25], load("24-pipe").demand, atol=6e-4)
    speed = math.sqrt(8.314 * 288.706 / (0.6 * 0.02896))
    np.testing.assert_allclose(network.resistance[:24] / load("24-pipe").resistance, (speed / 377.968) ** 2)


# ---------------------------------------------------------------- GasLib

SIZES = {"gaslib-40": (40, 45, 6, 29), "gaslib-135": (135, 170, 29, 99)}
FILES = {
    "gaslib-40": ("gaslib-40-E.m", "GasLib-40.zip"),
    "gaslib-135": ("gaslib-135-F.m", "GasLib-135.zip"),
}


@pytest.mark.parametrize("name", SIZES)
def test_gaslib_networks_have_their_known_sizes(name: str) -> None:
    data(FILES[name][0])
    network = load(name)
    assert (network.junctions, network.arcs, network.compressors, len(network.loads)) == SIZES[name]
    assert network.name == name


@pytest.mark.parametrize("name", SIZES)
def test_gaslib_networks_list_their_assumptions(name: str) -> None:
    path = data(FILES[name][0])
    network = load(name)
    file = path.read_text()
    withdrawn = np.zeros(network.junctions)
    for row in rows(file, "delivery"):
        withdrawn[network.position(str(int(row[1])))] += row[4]
    np.testing.assert_allclose(network.demand, 0.785 * withdrawn)
    np.testing.assert_allclose(network.flow_max[network.compressor], 0.785 * rows(file, "compressor")[0][7])
    assert network.slack_pressure == 50e5
    np.testing.assert_array_equal(network.p_min, 40e5)
    assert {8101325.0, 7101325.0} == set(network.p_max)
    assert network.assumptions[:5] == [
        "junction 0 is held at 50 bar, which is not given in the file",
        "the other entries supply fixed shares of the total demand, as in the nominal supply",
        "flows in the file were multiplied by 0.785, GasLib's density, to get kg/s",
        f"{network.junctions} of {network.junctions} lower pressure limits were raised to 40 bar",
        "compressors have no length and no power limit",
    ]
    assert network.assumptions[-1] == "friction as in the file, sound speed 312.806 m/s"
    plain = load(path)
    assert plain.slack_pressure == 101325
    np.testing.assert_allclose(plain.demand, withdrawn)
    assert not any("multiplied" in line or "raised" in line for line in plain.assumptions)


def both(name: str) -> tuple[Network, Network]:
    """A network from its MATGAS file and from GasLib's XML."""
    data(FILES[name][0])
    return load(name), read_gaslib(data(FILES[name][1]), GASLIB)


@pytest.mark.parametrize("name", SIZES)
def test_matgas_and_gaslib_files_hold_the_same_network(name: str) -> None:
    ours, theirs = both(name)
    np.testing.assert_array_equal(theirs.source, ours.source)
    np.testing.assert_array_equal(theirs.target, ours.target)
    np.testing.assert_array_equal(theirs.compressor, ours.compressor)
    for what, rtol in (
        ("p_min", 0),
        ("p_max", 1e-9),
        ("demand", 3e-6),
        ("share", 1e-6),
        ("ratio_min", 0),
        ("ratio_max", 0),
    ):
        np.testing.assert_allclose(getattr(theirs, what), getattr(ours, what), rtol=rtol, err_msg=what)
    for what in ("slack", "slack_pressure", "gamma", "efficiency"):
        assert getattr(theirs, what) == getattr(ours, what), what
    assert not set(theirs.junction) & set(ours.junction), "only the names differ"


# Friction in the MATGAS files by diameter in m.
FRICTIONS = {1.0: 0.0071, 0.8: 0.0074, 0.6: 0.0078, 0.4: 0.0085}


@pytest.mark.parametrize("name", SIZES)
def test_friction_of_gaslib_by_nikuradse_is_about_1_5_times_that_of_matgas(name: str) -> None:
    ours, theirs = both(name)
    pipes = ours.resistance > 0
    assert pipes.sum() == ours.arcs - ours.compressors
    np.testing.assert_array_equal(theirs.resistance > 0, pipes)
    ratio = theirs.resistance[pipes] / ours.resistance[pipes]

    def expected(roughness: float) -> list[float]:
        return [(2 * math.log10(d / roughness) + 1.138) ** -2 / friction for d, friction in FRICTIONS.items()]

    usual = np.isclose(ratio[:, None], expected(0.05e-3), rtol=1e-5).any(1)
    assert (ratio[usual].min(), ratio[usual].max()) == pytest.approx((1.4706, 1.4846), abs=1e-4)
    # GasLib-40 has two smoother pipes, 0.012 mm, which the MATGAS file ignores.
    assert (~usual).sum() == (2 if name == "gaslib-40" else 0)
    assert np.isclose(ratio[~usual][:, None], expected(0.012e-3), rtol=1e-5).any(1).all()


def test_places_of_gaslib_are_the_same_in_both_formats_where_matgas_has_them() -> None:
    ours, theirs = both("gaslib-40")
    np.testing.assert_allclose(ours.places, theirs.places, atol=6e-5)
    ours, theirs = both("gaslib-135")
    assert ours.places is None, "two thirds of them are at 0, 0"
    assert theirs.places.shape == (135, 2)


@pytest.mark.parametrize("name", SIZES)
def test_gaslib_files_list_their_assumptions(name: str) -> None:
    network = load(data(FILES[name][1]))
    assert network.assumptions[0] == "junction source_1 is held at 50 bar, which is not given in the file"
    assert network.assumptions[-2:] == [
        "compressor ratios are between 1 and 5; valves are open",
        "friction by Nikuradse's formula, sound speed 312.8 m/s (compressibility 0.8)",
    ]
    assert not any("multiplied" in line for line in network.assumptions), "GasLib files give the density"


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_by_name_survive_json(name: str, tmp_path: Path) -> None:
    if name in FILES:
        data(FILES[name][0])
    network = load(name)
    (tmp_path / "network.json").write_text(to_json(network), encoding="utf-8")
    again = load(tmp_path / "network.json")
    assert again.fingerprint == network.fingerprint
    assert (again.name, list(again.assumptions)) == (name, list(network.assumptions))


# ---------------------------------------------------------------- one network, three formats


def test_three_formats_hold_one_network() -> None:
    ours = three()
    assert_same(matgas(), ours, rtol=1e-9)
    assert_same(replace(gaslib(), gamma=1.3), ours, rtol=1e-9)
    assert list(gaslib().junction) == ["in_1", "in_2", "out"]
    assert list(gaslib().arc) == ["long", "station"]
    assert list(matgas().arc) == ["10", "20"]


def test_files_are_read_by_their_extension(tmp_path: Path) -> None:
    (tmp_path / "a.m").write_text(MATGAS)
    (tmp_path / "b.net").write_text(NET)
    (tmp_path / "b.scn").write_text(SCN)
    (tmp_path / "c.JSON").write_text(json.dumps(DOCUMENT))
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for name, text in {"d/d.net": NET, "d/d.scn": SCN, "d/d.cs": "<more/>"}.items():
            archive.writestr(name, text)
    networks = [load(tmp_path / name) for name in ("a.m", "b.net", "c.JSON", "d.zip")]
    assert [network.name for network in networks] == ["a", "b", "three", "d"]
    assert load(str(tmp_path / "d.zip")).fingerprint == networks[1].fingerprint == networks[3].fingerprint
    assert networks[2].fingerprint == three().fingerprint
    assert networks[0].fingerprint == matgas(assumed=None).fingerprint


@pytest.mark.parametrize("name", ["", "24-pipes", "case30_ieee", "net.txt"])
def test_an_unknown_network_is_answered_with_known_names_and_extensions(name: str) -> None:
    with pytest.raises(NetworkError) as caught:
        load(name)
    assert str(caught.value) == (
        f"{name!r} is neither a network (24-pipe, gaslib-40, gaslib-135) nor a file (.m, .net, .zip or .json)"
    )


@pytest.mark.parametrize("ending", ["m", "net", "zip", "json"])
def test_a_missing_file_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"nothing.{ending}"
    with pytest.raises(NetworkError, match=re.escape(f"there is no file {path}")):
        load(path)


# ---------------------------------------------------------------- properties of a network


def test_the_resistance_of_a_pipe_by_hand() -> None:
    # 10 km, 0.5 m, λ 0.01, 400 m/s: A = π/16 m², w = 10,000 · 0.01 · 160,000 / (0.5 · π²/256) Pa² s²/kg²
    assert resistance(10e3, 0.5, 0.01, 400.0) == pytest.approx(32e6 * 256 / math.pi**2, rel=1e-14)
    # Weymouth: 100 kg/s through it lower the squared pressure by w · 10⁴ Pa² = 830 bar², from 50 bar to 40.9.
    drop = resistance(10e3, 0.5, 0.01, 400.0) * 100.0**2 / BAR**2
    assert math.sqrt(50**2 - drop) == pytest.approx(40.87, abs=0.01)
    np.testing.assert_allclose(resistance(np.array([1.0, 2.0]), 1.0, 1.0, 1.0), [16 / np.pi**2, 32 / np.pi**2])


def test_units_are_explicit() -> None:
    network = gaslib(assumed=Assumptions(slack_pressure=60e5))
    # 72 thousand m³/h at 0.8 kg/m³ are 72,000 · 0.8 / 3,600 kg/s
    np.testing.assert_allclose(network.demand, [0, 0, 16])
    np.testing.assert_allclose(network.share, [54 / 72, 18 / 72, 0])
    # 80 bar over the atmosphere's 1.01325; behind the compressor station 71.01325 bar, before it 31 bar
    np.testing.assert_allclose(network.p_max, [8101325, 7101325, 8101325])
    np.testing.assert_allclose(network.p_min, [3100000, 101325, 101325])
    # 20 km, 1000 mm, roughness 0.01 mm, 10 °C, 18 kg/kmol
    np.testing.assert_allclose(network.resistance, [20e3 * FRICTION * SPEED_SQUARED / (math.pi / 4) ** 2, 0])
    np.testing.assert_allclose(network.flow_min, [-np.inf, -100])
    np.testing.assert_allclose(network.flow_max, [np.inf, 200])
    np.testing.assert_array_equal(network.places, [[6, 50.5], [7, 51], [8.5, 51.5]])
    assert network.slack_pressure == 60e5


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ('unit="barg" value="80"', 'unit="bar" value="81.01325"'),
        ('unit="barg" value="80"', 'unit="Pa" value="8101325"'),
        ('unit="bar" value="71.01325"', 'unit="barg" value="70"'),
        ('unit="Celsius" value="10"', 'unit="K" value="283.15"'),
        ('unit="km" value="20"', 'unit="m" value="20000"'),
        ('unit="km" value="20"', 'unit="meter" value="2e4"'),
        ('unit="mm" value="1000"', 'unit="m" value="1"'),
        ('unit="1000m_cube_per_hour" value="900"', 'unit="kg_per_s" value="200"'),
    ],
)
def test_units_of_gaslib_are_converted(here: str, there: str) -> None:
    assert here in NET
    assert_same(gaslib(NET.replace(here, there)), gaslib(), rtol=1e-12)


def test_flows_of_a_scenario_may_be_in_kilograms() -> None:
    scn = SCN.replace('unit="1000m_cube_per_hour" value="72"', 'unit="kg_per_s" value="16"')
    assert_same(gaslib(scn=scn), gaslib(), rtol=1e-12)


@pytest.mark.parametrize("read", [matgas, gaslib])
def test_a_density_scales_all_flows_and_nothing_else(read) -> None:
    plain, half = read(assumed=GASLIB), read(assumed=replace(GASLIB, density=0.5))
    for what in ("demand", "flow_min", "flow_max"):
        np.testing.assert_allclose(getattr(half, what), getattr(plain, what) / 2)
    assert_same(replace(half, demand=plain.demand, flow_min=plain.flow_min, flow_max=plain.flow_max), plain, rtol=0)
    assert "flows in the file were multiplied by 0.5, GasLib's density, to get kg/s" in half.assumptions


def test_assumptions_fill_in_what_gaslib_omits() -> None:
    network = gaslib(assumed=replace(GASLIB, ratio=(1.0, 1.5), gamma=1.25, efficiency=0.7))
    assert (network.ratio_min.tolist(), network.ratio_max.tolist()) == ([1.0], [1.5])
    assert (network.gamma, network.efficiency) == (1.25, 0.7)
    assert "compressor ratios are between 1 and 1.5; valves are open" in network.assumptions
    assert "compressor efficiency μ = 0.7; it only scales the objective" in network.assumptions


@pytest.mark.parametrize("read", [matgas, gaslib])
def test_lower_limits_are_raised_to_the_minimum_pressure(read) -> None:
    network = read(assumed=Assumptions(slack_pressure=50e5, least_pressure=1.5e5))
    assert (network.p_min >= 1.5e5).all()
    raised = "2 of 3" if read is gaslib else "3 of 3"
    assert f"{raised} lower pressure limits were raised to 1.5 bar" in network.assumptions
    with pytest.raises(NetworkError) as caught:
        read(assumed=Assumptions(slack_pressure=50e5, least_pressure=75e5))
    name = "in_2" if read is gaslib else "2"
    assert (
        f"junction {name} has an upper pressure limit of 71.0132 bar, below the assumed minimum pressure of 75 bar"
        in str(caught.value)
    )


def test_without_assumptions_the_slack_has_the_nominal_pressure_of_the_file() -> None:
    network = matgas(assumed=None)
    assert network.slack_pressure == 55e5
    assert network.assumptions[0] == "junction 1 is held at 55 bar, as given in the file"
    with pytest.raises(NetworkError, match=r"three\.net: GasLib files give no slack pressure; set Assumptions"):
        gaslib(assumed=Assumptions())


def test_bases_scale_weymouths_law() -> None:
    network = three()
    assert (network.base_flow, network.base_pressure) == (16.0, 5e6)
    # Δ(p²) in units of p₀² for q in units of F
    np.testing.assert_allclose(network.scaled_resistance * 5e6**2, network.resistance * 16.0**2)
    assert network.loads.tolist() == [2]


def test_junctions_are_found_by_name() -> None:
    assert [gaslib().position(name) for name in ("in_1", "in_2", "out")] == [0, 1, 2]
    with pytest.raises(NetworkError, match=r"three has no junction 'in'; its junctions are in_1, in_2, out, …"):
        gaslib().position("in")


def test_the_fingerprint_depends_on_values_not_on_names_or_comments() -> None:
    ours = three()
    assert re.fullmatch("[0-9a-f]{16}", ours.fingerprint)
    assert three(name="other", places=None, assumptions=["nothing"]).fingerprint == ours.fingerprint
    assert matgas(MATGAS.replace("% a comment", "% another 1 2 3")).fingerprint == matgas().fingerprint


NUMBERS = ("p_min", "p_max", "demand", "resistance", "flow_min", "flow_max", "ratio_min", "ratio_max")


@pytest.mark.parametrize("field", [*NUMBERS, "slack_pressure", "gamma", "efficiency"])
def test_the_fingerprint_changes_with_every_number(field: str) -> None:
    ours = three()
    assert three(**{field: getattr(ours, field) * 1.001}).fingerprint != ours.fingerprint
    assert three(share=np.array([0.5, 0.5, 0])).fingerprint != ours.fingerprint


# ---------------------------------------------------------------- inconsistent networks


def at(field: str, position: int, value: float) -> dict[str, np.ndarray]:
    values = getattr(three(), field).copy()
    values[position] = value
    return {field: values}


def loop(resistances: list[float]) -> dict[str, object]:
    """A third arc, from junction 1 to junction 3, with these resistances."""
    return {
        "arc": ["10", "20", "30"],
        "source": np.array([1, 0, 0]),
        "target": np.array([2, 1, 2]),
        "resistance": np.array(resistances),
        "flow_min": np.full(3, -np.inf),
        "flow_max": np.full(3, np.inf),
    }


WRONG = {
    "a junction twice": ({"junction": ["1", "2", "2"]}, "three: junction '2' appears more than once"),
    "an arc twice": ({"arc": ["10", "10"]}, "three: arc '10' appears more than once"),
    "a negative lower limit": (
        at("p_min", 1, -1),
        "three: the lower pressure limit of 2 is -1; it must be a number ≥ 0",
    ),
    "an infinite upper limit": (
        at("p_max", 2, np.inf),
        "three: the upper pressure limit of 3 is inf; it must be a number ≥ 0",
    ),
    "a demand of NaN": (at("demand", 0, np.nan), "three: the demand of 1 is nan; it must be a number"),
    "a negative share": (
        at("share", 1, -0.25),
        "three: the share of the supply of 2 is -0.25; it must be a number ≥ 0",
    ),
    "a negative resistance": (at("resistance", 0, -2), "three: the resistance of 10 is -2; it must be a number ≥ 0"),
    "an infinite ratio": (at("ratio_max", 0, np.inf), "three: the maximum ratio of 20 is inf; it must be a number ≥ 0"),
    "crossed pressures": (
        at("p_min", 1, 8e6),
        "three: 2 has a lower pressure limit of 8e+06 and an upper one of 7.10132e+06",
    ),
    "crossed flows": (at("flow_min", 1, 201), "three: 20 has a lower flow limit of 201 and an upper one of 200"),
    "a flow limit of NaN": (
        at("flow_max", 0, np.nan),
        "three: 10 has a lower flow limit of -inf and an upper one of nan",
    ),
    "infinite flow": (at("flow_min", 0, np.inf), "three: 10 has a lower flow limit of inf and an upper one of inf"),
    "infinite reverse flow": (
        at("flow_max", 0, -np.inf),
        "three: 10 has a lower flow limit of -inf and an upper one of -inf",
    ),
    "crossed ratios": (at("ratio_min", 0, 6), "three: 20 has a lower ratio limit of 6 and an upper one of 5"),
    "a ratio of zero": (at("ratio_min", 0, 0), "three: the minimum ratio of 20 is 0; it must be > 0"),
    "an arc to its own start": (at("target", 0, 1), "three: arc 10 begins and ends at junction 2"),
    "too low a slack": (
        {"slack_pressure": 3.9e6},
        "three: the slack, junction 1, is held at 3.9e+06 Pa, outside its limits of 4e+06 to 8.10132e+06 Pa",
    ),
    "too high a slack": ({"slack_pressure": 9e6}, "three: the slack, junction 1, is held at 9e+06 Pa, outside its"),
    "a slack without pressure": (
        {"slack_pressure": 0.0, "p_min": np.zeros(3)},
        "three: the slack, junction 1, is held at 0 Pa, outside its limits",
    ),
    "a slack of NaN": ({"slack_pressure": np.nan}, "three: the slack, junction 1, is held at nan Pa"),
    "shares of more than all": (
        at("share", 2, 0.5),
        "three: the entries' shares of the supply add up to 1.5; they must add up to 1",
    ),
    "no shares": (
        {"share": np.zeros(3)},
        "three: the entries' shares of the supply add up to 0; they must add up to 1",
    ),
    "no demand": (
        {"demand": np.zeros(3)},
        "three: the total demand is 0; it must be > 0",
    ),
    "gamma of one": ({"gamma": 1.0}, "three: γ must be > 1 and μ > 0, got 1 and 1"),
    "infinite gamma": ({"gamma": np.inf}, "three: γ must be > 1 and μ > 0, got inf and 1"),
    "no efficiency": ({"efficiency": 0.0}, "three: γ must be > 1 and μ > 0, got 1.3 and 0"),
    "unconnected junctions": (
        {"target": np.array([0, 1]), "source": np.array([1, 0]), "resistance": np.ones(2)},
        "three: 1 of 3 junctions have no path in service to the slack junction 1: 3",
    ),
    "an unconnected slack": (
        {"target": np.array([2, 1]), "source": np.array([1, 2]), "resistance": np.ones(2)},
        "three: 2 of 3 junctions have no path in service to the slack junction 1: 2, 3",
    ),
    "a loop without resistance": (
        loop([0, 0, 0]),
        "three: arc 30 closes a loop of arcs without resistance, in which flows are not unique; remove one of them or "
        "give it a length",
    ),
    "two arcs without resistance side by side": (
        {**loop([1, 0, 0]), "target": np.array([2, 1, 1])},
        "three: arc 30 closes a loop of arcs without resistance",
    ),
    "no arcs": (
        {name: [] for name in ("arc", "source", "target", "resistance", "flow_min", "flow_max")},
        "three has no arcs; it needs at least one",
    ),
    "a demand too few": ({"demand": np.ones(2)}, "three: demand has shape (2,), expected (3,) for 3 junctions"),
    "resistances in columns": (
        {"resistance": np.ones((2, 1))},
        "three: resistance has shape (2, 1), expected (2,) for 2 arcs",
    ),
    "a ratio too many": ({"ratio_min": np.ones(2)}, "three: ratio_min has shape (2,), expected (1,) for 1 compressors"),
    "places in space": (
        {"places": np.ones((3, 3))},
        "three: places must be two numbers for each of the 3 junctions, or None",
    ),
    "a place of NaN": ({"places": np.full((3, 2), np.nan)}, "three: places must be two numbers for each"),
    "a missing slack": ({"slack": 3}, "three: slack has position 3; positions are 0 to 2"),
    "an arc from nowhere": (at("source", 0, -1), "three: source has position -1; positions are 0 to 2"),
    "an arc to nowhere": (at("target", 0, 3), "three: target has position 3; positions are 0 to 2"),
    "a compressor nowhere": ({"compressor": np.array([2])}, "three: compressor has position 2; positions are 0 to 1"),
    "a compressor twice": (
        {"compressor": np.array([1, 1]), "ratio_min": np.ones(2), "ratio_max": np.ones(2)},
        "three: compressors must be in the order of their arcs, at most one per arc",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_inconsistent_network_is_refused(what: str) -> None:
    changes, message = WRONG[what]
    with pytest.raises(NetworkError, match=f"^{re.escape(message)}"):
        three(**changes)


def test_only_the_first_unconnected_junctions_are_named() -> None:
    wide = document()
    wide["junctions"] += [{"id": f"x{i}", "p_min": 0, "p_max": 1} for i in range(7)]
    with pytest.raises(NetworkError, match=r"7 of 10 junctions have no path .* 1: x0, x1, x2, x3, x4, …"):
        parse(wide)


def test_loops_with_resistance_parallel_pipes_and_injections_are_allowed() -> None:
    assert three(**loop([1, 0, 2])).arcs == 3
    assert three(**loop([0, 0, 1])).arcs == 3
    assert three(**(loop([1, 0, 1]) | {"target": np.array([2, 1, 1])})).arcs == 3
    assert three(demand=np.array([-1.0, 0, 16])).loads.tolist() == [0, 2]

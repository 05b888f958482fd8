"""Reading networks: PGLib files, MATPOWER conventions, and an error message for each fault."""

import re
from pathlib import Path

import numpy as np
import pytest
from grids import TEXT, add, change, three

from ldf.power.case import load, parse
from ldf.proxies.source import NetworkError


@pytest.mark.parametrize(
    ("name", "buses", "branches", "loads", "generators", "active"),
    [
        ("case30_ieee", 30, 41, 21, 6, 2),
        ("case118_ieee", 118, 186, 99, 54, 19),
        ("case300_ieee", 300, 411, 201, 69, 57),
    ],
)
def test_pglib_cases_have_their_known_sizes(name, buses, branches, loads, generators, active) -> None:
    case = load(name)
    assert (case.buses, case.branches, len(case.loads), case.generators) == (buses, branches, loads, generators)
    assert (case.p_max > 0).sum() == active
    assert case.name == name


def test_the_prefix_of_a_pglib_name_may_be_left_out() -> None:
    short, full = load("case30_ieee"), load("pglib_opf_case30_ieee")
    assert short.name == full.name == "case30_ieee"
    assert short.fingerprint == full.fingerprint


def test_stressed_variants_are_other_networks_of_the_same_size() -> None:
    plain, api, sad = (load(f"case30_ieee{kind}") for kind in ("", "__api", "__sad"))
    assert plain.buses == api.buses == sad.buses == 30
    assert api.pd.sum() > plain.pd.sum(), "api: more demand"
    assert (sad.angle_max < plain.angle_max).all(), "sad: smaller angles"
    assert len({case.fingerprint for case in (plain, api, sad)}) == 3


@pytest.mark.parametrize("file", ["pglib_opf_three.m", "three.m", "three.txt"])
def test_a_case_is_loaded_from_a_file(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text(TEXT)
    for path in (tmp_path / file, str(tmp_path / file)):
        case = load(path)
        assert case.name == "three"
        assert case.text == TEXT
        assert case.fingerprint == three().fingerprint


def test_everything_is_per_unit_and_in_radians() -> None:
    case = three()
    assert case.bus.tolist() == [10, 20, 30]
    assert case.reference.tolist() == [0]
    np.testing.assert_allclose(case.pd, [0, 0.5, 0.8])
    np.testing.assert_allclose(case.qd, [0, 0.1, 0.3])
    np.testing.assert_allclose((case.gs[2], case.bs[2]), (0.02, 0.15))
    assert case.loads.tolist() == [1, 2]
    np.testing.assert_allclose((case.v_min[2], case.v_max[2]), (0.95, 1.05))
    assert case.at.tolist() == [0, 1]
    np.testing.assert_allclose([case.p_min, case.p_max], [[0, 0.1], [2.0, 1.2]])
    np.testing.assert_allclose([case.q_min, case.q_max], [[-1.0, -0.6], [1.0, 0.6]])
    np.testing.assert_allclose(case.cost, [[200, 1000, 5], [500, 1200, 0]])
    assert case.source.tolist() == [0, 1, 0]
    assert case.target.tolist() == [1, 2, 2]
    np.testing.assert_allclose(case.limit, [0.9, 0.8, 0.7])
    np.testing.assert_allclose(case.shift, [0, np.pi / 60, 0])
    np.testing.assert_allclose(case.angle_max, np.pi / 6)


def test_the_cost_of_a_dispatch_does_not_depend_on_the_units() -> None:
    p = 70.0
    c2, c1, c0 = three().cost[0]
    assert c2 * (p / 100) ** 2 + c1 * p / 100 + c0 == pytest.approx(0.02 * p**2 + 10 * p + 5)


def test_costs_may_be_linear_or_constant() -> None:
    case = three(change("gencost", 2, {3: 2}, change("gencost", 1, {3: 1})))
    np.testing.assert_allclose(case.cost, [[0, 0, 0.02], [0, 5, 12]])


def test_commas_and_one_line_make_no_difference() -> None:
    commas = re.sub(r"(?<=\d) +(?=[-\d])", ", ", TEXT)
    assert ", " in commas
    assert three(commas).fingerprint == three().fingerprint
    assert three(re.sub(r"%.*", "", TEXT).replace(";\n", "; ")).fingerprint == three().fingerprint


# ---------------------------------------------------------------- conventions


def test_a_tap_of_zero_is_one() -> None:
    np.testing.assert_allclose(three().tap, [1, 0.97, 1])


def test_a_rating_of_zero_is_no_limit() -> None:
    np.testing.assert_array_equal(three(change("branch", 1, {5: 0})).limit, [np.inf, 0.8, 0.7])


@pytest.mark.parametrize("limits", [(0, 0), (-360, 360), (-400, 400)])
def test_angles_of_zero_or_of_a_full_turn_are_no_limits(limits) -> None:
    case = three(change("branch", 2, dict(zip((11, 12), limits, strict=True))))
    assert (case.angle_min[1], case.angle_max[1]) == (-np.inf, np.inf)
    assert np.isfinite(case.angle_min[[0, 2]]).all()


def test_one_angle_limit_may_be_zero() -> None:
    case = three(change("branch", 2, {11: 0}))
    assert case.angle_min[1] == 0
    assert case.angle_max[1] == pytest.approx(np.pi / 6)


def test_elements_out_of_service_are_omitted() -> None:
    case = three(change("gen", 1, {7: 0}, change("branch", 3, {10: 0})))
    assert (case.generators, case.branches) == (1, 2)
    assert case.generator.tolist() == [2]
    assert case.at.tolist() == [1]
    assert case.branch.tolist() == [1, 2]
    np.testing.assert_allclose(case.cost, [[500, 1200, 0]])


def test_an_isolated_bus_takes_its_generators_and_branches_along() -> None:
    text = add("bus", "5 4 90 0 0 0 1 1 0 230 1 1.1 0.9")
    text = add("gen", "5 0 0 10 -10 1 100 1 50 0", add("branch", "5 30 0 0.1 0 9 9 9 0 0 1 -30 30", text))
    case = three(add("gencost", "2 0 0 3 1 1 1", text))
    assert case.bus.tolist() == [10, 20, 30]
    assert case.fingerprint != three().fingerprint, "rows are numbered as in the file"
    assert case.generator.tolist() == [2, 3]
    np.testing.assert_allclose(case.pd, three().pd)
    np.testing.assert_allclose(case.cost, three().cost)
    assert case.source.tolist() == three().source.tolist()


def test_negative_reactances_and_parallel_branches_are_allowed() -> None:
    assert three(change("branch", 3, {3: -0.2})).x[2] == -0.2
    assert three(add("branch", "10 20 0.01 0.1 0 90 90 90 0 0 1 -30 30")).branches == 4


def test_one_generator_may_have_no_reactive_limits() -> None:
    case = three(change("gen", 1, {3: "Inf", 4: "-Inf"}))
    assert (case.q_min[0], case.q_max[0]) == (-np.inf, np.inf)


# ---------------------------------------------------------------- the fingerprint


def test_the_fingerprint_is_of_the_numbers_not_of_name_and_comments() -> None:
    ours = three().fingerprint
    assert parse(TEXT.replace("% a comment", "% another; with 1 2 3"), "other", "other.m").fingerprint == ours
    assert re.fullmatch("[0-9a-f]{16}", ours)


@pytest.mark.parametrize(
    ("table", "column"),
    [("bus", c) for c in (2, 3, 4, 5, 11, 12)]
    + [("gen", c) for c in (3, 4, 8, 9)]
    + [("gencost", c) for c in (4, 5, 6)]
    + [("branch", c) for c in (2, 3, 4, 5, 8, 9, 11, 12)],
)
def test_the_fingerprint_changes_with_every_number_that_matters(table: str, column: int) -> None:
    row = {"bus": 3, "gen": 2, "gencost": 1, "branch": 2}[table]
    cells = TEXT.split(f"mpc.{table} = [\n")[1].splitlines()[row - 1].partition(";")[0].split()
    changed = change(table, row, {column: float(cells[column]) + 0.001})
    assert three(changed).fingerprint != three().fingerprint


def test_the_fingerprint_changes_with_the_base() -> None:
    assert three(TEXT.replace("baseMVA = 100.0", "baseMVA = 10.0")).fingerprint != three().fingerprint


# ---------------------------------------------------------------- invalid files


def without(table: str) -> str:
    return re.sub(rf"mpc\.{table} = \[.*?\];", "", TEXT, flags=re.DOTALL)


WRONG = {
    "no bus table": (without("bus"), "no table mpc.bus"),
    "no gen table": (without("gen"), "no table mpc.gen;"),
    "no branch table": (without("branch"), "no table mpc.branch"),
    "no cost table": (without("gencost"), "no table mpc.gencost"),
    "an empty table": (re.sub(r"(mpc\.gen = \[\n).*?\];", r"\1];", TEXT, flags=re.DOTALL), "mpc.gen is empty"),
    "no base": (TEXT.replace("mpc.baseMVA = 100.0;", ""), "no mpc.baseMVA"),
    "a base of zero": (TEXT.replace("= 100.0;", "= 0;"), "baseMVA must be > 0, got 0"),
    "a base in words": (TEXT.replace("= 100.0;", "= many;"), "baseMVA: expected a number, got 'many'"),
    "too few columns": (TEXT.replace("  1.05  0.95;", ";"), "mpc.bus row 3 has 11 columns, at least 13"),
    "a ragged table": (TEXT.replace("  1.05  0.95;", "  1.05  0.95  7;"), "rows of mpc.bus differ in length"),
    "a word": (change("bus", 3, {2: "eighty"}), "mpc.bus row 3: expected a number, got 'eighty'"),
    "NaN demand": (change("bus", 2, {2: "NaN"}), "mpc.bus row 2, column 3 is not a number"),
    "NaN generator limit": (change("gen", 1, {8: "NaN"}), "mpc.gen row 1, column 9 is not a number"),
    "NaN angle limit": (change("branch", 1, {12: "NaN"}), "mpc.branch row 1, column 13 is not a number"),
    "a generator nowhere": (change("gen", 2, {0: 99}), "mpc.gen row 2 refers to bus 99, which is not in mpc.bus"),
    "a branch from nowhere": (change("branch", 3, {0: 7}), "mpc.branch row 3 refers to bus 7"),
    "a branch to nowhere": (change("branch", 1, {1: 8}), "mpc.branch row 1 refers to bus 8"),
    "a bus twice": (change("bus", 3, {0: 20}), "bus 20 is in mpc.bus more than once"),
    "no reference": (change("bus", 1, {1: 2}), "no reference bus"),
    "no generator": (change("gen", 1, {7: 0}, change("gen", 2, {7: 0})), "no generator is in service"),
    "an island": (
        change("branch", 2, {10: 0}, change("branch", 3, {10: 0})),
        "1 of 3 buses have no path in service to the reference bus 10: 30",
    ),
    "an islanded reference": (
        change("branch", 1, {10: 0}, change("branch", 3, {10: 0})),
        "2 of 3 buses have no path in service to the reference bus 10: 20, 30",
    ),
    "zero impedance": (change("branch", 2, {2: 0, 3: 0}), "branch 2, from bus 20 to 30, has zero impedance"),
    "a loop": (change("branch", 2, {1: 20}), "branch 2 begins and ends at bus 20"),
    "piecewise linear costs": (change("gencost", 2, {0: 1}), "mpc.gencost row 2 has cost model 1"),
    "cubic costs": (
        TEXT.replace("2  0.0  0.0  3  0.02  10.0  5.0", "2  0.0  0.0  4  0.1  0.02  10.0  5.0"),
        "mpc.gencost row 1 has a degree above 2",
    ),
    "missing coefficients": (change("gencost", 1, {3: 4}), "row 1 declares 4 coefficients but has 3"),
    "missing coefficients in one row": (
        TEXT.replace("3  0.05  12.0  0.0;", "3  0.05;"),
        "row 2 declares 3 coefficients but has 1",
    ),
    "too few costs": (
        TEXT.replace("    2  0.0  0.0  3  0.05  12.0  0.0;\n", ""),
        "mpc.gencost has 1 rows for 2 generators",
    ),
    "reactive costs": (
        add("gencost", "2 0 0 3 1 1 0", add("gencost", "2 0 0 3 1 1 0")),
        "costs for reactive power",
    ),
    "crossed voltages": (
        change("bus", 3, {12: 1.06}),
        "bus 30 has a lower voltage limit of 1.06, above its upper limit of 1.05",
    ),
    "crossed active limits": (change("gen", 2, {9: 130}), "generator 2 has a lower active power limit of 130"),
    "crossed reactive limits": (change("gen", 1, {4: 101}), "generator 1 has a lower reactive power limit of 101"),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_name_the_fault(what: str) -> None:
    text, message = WRONG[what]
    assert text != TEXT
    with pytest.raises(NetworkError, match=re.escape(message)) as caught:
        three(text)
    assert str(caught.value).startswith("three.m: "), "the file is named"


def test_a_branch_out_of_service_may_have_zero_impedance() -> None:
    assert three(change("branch", 2, {2: 0, 3: 0, 10: 0})).branches == 2


def test_costs_of_zero_for_reactive_power_are_allowed() -> None:
    free = TEXT.replace("mpc.branch", "mpc.unused = [];\nmpc.branch").replace(
        "12.0  0.0;\n", "12.0  0.0;\n    2  0  0  3  0  0  0;\n    2  0  0  3  0  0  0;\n"
    )
    assert three(free).fingerprint == three().fingerprint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"there is no file .*nothing\.m"):
        load(tmp_path / "nothing.m")


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.m"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(NetworkError, match=r"picture\.m is not a text file"):
        load(path)


@pytest.mark.parametrize(("name", "near"), [("case30_iee", "case30_ieee"), ("pglib_opf_case118", "case118_ieee")])
def test_the_error_for_an_unknown_name_lists_similar_names(name: str, near: str) -> None:
    with pytest.raises(NetworkError, match=f"'{name}' is neither a PGLib case nor .*; similar names are .*{near}"):
        load(name)


@pytest.mark.parametrize("name", ["", "../case30_ieee", "case30_ieee__../x", "?"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(NetworkError, match="neither a PGLib case"):
        load(name)


def test_buses_are_found_by_number() -> None:
    assert [three().position(number) for number in (10, 20, 30)] == [0, 1, 2]
    with pytest.raises(NetworkError, match="three has no bus 29; the nearest numbers are 30, 20, 10"):
        three().position(29)

"""Repair and certificates, and the files of demands and answers."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ldf.io.files import check_writable
from ldf.power.acopf import ACOPF
from ldf.power.problem import Power
from ldf.proxies import open_problem
from ldf.proxies.answering.certifier import Answer, Certifier
from ldf.proxies.answering.files import read_demands, write_answers
from ldf.proxies.answering.repair import Projection, Untouched
from ldf.proxies.nlp import Solution
from ldf.proxies.problem import Floats

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def problem() -> Power:
    return open_problem("power", "case14_ieee")


@pytest.fixture(scope="module")
def solver(problem: Power) -> ACOPF:
    return problem.solver()


@pytest.fixture(scope="module")
def optimum(solver: ACOPF) -> Solution:
    return solver.solve()


@pytest.fixture(scope="module")
def certifier(problem: Power) -> Certifier:
    return Certifier(problem, TOLERANCE)


def shifted(state: Floats, size: float, seed: int = 0) -> Floats:
    return state + size * np.random.default_rng(seed).standard_normal(len(state))


# ---------------------------------------------------------------- repair


@pytest.mark.parametrize("size", [0.001, 0.02, 0.1])
def test_a_projection_is_feasible_and_the_nearest_there_is(
    problem: Power, solver: ACOPF, certifier: Certifier, optimum: Solution, size: float
) -> None:
    prediction = shifted(optimum.state, size)
    answer = certifier.answer(problem.nominal, prediction, Projection(solver), optimum=lambda _: optimum.objective)
    assert (answer.status, answer.reason, answer.repair) == ("certified", "", "projection")
    assert set(answer.violations) == {"voltage", "angle", "active", "reactive", "thermal", "balance_p", "balance_q"}
    assert max(answer.violations.values()) <= TOLERANCE
    parts = {"pg": slice(0, 5), "v": slice(10, 24)}
    for name, part in parts.items():
        length = sum((answer.state[part] - prediction[part]) ** 2) ** 0.5
        assert answer.moved[name] == pytest.approx(100 * length / sum(prediction[part] ** 2) ** 0.5, rel=1e-9)
    cost = float(problem.case.cost[:, 0] @ answer.state[:5] ** 2 + problem.case.cost[:, 1] @ answer.state[:5])
    assert answer.objective == pytest.approx(cost + problem.case.cost[:, 2].sum(), rel=1e-9)
    assert answer.gap == pytest.approx(100 * (answer.objective - optimum.objective) / optimum.objective, abs=1e-9)
    assert answer.gap > -1e-4, "no feasible state is cheaper than the optimum"

    def distance(state: Floats) -> float:
        return sum(float(((state[part] - prediction[part]) ** 2).sum()) for part in parts.values())

    for factor in (1.0, 0.5):  # the optimum, and a feasible state between it and the answer's own aim
        aim = optimum.state + (1 - factor) * (prediction - optimum.state)
        other = solver.project(problem.nominal, aim)
        assert distance(answer.state) <= distance(other.state) + 1e-8


def test_the_optimum_is_left_where_it_is(
    problem: Power, solver: ACOPF, certifier: Certifier, optimum: Solution
) -> None:
    best = optimum.objective
    answer = certifier.answer(problem.nominal, optimum.state, Projection(solver), optimum=lambda _: best)
    assert answer.status == "certified"
    assert max(answer.moved.values()) < 1e-3
    assert abs(answer.gap) < 1e-3


def test_an_infeasible_demand_has_no_answer_and_a_reason(
    problem: Power, solver: ACOPF, certifier: Certifier, optimum: Solution
) -> None:
    asked = []
    answer = certifier.answer(3 * problem.nominal, optimum.state, Projection(solver), optimum=asked.append)
    assert answer.status == "unsolvable"
    assert re.fullmatch(
        r"the solver ended with 'infeasible': .* MW and .* MVAr cannot be balanced, most at bus \d+", answer.reason
    )
    assert answer.gap is None
    assert not asked, "there is no optimum to ask for"
    assert max(answer.violations.values()) > 0.1


def test_where_the_projection_fails_the_solver_answers(problem: Power, solver: ACOPF, certifier: Certifier) -> None:
    class Stuck(ACOPF):
        def project(self, demand: Floats, prediction: Floats) -> Solution:
            return replace(super().project(demand, prediction), status="iterations")

    demand = 1.05 * problem.nominal
    found = Projection(Stuck(problem.case))(demand, shifted(solver.flat, 0.01))
    assert (found.status, found.repair, found.solved) == ("optimal", "solver", True)
    assert np.array_equal(found.solution.state, found.state), "with its multipliers, which are the prices"
    answer = certifier.certify(demand, found.state, found)
    assert (answer.status, answer.repair) == ("certified", "solver")
    assert answer.objective == pytest.approx(solver.solve(demand).objective, rel=1e-6)


def test_a_status_says_what_was_done(problem: Power, solver: ACOPF, optimum: Solution) -> None:
    nominal, state = problem.nominal, optimum.state
    kept, projected = Untouched()(nominal, state), Projection(solver)(nominal, shifted(state, 0.01))
    assert (kept.status, kept.solved, kept.state is state) == ("predicted", True, True)
    assert (projected.status, projected.solved, projected.solution) == ("projected", True, None)
    failed = Projection(solver)(3 * nominal, state)
    assert (failed.status, failed.repair, failed.solved, failed.optimal) == (
        "infeasible",
        "interior-cold",
        False,
        False,
    )


def test_without_repair_a_bad_prediction_is_not_certified(
    problem: Power, certifier: Certifier, optimum: Solution
) -> None:
    prediction = optimum.state.copy()
    prediction[0] += 0.25  # p.u. too much at the reference
    answer = certifier.answer(problem.nominal, prediction, Untouched(), predicted_in=3.0)
    assert np.array_equal(answer.state, prediction)
    assert answer.moved == {"pg": 0.0, "v": 0.0}
    assert (answer.status, answer.repair, answer.warning) == ("uncertified", "none", None)
    assert answer.reason == "balance_p is violated by 0.25"
    assert answer.violations["balance_p"] == pytest.approx(0.25, abs=1e-6)
    assert 3.0 <= answer.seconds < 4.0
    assert certifier.answer(problem.nominal, optimum.state, Untouched()).status == "certified"
    strict = Certifier(problem, tolerance=1e-16)
    assert strict.answer(problem.nominal, optimum.state, Untouched()).status == "uncertified"


def test_a_state_that_is_no_number_is_not_certified(problem: Power, certifier: Certifier, optimum: Solution) -> None:
    prediction = optimum.state.copy()
    prediction[12] = np.nan
    answer = certifier.answer(problem.nominal, prediction, Untouched())
    assert (answer.status, answer.reason) == ("uncertified", "voltage is violated by inf")


# ---------------------------------------------------------------- demands


def written(path: Path, columns: dict[str, list]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
@pytest.mark.parametrize("column", ["p5", "5", "P5", " p_5"])
def test_demands_are_read_in_mw(problem: Power, tmp_path: Path, suffix: str, column: str) -> None:
    found = read_demands(written(tmp_path / f"demands{suffix}", {column: [10, 20.5]}), problem)
    expected = np.tile(problem.nominal, (2, 1))
    expected[:, 4] = [0.1, 0.205]
    expected[:, 14 + 4] = [0.1 * 1.6 / 7.6, 0.205 * 1.6 / 7.6]  # bus 5: nominally 7.6 MW and 1.6 MVAr
    assert np.allclose(found, expected, rtol=0, atol=1e-12), "other buses keep their nominal demand"


def test_reactive_demands_may_be_given_too(problem: Power, tmp_path: Path) -> None:
    found = read_demands(written(tmp_path / "demands.csv", {"q5": [3], "p5": [10], "q9": [0]}), problem)[0]
    expected = problem.nominal.copy()
    expected[[4, 14 + 4, 14 + 8]] = 0.1, 0.03, 0.0
    assert np.allclose(found, expected, rtol=0, atol=1e-12)


def test_a_bus_without_load_takes_active_demand_alone(problem: Power, tmp_path: Path) -> None:
    found = read_demands(written(tmp_path / "demands.csv", {"p7": [10]}), problem)[0]
    expected = problem.nominal.copy()
    assert expected[6] == expected[14 + 6] == 0
    expected[6] = 0.1
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"p99": [1.0]}, "case14_ieee has no bus 99; the nearest numbers are 14, 13, 12"),
        ({"5": [1.0], "p5": [1.0]}, "columns '5' and 'p5' are the same demand"),
        ({"load5": [1.0]}, "unknown column 'load5': use p5 (or 5) for MW and q5 for MVAr at bus 5"),
        ({"p5": ["7.6", "much"]}, "column 'p5', row 1: expected a number, got '7.6'"),
        ({"p5": [True]}, "column 'p5', row 1: expected a number, got True"),
        ({"p5": [1.0, float("inf")]}, "column 'p5', row 2: inf is not a number"),
        ({"p5": []}, " has no rows"),
    ],
    ids=["bus", "twice", "name", "text", "bool", "inf", "empty"],
)
def test_bad_demands_are_refused_with_their_place(
    problem: Power, tmp_path: Path, columns: dict, reason: str, suffix: str
) -> None:
    path = written(tmp_path / f"demands{suffix}", columns)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}:? ?{re.escape(reason.strip())}$"):
        read_demands(path, problem)


def test_a_demand_that_is_no_number_is_refused(problem: Power, tmp_path: Path) -> None:
    path = written(tmp_path / "demands.parquet", {"p5": [1.0, float("nan")]})
    with pytest.raises(ValueError, match="column 'p5', row 2: nan is not a number"):
        read_demands(path, problem)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("demands.csv", "p5,p9\n1.0,\n", "column 'p9', row 1: expected a number, got None"),
        ("demands.csv", "p5\n1.0\nnan\n", "column 'p5', row 2: expected a number, got None"),
        ("demands.csv", "p5,p5\n1.0,2.0\n", "there is more than one column 'p5'"),
        ("demands.csv", "p5,p9\n1.0\n", "is damaged or not a table"),
        ("demands.csv", "", "is damaged or not a table: Empty CSV file"),
        ("demands.parquet", "p5\n1.0\n", "is damaged or not a table"),
        ("demands.xlsx", "p5\n1.0\n", "demands are read from .csv or .parquet files, not .xlsx"),
        ("demands", "p5\n1.0\n", "demands are read from .csv or .parquet files"),
        (None, "", "there is no file"),
    ],
    ids=["gap", "nan", "twice", "ragged", "empty", "parquet", "suffix", "no-suffix", "missing"],
)
def test_files_that_hold_no_demands_are_refused(
    problem: Power, tmp_path: Path, name: str | None, content: str, reason: str
) -> None:
    path = tmp_path / (name or "nothing.csv")
    if name:
        path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(reason)) as raised:
        read_demands(path, problem)
    assert str(path) in str(raised.value)


# ---------------------------------------------------------------- answers


@pytest.fixture(scope="module")
def answers(problem: Power, solver: ACOPF, certifier: Certifier, optimum: Solution) -> list[Answer]:
    nominal, repair = problem.nominal, Projection(solver)
    return [
        certifier.answer(3 * nominal, optimum.state, repair),
        certifier.answer(nominal, optimum.state, repair, optimum=lambda _: optimum.objective),
        replace(certifier.answer(nominal, shifted(optimum.state, 0.01), Untouched()), warning='far, "very" far'),
    ]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_every_answer_is_written_with_its_certificate(
    problem: Power, optimum: Solution, answers: list[Answer], tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"answers{suffix}"
    write_answers(path, problem, answers)
    if suffix == ".csv":
        with path.open(newline="") as file:
            rows = [{k: None if v == "" else v for k, v in row.items()} for row in csv.DictReader(file)]
    else:
        rows = pq.read_table(path).to_pylist()
    assert [row["status"] for row in rows] == ["unsolvable", "certified", "uncertified"]
    assert [row["repair"] for row in rows] == ["interior-cold", "projection", "none"]
    assert "infeasible" in rows[0]["reason"]
    assert rows[2]["warning"] == 'far, "very" far'
    state = [
        f"{name}{i}" for name, count in {"pg": 5, "qg": 5, "v": 14, "theta": 14}.items() for i in range(1, 1 + count)
    ]
    assert all(rows[0][name] is None for name in [*state, "objective", "gap_percent", "moved_pg_percent"])
    for row, answer in list(zip(rows, answers, strict=True))[1:]:
        factors = np.concatenate([np.full(10, 100.0), np.ones(14), np.full(14, 180 / np.pi)])  # MW, MVAr, p.u., degrees
        assert np.allclose([float(row[name]) for name in state], answer.state * factors, rtol=1e-12)
        assert float(row["objective"]) == pytest.approx(answer.objective)
        for law, nu in answer.violations.items():
            assert float(row[f"nu_{law}"]) == pytest.approx(nu, abs=0)
    assert float(rows[1]["gap_percent"]) == pytest.approx(answers[1].gap)
    assert rows[2]["gap_percent"] is None
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_answers_cannot_be_written_to_is_refused_beforehand(tmp_path: Path) -> None:
    for name in ("answers.txt", "answers"):
        with pytest.raises(ValueError, match=r"answers are written to \.csv or \.parquet files"):
            check_writable(tmp_path / name, "answers")
    check_writable(tmp_path / "answers.Parquet", "answers")


def test_a_certificate_is_plain_data(answers: list[Answer]) -> None:
    import json

    for answer in answers:
        held = json.loads(json.dumps(answer.to_dict()))
        assert "state" not in held
        assert held["violations"] == answer.violations

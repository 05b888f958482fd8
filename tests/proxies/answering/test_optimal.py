"""Repairs of any problem: the optimum from a prediction, the prediction if it satisfies all laws, the default."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from torch_laws import by_torch

from ldf.core.certificate import TOLERANCE
from ldf.proxies import open_problem
from ldf.proxies.answering.certifier import Certifier
from ldf.proxies.answering.points import Points, build
from ldf.proxies.answering.repair import Kept, Optimal, Repair, Repaired, fastest
from ldf.proxies.nlp import Solution
from ldf.proxies.problem import Floats, Problem, Solver
from ldf.proxies.program import CLOSE, Program
from ldf.proxies.registry import OWN

CASES = {"power": "case14_ieee", "gas": "24-pipe"}


@dataclass(frozen=True)
class Subject:
    """A problem with points, and a demand between them with its optimum."""

    problem: Problem
    solver: Solver
    points: Points
    demand: Floats
    optimum: Solution


@pytest.fixture(scope="module", params=list(OWN))
def subject(request: pytest.FixtureRequest) -> Subject:
    problem = open_problem(request.param, CASES[request.param])
    solver, demand = problem.solver(), 0.97 * problem.nominal
    points = build(problem, np.outer((0.95, 0.99), problem.nominal))
    return Subject(problem, solver, points, demand, solver.solve(demand))


def recorded(subject: Subject, monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> tuple[Program, list[str]]:
    """IPOPT's solver of the problem, and how it is called; it fails from a warm start if told to."""
    solver, asked = subject.problem.solver("ipopt"), []
    solve = solver._solve

    def record(demand: Floats, start: Floats | Solution, close: bool = False) -> Solution:
        warm = isinstance(start, Solution)
        asked.append(("close" if close else "warm") if warm else "cold")
        found = solve(demand, start, close)
        return replace(found, status="iterations") if warm and fails else found

    monkeypatch.setattr(solver, "_solve", record)
    return solver, asked


class Marked(Repair):
    """Records that it was called."""

    def __init__(self) -> None:
        self.asked: list[Floats] = []

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        self.asked.append(prediction)
        return Repaired(prediction, "another", "optimal")


def shifted(subject: Subject, size: float, seed: int = 0) -> Floats:
    return subject.optimum.state + size * np.random.default_rng(seed).standard_normal(len(subject.optimum.state))


# ---------------------------------------------------------------- the optimum


@pytest.mark.parametrize(("size", "start"), [(0.0, "close"), (1e-4, "close"), (0.05, "warm")])
def test_from_a_prediction_near_the_optimum_that_is_found_with_its_prices(
    subject: Subject, size: float, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, asked = recorded(subject, monkeypatch)
    found = Optimal(solver, subject.points)(subject.demand, shifted(subject, size))
    assert asked == [start]
    assert (found.status, found.repair) == ("optimal", "solver")
    assert found.solution.objective == pytest.approx(subject.optimum.objective, rel=1e-6)
    assert np.array_equal(found.solution.state, found.state)
    np.testing.assert_allclose(found.state, subject.optimum.state, rtol=0, atol=2e-3)
    ours, theirs = subject.problem.prices(found.solution), subject.problem.prices(subject.optimum)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max())


def test_a_prediction_is_close_when_it_hardly_violates_the_model(subject: Subject) -> None:
    solver = subject.problem.solver("ipopt")
    assert solver.violation(subject.demand, subject.optimum.state) < 1e-6
    off = subject.optimum.state.copy()
    off[0] = subject.problem.upper[0] + 0.5
    assert solver.violation(subject.demand, off) >= 0.5 - 1e-9 > CLOSE
    assert solver.violation(1.1 * subject.demand, subject.optimum.state) > CLOSE


def test_if_the_warm_start_fails_it_continues_cold(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    solver, asked = recorded(subject, monkeypatch, fails=True)
    found = Optimal(solver, subject.points)(subject.demand, shifted(subject, 0.05))
    starts = len(solver.starts(subject.demand))
    assert asked == ["warm", *["cold"] * starts]
    assert found.status == "optimal"
    assert not found.solution.warm
    assert found.solution.objective == pytest.approx(subject.optimum.objective, rel=1e-6)


def test_a_prediction_that_is_no_number_is_replaced_by_the_nearest_point(subject: Subject) -> None:
    prediction = subject.optimum.state.copy()
    prediction[2] = np.nan
    found = Optimal(subject.solver, subject.points)(subject.demand, prediction)
    assert found.solution.objective == pytest.approx(subject.optimum.objective, rel=1e-6)


def test_where_there_is_no_optimum_there_is_no_solution(subject: Subject) -> None:
    found = Optimal(subject.solver, subject.points)(50 * subject.demand, subject.optimum.state)
    assert found.status != "optimal"
    assert not found.optimal
    answer = Certifier(subject.problem, TOLERANCE).certify(50 * subject.demand, subject.optimum.state, found)
    assert answer.status == "unsolvable"
    assert answer.reason.startswith(f"the solver ended with {found.status!r}")


# ---------------------------------------------------------------- the prediction, if it is feasible


def test_a_prediction_is_kept_if_and_only_if_it_satisfies_all_laws(subject: Subject) -> None:
    other = Marked()
    repair = Kept(subject.problem.model, TOLERANCE, other)
    sizes = [0.0, 1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2]
    predictions = np.array([shifted(subject, size, seed) for seed, size in enumerate(sizes)])
    predictions = np.concatenate([predictions, np.full((1, predictions.shape[1]), np.nan)])
    demands = np.tile(subject.demand, (len(predictions), 1))
    keeps = (np.max(list(by_torch(subject.problem, demands, predictions).values()), 0) <= TOLERANCE).tolist()
    assert 2 <= sum(keeps) <= len(sizes) - 2
    found = repair.many(demands, predictions)
    for state, kept, answer, demand in zip(predictions, keeps, found, demands, strict=True):
        assert (answer.repair, answer.status) == (("prediction", "predicted") if kept else ("another", "optimal"))
        assert np.array_equal(answer.state, state, equal_nan=True)
        assert repair(demand, state).repair == answer.repair
    assert len(other.asked) == 2 * keeps.count(False)


def test_without_a_repair_of_its_own_a_problem_keeps_or_projects(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(subject.problem), "fast", Problem.fast)
    assert subject.problem.fast(subject.points, TOLERANCE) is None
    repair = fastest(subject.problem, subject.points, TOLERANCE)
    certifier = Certifier(subject.problem, TOLERANCE)
    kept = certifier.answer(subject.demand, subject.optimum.state, repair)
    assert (kept.status, kept.repair) == ("certified", "prediction")
    assert np.array_equal(kept.state, subject.optimum.state)
    off = shifted(subject, 0.01)
    projected = certifier.answer(subject.demand, off, repair)
    assert (projected.status, projected.repair) == ("certified", "projection")
    np.testing.assert_allclose(projected.state, subject.solver.project(subject.demand, off).state, rtol=0, atol=1e-9)

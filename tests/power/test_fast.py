"""Fast repair of dispatches: certificates against the constraints in torch and PYPOWER, answers against the optimum."""

import dataclasses
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from grids import doubled, flow_by_pypower, moved_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_laws import by_torch

from ldf.core.certificate import TOLERANCE
from ldf.power.case import Case, load
from ldf.power.constraints import PowerLaws
from ldf.power.problem import Power
from ldf.proxies.answering.certifier import Answer, Certifier
from ldf.proxies.answering.points import build
from ldf.proxies.answering.repair import Repair, Repaired

FACTORS = np.linspace(0.9, 1.02, 7)
INF = np.inf


def equal_limits() -> Case:
    """case14 with a generator of fixed output, and two buses of fixed voltage, one of them without generators."""
    case = load("case14_ieee")
    p_min, p_max, v_min, v_max = (x.copy() for x in (case.p_min, case.p_max, case.v_min, case.v_max))
    p_min[1] = p_max[1] = 0.3
    v_min[[2, 8]] = v_max[[2, 8]] = 1.006, 1.04
    return dataclasses.replace(case, name="equal", p_min=p_min, p_max=p_max, v_min=v_min, v_max=v_max)


def no_reactive_limits() -> Case:
    """case30 without limits of reactive power, except a lower limit of zero at one generator."""
    case = load("case30_ieee")
    low = np.full(case.generators, -INF)
    low[-1] = 0.0
    return dataclasses.replace(case, name="unlimited", q_min=low, q_max=np.full(case.generators, INF))


def half_limited() -> Case:
    """Two generators at one bus, one of them with reactive power limits."""
    case = doubled()
    q_min, q_max = case.q_min.copy(), case.q_max.copy()
    q_min[0], q_max[0] = -INF, INF
    return dataclasses.replace(case, name="half", q_min=q_min, q_max=q_max)


def costless() -> Case:
    case = load("case14_ieee")
    return dataclasses.replace(case, name="costless", cost=np.zeros_like(case.cost))


def unrated() -> Case:
    """case14 without branch limits."""
    case = load("case14_ieee")
    e = case.branches
    free = {"limit": np.full(e, INF), "angle_min": np.full(e, -INF), "angle_max": np.full(e, INF)}
    return dataclasses.replace(case, name="unrated", **free)


MADE = {
    made.__name__: made
    for made in (equal_limits, no_reactive_limits, half_limited, costless, unrated, moved_reference, doubled)
}


class Subject:
    """A network with its fast repair, its solver and its warm-start points."""

    def __init__(self, name: str) -> None:
        self.case = MADE[name]() if name in MADE else load(name)
        self.problem = Power(self.case)
        self.solver = self.problem.solver()
        self.points = build(self.problem, FACTORS[:, None] * self.problem.nominal)
        self.repair = self.problem.fast(self.points, TOLERANCE)
        self.certifier = Certifier(self.problem, TOLERANCE)
        self.laws = PowerLaws(self.case, torch.float64).constraints(lambda y, _: y, labels=False)

    def broken(self, demand: np.ndarray, state: np.ndarray) -> float:
        """Largest violation of any constraint, by torch."""
        batch, states = SimpleNamespace(demand=torch.from_numpy(demand)[None]), torch.from_numpy(state)[None]
        return max(float(law.violation(law.sigma(states, batch)).max()) for law in self.laws)

    def demands(self, count: int, seed: int = 0) -> np.ndarray:
        """Demands like those of the points, with ± 2 % of noise."""
        rng = np.random.default_rng(seed)
        return self.problem.nominal * rng.uniform(0.9, 1.0, (count, 1)) * rng.uniform(0.98, 1.02, (count, 1))

    def predictions(self, demands: np.ndarray, size: float, seed: int = 0) -> np.ndarray:
        """States of the nearest points plus noise of this size."""
        near = self.points.states[self.points.nearest(demands)]
        return near + size * np.random.default_rng(seed).standard_normal(near.shape)

    def answer(self, demand: np.ndarray, prediction: np.ndarray) -> Answer:
        return self.certifier.answer(demand, prediction, self.repair)


@pytest.fixture(scope="module")
def subject() -> Callable[[str], Subject]:
    return cache(Subject)


# ---------------------------------------------------------------- the certificate


@pytest.mark.parametrize("turns", [0.1, 3.0], ids=["near", "all around"])
@pytest.mark.parametrize("name", ["case14_ieee", "case30_ieee", *MADE])
def test_its_constraints_agree_with_those_in_torch(name: str, turns: float, subject: Callable[[str], Subject]) -> None:
    at, rng, rows = subject(name), np.random.default_rng(0), 100
    case, repair, n = at.case, at.repair, at.case.buses
    dispatch = repair.begin(rng.normal(0, 1, (rows, 2 * n)), np.zeros((rows, len(at.problem.lower))))
    dispatch.p = rng.normal(0, 1, (rows, case.generators))
    dispatch.q[:, repair.flow.generating] = rng.normal(0, 0.5, (rows, len(repair.flow.generating)))
    dispatch.v = rng.uniform(0.8, 1.2, (rows, n)) * np.exp(1j * rng.normal(0, turns, (rows, n)))
    dispatch.injected = repair.flow.injected(dispatch.v)
    states = repair.states(dispatch)
    demands = np.concatenate([dispatch.demanded.real, dispatch.demanded.imag], 1)
    ours, theirs = repair.program.violations(demands, states), by_torch(at.problem, demands, states)
    assert list(ours) == list(theirs)
    for law, nu in ours.items():
        np.testing.assert_allclose(nu, theirs[law], rtol=1e-9, atol=1e-9, err_msg=law)
    assert np.abs(states[:, at.problem.quantities["theta"]][:, case.reference]).max() < 1e-15


def odd(kind: str, at: Subject, demand: np.ndarray, seed: int) -> np.ndarray:
    """A bad prediction of the given kind."""
    rng = np.random.default_rng(seed)
    state = at.predictions(demand[None], 0.0)[0]
    if kind in ("nan", "inf"):
        state[rng.integers(len(state), size=3)] = {"nan": np.nan, "inf": -INF}[kind]
        return state
    return {
        "near": lambda: state + 0.01 * rng.standard_normal(len(state)),
        "random": lambda: rng.standard_normal(len(state)),
        "huge": lambda: state + rng.standard_normal(len(state)) * 10.0 ** rng.uniform(2, 300),
        "shuffled": lambda: rng.permutation(state),
        "nothing": lambda: np.zeros(len(state)),
    }[kind]()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    name=st.sampled_from(["case14_ieee", "case30_ieee"]),
    kind=st.sampled_from(["near", "random", "huge", "nan", "inf", "shuffled", "nothing"]),
    factor=st.floats(0.5, 1.5),
    seed=st.integers(0, 2**32 - 1),
)
def test_certified_answers_satisfy_every_constraint_whatever_the_prediction(
    subject: Callable[[str], Subject], name: str, kind: str, factor: float, seed: int
) -> None:
    pytest.importorskip("pypower")
    at = subject(name)
    demand = factor * at.problem.nominal * np.random.default_rng(seed).uniform(0.9, 1.1, 2 * at.case.buses)
    answer = at.answer(demand, odd(kind, at, demand, seed))
    if answer.status != "certified":
        assert answer.status == "unsolvable"
        assert not at.solver.solve(demand).solved
        return
    assert at.broken(demand, answer.state) <= TOLERANCE + 1e-9
    assert max(answer.violations.values()) <= TOLERANCE
    _, v, theta = np.split(answer.state, [2 * at.case.generators, 2 * at.case.generators + at.case.buses])
    theirs = flow_by_pypower(at.case, demand, answer.state, int(at.case.reference[0]), "voltages")
    np.testing.assert_allclose(v * np.exp(1j * theta), theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
def test_violations_stay_within_the_tolerance(tolerance: float, subject: Callable[[str], Subject]) -> None:
    at = subject("case30_ieee")
    repair, demands = at.problem.fast(at.points, tolerance), at.demands(10)
    found = repair.many(demands, at.predictions(demands, 0.005))
    assert sum(answer.repair == "solver" for answer in found) <= 2
    worst = [at.broken(demand, answer.state) for demand, answer in zip(demands, found, strict=True)]
    assert max(worst) <= tolerance + 1e-9


def test_a_demand_that_no_dispatch_meets_has_no_answer_and_a_reason(subject: Callable[[str], Subject]) -> None:
    for name in ("case14_ieee", "case30_ieee"):
        at = subject(name)
        answer = at.answer(3 * at.problem.nominal, at.points.states[0])
        assert (answer.status, answer.reason) == ("unsolvable", "the solver ended with 'infeasible'")


# ---------------------------------------------------------------- many at once


@pytest.mark.parametrize("size", [0.0, 0.01, 0.05])
def test_many_at_once_are_answered_like_each_alone(size: float, subject: Callable[[str], Subject]) -> None:
    at = subject("case30_ieee")
    demands = at.demands(24)
    demands[5] *= 3
    predictions = at.predictions(demands, size)
    predictions[7, 3] = np.nan
    together = at.repair.many(demands, predictions)
    for demand, prediction, found in zip(demands, predictions, together, strict=True):
        alone = at.repair(demand, prediction)
        assert (found.status, found.repair) == (alone.status, alone.repair)
        assert (found.status == "corrected") == (found.repair != "solver")
        if found.solved:
            np.testing.assert_allclose(found.state, alone.state, rtol=0, atol=TOLERANCE)
    assert (together[5].status, together[5].solved) == ("infeasible", False)
    assert together[7].status in ("corrected", "optimal")
    assert at.repair.many(demands[:0], predictions[:0]) == []


# ---------------------------------------------------------------- networks with something missing


@pytest.mark.parametrize("name", [*MADE])
def test_unusual_networks_are_repaired_without_the_solver(name: str, subject: Callable[[str], Subject]) -> None:
    at = subject(name)
    demands = at.demands(12)
    predictions = at.predictions(demands, 0.01)
    answers = [at.answer(demand, prediction) for demand, prediction in zip(demands, predictions, strict=True)]
    assert {answer.status for answer in answers} == {"certified"}
    for demand, answer in zip(demands, answers, strict=True):
        assert at.broken(demand, answer.state) <= TOLERANCE + 1e-9
    assert sum(answer.repair != "solver" for answer in answers) >= 10, [answer.repair for answer in answers]


# ---------------------------------------------------------------- cost


class Never(Repair):
    """A fallback that fails the test."""

    def __call__(self, demand: np.ndarray, prediction: np.ndarray) -> Repaired:
        raise AssertionError("corrections failed")


@pytest.mark.parametrize(
    ("name", "away"), [("case30_ieee", 0.99), ("case118_ieee", 0.99), ("case118_ieee", 1.01)], ids=str
)
def test_from_the_optimum_of_a_demand_nearby_corrections_lead_near_the_optimum(
    name: str, away: float, subject: Callable[[str], Subject]
) -> None:
    at = subject(name)
    repair = at.problem.fast(at.points, TOLERANCE)
    repair.fallback = Never()
    for demand in at.demands(6):
        near, best = at.solver.solve(away * demand), at.solver.solve(demand)
        assert at.broken(demand, near.state) > 50 * TOLERANCE
        answer = at.certifier.answer(demand, near.state, repair, optimum=best.objective)
        assert answer.status == "certified"
        assert answer.repair.startswith("fast-")
        # Limits may be exceeded by the tolerance, which lowers the cost slightly.
        assert -0.01 < answer.gap < 0.1


def test_a_dispatch_whose_power_flow_is_feasible_is_not_changed(subject: Callable[[str], Subject]) -> None:
    at = subject("case30_ieee")
    case, flow, demand = at.case, at.repair.flow, 0.95 * at.problem.nominal
    inside = dataclasses.replace(case, v_max=case.v_max - 0.005, q_max=case.q_max - 0.01, q_min=case.q_min + 0.01)
    prediction = Power(inside).solver().solve(demand).state
    prediction[: case.generators] += 0.01 * (case.p_max > case.p_min)
    answer = at.answer(demand, prediction)
    assert (answer.status, answer.repair) == ("certified", "flow")
    part, set_at = at.problem.quantities, np.unique(case.at)
    others = np.arange(case.generators) != flow.balancing
    assert np.array_equal(answer.state[part["pg"]][others], prediction[part["pg"]][others])
    np.testing.assert_allclose(answer.state[part["v"]][set_at], prediction[part["v"]][set_at], rtol=0, atol=1e-12)
    assert answer.state[flow.balancing] < prediction[flow.balancing], "the slack gives less where others give more"

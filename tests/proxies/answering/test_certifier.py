"""Certificates are computed from the state, not from what a repair reports."""

from dataclasses import dataclass, fields
from functools import cache

import grids
import numpy as np
import pipelines
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_laws import by_torch

from ldf.core.certificate import TOLERANCE
from ldf.gas.problem import Gas
from ldf.power.problem import Power
from ldf.proxies.answering.certifier import Certifier
from ldf.proxies.answering.repair import Repaired
from ldf.proxies.nlp import Solution
from ldf.proxies.problem import Floats, Problem

MADE = {"power": lambda: Power(grids.three()), "gas": lambda: Gas(pipelines.three())}
WORDS = ["predicted", "corrected", "projected", "optimal", "certified", "acceptable", "infeasible", ""]


@cache
def solved(kind: str) -> tuple[Problem, Certifier, Solution]:
    problem = MADE[kind]()
    return problem, Certifier(problem, TOLERANCE), problem.solver().solve()


@dataclass(frozen=True)
class Lie(Repaired):
    """What a lying repair may return."""

    violations: dict[str, float] | None = None
    objective: float | None = None


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    kind=st.sampled_from(list(MADE)),
    size=st.floats(-8, 1),
    seed=st.integers(0, 2**32 - 1),
    word=st.sampled_from(WORDS),
    handed=st.sampled_from([None, "nothing", "zeros"]),
)
def test_a_repair_that_lies_is_never_believed(kind: str, size: float, seed: int, word: str, handed: str | None) -> None:
    problem, certifier, optimum = solved(kind)
    state = optimum.state + 10**size * np.random.default_rng(seed).standard_normal(len(optimum.state))
    violations = {None: None, "nothing": {}, "zeros": dict.fromkeys(problem.model.laws, 0.0)}[handed]
    lie = Lie(state, "mine", word, True, optimum, violations, 0.0)
    expected = {law: nu[0] for law, nu in by_torch(problem, problem.nominal[None], state[None]).items()}
    answer = certifier.answer(problem.nominal, state, lambda demand, prediction: lie)
    assert list(answer.violations) == list(expected)
    assert answer.violations == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert answer.objective == pytest.approx(float(problem.objective(torch.from_numpy(state)[None])), rel=1e-9)
    assert answer.status == ("certified" if max(answer.violations.values()) <= TOLERANCE else "uncertified")
    assert (answer.reason == "") == (answer.status == "certified")


def test_a_repair_has_no_place_for_violations_or_a_cost() -> None:
    assert {field.name for field in fields(Repaired)} == {"state", "repair", "status", "solved", "solution"}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_no_number_breaks_every_law(kind: str, value: float) -> None:
    problem, certifier, optimum = solved(kind)
    for entry in range(len(optimum.state)):
        state = optimum.state.copy()
        state[entry] = value
        answer = certifier.certify(problem.nominal, optimum.state, Repaired(state, "mine", "optimal"))
        assert answer.status == "uncertified"
        assert set(answer.violations.values()) == {np.inf}


@pytest.mark.parametrize("kind", MADE)
def test_a_state_of_another_size_is_refused(kind: str) -> None:
    problem, certifier, optimum = solved(kind)
    for state in (optimum.state[:-1], np.zeros(0), np.append(optimum.state, 0.0)):
        with pytest.raises(ValueError, match=r"check takes arrays|states should be an array \(1, "):
            certifier.certify(problem.nominal, optimum.state, Repaired(state, "mine", "optimal"))


@pytest.mark.parametrize("kind", MADE)
def test_where_the_solver_failed_there_is_nothing_to_certify(kind: str) -> None:
    problem, certifier, optimum = solved(kind)
    found = Repaired(optimum.state, "solver", "acceptable", solved=False)
    answer = certifier.certify(problem.nominal, optimum.state, found)
    assert (answer.status, answer.reason) == ("unsolvable", "the solver ended with 'acceptable'")


@pytest.mark.parametrize("kind", MADE)
def test_many_are_certified_like_each_alone(kind: str) -> None:
    problem, certifier, optimum = solved(kind)
    rng = np.random.default_rng(0)
    states: Floats = optimum.state + np.geomspace(1e-9, 1, 9)[:, None] * rng.standard_normal((9, len(optimum.state)))
    demands = problem.nominal * rng.uniform(0.99999, 1.00001, (9, 1))
    found = [Repaired(state, "mine", "predicted") for state in states]
    together = certifier.many(demands, states[::-1], found)
    for demand, before, each, answer in zip(demands, states[::-1], found, together, strict=True):
        alone = certifier.certify(demand, before, each)
        assert alone.to_dict() == answer.to_dict()
        assert answer.state is each.state
        for name, quantity in problem.controls.items():
            start, end = before[problem.quantities[quantity]], each.state[problem.quantities[quantity]]
            moved = 100 * np.linalg.norm(end - start) / np.linalg.norm(start)
            assert answer.moved[name] == pytest.approx(moved, rel=1e-9, abs=1e-9)
    assert {answer.status for answer in together} == {"certified", "uncertified"}
    assert certifier.many(demands[:0], states[:0], []) == []


@pytest.mark.parametrize("tolerance", [0.0, -1e-4, np.nan, np.inf])
def test_what_is_no_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(ValueError, match=f"the tolerance must be above 0, got {tolerance}"):
        Certifier(solved("power")[0], tolerance)

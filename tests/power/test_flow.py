"""Power flows against PYPOWER's, and their derivatives against finite differences."""

import re
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from grids import change, doubled, flow_by_pypower, moved_reference, three

from ldf.power.acopf import ACOPF
from ldf.power.case import load
from ldf.power.flow import PowerFlow
from ldf.power.ohm import flows, slopes
from ldf.power.problem import Power
from ldf.proxies.answering.points import Points
from ldf.proxies.answering.repair import Optimal
from ldf.proxies.source import NetworkError

GIVEN = ("voltages", "reactive")
MADE = {"moved": moved_reference, "doubled": doubled, "three": three}
CASES = ("case14_ieee", "case30_ieee", "case118_ieee", *MADE)


class Solved:
    """A network at its optimum, and the injections there."""

    def __init__(self, name: str) -> None:
        self.case = MADE[name]() if name in MADE else load(name)
        self.flow = PowerFlow(self.case)
        self.solver = ACOPF(self.case)
        self.state = self.solver.solve().state
        g, n = self.case.generators, self.case.buses
        self.p, qg, v, theta = np.split(self.state, [g, 2 * g, 2 * g + n])
        self.q = np.zeros(n)
        np.add.at(self.q, self.case.at, qg)
        self.v = v * np.exp(1j * theta)

    def injections(self, demand: np.ndarray, p: np.ndarray | None = None, q: np.ndarray | None = None) -> np.ndarray:
        found = 1j * (self.q if q is None else q) - demand[: self.case.buses] - 1j * demand[self.case.buses :]
        np.add.at(found, self.case.at, self.p if p is None else p)
        return found


@pytest.fixture(scope="module")
def solved() -> Callable[[str], Solved]:
    return cache(Solved)


# ---------------------------------------------------------------- power flows


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", CASES)
def test_newton_and_chord_find_what_pypower_finds(name: str, given: str, solved: Callable[[str], Solved]) -> None:
    pytest.importorskip("pypower")
    at = solved(name)
    flow, demands = at.flow, np.array([0.995, 1.002, 1.004])[:, None] * at.solver.nominal
    theirs = np.array([flow_by_pypower(at.case, demand, at.state, flow.slack, given) for demand in demands])
    injections = np.array([at.injections(demand) for demand in demands])
    ours = np.array([flow.newton(injected, at.v, given) for injected in injections])
    chords, injected, done = flow.chord(injections, np.tile(at.v, (3, 1)), given, flow.factorise(at.v, given))
    assert done.all()
    np.testing.assert_allclose(injected, flow.injected(chords), rtol=0, atol=1e-12)
    for found in (ours, chords):
        np.testing.assert_allclose(found, theirs, rtol=0, atol=1e-7)
        assert np.abs(found - at.v).max() > 1e-5, "the power flow must change the start"


@pytest.mark.parametrize("given", GIVEN)
def test_what_is_given_holds_and_the_slack_balances_the_rest(given: str, solved: Callable[[str], Solved]) -> None:
    at = solved("case30_ieee")
    flow, injected = at.flow, at.injections(1.02 * at.solver.nominal)
    found = flow.newton(injected, at.v, given)
    wrong = np.abs(flow.injected(found) - injected)
    assert found[flow.slack] == pytest.approx(at.v[flow.slack], abs=1e-12)
    assert np.abs((flow.injected(found) - injected)[flow.others].real).max() < 1e-8
    if given == "voltages":
        np.testing.assert_allclose(np.abs(found[flow.generating]), np.abs(at.v[flow.generating]), atol=1e-12)
        assert wrong[flow.reactive].max() > 1e-3
    else:
        assert wrong[flow.others].max() < 1e-8
    assert wrong[flow.slack] > 1e-3


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("demand", [100.0, np.nan, np.inf])
def test_an_infeasible_power_flow_gives_none_and_does_not_affect_the_next(
    given: str, demand: float, solved: Callable[[str], Solved]
) -> None:
    at = solved("case14_ieee")
    nominal = at.solver.nominal
    fine, bad = at.injections(nominal), at.injections(nominal)
    bad[3] = -demand * (1 + 1j)
    before = at.flow.newton(fine, at.v, given)
    assert at.flow.newton(bad, at.v, given) is None
    np.testing.assert_allclose(at.flow.newton(fine, at.v, given), before, rtol=0, atol=1e-9)
    found, _, done = at.flow.chord(
        np.array([fine, bad, fine]), np.tile(at.v, (3, 1)), given, at.flow.factorise(at.v, given)
    )
    assert done.tolist() == [True, False, True]
    np.testing.assert_allclose(found[[0, 2]], np.tile(before, (2, 1)), rtol=0, atol=1e-7)


def test_a_start_with_nan_does_not_converge(solved: Callable[[str], Solved]) -> None:
    at = solved("case14_ieee")
    start, injected = at.v.copy(), at.injections(at.solver.nominal)
    start[2] = np.nan
    assert at.flow.newton(injected, start, "reactive") is None
    assert at.flow.newton(injected, at.v, "reactive") is not None


# ---------------------------------------------------------------- which bus is the slack


def test_two_reference_buses_are_refused_and_their_network_is_repaired_by_the_solver() -> None:
    case = three(change("bus", 2, {1: 3}))
    with pytest.raises(NetworkError, match=re.escape("three has 2 reference buses; a power flow needs one")):
        PowerFlow(case)
    problem = Power(case)
    empty = np.zeros((0, 1))
    points = Points(empty, empty, empty, empty)
    assert problem.sensitivities(points) == {}
    assert isinstance(problem.fast(points, 1e-4), Optimal)


def test_without_a_generator_at_the_reference_the_widest_range_balances(solved: Callable[[str], Solved]) -> None:
    case, flow = solved("moved").case, solved("moved").flow
    assert case.bus[case.reference].tolist() == [5]
    assert 5 not in case.bus[case.at]
    room = case.p_max - case.p_min
    assert flow.balancing == int(np.argmax(room))
    assert flow.slack == case.at[flow.balancing]


def test_a_reference_whose_generators_cannot_move_does_not_balance() -> None:
    flow = PowerFlow(three(change("gen", 1, {8: 40.0, 9: 40.0})))
    assert flow.slack == 1
    assert flow.balancing == 1
    assert flow.free.tolist() == []
    assert flow.reactive.tolist() == [0]


def test_of_several_generators_at_the_slack_one_balances_and_the_others_are_free(
    solved: Callable[[str], Solved],
) -> None:
    case, flow = solved("doubled").case, solved("doubled").flow
    assert case.bus[flow.slack] == 1
    here = np.flatnonzero(case.at == flow.slack)
    assert len(here) == 2
    assert len(set(here) & set(flow.free)) == 1
    assert flow.balancing in here
    assert flow.balancing not in flow.free
    stuck = np.flatnonzero(case.p_min == case.p_max)
    assert not set(stuck) & set(flow.free)
    assert flow.controls == len(flow.free) + len(np.unique(case.at)) - 1 + 1


# ---------------------------------------------------------------- derivatives


@pytest.mark.parametrize("name", CASES)
def test_the_jacobian_is_that_of_finite_differences(name: str, solved: Callable[[str], Solved]) -> None:
    at, rng, step = solved(name), np.random.default_rng(0), 1e-6
    flow, n = at.flow, at.case.buses
    v, theta = np.abs(at.v) + 0.02 * rng.standard_normal(n), np.angle(at.v) + 0.05 * rng.standard_normal(n)
    jacobian = flow.jacobian(v * np.exp(1j * theta))
    for along in rng.standard_normal((6, 2 * n)):
        ahead, behind = (
            flow.injected((v + sign * step * along[n:]) * np.exp(1j * (theta + sign * step * along[:n])))
            for sign in (1, -1)
        )
        slope = (ahead - behind) / (2 * step)
        np.testing.assert_allclose(
            jacobian @ along, np.concatenate([slope.real, slope.imag]), rtol=1e-6, atol=1e-6 * np.abs(slope).max()
        )


@pytest.mark.parametrize("name", ["case14_ieee", "case30_ieee", *MADE])
def test_sensitivities_are_what_power_flows_do_when_a_control_moves(name: str, solved: Callable[[str], Solved]) -> None:
    at, step = solved(name), 1e-5
    case, flow, demand = at.case, PowerFlow(at.case, precision=1e-12), at.solver.nominal
    injected = at.injections(demand)
    v = flow.newton(injected, at.v, "reactive")
    others = np.flatnonzero((case.at == flow.slack) & (np.arange(case.generators) != flow.balancing))

    def outcome(control: int, by: float) -> np.ndarray:
        """[θ, v, p of the slack, q of the slack] where one control has moved."""
        p, q, start = at.p.copy(), at.q.copy(), v.copy()
        if control < len(flow.free):
            p[flow.free[control]] += by
        elif control < flow.controls - 1:
            q[flow.reactive[control - len(flow.free)]] += by
        else:
            start[flow.slack] *= 1 + by / abs(start[flow.slack])
        found = flow.newton(at.injections(demand, p, q), start, "reactive")
        drawn = flow.injected(found)[flow.slack] + demand[flow.slack] + 1j * demand[case.buses + flow.slack]
        return np.concatenate([np.angle(found), np.abs(found), [drawn.real - p[others].sum(), drawn.imag]])

    found = flow.sensitivity(v)
    assert found.shape == (2 * case.buses + 2, flow.controls)
    wanted = np.array([(outcome(c, step) - outcome(c, -step)) / (2 * step) for c in range(flow.controls)]).T
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["case30_ieee", "case118_ieee", "three"])
def test_slopes_of_flows_are_those_of_finite_differences(name: str, solved: Callable[[str], Solved]) -> None:
    arcs, rng, step = solved(name).case.arcs, np.random.default_rng(0), 1e-6
    size = len(arcs.source)
    at = {
        "delta": rng.normal(0, 0.4, size),
        "first": rng.uniform(0.9, 1.1, size),
        "second": rng.uniform(0.9, 1.1, size),
    }
    numbers = SimpleNamespace(**{k: getattr(arcs, k) for k in ("g_self", "b_self", "g_mutual", "b_mutual")})

    def seen(delta: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.array(flows(numbers, first, second, np.cos(delta), np.sin(delta)))

    p, q = seen(**at)
    found = np.array(slopes(numbers, p, q, at["first"], at["second"]))
    assert found.shape == (2, 3, size)
    for column, name_of in enumerate(at):
        ahead, behind = (seen(**{**at, name_of: at[name_of] + sign * step}) for sign in (1, -1))
        np.testing.assert_allclose(found[:, column], (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)

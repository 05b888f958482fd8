"""Laws and cost of a program, differentiated through CasADi: compared with finite differences and laws in torch."""

import casadi
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ldf.core.batch import Batch
from ldf.io.data import DataError
from ldf.proxies import Problem, open_problem
from ldf.proxies.laws import Compiled, ProgramLaws

F64 = torch.float64
CASES = [("power", "case14_ieee"), ("power", "case30_as"), ("gas", "24-pipe"), ("gas", "gaslib-40")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case[1])
def problem(request: pytest.FixtureRequest) -> Problem:
    try:
        return open_problem(*request.param)
    except DataError as reason:
        pytest.skip(f"no data: {reason}")


def rows(problem: Problem, count: int, size: float = 0.05, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Demands and states near the optimum."""
    random = np.random.default_rng(seed)
    state = problem.solver().solve().state
    demands = problem.nominal * random.uniform(0.9, 1.1, (count, len(problem.nominal)))
    return torch.from_numpy(demands), torch.from_numpy(state + size * random.standard_normal((count, len(state))))


def test_they_are_the_laws_in_torch_with_the_same_slopes(problem: Problem) -> None:
    demands, states = rows(problem, 3)
    batch = Batch(inputs=demands, demand=demands)
    read = lambda y, _: y  # noqa: E731
    ours = {law.name: law for law in ProgramLaws(problem.model).constraints(read)}
    theirs = {law.name: law for law in problem.constraints(read, F64, labels=False)}
    assert set(ours) == set(theirs)
    for name, law in theirs.items():
        assert ours[name].kind == law.kind
        first, second = states.clone().requires_grad_(), states.clone().requires_grad_()
        found, wanted = ours[name].sigma(first, batch), law.sigma(second, batch)
        assert torch.allclose(found.sort(1).values, wanted.sort(1).values, rtol=1e-9, atol=1e-9), name
        slopes = [torch.autograd.grad(sigma.square().sum(), at)[0] for sigma, at in ((found, first), (wanted, second))]
        assert torch.allclose(*slopes, rtol=1e-7, atol=1e-7), name


def test_the_cost_is_the_solvers_with_its_slope(problem: Problem) -> None:
    solution = problem.solver().solve()
    found = problem.objective(torch.from_numpy(solution.state)[None])
    assert float(found) == pytest.approx(solution.objective, rel=1e-9)
    _, states = rows(problem, 2, size=0.01)
    assert np.allclose(problem.objective(states).numpy(), problem.model.costs(states.numpy()), rtol=1e-12)
    along = torch.randn(states.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    at = states.clone().requires_grad_()
    slope = (torch.autograd.grad(problem.objective(at).sum(), at)[0] * along).sum()
    ahead, behind = (problem.objective(states + sign * 1e-6 * along).sum() for sign in (1, -1))
    assert float(slope) == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-5)


def curved() -> Compiled:
    """[sin(x₀) d₀ + x₁², max(x₁, x₂)], of three numbers and one."""
    x, d = casadi.SX.sym("x", 3), casadi.SX.sym("d", 1)
    both = casadi.vertcat(casadi.sin(x[0]) * d + x[1] ** 2, casadi.fmax(x[1], x[2]))
    return Compiled(casadi.Function("curved", [x, d], [both]))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_derivatives_are_those_of_finite_differences(count: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states = 2 * torch.rand(count, 3, generator=generator, dtype=F64) - 1
    states[:, 2] += 2 * torch.sign(states[:, 2] - states[:, 1])  # away from where the maximum bends
    demands = torch.rand(count, 1, generator=generator, dtype=F64)
    assert torch.autograd.gradcheck(curved(), (states.requires_grad_(), demands))


def test_precision_of_the_input_is_that_of_the_output_and_nothing_is_lost_in_between() -> None:
    function, demands = curved(), torch.tensor([[3.0]])
    states = torch.tensor([[0.1, 0.2, 0.3]], requires_grad=True)
    found = function(states, demands)
    assert found.dtype == torch.float32
    found.sum().backward()
    assert states.grad.dtype == torch.float32
    assert torch.allclose(states.grad, torch.tensor([[3 * np.cos(0.1), 0.4, 1.0]], dtype=torch.float32))


def test_states_may_change_in_place_before_the_backward_pass() -> None:
    start = torch.tensor([[0.1, 0.2, 0.3]], dtype=F64, requires_grad=True)
    states = start * 1
    total = curved()(states, torch.ones(1, 1, dtype=F64)).sum()
    states.data.zero_()
    total.backward()
    assert float(start.grad[0, 0]) == pytest.approx(np.cos(0.1))


def test_no_row_is_no_row() -> None:
    assert curved()(torch.zeros(0, 3), torch.zeros(0, 1)).shape == (0, 2)


def test_all_laws_of_a_batch_come_from_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = open_problem("gas", "24-pipe")
    demands, states = rows(problem, 2)
    batch = Batch(inputs=demands, demand=demands)
    physics, calls = ProgramLaws(problem.model), []
    evaluate = physics.degrees
    physics.degrees = lambda *given: calls.append(1) or evaluate(*given)
    laws = physics.constraints(lambda y, _: y)
    for law in laws:
        law.sigma(states, batch)
    assert len(laws) > 2
    assert len(calls) == 1


def test_a_compiler_leaves_them_alone() -> None:
    function = torch.compile(lambda x, d: 2 * curved_once(x, d), backend="eager")
    states, demands = torch.rand(2, 3, dtype=F64, requires_grad=True), torch.rand(2, 1, dtype=F64)
    assert torch.equal(function(states, demands), 2 * curved_once(states, demands))


curved_once = curved()

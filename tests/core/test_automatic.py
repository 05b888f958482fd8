"""The default rule: it notices where loss and constraint disagree, and prices the constraint by the gradients."""

import functools
from dataclasses import replace

import pytest
import torch
from helpers import PROBLEMS, Problem
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss

import ldf
from ldf.core.dual import Moment, rules_for
from ldf.core.gradients import LeastSquares, Measured
from ldf.core.multiplier import Multiplier
from ldf.training.settings import Settings
from ldf.training.task import plan_updates

FEASIBLE = [problem for problem in PROBLEMS if problem.solution is not None]


@functools.cache
def solved(name: str, rule, degree: str, scale: float) -> ldf.Fit:
    (problem,) = [problem for problem in FEASIBLE if problem.name == name]
    scaled = {key: lambda y, sigma=sigma: scale * sigma(y) for key, sigma in problem.sigmas.items()}
    return replace(problem, sigmas=scaled).solve(rule, degree, epochs=300)


def distance(done: ldf.Fit, problem: Problem) -> float:
    return float((done.model.x.detach() - torch.tensor(problem.solution, dtype=torch.float64)).abs().max())


@pytest.mark.parametrize("scale", [1.0, pytest.param(1000.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("problem", FEASIBLE, ids=lambda problem: problem.name)
def test_the_default_finds_the_solution_in_any_units(problem: Problem, scale: float) -> None:
    done = solved(problem.name, "auto", "violation", scale)
    assert distance(done, problem) < 2e-3
    for name, value in problem.multipliers.items():
        assert scale * float(done.multipliers[name]) == pytest.approx(1.3 * abs(value), abs=1e-2)


@pytest.mark.parametrize("step", [0.1, 1.0])
@pytest.mark.parametrize("problem", FEASIBLE, ids=lambda problem: problem.name)
def test_normalised_ascent_on_plain_sigma_does_not_diverge(problem: Problem, step: float) -> None:
    done = solved(problem.name, ldf.Ascent(step), "satisfiability", 1.0)
    assert distance(done, problem) < 1e-3
    for name, value in problem.multipliers.items():
        assert float(done.multipliers[name]) == pytest.approx(value, abs=1e-3)


def test_a_step_that_is_far_too_large_does_not_overflow() -> None:
    (problem,) = [problem for problem in FEASIBLE if problem.name == "line"]
    done = problem.solve(ldf.Ascent(1.0), "violation", epochs=300)
    assert distance(done, problem) < 0.1


# ---------------------------------------------------------------- what is measured

numbers = st.floats(-3, 3).map(lambda value: round(value, 3))


@settings(max_examples=30)
@given(st.lists(numbers, min_size=3, max_size=3), st.lists(numbers, min_size=3, max_size=3), numbers)
def test_the_price_of_a_linear_constraint_is_its_optimal_multiplier(targets, normal, level) -> None:
    """min ½‖y − t‖² s.t. aᵀy ≤ b has λ* = (aᵀt − b)/‖a‖² if that is positive, wherever it is measured."""
    t, a = torch.tensor([targets], dtype=torch.float64), torch.tensor(normal, dtype=torch.float64)
    optimal = (t @ a - level) / (a @ a).clamp_min(1e-9)
    y = torch.zeros_like(t).requires_grad_()
    if float(a.norm()) < 0.5 or float(-level) < 0.01 or float(optimal) < 0.01:
        return  # the constraint must be violated at y = 0, and active at the optimum
    limit = ldf.inequality("limit", lambda y, batch: (y @ a - level)[:, None])
    lagrangian = ldf.Lagrangian([limit], updates=10, labelled=False)
    lagrangian.prepare(0.5 * (y - t).square().sum(), y, None)
    assert float(lagrangian.fresh[0, 4]) == pytest.approx(float(optimal), rel=0.01, abs=0.01)


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 100))
def test_least_squares_multipliers_and_corrections(columns, more, seed) -> None:
    """Both against the regularised normal equations and, for matrices far from singular, against the pseudoinverse."""
    random = torch.Generator().manual_seed(seed)
    wide = torch.randn(3, columns, columns + more, generator=random, dtype=torch.float64)
    wide = wide + 4 * torch.eye(columns, columns + more, dtype=torch.float64)
    for jacobians in (wide, torch.cat([wide, wide], 1)):  # the second has more columns than values
        sizes = jacobians.square().sum(2).amax(0).sqrt()
        scaled = jacobians / sizes[:, None]
        inverse = torch.linalg.inv(scaled @ scaled.mT + 1e-3 * torch.eye(len(sizes), dtype=torch.float64))
        pulls = torch.randn(3, columns + more, 1, generator=random, dtype=torch.float64)
        sigma = jacobians @ torch.randn(3, columns + more, 1, generator=random, dtype=torch.float64)
        solver = LeastSquares(jacobians)
        found = solver.multipliers(pulls[:, :, 0]), solver.correction(sigma[:, :, 0])
        multipliers = -(inverse @ scaled @ pulls)[:, :, 0] / sizes
        torch.testing.assert_close(found, (multipliers, -(scaled.mT @ inverse @ (sigma / sizes[:, None]))[:, :, 0]))
        if torch.linalg.svdvals(wide / sizes[:columns, None]).min() > 0.3:
            inverse = torch.linalg.pinv(jacobians)
            exact = -(inverse.mT @ pulls)[:, :, 0], -(inverse @ sigma)[:, :, 0]
            torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05)


def conflict(target: float) -> float:
    """κ of y ≤ 1 for labels at this value and predictions at 2."""
    y = torch.full((32, 1), 2.0, requires_grad=True)
    lagrangian = ldf.Lagrangian([ldf.inequality("limit", lambda y, batch: y - 1)], updates=10)
    lagrangian.prepare(mse_loss(y, torch.full((32, 1), target)), y, None)
    return float(lagrangian.fresh[0, 3])


def test_labels_that_break_a_constraint_are_in_conflict_with_it() -> None:
    assert conflict(3.0) == pytest.approx(1.0)
    assert conflict(2.0) == pytest.approx(1.0)  # no gradient at y = 2, but one where the constraint is satisfied
    assert conflict(0.5) == pytest.approx(-1.0)


# ---------------------------------------------------------------- training


def disputed(fit: ldf.Fit, name: str) -> bool:
    (multiplier,) = [m for m in fit.lagrangian.multiplier_list if m.constraint.name == name]
    return bool(multiplier.disputed.any())


def line(slope: float, limit: float, dual="auto") -> ldf.Fit:
    """Labels slope·x + noise on [0, 1], and y ≤ limit."""
    random = torch.Generator().manual_seed(0)
    x = torch.rand(512, 1, generator=random)
    targets = slope * x + 0.05 * torch.randn(512, 1, generator=random)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))
    cap = ldf.inequality("cap", lambda y, batch: y - limit)
    options = {"loss": mse_loss, "epochs": 60, "lr": 1e-2, "schedule": "cosine"}
    return ldf.fit(model, (x, targets), constraints=[cap], dual=dual, **options)


def test_labels_that_break_a_rule_are_overruled() -> None:
    default, balanced = line(1.0, 0.5), line(1.0, 0.5, ldf.Balanced())
    assert disputed(default, "cap")
    assert default.history["excess/cap"][-1] <= 1
    assert balanced.history["nu_mean/cap"][-1] > 20 * default.history["nu_mean/cap"][-1]
    x = torch.linspace(0, 1, 101)[:, None]
    with torch.no_grad():
        assert float((default.model(x) - x.clamp(max=0.5)).abs().max()) < 0.06


def test_labels_that_obey_a_rule_are_not_disputed() -> None:
    default, balanced = line(1.0, 1.2), line(1.0, 1.2, ldf.Balanced())
    assert not disputed(default, "cap")
    assert default.history["loss"][-1] == pytest.approx(balanced.history["loss"][-1], rel=0.02)


def test_a_quadratic_program_is_learned_without_labels() -> None:
    """min ½‖y‖² + pᵀy s.t. Σ y = x, y ≥ 0, against its solution by bisection on the multiplier of the sum."""
    torch.manual_seed(0)
    p, x = torch.rand(4), 0.5 + torch.rand(1000, 1)
    low, high = torch.full((1000, 1), -5.0), torch.full((1000, 1), 5.0)
    for _ in range(60):
        middle = (low + high) / 2
        short = (middle - p).clamp(min=0).sum(1, keepdim=True) < x
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    optimal = (middle - p).clamp(min=0)

    def cost(y, batch):
        return (0.5 * y.square() + p * y).sum(1).mean()

    constraints = [
        ldf.equality("sum", lambda y, batch: y.sum(1, keepdim=True) - batch.inputs),
        ldf.inequality("positive", lambda y, batch: -y),
    ]
    model = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 4))
    fit = ldf.fit(model, {"inputs": x}, loss=cost, constraints=constraints, lr=1e-2, schedule="cosine", epochs=60)
    assert disputed(fit, "sum")
    with torch.no_grad():
        y = fit.model(x)
    assert float((y - optimal).abs().max()) < 0.05
    assert float(fit.certify(y, ldf.Batch(inputs=x))["sum"].mean) < 0.01
    assert float(fit.multipliers["sum"].detach()) > float((p + optimal).max(1).values.max()) * 0.8  # its largest λ*


def test_columns_of_different_units_are_all_enforced() -> None:
    torch.manual_seed(0)
    x, weights = torch.rand(512, 1), torch.tensor([1.0, 1000.0])
    limits = ldf.inequality("limits", lambda y, batch: (y - 0.8) * weights)
    targets = torch.cat([x + 0.5, x + 0.5], 1)
    for dual in ("auto", ldf.Ascent(1.0), ldf.Augmented()):
        model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 2))
        constraint = limits if dual == "auto" else replace(limits, multiplier="column")
        options = {"loss": mse_loss, "epochs": 60, "lr": 1e-2, "schedule": "cosine", "update_every": 4}
        fit = ldf.fit(model, (x, targets), constraints=[constraint], dual=dual, **options)
        with torch.no_grad():
            excess = (fit.model(x) - 0.8).clamp(min=0)
        assert float(excess.mean(0).max()) < 5e-3, dual
        first, second = fit.multipliers["limits"].tolist()
        assert first == pytest.approx(1000 * second, rel=0.2), dual


def test_a_rate_is_held_by_a_signed_multiplier() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 2, generator=random)
    targets = (x[:, 0] + torch.randn(2000, generator=random) > 1.5).long()
    positives = ldf.Groups("targets", 2, compare=lambda means: 0.9 - means[1])
    recall = ldf.inequality("recall", lambda y, b: y.sigmoid(), scope=positives, exact=lambda y, b: (y > 0).float())

    def loss(y, batch):
        return nn.functional.binary_cross_entropy_with_logits(y[:, 0], batch.targets.float())

    options = {"loss": loss, "epochs": 40, "lr": 3e-2, "schedule": "cosine"}
    torch.manual_seed(0)
    fit = ldf.fit(nn.Linear(2, 1), {"inputs": x, "targets": targets}, constraints=[recall], **options)
    with torch.no_grad():
        found = (fit.model(x)[targets == 1] > 0).double().mean()
    assert float(found) == pytest.approx(0.9, abs=0.015)  # held, and not exceeded


def test_the_rule_of_each_scope_and_how_often_it_moves() -> None:
    rows, groups = ldf.inequality("a", lambda y, b: y), ldf.equality("b", lambda y, b: y, scope=ldf.Groups("sex", 2))
    assert rules_for([rows, groups], "auto") == (ldf.Automatic(), ldf.Levelling())

    class Task:
        def __init__(self, epochs, steps, update_every=None):
            self.settings, self.steps, self.update_every = Settings(loss=mse_loss, epochs=epochs), steps, update_every

    assert plan_updates(Task(200, 50), [ldf.Automatic()]) == 200
    assert plan_updates(Task(10, 500), [ldf.Automatic()]) == 100
    assert plan_updates(Task(20, 8), [ldf.Automatic()]) == 40  # not before 5 steps
    assert plan_updates(Task(10, 500), [ldf.Ascent(1.0)]) == 10
    assert plan_updates(Task(10, 500, update_every=50), [ldf.Automatic()]) == 100


def test_a_dispute_ends_at_four_times_the_price() -> None:
    rule = ldf.Automatic()
    state = rule.start(torch.zeros(2))
    for k in range(200):
        rule.update(state, torch.tensor([1.0, 0.0]), Moment(k, 200, 1e-3, conflict=0.9))
    assert state["multiplier"].tolist() == pytest.approx([4.0, 1.0])
    assert rule.cut(state) == float("inf")


def test_units_follow_the_model_at_first_and_steps_later() -> None:
    constraint = ldf.inequality("a", lambda y, b: y)
    multiplier = Multiplier(constraint, ldf.Ascent(1.0), 1, None, torch.zeros(()))

    def learn(pull: float, k: int) -> None:
        measured = [torch.tensor([value]) for value in (pull, 1.0, 1.0, -torch.inf, 0.0)]
        multiplier.learn(Measured(*measured), k, horizon=100)

    learn(100.0, 0)
    multiplier.multiplier.fill_(2.0)
    assert float(multiplier.value) == 200
    learn(0.0, 1)
    assert float(multiplier.value) == 100  # u is the moving average of 100 and 0, and λ follows
    learn(0.0, 64)
    assert float(multiplier.value) == pytest.approx(100)  # λ stays, the unit of its steps has halved
    assert float(multiplier.unit) == 25

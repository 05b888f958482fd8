"""Every dual rule on every problem with a known solution: x*, λ*, and which constraints are infeasible."""

import functools
import math
import re
from dataclasses import replace

import pytest
import torch
from helpers import PROBLEMS, RULES, Problem

import ldf
from ldf.core.dual import Moment

FEASIBLE = [problem for problem in PROBLEMS if problem.solution is not None]
(INFEASIBLE,) = [problem for problem in PROBLEMS if problem.solution is None]
CLASSICAL = ["ascent", "literal", "nupi", "augmented"]


@functools.cache
def solved(name: str, rule: str, degree: str = "violation", scale: float = 1.0) -> ldf.Fit:
    """The problem with its constraints in other units; several tests share one solution."""
    (problem,) = [problem for problem in PROBLEMS if problem.name == name]
    scaled = {key: lambda y, sigma=sigma: scale * sigma(y) for key, sigma in problem.sigmas.items()}
    return replace(problem, sigmas=scaled).solve(RULES[rule], degree, epochs=300)


def distance(done: ldf.Fit, problem: Problem) -> float:
    assert problem.solution is not None
    return float((done.model.x.detach() - torch.tensor(problem.solution, dtype=torch.float64)).abs().max())


SCALED = [(problem.name, rule, 1.0) for problem in FEASIBLE for rule in CLASSICAL]
SCALED += [(problem.name, rule, 1000.0) for problem in FEASIBLE for rule in CLASSICAL if RULES[rule].normalise]
UNITS = [
    pytest.param(
        *case, marks=pytest.mark.soak if case[2] > 1 and case[0] != "line" else (), id="-".join(map(str, case))
    )
    for case in SCALED
]


@pytest.mark.parametrize(("name", "rule", "scale"), UNITS)
def test_sigma_ascent_finds_the_solution_and_its_multipliers(name: str, rule: str, scale: float) -> None:
    (problem,) = [problem for problem in FEASIBLE if problem.name == name]
    done = solved(name, rule, "satisfiability", scale)
    assert distance(done, problem) < 1e-3
    for constraint, value in problem.multipliers.items():
        assert scale * float(done.multipliers[constraint]) == pytest.approx(value, abs=2e-3)


@pytest.mark.parametrize(("name", "rule", "scale"), UNITS)
def test_nu_ascent_finds_the_solution_with_larger_multipliers(name: str, rule: str, scale: float) -> None:
    (problem,) = [problem for problem in FEASIBLE if problem.name == name]
    done = solved(name, rule, "violation", scale)
    # Steps overshoot the kink of λ|σ| by their size, which grows with λ; on the circle λ grows most.
    assert distance(done, problem) < (5e-3 if (name, rule) == ("circle", "ascent") else 2e-3)
    for constraint, value in problem.multipliers.items():
        assert scale * float(done.multipliers[constraint]) >= abs(value) - 1e-2


@pytest.mark.parametrize("degree", ["violation", "satisfiability"])
@pytest.mark.parametrize("name", ["qp", "line"])
def test_balanced_finds_the_multipliers_of_a_quadratic_without_a_step(name: str, degree: str) -> None:
    (problem,) = [problem for problem in PROBLEMS if problem.name == name]
    done = solved(name, "balanced", degree)
    assert distance(done, problem) < 0.1  # without the constraint: 1 and 2
    for constraint, value in problem.multipliers.items():
        assert abs(float(done.multipliers[constraint])) == pytest.approx(abs(value), abs=0.01)


@pytest.mark.parametrize("degree", ["violation", pytest.param("satisfiability", marks=pytest.mark.soak)])
@pytest.mark.parametrize("rule", RULES)
def test_the_doctor_names_the_infeasible_pair(rule: str, degree: str) -> None:
    done = solved("infeasible", rule, degree)
    diagnosis = done.doctor()
    verdicts = [advice.verdict for advice in diagnosis.advice]
    assert "infeasible" in verdicts, str(diagnosis)
    found = diagnosis.advice[verdicts.index("infeasible")]
    assert {"above": "below", "below": "above"}[found.constraint] in found.finding


# Without its circle the objective x₁ + x₂ has no minimum: `Balanced` then has no gradient to balance against.
BOUNDED = [(p.name, rule) for p in FEASIBLE for rule in RULES if (p.name, rule) != ("circle", "balanced")]


@pytest.mark.parametrize(("name", "rule"), BOUNDED)
def test_no_rule_calls_a_feasible_problem_infeasible(name: str, rule: str) -> None:
    done = solved(name, rule)
    assert "infeasible" not in [advice.verdict for advice in done.doctor().advice], str(done.doctor())
    assert all(math.isfinite(float(value)) for value in done.multipliers.values())


def moment(k: int = 0, horizon: int | None = 10) -> Moment:
    return Moment(k, horizon, 1e-3)


def test_nupi_is_ascent_plus_a_proportional_term() -> None:
    rule = ldf.NuPI(0.1, proportional=2.0, smoothing=0.5)
    state = rule.start(torch.zeros(2))
    rule.update(state, torch.tensor([1.0, 0.5]), moment())
    torch.testing.assert_close(state["multiplier"], torch.tensor([0.1 + 2 * 0.5, 0.05 + 2 * 0.25]))
    rule.update(state, torch.tensor([0.0, 0.5]), moment(1))
    torch.testing.assert_close(state["multiplier"], torch.tensor([1.1 - 2 * 0.25, 0.55 + 0.05 + 2 * 0.125]))


def test_augmented_grows_its_penalty_only_while_the_violation_does_not_fall() -> None:
    rule = ldf.Augmented(penalty=0.5, growth=2.0, limit=3.0)
    state = rule.start(torch.zeros(()))
    for violation, penalty in ((1.0, 0.5), (0.5, 0.5), (0.45, 1.0), (0.44, 2.0), (0.43, 3.0), (1e-4, 3.0)):
        rule.update(state, torch.tensor(violation), moment())
        assert float(state["penalty"]) == penalty
    assert float(state["multiplier"]) == pytest.approx(
        0.5 * 1 + 0.5 * 0.5 + 0.5 * 0.45 + 0.44 + 2 * 0.43 + 3 * 1e-4, abs=1e-6
    )


def test_balanced_warms_up_ramps_and_decays() -> None:
    rule = ldf.Balanced()
    state = rule.start(torch.zeros(()))
    course = []
    for k in range(10):
        rule.update(state, torch.tensor(1.0 if k < 8 else 0.0), moment(k, 10))
        course.append(float(state["multiplier"]))
    assert course[:2] == [0.0, 0.0]
    assert course[2:5] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert course[5:8] == [1.0, 1.0, 1.0]
    assert course[8:] == pytest.approx([0.9, 0.81])


@pytest.mark.parametrize(
    ("multiplier", "initial"),
    [("constraint", 0.5), ("column", 0.5), ("column", (0.5, 2.0)), ("sample", 0.5), ("sample", (0.5, 2))],
)
def test_ascent_begins_where_it_is_told_to(multiplier: str, initial: float | tuple[float, ...]) -> None:
    sigma = torch.tensor([[1.0, -1.0], [3.0, 2.0], [-4.0, 1.0]], dtype=torch.float64, requires_grad=True)
    nu = sigma.detach().clamp_min(0)
    cap = ldf.inequality("cap", lambda y, batch: y, multiplier=multiplier)
    lagrangian = ldf.Lagrangian([cap], ldf.Ascent(0.1, normalise=False, initial=initial), rows=3)
    batch = ldf.Batch(ids=torch.arange(3))
    loss = lagrangian(sigma.sum() * 0, sigma, batch)
    start = torch.tensor(initial, dtype=torch.float64)
    weighed = nu.mean(1) * start if multiplier == "constraint" else (nu * start).sum(1)
    torch.testing.assert_close(loss.detach(), weighed.mean())
    lagrangian.ascend()
    moved = {"constraint": nu.mean(1).sum(), "column": nu.sum(0), "sample": nu}[multiplier]
    torch.testing.assert_close(lagrangian.multipliers["cap"], start + 0.1 * moved)


def test_a_start_beyond_the_cap_is_the_cap() -> None:
    cap = ldf.inequality("cap", lambda y, batch: y, multiplier="column", cap=1.0)
    lagrangian = ldf.Lagrangian([cap], ldf.Ascent(0.1, normalise=False, initial=(0.5, 7.0)))
    y = torch.ones(2, 2, requires_grad=True)
    lagrangian(y.mean(), y, ldf.Batch())
    assert lagrangian.multipliers["cap"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(("multiplier", "shape"), [("constraint", []), ("column", [2]), ("sample", [3, 2])])
def test_a_start_of_another_length_is_refused(multiplier: str, shape: list[int]) -> None:
    cap = ldf.inequality("cap", lambda y, batch: y, multiplier=multiplier)
    lagrangian = ldf.Lagrangian([cap], ldf.Ascent(0.1, normalise=False, initial=(1.0, 2.0, 3.0)), rows=3)
    y = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match=re.escape(f"3 initial multipliers for a multiplier of shape {shape}")):
        lagrangian(y.mean(), y, ldf.Batch(ids=torch.arange(3)))


def test_adam_is_torch_adam() -> None:
    rule, reference = ldf.Adam(0.05), torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([reference], lr=0.05, maximize=True)
    state = rule.start(torch.zeros(3))
    for k in range(20):
        violation = torch.rand(3, generator=torch.Generator().manual_seed(k))
        rule.update(state, violation, moment(k))
        reference.grad = violation
        optimizer.step()
    torch.testing.assert_close(state["multiplier"], reference.detach())


def test_the_doctor_warns_of_an_adaptive_optimiser() -> None:
    done = FEASIBLE[0].solve(ldf.Adam(0.02), epochs=10)
    assert "adaptive" in str(done.doctor())
    assert "adaptive" not in str(FEASIBLE[0].solve(ldf.Ascent(0.02), epochs=10).doctor())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ldf.Ascent(0), "step must be a finite number > 0, got 0"),
        (lambda: ldf.Ascent(-1e-2), "got -0.01"),
        (lambda: ldf.Ascent(math.nan), "got nan"),
        (lambda: ldf.Ascent("fast"), "or a function of k, got 'fast'"),
        (lambda: ldf.Ascent(1e-2, reduce="median"), "'mean' or 'sum', got 'median'"),
        (lambda: ldf.Ascent(1e-2, initial=0.5), r"initial = 0.5 is in the units of λ and requires normalise=False"),
        (lambda: ldf.Ascent(1e-2, initial=(0.0, 0.5)), r"initial = \(0.0, 0.5\) is in the units of λ"),
        (lambda: ldf.Ascent(1e-2, False, initial=math.nan), "a finite number or a tuple of them, got nan"),
        (lambda: ldf.Ascent(1e-2, False, initial=(1.0, math.inf)), r"or a tuple of them, got \(1.0, inf\)"),
        (lambda: ldf.Ascent(1e-2, False, initial=()), r"or a tuple of them, got \(\)"),
        (lambda: ldf.Ascent(1e-2, False, initial=[1.0]), r"or a tuple of them, got \[1.0\]"),
        (lambda: ldf.Ascent(1e-2, False, initial="1"), "or a tuple of them, got '1'"),
        (lambda: ldf.Fixed(-1), "≥ 0, got -1"),
        (lambda: ldf.NuPI(0.1, smoothing=1.0), r"\[0, 1\), got 1.0"),
        (lambda: ldf.NuPI(0.1, proportional=-1), "≥ 0, got -1"),
        (lambda: ldf.Augmented(0), "> 0, got 0"),
        (lambda: ldf.Augmented(growth=0.5), "growth ≥ 1"),
        (lambda: ldf.Balanced(strength=0), "> 0, got 0"),
        (lambda: ldf.Adam(math.inf), "got inf"),
    ],
)
def test_bad_rules_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

"""The doctor's verdicts, on synthetic histories and on real runs."""

import dataclasses
import json
import math

import pytest
import torch
from helpers import RULES, dispatch, dispatch_constraints, network
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

import ldf
from ldf import History, doctor
from ldf.core.doctor import PYTHON, Diagnosis
from ldf.core.dual import Automatic, Levelling
from ldf.core.evidence import Evidence, evidence


def made(nu, lam, loss=None, name: str = "c", **more) -> History:
    """A history; `more` are further columns of the constraint, or `steps`."""
    rows = []
    for epoch, (violation, multiplier) in enumerate(zip(nu, lam, strict=True)):
        before = lam[epoch - 1] if epoch else 0.0
        rows.append(
            {
                "epoch": epoch + 1,
                "loss": loss[epoch] if loss else 1.0,
                f"nu_mean/{name}": violation,
                f"nu_max/{name}": 2 * violation,
                f"lambda/{name}": multiplier,
                f"penalty/{name}": before * violation,
            }
            | {part if part == "steps" else f"{part}/{name}": values[epoch] for part, values in more.items()}
        )
    return History(rows)


K = range(40)
HISTORIES = {
    "never active": made([0.0] * 40, [0.0] * 40),
    "satisfied": made([math.exp(-k) for k in K], [0.1 * k for k in K]),
    "idle": made([0.5] * 40, [1e-4 * k for k in K]),
    "not enforced": made([0.5] * 40, [0.0] * 40),
    "still falling": made([0.5 * 0.95**k for k in K], [0.05 * k for k in K]),
    "oscillating": made([0.3 * (1 + math.sin(1.5 * k)) + 0.01 for k in K], [1 + 0.5 * math.cos(1.5 * k) for k in K]),
    "runaway": made(
        [0.02] * 40, [0.001 * 1.2**k for k in K], [1 - 0.02 * min(k, 20) + 0.03 * max(0, k - 20) for k in K]
    ),
    "counterproductive": made(
        [0.5 * 0.9**k for k in range(15)] + [0.12] * 25, [0.0] * 15 + [0.3] * 25, [0.9 ** min(k, 20) for k in K]
    ),
    "dominating": made([0.3] * 40, [2.2] * 40),
    "stalled": made([0.02] * 40, [1.0] * 40),
    "offset": made([0.3] * 40, [1.0] * 40, penalty=[0.01 * (-1) ** k for k in K]),
}


@pytest.mark.parametrize("verdict", HISTORIES)
def test_verdicts(verdict: str) -> None:
    diagnosis = doctor(HISTORIES[verdict], {"c": 1e-3})
    assert diagnosis["c"].verdict == verdict, str(diagnosis)
    assert "c: " + verdict in str(diagnosis)


FEASIBLE, NOT = Evidence(rows=100), Evidence(rows=100, solved=0.2, failed=0.8, left=0.4)


def test_infeasible_needs_evidence() -> None:
    history = made([0.5] * 40, [0.2 * k for k in K])  # λ lifted, the penalty exceeds the loss, ν does not fall
    without = doctor(history, {"c": 1e-3})["c"]
    assert without.verdict == "dominating"
    assert without.change.startswith("Test whether it can be satisfied, by evidence=lagrangian.evidence(…)")
    feasible = doctor(history, {"c": 1e-3}, evidence={"c": FEASIBLE})["c"]
    assert feasible.verdict == "dominating"
    assert "although predictions exist that satisfy all constraints." in feasible.finding
    assert feasible.change == "Give the model more capacity, decay the learning rate, or repair the predictions."
    alone = doctor(history, {"c": 1e-3}, evidence={"c": NOT})["c"]
    assert alone.verdict == "infeasible"
    assert "In 80 % of 100 rows no prediction satisfies it, because its own columns conflict" in alone.finding
    assert alone.change == "Relax it with slack=, or cap its multiplier with cap=."
    both = doctor(history, {"c": 1e-3}, evidence={"c": dataclasses.replace(NOT, against=("d",))})["c"]
    assert "It conflicts with 'd': in 80 % of 100 rows no prediction satisfies all constraints" in both.finding
    assert both.change == "Relax one of them with slack=, or cap its multiplier with cap=."
    several = dataclasses.replace(NOT, against=("d", "e"))
    assert "'d', 'e': in 80 % of 100 rows no prediction satisfies all constraints" in str(
        doctor(history, {"c": 1e-3}, evidence={"c": several})
    )
    few = doctor(history, {"c": 1e-3}, evidence={"c": Evidence(rows=100, solved=0.97, failed=0.03, targets=0.5)})["c"]
    assert few.verdict == "dominating"
    assert "satisfy all constraints in 97 % of 100 rows. The targets violate it in 50 % of the rows." in few.finding


numbers = st.floats(0, 1e6, allow_subnormal=False)


@given(
    st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=60),
    st.sampled_from([None, {"c": FEASIBLE}, {"c": Evidence(rows=50, failed=0.09)}]),
)
def test_no_history_is_infeasible_without_proof(rows, found) -> None:
    nu, lam, loss = zip(*rows, strict=True)
    assert doctor(made(nu, lam, loss), {"c": 1e-3}, evidence=found)["c"].verdict != "infeasible"


def test_a_run_is_too_short_by_its_steps() -> None:
    def verdict(rows: int, steps: int | None) -> str:
        more = {"steps": [(k + 1) * steps for k in range(rows)]} if steps else {}
        found = doctor(made([0.5] * rows, [0.1] * rows, **more), {"c": 1e-3}, evidence={"c": NOT})["c"]
        return f"{found.verdict}: {found.finding}" if found.verdict == "too short" else found.verdict

    assert verdict(4, None) == "too short: 4 updates are too few to judge, at least 5 are needed."
    assert verdict(5, None) == "infeasible"
    assert verdict(49, 1) == "too short: 49 steps are too few to judge, at least 50 are needed."
    assert verdict(50, 1) == "infeasible"
    assert verdict(2, 10_000) == "too short: 2 epochs are too few to see a trend, at least 3 are needed."
    assert verdict(3, 10_000) == "infeasible"


def test_six_steps_are_too_few_whatever_the_epochs() -> None:
    limit = ldf.inequality("limit", lambda y, batch: y + 10)
    data = (torch.rand(8, 5), torch.rand(8, 4))
    for epochs, size in ((6, 8), (3, 4)):
        done = ldf.fit(network(), data, loss=nn.functional.mse_loss, constraints=[limit], dual=ldf.Ascent(1.0),
                       epochs=epochs, batch_size=size, progress=False)  # fmt: skip
        assert done.history["steps"][-1] == 6
        assert done.doctor()["limit"].verdict == "too short"
        assert "6 steps are too few" in str(done.doctor())


@pytest.mark.parametrize("rule", [*RULES.values(), Automatic(), Levelling()], ids=lambda rule: type(rule).__name__)
def test_a_rule_without_a_step_is_not_told_to_change_it(rule: ldf.Dual) -> None:
    for verdict in ("idle", "still falling", "oscillating", "runaway", "stalled"):
        change = doctor(HISTORIES[verdict], {"c": 1e-3}, rules={"c": rule})["c"].change
        assert ("dual step" in change) == hasattr(rule, "step"), change
        unknown = doctor(HISTORIES[verdict], {"c": 1e-3})["c"].change
        assert "dual step" not in unknown, "a rule that is not known may have no step"


def test_a_column_that_holds_most_of_the_violation_is_named() -> None:
    def finding(share: float, columns=(3.0,) * 40, excess: float = 20.0, nu: float = 0.02) -> str:
        history = made([nu] * 40, [1.0] * 40, share=[share] * 40, column=list(columns), excess=[excess] * 40)
        return doctor(history, {"c": 1e-3})["c"].finding

    assert "Mean ν is 0.02 (tolerance 0.001; 83 % of it is in column 3, counted from 0), λν" in finding(0.83)
    assert "column" not in finding(0.5)
    assert "in column 2, counted" in finding(0.83, [3.0] * 33 + [2.0] * 7)
    assert "12 times the tolerance in its worst column" in finding(0.5, excess=12.0, nu=5e-4)


def test_satisfied_means_satisfied_in_every_column() -> None:
    def verdict(excess: float) -> str:
        history = made([1e-4] * 40, [1.0] * 40, column=[0.0] * 40, share=[0.5] * 40, excess=[excess] * 40)
        return doctor(history, {"c": 1e-4})["c"].verdict

    assert verdict(1.0) == "satisfied"
    assert verdict(1.01) == "idle"


def test_a_conflicting_constraint_is_named_only_if_violated() -> None:
    first, second = made([0.5] * 40, [0.2 * k for k in K], name="a"), made([0.4] * 40, [0.2 * k for k in K], name="b")
    both = History([{**x, **y} for x, y in zip(first.rows, second.rows, strict=True)])
    opposed = doctor(both, {"a": 1e-3, "b": 1e-3}, conflicts={("a", "b"): -0.98})
    assert "conflicts with 'b'" in opposed["a"].finding
    assert "conflicts with 'a'" in opposed["b"].finding
    assert "conflicts with" not in doctor(both, {"a": 1e-3, "b": 1e-3}, conflicts={("a", "b"): 0.3})["a"].finding
    assert "conflicts with" not in doctor(both, {"a": 1e-3, "b": 1.0}, conflicts={("a", "b"): -0.98})["a"].finding


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError, match="no constraint 'x' in this diagnosis; it has: c"):
        doctor(HISTORIES["idle"], {"c": 1e-3})["x"]


def test_a_real_run_with_a_contradiction() -> None:
    constraints = [
        *dispatch_constraints(),
        ldf.inequality("absurd", lambda y, batch: batch.inputs.sum(1, True) + 1 - y.sum(1, True)),
    ]
    torch.manual_seed(0)
    done = ldf.fit(
        network(),
        dispatch(),
        loss=nn.functional.mse_loss,
        constraints=constraints,
        dual=ldf.Ascent(1.0),
        epochs=60,
        lr=3e-3,
        progress=False,
    )
    diagnosis = done.doctor()
    assert done.conflicts["balance", "absurd"] < -0.5
    for name, other in (("absurd", "balance"), ("balance", "absurd")):
        assert diagnosis[name].verdict == "infeasible", str(diagnosis)
        assert f"It conflicts with {other!r}: in 100 % of 64 rows no prediction satisfies all constraints" in str(
            diagnosis[name]
        )


@pytest.mark.parametrize("degree", ["violation", "satisfiability"])
def test_plain_sigma_holds_the_mean_of_rows_that_offset_each_other(degree: str) -> None:
    x = torch.linspace(-1, 1, 64, dtype=torch.float64)[:, None]
    same = ldf.equality("same", lambda y, batch: y, degree=degree)  # the mean of all y is 0, no y is
    fit = ldf.fit(
        nn.Linear(1, 1).double(), (x, x), loss=nn.functional.mse_loss, constraints=[same], dual=ldf.Ascent(1e-3),
        epochs=200, lr=0.02, progress=False,
    )  # fmt: skip
    found = fit.doctor()["same"]
    assert (found.verdict == "offset") == (degree == "satisfiability"), str(found)
    if degree == "satisfiability":
        assert "Use degree='violation'" in found.change


def test_an_idle_step_and_no_rule_are_told_apart() -> None:
    runs = {}
    for name, dual in {"tiny": ldf.Ascent(1e-9), "none": None}.items():
        torch.manual_seed(0)
        runs[name] = ldf.fit(
            network(),
            dispatch(),
            loss=nn.functional.mse_loss,
            constraints=dispatch_constraints(),
            dual=dual,
            epochs=30,
            lr=1e-2,
            progress=False,
        ).doctor()["capacity"]
    assert runs["none"].verdict == "not enforced"
    assert runs["tiny"].verdict in {"idle", "still falling"}


@pytest.mark.parametrize("dual", ["auto", ldf.Ascent(1.0), ldf.Fixed(1.0), ldf.Augmented()], ids=str)
@pytest.mark.parametrize("problem", ["dispatch", "pendulum", "qp"])
def test_feasible_problems_are_not_called_infeasible(problem: str, dual) -> None:
    """The first is the README's, the second has labels that conserve energy, the third is learnt without labels."""
    generator = torch.Generator().manual_seed(0)
    data: dict[str, torch.Tensor] = {}
    if problem == "dispatch":
        data["inputs"], data["targets"] = dispatch(256)
        constraints, shape = dispatch_constraints(), (5, 4)
    elif problem == "pendulum":
        state, step = torch.rand(80, 2, generator=generator) * 2 - 1, 1e-3
        data["inputs"], constraints, shape = state, [], (2, 2)
        moved = state.double()
        for _ in range(500):  # leapfrog
            moved = moved - step / 2 * torch.stack([0 * moved[:, 0], moved[:, 0].sin()], 1)
            moved = moved + step * torch.stack([moved[:, 1], 0 * moved[:, 0]], 1)
            moved = moved - step / 2 * torch.stack([0 * moved[:, 0], moved[:, 0].sin()], 1)
        data["targets"] = moved.float()

        def energy(state: torch.Tensor) -> torch.Tensor:
            return state[:, 1:] ** 2 / 2 - state[:, :1].cos()

        constraints = [ldf.equality("energy", lambda y, batch: energy(y) - energy(batch.inputs))]
    else:
        a, g = torch.randn(4, 10, generator=generator), torch.randn(6, 10, generator=generator)
        bound = (g @ torch.linalg.pinv(a)).abs().sum(1)
        data["inputs"], shape = torch.rand(256, 4, generator=generator) * 2 - 1, (4, 10)
        constraints = [
            ldf.equality("balance", lambda y, batch: y @ a.T - batch.inputs),
            ldf.inequality("limits", lambda y, batch: y @ g.T - bound),
        ]

    def loss(y: torch.Tensor, batch: ldf.Batch) -> torch.Tensor:
        return (y**2).mean() + y.mean() if problem == "qp" else nn.functional.mse_loss(y, batch.targets)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(shape[0], 16), nn.Tanh(), nn.Linear(16, shape[1]))
    done = ldf.fit(model, data, loss=loss, constraints=constraints, dual=dual, epochs=25, lr=1e-2, progress=False)
    assert done.doctor().open or all(advice.verdict == "satisfied" for advice in done.doctor().advice)
    assert "infeasible" not in {advice.verdict for advice in done.doctor().advice}, str(done.doctor())


def made_up(**sigmas) -> list[ldf.Constraint]:
    return [ldf.inequality(name, lambda y, batch, own=own: own(y)[:, None]) for name, own in sigmas.items()]


def test_evidence_names_what_is_in_conflict() -> None:
    y = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))

    def found(scale: float = 1.0, **sigmas) -> dict[str, tuple[bool, tuple[str, ...]]]:
        every = evidence(
            made_up(**sigmas), y, ldf.Batch(), {name: 1e-3 * (scale if name == "right" else 1.0) for name in sigmas}
        )
        return {name: (one.infeasible, one.against) for name, one in every.items()}

    # Any two of the first three can hold.
    three = {"x": lambda y: 1 - y[:, 0], "y": lambda y: 1 - y[:, 1], "sum": lambda y: y.sum(1) - 1}
    assert found(**three, far=lambda y: y[:, 0] - 9) == {
        "x": (True, ("sum",)), "y": (True, ("sum",)), "sum": (True, ("x", "y")), "far": (False, ()),
    }  # fmt: skip
    # Curved: a disc and a half-plane, in any units.
    for scale in (1e-3, 1.0, 1e3):
        apart = found(scale, disc=lambda y: (y**2).sum(1) - 1, right=lambda y, scale=scale: scale * (3 - y[:, 0]))
        assert apart == {"disc": (True, ("right",)), "right": (True, ("disc",))}
    touching = found(disc=lambda y: (y**2).sum(1) - 1, right=lambda y: 0.9 - y[:, 0])
    assert touching == {"disc": (False, ()), "right": (False, ())}
    # Two columns of one constraint.
    alone = evidence([ldf.inequality("band", lambda y, b: torch.cat([y - 1, 2 - y], 1))], y, ldf.Batch(), 1e-3)["band"]
    assert (alone.infeasible, alone.against) == (True, ())
    assert alone.left == pytest.approx(0.5)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 7), st.sampled_from([1e-3, 1.0, 1e3]))
def test_evidence_agrees_with_a_linear_program(seed: int, n: int, m: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(m, size, generator=generator, dtype=torch.float64) for size in (n, 1))
    a = a / a.norm(dim=1, keepdim=True)
    # min t with a·y − b ≤ t: the smallest largest violation, as a distance.
    rows, bounds = torch.cat([a, -torch.ones(m, 1)], 1).numpy(), [(None, None)] * n + [(-1, None)]
    lp = linprog([0.0] * n + [1.0], rows, b[:, 0].numpy(), bounds=bounds)
    assume(abs(lp.fun) > 0.01)
    half = [ldf.inequality(f"{i}", lambda y, batch, i=i: scale * (y @ a[i : i + 1].T - b[i])) for i in range(m)]
    y = torch.randn(3, n, generator=generator, dtype=torch.float64)
    found = list(evidence(half, y, ldf.Batch(), 1e-4 * scale).values())
    assert found[0].solved == (lp.fun < 0)
    assert any(one.infeasible for one in found) == (lp.fun > 0)
    assert all(one.against for one in found if one.infeasible), "no half-space conflicts with itself"


def test_evidence_on_rows_that_are_coupled() -> None:
    y = torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    batch = ldf.Batch(ids=torch.arange(30), inputs=torch.arange(30) % 2)
    pairs = torch.tensor([[i, i + 1] for i in range(29)])
    rising = ldf.inequality("rising", lambda y, b: y[0] - y[1], scope=ldf.Pairs(pairs, name="up"))
    steep = ldf.inequality("steep", lambda y, b: y[1] - y[0] + 1, scope=ldf.Pairs(pairs, name="down"))
    equal = ldf.equality("equal", lambda y, b: y, scope=ldf.Groups("inputs", 2))
    apart = ldf.inequality("apart", lambda y, b: torch.where(b.inputs[:, None] == 0, y, 1 - y))
    assert not any(one.infeasible for one in evidence([rising, equal], y, batch, 1e-3).values())
    assert evidence([rising, equal], y, batch, 1e-3)["equal"].solved == 1
    found = evidence([rising, steep], y, batch, 1e-3)
    assert {name: (one.infeasible, one.against) for name, one in found.items()} == {
        "rising": (True, ("steep",)), "steep": (True, ("rising",)),
    }  # fmt: skip
    assert evidence([equal, apart], y, batch, 1e-3)["equal"].infeasible


def test_no_proof_is_no_evidence_of_infeasibility() -> None:
    y = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    # A feasible law, evaluated with so much rounding that no repair reaches the tolerance.
    rounded = ldf.equality("rounded", lambda y, b: (y.sum(1, keepdim=True) + 1e4).float() - 1e4 - 1)
    found = evidence([rounded], y, ldf.Batch(), 1e-9)["rounded"]
    assert not found.infeasible
    history = made([0.5] * 40, [0.2 * k for k in K])
    said = doctor(history, {"c": 1e-3}, evidence={"c": Evidence(rows=20, solved=0.0)})["c"]
    assert said.verdict == "dominating"
    assert "although" not in said.finding


@given(st.integers(0, 20))
def test_evidence_counts_the_rows_without_a_feasible_point(bad: int) -> None:
    batch = {"inputs": torch.zeros(20, 1), "least": torch.where(torch.arange(20) < bad, 2.0, 0.5)[:, None]}
    low = ldf.inequality("low", lambda y, batch: batch.least - y)
    high = ldf.inequality("high", lambda y, batch: y - 1)
    found = evidence([low, high], torch.zeros(20, 1), batch, 1e-3)
    for name, other in (("low", "high"), ("high", "low")):
        assert found[name].failed == pytest.approx(bad / 20)
        assert found[name].infeasible == (bad >= 2)
        assert found[name].solved == pytest.approx(1 - bad / 20)
        assert found[name].against == ((other,) if bad else ())


def test_targets_are_evidence_where_the_repair_of_predictions_fails() -> None:
    # |y| = 1 by a function that is flat at the predictions: no repair from there.
    constraint = ldf.equality("flat", lambda y, batch: (y**2 - 1).clamp(min=-0.5))
    y, targets = torch.zeros(10, 1), torch.ones(10, 1)
    nothing = evidence([constraint], y, ldf.Batch(), 1e-3)["flat"]
    assert (nothing.solved, nothing.failed, nothing.targets) == (0, 0, None)
    found = evidence([constraint], y, ldf.Batch(targets=targets), 1e-3)["flat"]
    assert (found.solved, found.failed, found.targets) == (1, 0, 0)
    assert evidence([constraint], y, ldf.Batch(targets=targets.long()), 1e-3)["flat"].targets is None
    assert evidence([constraint], y, ldf.Batch(targets=torch.ones(10, 2)), 1e-3)["flat"].targets is None
    half = torch.where(torch.arange(10)[:, None] < 5, 1.0, 1.1)
    assert evidence([constraint], y, ldf.Batch(targets=half), 1e-3)["flat"].targets == 0.5


def test_there_is_no_evidence_where_nothing_can_be_repaired() -> None:
    constraint = ldf.inequality("cap", lambda y, batch: y.double() - 1)
    assert evidence([constraint], torch.ones(4, 1, dtype=torch.int64), ldf.Batch(), 1e-3) == {}


def test_a_loader_gives_evidence_too() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*dispatch(256)), batch_size=32)
    pair = made_up(above=lambda y: 2 - y[:, 0], below=lambda y: y[:, 0] - 1)
    done = ldf.fit(network(), loader, loss=nn.functional.mse_loss, constraints=pair, dual=ldf.Ascent(0.1), epochs=10)
    assert "It conflicts with 'below': in 100 % of 32 rows" in done.doctor()["above"].finding


@pytest.mark.parametrize("dual", ["auto", ldf.Ascent(10.0)], ids=str)
def test_columns_of_different_units_are_enforced_and_judged_each(dual) -> None:
    torch.manual_seed(0)
    x = torch.rand(512, 2)
    units = torch.tensor([1.0, 1000.0])
    cap = ldf.inequality("cap", lambda y, batch: (y - 0.8) * units, multiplier="column")
    data = (x, 0.5 + 0.5 * x)  # 40 % of the labels exceed the cap

    def train(epochs: int, dual) -> ldf.Fit:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        return ldf.fit(model, data, loss=nn.functional.mse_loss, constraints=[cap], dual=dual, epochs=epochs,
                       lr=1e-2, schedule="cosine", progress=False)  # fmt: skip

    done = train(100, dual)
    assert done.lagrangian.certify(data[1], ldf.Batch())["cap"].tolerance in (pytest.approx(1e-3), pytest.approx(1.0))
    nu = (done.model(x) - 0.8).clamp(min=0).mean(0)
    assert done.doctor()["cap"].verdict == "satisfied", str(done.doctor())
    assert nu.max() < 3e-3, "both columns, in the units of y; 0.04 without the constraint"
    # A rule that enforces only the column of large units: its mean over columns is small beside the mean tolerance.
    biased = train(60, ldf.Ascent(1e-6, normalise=False, reduce="mean", initial=(0.0, 1e-3)))
    course = biased.history
    assert course["nu_mean/cap"][-1] <= biased.lagrangian.tolerances["cap"]
    assert course["excess/cap"][-1] > 1
    assert biased.doctor()["cap"].verdict != "satisfied", str(biased.doctor())


def test_certificates_use_the_tolerances_of_the_doctor() -> None:
    torch.manual_seed(0)
    inputs, targets = dispatch(256)
    constraints = [*dispatch_constraints(), ldf.inequality("own", lambda y, batch: y - 100, tolerance=0.25)]
    done = ldf.fit(network(), (inputs, targets), loss=nn.functional.mse_loss, constraints=constraints, dual="auto",
                   epochs=10, progress=False)  # fmt: skip
    found = done.certify(done.model(inputs).detach(), ldf.Batch(inputs=inputs))
    assert {one.constraint: one.tolerance for one in found.findings} == pytest.approx(done.lagrangian.tolerances)
    assert found["own"].tolerance == 0.25
    given = done.certify(done.model(inputs).detach(), ldf.Batch(inputs=inputs), 0.5)
    assert {one.tolerance for one in given.findings} == {0.5}
    fresh = ldf.Lagrangian(constraints, ldf.Ascent(1.0)).certify(targets, ldf.Batch(inputs=inputs))
    assert [one.tolerance for one in fresh.findings] == pytest.approx([1e-3, 1e-3, 0.25])


def test_a_tolerance_of_your_own_is_judged_by() -> None:
    torch.manual_seed(0)
    done = ldf.fit(network(), dispatch(256), loss=nn.functional.mse_loss, constraints=dispatch_constraints(),
                   dual="auto", epochs=15, progress=False)  # fmt: skip
    nu = {name: done.history[f"nu_mean/{name}"][-1] for name in ("capacity", "balance")}
    assert {advice.verdict for advice in done.doctor(10.0).advice} <= {"never active", "satisfied"}
    own = done.doctor({"capacity": nu["capacity"] / 10, "balance": 10.0})
    assert own["capacity"].verdict not in ("never active", "satisfied")
    assert own["balance"].verdict in ("never active", "satisfied")
    with pytest.raises(ValueError, match="tolerance must be a number ≥ 0, got -1"):
        done.doctor(-1)


def test_a_diagnosis_survives_json() -> None:
    found = doctor(HISTORIES["stalled"], {"c": 1e-3}, rules={"c": ldf.Adam(0.1)})
    assert found.warnings
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert Diagnosis.from_dict(found.to_dict()) == found


def test_every_remedy_has_words() -> None:
    known = {*PYTHON, "stronger", "calmer"}
    for history in HISTORIES.values():
        for found in (None, {"c": FEASIBLE}, {"c": NOT}):
            (advice,) = doctor(history, {"c": 1e-3}, evidence=found).advice
            assert set(advice.remedies) <= known
            assert bool(advice.change) == bool(advice.remedies)

"""The Lagrangian loss and the dual updates, compared with plain torch and with the paper's formulas by hand."""

import copy
import io
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ldf

QUICK = settings(deadline=None, max_examples=30)
RULES = [ldf.Balanced(), ldf.Ascent(0.3), ldf.NuPI(0.2), ldf.Augmented(), ldf.Adam(0.05)]
LITERAL = ldf.Ascent(0.1, normalise=False)


def same(y, batch):
    return y


def centred(y, batch):
    return y - 1.0


def step(lagrangian, values, ids=None, pairs=None):
    """The loss of one batch whose predictions are these values, and the predictions."""
    y = torch.as_tensor(values, dtype=torch.float64).clone().requires_grad_()
    columns = {} if ids is None else {"ids": torch.as_tensor(ids)}
    return lagrangian(y.square().mean(), y, ldf.Batch(**columns), pairs), y


def by_hand(kind, sigma, slack=0.0):
    """ν, elementwise."""
    size = sigma.abs() if kind == "equality" else sigma
    return torch.where(size > slack, size - slack, torch.zeros_like(size))


def rounded(nu, lagrangian):
    """ν, or its Huber function if the rule smooths ν; the knee is that of a column in the first block."""
    knee = lagrangian.blocks[0].knee
    return torch.where(nu < knee, nu.square() / (2 * knee.clamp_min(1e-300)), nu - 0.5 * knee)


def make(kind, name="c", sigma=same, **options):
    return (ldf.equality if kind == "equality" else ldf.inequality)(name, sigma, **options)


def table(draw, rows, columns, bound=50.0):
    size = rows * columns
    numbers = st.floats(-bound, bound, allow_subnormal=False)
    values = draw(st.lists(numbers, min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.float64).reshape(rows, columns)


@st.composite
def two_batches(draw):
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    return table(draw, rows, columns), table(draw, rows, columns)


# ------------------------------------------------------------------------------------------------ degrees and slack


@QUICK
@given(batches=two_batches(), kind=st.sampled_from(["inequality", "equality"]), slack=st.floats(0, 60))
def test_violation_degree(batches, kind, slack):
    sigma, _ = batches
    expected = by_hand(kind, sigma, slack)
    constraint = make(kind, slack=slack)
    torch.testing.assert_close(constraint.violation(sigma), expected)
    lagrangian = ldf.Lagrangian([constraint], LITERAL)
    step(lagrangian, sigma)
    row = lagrangian.ascend()
    assert row["nu_mean/c"] == pytest.approx(expected.mean().item(), abs=1e-12)
    assert row["nu_max/c"] == pytest.approx(expected.max().item(), abs=1e-12)
    assert row["loss"] == pytest.approx(sigma.square().mean().item(), abs=1e-12)


@pytest.mark.parametrize("kind", ["inequality", "equality"])
def test_slack_schedule_counts_updates(kind):
    sigma = torch.tensor([[2.0, -3.0], [0.4, 0.1]], dtype=torch.float64)
    schedule = [1.5, 0.5, 0.0]
    lagrangian = ldf.Lagrangian([make(kind, slack=lambda k: schedule[min(k, 2)])], dual=None)
    for k in range(4):
        for _ in range(2):
            step(lagrangian, sigma)
        expected = by_hand(kind, sigma, schedule[min(k, 2)]).mean().item()
        assert lagrangian.ascend()["nu_mean/c"] == pytest.approx(expected, abs=1e-14)


def test_mean_and_largest_violation_over_unequal_batches():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], LITERAL)
    step(lagrangian, [[1.0], [2.0], [3.0]])
    step(lagrangian, [[10.0]])
    row = lagrangian.ascend()
    assert row["nu_mean/c"] == pytest.approx(4.0)
    assert row["nu_max/c"] == 10.0
    assert row["loss"] == pytest.approx((1 + 4 + 9 + 100) / 4)


def test_plain_degree_of_an_inequality_is_projected():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same, degree="satisfiability")], LITERAL)
    found = []
    for value in (3.0, -1.0, -4.0, 1.0):
        step(lagrangian, [[value], [value]])
        row = lagrangian.ascend()
        assert row["nu_mean/c"] == max(0.0, value)  # the history shows the violation, whatever the dual update uses
        found.append(lagrangian.multipliers["c"].item())
    assert found == pytest.approx([0.6, 0.4, 0.0, 0.2])


def test_plain_degree_of_an_equality_is_signed():
    lagrangian = ldf.Lagrangian([ldf.equality("c", same, degree="satisfiability")], LITERAL)
    found = []
    for value in (-3.0, 1.0, 6.0):
        step(lagrangian, [[value], [value]])
        assert lagrangian.ascend()["nu_mean/c"] == abs(value)
        found.append(lagrangian.multipliers["c"].item())
    assert found == pytest.approx([-0.6, -0.4, 0.8])
    loss, y = step(lagrangian, [[-1.0], [2.0]])
    assert loss.item() == pytest.approx((y.square().mean() + 0.8 * y.mean()).item())


def test_plain_degree_with_slack():
    both = [
        ldf.inequality("below", same, degree="satisfiability", slack=1.0),
        ldf.equality("near", same, degree="satisfiability", slack=1.0),
    ]
    lagrangian = ldf.Lagrangian(both, ldf.Ascent(1.0, normalise=False))
    step(lagrangian, [[3.0], [0.5], [-2.5]])  # σ − 1: 2, −0.5, −3.5; σ shrunk towards 0: 2, 0, −1.5
    lagrangian.ascend()
    assert lagrangian.multipliers["below"].item() == 0.0  # [−2]₊
    assert lagrangian.multipliers["near"].item() == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------ the paper's update


@QUICK
@given(
    batches=two_batches(),
    kind=st.sampled_from(["inequality", "equality"]),
    multiplier=st.sampled_from(["constraint", "column", "sample"]),
    reduce=st.sampled_from(["sum", "mean"]),
    size=st.floats(1e-3, 1.0),
)
def test_one_ascent_by_hand(batches, kind, multiplier, reduce, size):
    rows = len(batches[0])
    lagrangian = ldf.Lagrangian(
        [make(kind, multiplier=multiplier)], ldf.Ascent(size, normalise=False, reduce=reduce), rows=rows
    )
    for sigma in batches:
        step(lagrangian, sigma, ids=range(rows))
    lagrangian.ascend()
    nu = torch.stack([by_hand(kind, sigma) for sigma in batches])  # [batch, row, column]
    expected = {
        "constraint": nu.mean(2).sum() / (2 * rows if reduce == "mean" else 1),
        "column": nu.sum((0, 1)) / (2 * rows if reduce == "mean" else 1),
        "sample": nu.sum(0) / (2 if reduce == "mean" else 1),
    }[multiplier]
    torch.testing.assert_close(lagrangian.multipliers["c"], size * expected)


def test_literal_mode_sums_by_default_and_normalised_takes_the_mean():
    assert ldf.Ascent(0.1, normalise=False).reduce == "sum"
    assert ldf.Ascent(0.1).reduce == "mean"
    assert ldf.Ascent(0.1, reduce="sum").reduce == "sum"


def test_step_schedule():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], ldf.Ascent(lambda k: 1 / (k + 1), normalise=False))
    total = 0.0
    for k, value in enumerate([1.0, 2.0, 5.0]):
        step(lagrangian, [[value], [value]])
        lagrangian.ascend()
        total += 2 * value / (k + 1)
        assert lagrangian.multipliers["c"].item() == pytest.approx(total)


def test_nupi_by_hand():
    rule = ldf.NuPI(0.5, proportional=2.0, smoothing=0.25, normalise=False)
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], rule)
    value, average = 0.0, 0.0
    for nu in (4.0, 1.0, 0.0, 3.0):
        step(lagrangian, [[nu]])
        lagrangian.ascend()
        fresh = 0.25 * average + 0.75 * nu
        value = max(0.0, value + 0.5 * nu + 2.0 * (fresh - average))
        average = fresh
        assert lagrangian.multipliers["c"].item() == pytest.approx(value)


def test_augmented_by_hand():
    rule = ldf.Augmented(penalty=2.0, growth=3.0, limit=10.0, normalise=False)
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same, tolerance=1e-3)], rule)
    value, rho, previous = 0.0, 2.0, math.inf
    for nu in (4.0, 3.5, 1.0, 0.9, 0.9, 1e-4):
        step(lagrangian, [[nu]])
        lagrangian.ascend()
        value += rho * nu
        rho = min(10.0, rho * (3.0 if nu > 0.75 * previous and nu > 1e-3 else 1.0))
        previous = nu
        assert lagrangian.multipliers["c"].item() == pytest.approx(value)
        loss, y = step(lagrangian.eval(), [[2.0], [-1.0]])
        lagrangian.train()
        linear = rounded(torch.tensor(2.0, dtype=torch.float64), lagrangian).item()
        assert (loss - y.square().mean()).item() == pytest.approx((value * linear + 0.5 * rho * 4) / 2)


def test_normalised_ascent_by_hand():
    # σ = 5·y on two rows and a loss with gradient y: S = 5, u = ‖y‖/‖(2.5, 2.5)‖ from the first batch of the run, which
    # satisfies the constraint.
    lagrangian = ldf.Lagrangian([ldf.inequality("c", lambda y, batch: 5 * y)], ldf.Ascent(0.1))
    step(lagrangian, [[-1.0], [-2.0]])
    step(lagrangian, [[7.0], [3.0]])
    lagrangian.ascend()
    unit = math.sqrt(5) / (2.5 * math.sqrt(2))
    assert lagrangian.multipliers["c"].item() == pytest.approx(0.1 * unit * (35 + 15) / 4 / 5)


def test_auto_warms_up_rises_and_falls():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", centred)], ldf.Balanced(), updates=10)
    values = []
    for epoch in range(10):
        value = 3.0 if epoch < 6 else 0.5
        step(lagrangian, [[value], [value]])
        lagrangian.ascend()
        values.append(float(lagrangian.multiplier_list[0].multiplier))
    assert values[:2] == [0.0, 0.0]  # warm-up: 30 % of the run
    assert values[2:6] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])
    assert values[6:] == pytest.approx([0.9, 0.81, 0.729, 0.6561])
    assert lagrangian.settled()


def test_the_gradient_of_auto_is_at_most_that_of_the_loss():
    constraints = [ldf.inequality("a", lambda y, batch: 100 * y), ldf.equality("b", lambda y, batch: y.square() + 1)]
    lagrangian = ldf.Lagrangian(constraints, ldf.Balanced(strength=0.5), updates=2)
    y = torch.tensor([[1.0], [2.0], [0.5], [4.0]], dtype=torch.float64, requires_grad=True)
    task = torch.tensor([[1.0], [-1.0], [3.0], [0.5]], dtype=torch.float64)
    for _ in range(3):
        penalty = lagrangian((task * y).sum(), y, ldf.Batch()) - (task * y).sum()
        if int(lagrangian.updates) < 2:
            lagrangian.ascend()
    norm = torch.autograd.grad(penalty, y)[0].norm().item()
    assert norm == pytest.approx(0.5 * task.norm().item())  # the gradients have equal signs, so clipping is active


@pytest.mark.parametrize("dual", [ldf.Ascent(0.1), None])
def test_constraints_have_no_graph_while_every_multiplier_is_zero(dual):
    seen = []
    rule = ldf.inequality("c", lambda y, batch: (seen.append(y.requires_grad), y)[1])
    lagrangian = ldf.Lagrangian([rule], dual)
    y = torch.ones(4, 1, requires_grad=True)
    for _ in range(2):
        loss = (y**2).mean()
        total = lagrangian(loss, y, ldf.Batch(inputs=y))
        (gradient,) = torch.autograd.grad(total, y)
        lam = lagrangian.multipliers["c"]
        assert seen[-1] == bool(lam > 0)
        assert torch.allclose(gradient, (2 * y.detach() + lam) / 4)
        assert lagrangian.ascend()["nu_mean/c"] == 1
    assert bool(lagrangian.multipliers["c"] > 0) == (dual is not None)
    constant = lagrangian(torch.zeros(()), y, ldf.Batch(inputs=y))  # a loss without a gradient can be minimised too
    assert constant.requires_grad


@QUICK
@given(order=st.permutations(range(6)), size=st.integers(1, 6), epochs=st.integers(1, 3))
def test_sample_multipliers_do_not_depend_on_the_order_of_rows(order, size, epochs):
    sigma = torch.tensor([[3.0, -1.0], [0.5, 0.0], [-2.0, 2.0], [1.0, 1.0], [4.0, -4.0], [0.25, 8.0]])
    sigma = sigma.to(torch.float64)
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same, multiplier="sample")], LITERAL, rows=6)
    for epoch in range(epochs):
        rows = torch.tensor(order[epoch:] + order[:epoch])
        for ids in rows.split(size):
            step(lagrangian, sigma[ids], ids=ids)
        lagrangian.ascend()
    torch.testing.assert_close(lagrangian.multipliers["c"], 0.1 * epochs * sigma.clamp_min(0))
    # The loss of a batch weights each row's ν by that row's own λ.
    ids = torch.tensor(order)[:3]
    loss, y = step(lagrangian, sigma[ids], ids=ids)
    penalty = 0.1 * epochs * sigma[ids].clamp_min(0).square().sum() / 3
    assert (loss - y.square().mean()).item() == pytest.approx(penalty.item(), abs=1e-9)


def test_a_row_uses_only_its_own_multiplier():
    first = torch.tensor([[3.0], [0.5], [2.0], [-1.0]], dtype=torch.float64)
    second = first.clone()
    second[2] = 40.0
    found = []
    for sigma in (first, second):
        lagrangian = ldf.Lagrangian([ldf.equality("c", same, multiplier="sample")], LITERAL, rows=5)
        for ids in ([0, 2], [3, 1]):
            step(lagrangian, sigma[ids], ids=ids)
        lagrangian.ascend()
        found.append(lagrangian.multipliers["c"])
    others = [0, 1, 3, 4]
    assert torch.equal(found[0][others], found[1][others])
    assert found[1][2].item() == pytest.approx(4.0)
    assert found[0][4].item() == 0.0  # a row in no batch


def test_sample_mean_counts_a_rows_own_visits():
    rule = ldf.Ascent(1.0, normalise=False, reduce="mean")
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same, multiplier="sample")], rule, rows=3)
    step(lagrangian, [[1.0], [3.0], [5.0]], ids=[0, 0, 1])
    lagrangian.ascend()
    assert lagrangian.multipliers["c"].flatten().tolist() == [2.0, 5.0, 0.0]


# ------------------------------------------------------------------------------------------------ the loss


@QUICK
@given(
    batches=two_batches(),
    kinds=st.tuples(*[st.sampled_from(["inequality", "equality"])] * 3),
    slack=st.sampled_from([0.0, 0.75]),
)
def test_loss_is_task_loss_plus_weighted_violations(batches, kinds, slack):
    before, now = batches
    rows = len(before)
    constraints = [
        make(kinds[0], "whole", multiplier="constraint", slack=slack),
        make(kinds[1], "each", lambda y, batch: 2 * y - 1, multiplier="column"),
        make(kinds[2], "row", lambda y, batch: 1 - y, multiplier="sample", slack=slack),
    ]
    lagrangian = ldf.Lagrangian(constraints, ldf.Ascent(0.02, normalise=False), rows=rows)
    loss, _ = step(lagrangian, before, ids=range(rows))
    assert loss.item() == pytest.approx(before.square().mean().item(), abs=1e-12)  # λ⁰ = 0
    lagrangian.ascend()
    order = torch.arange(rows).flip(0)
    loss, _ = step(lagrangian, now[order], ids=order)

    def nus(values):
        return (
            by_hand(kinds[0], values, slack),
            by_hand(kinds[1], 2 * values - 1),
            by_hand(kinds[2], 1 - values, slack),
        )

    old, new = nus(before), nus(now)
    expected = now.square().mean()
    expected += 0.02 * old[0].mean(1).sum() * new[0].mean()
    expected += (0.02 * old[1].sum(0) * new[1].mean(0)).sum()
    expected += (0.02 * old[2] * new[2]).sum() / rows
    torch.testing.assert_close(loss.detach(), expected)


@QUICK
@given(batches=two_batches(), kind=st.sampled_from(["inequality", "equality"]), rho=st.floats(0.1, 5))
def test_augmented_adds_half_rho_nu_squared(batches, kind, rho):
    before, now = batches
    lagrangian = ldf.Lagrangian(
        [make(kind, multiplier="column")], ldf.Augmented(rho, growth=1.0, limit=10.0, normalise=False)
    )
    loss, _ = step(lagrangian, before)
    nu = by_hand(kind, before)
    torch.testing.assert_close(loss.detach(), before.square().mean() + 0.5 * rho * nu.square().sum(1).mean())
    lagrangian.ascend()
    weight = rho * nu.mean(0)
    torch.testing.assert_close(lagrangian.multipliers["c"], weight)
    loss, _ = step(lagrangian, now)
    nu = by_hand(kind, now)
    linear = (weight * rounded(nu, lagrangian)).sum(1).mean()
    expected = now.square().mean() + linear + 0.5 * rho * nu.square().sum(1).mean()
    torch.testing.assert_close(loss.detach(), expected)


@QUICK
@given(
    batches=two_batches(),
    kind=st.sampled_from(["inequality", "equality"]),
    smoothed=st.sampled_from([(ldf.Balanced(), 1.0), ("auto", 0.5)]),
)
def test_violations_are_smoothed_up_to_a_multiple_of_their_mean(batches, kind, smoothed):
    (before, now), (rule, multiple) = batches, smoothed
    lagrangian = ldf.Lagrangian([make(kind, multiplier="column", tolerance=1e-6)], rule, updates=1)
    step(lagrangian, before)
    lagrangian.ascend()
    knee = (multiple * by_hand(kind, before).mean(0)).clamp_min(1e-6)
    torch.testing.assert_close(lagrangian.blocks[0].knee, knee)
    loss, _ = step(lagrangian, now)
    nu = by_hand(kind, now)
    huber = torch.where(nu < knee, nu.square() / (2 * knee), nu - knee / 2)
    expected = now.square().mean() + (lagrangian.multipliers["c"] * huber).sum(1).mean()
    torch.testing.assert_close(loss.detach(), expected)


@QUICK
@given(batches=two_batches(), rho=st.floats(0.1, 5))
def test_augmented_plain_inequality(batches, rho):
    before, now = batches
    constraint = ldf.inequality("c", same, degree="satisfiability", multiplier="column")
    lagrangian = ldf.Lagrangian([constraint], ldf.Augmented(rho, growth=1.0, limit=10.0, normalise=False))
    step(lagrangian, before)
    lagrangian.ascend()
    weight = (rho * before.clamp_min(0)).mean(0)  # [0 + ρσ]₊, the mean over the rows
    torch.testing.assert_close(lagrangian.multipliers["c"], weight)
    loss, _ = step(lagrangian, now)
    term = ((weight + rho * now).clamp_min(0).square() - weight.square()) / (2 * rho)
    torch.testing.assert_close(loss.detach(), now.square().mean() + term.sum(1).mean())


@pytest.mark.parametrize("multiplier", ["constraint", "column", "sample"])
@pytest.mark.parametrize("rule", [ldf.Ascent(0.3), LITERAL, ldf.NuPI(0.2), ldf.Augmented(), ldf.Balanced()], ids=repr)
def test_gradient_against_finite_differences(rule, multiplier):
    constraints = [
        ldf.inequality("cube", lambda y, batch: y**3 - 0.3, multiplier=multiplier),
        ldf.equality("sum", lambda y, batch: y.sum(1, keepdim=True).sin(), multiplier=multiplier, slack=0.05),
        ldf.inequality("plain", lambda y, batch: y[:, :1] * y[:, 1:], degree="satisfiability", multiplier=multiplier),
        ldf.equality("signed", lambda y, batch: y.exp() - 1, degree="satisfiability", multiplier=multiplier),
    ]
    lagrangian = ldf.Lagrangian(constraints, rule, rows=4, updates=2)
    y = torch.tensor([[0.9, -0.4], [1.3, 0.7], [-0.8, 0.2], [0.5, 0.6]], dtype=torch.float64, requires_grad=True)
    batch = ldf.Batch(ids=torch.tensor([2, 0, 3, 1]))
    for _ in range(2):
        lagrangian(y.square().mean(), y, batch)
        lagrangian.ascend()
    lagrangian.eval()
    lagrangian.limit.fill_(math.inf)  # the clipping of dual="auto" changes the gradient; it is tested above
    assert all(bool((value != 0).any()) for value in lagrangian.multipliers.values())
    assert torch.autograd.gradcheck(lambda y: lagrangian(y.square().mean(), y, batch), (y,), atol=1e-6)


def test_predictions_may_be_a_mapping():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", lambda y, batch: y["volts"] - y["limit"])], LITERAL)
    volts, limit = torch.tensor([[1.0], [3.0]], requires_grad=True), torch.ones(2, 1, requires_grad=True)
    lagrangian((volts * limit).mean(), {"volts": volts, "limit": limit}, ldf.Batch())
    assert lagrangian.ascend()["nu_mean/c"] == 1.0


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_loss_without_second_derivative(rule):
    """For example, the CTC loss has none in torch."""
    lagrangian = ldf.Lagrangian([ldf.inequality("c", lambda y, batch: y[..., 0])], rule, updates=1)
    y = torch.tensor([[[0.5, 1.0, 0.2]], [[0.1, -1.0, 0.4]]], requires_grad=True)
    loss = nn.functional.ctc_loss(y.log_softmax(-1), torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1]))
    lagrangian(loss, y, ldf.Batch()).backward()
    lagrangian.ascend()
    assert lagrangian.multipliers["c"].item() > 0


# ------------------------------------------------------------------------------------------------ units do not matter


def trained(rule, scale=1.0, loss_scale=1.0, epochs=10):
    """Weights and multipliers after a short training run with Adam, σ and loss in other units."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(48, 3, generator=generator, dtype=torch.float64)
    targets = inputs @ torch.randn(3, 2, generator=generator, dtype=torch.float64) + 0.5
    groups = (inputs[:, 0] > 0).long()
    torch.manual_seed(5)
    model = nn.Linear(3, 2).double()
    constraints = [
        ldf.inequality("ceiling", lambda y, batch: scale * (y - 0.2), multiplier="column"),
        ldf.equality("balance", lambda y, batch: scale * (y[:, :1] - y[:, 1:] - 0.3), degree="satisfiability"),
        ldf.inequality("floor", lambda y, batch: scale * (-0.6 - y), multiplier="sample"),
        ldf.equality("parity", lambda y, batch: scale * y[:, :1], scope=ldf.Groups("group", 2)),
    ]
    lagrangian = ldf.Lagrangian(constraints, rule, rows=48, updates=epochs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, eps=1e-30)
    for _ in range(epochs):
        for ids in torch.arange(48).split(16):
            batch = ldf.Batch(ids=ids, group=groups[ids])
            y = model(inputs[ids])
            lagrangian(loss_scale * (y - targets[ids]).square().mean(), y, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        lagrangian.ascend()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), lagrangian.multipliers


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize(("scale", "loss_scale"), [(1000.0, 1.0), (1e-3, 1.0), (1.0, 1000.0), (1e-3, 1e-3)])
def test_units_do_not_matter(rule, scale, loss_scale):
    weights, multipliers = trained(rule)
    free, _ = trained(None)
    assert (weights - free).abs().max() > 1e-2  # the constraints have an effect
    again, scaled = trained(rule, scale, loss_scale)
    torch.testing.assert_close(again, weights, rtol=1e-6, atol=1e-9)
    for name, value in multipliers.items():
        assert bool((value != 0).any()), name
        size = value.abs().max().item()
        torch.testing.assert_close(scaled[name] * (scale / loss_scale), value, rtol=1e-6, atol=1e-9 * size)


def test_units_matter_in_literal_mode():
    weights, _ = trained(LITERAL)
    again, _ = trained(LITERAL, scale=1000.0)
    assert (again - weights).abs().max() > 1e-3


# ------------------------------------------------------------------------------------------------ options


def test_cap():
    constraints = [
        ldf.inequality("a", same, cap=0.5),
        ldf.equality("b", same, degree="satisfiability", cap=0.25),
        ldf.inequality("c", same, multiplier="column", cap=0.5),
    ]
    lagrangian = ldf.Lagrangian(constraints, LITERAL)
    for _ in range(3):
        step(lagrangian, [[1.0, -20.0], [2.0, -30.0]])
        lagrangian.ascend()
    assert lagrangian.multipliers["a"].item() == pytest.approx(0.45)
    assert lagrangian.multipliers["b"].item() == -0.25
    assert lagrangian.multipliers["c"].tolist() == [0.5, 0.0]
    for _ in range(3):
        step(lagrangian, [[50.0, 30.0]])
        lagrangian.ascend()
    assert lagrangian.multipliers["a"].item() == 0.5
    assert lagrangian.multipliers["b"].item() == 0.25


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_cap_is_in_the_units_of_lambda(rule):
    constraint = ldf.inequality("c", lambda y, batch: 1000 * y, cap=1e-5)
    lagrangian = ldf.Lagrangian([constraint], rule, updates=4)
    for _ in range(4):
        step(lagrangian, [[3.0], [5.0]])
        lagrangian.ascend()
    assert lagrangian.multipliers["c"].item() == pytest.approx(1e-5)


def test_a_rule_for_each_name():
    constraints = [ldf.inequality("g", same), ldf.equality("h", same), ldf.inequality("f", same)]
    rules = {"h": ldf.Ascent(2.0, normalise=False), "g": ldf.Ascent(0.5, normalise=False), "f": ldf.Fixed(7.0)}
    lagrangian = ldf.Lagrangian(constraints, rules)
    loss, _ = step(lagrangian, [[1.0], [-3.0]])
    assert loss.item() == pytest.approx(5.0 + 7.0 * 0.5)
    lagrangian.ascend()
    found = {name: value.item() for name, value in lagrangian.multipliers.items()}
    assert found == {"g": 0.5, "h": 8.0, "f": 7.0}


def test_no_dual_monitors_and_enforces_nothing():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same), ldf.equality("d", same)], dual=None)
    for _ in range(3):
        loss, y = step(lagrangian, [[1.0], [-3.0]])
        assert loss.item() == y.square().mean().item()
        row = lagrangian.ascend()
        assert (row["nu_mean/c"], row["nu_max/c"], row["nu_mean/d"]) == (0.5, 1.0, 2.0)
        assert row["lambda/c"] == row["lambda/d"] == 0.0


def test_tolerance_is_a_thousandth_of_the_scale_or_as_given():
    constraints = [ldf.inequality("c", lambda y, batch: 50 * y), ldf.inequality("d", same, tolerance=0.25)]
    lagrangian = ldf.Lagrangian(constraints, ldf.Ascent(0.1))
    step(lagrangian, [[1.0], [-3.0]])
    lagrangian.ascend()
    assert lagrangian.tolerances == pytest.approx({"c": 0.05, "d": 0.25})


@pytest.mark.parametrize("rule", [LITERAL, *RULES], ids=repr)
def test_evaluation_gives_the_same_loss_and_accumulates_nothing(rule):
    constraints = [
        ldf.inequality("c", same, multiplier="column"),
        ldf.equality("s", same, multiplier="sample"),
        ldf.equality("g", same, scope=ldf.Groups(torch.tensor([0, 1]))),
    ]
    lagrangian = ldf.Lagrangian(constraints, rule, rows=2, updates=3)
    for _ in range(3):
        step(lagrangian, [[1.0], [3.0]], ids=[0, 1])
        lagrangian.ascend()
    loss, _ = step(lagrangian, [[1.0], [3.0]], ids=[0, 1])
    before = copy.deepcopy(lagrangian.state_dict())
    lagrangian.eval()
    with torch.no_grad():
        again, _ = step(lagrangian, [[1.0], [3.0]], ids=[0, 1])
        step(lagrangian, [[100.0], [-3.0]], ids=[0, 1])
    assert again.item() == pytest.approx(loss.item())
    for name, value in lagrangian.state_dict().items():
        assert torch.equal(value, before[name]), name
    lagrangian.train()
    assert lagrangian.ascend()["nu_max/c"] == 3.0


@pytest.mark.parametrize("rule", [None, LITERAL, ldf.Ascent(0.1), ldf.Balanced()], ids=repr)
def test_evaluation_may_come_first(rule):
    """As in Lightning's sanity check: a validation batch before any training, without gradients."""
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], rule, updates=4).eval()
    with torch.no_grad():
        loss, y = step(lagrangian, [[1.0], [3.0]])
    assert loss.item() == y.square().mean().item()
    lagrangian.train()
    step(lagrangian, [[2.0], [3.0]])
    assert lagrangian.ascend()["nu_mean/c"] == 2.5


def test_no_parameters():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], LITERAL)
    step(lagrangian, [[1.0]])
    assert list(lagrangian.parameters()) == []
    assert "c: inequality" in repr(lagrangian)


def test_half_precision_predictions_are_summed_exactly():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], ldf.Ascent(1.0, normalise=False, reduce="mean"))
    lagrangian.checks = False
    for _ in range(1000):
        y = torch.full((16, 1), 0.3, dtype=torch.bfloat16, requires_grad=True)
        lagrangian(y.float().square().mean(), y, ldf.Batch())
    row = lagrangian.ascend()
    assert row["nu_mean/c"] == pytest.approx(0.3, rel=1e-2)
    assert row["loss"] == pytest.approx(0.09, rel=1e-2)
    assert lagrangian.multipliers["c"].item() == pytest.approx(0.3, rel=1e-2)


def test_constraints_may_differ_in_precision():
    constraints = [ldf.inequality("fine", lambda y, batch: y.double()), ldf.inequality("coarse", same)]
    lagrangian = ldf.Lagrangian(constraints, LITERAL)
    y = torch.tensor([[1.0], [3.0]], requires_grad=True)
    lagrangian(y.mean(), y, ldf.Batch())
    row = lagrangian.ascend()
    assert row["nu_mean/fine"] == row["nu_mean/coarse"] == 2.0


# ------------------------------------------------------------------------------------------------ state


def everything(rule):
    pairs = ldf.Pairs(torch.tensor([[0, 1], [2, 3], [4, 5]]))
    constraints = [
        ldf.inequality("whole", centred, slack=lambda k: 0.5 / (k + 1)),
        ldf.inequality("column", same, multiplier="column", cap=3.0),
        ldf.equality("signed", same, degree="satisfiability"),
        ldf.inequality("row", lambda y, batch: -y, multiplier="sample"),
        ldf.inequality("order", lambda y, batch: y[0] - y[1], scope=pairs, multiplier="sample"),
        ldf.equality("parity", same, scope=ldf.Groups(torch.tensor([0, 0, 1, 1, 2, -1]))),
    ]
    return ldf.Lagrangian(constraints, rule, rows=6, updates=8)


def advance(lagrangian, start, stop):
    """Batches start … stop − 1, three per epoch; returns all losses, history rows and multipliers."""
    found = []
    for number in range(start, stop):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randperm(6, generator=generator)[:4]
        values = torch.randn(4, 2, generator=generator) + 0.3
        pair = torch.randn(2, 2, 2, generator=generator)
        y, both = values.requires_grad_(), pair.requires_grad_()
        side = (both, ldf.Batch(ids=torch.randperm(3, generator=generator)[:2]))
        loss = lagrangian(y.square().mean() + both.square().mean(), y, ldf.Batch(ids=ids), side)
        found += [loss.detach(), *torch.autograd.grad(loss, (y, both))]
        if number % 3 == 2:
            row = lagrangian.ascend()
            found += [torch.tensor(list(row.values())), *lagrangian.multipliers.values()]
    return found


@pytest.mark.parametrize("rule", [LITERAL, ldf.Fixed(0.5), *RULES], ids=repr)
@pytest.mark.parametrize("stop", [1, 3, 5, 14, 15])
def test_state_resumes_bit_for_bit(rule, stop):
    lagrangian = everything(rule)
    advance(lagrangian, 0, stop)
    file = io.BytesIO()
    torch.save(lagrangian.state_dict(), file)
    file.seek(0)
    fresh = everything(rule)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for name, value in lagrangian.multipliers.items():
        assert torch.equal(fresh.multipliers[name], value), name
    expected, found = advance(lagrangian, stop, 21), advance(fresh, stop, 21)
    assert len(expected) == len(found) > 20
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_state_may_be_loaded_over_another():
    lagrangian, other = everything(ldf.Balanced()), everything(ldf.Balanced())
    advance(lagrangian, 0, 13)
    advance(other, 3, 8)
    other.load_state_dict(lagrangian.state_dict())
    expected, found = advance(lagrangian, 13, 18), advance(other, 13, 18)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_state_of_other_constraints_is_refused():
    lagrangian = everything(LITERAL)
    advance(lagrangian, 0, 3)
    fresh = ldf.Lagrangian([ldf.inequality("c", same)], LITERAL)
    with pytest.raises(ValueError, match=r"has the constraints \['whole', .*\], this Lagrangian has \['c'\]"):
        fresh.load_state_dict(lagrangian.state_dict())


@pytest.mark.parametrize("rule", [LITERAL, ldf.Fixed(0.5), ldf.Balanced(0.5), *RULES], ids=repr)
def test_rules_can_be_copied_and_pickled(rule):
    for again in (copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert type(again) is type(rule)
        assert again == rule


@pytest.mark.parametrize("rule", [LITERAL, *RULES], ids=repr)
def test_a_deep_copy_continues_identically(rule):
    lagrangian = everything(rule)
    advance(lagrangian, 0, 13)
    twin = copy.deepcopy(lagrangian)
    expected, found = advance(lagrangian, 13, 21), advance(twin, 13, 21)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_auto_is_the_rule_without_a_step():
    constraints = [ldf.inequality("a", same), ldf.inequality("b", same)]
    assert ldf.Lagrangian(constraints, updates=3).rules == (ldf.Automatic(), ldf.Automatic())
    assert ldf.Lagrangian(constraints, "auto", updates=3).rules == (ldf.Automatic(), ldf.Automatic())
    mixed = ldf.Lagrangian(constraints, {"a": LITERAL, "b": "auto"}, updates=3)
    assert mixed.rules == (LITERAL, ldf.Automatic())
    rates = ldf.inequality("rates", same, scope=ldf.Groups("sex", 2))
    assert ldf.Lagrangian([rates], updates=3).rules == (ldf.Levelling(),)


class Doubling(ldf.Dual):
    """A custom rule with one method: λ ← 2λ + ν."""

    def update(self, state, violation, moment):
        state["multiplier"].mul_(2).add_(violation)


def test_a_rule_of_one_method_is_enough():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], Doubling())
    for expected in (1.5, 4.5, 10.5):
        step(lagrangian, ((1.0, 2.0),))
        lagrangian.ascend()
        assert float(lagrangian.multipliers["c"]) == expected
    assert isinstance(lagrangian.conflicts(torch.ones(2, 2), ldf.Batch(inputs=torch.ones(2, 2))), dict)


def test_a_rule_without_its_one_method_is_refused():
    class Nothing(ldf.Dual):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Nothing()


# ------------------------------------------------------------------------------------------------ bad input


def loss_of(sigma, rule=LITERAL, values=((1.0, 2.0), (3.0, 4.0), (5.0, 6.0)), ids=None, rows=None, **options):
    lagrangian = ldf.Lagrangian([ldf.inequality("limit", sigma, **options)], rule, rows=rows)
    return step(lagrangian, values, ids)[0]


@pytest.mark.parametrize(
    ("sigma", "message"),
    [
        (lambda y, batch: y.sum(1), r"constraint 'limit'.*\[rows, k\], got \[3\] torch.float64; use keepdim=True"),
        (lambda y, batch: y.sum(), r"constraint 'limit'.*got \[\] torch.float64"),
        (lambda y, batch: y[None], r"constraint 'limit'.*got \[1, 3, 2\]"),
        (lambda y, batch: y[:2], r"constraint 'limit'.*\[3, k\], one row per sample, got \[2, 2\]"),
        (lambda y, batch: y[:, :0], r"constraint 'limit'.*\[3, k\], one row per sample, got \[3, 0\]"),
        (lambda y, batch: (y > 0).long(), r"constraint 'limit'.*floating tensor.*got \[3, 2\] torch.int64"),
        (lambda y, batch: y > 0, r"constraint 'limit'.*floating tensor.*got \[3, 2\] torch.bool"),
        (lambda y, batch: 3.0, r"constraint 'limit'.*floating tensor of shape \[rows, k\], got float"),
        (lambda y, batch: [y, y], r"constraint 'limit'.*got list"),
        (lambda y, batch: None, r"constraint 'limit'.*got NoneType"),
    ],
)
def test_what_a_function_must_return(sigma, message):
    with pytest.raises(ldf.ConstraintError, match=message):
        loss_of(sigma)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", [LITERAL, ldf.Ascent(0.1), ldf.Augmented(), ldf.Balanced()], ids=repr)
@pytest.mark.parametrize("multiplier", ["constraint", "sample"])
def test_a_degree_that_is_not_finite(bad, rule, multiplier):
    shift = torch.zeros(3, 2, dtype=torch.float64)
    constraints = [
        ldf.inequality("fine", same),
        ldf.inequality("limit", lambda y, batch: y + shift, multiplier=multiplier, slack=0.1),
    ]
    lagrangian = ldf.Lagrangian(constraints, rule, rows=3, updates=5)
    values = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    step(lagrangian, values, ids=range(3))
    shift[1, 0] = bad
    with pytest.raises(ldf.ConstraintError, match=rf"constraint 'limit'.*{bad} in row 1, column 0.*must be finite"):
        step(lagrangian, values, ids=range(3))


@pytest.mark.parametrize("rule", [LITERAL, ldf.Ascent(0.1)], ids=repr)
def test_a_degree_that_is_not_finite_in_the_first_batch(rule):
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'limit'.*nan in row 1, column 0"):
        loss_of(lambda y, batch: y.sqrt(), rule, values=((1.0,), (-1.0,), (2.0,)))


def test_a_gradient_that_is_not_finite():
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'limit'.*gradient.*not finite.*square root"):
        loss_of(lambda y, batch: y.sqrt(), ldf.Ascent(0.1), values=((1.0,), (0.0,), (2.0,)))


def test_unchecked_losses_are_checked_at_the_ascent():
    shift = torch.zeros(2, 1, dtype=torch.float64)
    constraints = [ldf.inequality("fine", same), ldf.inequality("limit", lambda y, batch: y + shift)]
    lagrangian = ldf.Lagrangian(constraints, LITERAL)
    lagrangian.checks = False
    step(lagrangian, [[1.0], [2.0]])
    shift[0] = math.nan
    step(lagrangian, [[1.0], [2.0]])
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'limit'.*not finite since the last ascend"):
        lagrangian.ascend()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_task_loss_that_is_not_finite(bad):
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], LITERAL)
    for factor in (1.0, bad):
        y = torch.ones(2, 1, requires_grad=True)
        if factor == 1.0:
            lagrangian(y.mean(), y, ldf.Batch())
        else:
            with pytest.raises(ValueError, match=rf"the task loss is {bad}"):
                lagrangian(factor * y.mean(), y, ldf.Batch())


def test_a_penalty_that_overflows_names_the_multiplier():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], ldf.Ascent(1e30, normalise=False))
    for _ in range(2):
        y = torch.full((2, 1), 1e8, requires_grad=True)
        if lagrangian.ready:
            with pytest.raises(ldf.ConstraintError, match=r"overflowed.*'c', 2e\+38.*cap"):
                lagrangian(y.mean(), y, ldf.Batch())
        else:
            lagrangian(y.mean(), y, ldf.Batch())
            lagrangian.ascend()


def test_the_number_of_columns_must_stay():
    lagrangian = ldf.Lagrangian([ldf.inequality("a", same), ldf.inequality("limit", same)], LITERAL)
    y = torch.ones(3, 2, requires_grad=True)
    lagrangian(y.mean(), y, ldf.Batch())
    wider = torch.ones(3, 4, requires_grad=True)
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'a'.*2 columns before and 4 now"):
        lagrangian(wider.mean(), wider, ldf.Batch())


def test_names():
    with pytest.raises(ValueError, match="two constraints are named 'c'"):
        ldf.Lagrangian([ldf.inequality("c", same), ldf.equality("c", same)], LITERAL)
    with pytest.raises(ValueError, match="non-empty string, got ''"):
        ldf.inequality("", same)
    with pytest.raises(TypeError, match=r"create constraints with ldf.inequality or ldf.equality, got function"):
        ldf.Lagrangian([same], LITERAL)
    with pytest.raises(TypeError, match="constraint 'c': σ must be a function"):
        ldf.inequality("c", torch.zeros(2, 1))


def test_dual_mapping():
    constraints = [ldf.inequality("a", same), ldf.inequality("b", same)]
    with pytest.raises(ValueError, match=r"\['a', 'b'\]; unknown: \['speed'\], missing: \['b'\]"):
        ldf.Lagrangian(constraints, {"a": LITERAL, "speed": LITERAL})
    with pytest.raises(ValueError, match=r"unknown: \[\], missing: \['a'\]"):
        ldf.Lagrangian(constraints, {"b": LITERAL})
    with pytest.raises(TypeError, match=r"dual must be 'auto' or a rule such as ldf.Ascent\(1e-2\).*got 0.1"):
        ldf.Lagrangian(constraints, 0.1)
    with pytest.raises(TypeError, match=r"'b'.*0.1"):
        ldf.Lagrangian(constraints, {"a": LITERAL, "b": 0.1})


@pytest.mark.parametrize("bad", [0, -1e-3, 0.0, math.nan, math.inf, True, None])
@pytest.mark.parametrize("rule", [ldf.Ascent, ldf.NuPI, ldf.Adam, ldf.Augmented])
def test_steps(rule, bad):
    with pytest.raises(ValueError, match=rf"{rule.__name__}.*must be a finite number > 0, got {bad}"):
        rule(bad)


def test_more_about_steps():
    with pytest.raises(ValueError, match="a number > 0 or a function of k, got 'auto'; dual='auto' needs no step"):
        ldf.Ascent("auto")
    with pytest.raises(ValueError, match="reduce must be 'mean' or 'sum', got 'max'"):
        ldf.Ascent(0.1, reduce="max")
    with pytest.raises(ValueError, match="strength must be a number > 0, got -1"):
        ldf.Balanced(-1)
    with pytest.raises(ValueError, match="Fixed: value must be a number ≥ 0, got -2"):
        ldf.Fixed(-2)
    with pytest.raises(ValueError, match="proportional must be ≥ 0, got -1"):
        ldf.NuPI(0.1, proportional=-1)
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, 1\), got 1"):
        ldf.NuPI(0.1, smoothing=1)
    with pytest.raises(ValueError, match=r"growth ≥ 1 and limit ≥ penalty, got 0.5"):
        ldf.Augmented(growth=0.5)
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], ldf.Ascent(lambda k: 1.0 - k, normalise=False))
    step(lagrangian, [[1.0]])
    lagrangian.ascend()
    step(lagrangian, [[1.0]])
    with pytest.raises(ValueError, match=r"got 0.0 at k = 1"):
        lagrangian.ascend()


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "small", None])
def test_slack(bad):
    with pytest.raises(ValueError, match=rf"constraint 'limit': slack must be a number ≥ 0, got {bad!r}"):
        ldf.inequality("limit", same, slack=bad)
    with pytest.raises(ValueError, match=rf"constraint 'limit': slack.*got {bad!r} \(update 0\)"):
        ldf.equality("limit", same, slack=lambda k: bad)


def test_a_slack_schedule_that_goes_wrong_later():
    lagrangian = ldf.Lagrangian([ldf.inequality("limit", same, slack=lambda k: 1.0 - 2 * k)], LITERAL)
    step(lagrangian, [[1.0]])
    with pytest.raises(ValueError, match=r"constraint 'limit': slack must be a number ≥ 0, got -1.0 \(update 1\)"):
        lagrangian.ascend()


@pytest.mark.parametrize("what", ["cap", "tolerance"])
@pytest.mark.parametrize("bad", [0, -1.0, math.nan])
def test_cap_and_tolerance(what, bad):
    with pytest.raises(ValueError, match=rf"constraint 'limit': {what} must be > 0, got {bad}"):
        ldf.inequality("limit", same, **{what: bad})


def test_choices():
    with pytest.raises(ValueError, match="constraint 'c': degree must be one of violation, satisfiability, got 'nu'"):
        ldf.inequality("c", same, degree="nu")
    with pytest.raises(ValueError, match="constraint 'c': multiplier must be one of constraint, column, sample, got"):
        ldf.equality("c", same, multiplier="row")
    with pytest.raises(TypeError, match="constraint 'c': scope must be Pairs, Groups or None, got 'groups'"):
        ldf.equality("c", same, scope="groups")


def test_a_multiplier_per_sample_needs_rows_and_ids():
    with pytest.raises(ValueError, match=r"constraint 'limit': a multiplier per sample.*rows=N"):
        loss_of(same, multiplier="sample")
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'limit' has a multiplier per sample.*needs `ids`"):
        loss_of(same, multiplier="sample", rows=3)


def test_auto_step_needs_the_number_of_updates():
    with pytest.raises(ValueError, match=r"constraint 'c': dual='auto'.*updates=E"):
        ldf.Lagrangian([ldf.inequality("c", same)])


def test_ascend_needs_a_batch():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], LITERAL)
    with pytest.raises(RuntimeError, match="there are no multipliers before the first batch"):
        _ = lagrangian.multipliers
    with pytest.raises(RuntimeError, match=r"ascend\(\) was called without a batch"):
        lagrangian.ascend()
    step(lagrangian, [[1.0]])
    lagrangian.ascend()
    with pytest.raises(RuntimeError, match=r"ascend\(\) was called without a batch since the last one"):
        lagrangian.ascend()


def test_missing_pairs():
    pairs = ldf.Pairs(torch.tensor([[0, 1]]), name="order")
    lagrangian = ldf.Lagrangian([ldf.inequality("limit", lambda y, batch: y[0] - y[1], scope=pairs)], LITERAL)
    with pytest.raises(ValueError, match=r"constraint 'limit' needs pairs 'order'.*pairs="):
        step(lagrangian, [[1.0], [2.0]])
    step(lagrangian, [[1.0], [2.0]], pairs=(torch.ones(2, 1, 1, dtype=torch.float64), ldf.Batch()))
    lagrangian.ascend()
    step(lagrangian, [[1.0], [2.0]])
    with pytest.raises(RuntimeError, match=r"constraint 'limit': no pairs 'order'.*since the last"):
        lagrangian.ascend()


def test_the_loss_must_depend_on_the_predictions():
    logits = torch.ones(3, 1, requires_grad=True)
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], ldf.Ascent(0.1))
    with pytest.raises(ValueError, match=r"task loss does not depend on the predictions given.*normalise=False"):
        lagrangian(logits.mean(), logits.sigmoid(), ldf.Batch())
    with pytest.raises(ValueError, match="gradients enabled"):
        ldf.Lagrangian([ldf.inequality("c", same)], ldf.Ascent(0.1))(logits.mean(), logits.detach(), ldf.Batch())


def test_a_failed_measurement_is_repeated():
    logits = torch.ones(3, 1, requires_grad=True)
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], ldf.Ascent(0.1))
    for _ in range(2):
        with pytest.raises(ValueError, match="task loss does not depend on the predictions given"):
            lagrangian(logits.mean(), logits.sigmoid(), ldf.Batch())
    lagrangian(logits.mean(), logits, ldf.Batch())
    lagrangian.ascend()
    assert lagrangian.multipliers["c"].item() > 0


@pytest.mark.parametrize("rule", [LITERAL, ldf.Fixed(0.5), None], ids=repr)
def test_literal_rules_measure_nothing(rule):
    """As the message above advises: without units to measure, the loss need not depend on the predictions."""
    logits = torch.ones(3, 1, requires_grad=True)
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same)], rule)
    loss = lagrangian(logits.mean(), logits.sigmoid(), ldf.Batch())
    loss.backward()
    assert lagrangian.ascend()["nu_mean/c"] == pytest.approx(torch.ones(()).sigmoid().item())


def test_predictions_may_hold_leaves_without_gradient():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", lambda y, batch: y["score"])], ldf.Ascent(0.1))
    score = torch.ones(3, 1, requires_grad=True)
    predictions = {"score": score, "class": torch.arange(3), "mask": torch.ones(3, 1)}
    lagrangian(score.square().mean(), predictions, ldf.Batch())
    lagrangian.ascend()
    assert lagrangian.multipliers["c"].item() > 0

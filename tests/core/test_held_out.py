"""What dual updates use: held-out rows, the held-out rows of all folds together, exact rates of decisions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ldf
from ldf.core.lagrangian import pool

QUICK = settings(deadline=None, max_examples=40)
LITERAL = ldf.Ascent(0.1, normalise=False)
bce = nn.functional.binary_cross_entropy_with_logits


def step(lagrangian: ldf.Lagrangian, values, pairs=None, **columns: Tensor) -> tuple[Tensor, Tensor]:
    """The penalty of one batch whose predictions are these values, and its gradient."""
    y = torch.as_tensor(values, dtype=torch.float64).reshape(len(values), -1).clone().requires_grad_()
    loss = y.square().mean()
    penalty = lagrangian(loss, y, ldf.Batch(**columns), pairs) - loss
    return penalty.detach(), torch.autograd.grad(penalty, y)[0]


def same(y: Tensor, batch: ldf.Batch) -> Tensor:
    return y


def decided(y: Tensor, batch: ldf.Batch) -> Tensor:
    return (y > 0).to(y.dtype)


def expected(y: Tensor, batch: ldf.Batch) -> Tensor:
    return y.sigmoid()


def parity(exact=decided, **options) -> ldf.Constraint:
    return ldf.equality("parity", expected, scope=ldf.Groups("group", 2), exact=exact, **options)


# ------------------------------------------------------------------------------------------------ observe


@st.composite
def rows_of_groups(draw, count: int) -> tuple[Tensor, Tensor]:
    """Values, and the groups of each row: none, one or several; groups may be empty."""
    rows = draw(st.integers(1, 12))
    numbers = st.floats(-100, 100, allow_subnormal=False)
    values = draw(st.lists(numbers, min_size=rows, max_size=rows))
    member = draw(st.lists(st.lists(st.booleans(), min_size=count, max_size=count), min_size=rows, max_size=rows))
    return torch.tensor(values, dtype=torch.float64)[:, None], torch.tensor(member)


@QUICK
@given(data=st.data(), count=st.integers(2, 4), exact=st.sampled_from([None, decided]))
def test_only_observed_rows_count(data, count, exact):
    (before, known), (values, member) = (data.draw(rows_of_groups(count)) for _ in range(2))
    scope = ldf.Groups("member", count)
    constraints = [
        ldf.inequality("plain", same),
        ldf.equality("signed", same, degree="satisfiability", multiplier="column"),
        ldf.equality("parity", same, scope=scope, exact=exact),
    ]
    lagrangian = ldf.Lagrangian(constraints, LITERAL)
    step(lagrangian, before, member=known)
    lagrangian.observe(values, ldf.Batch(member=member))

    statistic = values if exact is None else (values > 0).double()
    block = lagrangian.blocks[-1]
    means: list = []
    for group in range(count):
        own = [float(value) for value, there in zip(statistic[:, 0], member[:, group], strict=True) if there]
        assert float(block.group_counts[group]) == len(own)
        assert float(block.group_sums[group, 0]) == pytest.approx(sum(own), abs=1e-9)
        earlier = before[known[:, group], 0]
        means.append(np.mean(own) if own else float(earlier.mean()) if len(earlier) else None)
    row = lagrangian.ascend()
    assert float(lagrangian.multipliers["plain"]) == pytest.approx(0.1 * float(values.clamp_min(0).sum()), abs=1e-9)
    assert float(lagrangian.multipliers["signed"]) == pytest.approx(0.1 * float(values.sum()), abs=1e-9)
    assert row["nu_max/plain"] == max(0.0, float(values.max()))
    assert row["loss"] == pytest.approx(float(before.square().mean()))
    if exact is None or bool(member.any(0).all()):  # an absent group keeps the mean of σ
        there = [mean for mean in means if mean is not None]
        filled = [np.mean(there) if mean is None else mean for mean in means] if there else [0.0] * count
        gaps = [abs(a - b) for index, a in enumerate(filled) for b in filled[index + 1 :]]
        assert float(lagrangian.multipliers["parity"]) == pytest.approx(0.1 * np.mean(gaps), abs=1e-9)


def test_rows_observed_last_count_and_only_once():
    lagrangian = ldf.Lagrangian([ldf.inequality("c", same), parity()], LITERAL)
    group = torch.tensor([0, 1, 1])
    step(lagrangian, [1.0, 2.0, 3.0], group=group)
    lagrangian.observe(torch.tensor([[5.0], [6.0], [7.0]]).double(), ldf.Batch(group=group))
    lagrangian.observe(torch.tensor([[-1.0], [2.0], [-2.0]]).double(), ldf.Batch(group=group))
    lagrangian.ascend()
    assert {name: float(value) for name, value in lagrangian.multipliers.items()} == pytest.approx(
        {"c": 0.2, "parity": 0.05}
    )
    step(lagrangian, [1.0, 2.0, 3.0], group=group)
    lagrangian.ascend()
    assert float(lagrangian.multipliers["c"]) == pytest.approx(0.2 + 0.6)


def mixed() -> list[ldf.Constraint]:
    order = ldf.Pairs(torch.tensor([[0, 1], [1, 2]]))
    return [
        ldf.inequality("whole", same),
        ldf.equality("signed", same, degree="satisfiability", multiplier="column"),
        parity(multiplier="column"),
        ldf.inequality("row", same, multiplier="sample"),
        ldf.inequality("order", lambda y, batch: y[0] - y[1], scope=order),
    ]


def pair(first: float) -> tuple[Tensor, ldf.Batch]:
    return torch.tensor([[[first]], [[1.0]]]).double(), ldf.Batch(ids=torch.tensor([0]))


def test_pairs_and_multipliers_per_sample_stay_with_the_rows_that_were_trained_on():
    lagrangian = ldf.Lagrangian(mixed(), LITERAL, rows=3)
    step(lagrangian, [1.0, 3.0], pair(5.0), ids=torch.tensor([0, 2]), group=torch.tensor([0, 1]))
    lagrangian.observe(torch.tensor([[8.0], [-9.0]]).double(), ldf.Batch(group=torch.tensor([1, 0])))
    row = lagrangian.ascend()
    found = {name: value.flatten().tolist() for name, value in lagrangian.multipliers.items()}
    assert found["row"] == pytest.approx([0.1, 0.0, 0.3])
    assert found["order"] == pytest.approx([0.4])
    assert found["whole"] == pytest.approx([0.8])
    assert found["signed"] == pytest.approx([-0.1])
    assert found["parity"] == pytest.approx([0.1])
    assert (row["nu_max/row"], row["nu_max/whole"], row["nu_max/signed"]) == (3.0, 8.0, 9.0)


def test_observe_needs_a_batch_before():
    lagrangian = ldf.Lagrangian([parity()], LITERAL)
    with pytest.raises(RuntimeError, match=r"observe\(\) was called before the first batch"):
        lagrangian.observe(torch.zeros(2, 1), ldf.Batch(group=torch.tensor([0, 1])))


def test_a_pool_combines_the_rows_of_all_members():
    values = torch.tensor([[1.0, -3.0, 0.5], [-2.0, 7.0, 4.0], [0.1, -0.2, -6.0]])
    groups = torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, -1]])
    parts = [ldf.Lagrangian(mixed(), LITERAL, rows=3) for _ in values]
    alone = [ldf.Lagrangian(mixed(), LITERAL, rows=3) for _ in values]
    for index, (own, group) in enumerate(zip(values, groups, strict=True)):
        for lagrangian in (parts[index], alone[index]):
            step(lagrangian, own, pair(2.0 + index), ids=torch.arange(3), group=group)
    whole = ldf.Lagrangian(mixed(), LITERAL, rows=9)
    step(whole, values.flatten(), pair(2.0), ids=torch.arange(9), group=groups.flatten())
    pool(parts)
    rows = [lagrangian.ascend() for lagrangian in parts]
    row = whole.ascend()
    for index, lagrangian in enumerate(parts):
        alone[index].ascend()
        for name in ("whole", "signed", "parity"):
            torch.testing.assert_close(lagrangian.multipliers[name], whole.multipliers[name])
            assert rows[index][f"nu_max/{name}"] == pytest.approx(row[f"nu_max/{name}"])
            assert rows[index][f"nu_mean/{name}"] == pytest.approx(row[f"nu_mean/{name}"])
        for name in ("row", "order"):
            assert torch.equal(lagrangian.multipliers[name], alone[index].multipliers[name])


# ------------------------------------------------------------------------------------------------ exact


@pytest.mark.parametrize("exact", [decided, lambda y, batch: 100 * y])
def test_the_loss_uses_sigma_whatever_exact_is(exact):
    group = torch.tensor([0, 0, 1, 1, 1])
    lagrangians = [ldf.Lagrangian([parity(one)], ldf.Fixed(2.0)) for one in (None, exact)]
    for number in range(6):
        y = torch.randn(5, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        (loss, gradient), (other, same) = (step(lagrangian, y, group=group) for lagrangian in lagrangians)
        assert torch.equal(loss, other)
        assert torch.equal(gradient, same)
        if number == 0:
            p = y.sigmoid()
            gap = p[2:].mean() - p[:2].mean()
            slope = p * (1 - p) * torch.tensor([-1 / 2, -1 / 2, 1 / 3, 1 / 3, 1 / 3])
            assert float(other) == pytest.approx(2 * abs(float(gap)))
            torch.testing.assert_close(same.flatten(), 2 * gap.sign() * slope)
        if number % 2:
            for lagrangian in lagrangians:
                lagrangian.ascend()


@pytest.mark.parametrize("rule", [LITERAL, ldf.Ascent(0.1)], ids=repr)
def test_dual_updates_use_exact_rates_in_the_units_of_sigma(rule):
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    batches = [[3.0, -0.1, -0.2, -4.0, 0.3, -0.4], [-3.0, -0.5, -0.6, -4.0, 0.7, 0.8]]
    smooth, exact = (ldf.Lagrangian([parity(one)], rule) for one in (None, decided))
    for lagrangian in (smooth, exact):
        for y in batches:
            step(lagrangian, y, group=group)
    p = torch.tensor(batches).double().sigmoid()
    gap = float(p[:, 4:].mean() - p[:, :4].mean())
    assert smooth.ascend()["nu_mean/parity"] == pytest.approx(gap)
    assert exact.ascend()["nu_mean/parity"] == pytest.approx(3 / 4 - 1 / 8)
    unit = float(smooth.multipliers["parity"]) / gap
    assert float(exact.multipliers["parity"]) == pytest.approx(unit * (3 / 4 - 1 / 8))
    if rule is LITERAL:
        assert unit == pytest.approx(0.1)


def test_processes_share_running_means_of_sigma_only():
    group = torch.tensor([0, 1])
    smooth, exact = (ldf.Lagrangian([parity(one)], LITERAL) for one in (None, decided))
    for lagrangian in (smooth, exact):
        step(lagrangian, [1.0, -1.0], group=group)
        lagrangian.blocks[0].share()
    rates = torch.tensor([[1.0], [-1.0]]).double().sigmoid()
    for lagrangian in (smooth, exact):
        block = lagrangian.blocks[0]
        torch.testing.assert_close(block.running_sums / block.running_counts[:, None], rates)


def test_bad_exact_is_refused():
    with pytest.raises(TypeError, match="'c': exact must be a function, and requires scope=Groups"):
        ldf.inequality("c", same, exact=decided)
    with pytest.raises(TypeError, match="'c': exact must be a function"):
        ldf.equality("c", same, scope=ldf.Groups("group", 2), exact=0.5)
    group = torch.tensor([0, 1])
    for exact, message in (
        (lambda y, b: y > 0, r"'parity': its function must return a floating tensor.*got \[2, 1\] torch.bool"),
        (lambda y, b: y[:1], r"'parity': its function must return \[2, k\], one row per sample, got \[1, 1\]"),
    ):
        with pytest.raises(ldf.ConstraintError, match=message):
            step(ldf.Lagrangian([parity(exact)], LITERAL), [1.0, 2.0], group=group)
    lagrangian = ldf.Lagrangian([parity(lambda y, b: y / 0)], LITERAL)
    step(lagrangian, [1.0, 2.0], group=group)
    with pytest.raises(ldf.ConstraintError, match=r"'parity'.*not finite since the last ascend"):
        lagrangian.ascend()


# ------------------------------------------------------------------------------------------------ fit


def people(rows: int = 48, seed: int = 0) -> dict[str, Tensor]:
    """Inputs, a label, and a group that depends on the first input."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    group = (inputs[:, 0] + torch.randn(rows, generator=generator) > 0).long()
    return {"inputs": inputs, "targets": (inputs.sum(1, keepdim=True) > 0.2).double(), "group": group}


def plain() -> nn.Module:
    return nn.Linear(3, 1).double()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.ReLU(), nn.Linear(4, 1)).double()


def constraints() -> list[ldf.Constraint]:
    return [ldf.inequality("cap", lambda y, b: y - 0.1), parity()]


def still(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def fit(data, dual: ldf.Dual | None = LITERAL, **options) -> ldf.Fit:
    torch.manual_seed(1)
    options = {"constraints": constraints(), "epochs": 2, "batch_size": 8, "validation": 0.25, **options}
    options = {"loss": bce, "ascend_on": "held-out", "keep": "last", "progress": False, **options}
    return ldf.fit(options.pop("factory", plain)(), data, dual=dual, seed=1, **options)


def predicted(module: nn.Module, data: dict[str, Tensor], rows: Tensor) -> np.ndarray:
    with torch.no_grad():
        return module.eval()(data["inputs"][rows])[:, 0].numpy()


def found_by_hand(y: np.ndarray, group: Tensor) -> dict[str, float]:
    """Σ ν of the cap, and the gap between the groups' rates of decisions."""
    one = group.numpy() == 1
    return {"cap": np.maximum(y - 0.1, 0).sum(), "parity": abs((y[one] > 0).mean() - (y[~one] > 0).mean())}


@pytest.mark.parametrize(("update_every", "updates"), [(None, 2), (2, 6), (1, 10)])
def test_multipliers_are_those_of_the_held_out_rows(update_every: int | None, updates: int) -> None:
    data = people()
    rule = ldf.Ascent(0.3, normalise=False, initial=0.25)
    done = fit(data, rule, optimizer=still, update_every=update_every)
    rows = done.held_out
    assert len(rows) == 12
    by_hand = found_by_hand(predicted(done.model, data, rows), data["group"][rows])
    for name, nu in by_hand.items():
        assert nu > 0
        assert float(done.multipliers[name]) == pytest.approx(0.25 + updates * 0.3 * nu)
        assert done.history[f"lambda/{name}"] == pytest.approx([0.25 + updates * k * 0.15 * nu for k in (1, 2)])
    assert done.history["nu_mean/parity"] == pytest.approx([by_hand["parity"]] * 2)
    assert done.history["nu_mean/cap"] == pytest.approx([by_hand["cap"] / 12] * 2)


@pytest.mark.parametrize("update_every", [None, 2])
def test_every_dual_update_uses_the_current_model(update_every: int | None) -> None:
    seen: list[dict[str, float]] = []

    class Watched(ldf.Lagrangian):
        def observe(self, predictions: Tensor, batch: ldf.Batch) -> None:
            seen.append(found_by_hand(predictions[:, 0].numpy(), batch.group))
            super().observe(predictions, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ldf.training.fitting.Lagrangian", Watched)
        rule = ldf.Ascent(0.3, normalise=False, reduce="mean")
        done = fit(people(), rule, factory=model, lr=0.1, epochs=3, update_every=update_every)
    assert len(seen) == (9 if update_every else 3)
    for name, rows in (("cap", 12), ("parity", 1)):
        values = 0.3 * np.cumsum([one[name] for one in seen]) / rows
        assert len(set(values)) > 2
        assert done.history[f"lambda/{name}"] == pytest.approx(values[2::3] if update_every else values)
        last = [one[name] / rows for one in (seen[2::3] if update_every else seen)]
        assert done.history[f"val_nu_mean/{name}"] == pytest.approx(last), "looked at the same rows and weights"


def test_training_rows_do_not_update_multipliers() -> None:
    data = people()
    free = {"inputs": torch.ones(9, 3).double(), "group": torch.zeros(9, dtype=torch.int64)}
    before = fit(data, optimizer=still)
    out = torch.isin(torch.arange(48), before.held_out)
    for rows, unlabelled, equal in ((~out, free, True), (out, None, False)):
        changed = {name: column.clone() for name, column in data.items()}
        changed["inputs"][rows] *= -3.0
        changed["group"][rows] = 1 - changed["group"][rows]
        after = fit(changed, optimizer=still, unlabelled=unlabelled)
        assert torch.equal(before.held_out, after.held_out)
        for name in before.multipliers:
            assert torch.equal(before.multipliers[name], after.multipliers[name]) is equal


def test_held_out_rows_update_only_multipliers() -> None:
    options = {"constraints": constraints()[:1], "epochs": 3}
    fixed = [fit(people(), ldf.Fixed(2.0), ascend_on=on, **options) for on in ("training", "held-out")]
    moved = [fit(people(), LITERAL, ascend_on=on, **options) for on in ("training", "held-out")]
    assert torch.equal(fixed[0].model.weight, fixed[1].model.weight)
    assert not torch.equal(moved[0].model.weight, moved[1].model.weight)
    assert fixed[0].history["loss"] == fixed[1].history["loss"]
    assert fixed[0].history["nu_mean/cap"] != fixed[1].history["nu_mean/cap"]


@pytest.mark.parametrize("loader", [False, True])
def test_separate_validation_data_are_held_out(loader: bool) -> None:
    data, other = people(), people(20, seed=5)

    class Named(DataLoader):
        def __iter__(self):
            for inputs, targets, group in super().__iter__():
                yield {"inputs": inputs, "targets": targets, "group": group}

    source = Named(TensorDataset(*data.values()), batch_size=8) if loader else data
    done = fit(source, validation=other, optimizer=still)
    by_hand = found_by_hand(predicted(done.model, other, torch.arange(20)), other["group"])
    for name, nu in by_hand.items():
        assert float(done.multipliers[name]) == pytest.approx(2 * 0.1 * nu)


NEIGHBOURS = ldf.Pairs(torch.tensor([[row, row + 1] for row in range(40)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": None}, r"ascend_on='held-out' needs held-out rows: use validation=0.2, or folds=5"),
        ({"ascend_on": "validation"}, "ascend_on must be 'training' or 'held-out', got 'validation'"),
        (
            {"constraints": [parity(), ldf.inequality("row", same, multiplier="sample")]},
            "constraint 'row': its multipliers belong to training rows",
        ),
        (
            {"constraints": [ldf.inequality("order", lambda y, b: y[0] - y[1], scope=NEIGHBOURS)]},
            "constraint 'order': its multipliers belong to training rows, so it cannot be combined with ascend_on",
        ),
    ],
)
def test_bad_input_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(people(), **options)
    options = {"constraints": [parity()], "validation": 0.25, "ascend_on": "held-out", **options}
    with pytest.raises(ValueError, match=message):
        ldf.fit_many(plain, people(), loss=bce, dual=LITERAL, seeds=[0, 1], epochs=1, progress=False, **options)


# ------------------------------------------------------------------------------------------------ folds together


def many(data: dict[str, Tensor], **options) -> list[ldf.Fit]:
    options = {"constraints": constraints(), "seeds": [0, 3], "folds": 3, "epochs": 1, "batch_size": 8, **options}
    options = {"duals": [LITERAL, ldf.Ascent(0.2, normalise=False, initial=0.5)], "keep": "last", **options}
    return ldf.fit_many(options.pop("factory", model), data, loss=bce, progress=False, **options)


@pytest.mark.parametrize("subsets", [None, [torch.arange(40), torch.arange(9, 49)]])
def test_folds_share_dual_updates_from_their_held_out_rows(subsets: list[Tensor] | None) -> None:
    data = people(50)
    runs = many(data, ascend_on="held-out", lr=0.03, subsets=subsets)
    assert [run.label["fold"] for run in runs] == [0, 1, 2] * 4
    seen = []
    for start in range(0, 12, 3):
        team = runs[start : start + 3]
        rows = torch.cat([run.held_out for run in team])
        assert len(rows.unique()) == (48 if subsets is None else 39)
        y = np.concatenate([predicted(run.model, data, run.held_out) for run in team])
        by_hand = found_by_hand(y, data["group"][rows])
        rule = team[0].label["dual"]
        for name, nu in by_hand.items():
            for run in team:
                assert run.label["dual"] is rule
                assert float(run.multipliers[name]) == pytest.approx(rule.initial + rule.step * nu)
                assert torch.equal(run.multipliers[name], team[0].multipliers[name])
            seen.append(float(team[0].multipliers[name]))
        assert len({run.history["loss"][0] for run in team}) == 3
        worst = max(run.history["val_nu_max/cap"][0] for run in team)
        assert [run.history["nu_max/cap"][0] for run in team] == pytest.approx([worst] * 3)
    assert len(set(seen)) == 8


def test_the_weights_of_a_fold_follow_from_the_shared_multipliers() -> None:
    """Given the same multipliers in every epoch, training takes the same steps."""
    data = people(48)
    options = {"constraints": constraints()[:1], "batch_size": 8, "seeds": [3], "epochs": 3, "factory": plain}
    runs = many(data, ascend_on="held-out", duals=[LITERAL], **options)
    course = [0.0, *runs[1].history["lambda/cap"]]

    class Replayed(ldf.Dual):
        def start(self, like: Tensor) -> dict[str, Tensor]:
            return {"multiplier": torch.zeros_like(like)}

        def update(self, state, violation, moment) -> None:
            state["multiplier"].fill_(course[moment.k + 1])

    again = many(data, duals=[Replayed()], **options)
    torch.testing.assert_close(runs[1].model.weight, again[1].model.weight, rtol=1e-12, atol=1e-12)
    assert course[1] < course[2] < course[3]


def test_folds_updated_by_training_rows_are_independent() -> None:
    data = people(48)
    runs = many(data, seeds=[3], duals=[LITERAL], factory=plain, optimizer=still)
    for run in runs:
        rows = torch.ones(48, dtype=torch.bool)
        rows[run.held_out] = False
        by_hand = found_by_hand(predicted(run.model, data, rows), data["group"][rows])
        for name, nu in by_hand.items():
            assert float(run.multipliers[name]) == pytest.approx(0.1 * nu)
    assert len({float(run.multipliers["cap"]) for run in runs}) == 3


def test_runs_with_held_out_fractions_are_independent() -> None:
    data = people(48)
    runs = many(data, folds=None, validation=0.25, ascend_on="held-out", factory=plain, optimizer=still, epochs=2)
    for run in runs:
        by_hand = found_by_hand(predicted(run.model, data, run.held_out), data["group"][run.held_out])
        rule = run.label["dual"]
        for name, nu in by_hand.items():
            assert float(run.multipliers[name]) == pytest.approx(rule.initial + 2 * rule.step * nu)

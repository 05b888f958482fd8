"""Constraints on pairs and groups, and the samplers that go with them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import ldf
from ldf.core.groups import every_pair

QUICK = settings(deadline=None, max_examples=40)
LITERAL = ldf.Ascent(0.1, normalise=False)


def same(y, batch):
    return y


def parity(scope, rule=LITERAL, kind=ldf.equality, sigma=same, **options):
    return ldf.Lagrangian([kind("parity", sigma, scope=scope, **options)], rule, updates=10)


def step(lagrangian, values, **columns):
    """The penalty of one batch whose predictions are these values, and its gradient."""
    y = torch.as_tensor(values, dtype=torch.float64).reshape(len(values), -1).clone().requires_grad_()
    loss = y.square().mean()
    total = lagrangian(loss, y, ldf.Batch(**columns))
    return (total - loss).item(), torch.autograd.grad(total - loss, y)[0]


def group_means(values, labels, count):
    """Means over each group, by hand; labels int64 or bool membership."""
    member = labels if labels.ndim == 2 else labels[:, None] == torch.arange(count)
    return torch.stack([values[member[:, g]].mean(0) for g in range(count)])


@st.composite
def grouped_rows(draw):
    """Values, labels with every group present at least once, and a partition of the rows into batches."""
    count = draw(st.integers(2, 4))
    extra = draw(st.integers(0, 16))
    labels = list(range(count)) + draw(st.lists(st.integers(-1, count - 1), min_size=extra, max_size=extra))
    order = draw(st.permutations(range(len(labels))))
    numbers = st.floats(-100, 100, allow_subnormal=False)
    values = draw(st.lists(numbers, min_size=len(labels), max_size=len(labels)))
    cuts = sorted(draw(st.sets(st.integers(1, len(labels) - 1), max_size=5)))
    batches = [torch.tensor(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(labels)], strict=True)]
    return torch.tensor(values, dtype=torch.float64)[:, None], torch.tensor(labels), count, batches


# ------------------------------------------------------------------------------------------------ groups


@QUICK
@given(rows=grouped_rows(), multiplier=st.sampled_from(["constraint", "column"]), epochs=st.integers(1, 2))
def test_group_means_are_exact_whatever_the_batches(rows, multiplier, epochs):
    values, labels, count, batches = rows
    lagrangian = parity(ldf.Groups(labels, count), multiplier=multiplier)
    gaps = every_pair(group_means(values, labels, count)).abs()
    for epoch in range(epochs):
        for ids in batches if epoch == 0 else reversed(batches):
            penalty, gradient = step(lagrangian, values[ids], ids=ids)
            assert math.isfinite(penalty)
            assert bool(torch.isfinite(gradient).all())
        row = lagrangian.ascend()
        assert row["nu_mean/parity"] == pytest.approx(gaps.mean().item(), abs=1e-9)
        assert row["nu_max/parity"] == pytest.approx(gaps.max().item(), abs=1e-9)
    expected = 0.1 * epochs * (gaps if multiplier == "column" else gaps.mean())
    torch.testing.assert_close(lagrangian.multipliers["parity"], expected)


@QUICK
@given(rows=grouped_rows(), data=st.data())
def test_overlapping_groups(rows, data):
    values, labels, count, batches = rows
    more = data.draw(st.lists(st.booleans(), min_size=len(labels) * count, max_size=len(labels) * count))
    member = (labels[:, None] == torch.arange(count)) | torch.tensor(more).reshape(-1, count)
    lagrangian = parity(ldf.Groups(member))
    for ids in batches:
        step(lagrangian, values[ids], ids=ids)
    expected = every_pair(group_means(values, member, count)).abs().mean().item()
    assert lagrangian.ascend()["nu_mean/parity"] == pytest.approx(expected, abs=1e-9)


def test_labels_by_tensor_name_and_function_agree():
    values = torch.tensor([[1.0], [2.0], [5.0], [7.0], [100.0]])
    labels = torch.tensor([0, 0, 1, 1, -1])
    age = torch.tensor([20, 30, 60, 70, 45])
    member = torch.stack([age < 40, age > 50], 1)
    scopes = [
        ldf.Groups(labels),
        ldf.Groups("group", 2),
        ldf.Groups(lambda batch: batch.group, 2),
        ldf.Groups(member),
        ldf.Groups("member", 2),
        ldf.Groups(lambda batch: torch.stack([batch.age < 40, batch.age > 50], 1), 2),
    ]
    for scope in scopes:
        lagrangian = parity(scope)
        for ids in torch.tensor([4, 2, 0, 3, 1]).split(2):
            step(lagrangian, values[ids], ids=ids, group=labels[ids], age=age[ids], member=member[ids])
        assert lagrangian.ascend()["nu_mean/parity"] == pytest.approx(4.5)


def test_rows_in_no_group_do_not_count_and_get_no_gradient():
    lagrangian = parity(ldf.Groups("group", 2), ldf.Fixed(1.0))
    penalty, gradient = step(lagrangian, [1.0, 3.0, 1000.0], group=torch.tensor([0, 1, -1]))
    assert penalty == pytest.approx(2.0)
    assert gradient.flatten().tolist() == pytest.approx([-1.0, 1.0, 0.0])


def test_compare_against_everyone():
    def to_first(means):
        return (means[1:] - means[:1]).flatten()

    lagrangian = parity(ldf.Groups("group", 3, compare=to_first), ldf.Fixed(1.0), multiplier="column")
    values, labels = torch.tensor([[0.0, 1.0], [2.0, 1.0], [7.0, -4.0]]), torch.tensor([0, 1, 2])
    penalty, _ = step(lagrangian, values, group=labels)
    assert penalty == pytest.approx(2 + 0 + 7 + 5)
    assert lagrangian.ascend()["nu_max/parity"] == 7.0
    assert lagrangian.multipliers["parity"].shape == (4,)


def test_inequality_and_slack_on_groups():
    scope = ldf.Groups("group", 2)
    for kind, values, expected in [
        (ldf.inequality, [1.0, 4.0], 2.0),
        (ldf.inequality, [4.0, 1.0], 0.0),
        (ldf.equality, [4.0, 1.0], 2.0),
        (ldf.equality, [4.0, 3.5], 0.0),
    ]:
        lagrangian = parity(scope, ldf.Fixed(1.0), kind, slack=1.0)
        penalty, _ = step(lagrangian, values, group=torch.tensor([0, 1]))
        assert penalty == pytest.approx(expected)
        assert lagrangian.ascend()["nu_mean/parity"] == pytest.approx(expected)


def test_plain_degree_on_groups_is_signed():
    lagrangian = parity(ldf.Groups("group", 2), degree="satisfiability")
    for values, expected in [([4.0, 1.0], -0.3), ([1.0, 2.0], -0.2), ([0.0, 5.0], 0.3)]:
        step(lagrangian, values, group=torch.tensor([0, 1]))
        lagrangian.ascend()
        assert lagrangian.multipliers["parity"].item() == pytest.approx(expected)


@pytest.mark.parametrize(
    "rule", [ldf.Fixed(1.0), LITERAL, ldf.Ascent(0.1), ldf.Augmented(), ldf.NuPI(), ldf.Balanced()], ids=repr
)
def test_groups_that_are_absent_never_give_nan(rule):
    batches = [
        ([1.0, 2.0], [0, 0]),  # groups 1 and 2 not seen so far
        ([3.0, 4.0], [-1, -1]),  # no row in any group
        ([5.0, 9.0], [1, 0]),
    ]
    for order in ([0, 1, 2], [1, 2, 0], [0], [1, 0]):
        lagrangian = parity(ldf.Groups("group", 3), rule)
        for _ in range(4):
            for number in order:
                values, labels = batches[number]
                penalty, gradient = step(lagrangian, values, group=torch.tensor(labels))
                assert math.isfinite(penalty)
                assert bool(torch.isfinite(gradient).all())
            row = lagrangian.ascend()
            assert all(math.isfinite(value) for value in row.values()), (order, row)
            assert bool(torch.isfinite(lagrangian.multipliers["parity"]).all())


@pytest.mark.parametrize("rule", [LITERAL, ldf.Ascent(0.1), ldf.Augmented(), ldf.Balanced()], ids=repr)
def test_an_epoch_with_no_row_in_any_group(rule):
    lagrangian = parity(ldf.Groups("group", 2), rule)
    nobody, both = torch.tensor([-1, -1]), torch.tensor([0, 1])
    step(lagrangian, [1.0, 4.0], group=nobody)
    row = lagrangian.ascend()
    assert row["nu_mean/parity"] == row["lambda/parity"] == 0.0
    for labels in (both, nobody, both):
        step(lagrangian, [1.0, 4.0], group=labels)
        assert lagrangian.ascend()["nu_mean/parity"] == pytest.approx(3.0)  # the last known means
    assert bool(torch.isfinite(lagrangian.multipliers["parity"]).all())


def test_a_group_never_seen_is_no_violation():
    lagrangian = parity(ldf.Groups("group", 2))
    for _ in range(2):
        penalty, gradient = step(lagrangian, [1.0, 2.0], group=torch.tensor([0, 0]))
        assert penalty == 0.0
        assert gradient.abs().max() == 0.0
        assert lagrangian.ascend()["nu_mean/parity"] == 0.0


def test_an_absent_group_keeps_its_mean_and_gets_no_gradient():
    lagrangian = parity(ldf.Groups("group", 2), ldf.Fixed(1.0))
    step(lagrangian, [1.0, 4.0], group=torch.tensor([0, 1]))
    penalty, gradient = step(lagrangian, [1.0, 1.0], group=torch.tensor([0, 0]))
    assert penalty == pytest.approx(3.0)
    assert bool((gradient < 0).all())  # up towards the other group's 4


def test_gradient_of_a_full_batch_against_finite_differences():
    labels = torch.tensor([0, 1, 1, 2, 0, 2, -1])
    y = torch.tensor([[0.3], [1.2], [-0.4], [0.9], [2.0], [-1.5], [0.1]], dtype=torch.float64, requires_grad=True)
    scope = ldf.Groups(labels)
    lagrangian = parity(scope, ldf.Fixed(0.7), sigma=lambda y, batch: y.sigmoid()).eval()
    batch = ldf.Batch(ids=torch.arange(7))
    assert torch.autograd.gradcheck(lambda y: lagrangian(y.square().mean(), y, batch), (y,), atol=1e-6)


@pytest.mark.parametrize("sizes", [(300, 100), (960, 64), (12000, 1200)])
def test_batch_gradients_average_to_the_full_gradient(sizes):
    """Averaged over the batches of an epoch, the gradient is that of |mean₁ − mean₀| over all rows."""
    labels = torch.cat([torch.zeros(sizes[0]), torch.ones(sizes[1])]).long()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(len(labels), generator=generator, dtype=torch.float64) + 1 + labels
    lagrangian = parity(ldf.Groups("group", 2), ldf.Fixed(1.0))
    weights = torch.ones(2, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([-inputs[labels == 0].mean(), inputs[labels == 1].mean()])
    for epoch in range(3):
        total, batches = torch.zeros(2, dtype=torch.float64), 0
        for ids in torch.randperm(len(labels), generator=generator).split(64):
            y = (weights[labels[ids]] * inputs[ids])[:, None]
            loss = y.square().mean()
            penalty = lagrangian(loss, y, ldf.Batch(group=labels[ids])) - loss
            total += torch.autograd.grad(penalty, weights)[0]
            batches += 1
        lagrangian.ascend()
        if epoch == 2:  # shares and running means have settled
            torch.testing.assert_close(total / batches, expected, rtol=0.1, atol=0)


def test_group_multipliers_weigh_every_comparison():
    lagrangian = parity(ldf.Groups("group", 3), ldf.Ascent(1.0, normalise=False), multiplier="column")
    labels = torch.tensor([0, 1, 2])
    step(lagrangian, [0.0, 1.0, 3.0], group=labels)
    lagrangian.ascend()
    assert lagrangian.multipliers["parity"].tolist() == [1.0, 3.0, 2.0]
    lagrangian.blocks[0].running_counts.zero_()  # forget the previous batch
    lagrangian.blocks[0].running_sums.zero_()
    penalty, _ = step(lagrangian, [5.0, 5.0, 1.0], group=labels)
    assert penalty == pytest.approx(1 * 0 + 3 * 4 + 2 * 4)


def test_bad_groups():
    with pytest.raises(TypeError, match=r"\[N\] int64 or \[N, G\] bool, got \[3\] torch.float32"):
        ldf.Groups(torch.zeros(3))
    with pytest.raises(TypeError, match=r"\[N\] int64 or \[N, G\] bool, got \[0\] torch.int64"):
        ldf.Groups(torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"labels='sex'.*count="):
        ldf.Groups("sex")
    with pytest.raises(ValueError, match="label 2 needs count ≥ 3, got 2"):
        ldf.Groups(torch.tensor([0, 2]), 2)
    with pytest.raises(ValueError, match="count must be ≥ 1, got 0"):
        ldf.Groups("sex", 0)
    with pytest.raises(ValueError, match="2 groups but 1 names"):
        ldf.Groups("sex", 2, names=["women"])
    with pytest.raises(ValueError, match="constraint 'c': a constraint on groups has no multiplier per sample"):
        ldf.equality("c", same, scope=ldf.Groups("sex", 2), multiplier="sample")
    with pytest.raises(ValueError, match="the batch needs `ids`"):
        step(parity(ldf.Groups(torch.tensor([0, 1]))), [1.0, 2.0])
    with pytest.raises(AttributeError, match="no column 'sex'; it has: age"):
        step(parity(ldf.Groups("sex", 2)), [1.0, 2.0], age=torch.tensor([1, 2]))
    with pytest.raises(
        ldf.ConstraintError, match=r"constraint 'parity': compare must return a vector \[q\].*got \[2, 1\]"
    ):
        step(parity(ldf.Groups("sex", 2, compare=lambda means: means)), [1.0, 2.0], sex=torch.tensor([0, 1]))


def test_membership_must_fit_the_count():
    with pytest.raises(ValueError, match=r"2.*count.*3"):
        ldf.Groups(torch.ones(4, 2, dtype=torch.bool), count=3)


def test_the_number_of_statistics_must_stay():
    lagrangian = parity(ldf.Groups("group", 2))
    step(lagrangian, [1.0, 2.0], group=torch.tensor([0, 1]))
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'parity'.*1 columns before and 2 now"):
        step(lagrangian, [[1.0, 2.0], [3.0, 4.0]], group=torch.tensor([0, 1]))


# ------------------------------------------------------------------------------------------------ pairs


def pair_step(lagrangian, table, scope, numbers, **columns):
    """One batch of these pairs; predictions are looked up by row in a table."""
    first, second = scope.indices[numbers].unbind(1)
    y = table.clone().requires_grad_()
    both = torch.stack([y[first], y[second]])
    batch = ldf.Batch(ids=numbers, **{name: torch.stack([c[first], c[second]]) for name, c in columns.items()})
    return lagrangian(y.square().mean() + 0 * both.sum(), y, ldf.Batch(), pairs=(both, batch)), y


def test_pairs_come_as_first_and_second():
    scope = ldf.Pairs(torch.tensor([[0, 1], [2, 0], [1, 2]]))
    seen = []

    def order(y, batch):
        seen.append((y.shape, batch.cost.shape, batch.ids.shape))
        return (y[0] - y[1]) * (batch.cost[0] - batch.cost[1])[:, None]

    lagrangian = ldf.Lagrangian([ldf.inequality("order", order, scope=scope)], ldf.Ascent(1.0, normalise=False))
    table = torch.tensor([[1.0, 0.0], [4.0, 5.0], [2.0, -1.0]], dtype=torch.float64)
    cost = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    pair_step(lagrangian, table, scope, torch.tensor([0, 2]), cost=cost)
    assert set(seen) == {((2, 2, 2), (2, 2), (2,))}
    row = lagrangian.ascend()
    # Pair (0, 1): (−3, −5)·(−1); pair (1, 2): (2, 6)·(−3).
    assert row["nu_mean/order"] == pytest.approx((3 + 5) / 4)
    assert lagrangian.multipliers["order"].item() == pytest.approx((3 + 5) / 2)
    loss, y = pair_step(lagrangian, table, scope, torch.tensor([0]), cost=cost)
    assert (loss - y.square().mean()).item() == pytest.approx(4 * 4)


@QUICK
@given(order=st.permutations(range(5)), size=st.integers(1, 5))
def test_multipliers_per_pair(order, size):
    scope = ldf.Pairs(torch.tensor([[0, 1], [2, 0], [1, 2], [3, 1], [3, 0]]))
    table = torch.tensor([[1.0], [4.0], [2.0], [9.0]], dtype=torch.float64)
    constraint = ldf.inequality("order", lambda y, batch: y[0] - y[1], scope=scope, multiplier="sample")
    lagrangian = ldf.Lagrangian([constraint], LITERAL)
    for numbers in torch.tensor(order).split(size):
        pair_step(lagrangian, table, scope, numbers)
    lagrangian.ascend()
    nu = torch.tensor([0.0, 1.0, 2.0, 5.0, 8.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close(lagrangian.multipliers["order"], 0.1 * nu)
    numbers = torch.tensor(order)[:2]
    loss, y = pair_step(lagrangian, table, scope, numbers)
    assert (loss - y.square().mean()).item() == pytest.approx((0.1 * nu[numbers].square()).mean().item(), abs=1e-9)


def test_several_sets_of_pairs_by_name():
    near, far = ldf.Pairs(torch.tensor([[0, 1]]), "near"), ldf.Pairs(torch.tensor([[0, 2]]), "far")
    constraints = [
        ldf.inequality("a", lambda y, batch: y[0] - y[1], scope=near),
        ldf.equality("b", lambda y, batch: y[0] + y[1], scope=far),
    ]
    lagrangian = ldf.Lagrangian(constraints, LITERAL)
    y = torch.tensor([[3.0], [1.0], [-8.0]], requires_grad=True)
    sides = {"near": (y[[0, 1]][:, None], ldf.Batch()), "far": (y[[0, 2]][:, None], ldf.Batch())}
    with pytest.raises(ValueError, match=r"2 sets of pairs, \['far', 'near'\]: pass a mapping by name"):
        lagrangian(y.mean(), y, ldf.Batch(), pairs=sides["near"])
    lagrangian(y.mean(), y, ldf.Batch(), pairs=sides)
    row = lagrangian.ascend()
    assert (row["nu_mean/a"], row["nu_mean/b"]) == (2.0, 5.0)


def test_pair_gradient_against_finite_differences():
    scope = ldf.Pairs(torch.tensor([[0, 1], [2, 0]]))
    constraint = ldf.inequality("order", lambda y, batch: y[0] ** 2 - y[1], scope=scope)
    lagrangian = ldf.Lagrangian([constraint], ldf.Fixed(2.0)).eval()
    y = torch.tensor([[1.5], [0.3], [0.2]], dtype=torch.float64, requires_grad=True)

    def loss(y):
        both = torch.stack([y[scope.indices[:, 0]], y[scope.indices[:, 1]]])
        return lagrangian(y.square().mean(), y, ldf.Batch(), pairs=(both, ldf.Batch()))

    assert torch.autograd.gradcheck(loss, (y,), atol=1e-6)


def test_bad_pairs():
    with pytest.raises(TypeError, match=r"Pairs 'order': indices must be an int64 tensor, got \[1, 2\] torch.float32"):
        ldf.Pairs(torch.zeros(1, 2), "order")
    with pytest.raises(TypeError, match="must be an int64 tensor, got list"):
        ldf.Pairs([[0, 1]])
    with pytest.raises(ValueError, match=r"must have shape \[P, 2\], got \[2, 3\]"):
        ldf.Pairs(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"must have shape \[P, 2\], got \[0, 2\]"):
        ldf.Pairs(torch.zeros(0, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="row numbers must be ≥ 0, got -1"):
        ldf.Pairs(torch.tensor([[0, -1]]))
    scope = ldf.Pairs(torch.tensor([[0, 1], [1, 0]]))
    lagrangian = ldf.Lagrangian([ldf.inequality("order", lambda y, batch: y[0, :1], scope=scope)], LITERAL)
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'order'.*\[2, k\], one row per pair, got \[1, 1\]"):
        pair_step(lagrangian, torch.zeros(2, 1, dtype=torch.float64), scope, torch.tensor([0, 1]))
    unnumbered = ldf.inequality("order", lambda y, batch: y[0], scope=scope, multiplier="sample")
    y = torch.ones(2, 2, 1, requires_grad=True)
    with pytest.raises(ldf.ConstraintError, match=r"constraint 'order' has a multiplier per sample.*`ids`"):
        ldf.Lagrangian([unnumbered], LITERAL)(y.mean(), y, ldf.Batch(), pairs=(y, ldf.Batch()))


@QUICK
@given(count=st.integers(1, 30), batches=st.integers(1, 12), seed=st.integers(0, 100))
def test_pair_batches_yield_every_pair_once(count, batches, seed):
    pairs = ldf.Pairs(torch.arange(2 * count).reshape(count, 2))
    sampler, twin = ldf.PairBatches(pairs, batches, seed=seed), ldf.PairBatches(pairs, batches, seed=seed)
    orders = []
    for _ in range(3):
        found = list(sampler)
        assert len(found) == len(sampler) == batches
        sizes = [len(batch) for batch in found]
        assert max(sizes) - min(sizes) <= 1
        order = torch.cat(found)
        assert sorted(order.tolist()) == list(range(count))
        assert order.tolist() == torch.cat(list(twin)).tolist()
        orders.append(order.tolist())
    if count > 12:
        assert orders[0] != orders[1] != orders[2] != orders[0]


def test_pair_batches_need_a_number():
    with pytest.raises(ValueError, match="batches must be ≥ 1, got 0"):
        ldf.PairBatches(ldf.Pairs(torch.tensor([[0, 1]])), 0)


# ------------------------------------------------------------------------------------------------ stratified batches


@QUICK
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    batch_size=st.integers(1, 24),
    at_least=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_stratified_batches(sizes, batch_size, at_least, seed):
    labels = torch.cat([torch.full((size,), group) for group, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    sampler = ldf.StratifiedBatches(labels, batch_size, at_least=at_least, seed=seed)
    twin = ldf.StratifiedBatches(labels, batch_size, at_least=at_least, seed=seed)
    for _ in range(2):
        batches = list(sampler)
        assert batches == list(twin)
        assert len(batches) == len(sampler) == math.ceil(len(labels) / batch_size)
        assert {row for batch in batches for row in batch} == set(range(len(labels)))
        for batch in batches:
            counts = torch.bincount(labels[batch], minlength=len(sizes)) if batch else torch.zeros(len(sizes))
            for group, size in enumerate(sizes):
                share = max(size, at_least * len(batches)) / len(batches)
                assert counts[group] >= at_least
                assert share - 1 < counts[group] < share + 1 + 1e-9


def test_stratified_batches_differ_between_epochs_and_seeds():
    labels = torch.tensor([0] * 50 + [1] * 14)
    sampler = ldf.StratifiedBatches(labels, 16, seed=3)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert list(ldf.StratifiedBatches(labels, 16, seed=4)) != first


def test_stratified_batches_in_a_data_loader():
    labels = torch.tensor([0] * 95 + [1] * 5)
    data = TensorDataset(torch.arange(100.0)[:, None], labels)
    loader = DataLoader(data, batch_sampler=ldf.StratifiedBatches(labels, 10))
    rows = []
    for values, groups in loader:
        assert set(groups.tolist()) == {0, 1}
        rows += values.flatten().tolist()
    assert len(loader) == 10
    assert set(rows) == set(range(100))
    assert len(rows) == 105  # the five rare rows twice


def test_bad_stratified_batches():
    with pytest.raises(TypeError, match=r"non-empty \[N\] int64 tensor, got list"):
        ldf.StratifiedBatches([0, 1], 2)
    with pytest.raises(TypeError, match=r"non-empty \[N\] int64 tensor, got \[2\] torch.float32"):
        ldf.StratifiedBatches(torch.zeros(2), 2)
    with pytest.raises(ValueError, match="batch_size ≥ 1 and at_least ≥ 0, got 0 and 1"):
        ldf.StratifiedBatches(torch.tensor([0, 1]), 0)


# ------------------------------------------------------------------------------------------------ every pair


@QUICK
@given(count=st.integers(1, 6), columns=st.integers(1, 3), seed=st.integers(0, 1000))
def test_every_pair(count, columns, seed):
    means = torch.randn(count, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = [means[b] - means[a] for a in range(count) for b in range(a + 1, count)]
    found = every_pair(means)
    assert found.shape == (count * (count - 1) // 2 * columns,)
    assert found.tolist() == [number.item() for row in expected for number in row]
    assert every_pair(means[:1].expand(count, columns)).abs().sum() == 0

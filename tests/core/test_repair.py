"""Repair: closed forms, optimality conditions, other solvers, derivatives, and rows that cannot be repaired."""

import math

import daqp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import nn

import ldf
from ldf.core import projection
from ldf.core import repair as core
from ldf.transprecision.dominance import Dominance
from ldf.transprecision.repair import isotonic

NONE = ldf.Batch()
SUM = ldf.equality("sum", lambda y, batch: y.sum(1, keepdim=True) - 1)
POSITIVE = ldf.inequality("positive", lambda y, batch: -y)
RING = ldf.equality("ring", lambda y, batch: y.square().sum(1, keepdim=True) - 1)
WEIGHTS = torch.tensor([1.0, 4.0, 0.3, 2.0], dtype=torch.float64)
CURVED = [
    ldf.equality("ellipsoid", lambda y, batch: (WEIGHTS * y.square()).sum(1, keepdim=True) - 1),
    ldf.inequality(
        "products", lambda y, batch: torch.stack([y[:, 0] * y[:, 1] - 0.05, 0.2 - y[:, 2] * y[:, 3].exp()], 1)
    ),
]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def simplex(z: torch.Tensor) -> torch.Tensor:
    """The projection onto {y ≥ 0, Σy = 1}, by sorting."""
    ordered = z.sort(dim=1, descending=True).values
    shift = (ordered.cumsum(1) - 1) / torch.arange(1, z.shape[1] + 1)
    last = (ordered > shift).sum(1, keepdim=True) - 1
    return (z - shift.gather(1, last)).clamp_min(0)


# ---------------------------------------------------------------------------------------------- linear constraints


@pytest.mark.parametrize("columns", [1, 2, 7, 40])
def test_projection_onto_the_simplex(columns):
    z = 2 * normal(100, columns)
    done = ldf.repair(z, NONE, [SUM, POSITIVE])
    torch.testing.assert_close(done.predictions, simplex(z), rtol=0, atol=1e-10)
    torch.testing.assert_close(done.distance, (simplex(z) - z).norm(dim=1))
    assert done.certificate.holds
    assert bool(done.holds.all())
    assert (done.failed, done.iterations) == ([], 1)


def test_projection_onto_a_box_with_slack():
    z = 3 * normal(50, 4)
    box = ldf.equality("box", lambda y, batch: y - batch.centre, slack=0.5)
    centre = normal(50, 4, seed=1)
    done = ldf.repair(z, ldf.Batch(centre=centre), [box])
    torch.testing.assert_close(done.predictions, z.clamp(centre - 0.5, centre + 0.5), rtol=0, atol=1e-12)
    later = ldf.equality("box", lambda y, batch: y - batch.centre, slack=lambda k: 0.5 / (k + 1))
    done = ldf.repair(z, ldf.Batch(centre=centre), [later], k=1)
    torch.testing.assert_close(done.predictions, z.clamp(centre - 0.25, centre + 0.25), rtol=0, atol=1e-12)


def test_projection_onto_an_affine_set():
    matrix, z = normal(3, 8), normal(20, 8, seed=1)
    right = normal(20, 3, seed=2)
    done = ldf.repair(z, {"inputs": right}, [ldf.equality("law", lambda y, batch: y @ matrix.T - batch.inputs)])
    expected = z - (z @ matrix.T - right) @ torch.linalg.pinv(matrix).T
    torch.testing.assert_close(done.predictions, expected, rtol=0, atol=1e-12)
    # A matrix for every row.
    matrices = normal(20, 3, 8, seed=3)
    law = ldf.equality("law", lambda y, batch: (batch.matrix @ y[:, :, None])[:, :, 0])
    done = ldf.repair(z, {"matrix": matrices}, [law])
    expected = z - (torch.linalg.pinv(matrices) @ matrices @ z[:, :, None])[:, :, 0]
    torch.testing.assert_close(done.predictions, expected, rtol=0, atol=1e-11)


def exactly(z, matrix, bound, equal):
    """The projection by another solver."""
    lower = np.where(equal, bound, -1e30)
    sense = np.where(equal, 5, 0).astype(np.int32)
    return daqp.solve(np.eye(len(z)), -z.copy(), matrix.copy(), bound.copy(), lower, sense)[0]


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    columns=st.integers(1, 8),
    equal=st.integers(0, 3),
    upper=st.integers(0, 12),
    tight=st.booleans(),
    twice=st.booleans(),
)
def test_random_systems_satisfy_the_optimality_conditions(seed, columns, equal, upper, tight, twice):
    equal = min(equal, columns - 1)
    rows = equal + upper
    matrix, inside = normal(rows, columns, seed=seed), normal(columns, seed=seed + 1)
    bound = matrix @ inside  # feasible at `inside`, where many rows may meet
    if not tight:
        bound[equal:] += normal(upper, seed=seed + 2).abs()
    if twice and upper > 1:
        matrix[-1], bound[-1] = matrix[-2], bound[-2]  # redundant
    z = 2 * normal(6, columns, seed=seed + 3)
    constraints = [
        ldf.equality("equal", lambda y, batch: y @ matrix[:equal].T - bound[:equal]),
        ldf.inequality("upper", lambda y, batch: y @ matrix[equal:].T - bound[equal:]),
    ]
    done = ldf.repair(z, NONE, [c for c, n in zip(constraints, (equal, upper), strict=True) if n])
    assert done.certificate.holds
    assert all(finding.max < 1e-8 for finding in done.certificate.findings)
    y = done.predictions
    assert ((y - inside) * (y - z)).sum(1).max() < 1e-6, "no feasible point is on z's side"
    mask = np.arange(rows) < equal
    for row in range(len(z)) if rows else ():
        expected = exactly(z[row].numpy(), matrix.numpy(), bound.numpy(), mask)
        np.testing.assert_allclose(y[row].numpy(), expected, atol=1e-6)


def test_multipliers_are_those_of_the_projection():
    matrix, z = normal(6, 5), 3 * normal(40, 5, seed=1)
    bound = normal(6, seed=2).abs().expand(40, 6)
    jacobian = projection.Dense(matrix[None].expand(40, 6, 5))
    equal = (torch.arange(6) < 2).expand(40, 6)
    y, multipliers = projection.project(jacobian, z, bound / jacobian.norm, equal)
    torch.testing.assert_close(y, z - multipliers @ jacobian.matrix[0], rtol=0, atol=1e-13)
    rest = y @ matrix.T - bound
    assert rest[:, :2].abs().max() < 1e-12
    assert rest.max() < 1e-12
    assert multipliers[:, 2:].min() >= 0
    assert (multipliers * rest)[:, 2:].abs().max() < 1e-10


def test_a_problem_of_a_hundred_variables():
    generator = torch.Generator().manual_seed(0)
    equal, upper = (torch.randn(50, 100, dtype=torch.float64, generator=generator) for _ in range(2))
    bound = (upper @ torch.linalg.pinv(equal)).abs().sum(1)
    right = 2 * torch.rand(40, 50, dtype=torch.float64, generator=generator) - 1
    z = right @ torch.linalg.pinv(equal).T + 0.5 * torch.randn(40, 100, dtype=torch.float64, generator=generator)
    constraints = [
        ldf.equality("equal", lambda y, batch: y @ equal.T - batch.inputs),
        ldf.inequality("upper", lambda y, batch: y @ upper.T - bound),
    ]
    done = ldf.repair(z, {"inputs": right}, constraints)
    assert done.certificate.holds
    assert max(finding.max for finding in done.certificate.findings) < 1e-11
    matrix, mask = torch.cat([equal, upper]).numpy(), np.arange(100) < 50
    for row in range(40):
        expected = exactly(z[row].numpy(), matrix, torch.cat([right[row], bound]).numpy(), mask)
        np.testing.assert_allclose(done.predictions[row].numpy(), expected, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), curved=st.booleans())
def test_repairing_twice_changes_nothing_more(seed, curved):
    constraints = CURVED if curved else [SUM, POSITIVE]
    first = ldf.repair(normal(20, 4, seed=seed), NONE, constraints)
    again = ldf.repair(first.predictions, NONE, constraints)
    assert first.certificate.holds
    assert torch.equal(again.predictions, first.predictions)
    assert (again.iterations, float(again.distance.max())) == (0, 0.0)


def test_rows_that_hold_do_not_move_and_rows_do_not_influence_each_other(monkeypatch):
    z = normal(30, 4).float()
    z[::3] = torch.softmax(z[::3], 1)
    within = ldf.equality("sum", lambda y, batch: y.sum(1, keepdim=True) - 1, slack=1e-3)
    done = ldf.repair(z, NONE, [within, POSITIVE])
    assert torch.equal(done.predictions[::3], z[::3].double())
    assert float(done.distance[::3].max()) == 0
    assert bool((done.distance[1::3] > 0).all())
    monkeypatch.setattr(core, "ENTRIES", 1)  # one row at a time
    alone = ldf.repair(z, NONE, [within, POSITIVE])
    torch.testing.assert_close(alone.predictions, done.predictions, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------------------------------- curved constraints


@pytest.mark.parametrize("columns", [2, 7])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_projection_onto_a_sphere(columns, size):
    z = size * normal(100, columns)
    done = ldf.repair(z, NONE, [RING])
    torch.testing.assert_close(done.predictions, z / z.norm(dim=1, keepdim=True), rtol=0, atol=1e-8)
    assert done.certificate["ring"].max < 1e-9
    ball = ldf.inequality("ball", RING.sigma)
    inside = z.norm(dim=1) <= 1
    done = ldf.repair(z, NONE, [ball])
    assert torch.equal(done.predictions[inside], z[inside])
    torch.testing.assert_close(done.predictions[~inside].norm(dim=1), torch.ones(int((~inside).sum())).double())


def test_curved_constraints_reach_a_local_minimum_of_the_distance():
    z = normal(60, 4)
    done = ldf.repair(z, NONE, CURVED)
    assert done.certificate.holds
    assert max(finding.max for finding in done.certificate.findings) < 1e-9
    rules = [
        {"type": "eq", "fun": lambda y: (WEIGHTS.numpy() * y * y).sum() - 1},
        {"type": "ineq", "fun": lambda y: np.array([0.05 - y[0] * y[1], y[2] * np.exp(y[3]) - 0.2])},
    ]
    for row, start in enumerate(done.predictions.numpy()):
        aim = z[row].numpy()
        found = minimize(
            lambda y: 0.5 * ((y - aim) ** 2).sum(),
            start,
            jac=lambda y: y - aim,
            constraints=rules,
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        assert np.linalg.norm(found.x - aim) > float(done.distance[row]) - 1e-6, "another solver finds none nearer"


def test_a_function_undefined_elsewhere_is_never_left():
    log = ldf.inequality("log", lambda y, batch: 1 + y.log())  # y ≤ 1/e, and not defined for y ≤ 0
    done = ldf.repair(torch.tensor([[5.0], [0.01], [1e-3]]), NONE, [log])
    torch.testing.assert_close(
        done.predictions[:, 0], torch.tensor([np.exp(-1), 0.01, 1e-3]), rtol=0, atol=1e-6, check_dtype=False
    )
    assert done.certificate.holds


# ---------------------------------------------------------------------------------------------- no solution


def test_rows_without_a_solution_are_named():
    limits = [
        ldf.inequality("most", lambda y, batch: y[:, :1] - batch.most),
        ldf.inequality("least", lambda y, batch: 1 - y[:, :1]),
    ]
    batch = ldf.Batch(most=torch.tensor([[2.0], [0.0], [5.0]]))
    done = ldf.repair(torch.zeros(3, 2), batch, limits)
    assert done.failed == [1]
    assert done.holds.tolist() == [True, False, True]
    assert not done.certificate.holds
    # The least violation, 1/2 of each.
    torch.testing.assert_close(done.predictions[:, 0], torch.tensor([1.0, 0.5, 1.0]).double(), rtol=0, atol=1e-7)
    assert "1 of 3 rows violate a constraint: 1" in str(done)


@pytest.mark.parametrize(
    "sigma",
    [
        lambda y, b: y.square().sum(1, keepdim=True) + 1,
        lambda y, b: torch.ones(len(y), 1),
        lambda y, b: 1 - y[:, :1].square(),
    ],
)
def test_what_never_holds_ends_without_nan(sigma):
    z = torch.zeros(4, 2) if sigma(torch.zeros(1, 2), NONE).item() == 1 else normal(4, 2)
    done = ldf.repair(z, NONE, [ldf.inequality("never", sigma)], iterations=20)
    assert done.failed == [0, 1, 2, 3]
    assert bool(torch.isfinite(done.predictions).all())


# ---------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("constraints", [[SUM, POSITIVE], [RING], CURVED, [SUM, RING]])
def test_derivatives_by_finite_differences(constraints):
    z = (1.5 * normal(6, 4, seed=4)).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: ldf.repair(y, NONE, constraints).predictions, z, eps=1e-6, atol=1e-5)


def test_derivatives_of_coupled_rows():
    z = normal(7, 1).requires_grad_()
    order = ldf.inequality(
        "order", lambda y, p: y[0] - y[1], scope=ldf.Pairs(torch.tensor([[i, i + 1] for i in range(6)]))
    )
    parity = ldf.equality("parity", lambda y, b: y.sigmoid(), scope=ldf.Groups("group", 2))
    batch = ldf.Batch(group=torch.tensor([0, 1, 0, 1, 0, 1, 0]))
    for constraints in ([order], [parity], [order, ldf.inequality("most", lambda y, b: y - 0.5)]):
        assert torch.autograd.gradcheck(lambda y: ldf.repair(y, batch, constraints).predictions, z, atol=1e-5)


def test_a_model_is_trained_through_its_repair():
    class Shares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, inputs):
            raw = self.layer(inputs)
            return ldf.repair(raw, ldf.Batch(inputs=inputs), [SUM, POSITIVE], dtype=raw.dtype).predictions

    torch.manual_seed(0)
    inputs = torch.randn(128, 3)
    targets = torch.softmax(inputs @ torch.randn(3, 4), 1)
    fit = ldf.fit(
        Shares(), (inputs, targets), loss=nn.functional.mse_loss, constraints=[SUM, POSITIVE], epochs=20, lr=0.02
    )
    assert fit.history["loss"][-1] < fit.history["loss"][0] / 4
    assert fit.certify(fit.model(inputs), ldf.Batch(inputs=inputs), tolerance=1e-6).holds


# ---------------------------------------------------------------------------------------------- predictions and types


def test_trees_of_predictions():
    parts = {"a": normal(5, 2, 2), "b": (normal(5, seed=1), torch.arange(5))}
    total = ldf.equality(
        "total", lambda y, batch: y["a"].sum((1, 2))[:, None] + y["b"][0][:, None] + y["b"][1][:, None]
    )
    done = ldf.repair(parts, NONE, [total])
    shift = (parts["a"].sum((1, 2)) + parts["b"][0] + torch.arange(5)) / 5
    torch.testing.assert_close(done.predictions["a"], parts["a"] - shift[:, None, None])
    torch.testing.assert_close(done.predictions["b"][0], parts["b"][0] - shift)
    assert torch.equal(done.predictions["b"][1], torch.arange(5))


def test_constants_in_float32_and_results_in_the_dtype_asked_for():
    matrix, inputs = normal(5, 20).float(), normal(7, 5, seed=1).float()
    law = ldf.equality("law", lambda y, batch: y @ matrix.T - nn.functional.linear(batch.inputs, torch.eye(5)))
    batch, z = ldf.Batch(inputs=inputs), normal(7, 20, seed=2).float()
    done = ldf.repair(z, batch, [law])
    assert done.predictions.dtype == torch.float64
    assert done.certificate["law"].max < 1e-12
    assert ldf.certify([law], done.predictions, batch, tolerance=1e-9).holds
    single = ldf.repair(z, batch, [law], dtype=torch.float32)
    assert single.predictions.dtype == torch.float32
    assert 1e-9 < single.certificate["law"].max < 1e-5, "the certificate is that of the rounded values"


def test_gradients_need_not_be_enabled():
    z = normal(4, 3)
    expected = ldf.repair(z, NONE, [SUM]).predictions
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(ldf.repair(z, NONE, [SUM]).predictions, expected)


def test_functions_that_cannot_be_batched():
    calls = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return 2 * y

        @staticmethod
        def backward(ctx, gradient):
            calls.append(float(gradient.sum()))  # vmap refuses a number
            return 2 * gradient

    rule = ldf.equality("rule", lambda y, batch: torch.stack([Twice.apply(y.sum(1)) - 2, y[:, 0]], 1))
    done = ldf.repair(normal(5, 3), NONE, [rule])
    assert calls
    torch.testing.assert_close(done.predictions.sum(1), torch.ones(5).double())
    assert done.certificate.holds


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="predictions must be finite; row 1"):
        ldf.repair(torch.tensor([[1.0], [float("nan")]]), NONE, [SUM])
    with pytest.raises(ValueError, match="tolerance must be > 0, got 0"):
        ldf.repair(torch.ones(1, 1), NONE, [SUM], tolerance=0)
    with pytest.raises(ValueError, match=r"unknown: \['son'\]"):
        ldf.repair(torch.ones(1, 1), NONE, [SUM], tolerance={"son": 1e-3})
    with pytest.raises(ValueError, match="iterations must be a whole number ≥ 1, got 0"):
        ldf.repair(torch.ones(1, 1), NONE, [SUM], iterations=0)
    with pytest.raises(ValueError, match=r"dtype must be a floating dtype, got torch.int64"):
        ldf.repair(torch.ones(1, 1), NONE, [SUM], dtype=torch.int64)
    with pytest.raises(TypeError, match="nothing to move"):
        ldf.repair(torch.ones(1, 1, dtype=torch.int64), NONE, [SUM])
    with pytest.raises(TypeError, match="a batch must be"):
        ldf.repair(torch.ones(1, 1), 3, [SUM])


def test_tolerances_by_name_and_no_constraints():
    z = torch.tensor([[0.3, 0.3]])
    assert ldf.repair(z, NONE, [SUM, POSITIVE], tolerance={"sum": 0.5, "positive": 1e-9}).iterations == 0
    assert torch.equal(ldf.repair(z, NONE, []).predictions, z.double())


# ---------------------------------------------------------------------------------------------- pairs


def cover(table: np.ndarray) -> torch.Tensor:
    """Covering pairs, and both directions for equal rows."""
    _, place = np.unique(table, axis=0, return_inverse=True)
    place = place.ravel()
    equal = [(i, j) for i in range(len(table)) for j in range(len(table)) if i != j and place[i] == place[j]]
    return torch.tensor(np.concatenate([Dominance(table).covering(), np.array(equal, dtype=np.int64).reshape(-1, 2)]))


@pytest.mark.parametrize(("rows", "variables", "high"), [(15, 1, 20), (40, 2, 5), (150, 3, 9), (300, 1, 60)])
def test_ordered_pairs_equal_isotonic_regression(rows, variables, high):
    random = np.random.default_rng(rows)
    table = random.integers(1, high + 1, (rows, variables))
    values = table.mean(1) / high + 0.2 * random.standard_normal(rows)
    order = ldf.inequality("order", lambda y, p: y[0] - y[1], scope=ldf.Pairs(cover(table)))
    done = ldf.repair(torch.tensor(values)[:, None], NONE, [order])
    expected = isotonic(values, table)
    np.testing.assert_allclose(done.predictions[:, 0].numpy(), expected, atol=1e-8)
    still = torch.tensor(expected == values)
    assert torch.equal(done.predictions[still, 0], torch.tensor(values)[still])


def test_redundant_pairs_change_nothing():
    random = np.random.default_rng(3)
    table = random.integers(1, 8, (60, 2))
    values = table.mean(1) / 8 + 0.2 * random.standard_normal(60)
    every = (table[:, None] <= table[None]).all(2) & ~np.eye(60, dtype=bool)
    order = ldf.inequality(
        "order", lambda y, p: (y[0] - y[1])[:, None], scope=ldf.Pairs(torch.tensor(np.argwhere(every)))
    )
    done = ldf.repair(torch.tensor(values), NONE, [order])
    np.testing.assert_allclose(done.predictions.numpy(), isotonic(values, table), atol=1e-7)


def test_pairs_are_looked_up_by_id_and_combine_with_other_constraints():
    y = torch.tensor([[3.0], [1.0], [2.0], [9.0]])
    order = ldf.inequality("order", lambda y, p: y[0] - y[1], scope=ldf.Pairs(torch.tensor([[7, 2], [5, 11]])))
    most = ldf.inequality("most", lambda y, b: y - 8)
    batch = ldf.Batch(ids=torch.tensor([7, 2, 5, 0]))
    done = ldf.repair(y, batch, [order, most])
    torch.testing.assert_close(done.predictions[:, 0], torch.tensor([2.0, 2.0, 2.0, 8.0]).double(), rtol=0, atol=1e-9)
    nobody = ldf.inequality("order", lambda y, p: y[0] - y[1], scope=ldf.Pairs(torch.tensor([[50, 60]])))
    done = ldf.repair(y, batch, [nobody])
    assert torch.equal(done.predictions, y.double())
    assert not done.certificate.holds, "as a certificate without rows"


def test_a_pair_without_a_solution_names_its_rows():
    apart = ldf.inequality("apart", lambda y, p: 1 + y[0] - y[1], scope=ldf.Pairs(torch.tensor([[0, 2], [2, 0]])))
    done = ldf.repair(torch.zeros(4, 1), NONE, [apart])
    assert done.failed == [0, 2]
    assert bool(torch.isfinite(done.predictions).all())


# ---------------------------------------------------------------------------------------------- groups


def test_equal_means_move_every_row_of_a_group_by_the_same():
    y, group = normal(60, 1), torch.arange(60) % 3
    means = ldf.equality("means", lambda y, b: y, scope=ldf.Groups("group", 4))  # one group has no rows
    done = ldf.repair(y, ldf.Batch(group=group), [means])
    assert (done.certificate["means"].max < 1e-10, done.iterations) == (True, 1)
    for index in range(3):
        moved = (done.predictions - y)[group == index]
        torch.testing.assert_close(moved, (y.mean() - y[group == index].mean()).expand_as(moved), rtol=0, atol=1e-10)
    soft = ldf.equality("soft", lambda y, b: y.sigmoid(), scope=ldf.Groups("group", 4), slack=0.01)
    done = ldf.repair(y + group[:, None], ldf.Batch(group=group), [soft])
    assert done.certificate["soft"].max < 1e-9
    assert done.certificate.holds


def test_rates_of_decisions_change_the_fewest_decisions_next_to_the_threshold():
    random = torch.Generator().manual_seed(1)
    group = torch.randint(0, 2, (400,), generator=random)
    scores = torch.randn(400, 1, generator=random) + 0.5 * group[:, None]
    rate = ldf.equality(
        "rate",
        lambda y, b: y.sigmoid(),
        scope=ldf.Groups("group", 3),
        slack=0.02,
        exact=lambda y, b: (y > 0.2).float(),
    )
    batch = ldf.Batch(group=group)
    assert not ldf.certify([rate], scores, batch).holds
    done = ldf.repair(scores, batch, [rate], dtype=torch.float32)
    assert done.certificate.holds
    before, after = (scores > 0.2)[:, 0], (done.predictions > 0.2)[:, 0]
    assert torch.equal(before != after, done.distance > 0)
    assert int((before != after).sum()) <= 45
    # Those that changed were the nearest of their group, and moved no further than the threshold.
    for index, change in ((0, ~before), (1, before)):
        rows = (group == index) & change
        way = (scores[:, 0] - 0.2).abs()
        assert way[rows & (before != after)].max() <= way[rows & (before == after)].min()
        torch.testing.assert_close(
            done.distance[rows & (before != after)].float(), way[rows & (before != after)], rtol=0, atol=1e-5
        )
    assert torch.equal(ldf.repair(done.predictions, batch, [rate], dtype=torch.float32).predictions, done.predictions)


@given(seed=st.integers(0, 10_000), rows=st.integers(20, 90), groups=st.integers(2, 4), level=st.integers(0, 40))
@settings(max_examples=25, deadline=None)
def test_rates_of_decisions_satisfy_their_constraint_though_they_are_fractions(seed, rows, groups, level):
    target = level / 40
    random = torch.Generator().manual_seed(seed)
    group = torch.randint(0, groups, (rows,), generator=random)
    batch, scores = ldf.Batch(group=group), torch.randn(rows, 1, generator=random)
    counts = group.bincount(minlength=groups)

    def decided(y, b):
        return (y > 0).double()

    least = ldf.Groups("group", groups, compare=lambda means: target - means[:, 0])
    found = ldf.inequality("found", lambda y, b: y.sigmoid(), scope=least, exact=decided)
    done = ldf.repair(scores, batch, [found])
    assert done.certificate.holds
    # One decision fewer in any group would violate it.
    for index in range(groups):
        inside = group == index
        changed = int(((done.predictions > 0) != (scores > 0))[inside].sum())
        kept = int((scores > 0)[inside].sum())
        assert kept + changed == max(kept, math.ceil(target * int(counts[index]) - 1e-9))
    rates = ldf.equality(
        "rates", lambda y, b: y.sigmoid(), scope=ldf.Groups("group", groups), exact=decided,
        slack=1 / max(1, int(counts[counts > 0].min())),
    )  # fmt: skip
    assert ldf.repair(scores, batch, [rates]).certificate.holds


def test_decisions_of_another_kind_are_refused():
    def rate(exact, groups="group"):
        return ldf.equality("rate", lambda y, b: y[:, :1], scope=ldf.Groups(groups, 2), exact=exact)

    batch = ldf.Batch(group=torch.tensor([0, 1]), both=torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="'rate': a repair of `exact` needs one decision per row, 0 or 1"):
        ldf.repair(torch.ones(2, 1), batch, [rate(lambda y, b: y / 2)])
    with pytest.raises(ValueError, match="'rate': a repair of `exact` needs one number per row"):
        ldf.repair(torch.ones(2, 2), batch, [rate(lambda y, b: (y[:, :1] > 0).float())])
    with pytest.raises(ValueError, match="groups that do not overlap"):
        ldf.repair(torch.ones(2, 1), batch, [rate(lambda y, b: (y > 0).float(), "both")])


# ---------------------------------------------------------------------------------------------- fit.repair


def test_a_fit_repairs_its_own_predictions():
    torch.manual_seed(0)
    inputs = torch.rand(64, 3)
    share = ldf.equality("share", lambda y, b: y.sum(1, keepdim=True) - b.total)
    data = {"inputs": inputs, "targets": inputs, "total": inputs.sum(1, keepdim=True) + 1}
    fit = ldf.fit(
        nn.Linear(3, 3),
        data,
        loss=nn.functional.mse_loss,
        constraints=[share],
        epochs=2,
        forward=lambda model, batch: model(batch.inputs) + 1,
    )
    columns = {name: data[name] for name in ("inputs", "total")}
    done = fit.repair(columns)
    raw = (fit.model(inputs).detach() + 1).double()
    expected = raw - (raw.sum(1, keepdim=True) - data["total"]) / 3
    torch.testing.assert_close(done.predictions, expected, rtol=0, atol=1e-12)
    assert done.certificate.holds
    assert torch.equal(fit.repair(ldf.Batch(**columns)).predictions, done.predictions)
    plain = ldf.fit(nn.Linear(3, 3), (inputs, inputs), loss=nn.functional.mse_loss, constraints=[SUM], epochs=1)
    assert plain.repair(inputs).certificate.holds

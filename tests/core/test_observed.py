"""What observed rows must not change, and what distinguishes two problems with held-out rows."""

import pytest
import torch
from torch import nn

import ldf

D = torch.float64
mse = nn.functional.mse_loss
LITERAL = ldf.Ascent(0.1, normalise=False)
_generator = torch.Generator().manual_seed(0)
X, T = torch.randn(40, 3, generator=_generator, dtype=D), torch.randn(40, 1, generator=_generator, dtype=D)
PARITY = ldf.equality("parity", lambda y, b: y, scope=ldf.Groups((torch.arange(40) % 4 == 0).long()))


def fit(constraint, **options):
    torch.manual_seed(0)
    options = {"epochs": 4, "batch_size": 8, "validation": 0.25, "keep": "last", "progress": False, **options}
    return ldf.fit(nn.Linear(3, 1).double(), (X, T), loss=mse, constraints=[constraint], **options)


def test_observed_rows_do_not_change_the_gradient_of_groups():
    found = []
    for held in (False, True):
        lagrangian = ldf.Lagrangian([ldf.equality("p", lambda y, b: y, scope=ldf.Groups("g", 2))], ldf.Fixed(1.0))
        batch = ldf.Batch(g=torch.tensor([0, 0, 1, 1]))
        y = torch.tensor([[0.0], [0.0], [1.0], [1.0]], requires_grad=True)
        lagrangian(y.sum() * 0, y, batch)
        if held:
            lagrangian.observe(torch.tensor([[0.0], [1.0], [1.0], [1.0]]), ldf.Batch(g=torch.tensor([0, 1, 1, 1])))
        lagrangian.ascend()
        found.append(torch.autograd.grad(lagrangian(y.sum() * 0, y, batch), y)[0].flatten().tolist())
    assert found[0] == found[1] == [-0.5, -0.5, 0.5, 0.5]


def test_fixed_multipliers_do_not_depend_on_ascend_on():
    a, b = (fit(PARITY, dual=ldf.Fixed(1.0), ascend_on=on) for on in ("training", "held-out"))
    assert torch.equal(a.model.weight, b.model.weight)


@pytest.mark.parametrize("rule", [ldf.Ascent(0.1), ldf.Balanced(), ldf.Augmented()], ids=repr)
def test_folds_share_multipliers_under_normalised_rules(rule):
    runs = ldf.fit_many(
        lambda: nn.Linear(3, 1).double(),
        (X, T),
        loss=mse,
        constraints=[PARITY],
        dual=rule,
        folds=4,
        epochs=4,
        batch_size=8,
        ascend_on="held-out",
        progress=False,
    )
    assert len({float(run.multipliers["parity"]) for run in runs}) == 1


def test_other_validation_data_are_another_problem(tmp_path):
    cap = ldf.inequality("cap", lambda y, b: y - 0.1)
    options = {"dual": LITERAL, "ascend_on": "held-out", "checkpoint": tmp_path}
    fit(cap, validation=(X[:8], T[:8]), **options)
    with pytest.raises(ldf.CheckpointError):
        fit(cap, validation=(X[:8] + 9, T[:8]), **options)


def test_an_exact_rate_makes_another_problem(tmp_path):
    fit(PARITY, dual=LITERAL, checkpoint=tmp_path)
    exact = ldf.equality("parity", lambda y, b: y, scope=PARITY.scope, exact=lambda y, b: (y > 0).double())
    with pytest.raises(ldf.CheckpointError):
        fit(exact, dual=LITERAL, checkpoint=tmp_path)


@pytest.mark.parametrize("columns", [(2, 1), (1, 2)])
def test_exact_of_another_width_is_refused(columns):
    c = ldf.equality(
        "c",
        lambda y, b: y.expand(-1, columns[0]),
        scope=ldf.Groups("g", 2),
        exact=lambda y, b: (y > 0).double().expand(-1, columns[1]),
    )
    y = torch.tensor([[1.0], [-1.0]], dtype=D, requires_grad=True)
    with pytest.raises(ldf.ConstraintError, match="'c'"):
        ldf.Lagrangian([c], LITERAL)(y.mean(), y, ldf.Batch(g=torch.tensor([0, 1])))


def test_conflicts_see_constraints_with_an_exact_rate():
    constraints = [
        ldf.inequality("low", lambda y, b: y + 3),
        ldf.inequality("rate", lambda y, b: y.sigmoid(), scope=ldf.Groups("g", 2), exact=lambda y, b: (y > 0).double()),
    ]
    lagrangian = ldf.Lagrangian(constraints, LITERAL)
    y = torch.tensor([[-1.0], [1.0]], dtype=D, requires_grad=True)
    batch = ldf.Batch(g=torch.tensor([0, 1]))
    lagrangian(y.mean(), y, batch)
    assert ("low", "rate") in lagrangian.conflicts(y.detach(), batch)


def test_a_negative_start_is_projected():
    y = torch.ones(2, 1, requires_grad=True)
    lagrangian = ldf.Lagrangian(
        [ldf.inequality("c", lambda y, b: y), ldf.equality("d", lambda y, b: y, degree="satisfiability", cap=1.0)],
        ldf.Ascent(0.1, normalise=False, initial=-2.0),
    )
    lagrangian(y.mean(), y, ldf.Batch())
    assert float(lagrangian.multipliers["c"]) >= 0
    assert float(lagrangian.multipliers["d"]) >= -1


def test_a_group_without_observed_rows_is_not_compared():
    c = ldf.equality("c", lambda y, b: y.sigmoid(), scope=ldf.Groups("g", 2), exact=lambda y, b: (y > 0).double())
    lagrangian = ldf.Lagrangian([c], LITERAL)
    y = torch.tensor([[0.1], [0.1]], dtype=D, requires_grad=True)
    lagrangian(y.mean(), y, ldf.Batch(g=torch.tensor([0, 1])))
    lagrangian.observe(torch.tensor([[0.1]], dtype=D), ldf.Batch(g=torch.tensor([0])))
    assert lagrangian.ascend()["nu_mean/c"] == 0.0


def test_metrics_without_validation_are_refused():
    with pytest.raises(ValueError, match="metrics"):
        fit(PARITY, dual=None, validation=None, metrics={"a": lambda y, b: 1.0})

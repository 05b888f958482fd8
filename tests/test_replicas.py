"""fit_many: the same results as fit, one by one, for every scope and rule."""

import pytest
import torch
from helpers import dispatch, dispatch_constraints, network
from torch import Tensor, nn

import ldf
from ldf.replicas import fold_rows

mse = nn.functional.mse_loss


def weights(done: ldf.Fit) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in done.model.parameters()])


def every_scope(rows: int) -> list[ldf.Constraint]:
    generator = torch.Generator().manual_seed(3)
    pairs = ldf.Pairs(torch.randint(0, rows, (2 * rows, 2), generator=generator))
    group = (torch.rand(rows, generator=generator) < 0.2).long()
    return [
        *dispatch_constraints(),
        ldf.inequality("bound", lambda y, b: y - 0.5, multiplier="column", degree="satisfiability", slack=0.05),
        ldf.equality("own", lambda y, b: y[:, :1] - y[:, 1:2], multiplier="sample"),
        ldf.inequality("monotone", lambda y, p: y[0] - y[1], scope=pairs, multiplier="sample"),
        ldf.equality("parity", lambda y, b: y[:, :1], scope=ldf.Groups(group)),
    ]


def test_many_is_one_by_one_for_every_scope_rule_and_seed() -> None:
    # Doubles: Adam turns a gradient of 1e-9, float noise, into a whole step.
    inputs, targets, free = (part.double() for part in (*dispatch(160), dispatch(40, seed=9)[0]))
    duals = [None, ldf.Ascent(), ldf.Ascent(0.1), ldf.Ascent(1e-3, normalise=False), ldf.NuPI(0.1), ldf.Augmented()]
    options = {
        "loss": mse,
        "constraints": every_scope(200),
        "epochs": 5,
        "batch_size": 32,
        "validation": 0.2,
        "unlabelled": free,
        "schedule": "cosine",
        "update_every": 2,
        "progress": False,
    }
    runs = ldf.fit_many(lambda: network().double(), (inputs, targets), duals=duals, seeds=[0, 1], **options)
    assert [(run.label["seed"], run.label["dual"]) for run in runs] == [(s, d) for s in (0, 1) for d in duals]
    for run in runs:
        torch.manual_seed(run.label["seed"])
        alone = ldf.fit(
            network().double(), (inputs, targets), dual=run.label["dual"], seed=run.label["seed"], **options
        )
        torch.testing.assert_close(weights(run), weights(alone), rtol=1e-7, atol=1e-9)
        for name, value in alone.multipliers.items():
            torch.testing.assert_close(run.multipliers[name], value, rtol=1e-7, atol=1e-9)
        assert run.best_epoch == alone.best_epoch
        assert torch.equal(run.held_out, alone.held_out)
        for column in alone.history.columns:
            if column != "seconds":
                assert run.history[column] == pytest.approx(alone.history[column], rel=1e-6, abs=1e-9)


def test_one_run_may_be_stacked_alone() -> None:
    (run,) = ldf.fit_many(
        network, dispatch(96), loss=mse, constraints=dispatch_constraints(), seeds=[3], epochs=2, progress=False
    )
    torch.manual_seed(3)
    alone = ldf.fit(
        network(), dispatch(96), loss=mse, constraints=dispatch_constraints(), seed=3, epochs=2, progress=False
    )
    torch.testing.assert_close(weights(run), weights(alone), rtol=1e-4, atol=1e-5)


def test_folds_cover_the_rows_and_hold_their_own_out() -> None:
    inputs, targets = dispatch(101)
    seen: list[Tensor] = []
    runs = ldf.fit_many(
        network,
        (inputs, targets),
        loss=mse,
        constraints=dispatch_constraints(),
        folds=5,
        seeds=[2],
        epochs=2,
        progress=False,
    )
    seen = [run.held_out for run in runs]
    assert [run.label["fold"] for run in runs] == [0, 1, 2, 3, 4]
    assert all(len(rows) == 20 for rows in seen)
    assert len(torch.cat(seen).unique()) == 100
    for run in runs:
        with torch.no_grad():
            loss = mse(run.model(inputs[run.held_out]), targets[run.held_out])
        assert float(loss) == pytest.approx(run.history["val_loss"][run.best_epoch - 1], rel=1e-4)


def test_a_fold_is_what_fit_gives_without_its_rows() -> None:
    """The rows a fold leaves out have no influence on it: change their targets, and the weights stay."""
    inputs, targets = dispatch(60)
    options = {"loss": mse, "constraints": dispatch_constraints(), "folds": 3, "epochs": 3, "progress": False}
    options |= {"dual": ldf.Ascent(0.1), "keep": "last"}
    before = ldf.fit_many(network, (inputs, targets), **options)
    changed = targets.clone()
    changed[fold_rows(60, 3, 1, seed=0)] += 5.0
    after = ldf.fit_many(network, (inputs, changed), **options)
    assert torch.equal(weights(before[1]), weights(after[1]))
    assert not torch.allclose(weights(before[0]), weights(after[0]))


def test_batch_norm_keeps_statistics_of_its_own() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    options = {"loss": mse, "constraints": dispatch_constraints(), "dual": ldf.Ascent(0.1), "epochs": 3}
    runs = ldf.fit_many(model, dispatch(96), seeds=[0, 1], progress=False, **options)
    for seed, run in enumerate(runs):
        torch.manual_seed(seed)
        alone = ldf.fit(model(), dispatch(96), seed=seed, progress=False, **options)
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(run.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": []}, "nothing to train"),
        ({"duals": []}, "nothing to train"),
        ({"folds": 1}, "folds must be between 2 and the 64 rows, got 1"),
        ({"folds": 3, "validation": 0.2}, "leave validation out"),
    ],
)
def test_bad_input_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ldf.fit_many(network, dispatch(64), loss=mse, epochs=1, progress=False, **options)


def test_a_degree_that_is_not_finite_is_named() -> None:
    root = ldf.inequality("root", lambda y, batch: (y - 0.4).sqrt() if y.shape[0] > 0 else y)
    with pytest.raises(ldf.ConstraintError, match="'root'"):
        ldf.fit_many(network, dispatch(64), loss=mse, constraints=[root], seeds=[0, 1], epochs=2, progress=False)

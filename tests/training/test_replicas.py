"""fit_many: the same results as separate calls of fit, for every scope and rule."""

from pathlib import Path

import pytest
import torch
from helpers import dispatch, dispatch_constraints, every_scope, network
from torch import Tensor, nn

import ldf
from ldf.core.batch import Data
from ldf.training.replicas import fold_rows
from ldf.training.settings import Settings
from ldf.training.task import Task

mse = nn.functional.mse_loss


def weights(done: ldf.Fit) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in done.model.parameters()])


def test_fit_many_equals_separate_fits_for_every_scope_rule_and_seed() -> None:
    # Double precision: Adam turns a gradient of 1e-9, float noise, into a full step.
    inputs, targets, free = (part.double() for part in (*dispatch(160), dispatch(40, seed=9)[0]))
    duals = [None, ldf.Balanced(), ldf.Ascent(0.1), ldf.Ascent(1e-3, normalise=False), ldf.NuPI(0.1), ldf.Augmented()]
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


def test_folds_cover_all_rows_and_exclude_their_own_from_training() -> None:
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


def test_a_fold_equals_fit_without_its_rows() -> None:
    """The held-out rows of a fold have no influence on it: its weights do not change with their targets."""
    inputs, targets = dispatch(60)
    options = {"loss": mse, "constraints": dispatch_constraints(), "folds": 3, "epochs": 3, "progress": False}
    options |= {"dual": ldf.Ascent(0.1), "keep": "last"}
    before = ldf.fit_many(network, (inputs, targets), **options)
    changed = targets.clone()
    changed[fold_rows(60, 3, 1, seed=0)] += 5.0
    after = ldf.fit_many(network, (inputs, changed), **options)
    assert torch.equal(weights(before[1]), weights(after[1]))
    assert not torch.allclose(weights(before[0]), weights(after[0]))


def test_batch_norm_statistics_are_separate() -> None:
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
        ({"folds": 1}, "folds must be between 2 and 64, the number of rows, got 1"),
        ({"folds": 3, "validation": 0.2}, "folds, held_out and validation each hold rows out: give only one of them"),
        ({"folds": 3, "held_out": [torch.arange(9)]}, "give only one of them"),
        ({"validation": 0.2, "held_out": [torch.arange(9)]}, "give only one of them"),
    ],
)
def test_bad_input_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ldf.fit_many(network, dispatch(64), loss=mse, epochs=1, progress=False, **options)


def test_a_degree_that_is_not_finite_is_named() -> None:
    root = ldf.inequality("root", lambda y, batch: (y - 0.4).sqrt() if y.shape[0] > 0 else y)
    with pytest.raises(ldf.ConstraintError, match="'root'"):
        ldf.fit_many(network, dispatch(64), loss=mse, constraints=[root], seeds=[0, 1], epochs=2, progress=False)


# ---------------------------------------------------------------- subsets


def constraints_of_subsets(pairs: Tensor) -> list[ldf.Constraint]:
    return [
        *dispatch_constraints(),
        ldf.equality("own", lambda y, b: y[:, :1] - y[:, 1:2], multiplier="sample"),
        ldf.inequality("monotone", lambda y, p: y[0] - y[1], scope=ldf.Pairs(pairs), multiplier="sample"),
    ]


@pytest.mark.parametrize("validation", [None, 0.25])
def test_a_run_on_a_subset_equals_fit_on_these_rows(validation: float | None) -> None:
    inputs, targets, free = (part.double() for part in (*dispatch(90), dispatch(10, seed=9)[0]))
    generator = torch.Generator().manual_seed(4)
    pairs = torch.randint(0, 100, (300, 2), generator=generator)
    order = torch.randperm(90, generator=generator)
    subsets, seeds = [order[:40], order[30:70]], [5, 2]  # unordered and overlapping
    options = {"loss": mse, "epochs": 4, "batch_size": 16, "validation": validation, "unlabelled": free}
    options |= {"schedule": "cosine", "keep": "last", "progress": False}
    rules = [ldf.Ascent(0.1), ldf.Ascent(1e-3, normalise=False)]
    runs = ldf.fit_many(
        lambda: network().double(),
        (inputs, targets),
        constraints=constraints_of_subsets(pairs),
        duals=rules,
        seeds=seeds,
        subsets=subsets,
        stratify=torch.arange(90) % 2,
        **options,
    )
    assert [(run.label["seed"], run.label["dual"]) for run in runs] == [(s, r) for s in seeds for r in rules]
    for run, subset in zip(runs, [subsets[0], subsets[0], subsets[1], subsets[1]], strict=True):
        place = torch.full((100,), -1)
        place[subset] = torch.arange(40)
        place[90:] = 40 + torch.arange(10)
        inside = (place[pairs] >= 0).all(1)
        assert 20 < int(inside.sum()) < 150
        torch.manual_seed(run.label["seed"])
        alone = ldf.fit(
            network().double(),
            (inputs[subset], targets[subset]),
            constraints=constraints_of_subsets(place[pairs[inside]]),
            dual=run.label["dual"],
            seed=run.label["seed"],
            stratify=(torch.arange(90) % 2)[subset],
            **options,
        )
        torch.testing.assert_close(weights(run), weights(alone), rtol=1e-7, atol=1e-9)
        ours, theirs = run.multipliers, alone.multipliers
        torch.testing.assert_close(ours["balance"], theirs["balance"], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(ours["monotone"][inside], theirs["monotone"], rtol=1e-7, atol=1e-9)
        assert not ours["monotone"][~inside].any(), "a pair with a partner outside is not used"
        torch.testing.assert_close(ours["own"][place >= 0], theirs["own"][place[place >= 0]], rtol=1e-7, atol=1e-9)
        assert not ours["own"][place < 0].any()
        assert ours["own"][90:].any(), "all runs use the unlabelled rows"
        if validation is None:
            assert run.held_out is alone.held_out is None
        else:
            assert torch.equal(run.held_out, subset[alone.held_out])
            assert run.history["val_loss"] == pytest.approx(alone.history["val_loss"], rel=1e-7)


def test_rows_outside_a_subset_have_no_influence() -> None:
    inputs, targets = dispatch(60)
    generator = torch.Generator().manual_seed(3)
    pairs = torch.randint(0, 60, (200, 2), generator=generator)
    subsets = [torch.arange(0, 30), torch.arange(20, 50)]
    options = {"loss": mse, "constraints": constraints_of_subsets(pairs), "dual": ldf.Ascent(0.1), "epochs": 3}
    options |= {"seeds": [0, 1], "subsets": subsets, "validation": 0.2, "batch_size": 10, "progress": False}
    before = ldf.fit_many(network, (inputs, targets), **options)
    changed = inputs.clone(), targets.clone()
    for part in changed:
        part[30:] += 5.0
    after = ldf.fit_many(network, changed, **options)
    assert torch.equal(weights(before[0]), weights(after[0]))
    assert torch.equal(before[0].multipliers["monotone"], after[0].multipliers["monotone"])
    assert before[0].history["val_loss"] == after[0].history["val_loss"]
    assert not torch.allclose(weights(before[1]), weights(after[1]))


def test_folds_are_taken_from_within_a_subset() -> None:
    inputs, targets = dispatch(60)
    subsets = [torch.arange(0, 60, 2), torch.arange(59, 29, -1)]
    options = {"loss": mse, "constraints": dispatch_constraints(), "folds": 3, "seeds": [4, 4], "epochs": 2}
    options |= {"dual": ldf.Ascent(0.1), "keep": "last", "progress": False, "subsets": subsets}
    runs = ldf.fit_many(network, (inputs, targets), **options)
    for own, subset in zip((runs[:3], runs[3:]), subsets, strict=True):
        assert torch.equal(torch.cat([run.held_out for run in own]).sort().values, subset.sort().values)
        for fold, run in enumerate(own):
            assert torch.equal(run.held_out, subset[fold_rows(30, 3, fold, seed=4)])
    changed = targets.clone()
    changed[runs[1].held_out] += 5.0
    changed[1:30:2] -= 5.0  # in no subset
    after = ldf.fit_many(network, (inputs, changed), **options)
    assert torch.equal(weights(runs[1]), weights(after[1]))
    assert not torch.allclose(weights(runs[0]), weights(after[0]))


def planned(constraints: list[ldf.Constraint], subsets: list[Tensor] | None = None) -> Task:
    settings = Settings(
        loss=mse,
        constraints=tuple(constraints),
        epochs=1,
        batch_size=8,
    )
    return Task(settings, Data(dispatch(24), dispatch(40, seed=9)[0]), [0, 1], None, subsets)


def test_rows_used_only_in_pairs_are_predicted_once() -> None:
    both = torch.arange(24, 64).reshape(20, 2)
    monotone = ldf.inequality("monotone", lambda y, p: y[0] - y[1], scope=ldf.Pairs(both), multiplier="sample")
    steps = planned([monotone]).plan(0, 0)
    assert [set(step) for step in steps] == [{"ids", "pairs/pairs"}] * 3
    task = planned([monotone])
    needed = [task.batch(step).ids for step in steps]
    assert sum(int((ids >= 24).sum()) for ids in needed) == 40, "each once in an epoch"
    assert sorted(torch.cat([step["pairs/pairs"] for step in steps]).tolist()) == list(range(20))

    task = planned([monotone, *dispatch_constraints()])
    steps = [step for epoch in range(5) for step in task.plan(0, epoch)]  # 5·3 steps of 8 rows: three passes
    assert [set(step) for step in steps] == [{"ids", "free", "pairs/pairs"}] * 15
    assert torch.cat([step["free"] for step in steps]).bincount().tolist() == [0] * 24 + [3] * 40


def test_every_run_uses_all_unlabelled_rows() -> None:
    subsets = [torch.arange(0, 12), torch.arange(12, 24)]
    task = planned(dispatch_constraints(), subsets)
    for run, subset in enumerate(subsets):
        assert torch.equal(torch.cat([step["ids"] for step in task.plan(run, 0)]).sort().values, subset)
        free = [step["free"] for epoch in range(5) for step in task.plan(run, epoch)]  # 5·2 steps of 8 rows: two passes
        assert torch.cat(free).bincount().tolist() == [0] * 24 + [2] * 40


@pytest.mark.parametrize(
    ("subsets", "kind", "message"),
    [
        ([torch.arange(9)], ValueError, "subsets must have a set of rows for each of the 2 seeds, got 1"),
        ([torch.arange(9)] * 3, ValueError, "for each of the 2 seeds, got 3"),
        ([torch.arange(9), torch.arange(9).int()], TypeError, "expected an int64 tensor of row numbers for seed 7"),
        ([torch.ones(64).bool(), torch.arange(9)], TypeError, "expected an int64 tensor of row numbers for seed 3"),
        ([[0, 1], [2, 3]], TypeError, "expected an int64 tensor of row numbers for seed 3"),
        ([torch.arange(9), torch.arange(9)[None]], TypeError, "expected an int64 tensor of row numbers for seed 7"),
        ([torch.arange(0), torch.arange(0)], TypeError, "expected an int64 tensor of row numbers for seed 3"),
        ([torch.arange(9), torch.arange(56, 65)], ValueError, "a row number for seed 7 is outside 0 to 63"),
        ([torch.arange(-1, 8), torch.arange(9)], ValueError, "a row number for seed 3 is outside 0 to 63"),
        ([torch.arange(9), torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 7])], ValueError, "subsets must have distinct rows"),
        ([torch.arange(9), torch.arange(8)], ValueError, "the same number for each seed"),
    ],
)
def test_bad_subsets_are_refused(subsets: list, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ldf.fit_many(network, dispatch(64), loss=mse, subsets=subsets, seeds=[3, 7], epochs=1, progress=False)


def test_more_folds_than_a_subset_has_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="folds must be between 2 and 9, the number of rows, got 10"):
        ldf.fit_many(network, dispatch(64), loss=mse, subsets=[torch.arange(9)], folds=10, epochs=1, progress=False)


def test_a_checkpoint_of_other_subsets_is_refused(tmp_path: Path) -> None:
    options = {"loss": mse, "epochs": 1, "checkpoint": tmp_path, "progress": False}
    (first,) = ldf.fit_many(network, dispatch(64), subsets=[torch.arange(30)], **options)
    (again,) = ldf.fit_many(network, dispatch(64), subsets=[torch.arange(30)], **options)
    assert torch.equal(weights(first), weights(again))
    with pytest.raises(ldf.CheckpointError, match=r"the checkpoint of another problem \(subsets: "):
        ldf.fit_many(network, dispatch(64), subsets=[torch.arange(1, 31)], **options)


# ---------------------------------------------------------------- held-out rows by number


@pytest.mark.parametrize("ascend_on", ["training", "held-out"])
@pytest.mark.parametrize("subsets", [None, [torch.arange(59, 9, -1), torch.arange(50)]])
def test_a_run_with_held_out_rows_equals_fit_with_these_as_validation_data(
    ascend_on: str, subsets: list[Tensor] | None
) -> None:
    inputs, targets = (part.double() for part in dispatch(60))
    columns = {"inputs": inputs, "targets": targets, "group": (inputs[:, 0] > inputs[:, 0].median()).long()}
    held_out, seeds = [torch.tensor([40, 12, 33, 45, 11, 44]), torch.tensor([2, 44, 45, 10, 9, 31])], [5, 2]
    rate = {"scope": ldf.Groups("group", 2), "exact": lambda y, b: (y[:, :1] > 0.7).double()}
    constraints = [*dispatch_constraints(), ldf.equality("parity", lambda y, b: y[:, :1], **rate)]
    options = {"loss": mse, "constraints": constraints, "epochs": 3, "batch_size": 16, "lr": 0.03}
    options |= {
        "ascend_on": ascend_on,
        "metrics": {"mae": lambda y, b: (y - b.targets).abs().mean()},
        "progress": False,
    }
    rules = [ldf.Ascent(0.1), ldf.Ascent(1e-2, normalise=False, initial=0.5)]
    chosen = {"seeds": seeds, "subsets": subsets, "held_out": held_out}
    runs = ldf.fit_many(lambda: network().double(), columns, duals=rules, **chosen, **options)
    assert [(run.label["seed"], run.label["dual"]) for run in runs] == [(s, r) for s in seeds for r in rules]
    assert len({value for run in runs for value in run.history["nu_mean/parity"]}) > 2
    for index, run in enumerate(runs):
        out = held_out[index // 2]
        own = torch.arange(60) if subsets is None else subsets[index // 2]
        assert torch.equal(run.held_out, out)
        rows = own[~torch.isin(own, out)]
        assert len(rows) == len(own) - 6
        torch.manual_seed(run.label["seed"])
        alone = ldf.fit(
            network().double(),
            {name: column[rows] for name, column in columns.items()},
            validation={name: column[out] for name, column in columns.items()},
            dual=run.label["dual"],
            seed=run.label["seed"],
            **options,
        )
        torch.testing.assert_close(weights(run), weights(alone), rtol=1e-7, atol=1e-9)
        for name, value in alone.multipliers.items():
            torch.testing.assert_close(run.multipliers[name], value, rtol=1e-7, atol=1e-9)
        assert run.best_epoch == alone.best_epoch
        assert "val/mae" in alone.history.columns
        for column in alone.history.columns:
            if column != "seconds":
                assert run.history[column] == pytest.approx(alone.history[column], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("held_out", "kind", "message"),
    [
        ([torch.arange(9)], ValueError, "held_out must have a set of rows for each of the 2 seeds, got 1"),
        ([torch.arange(9), [1, 2]], TypeError, "held_out: expected an int64 tensor of row numbers for seed 7"),
        ([torch.arange(9), torch.arange(56, 65)], ValueError, "held_out: a row number for seed 7 is outside 0 to 63"),
        ([torch.arange(9), torch.arange(8)], ValueError, "held_out must have distinct rows, the same number for each"),
        ([torch.tensor([1, 1]), torch.arange(2)], ValueError, "held_out must have distinct rows"),
        ([torch.arange(64)] * 2, ValueError, "held_out: all 64 rows are held out, which leaves none to train on"),
    ],
)
def test_bad_held_out_rows_are_refused(held_out: list, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ldf.fit_many(network, dispatch(64), loss=mse, held_out=held_out, seeds=[3, 7], epochs=1, progress=False)


def test_held_out_rows_must_be_in_the_subset() -> None:
    subsets = [torch.arange(20), torch.arange(10, 30)]
    options = {"loss": mse, "subsets": subsets, "seeds": [3, 7], "epochs": 1, "progress": False}
    for second in (torch.tensor([9, 12]), torch.tensor([29, 30])):
        with pytest.raises(ValueError, match="held_out: some rows are not in the seed's subset"):
            ldf.fit_many(network, dispatch(64), held_out=[torch.tensor([0, 19]), second], **options)
    with pytest.raises(ValueError, match="held_out: all 20 rows are held out"):
        ldf.fit_many(network, dispatch(64), held_out=subsets, **options)


def test_a_checkpoint_with_other_rows_held_out_is_refused(tmp_path: Path) -> None:
    options = {"loss": mse, "epochs": 1, "checkpoint": tmp_path, "progress": False}
    (first,) = ldf.fit_many(network, dispatch(64), held_out=[torch.arange(9)], **options)
    (again,) = ldf.fit_many(network, dispatch(64), held_out=[torch.arange(9)], **options)
    assert torch.equal(weights(first), weights(again))
    with pytest.raises(ldf.CheckpointError, match=r"the checkpoint of another problem \(subsets: "):
        ldf.fit_many(network, dispatch(64), held_out=[torch.arange(1, 10)], **options)


def test_every_seed_may_have_its_own_rules() -> None:
    inputs = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    balance = ldf.equality("balance", lambda y, batch: y.sum(1, keepdim=True) - 1)

    def run(duals: list, seeds: list[int]) -> list[ldf.Fit]:
        return ldf.fit_many(
            lambda: nn.Linear(3, 3), (inputs, inputs), loss=nn.functional.mse_loss, constraints=[balance], duals=duals,
            seeds=seeds, epochs=2,
        )  # fmt: skip

    own = run([[None, ldf.Fixed(2.0)], [None, ldf.Fixed(3.0)]], [0, 1])
    assert [float(one.multipliers["balance"]) for one in own] == [0.0, 2.0, 0.0, 3.0]
    shared = run([None, ldf.Fixed(3.0)], [0, 1])
    assert torch.equal(own[3].model.weight, shared[3].model.weight)
    assert not torch.equal(own[1].model.weight, shared[1].model.weight)
    for duals in ([[None]], [[None], [None, ldf.Fixed(1.0)]]):
        with pytest.raises(ValueError, match="a list of rules for each of the 2 seeds, all of the same length"):
            run(duals, [0, 1])

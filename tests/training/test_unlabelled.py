"""fit without labels, with labels for some rows, and how a loss is called."""

import functools
import time

import pytest
import torch
from helpers import algorithm_1, dispatch, dispatch_constraints, network
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ldf
from ldf.core.batch import Data
from ldf.core.samplers import epoch_generator
from ldf.training.settings import Settings
from ldf.training.task import Task

mse = nn.functional.mse_loss


def weights(done: ldf.Fit) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in done.model.parameters()])


# ---------------------------------------------------------------- no labels at all


def projection_problem(rows: int = 512) -> tuple[Tensor, list[ldf.Constraint]]:
    """min ½‖y − x‖² s.t. Σ y = 1 for every x: y* = x + (1 − Σ x)/3, which a linear model represents exactly."""
    inputs = torch.rand(rows, 3, generator=torch.Generator().manual_seed(1))
    return inputs, [ldf.equality("sum", lambda y, batch: y.sum(1, keepdim=True) - 1)]


def distance(y: Tensor, batch: ldf.Batch) -> Tensor:
    return 0.5 * (y - batch.inputs).square().sum(1).mean()


FORMS = {
    "mapping": lambda inputs: {"inputs": inputs},
    "tensor": lambda inputs: inputs,
    "loader": lambda inputs: DataLoader(TensorDataset(inputs), batch_size=64, shuffle=True),
    "loader of tensors": lambda inputs: DataLoader(inputs, batch_size=64, shuffle=True),
    "loader of mappings": lambda inputs: DataLoader([{"inputs": x} for x in inputs], batch_size=64, shuffle=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_optimum_of_a_quadratic_program_is_learned_without_labels(form: str) -> None:
    inputs, constraints = projection_problem()
    torch.manual_seed(0)
    done = ldf.fit(
        nn.Linear(3, 3),
        FORMS[form](inputs),
        loss=distance,
        constraints=constraints,
        dual=ldf.Augmented(),
        epochs=200,
        lr=3e-2,
        schedule="cosine",
        progress=False,
    )
    fresh = torch.rand(200, 3, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        y = done.model(fresh)
    optimum = fresh + (1 - fresh.sum(1, keepdim=True)) / 3
    assert float((y - optimum).abs().max()) < 0.02
    assert done.certify(y, ldf.Batch(inputs=fresh), tolerance=0.02).holds


def test_validation_without_labels_is_the_loss_on_the_held_out_batch() -> None:
    inputs, constraints = projection_problem(128)
    options = {"loss": distance, "constraints": constraints, "dual": ldf.Ascent(0.1), "epochs": 3, "progress": False}
    for validation in (0.25, inputs[:32], {"inputs": inputs[:32]}, DataLoader(inputs[:32], batch_size=5)):
        torch.manual_seed(0)
        done = ldf.fit(nn.Linear(3, 3), inputs, validation=validation, keep="last", **options)
        rows = done.held_out if done.held_out is not None else torch.arange(32)
        with torch.no_grad():
            expected = distance(done.model(inputs[rows]), ldf.Batch(inputs=inputs[rows]))
        assert done.history["val_loss"][-1] == pytest.approx(float(expected), rel=1e-5)


def test_stacked_models_learn_without_labels_as_single_ones_do() -> None:
    inputs, constraints = projection_problem(96)
    inputs = inputs.double()
    options = {"loss": distance, "constraints": constraints, "dual": ldf.Ascent(0.1), "epochs": 4, "batch_size": 16}
    options |= {"unlabelled": inputs[:40] + 1, "unlabelled_batch_size": 5, "validation": 0.25, "progress": False}
    runs = ldf.fit_many(lambda: nn.Linear(3, 3).double(), inputs, seeds=[0, 1], **options)
    for seed, run in enumerate(runs):
        torch.manual_seed(seed)
        alone = ldf.fit(nn.Linear(3, 3).double(), {"inputs": inputs}, seed=seed, **options)
        torch.testing.assert_close(weights(run), weights(alone), rtol=1e-7, atol=1e-9)
        assert run.history["val_loss"] == pytest.approx(alone.history["val_loss"], rel=1e-7)


# ---------------------------------------------------------------- how a loss is called


class Distance:
    def __call__(self, y: Tensor, batch: ldf.Batch) -> Tensor:
        return mse(y, batch.targets)


class Layer(nn.Module):
    def forward(self, y: Tensor, batch: ldf.Batch) -> Tensor:
        return mse(y, batch.targets)


def scaled(y: Tensor, targets: Tensor, scale: float) -> Tensor:
    return scale * mse(y, targets)


@pytest.mark.parametrize(
    "loss",
    [
        mse,
        nn.MSELoss(),
        torch.compile(mse, backend="eager"),
        functools.partial(scaled, scale=1.0),
        torch.ops.aten.mse_loss,  # its signature is unknown to Python
        lambda y, t: mse(y, t),
        lambda y, batch: mse(y, batch.targets),
        functools.partial(lambda scale, y, batch: scale * mse(y, batch.targets), 1.0),
        Distance(),
        Layer(),
    ],
    ids=lambda loss: getattr(loss, "__name__", type(loss).__name__),
)
def test_with_targets_a_loss_gets_them_or_the_batch_if_it_asks_for_it(loss) -> None:
    found = []
    for given_loss in (mse, loss):
        torch.manual_seed(0)
        found.append(ldf.fit(network(), dispatch(64), loss=given_loss, validation=0.25, epochs=2, progress=False))
    torch.testing.assert_close(weights(found[1]), weights(found[0]), rtol=1e-5, atol=1e-7)
    assert found[1].history["val_loss"] == pytest.approx(found[0].history["val_loss"], rel=1e-5)


@pytest.mark.parametrize("data", [dispatch(32)[0], DataLoader(dispatch(32)[0], batch_size=8)], ids=["memory", "loader"])
def test_without_targets_any_loss_gets_the_batch_unless_it_wants_targets(data) -> None:
    options = {"epochs": 1, "progress": False}
    ldf.fit(network(), data, loss=lambda y, b: (y - b.inputs[:, :4]).square().mean(), **options)
    for loss, name in ((mse, "target"), (nn.MSELoss(), "target"), (functools.partial(scaled, scale=2.0), "targets")):
        with pytest.raises(ValueError, match=f"no column 'targets', but the loss has a parameter '{name}'"):
            ldf.fit(network(), data, loss=loss, **options)
    with pytest.raises(AttributeError, match="rows without labels have no targets"):
        ldf.fit(network(), data, loss=lambda y, t: mse(y, t), **options)


@pytest.mark.parametrize("labels", [True, False])
def test_the_loss_gets_its_own_rows_beside_pairs_and_unlabelled_rows(labels: bool) -> None:
    inputs, targets = dispatch(48)
    free = dispatch(20, seed=9)[0]
    order = torch.cat([inputs, free]).sum(1).argsort()
    pairs = ldf.Pairs(torch.stack([order[:-1], order[1:]], 1))
    constraints = [
        *dispatch_constraints(),
        ldf.inequality("order", lambda y, pair: y[0].sum(1, True) - y[1].sum(1, True), scope=pairs),
    ]
    data = {"inputs": inputs, "number": torch.arange(48)} | ({"targets": targets} if labels else {})
    seen = []

    def loss(y: Tensor, batch: ldf.Batch) -> Tensor:
        assert len(y) == batch.rows == len(batch.inputs) == 16
        assert torch.equal(batch.ids, batch.number)
        assert torch.equal(batch.inputs, inputs[batch.ids])
        if labels:
            assert torch.equal(batch.targets, targets[batch.ids])
        else:
            assert "targets" not in batch.columns()
        seen.append(batch.ids)
        return (y - targets[batch.ids]).square().mean()

    for chosen in (constraints, constraints[:2], constraints[2:], []):
        results = []
        for function in (loss, mse) if labels else (loss,):
            seen.clear()
            torch.manual_seed(0)
            done = ldf.fit(
                network(),
                data,
                loss=function,
                constraints=chosen,
                dual=ldf.Ascent(0.1),
                unlabelled={"inputs": free, "number": torch.arange(48, 68)},
                batch_size=16,
                epochs=2,
                progress=False,
            )
            results.append(weights(done))
            if function is loss:
                assert set(torch.cat(seen).tolist()) == set(range(48))
        assert all(torch.equal(results[0], other) for other in results)


# ---------------------------------------------------------------- labelled and unlabelled rows


def test_labelled_and_unlabelled_rows_by_hand() -> None:
    """A loop in plain torch over the same batches: 32 labelled and 20 of 70 unlabelled rows in each step."""
    inputs, targets = dispatch(96)
    free, _ = dispatch(70, seed=9)
    step, epochs = 1e-3, 4
    torch.manual_seed(0)
    done = ldf.fit(
        network(),
        (inputs, targets),
        loss=lambda y, batch: mse(y, batch.targets),
        constraints=dispatch_constraints(),
        dual=ldf.Ascent(step, normalise=False),
        unlabelled=free,
        unlabelled_batch_size=20,
        batch_size=32,
        epochs=epochs,
        progress=False,
    )
    passes = torch.cat([torch.randperm(70, generator=epoch_generator(0, number, 1)) for number in range(4)])
    hand, capacity, balance = algorithm_1((inputs, targets), step, epochs, (free[ids] for ids in passes.split(20)))
    torch.testing.assert_close(weights(done), hand, rtol=1e-4, atol=1e-6)
    assert float(done.multipliers["capacity"]) == pytest.approx(capacity, rel=1e-4)
    assert float(done.multipliers["balance"]) == pytest.approx(balance, rel=1e-4)


def planned(labelled: int, free: int, **options) -> Task:
    data = Data((torch.zeros(labelled, 1), torch.zeros(labelled, 1)), torch.zeros(free, 1))
    watched = ldf.inequality("watched", lambda y, batch: y)
    return Task(Settings(loss=mse, constraints=(watched,), unlabelled=torch.zeros(free, 1), **options), data, [3, 4])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 16), st.none() | st.integers(1, 70), st.integers(0, 5))
def test_unlabelled_rows_are_passed_through_one_permutation_after_another(
    labelled: int, free: int, size: int, own: int | None, later: int
) -> None:
    task = planned(labelled, free, batch_size=size, unlabelled_batch_size=own)
    epochs = [[step["free"] for step in task.plan(0, epoch)] for epoch in range(6)]
    steps = [part for epoch in epochs for part in epoch]
    limit = min(own or size, free)
    assert max(len(part) for part in steps) <= limit
    if own is not None or free > task.steps * size:
        assert all(len(part) == limit for part in steps)
    stream = torch.cat(steps)
    for rows in stream.split(free):
        assert len(rows.unique()) == len(rows), "no row twice within a pass"
    resumed = planned(labelled, free, batch_size=size, unlabelled_batch_size=own).plan(0, later)
    assert all(torch.equal(step["free"], part) for step, part in zip(resumed, epochs[later], strict=True))


def test_steps_stay_small_with_a_million_unlabelled_rows() -> None:
    """64 labels and a million unlabelled rows: 128 rows per step, and an epoch draws no new order."""
    inputs, targets = dispatch(64)
    free = torch.rand(1_000_000, 5)
    seen: list[int] = []
    watch = ldf.inequality("watch", lambda y, batch: (seen.append(batch.rows), y - batch.inputs[:, :4])[1])
    for own, rows in ((None, 128), (500, 564)):
        seen.clear()
        begun = time.perf_counter()
        options = {"unlabelled": free, "unlabelled_batch_size": own, "epochs": 50, "progress": False}
        done = ldf.fit(network(), (inputs, targets), loss=mse, constraints=[watch], dual=ldf.Ascent(0.1), **options)
        assert max(seen) == rows
        assert len(done.history) == 50
        assert time.perf_counter() - begun < 10  # drawing the order in every epoch, or a million rows, takes longer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unlabelled_batch_size": 8}, "unlabelled_batch_size needs rows without targets: pass unlabelled="),
        (
            {"unlabelled": torch.zeros(4, 5), "unlabelled_batch_size": 0},
            "unlabelled_batch_size must be a whole number ≥ 1, got 0",
        ),
        ({"unlabelled": {"x": torch.zeros(4, 5)}}, r"unlabelled must have the columns \['inputs'\], got \['x'\]"),
        ({"validation": "none"}, "a batch must be inputs"),
        ({"validation": 7j}, "validation must be tensors or a DataLoader with a length, got complex"),
        ({"validation": DataLoader(torch.zeros(0, 5))}, "validation is empty: the loader yields no batches"),
    ],
)
def test_bad_input_is_refused(options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ldf.fit(network(), dispatch(16), loss=mse, epochs=1, progress=False, **options)

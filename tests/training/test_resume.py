"""A run that is killed at any moment and resumed is bit-identical to an uninterrupted run."""

import re
from pathlib import Path

import pytest
import torch
from helpers import dispatch, dispatch_constraints, kill_after_checkpoint, network
from killed import train
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ldf
from ldf.io import checkpoint

mse = nn.functional.mse_loss


def same(first: ldf.Fit, second: ldf.Fit) -> None:
    for (name, a), b in zip(first.model.state_dict().items(), second.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for name in first.multipliers:
        assert torch.equal(first.multipliers[name], second.multipliers[name]), name
    for a, b in zip(first.history.rows, second.history.rows, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in b.items() if k != "seconds"}, rel=0, abs=0, nan_ok=True
        )
    assert first.best_epoch == second.best_epoch


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("one", 2),
        ("many", 1),
        ("without labels", 1),
        *[pytest.param(kind, 4, marks=pytest.mark.soak) for kind in ("one", "many", "without labels")],
    ],
)
def test_a_killed_and_resumed_run_is_bit_identical_to_an_uninterrupted_one(
    tmp_path: Path, kind: str, least: int
) -> None:
    file = tmp_path / "checkpoint.safetensors"
    kills, written = 0, set()
    # Kill it repeatedly, shortly after each new checkpoint: within epochs, between them, while writing.
    for delay in (0.0, 0.03, 0.011, 0.2, 0.07):
        if kill_after_checkpoint(file, delay, "killed.py", str(tmp_path), kind):
            kills += 1
            facts = checkpoint.load(file)[1]
            written.add((facts["place"]["epoch"], facts["place"]["done"]))
        if kills == least and any(done for _, done in written):
            break
    assert kills >= min(least, 3)
    assert any(done for _, done in written), "at least one kill must be within an epoch"
    resumed, whole = train(tmp_path, 0.0, kind), train(None, 0.0, kind)
    for a, b in zip(resumed, whole, strict=True):
        same(a, b)


def fit(folder: Path, epochs: int = 4, **options) -> ldf.Fit:
    torch.manual_seed(0)
    return ldf.fit(
        options.pop("model", None) or network(),
        options.pop("data", None) or dispatch(96),
        loss=options.pop("loss", mse),
        constraints=options.pop("constraints", dispatch_constraints()),
        dual=options.pop("dual", ldf.Ascent(0.1)),
        epochs=epochs,
        checkpoint=folder,
        progress=False,
        **options,
    )


class StopError(Exception):
    """Stops a run from inside, as a kill would."""


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_shuffling_dataloader_resumes_with_the_same_batches(tmp_path: Path, own_generator: bool) -> None:
    def loader(stop_after: int | None = None):
        class Counting(DataLoader):
            yielded = 0

            def __iter__(self):
                for batch in super().__iter__():
                    if stop_after is not None and Counting.yielded == stop_after:
                        raise StopError
                    Counting.yielded += 1
                    yield batch

        generator = torch.Generator().manual_seed(5) if own_generator else None
        return Counting(TensorDataset(*dispatch(96)), batch_size=16, shuffle=True, generator=generator)

    for stop_after in (9, 12):
        folder = tmp_path / str(stop_after)
        with pytest.raises(StopError):
            fit(folder, data=loader(stop_after), checkpoint_seconds=0.0)
        same(fit(folder, data=loader(), checkpoint_seconds=0.0), fit(tmp_path / f"whole{stop_after}", data=loader()))


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first = fit(tmp_path)
    written = (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns
    same(first, fit(tmp_path))
    assert (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epochs": 5}, "epochs: 4 there, 5 here"),
        ({"data": dispatch(96, seed=1)}, "data: "),
        ({"dual": ldf.Ascent(0.2)}, "dual: "),
        ({"constraints": dispatch_constraints()[:1]}, "constraints: "),
        ({"model": network(width=8)}, "model: "),
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"compile": True}, "compile: False there, True here"),
    ],
)
def test_the_checkpoint_of_another_problem_is_refused(tmp_path: Path, change: dict, named: str) -> None:
    fit(tmp_path)
    with pytest.raises(ldf.CheckpointError, match=f"another problem.*{named}"):
        fit(tmp_path, **change)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ascend_on": "held-out"}, "(ascend_on: 'training' there, 'held-out' here);"),
        ({"metrics": {"b": lambda y, batch: 0.0}}, "(metrics: ['a'] there, ['b'] here);"),
        ({"metrics": None}, "(metrics: ['a'] there, [] here);"),
    ],
)
def test_other_uses_of_held_out_rows_are_another_problem(tmp_path: Path, change: dict, named: str) -> None:
    options = {"validation": 0.25, "metrics": {"a": lambda y, batch: y.mean()}}
    first = fit(tmp_path, **options)
    with pytest.raises(ldf.CheckpointError, match=re.escape(f"another problem {named}")):
        fit(tmp_path, **{**options, **change})
    same(first, fit(tmp_path, **options))


@pytest.mark.parametrize("folds", [None, 3])
def test_multipliers_that_ascend_by_held_out_rows_resume_bit_for_bit(tmp_path: Path, folds: int | None) -> None:
    """Interrupted within an epoch, before and after an update, and between epochs."""
    inputs, targets = dispatch(72)
    data = {"inputs": inputs, "targets": targets, "group": (inputs[:, 0] > inputs[:, 0].median()).long()}
    rate = {"scope": ldf.Groups("group", 2), "exact": lambda y, b: (y[:, :1] > 0.7).float()}
    limit, calls = [0], [0]

    def bounded(y: Tensor, batch: ldf.Batch) -> Tensor:
        calls[0] += 1
        if calls[0] == limit[0]:
            raise StopError
        return y - 0.5

    options = {
        "loss": mse,
        "constraints": [
            ldf.inequality("bound", bounded, multiplier="column"),
            ldf.equality("parity", lambda y, b: y[:, :1], **rate),
        ],
        "dual": {"bound": ldf.Ascent(0.1), "parity": ldf.Ascent(0.5, normalise=False, initial=0.25)},
        "epochs": 3,
        "batch_size": 16,
        "lr": 0.03,
        "update_every": 2,
        "ascend_on": "held-out",
        "metrics": {"largest": lambda y, b: y.max()},
        "checkpoint_seconds": 0.0,
        "progress": False,
    }

    def run(folder: Path | None, stop: int = 0) -> list[ldf.Fit]:
        calls[0], limit[0] = 0, stop
        if folds:
            return ldf.fit_many(network, data, folds=folds, checkpoint=folder, **options)
        torch.manual_seed(0)
        return [ldf.fit(network(), data, validation=0.25, checkpoint=folder, **options)]

    whole, stops = run(None), 0
    for stop in range(4, calls[0], 5):
        folder = tmp_path / str(stop)
        with pytest.raises(StopError):
            run(folder, stop)
        stops += (folder / "checkpoint.safetensors").exists()
        for ours, theirs in zip(run(folder), whole, strict=True):
            same(ours, theirs)
    assert stops >= 4
    assert len(set(whole[0].history["lambda/parity"])) > 1


def test_without_labels_other_data_or_batches_are_another_problem(tmp_path: Path) -> None:
    inputs, targets = dispatch(96)

    def objective(y: Tensor, batch: ldf.Batch) -> Tensor:
        return (y - batch.inputs[:, :4]).square().mean()

    options = {"data": {"inputs": inputs}, "loss": objective, "unlabelled": dispatch(200, seed=9)[0]}
    first = fit(tmp_path, **options)
    same(first, fit(tmp_path, **options))
    for change, named in (
        ({"data": {"inputs": inputs + 1}}, "data: "),
        ({"data": {"inputs": inputs, "targets": targets}}, "data: "),
        ({"unlabelled_batch_size": 5}, "unlabelled_batch_size: None there, 5 here"),
        ({"validation": DataLoader(inputs, batch_size=8)}, "validation: None there, 'DataLoader of 12 batches' here"),
    ):
        with pytest.raises(ldf.CheckpointError, match=f"another problem.*{named}"):
            fit(tmp_path, **options | change)


def test_stacked_weights_of_another_layout_are_another_problem(tmp_path: Path) -> None:
    x = torch.rand(32, 4)
    options = {"loss": nn.functional.mse_loss, "seeds": range(2), "epochs": 2, "checkpoint": tmp_path}
    options |= {"progress": False}
    ldf.fit_many(lambda: nn.Linear(4, 4), (x, x), **options)  # weights are held transposed
    with pytest.raises(ValueError, match="transposed"):
        ldf.fit_many(lambda: nn.Linear(4, 4), (x, x), compile=False, **options)


def test_a_run_that_a_callback_ended_is_not_trained_again(tmp_path: Path) -> None:
    first = fit(tmp_path, callbacks=lambda done: len(done.history) == 2)
    assert first.stopped_early
    calls: list[int] = []
    again = fit(tmp_path, callbacks=lambda done: calls.append(1))
    same(first, again)
    assert again.stopped_early
    assert calls == []


def test_callbacks_see_a_resumed_history(tmp_path: Path) -> None:
    """Interrupted by an error in the callback itself: the epoch is trained again and the callback called again."""
    seen: list[int] = []

    def failing(done: ldf.Fit) -> None:
        seen.append(len(done.history))
        if seen.count(3) == 1 and len(done.history) == 3:
            raise StopError

    with pytest.raises(StopError):
        fit(tmp_path, callbacks=failing, checkpoint_seconds=0.0)
    resumed = fit(tmp_path, callbacks=failing, checkpoint_seconds=0.0)
    assert seen == [1, 2, 3, 3, 4]
    same(resumed, fit(tmp_path / "whole"))


def test_damaged_and_foreign_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    fit(tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    whole = file.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"not a checkpoint at all", whole[:20] + b"\xff" * 40 + whole[60:]):
        file.write_bytes(broken)
        with pytest.raises(ldf.CheckpointError, match="damaged or not a checkpoint"):
            fit(tmp_path)
        assert file.read_bytes() == broken
    from safetensors.torch import save_file

    save_file({"weights": torch.zeros(2)}, file)
    with pytest.raises(ldf.CheckpointError, match="not a checkpoint of ldf"):
        fit(tmp_path)


@pytest.mark.parametrize("dtype", checkpoint.DTYPES, ids=str)
def test_checkpoints_are_safetensors_files(tmp_path: Path, dtype: torch.dtype) -> None:
    from safetensors.torch import load_file

    numbers = (torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    tensors = {"whole": numbers, "turned": numbers.t()[1:], "one": numbers[2, 3], "none": numbers[:0], "λ": numbers[0]}
    checkpoint.save(tmp_path / "file", tensors, {"n": 1, "text": "ν ≤ ε"})
    ours, facts = checkpoint.load(tmp_path / "file")
    theirs = load_file(tmp_path / "file")
    assert facts == {"n": 1, "text": "ν ≤ ε"}
    assert ours.keys() == theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(ours[name], tensor)
        assert torch.equal(theirs[name], tensor)


def test_a_tensor_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(ldf.CheckpointError, match=r"'x' is torch\.complex64"):
        checkpoint.save(tmp_path / "file", {"x": torch.zeros(2, dtype=torch.complex64)}, {})


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state"
    checkpoint.save(file, {"x": torch.ones(3)}, {"n": 1})

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(file, {"x": torch.zeros(3)}, {"n": 2})
    tensors, facts = checkpoint.load(file)
    assert facts == {"n": 1}
    assert torch.equal(tensors["x"], torch.ones(3))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_an_optimiser_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    mse(model(torch.ones(2, 5)), torch.ones(2, 4)).backward()
    optimizer.step()
    next(iter(optimizer.state.values()))["odd"] = object()
    with pytest.raises(ldf.CheckpointError, match="Adam stores 'odd' as object"):
        checkpoint.pack_optimizer(optimizer)

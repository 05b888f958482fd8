"""Inputs and outputs in any container, and validation by a loader, give the results of plain tensors."""

import functools
import math
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from helpers import dispatch, dispatch_constraints, network
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ldf
from ldf.core import batch as trees

mse = nn.functional.mse_loss


def weights(done: ldf.Fit) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in done.model.parameters()])


# ---------------------------------------------------------------- containers


class Pair(NamedTuple):
    mean: Tensor
    spread: Tensor
    extra: Tensor | None = None


class Output(OrderedDict):
    """As transformer libraries return: a mapping with attributes, without the entries that are None."""

    def __init__(self, mean: Tensor, spread: Tensor, extra: Tensor | None = None) -> None:
        super().__init__({"mean": mean, "spread": spread} | ({} if extra is None else {"extra": extra}))
        self.mean, self.spread, self.extra = mean, spread, extra


class Heads(nn.Module):
    """Inputs, whole or in parts → mean and spread, in any container."""

    def __init__(self, make=Pair) -> None:
        super().__init__()
        self.body, self.make = network(outputs=8), make

    def forward(self, inputs):
        return self.make(*self.body(torch.cat(trees.leaves(inputs), 1)).chunk(2, 1))


MAKES = {
    "named tuple": (Pair, lambda y: (y.mean, y.spread)),
    "model output": (Output, lambda y: (y.mean, y.spread)),
    "tuple with None": (lambda mean, spread: (mean, None, (spread,)), lambda y: (y[0], y[2][0])),
    "dict with None": (lambda mean, spread: {"m": mean, "none": None, "s": [spread]}, lambda y: (y["m"], y["s"][0])),
}


@pytest.mark.parametrize("rule", [ldf.Ascent(0.5), ldf.Balanced(), ldf.Augmented()], ids=str)
@pytest.mark.parametrize("kind", MAKES)
def test_outputs_keep_their_type_in_every_scope(kind: str, rule: ldf.Dual) -> None:
    make, parts = MAKES[kind]
    inputs, targets = dispatch(128)
    order = inputs.sum(1).argsort()
    pairs, groups = ldf.Pairs(torch.stack([order[:-1], order[1:]], 1)), ldf.Groups(torch.arange(192) % 2)
    seen = set()

    def part(y, index: int) -> Tensor:
        seen.add(type(y))
        return parts(y)[index]

    constraints = [
        ldf.inequality("positive", lambda y, batch: -part(y, 1)),
        ldf.inequality("order", lambda y, pair: part(y, 0)[0] - part(y, 0)[1], scope=pairs),
        ldf.equality("alike", lambda y, batch: part(y, 0)[:, :1], scope=groups),
    ]
    torch.manual_seed(0)
    done = ldf.fit(
        Heads(make),
        (inputs, targets),
        loss=lambda y, t: mse(part(y, 0), t),
        constraints=constraints,
        dual=rule,
        unlabelled=dispatch(64, seed=3)[0],
        validation=0.25,
        epochs=12,
        lr=1e-2,
        progress=False,
    )
    assert done.history["nu_mean/positive"][-1] < 0.5 * done.history["nu_mean/positive"][0]
    with torch.no_grad():
        predictions = done.model(inputs)
    found = done.certify(predictions, ldf.Batch(inputs=inputs, ids=torch.arange(128)))
    mean, spread = parts(predictions)
    assert found["positive"].mean == pytest.approx(float((-spread).clamp_min(0).mean()))
    assert found["order"].mean == pytest.approx(float((mean[order[:-1]] - mean[order[1:]]).clamp_min(0).mean()))
    assert found["alike"].mean == pytest.approx(float((mean[::2, 0].mean() - mean[1::2, 0].mean()).abs()), rel=1e-3)
    assert seen == {type(predictions)}


def test_stacked_models_take_and_return_any_container() -> None:
    inputs, targets = (part.double() for part in dispatch(96))
    columns = (inputs[:, :2], inputs[:, 2:])
    for form in (Pair(*columns), Output(*columns), {"a": columns[0], "none": None, "b": [columns[1]]}):
        for make, parts in MAKES.values():
            options = {"loss": lambda y, t: mse(parts(y)[0], t), "epochs": 2, "validation": 0.25, "progress": False}
            options |= {"constraints": [ldf.inequality("positive", lambda y, b: -parts(y)[1])], "dual": ldf.Ascent(0.1)}
            runs = ldf.fit_many(lambda: Heads(make).double(), (form, targets), seeds=[0, 1], **options)
            for seed, run in enumerate(runs):
                torch.manual_seed(seed)
                alone = ldf.fit(Heads(make).double(), (form, targets), seed=seed, **options)
                torch.testing.assert_close(weights(run), weights(alone), rtol=1e-7, atol=1e-9)
                assert run.history["val_loss"] == pytest.approx(alone.history["val_loss"], rel=1e-7)


@pytest.mark.parametrize("make", [Pair, Output], ids=lambda make: make.__name__)
def test_a_compiled_step_takes_and_returns_containers_without_labels(monkeypatch: pytest.MonkeyPatch, make) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    inputs, _ = dispatch(64)
    data = {"inputs": {"a": inputs[:, :2], "b": inputs[:, 2:]}}
    found = []
    for flag in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        done = ldf.fit(
            Heads(make),
            data,
            loss=lambda y, batch: (y.mean[:, :2] - batch.inputs["a"]).square().mean(),
            constraints=[ldf.inequality("positive", lambda y, batch: -y.spread)],
            dual=ldf.Ascent(0.1),
            unlabelled={"inputs": {"a": inputs[:20, :2] + 1, "b": inputs[:20, 2:]}},
            unlabelled_batch_size=16,
            batch_size=32,
            epochs=2,
            compile=flag,
            progress=False,
        )
        found.append(weights(done))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("split", [lambda x: {"a": x[:, :2], "b": x[:, 2:]}, lambda x: (x[:, :2], x[:, 2:])])
def test_inputs_may_be_several_tensors(split) -> None:
    """With unlabelled rows and pairs, in memory and from a loader: as with one tensor."""
    inputs, targets = dispatch(96)
    free = dispatch(32, seed=9)[0]
    pairs = ldf.Pairs(torch.arange(128).view(64, 2))

    def low(batch: ldf.Batch) -> Tensor:
        return trees.leaves(batch.inputs)[0][..., :1]

    constraints = [
        ldf.inequality("low", lambda y, batch: y.mean[:, :1] - low(batch)),
        ldf.inequality("order", lambda y, pair: (y.mean[0] - y.mean[1])[:, :1] - low(pair)[0], scope=pairs),
    ]
    options = {"loss": lambda y, t: mse(y.mean, t), "dual": ldf.Ascent(0.1), "epochs": 3, "progress": False}
    found, loaded = [], []
    for form in (lambda x: x, split):
        torch.manual_seed(0)
        extra = {"unlabelled": {"inputs": form(free)}, "validation": 0.25, "constraints": constraints}
        done = ldf.fit(Heads(), (form(inputs), targets), **extra, **options)
        found.append(weights(done))
        certificate = done.certify(done.model(form(inputs)), ldf.Batch(inputs=form(inputs), ids=torch.arange(96)))
        assert certificate["order"].rows == 48
        torch.manual_seed(0)
        batches = [(form(inputs[rows]), targets[rows]) for rows in torch.arange(96).split(32)]
        loaded.append(weights(ldf.fit(Heads(), batches, constraints=constraints[:1], **options)))
    assert torch.equal(*found)
    assert torch.equal(*loaded)
    batch = ldf.Batch(inputs=split(inputs), targets=targets)
    assert batch.rows == 96
    assert "[96, 2]" in repr(batch)
    assert "[96, 3]" in repr(batch.to("cpu"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"inputs": {"a": torch.zeros(4, 1), "b": torch.zeros(5, 1)}}, r"same number of rows, got .*\[4, 5\]"),
        ({"inputs": {"a": torch.zeros(4, 1), "b": torch.tensor([[math.nan]] * 4)}}, "not finite, first in row 0"),
        ({"inputs": {"a": "words"}}, "column 'inputs' must be a tensor with one entry per row, or a tuple, list"),
        ({"inputs": torch.zeros(4, 1), "targets": None}, "column 'targets' must be a tensor"),
        ((torch.zeros(4, 1), torch.zeros(4), torch.zeros(4)), "got 3 items"),
    ],
)
def test_columns_of_the_wrong_form_are_refused(data, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ldf.fit(network(), data, loss=mse, epochs=1, progress=False)


def test_outputs_that_are_no_tensors_are_refused() -> None:
    options = {"loss": lambda y, t: mse(y[0], t), "constraints": dispatch_constraints(), "epochs": 1, "progress": False}
    with pytest.raises(TypeError, match="expected a tensor, or a tuple, list or mapping of tensors and None, got str"):
        ldf.fit(network(), dispatch(16), forward=lambda model, b: (model(b.inputs), "words"), **options)


def grown(shape):
    """The same containers, with a tensor [4, n] for every number n."""
    if isinstance(shape, int):
        return torch.arange(4.0 * shape).view(4, shape)
    if isinstance(shape, dict):
        return type(shape)((key, grown(value)) for key, value in shape.items())
    if isinstance(shape, Pair):
        return Pair(*map(grown, shape))
    return type(shape)(map(grown, shape)) if isinstance(shape, tuple | list) else None


def equal(first, second) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    return first is None or (len(first) == len(second) and all(map(equal, first, second)))


@settings(deadline=None, max_examples=50)
@given(
    st.recursive(
        st.none() | st.integers(1, 3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
            | st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(OrderedDict)
            | st.tuples(inner, inner).map(lambda two: Pair(*two))
        ),
        max_leaves=6,
    )
)
def test_containers_survive_picking_joining_and_rebuilding(shape) -> None:
    tree = grown(shape)
    assert equal(tree, trees.join([trees.pick(tree, slice(1)), trees.pick(tree, slice(1, 4))]))
    assert equal(tree, trees.rebuilt(tree, trees.leaves(tree)))
    assert equal(tree, trees.free(tree))


# ---------------------------------------------------------------- validation by a loader


@pytest.mark.parametrize("kind", ["memory", "loader", "many"])
def test_validation_by_a_loader_equals_validation_by_tensors(kind: str) -> None:
    """Batches of 7, the last one smaller; one group is absent from most of them; random layers must not notice."""

    def rows(columns: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return [{name: column[row] for name, column in columns.items()} for row in range(len(columns["inputs"]))]

    names = ("inputs", "targets", "group")
    train = dict(zip(names, (*dispatch(96), (torch.arange(96) % 3 == 0).long()), strict=True))
    held = dict(zip(names, (*dispatch(50, seed=5), (torch.arange(50) > 45).long()), strict=True))
    rate = {"scope": ldf.Groups("group", 2), "exact": lambda y, batch: y[:, :1] ** 2}
    options = {
        "loss": mse,
        "constraints": [*dispatch_constraints(), ldf.equality("parity", lambda y, batch: y[:, :1], **rate)],
        "dual": ldf.Ascent(0.1),
        "metrics": {"mae": lambda y, batch: (y - batch.targets).abs().mean()},
        "epochs": 4,
        "batch_size": 16,
        "progress": False,
    }

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.2), nn.Linear(16, 4))

    def run(validation) -> list[ldf.Fit]:
        if kind == "many":
            return ldf.fit_many(model, train, seeds=[0, 1], validation=validation, **options)
        data = DataLoader(rows(train), batch_size=16, shuffle=True) if kind == "loader" else train
        torch.manual_seed(0)
        return [ldf.fit(model(), data, validation=validation, **options)]

    for ours, theirs in zip(run(DataLoader(rows(held), batch_size=7)), run(held), strict=True):
        assert torch.equal(weights(ours), weights(theirs))
        assert ours.best_epoch == theirs.best_epoch
        assert ours.history.columns == theirs.history.columns
        assert len(set(theirs.history["val_nu_max/parity"])) > 1
        for column in ours.history.columns:
            if column != "seconds":
                assert ours.history[column] == pytest.approx(theirs.history[column], rel=1e-5, abs=1e-7), column
        assert ours.held_out is None


def test_a_validation_loader_stops_early_but_moves_no_multiplier() -> None:
    loader = DataLoader(TensorDataset(*dispatch(32, seed=5)), batch_size=8)
    options = {"loss": mse, "validation": loader, "epochs": 50, "lr": 0.1, "progress": False}
    assert ldf.fit(network(), dispatch(64), patience=1, **options).stopped_early
    with pytest.raises(ValueError, match="ascend_on='held-out' needs the held-out rows in memory"):
        ldf.fit(network(), dispatch(64), ascend_on="held-out", **options)

"""A compiled run gives the results of an uncompiled one, resumes with the same bits, and is given up where it fails."""

import functools
import itertools
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from helpers import dispatch, dispatch_constraints, every_scope, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ldf
from ldf.training.engine import Single
from ldf.training.stacked import Stacked

mse = nn.functional.mse_loss
plain_compile = torch.compile


@pytest.fixture(autouse=True)
def _without_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The default backend needs a C++ compiler; this one traces and differentiates the same graph without one."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(plain_compile, backend="aot_eager"))
    yield
    torch._dynamo.reset()


def double(rows: int = 100) -> tuple[Tensor, Tensor]:
    """Double precision: Adam turns a gradient of 1e-9, float noise, into a full step."""
    inputs, targets = dispatch(rows)
    return inputs.double(), targets.double()


def fit(compile: bool | str, **options) -> ldf.Fit:
    torch.manual_seed(0)
    options = {"dual": ldf.Ascent(0.1), "constraints": dispatch_constraints(), "epochs": 3, "batch_size": 32} | options
    model, data = options.pop("model", None) or network().double(), options.pop("data", None) or double()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "training goes on")
        return ldf.fit(model, data, loss=mse, compile=compile, progress=False, **options)


def same(one: ldf.Fit, other: ldf.Fit, rtol: float = 1e-7, atol: float = 1e-9) -> None:
    for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    for name, value in one.multipliers.items():
        torch.testing.assert_close(other.multipliers[name], value, rtol=rtol, atol=atol)
    for column in one.history.columns:
        if column != "seconds":
            assert other.history[column] == pytest.approx(one.history[column], rel=10 * rtol, abs=atol)


RULES = [None, ldf.Fixed(1.0), ldf.Ascent(0.1), ldf.Balanced(), ldf.NuPI(0.1), ldf.Augmented()]


@pytest.mark.parametrize("dual", RULES, ids=lambda rule: type(rule).__name__)
def test_a_compiled_fit_agrees_with_an_uncompiled_one(dual: ldf.Dual | None) -> None:
    """100 rows in batches of 32: the last of every epoch is smaller."""
    same(*(fit(flag, dual=dual, update_every=2) for flag in (False, True)))


def groups(parameters) -> torch.optim.Optimizer:
    first, *others = parameters
    return torch.optim.AdamW([{"params": [first], "lr": 1e-2}, {"params": others, "weight_decay": 0.0}], lr=1e-3)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.Adam(parameters, lr=1e-2, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-4),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, fused=True),
        lambda parameters: torch.optim.Adam(parameters, amsgrad=True),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.9),
        groups,
    ],
    ids=["adam", "adamw", "amsgrad", "sgd", "rmsprop", "groups"],
)
def test_every_optimiser_takes_the_same_steps(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    same(*(fit(flag, optimizer=optimizer) for flag in (False, True)))


def test_a_schedule_may_change_rates_and_momenta() -> None:
    def schedule(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps + 1)

    same(*(fit(flag, schedule=schedule) for flag in (False, True)))


def test_the_optimisers_state_is_up_to_date_after_training() -> None:
    made: list[torch.optim.Adam] = []

    def optimizer(parameters) -> torch.optim.Optimizer:
        made.append(torch.optim.Adam(parameters))
        return made[-1]

    for flag in (False, True):
        fit(flag, optimizer=optimizer)
    for a, b in zip(*(one.state_dict()["state"].values() for one in made), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-12)
        assert float(a["step"]) == 12


def test_a_loader_and_a_model_with_buffers() -> None:
    def options() -> dict:
        model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)).double()
        return {"model": model, "data": DataLoader(TensorDataset(*double()), batch_size=32)}

    found = []
    for flag in (False, True):
        torch.manual_seed(1)
        found.append(fit(flag, **options()))
    same(*found)


def test_a_model_with_dropout_is_compiled_though_its_random_numbers_differ() -> None:
    model = nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5), nn.Linear(64, 4)).double()
    done = fit(True, model=model, epochs=20)
    assert done.history["loss"][-1] < done.history["loss"][0]


@pytest.mark.parametrize("kinds", [slice(0, 3), slice(3, 6)], ids=["samples", "every scope"])
def test_compiled_stacked_models_agree_with_uncompiled_ones(kinds: slice) -> None:
    inputs, targets = double(160)
    found = [
        ldf.fit_many(
            lambda: network().double(),
            (inputs, targets),
            loss=mse,
            constraints=every_scope(200)[kinds],
            duals=[None, ldf.Balanced(), ldf.Ascent(0.1), ldf.Augmented()],
            seeds=[0, 1],
            unlabelled=dispatch(40, seed=9)[0].double(),
            epochs=4,
            batch_size=32,
            validation=0.2,
            update_every=2,
            compile=flag,
            progress=False,
        )
        for flag in (False, True)
    ]
    for one, other in zip(*found, strict=True):
        same(one, other)


def test_short_runs_are_not_compiled_by_default_and_long_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def compile(function: Callable, **options: object) -> Callable:
        calls.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile)

    def many() -> list[ldf.Fit]:
        return ldf.fit_many(network, dispatch(96), loss=mse, seeds=[0, 1], epochs=3, batch_size=32, progress=False)

    fit("auto", epochs=4)
    many()
    assert not calls
    monkeypatch.setattr(Single, "pays", 16)
    fit("auto", epochs=3)
    assert not calls
    fit("auto", epochs=4)
    assert len(calls) == 1
    monkeypatch.setattr(Stacked, "pays", property(lambda self: 9, lambda self, value: None), raising=False)
    many()
    assert len(calls) == 2


def test_compile_must_be_known() -> None:
    with pytest.raises(ValueError, match="compile must be True, False or 'auto', got 'always'"):
        fit("always")


def breaking() -> list[ldf.Constraint]:
    """A constraint with a branch that depends on the predictions, which is not a graph."""
    return [ldf.inequality("cap", lambda y, batch: y - (0.1 if bool((y > 0.3).any()) else 0.2))]


def test_a_step_that_cannot_be_compiled_is_trained_without_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Single, "pays", 1)
    with pytest.raises(UserWarning, match=r"training goes on without torch\.compile: "):
        fit("auto", constraints=breaking())
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="training goes on without torch.compile") as caught:
        found = ldf.fit(
            network().double(), double(), loss=mse, constraints=breaking(), dual=ldf.Ascent(0.1), epochs=3,
            batch_size=32, progress=False,
        )  # fmt: skip
    assert len([one for one in caught if "torch.compile" in str(one.message)]) == 1
    same(fit(False, constraints=breaking()), found, rtol=0, atol=0)
    with pytest.raises(Exception, match=r"[Dd]ata-dependent"):
        fit(True, constraints=breaking())


def test_a_constraint_may_depend_on_a_number_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is compiled anew once; if the number goes on changing, training goes on without."""
    monkeypatch.setattr(Single, "pays", 1)

    def run(compile: bool | str) -> ldf.Fit:
        now = {"cap": 0.5}

        def lower(predictions: Tensor, batch: ldf.Batch) -> float:
            now["cap"] *= 0.5
            return now["cap"]

        torch.manual_seed(0)
        return ldf.fit(
            network().double(), double(), loss=mse, constraints=[ldf.inequality("cap", lambda y, b: y - now["cap"])],
            dual=ldf.Ascent(1.0), epochs=6, batch_size=32, validation=0.2, metrics={"cap": lower}, compile=compile,
            progress=False,
        )  # fmt: skip

    with pytest.warns(UserWarning, match="training goes on without torch.compile"):
        found = run("auto")
    same(run(False), found)


@pytest.mark.parametrize("what", ["weights", "sums"])
def test_a_wrong_graph_is_noticed(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def compile(step: Callable, **options: object) -> Callable:
        graph = step.__self__

        def wrong(rows: object) -> object:
            losing = graph.engine.parameters() if what == "weights" else [graph.engine.lagrangians[0].loss_sum]
            before = [tensor.detach().clone() for tensor in losing]
            found = step(rows)
            with torch.no_grad():
                for tensor, value in zip(losing, before, strict=True):
                    tensor.copy_(value)
            return found

        return wrong

    expected = fit(False)
    monkeypatch.setattr(torch, "compile", compile)
    with pytest.raises(RuntimeError, match="compiled step gives other values"):
        fit(True)
    monkeypatch.setattr(Single, "pays", 1)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="other values"):
        found = ldf.fit(
            network().double(), double(), loss=mse, constraints=dispatch_constraints(), dual=ldf.Ascent(0.1), epochs=3,
            batch_size=32, progress=False,
        )  # fmt: skip
    same(expected, found, rtol=0, atol=0)


def test_a_loss_that_is_not_finite_ends_a_compiled_run() -> None:
    with pytest.raises(ValueError, match=r"L \+ Σ λν is (nan|inf).*compile=False"):
        fit(True, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e200), dual=None, epochs=9)


class StopError(Exception):
    """Stops a run from inside, as a kill would."""


@pytest.mark.parametrize("stop", [3, 6, 7])
def test_a_compiled_run_resumes_with_the_same_bits(tmp_path: Path, stop: int) -> None:
    def loader(until: int | None) -> DataLoader:
        class Counting(DataLoader):
            yielded = itertools.count()

            def __iter__(self) -> Iterator:
                for batch in super().__iter__():
                    if next(Counting.yielded) == until:
                        raise StopError
                    yield batch

        generator = torch.Generator().manual_seed(5)
        return Counting(TensorDataset(*double()), batch_size=32, shuffle=True, generator=generator)

    options = {"checkpoint": tmp_path / "some", "checkpoint_seconds": 0.0}
    with pytest.raises(StopError):
        fit(True, data=loader(stop), **options)
    same(fit(True, data=loader(None), **options), fit(True, data=loader(None)), rtol=0, atol=0)


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_default_backend_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", plain_compile)
    same(*(fit(flag, dual=ldf.Balanced()) for flag in (False, True)))
    runs = [
        ldf.fit_many(
            lambda: network().double(), double(), loss=mse, constraints=dispatch_constraints(), dual=ldf.Augmented(),
            seeds=range(3), epochs=3, batch_size=32, compile=flag, progress=False,
        )
        for flag in (False, True)
    ]  # fmt: skip
    for one, other in zip(*runs, strict=True):
        same(one, other)

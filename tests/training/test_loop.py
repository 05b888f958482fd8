"""fit: training, selection of the best iterate, and rejected input."""

import copy
import math

import pytest
import torch
from helpers import algorithm_1, dispatch, dispatch_constraints, network
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import ldf

mse = nn.functional.mse_loss


def fit(dual=None, seed: int = 0, model: nn.Module | None = None, data=None, constraints=None, **options) -> ldf.Fit:
    torch.manual_seed(seed)
    options = {"epochs": 6, "progress": False, **options}
    return ldf.fit(
        model or network(),
        data if data is not None else dispatch(),
        loss=mse,
        constraints=dispatch_constraints() if constraints is None else constraints,
        dual=dual,
        seed=seed,
        **options,
    )


def weights(done: ldf.Fit) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in done.model.parameters()])


def test_the_automatic_rule_lowers_violations_at_no_cost_in_loss() -> None:
    inputs, targets = dispatch(1000, seed=1)
    found = {}
    for name, dual in {"M": None, "auto": "auto"}.items():
        done = fit(dual, data=dispatch(1000), epochs=60, schedule="cosine")
        with torch.no_grad():
            predictions = done.model(inputs)
        certificate = done.certify(predictions, ldf.Batch(inputs=inputs))
        found[name] = (float(mse(predictions, targets)), certificate["capacity"].mean, certificate["balance"].mean)
    assert found["auto"][0] < 1.05 * found["M"][0]
    assert found["auto"][1] < 0.9 * found["M"][1]
    assert found["auto"][2] < 0.6 * found["M"][2]


def test_the_same_seed_gives_the_same_bits_and_leaves_the_callers_random_numbers_alone() -> None:
    first, second, other = (fit(ldf.Ascent(0.1), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))
    torch.manual_seed(0)
    model = network()
    before = torch.get_rng_state()
    ldf.fit(model, dispatch(64), loss=mse, epochs=1, progress=False)
    assert torch.equal(before, torch.get_rng_state())


def test_the_history_has_every_violation_and_multiplier() -> None:
    done = fit(ldf.Ascent(0.1), validation=0.25)
    assert len(done.history) == 6
    for name in ("capacity", "balance"):
        for column in ("nu_mean", "nu_max", "lambda", "penalty", "val_nu_mean", "val_nu_max"):
            assert all(math.isfinite(value) for value in done.history[f"{column}/{name}"])
    assert done.history["lambda/balance"] == sorted(done.history["lambda/balance"])
    assert done.history["lambda/balance"][-1] == pytest.approx(float(done.multipliers["balance"]))
    assert "nu_mean/capacity" in str(done.history)


def test_algorithm_1_by_hand() -> None:
    """The loop of the paper, written out in plain torch, gives the same weights and multipliers."""
    inputs, targets = dispatch(96)
    step = 1e-3
    done = fit(ldf.Ascent(step, normalise=False), data=(inputs, targets), epochs=3, batch_size=32)
    hand, capacity, balance = algorithm_1((inputs, targets), step, epochs=3)
    torch.testing.assert_close(weights(done), hand, rtol=1e-4, atol=1e-6)
    assert float(done.multipliers["capacity"]) == pytest.approx(capacity, rel=1e-4)
    assert float(done.multipliers["balance"]) == pytest.approx(balance, rel=1e-4)


def test_algorithm_2_samples_pairs_and_groups_in_one_run() -> None:
    inputs, targets = dispatch(400)
    order = inputs.sum(1).argsort()
    pairs = ldf.Pairs(torch.stack([order[:-1], order[1:]], 1))
    group = (torch.arange(400) % 10 == 0).long()
    constraints = [
        *dispatch_constraints(),
        ldf.inequality("monotone", lambda y, pair: y[0].sum(1, True) - y[1].sum(1, True), scope=pairs),
        ldf.equality("parity", lambda y, batch: y[:, :1], scope=ldf.Groups(group)),
    ]
    rules = {"capacity": 1.0, "balance": 0.1, "monotone": 0.2, "parity": 5.0}
    duals = {name: ldf.Ascent(step) for name, step in rules.items()}
    base = fit(None, data=(inputs, targets), constraints=constraints, epochs=40)
    done = fit(duals, data=(inputs, targets), constraints=constraints, epochs=40)
    for name in rules:
        assert float(done.multipliers[name]) > 0
        assert done.history[f"nu_mean/{name}"][-1] < base.history[f"nu_mean/{name}"][-1]


def test_constraints_hold_on_unlabelled_inputs_too() -> None:
    """Labels exist only for small first inputs; the constraint is enforced for large ones."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(200, 5, generator=generator)
    far = torch.rand(400, 5, generator=generator) + torch.tensor([2.0, 0, 0, 0, 0])
    targets = torch.cat([inputs[:, :1] * 2, inputs[:, 1:4]], 1)
    cap = ldf.inequality("cap", lambda y, batch: y[:, :1] - 1.5)

    def violation(unlabelled: Tensor | None) -> float:
        done = fit(
            ldf.Ascent(0.5),
            data=(inputs, targets),
            constraints=[cap],
            epochs=60,
            unlabelled=unlabelled,
            lr=3e-3,
        )
        with torch.no_grad():
            return done.certify(done.model(far), ldf.Batch(inputs=far))["cap"].mean

    assert violation(far[:200]) < 0.2 * violation(None)


def test_a_constraint_that_needs_targets_raises_on_unlabelled_rows() -> None:
    above = ldf.inequality("above", lambda y, batch: batch.targets - y)
    with pytest.raises(AttributeError, match="rows without labels have no targets"):
        fit(ldf.Ascent(0.1), constraints=[above], unlabelled=torch.rand(10, 5))


def test_a_loader_gives_the_same_results_as_tensors() -> None:
    inputs, targets = dispatch(256)
    ids = torch.arange(256)

    class Same:
        """Yields the same batches that fit would draw."""

        dataset = ids
        epoch = -1

        def __len__(self) -> int:
            return 4

        def __iter__(self):
            self.epoch += 1
            for rows in ldf.core.samplers.shuffled(ids, 64, ldf.core.samplers.epoch_generator(0, self.epoch)):
                yield inputs[rows], targets[rows], rows

    constraints = dispatch_constraints(multiplier="sample")
    direct = fit(ldf.Ascent(0.1), data=(inputs, targets), constraints=constraints)
    loaded = fit(ldf.Ascent(0.1), data=Same(), constraints=constraints)
    assert torch.equal(weights(direct), weights(loaded))
    assert torch.equal(direct.multipliers["capacity"], loaded.multipliers["capacity"])


def test_a_loader_of_the_wrong_length_is_refused() -> None:
    class Short:
        def __len__(self) -> int:
            return 5

        def __iter__(self):
            yield from [dispatch(16)] * 3

    with pytest.raises(ValueError, match="length 5, but yielded 3 batches"):
        fit(None, data=Short())


def test_a_dataloader_with_validation_data() -> None:
    loader = DataLoader(TensorDataset(*dispatch(256)), batch_size=32, shuffle=True)
    done = fit(ldf.Ascent(0.1), data=loader, validation=dispatch(64, seed=5))
    assert len(done.history) == 6
    assert torch.equal(weights(done), weights(fit(ldf.Ascent(0.1), data=loader, validation=dispatch(64, seed=5))))


def test_the_best_iterate_is_chosen_by_feasibility_first() -> None:
    done = fit(ldf.Ascent(0.3), validation=0.25, epochs=20)
    tolerances = done.lagrangian.tolerances

    def score(row: dict[str, float]) -> tuple[float, float]:
        excess = [max(0.0, row[f"val_nu_mean/{name}"] / tolerance - 1) for name, tolerance in tolerances.items()]
        return sum(excess), row["val_loss"]

    late = [row for row in done.history.rows if row["epoch"] >= 10]
    assert done.best_epoch == min(late, key=score)["epoch"]
    assert fit(ldf.Ascent(0.3), validation=0.25, epochs=20, keep="last").best_epoch == 20
    plain = fit(None, validation=0.25, epochs=20)
    assert plain.best_epoch == min(plain.history.rows[9:], key=lambda row: row["val_loss"])["epoch"]


def test_the_model_has_the_weights_of_the_best_epoch() -> None:
    done = fit(ldf.Ascent(0.5), validation=0.25, epochs=12, lr=3e-2)
    inputs, targets = dispatch()
    assert done.held_out is not None
    with torch.no_grad():
        loss = mse(done.model(inputs[done.held_out]), targets[done.held_out])
    assert float(loss) == pytest.approx(done.history["val_loss"][done.best_epoch - 1], rel=1e-5)


def test_early_stopping() -> None:
    done = fit(None, validation=0.25, epochs=200, patience=3, lr=0.05)
    assert done.stopped_early
    assert len(done.history) < 200
    assert len(done.history) - done.best_epoch == 3


def test_multipliers_may_be_updated_every_n_steps() -> None:
    done = fit(ldf.Ascent(0.1), update_every=3)  # 512 rows, 8 steps per epoch: 3 updates
    assert int(done.lagrangian.updates) == 6 * 3
    assert len(done.history) == 6


def test_metrics_are_evaluated_on_the_held_out_rows_after_every_epoch() -> None:
    seen: list[Tensor] = []

    def largest(y: Tensor, batch: ldf.Batch) -> Tensor:
        seen.append(batch.ids)
        return y.max()

    metrics = {"largest": largest, "mae": lambda y, batch: float((y - batch.targets).abs().mean())}
    inputs, targets = dispatch()
    for validation in (0.25, dispatch(64, seed=5)):
        seen.clear()
        options = {"validation": validation, "keep": "last", "epochs": 3}
        done = fit(ldf.Ascent(0.1), metrics=metrics, **options)
        rows = done.held_out
        known = (inputs[rows], targets[rows]) if rows is not None else validation
        with torch.no_grad():
            y = done.model(known[0])
        assert done.history["val/largest"][-1] == pytest.approx(float(y.max()))
        assert done.history["val/mae"][-1] == pytest.approx(float((y - known[1]).abs().mean()))
        assert len(set(done.history["val/mae"])) == 3
        assert all(torch.equal(ids, rows if rows is not None else torch.arange(64)) for ids in seen)
        assert len(seen) == 3
        assert torch.equal(weights(done), weights(fit(ldf.Ascent(0.1), **options)))


def test_stratified_batches_hold_every_group() -> None:
    group = (torch.arange(512) % 64 == 0).long()
    seen = []
    watch = ldf.inequality("watch", lambda y, batch: (seen.append(int(group[batch.ids].sum())), y - 9)[1])
    fit(None, constraints=[watch], stratify=group, epochs=2)
    assert min(seen) >= 1


def test_predictions_may_be_a_dict_and_inputs_several() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network(outputs=8)

        def forward(self, inputs: Tensor, extra: Tensor) -> dict[str, Tensor]:
            mean, spread = self.body(inputs + extra).chunk(2, 1)
            return {"mean": mean, "spread": spread}

    inputs, targets = dispatch(128)
    done = ldf.fit(
        Two(),
        {"inputs": inputs, "targets": targets, "extra": torch.zeros(128, 5)},
        loss=lambda y, t: mse(y["mean"], t),
        constraints=[ldf.inequality("positive", lambda y, batch: -y["spread"])],
        dual=ldf.Ascent(1.0, normalise=False, reduce="mean"),
        forward=lambda model, batch: model(batch.inputs, batch.extra),
        epochs=30,
        validation=0.25,
        progress=False,
    )
    assert done.history["nu_mean/positive"][-1] < 0.5 * done.history["nu_mean/positive"][0]


def test_schedules() -> None:
    done = fit(None, schedule="cosine")
    assert done.history["lr"][-1] == pytest.approx(0.0, abs=1e-9)
    cycle = fit(None, schedule=lambda o, steps: torch.optim.lr_scheduler.OneCycleLR(o, 1e-2, total_steps=steps + 1))
    assert max(cycle.history["lr"]) > 5e-3 > cycle.history["lr"][-1]


def test_progress_shows_epoch_loss_and_worst_violation(capsys: pytest.CaptureFixture[str]) -> None:
    fit(ldf.Ascent(0.1), progress=True)
    line = capsys.readouterr().err
    assert "epoch 6/6" in line
    assert "ν balance" in line
    fit(ldf.Ascent(0.1))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": (torch.zeros(0, 5), torch.zeros(0, 4))}, "data is empty"),
        ({"data": (torch.zeros(8, 5), torch.zeros(7, 4))}, "same number of rows"),
        ({"data": (torch.full((8, 5), math.nan), torch.zeros(8, 4))}, "'inputs' has a value that is not finite.*row 0"),
        ({"data": {"inputs": torch.zeros(8, 5)}}, "no column 'targets'"),
        ({"data": DataLoader(TensorDataset(torch.zeros(0, 5), torch.zeros(0, 4)))}, "data is empty"),
        ({"epochs": 0}, "epochs must be a whole number ≥ 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number ≥ 1, got 2.5"),
        ({"validation": 1.5}, "between 0 and 1.*got 1.5"),
        ({"patience": 3}, "patience needs validation"),
        ({"keep": "first"}, "keep must be 'best' or 'last'"),
        ({"schedule": "linear"}, "schedule must be"),
        ({"unlabelled": torch.zeros(4, 6)}, "column 'inputs'"),
        ({"stratify": torch.zeros(3, dtype=torch.int64)}, r"stratify must be int64 of shape \[512\]"),
        ({"constraints": dispatch_constraints() * 2}, "two constraints are named 'capacity'"),
        ({"dual": {"capacity": ldf.Fixed(1.0)}}, r"missing: \['balance'\]"),
        ({"model": nn.Identity()}, "no trainable parameters"),
    ],
)
def test_bad_input_is_refused_at_once(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(**options)


def test_pairs_and_groups_that_do_not_fit_the_data_are_refused() -> None:
    far = ldf.inequality("far", lambda y, p: y[0] - y[1], scope=ldf.Pairs(torch.tensor([[0, 600]])))
    with pytest.raises(ValueError, match="'far': a pair has row 600, but the data have 512 rows"):
        fit(ldf.Ascent(0.1), constraints=[far])
    few = ldf.equality("few", lambda y, b: y, scope=ldf.Groups(torch.zeros(7, dtype=torch.int64), 2))
    with pytest.raises(ValueError, match="'few': 7 group labels for 512 rows"):
        fit(ldf.Ascent(0.1), constraints=[few])
    names = ldf.Groups(torch.zeros(512, dtype=torch.int64), 2, names=["women", "men"])
    with pytest.raises(ValueError, match="'one': group 'men' has no training rows"):
        fit(ldf.Ascent(0.1), constraints=[ldf.equality("one", lambda y, b: y, scope=names)])


def test_a_loss_that_is_not_scalar_or_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scalar tensor.*got \[64, 4\]"):
        ldf.fit(network(), dispatch(), loss=lambda y, t: (y - t) ** 2, epochs=1, progress=False)
    with pytest.raises(ValueError, match="task loss is nan"):
        ldf.fit(network(), dispatch(), loss=lambda y, t: mse(y, t) * math.nan, epochs=1, progress=False)


# ---------------------------------------------------------------- callbacks


def test_callbacks_see_every_epoch_and_end_the_training() -> None:
    seen: list[int] = []

    def watch(done: ldf.Fit) -> str:
        assert not done.model.training
        assert done.history.rows[-1]["epoch"] == len(done.history)
        assert set(done.multipliers) == {"capacity", "balance"}
        assert done.doctor()["balance"].constraint == "balance"
        seen.append(len(done.history))
        torch.rand(5)  # random numbers of a callback do not change the training
        return "text is ignored"

    model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.2), nn.Linear(16, 4))
    start = copy.deepcopy(model)
    plain = fit(ldf.Ascent(0.1), model=copy.deepcopy(start), epochs=3)
    watched = fit(ldf.Ascent(0.1), model=copy.deepcopy(start), epochs=3, callbacks=watch)
    assert seen == [1, 2, 3]
    assert torch.equal(weights(plain), weights(watched))
    assert not plain.stopped_early
    assert watched.model.training == plain.model.training
    seen.clear()
    stopped = fit(
        ldf.Ascent(0.1), model=copy.deepcopy(start), epochs=9, callbacks=[watch, lambda done: len(done.history) == 3]
    )
    assert seen == [1, 2, 3]
    assert stopped.stopped_early
    assert (len(stopped.history), stopped.best_epoch) == (3, 3)
    assert torch.equal(weights(stopped), weights(plain))
    early = fit("auto", validation=0.25, epochs=50, callbacks=lambda done: True)
    assert (len(early.history), early.best_epoch) == (1, 1)
    with pytest.raises(TypeError, match="callbacks must be functions of the fit so far, got 3"):
        fit(callbacks=[3])


def test_callbacks_of_stacked_models() -> None:
    """Each run has its own model and label; all end together, once all agree."""
    inputs, targets = dispatch(64)
    seen: list[tuple[int, int, float]] = []

    def watch(done: ldf.Fit) -> bool:
        seen.append((done.label["seed"], len(done.history), float(mse(done.model(inputs), targets))))
        return len(done.history) >= 2 + done.label["seed"]

    options = {"loss": mse, "constraints": dispatch_constraints(), "dual": ldf.Ascent(0.1), "progress": False}
    runs = ldf.fit_many(network, (inputs, targets), seeds=[0, 1], epochs=9, callbacks=watch, **options)
    assert [(seed, epoch) for seed, epoch, _ in seen] == [(seed, epoch) for epoch in (1, 2, 3) for seed in (0, 1)]
    assert all(run.stopped_early and len(run.history) == 3 for run in runs)
    for seed, run in enumerate(runs):
        torch.manual_seed(seed)
        losses: list[float] = []
        ldf.fit(
            network(), (inputs, targets), seed=seed, epochs=3, **options,
            callbacks=lambda done: losses.append(float(mse(done.model(inputs), targets))),
        )  # fmt: skip
        assert [loss for own, _, loss in seen if own == seed] == pytest.approx(losses, rel=1e-4)
        assert float(mse(run.model(inputs), targets).detach()) == pytest.approx(losses[-1], rel=1e-4)

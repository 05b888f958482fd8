"""The Lagrangian in torch.compile, Lightning and distributed training gives the same numbers as a plain loop."""

import re
import warnings
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ldf

ROWS, SIZE, EPOCHS = 32, 8, 4

# Rows whose number is a multiple of four are in group 1; they have even positions in a batch, see `batches`.
LABELS = torch.tensor([int(row % 4 == 0) for row in range(ROWS)])


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, 3, generator=generator, dtype=dtype)
    return inputs, inputs @ torch.randn(3, 2, generator=generator, dtype=dtype) + 0.5


def network(dtype=torch.float64):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).to(dtype)


def sample_constraints():
    return [
        ldf.inequality("whole", lambda y, batch: y - 0.2, slack=0.05),
        ldf.equality("column", lambda y, batch: y - 0.4, multiplier="column"),
        ldf.inequality("row", lambda y, batch: -0.3 - y, multiplier="sample"),
        ldf.equality("signed", lambda y, batch: y[:, :1] - y[:, 1:], degree="satisfiability"),
    ]


def group_constraints():
    # The groups are far apart: a difference near zero could have different signs in different processes.
    def outcome(y, batch):
        return y + 3 * LABELS[batch.ids][:, None]

    return [ldf.equality("parity", outcome, scope=ldf.Groups(LABELS), multiplier="column")]


def batches(epoch):
    """Row numbers of each batch, in a different order each epoch; even rows keep even positions."""
    order = torch.randperm(ROWS // 2, generator=torch.Generator().manual_seed(epoch))
    return torch.stack([2 * order, 2 * order + 1], 1).flatten().split(SIZE)


# ------------------------------------------------------------------------------------------------ torch.compile


@contextmanager
def no_recompilation():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


PAIRS = ldf.Pairs(torch.tensor([[row, (5 * row + 3) % ROWS] for row in range(ROWS)]))


def run(rule, dtype, compiled, prepares):
    """Losses, epoch sums and multipliers over several epochs, with constraints of all three scopes."""
    inputs, targets = data(dtype)
    model = network(dtype)
    constraints = [
        *sample_constraints()[:3],
        ldf.inequality("order", lambda y, batch: (y[0] - y[1]) * batch.weight[:, None], scope=PAIRS),
        ldf.inequality("each", lambda y, batch: y[0, :, :1] - y[1, :, 1:], scope=PAIRS, multiplier="sample"),
        *group_constraints(),
    ]
    lagrangian = ldf.Lagrangian(constraints, rule, rows=ROWS, updates=EPOCHS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def parts(x, target, ids, both, numbers, weight):
        y = model(x)
        pairs = (model(both), ldf.Batch(ids=numbers, weight=weight))
        return (y - target).square().mean(), y, ldf.Batch(ids=ids), pairs

    def step(*columns):
        return lagrangian(*parts(*columns))

    if compiled:
        step = torch.compile(step, fullgraph=True, backend="aot_eager")
    found = []
    for epoch in range(EPOCHS):
        for number, ids in enumerate(batches(epoch)):
            first, second = PAIRS.indices[ids].unbind(1)
            both = torch.stack([inputs[first], inputs[second]])
            columns = (inputs[ids], targets[ids], ids, both, ids, 1 + ids / ROWS)
            if (epoch, number) in prepares:
                lagrangian.prepare(*parts(*columns))
            loss = step(*columns)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
        found += [value.clone() for value in lagrangian.state_dict().values()]
        found.append(torch.tensor(list(lagrangian.ascend().values())))
        found += lagrangian.multipliers.values()
    assert all(bool((value != 0).any()) for value in lagrangian.multipliers.values())
    return found


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        (ldf.Ascent(1e-2), torch.float32),
        (ldf.Ascent(1e-2), torch.float64),
        (ldf.Balanced(), torch.float32),
        ("auto", torch.float32),
    ],
    ids=str,
)
def test_compiled_step_is_one_graph_and_agrees_with_eager(rule, dtype):
    # Ascent measures before updates 0, 1, 2, 4, …, the others before every one.
    measures = (ldf.Automatic() if rule == "auto" else rule).measures
    prepares = {(epoch, 0) for epoch in range(EPOCHS) if measures(epoch)}
    expected = run(rule, dtype, compiled=False, prepares=set())
    with no_recompilation():
        found = run(rule, dtype, compiled=True, prepares=prepares)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("rule", [ldf.Ascent(1e-2), ldf.Balanced(), ldf.Ascent(1e-2, normalise=False)], ids=repr)
def test_unprepared_compiled_step_raises_with_the_remedy(rule):
    with no_recompilation(), pytest.raises(Exception, match=r"call lagrangian\.prepare\(loss, predictions, batch\)"):
        run(rule, torch.float32, compiled=True, prepares=set())


@pytest.mark.parametrize("rule", [ldf.Ascent(1e-2), ldf.Balanced()], ids=repr)
def test_task_loss_compiled_separately(rule):
    """A function compiled by torch.compile can be differentiated only once."""
    inputs, targets = data()
    loss = torch.compile(lambda y, target: (y - target).square().mean(), fullgraph=True, backend="aot_eager")
    lagrangian = ldf.Lagrangian(sample_constraints(), rule, rows=ROWS, updates=EPOCHS)
    y = network()(inputs)
    total = lagrangian(loss(y, targets), y, ldf.Batch(ids=torch.arange(ROWS)))
    total.backward()
    assert total.item() == pytest.approx((y - targets).square().mean().item())
    lagrangian.ascend()


def test_prepare_adds_nothing_to_the_sums():
    inputs, targets = data()
    model = network()
    lagrangian = ldf.Lagrangian(sample_constraints() + group_constraints(), ldf.Ascent(1e-2), rows=ROWS)
    ids = torch.arange(SIZE)
    y = model(inputs[ids])
    lagrangian.prepare((y - targets[ids]).square().mean(), y, ldf.Batch(ids=ids))
    with pytest.raises(RuntimeError, match="without a batch"):
        lagrangian.ascend()
    for block in lagrangian.blocks:
        for name in ("sums", "visits", "violations", "maxima", "count", "group_sums", "group_counts"):
            assert getattr(block, name, torch.zeros(())).abs().sum() == 0, name


# ------------------------------------------------------------------------------------------------ Lightning


def by_hand(rule, epochs=EPOCHS):
    """Weights, multipliers and history of a hand-written loop, over batches in row order."""
    inputs, targets = data()
    model = network()
    lagrangian = ldf.Lagrangian(sample_constraints() + group_constraints(), rule, rows=ROWS, updates=EPOCHS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for _ in range(epochs):
        for ids in torch.arange(ROWS).split(SIZE):
            y = model(inputs[ids])
            lagrangian((y - targets[ids]).square().mean(), y, ldf.Batch(ids=ids)).backward()
            optimizer.step()
            optimizer.zero_grad()
        history.append(lagrangian.ascend())
    return model.state_dict(), lagrangian.multipliers, history


def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pytorch_lightning
    return pytorch_lightning


def lightning_module(rule):
    pl = lightning()

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()
            constraints = sample_constraints() + group_constraints()
            self.lagrangian = ldf.Lagrangian(constraints, rule, rows=ROWS, updates=EPOCHS)
            self.history, self.validated = [], 0

        def loss(self, batch):
            x, target, ids = batch
            y = self.model(x)
            return self.lagrangian((y - target).square().mean(), y, ldf.Batch(ids=ids))

        def training_step(self, batch, index):
            return self.loss(batch)

        def validation_step(self, batch, index):
            before = {name: value.clone() for name, value in self.lagrangian.state_dict().items()}
            loss = self.loss(batch)
            assert not self.lagrangian.training
            assert bool(torch.isfinite(loss))
            after = self.lagrangian.state_dict()
            assert all(torch.equal(value, after[name]) for name, value in before.items())
            self.validated += 1

        def on_train_epoch_end(self):
            self.history.append(self.lagrangian.ascend())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    return Module()


def fit(module, folder, epochs=EPOCHS, sanity=0, checkpoint=None):
    pl = lightning()
    inputs, targets = data()
    rows = torch.utils.data.TensorDataset(inputs, targets, torch.arange(ROWS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on workers and logging intervals
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=sanity,
            default_root_dir=folder,
        )
        loaders = [torch.utils.data.DataLoader(rows, batch_size=SIZE, shuffle=False) for _ in range(2)]
        trainer.fit(module, *loaders, ckpt_path=checkpoint)
    return trainer


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", [ldf.Ascent(0.02, normalise=False), ldf.Ascent(1e-2), ldf.Balanced()], ids=repr)
def test_lightning_gives_the_numbers_of_a_plain_loop(rule, tmp_path):
    weights, multipliers, history = by_hand(rule)
    module = lightning_module(rule)
    fit(module, tmp_path)
    assert module.validated == EPOCHS * ROWS // SIZE
    assert_same(module.model.state_dict(), weights)
    assert_same(module.lagrangian.multipliers, multipliers)
    assert len(module.history) == EPOCHS
    for ours, theirs in zip(module.history, history, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("rule", [ldf.Ascent(1e-2), ldf.Balanced()], ids=repr)
def test_lightning_checkpoint_restores_the_multipliers(rule, tmp_path):
    weights, multipliers, history = by_hand(rule)
    first = lightning_module(rule)
    file = tmp_path / "half.ckpt"
    fit(first, tmp_path, epochs=EPOCHS // 2).save_checkpoint(file)

    plain = lightning_module(rule)
    plain.load_state_dict(torch.load(file, weights_only=False)["state_dict"])
    for name, value in first.lagrangian.multipliers.items():
        assert torch.equal(plain.lagrangian.multipliers[name], value), name

    second = lightning_module(rule)
    fit(second, tmp_path, checkpoint=file)
    assert_same(second.model.state_dict(), weights)
    assert_same(second.lagrangian.multipliers, multipliers)
    assert second.history[-1] == pytest.approx(history[-1], rel=1e-9, abs=1e-12)


def test_lightning_sanity_check_comes_before_training(tmp_path):
    """Lightning validates two batches in inference mode before the first training step, by default."""
    rule = ldf.Ascent(1e-2)
    weights, multipliers, _ = by_hand(rule)
    module = lightning_module(rule)
    fit(module, tmp_path, sanity=2)
    assert module.validated == EPOCHS * ROWS // SIZE + 2
    assert_same(module.model.state_dict(), weights)
    assert_same(module.lagrangian.multipliers, multipliers)


# ------------------------------------------------------------------------------------------------ distributed


class Whole(nn.Module):
    """Model and Lagrangian in one module that outputs the loss, as Lightning wraps them."""

    def __init__(self, model, lagrangian):
        super().__init__()
        self.model, self.lagrangian = model, lagrangian

    def forward(self, x, target, ids):
        y = self.model(x)
        return self.lagrangian((y - target).square().mean(), y, ldf.Batch(ids=ids))


def all_constraints():
    return sample_constraints() + group_constraints()


SCENARIOS = {
    "samples": (sample_constraints, ldf.Ascent(0.005, normalise=False)),
    "groups": (group_constraints, ldf.Ascent(0.1, normalise=False)),
    "groups, watched": (group_constraints, ldf.Ascent(0.1, normalise=False)),
    "one module": (sample_constraints, ldf.Ascent(0.005, normalise=False)),
    "normalised": (all_constraints, ldf.Ascent(1e-2)),
    "auto": (all_constraints, ldf.Balanced()),
    "broadcast": (sample_constraints, ldf.Ascent(0.005, normalise=False)),
}


def train(scenario, rank=0, world=1):
    """Multipliers and history after every epoch; of each batch, a process gets every world-th row."""
    make, rule = SCENARIOS[scenario]
    inputs, targets = data()
    model = network()
    lagrangian = ldf.Lagrangian(make(), rule, rows=ROWS, updates=EPOCHS)
    together = scenario in ("one module", "broadcast")
    if together:  # as after a restart, the buffers exist when the module is wrapped
        y = model(inputs)
        lagrangian.prepare((y - targets).square().mean(), y, ldf.Batch(ids=torch.arange(ROWS)))
    module = Whole(model, lagrangian) if together else model
    if world > 1:
        warnings.simplefilter("ignore", FutureWarning)  # the option is being renamed
        module = DistributedDataParallel(module, broadcast_buffers=scenario != "one module")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for epoch in range(EPOCHS):
        for batch in batches(epoch):
            ids = batch[rank::world]
            x, target = inputs[ids], targets[ids]
            if together:
                loss = module(x, target, ids)
            else:
                y = module(x)
                task = (y - target).square().mean()
                loss = lagrangian(task, y, ldf.Batch(ids=ids))
                if scenario == "groups, watched":
                    loss = task
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        row = {name: torch.tensor(value) for name, value in lagrangian.ascend().items()}
        found.append({**lagrangian.multipliers, **row})
    return found


def process(rank, world, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world, timeout=timedelta(seconds=30)
    )
    found = {}
    for name in SCENARIOS:
        try:
            found[name] = train(name, rank, world)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            break
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Results of two processes in every scenario."""
    folder = tmp_path_factory.mktemp("processes")
    torch.multiprocessing.spawn(process, args=(2, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def assert_multipliers_of_one_process(found, scenario):
    expected = train(scenario)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            if name.startswith("excess"):  # a multiple of the tolerance, which each process measures on its own rows
                continue
            torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-9, msg=lambda text: f"{name}: {text}")
    for constraint in SCENARIOS[scenario][0]():
        assert bool((expected[-1][constraint.name] != 0).any()), constraint.name


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "broadcast"])
def test_all_processes_hold_the_same_multipliers(processes, scenario):
    first, second = (found[scenario] for found in processes)
    assert len(first) == len(second) == EPOCHS
    for ours, theirs in zip(first, second, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("scenario", ["samples", "groups", "groups, watched", "one module"])
def test_two_processes_find_the_multipliers_of_one(processes, scenario):
    assert_multipliers_of_one_process(processes[0][scenario], scenario)


def test_broadcast_buffers_give_no_wrong_sums(processes):
    """DistributedDataParallel broadcasts the buffers of rank 0 by default: sums are correct, or an error is raised."""
    for found in processes:
        if isinstance(found["broadcast"], str):
            assert re.search(r"RuntimeError.*(broadcast|sync)_buffers=False", found["broadcast"])
        else:
            assert_multipliers_of_one_process(found["broadcast"], "broadcast")


def test_one_process_has_no_rows_of_a_group():
    for epoch in range(EPOCHS):
        rows = torch.stack(batches(epoch))
        assert set(LABELS[rows[:, 0::2]].flatten().tolist()) == {0, 1}
        assert set(LABELS[rows[:, 1::2]].flatten().tolist()) == {0}

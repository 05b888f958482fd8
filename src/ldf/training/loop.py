"""`fit`: Algorithms 1 and 2 of the paper in one loop, with validation, checkpoints and a history.

    λ⁰ ← 0, μ⁰ ← 0
    for epoch k = 0, 1, …
        for each batch:  w ← w − α ∇_w [ L + Σ λᵏ ν(g) + Σ μᵏ ν(h) ]
        λᵏ⁺¹ ← λᵏ + s_k Σ_l ν(g(ŷ_l)),   μᵏ⁺¹ ← μᵏ + t_k ν(h(ŷ_S))

The loop is the same for one model and for many stacked ones (`replicas.py`): an engine holds the weights and the
Lagrangians, a run holds one model's rows, seed, history and best iterate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data
from ..core.certificate import Certificate, certify
from ..core.constraint import Constraint, check_names
from ..core.doctor import Diagnosis, doctor
from ..core.dual import Ascent, Dual, Fixed
from ..core.history import History
from ..core.lagrangian import Lagrangian, pool
from ..core.scopes import Pairs
from ..io.text import Progress, number
from .engine import PREDICT_ROWS, Engine, Single, compiling, evaluating
from .resume import Run, Saved, shapes
from .task import Forward, Labelled, LoaderTask, Loss, MakeSchedule, Metric, Settings, Task

MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]


@dataclass
class Fit:
    """A trained model and what is known of it."""

    model: nn.Module
    lagrangian: Lagrangian
    history: History
    best_epoch: int
    """The epoch, from 1, whose weights the model has."""
    stopped_early: bool = False
    held_out: Tensor | None = None
    """The rows of the data set that were not trained on."""
    conflicts: dict[tuple[str, str], float] = field(default_factory=dict)
    """Cosine between the gradients of two constraints' violations, where both are violated."""
    label: dict[str, Any] = field(default_factory=dict)
    """Which of many this is: its seed, dual and fold."""

    def __repr__(self) -> str:
        names = ", ".join(constraint.name for constraint in self.lagrangian.constraints)
        return f"Fit({len(self.history)} epochs, best {self.best_epoch}, constraints: {names or 'none'})"

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """λ and μ by name, as they stood at the end of training."""
        return self.lagrangian.multipliers

    def doctor(self) -> Diagnosis:
        """In plain sentences: which constraint holds, stalls, oscillates or looks infeasible, and what to change."""
        rules = dict(zip(self.lagrangian.tolerances, self.lagrangian.rules, strict=True))
        return doctor(self.history, self.lagrangian.tolerances, rules=rules, conflicts=self.conflicts)

    def certify(self, predictions: Any, batch: Any, tolerance: float | Mapping[str, float] = 1e-4) -> Certificate:
        """Per constraint: largest and mean ν and the share of rows violated beyond the tolerance."""
        return self.lagrangian.certify(predictions, batch, tolerance)

    def report(self, path: str | Path, title: str = "A model under constraints") -> Path:
        """Write one HTML page: the doctor's findings, and loss, violations and multipliers over the epochs."""
        from ..viewing.report import report

        return report(self, path, title)


def fit(
    model: nn.Module,
    data: Labelled | Iterable[Any],
    *,
    loss: Loss,
    constraints: Iterable[Constraint] = (),
    dual: Dual | Mapping[str, Dual] | None = Ascent(),  # noqa: B008  # frozen
    epochs: int = 80,
    batch_size: int = 64,
    lr: float = 1e-3,
    optimizer: MakeOptimizer | None = None,
    schedule: Literal["cosine"] | MakeSchedule | None = None,
    validation: float | Labelled | None = None,
    keep: Literal["best", "last"] = "best",
    patience: int | None = None,
    metrics: Mapping[str, Metric] | None = None,
    unlabelled: Tensor | Mapping[str, Tensor] | None = None,
    stratify: Tensor | None = None,
    update_every: int | None = None,
    ascend_on: Literal["training", "held-out"] = "training",
    forward: Forward | None = None,
    seed: int = 0,
    compile: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | None = None,
) -> Fit:
    """Train a model under constraints by Lagrangian duality: Algorithm 1 and, with pairs or groups, Algorithm 2.

    Args:
        model: any module; trained in place, on the device it is on.
        data: (inputs, targets), or a mapping with these and columns of your own, in memory; or a DataLoader that yields
            (inputs, targets), (inputs, targets, ids) or mappings.
        loss: (predictions, targets) → scalar.
        constraints: made by `inequality` and `equality`.
        dual: the rule that moves the multipliers, or one for each constraint's name; by default `Ascent(step="auto")`,
            which needs no tuning. None watches the constraints and enforces none (the paper's M).
        epochs: passes over the data.
        batch_size: rows per step, for data in memory.
        lr: of Adam, the default optimiser.
        optimizer: parameters → optimiser.
        schedule: "cosine", or (optimiser, number of all steps) → scheduler; it is stepped after every batch.
        validation: the share of the data to hold out, or labelled data of their own; looked at after every epoch.
        keep: with validation, the "best" iterate by feasibility first, then loss, or the "last" one.
        patience: stop after this many epochs without a better iterate; needs validation.
        metrics: by name, (predictions, batch) → number: looked at on the held-out rows after every epoch, and found in
            the history as val/name.
        unlabelled: inputs without targets (or a mapping of columns), on which the constraints are enforced too. They
            are numbered after the labelled rows.
        stratify: [n] int64: every batch holds every group, however rare.
        update_every: update the multipliers every so many steps, and at the end of an epoch; by default only then.
        ascend_on: by whose violations: those of the rows that were "training" the model since the last update, or the
            "held-out" ones, where a model keeps constraints on rows that it knows and breaks them on others.
        forward: (model, batch) → predictions; by default model(batch.inputs).
        seed: of batches, held-out rows and everything random in the model.
        compile: compile the step with torch.compile.
        checkpoint: a folder; a run that finds its own checkpoint there goes on from it, bit for bit as if never
            stopped.
        checkpoint_seconds: how often to write it; also written at the end.
        progress: True or False; by default on a terminal only.

    >>> import ldf
    >>> inputs = torch.rand(256, 3, generator=torch.Generator().manual_seed(0))
    >>> model = nn.Linear(3, 3)
    >>> balance = ldf.equality("balance", lambda y, batch: y.sum(1, keepdim=True) - 1)
    >>> done = fit(model, (inputs, inputs), loss=nn.functional.mse_loss, constraints=[balance], epochs=3)
    >>> len(done.history), sorted(done.multipliers)
    (3, ['balance'])
    """
    constraints = check_names(constraints)
    settings = Settings(
        loss=loss,
        constraints=constraints,
        epochs=epochs,
        batch_size=batch_size,
        schedule=schedule,
        keep=keep,
        patience=patience,
        update_every=update_every,
        forward=forward or call_on_inputs,
        checkpoint_seconds=checkpoint_seconds,
        ascend_on=ascend_on,
        metrics=dict(metrics or {}),
    )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter to train")
    device = parameters[0].device
    task: Task | LoaderTask
    if isinstance(data, Mapping) or (isinstance(data, tuple | list) and all(isinstance(d, Tensor) for d in data)):
        task = Task(settings, Data(data, unlabelled).to(device), validation, stratify, [seed])
    else:
        task = LoaderTask(settings, data, validation, unlabelled, stratify, device)
    lagrangian = Lagrangian(constraints, dual, rows=task.rows, updates=epochs * task.updates_per_epoch)
    engine = Single(settings, model, lagrangian, task, compile)
    make = optimizer or adam(lr)
    facts = {"model": shapes(model), "lr": lr, "seed": seed, "dual": [repr(rule) for rule in lagrangian.rules]}
    with own_random_numbers(seed, device), compiling(compile):
        return train(engine, task, make(parameters), [seed], checkpoint, progress, facts)[0]


def train(
    engine: Engine,
    task: Task | LoaderTask,
    optimizer: torch.optim.Optimizer,
    seeds: Sequence[int],
    folder: str | Path | None,
    progress: bool | None,
    facts: Mapping[str, Any],
    teams: Sequence[Sequence[int]] = (),
) -> list[Fit]:
    """The loop itself: epochs, batches, the ascent, validation, checkpoints.

    Args:
        teams: which runs ascend together, by what all of them saw; by default each for itself.
    """
    settings = task.settings
    if settings.ascend_on == "held-out":
        _check_held_out(task)
    if settings.metrics and not task.validates:
        raise ValueError("metrics are of rows held out: say validation=0.2, or give labelled data of their own")
    runs = [Run() for _ in seeds]
    scheduler = settings.scheduler(optimizer, settings.epochs * task.steps)
    saved = None
    if folder is not None:
        saved = Saved(Path(folder) / "checkpoint.safetensors", engine, task, optimizer, scheduler, runs, facts)
    epoch, done, rows, stopped = saved.resume() if saved else (0, 0, [[] for _ in runs], False)
    line = Progress(settings.epochs, "epoch", progress, done=epoch)
    while epoch < settings.epochs and not stopped:
        begun = time.monotonic()
        if saved and done == 0:
            saved.begin_epoch()
        handed = 0
        for index, step in enumerate(_steps(task, engine.stacked, len(runs), epoch)):
            handed += 1
            if index < done:
                continue
            if saved and index == done and done > 0:
                saved.restore_random()
            engine.measure(step)
            optimizer.zero_grad(set_to_none=True)
            engine.backward(step)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            last = index + 1 == task.steps
            if last or (settings.update_every and (index + 1) % settings.update_every == 0):
                if settings.ascend_on == "held-out":
                    _observe(engine, task, teams)
                for kept, lagrangian in zip(rows, engine.lagrangians, strict=True):
                    kept.append(lagrangian.ascend())
            if saved and not last and saved.due():
                saved.write(epoch, index + 1, rows, False)
        if handed != task.steps:
            raise ValueError(f"the loader has a length of {task.steps}, but handed out {handed} batches")
        lr = float(optimizer.param_groups[0]["lr"])
        seconds = time.monotonic() - begun
        checks = _validate(engine, task) if task.validates else None
        for index, run in enumerate(runs):
            row = {**_merge(rows[index]), "lr": lr, "seconds": seconds}
            if checks:
                row |= checks[index]
            run.history.append(row)
            _select(run, engine, index, settings, checks is not None)
        rows = [[] for _ in runs]
        done = 0
        epoch += 1
        if settings.patience and engine.lagrangians[0].settled():
            since = epoch - (runs[0].best_epoch or epoch)
            stopped = since >= settings.patience
        if saved and (saved.due() or stopped or epoch == settings.epochs):
            saved.write(epoch, 0, rows, stopped)
        line.update(settings.epochs if stopped else epoch, lambda: _note(runs[0].history))
    return [_finish(engine, task, run, index, stopped) for index, run in enumerate(runs)]


def _steps(task: Task | LoaderTask, stacked: bool, runs: int, epoch: int) -> Iterable[Any]:
    """The steps of an epoch; for a stacked engine those of all runs, [R, …]."""
    if not stacked or isinstance(task, LoaderTask):
        return task.plan(0, epoch)
    plans = [task.plan(run, epoch) for run in range(runs)]
    steps = []
    for together in zip(*plans, strict=True):
        names = dict.fromkeys(name for step in together for name in step)
        steps.append({name: _even(name, [step.get(name) for step in together]) for name in names})
    return steps


def _even(name: str, parts: Sequence[Tensor | None]) -> Tensor:
    """Pairs are filled up with −1, which counts for nothing; rows are cut to the shortest."""
    found = [part if part is not None else torch.zeros(0, dtype=torch.int64) for part in parts]
    if name.startswith("pairs/"):
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)
    shortest = min(len(part) for part in found)
    return torch.stack([part[:shortest] for part in found])


def _merge(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The rows of an epoch's updates as one: means of means, the largest maximum, the last multiplier."""
    merged = dict(rows[-1])
    for name in merged:
        if name.startswith("nu_max/"):
            merged[name] = max(row[name] for row in rows)
        elif not name.startswith("lambda"):
            merged[name] = sum(row[name] for row in rows) / len(rows)
    return merged


def _check_held_out(task: Task | LoaderTask) -> None:
    """Refuse what has no row to ascend by."""
    if not task.validates:
        raise ValueError("ascend_on='held-out' needs rows held out: say validation=0.2, or folds=5 with fit_many")
    for constraint in task.settings.constraints:
        if isinstance(constraint.scope, Pairs) or constraint.multiplier == "sample":
            raise ValueError(
                f"constraint {constraint.name!r}: its multipliers belong to rows that are trained on: it cannot go "
                "with ascend_on='held-out'"
            )


def _observe(engine: Engine, task: Task | LoaderTask, teams: Sequence[Sequence[int]]) -> None:
    """Show every Lagrangian its held-out rows, and those of its team."""
    data = task.check
    assert data is not None
    for run, predictions in enumerate(engine.predict(data, task.held_out)):
        batch = data.take(task.held_out[run], targets=True)
        engine.lagrangians[run].observe(predictions, batch)
    for team in teams:
        pool([engine.lagrangians[run] for run in team])


def _validate(engine: Engine, task: Task | LoaderTask) -> list[dict[str, float]]:
    """Loss and every ν on each run's held-out rows."""
    data, settings = task.check, task.settings
    assert data is not None
    found = []
    for run, predictions in enumerate(engine.predict(data, task.held_out)):
        batch = data.take(task.held_out[run])
        row = {"val_loss": float(settings.loss(predictions, batch.targets))}
        lagrangian = engine.lagrangians[run]
        # Pairs are rows of the training data: on data of their own there is none to look at.
        checked = [c for c in settings.constraints if not (task.separate and isinstance(c.scope, Pairs))]
        for finding in certify(checked, predictions, batch, k=int(lagrangian.updates)).findings:
            row[f"val_nu_mean/{finding.constraint}"] = finding.mean
            row[f"val_nu_max/{finding.constraint}"] = finding.max
        for name, metric in settings.metrics.items():
            row[f"val/{name}"] = float(metric(predictions, batch))
        found.append(row)
    return found


def _select(run: Run, engine: Engine, index: int, settings: Settings, validated: bool) -> None:
    """Keep this iterate if it is the best: by feasibility first, then loss, once the multipliers are at work."""
    epoch = len(run.history)
    if settings.keep == "last" or not validated:
        run.best_epoch = epoch
        return
    lagrangian = engine.lagrangians[index]
    if not lagrangian.settled() and epoch < settings.epochs:
        return
    row = run.history.rows[-1]
    excess = 0.0
    for name, tolerance in lagrangian.tolerances.items():
        mean = row.get(f"val_nu_mean/{name}", math.nan)
        if mean > tolerance:  # false for NaN: nothing to look at
            excess += mean / tolerance - 1
    enforced = any(rule != Fixed(0.0) for rule in lagrangian.rules)
    score = (excess if enforced else 0.0, row["val_loss"])
    if run.best is None or score < run.score:
        run.best = {name: value.detach().clone() for name, value in engine.weights(index).items()}
        run.best_epoch, run.score = epoch, score


def _note(history: History) -> str:
    row = history.rows[-1]
    note = f"loss {number(row['loss'])}"
    if history.constraints:
        worst = max(history.constraints, key=lambda name: row[f"nu_mean/{name}"])
        note += f"  ν {worst} {number(row[f'nu_mean/{worst}'])} (λ {number(row[f'lambda/{worst}'])})"
    return note


def _finish(engine: Engine, task: Task | LoaderTask, run: Run, index: int, stopped: bool) -> Fit:
    lagrangian = engine.lagrangians[index]
    model = engine.finish(index, run.best)
    conflicts = {}
    if len(lagrangian.constraints) > 1 and isinstance(task, Task):
        rows = task.training[index][:PREDICT_ROWS]
        with torch.no_grad(), evaluating(model):
            predictions = task.settings.forward(model, task.data.take(rows, targets=False))
        conflicts = lagrangian.conflicts(predictions, task.data.take(rows))
    held_out = task.held_out[index] if isinstance(task, Task) and task.validates and not task.separate else None
    return Fit(model, lagrangian, run.history, run.best_epoch, stopped, held_out, conflicts)


def adam(lr: float) -> MakeOptimizer:
    """Adam, in its fused form where the weights' device has it: the same steps in one pass over the weights."""

    def make(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
        return torch.optim.Adam(parameters, lr=lr, fused=fused)

    return make


def call_on_inputs(model: nn.Module, batch: Batch) -> Any:
    """The default way to predict."""
    return model(batch.inputs)


@contextmanager
def own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seeded random numbers inside, the caller's own again outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

"""`fit`: one model trained under constraints, and what is known of it afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Data
from ..core.certificate import TOLERANCE, Certificate, Tolerance
from ..core.constraint import Constraint, check_names
from ..core.doctor import Diagnosis, doctor
from ..core.dual import Rules
from ..core.history import History
from ..core.lagrangian import Lagrangian
from ..viewing.report import report
from .engine import PREDICT_ROWS, Engine, Single, compiling, evaluating
from .loop import Loop
from .resume import Run, shapes
from .settings import Forward, Labelled, Loss, MakeOptimizer, MakeSchedule, Metric, Settings, Unlabelled, call_on_inputs
from .task import LoaderTask, Task


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

    def certify(self, predictions: Any, batch: Any, tolerance: Tolerance = TOLERANCE) -> Certificate:
        """Per constraint: largest and mean ν and the share of rows violated beyond the tolerance."""
        return self.lagrangian.certify(predictions, batch, tolerance)

    def report(self, path: str | Path, title: str = "A model under constraints") -> Path:
        """Write one HTML page: the doctor's findings, and loss, violations and multipliers over the epochs."""
        return report(self, path, title)


def fit(
    model: nn.Module,
    data: Labelled | Iterable[Any],
    *,
    loss: Loss,
    constraints: Iterable[Constraint] = (),
    dual: Rules = "auto",
    epochs: int = 80,
    batch_size: int = 64,
    lr: float = 1e-3,
    optimizer: MakeOptimizer | None = None,
    schedule: Literal["cosine"] | MakeSchedule | None = None,
    validation: float | Labelled | None = None,
    keep: Literal["best", "last"] = "best",
    patience: int | None = None,
    metrics: Mapping[str, Metric] | None = None,
    unlabelled: Unlabelled | None = None,
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
        dual: the rule that moves the multipliers, or one for each constraint's name; "auto" is `Balanced()`, which
            needs no tuning. None watches the constraints and enforces none (the paper's M).
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
    settings = Settings(
        loss=loss,
        constraints=check_names(constraints),
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        optimizer=optimizer,
        schedule=schedule,
        validation=validation,
        keep=keep,
        patience=patience,
        metrics=dict(metrics or {}),
        unlabelled=unlabelled,
        stratify=stratify,
        update_every=update_every,
        ascend_on=ascend_on,
        forward=forward or call_on_inputs,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
    )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter to train")
    device = parameters[0].device
    task: Task | LoaderTask
    if isinstance(data, Mapping) or (isinstance(data, tuple | list) and all(isinstance(d, Tensor) for d in data)):
        task = Task(settings, Data(data, unlabelled).to(device), [seed])
    else:
        task = LoaderTask(settings, data, device)
    lagrangian = Lagrangian(settings.constraints, dual, rows=task.rows, updates=epochs * task.updates_per_epoch)
    engine = Single(settings, model, lagrangian, task, compile)
    facts = {"model": shapes(model), "lr": lr, "seed": seed, "dual": [repr(rule) for rule in lagrangian.rules]}
    with own_random_numbers(seed, device), compiling(compile):
        return trained(Loop(engine, task, settings.optimizer_of(parameters), facts))[0]


def trained(loop: Loop) -> list[Fit]:
    """Run a loop to its end: a fit for each of its models."""
    loop.train()
    return [_finish(loop.engine, loop.task, run, index, loop.place.stopped) for index, run in enumerate(loop.runs)]


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


@contextmanager
def own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seeded random numbers inside, the caller's own again outside."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

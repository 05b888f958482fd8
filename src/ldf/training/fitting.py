"""`fit`: train one model under constraints."""

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
    """A trained model with its Lagrangian, history and diagnostics."""

    model: nn.Module
    lagrangian: Lagrangian
    history: History
    best_epoch: int
    """Epoch, counted from 1, whose weights the model has."""
    stopped_early: bool = False
    held_out: Tensor | None = None
    """Row numbers of the data set that were held out of training."""
    conflicts: dict[tuple[str, str], float] = field(default_factory=dict)
    """Cosine between the gradients of two constraints' violations, for pairs that are both violated."""
    label: dict[str, Any] = field(default_factory=dict)
    """Seed, dual rule and fold of this run, set by `fit_many`."""

    def __repr__(self) -> str:
        names = ", ".join(constraint.name for constraint in self.lagrangian.constraints)
        return f"Fit({len(self.history)} epochs, best {self.best_epoch}, constraints: {names or 'none'})"

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """λ and μ by name at the end of training."""
        return self.lagrangian.multipliers

    def doctor(self) -> Diagnosis:
        """Diagnose which constraints are satisfied, stall, oscillate or look infeasible, and suggest changes."""
        rules = dict(zip(self.lagrangian.tolerances, self.lagrangian.rules, strict=True))
        return doctor(self.history, self.lagrangian.tolerances, rules=rules, conflicts=self.conflicts)

    def certify(self, predictions: Any, batch: Any, tolerance: Tolerance = TOLERANCE) -> Certificate:
        """Per constraint: largest and mean ν, and the share of rows that violate it beyond the tolerance."""
        return self.lagrangian.certify(predictions, batch, tolerance)

    def report(self, path: str | Path, title: str = "A model under constraints") -> Path:
        """Write an HTML page with the doctor's findings and plots of loss, violations and multipliers."""
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
        model: any module; trained in place, on its current device.
        data: (inputs, targets), or a mapping with these and any further columns, in memory; or a DataLoader that yields
            (inputs, targets), (inputs, targets, ids) or mappings.
        loss: (predictions, targets) → scalar.
        constraints: created with `inequality` and `equality`.
        dual: the rule that updates the multipliers, or a mapping from constraint names to rules; "auto" is
            `Balanced()`, which needs no tuning. None records the constraints without enforcing them (the paper's M).
        epochs: passes over the data.
        batch_size: rows per step, for data in memory.
        lr: learning rate of Adam, the default optimiser.
        optimizer: parameters → optimiser.
        schedule: "cosine", or (optimiser, total number of steps) → scheduler; it is stepped after every batch.
        validation: fraction of the data to hold out, or separate labelled data; evaluated after every epoch.
        keep: with validation, keep the "best" iterate (by feasibility first, then loss) or the "last" one.
        patience: stop after this many epochs without a better iterate; needs validation.
        metrics: (predictions, batch) → number, by name; evaluated on the held-out rows after every epoch and stored in
            the history as val/name.
        unlabelled: inputs without targets (or a mapping of columns) on which the constraints are enforced too. Their
            row numbers follow those of the labelled rows.
        stratify: [n] int64 group of each row; every batch then contains every group, however rare.
        update_every: update the multipliers every this many steps, and at the end of an epoch; by default only then.
        ascend_on: which violations update the multipliers: those of the "training" rows since the last update, or those
            of the "held-out" rows, for models that satisfy constraints on training rows and violate them on others.
        forward: (model, batch) → predictions; by default model(batch.inputs).
        seed: random seed for batches, held-out rows and the model's own randomness.
        compile: compile the step with torch.compile.
        checkpoint: a folder; a run that finds its own checkpoint there resumes from it, with bit-identical results.
        checkpoint_seconds: seconds between checkpoints; one is also written at the end.
        progress: whether to show progress; by default only on a terminal.

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
        raise ValueError("the model has no trainable parameters")
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
    """Run a loop to its end and return a fit for each model."""
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
    """Seed torch's random numbers inside the block and restore the caller's state afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

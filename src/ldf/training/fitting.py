"""`fit`: train one model under constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data, Rows, as_batch, in_memory
from ..core.certificate import Certificate, Tolerance, limits
from ..core.constraint import Constraint, check_names
from ..core.doctor import Diagnosis, doctor
from ..core.dual import Rules, rules_for
from ..core.history import History
from ..core.lagrangian import Lagrangian
from ..core.repair import TOLERANCE as REPAIRED
from ..core.repair import Repaired, repair
from ..viewing.report import report
from .engine import Single, evaluating
from .loop import Loop
from .resume import shapes
from .settings import Forward, Loss, MakeOptimizer, MakeSchedule, Metric, Settings, Unlabelled, call_on_inputs
from .task import LoaderTask, Task, plan_updates


@dataclass
class Fit:
    """A trained model with its Lagrangian, history and diagnostics."""

    model: nn.Module
    lagrangian: Lagrangian
    history: History
    best_epoch: int
    """Epoch, counted from 1, whose weights the model has."""
    stopped_early: bool = False
    """Whether patience or a callback ended the training."""
    held_out: Tensor | None = None
    """Row numbers of the data set that were held out of training."""
    conflicts: dict[tuple[str, str], float] = field(default_factory=dict)
    """Cosine between the gradients of two constraints' violations, for pairs that are both violated."""
    label: dict[str, Any] = field(default_factory=dict)
    """Seed, dual rule and fold of this run, set by `fit_many`."""
    forward: Forward = call_on_inputs
    """(model, batch) → predictions, as given to `fit`."""
    sample: Batch | None = None
    """Some training rows, on which the doctor finds out whether the constraints can be satisfied."""

    def __repr__(self) -> str:
        names = ", ".join(constraint.name for constraint in self.lagrangian.constraints)
        return f"Fit({len(self.history)} epochs, best {self.best_epoch}, constraints: {names or 'none'})"

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """λ and μ by name at the end of training."""
        return self.lagrangian.multipliers

    def doctor(self, tolerance: float | Mapping[str, float] | None = None) -> Diagnosis:
        """Diagnose which constraints are satisfied, stall, oscillate or are infeasible, and suggest changes.

        If a constraint is violated, some training rows are repaired to find out whether it can be satisfied at all.

        Args:
            tolerance: a mean ν up to this counts as satisfied, in σ's units: one number, or a mapping by name. By
                default the tolerances of training, per column.
        """
        history, tolerances = self.history, self.lagrangian.tolerances
        rules = dict(zip(tolerances, self.lagrangian.rules, strict=True))
        if tolerance is not None:
            tolerances = {name: float(limit) for name, limit in limits(tolerance, self.lagrangian.constraints).items()}
            history = History({k: v for k, v in row.items() if not k.startswith("excess/")} for row in history.rows)
        found = doctor(history, tolerances, rules=rules, conflicts=self.conflicts)
        if not found.open or self.sample is None:
            return found
        evidence = self.lagrangian.evidence(self._predict(self.sample), self.sample, tolerance)
        return doctor(history, tolerances, rules=rules, conflicts=self.conflicts, evidence=evidence)

    def certify(self, predictions: Any, batch: Any, tolerance: Tolerance | None = None) -> Certificate:
        """Per constraint: largest and mean ν, and the share of rows that violate it beyond the tolerance.

        By default the tolerance is that of training, which the doctor uses too: see `Lagrangian.certify`.
        """
        return self.lagrangian.certify(predictions, batch, tolerance)

    def repair(
        self,
        data: Tensor | Mapping[str, Tensor] | Batch,
        *,
        tolerance: Tolerance = REPAIRED,
        iterations: int = 100,
        dtype: torch.dtype = torch.float64,
    ) -> Repaired:
        """Predict, move the predictions the least distance onto the constraints, and certify them: see `ldf.repair`.

        Args:
            data: inputs, or all columns that the constraints use; with `ids` if a constraint looks rows up by id.
            tolerance: a ν up to this is not a violation, in σ's units; one number, or a mapping by name.
            iterations: linearisations of curved constraints, at most.
            dtype: of the result.
        """
        batch = Batch(inputs=data) if isinstance(data, Tensor) else as_batch(data)
        batch = batch.to(next(self.model.parameters()).device)
        predictions = self._predict(batch)
        k = int(self.lagrangian.updates) if self.lagrangian.ready else 0
        constraints = self.lagrangian.constraints
        return repair(predictions, batch, constraints, tolerance=tolerance, iterations=iterations, dtype=dtype, k=k)

    @torch.no_grad()
    def _predict(self, batch: Batch) -> Any:
        with evaluating(self.model):
            return self.forward(self.model, batch)

    def report(self, path: str | Path, title: str = "A model under constraints") -> Path:
        """Write an HTML page with the doctor's findings and plots of loss, violations and multipliers."""
        return report(self, path, title)


Callback = Callable[[Fit], Any]


def fit(
    model: nn.Module,
    data: Rows | Iterable[Any],
    *,
    loss: Loss,
    constraints: Iterable[Constraint] = (),
    dual: Rules = "auto",
    epochs: int = 80,
    batch_size: int = 64,
    lr: float = 1e-3,
    optimizer: MakeOptimizer | None = None,
    schedule: Literal["cosine"] | MakeSchedule | None = None,
    validation: float | Rows | Iterable[Any] | None = None,
    keep: Literal["best", "last"] = "best",
    patience: int | None = None,
    metrics: Mapping[str, Metric] | None = None,
    unlabelled: Unlabelled | None = None,
    unlabelled_batch_size: int | None = None,
    stratify: Tensor | None = None,
    update_every: int | None = None,
    ascend_on: Literal["training", "held-out"] = "training",
    forward: Forward | None = None,
    seed: int = 0,
    compile: bool | Literal["auto"] = "auto",
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | None = None,
    callbacks: Callback | Iterable[Callback] = (),
) -> Fit:
    """Train a model under constraints by Lagrangian duality: Algorithm 1 and, with pairs or groups, Algorithm 2.

    Args:
        model: any module; trained in place, on its current device.
        data: inputs, (inputs, targets), or a mapping with these and any further columns, in memory; or a DataLoader
            that yields inputs, (inputs, targets), (inputs, targets, ids) or mappings. Inputs may be a mapping, tuple or
            list of tensors.
        loss: (predictions, targets) → scalar. It receives the batch instead of the targets if its second parameter is
            named `batch`, or if the data have no targets: learning without labels, by the problem's own objective.
        constraints: created with `inequality` and `equality`.
        dual: the rule that updates the multipliers, or a mapping from constraint names to rules; "auto" is
            `Automatic()`, for groups `Levelling()`, which need no tuning. None records the constraints without
            enforcing them (the paper's M).
        epochs: passes over the data.
        batch_size: rows per step, for data in memory.
        lr: learning rate of Adam, the default optimiser.
        optimizer: parameters → optimiser.
        schedule: "cosine", or (optimiser, total number of steps) → scheduler; it is stepped after every batch.
        validation: fraction of the data to hold out, or separate data, in memory or as a DataLoader; evaluated after
            every epoch. Batches of a DataLoader are evaluated one by one: loss and metrics are means over all rows if
            they are means over the rows of a batch; violations, also of groups, are exact.
        keep: with validation, keep the "best" iterate (by feasibility first, then loss) or the "last" one.
        patience: stop after this many epochs without a better iterate; needs validation.
        metrics: (predictions, batch) → number, by name; evaluated on the held-out rows after every epoch and stored in
            the history as val/name.
        unlabelled: inputs without targets (or a mapping of columns) on which the constraints are enforced too, but not
            the loss. Their row numbers follow those of the data.
        unlabelled_batch_size: unlabelled rows per step. By default all of them are used in every epoch if that takes
            no more than `batch_size` per step; otherwise `batch_size` per step, and a pass through all of them takes
            several epochs. Rows of `Pairs` are looked up and do not count.
        stratify: [n] int64 group of each row; every batch then contains every group, however rare.
        update_every: update the multipliers every this many steps, and at the end of an epoch. By default only then;
            with dual="auto" often enough for a hundred updates in the whole run.
        ascend_on: which violations update the multipliers: those of the "training" rows since the last update, or those
            of the "held-out" rows, for models that satisfy constraints on training rows and violate them on others.
        forward: (model, batch) → predictions; by default model(batch.inputs).
        seed: random seed for batches, held-out rows and the model's own randomness.
        compile: whether to compile the step with torch.compile: forward and backward pass, constraints and Adam as one
            graph. "auto" does so from 60 000 steps on, where it pays, and trains without if it is not possible.
        checkpoint: a folder; a run that finds its own checkpoint there resumes from it, with bit-identical results.
        checkpoint_seconds: seconds between checkpoints; one is also written at the end.
        progress: whether to show progress; by default only on a terminal.
        callbacks: a function, or several, called after every epoch with the `Fit` so far, its model in eval mode and
            gradients off. Training ends after a callback has returned True. A resumed run restores the history, not
            what a callback keeps: decide by `fit.history`.

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
        unlabelled_batch_size=unlabelled_batch_size,
        stratify=stratify,
        update_every=update_every,
        ascend_on=ascend_on,
        forward=forward or call_on_inputs,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
        callbacks=as_tuple(callbacks),
    )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no trainable parameters")
    device = parameters[0].device
    task: Task | LoaderTask
    if in_memory(data):
        task = Task(settings, Data(data, unlabelled).to(device), [seed])  # type: ignore[arg-type]
    else:
        task = LoaderTask(settings, data, device)
    updates = plan_updates(task, rules_for(settings.constraints, dual))
    lagrangian = Lagrangian(settings.constraints, dual, rows=task.rows, updates=updates, labelled=task.labelled)
    engine = Single(settings, model, lagrangian, task)
    facts = {"model": shapes(model), "lr": lr, "seed": seed, "dual": [repr(rule) for rule in lagrangian.rules]}
    with own_random_numbers(seed, device):
        return trained(Loop(engine, task, settings.optimizer_of(parameters), facts, compile=compile))[0]


def as_tuple(callbacks: Callback | Iterable[Callback]) -> tuple[Callback, ...]:
    """One or several callbacks as a tuple."""
    return (callbacks,) if callable(callbacks) else tuple(callbacks)


def trained(loop: Loop, labels: Sequence[dict[str, Any]] = ({},)) -> list[Fit]:
    """Run a loop to its end and return a fit for each model, with its label."""

    def so_far(index: int, weights: Mapping[str, Tensor] | None) -> Fit:
        engine, task, run = loop.engine, loop.task, loop.runs[index]
        held_out = task.held_out[index] if task.validates and not task.separate else None
        model, stopped = engine.finish(index, weights), loop.place.stopped
        return Fit(
            model,
            engine.lagrangians[index],
            run.history,
            run.best_epoch,
            stopped,
            held_out,
            label=dict(labels[index]),
            forward=task.settings.forward,
            sample=task.sample(index),
        )

    def ended(index: int) -> bool:
        fit = so_far(index, None)
        # A callback must not change the training: neither its random numbers nor the mode of the model.
        with own_random_numbers(loop.place.epoch, loop.task.device), evaluating(fit.model), torch.no_grad():
            answers = [callback(fit) for callback in loop.settings.callbacks]
        return any(answer is True for answer in answers)

    loop.train(ended if loop.settings.callbacks else None)
    fits = [so_far(index, run.best) for index, run in enumerate(loop.runs)]
    for fit in fits:
        if len(fit.lagrangian.constraints) > 1 and fit.sample is not None:
            fit.conflicts = fit.lagrangian.conflicts(fit._predict(fit.sample), fit.sample)
    return fits


@contextmanager
def own_random_numbers(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers inside the block and restore the caller's state afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

"""The training loop: Algorithms 1 and 2 of the paper, with validation and checkpoints.

    λ⁰ ← 0, μ⁰ ← 0
    for epoch k = 0, 1, …
        for each batch:  w ← w − α ∇_w [ L + Σ λᵏ ν(g) + Σ μᵏ ν(h) ]
        λᵏ⁺¹ ← λᵏ + s_k Σ_l ν(g(ŷ_l)),   μᵏ⁺¹ ← μᵏ + t_k ν(h(ŷ_S))

The loop is the same for one model and for many stacked ones (`stacked.py`): an engine holds the weights and the
Lagrangians, a run holds the history and the best iterate of one model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch, Data
from ..core.certificate import Tally
from ..core.history import History
from ..core.lagrangian import pool
from ..io.text import Progress, number
from .compiled import Compile, Graph, compiling, worthwhile
from .engine import Engine
from .resume import Place, Run, Saved
from .settings import Settings
from .task import LoaderTask, Task, read


class Loop:
    """Trains the models of an engine, and resumes an interrupted run from its checkpoint.

    Args:
        engine: weights and Lagrangians of one or several models.
        task: data and batches.
        optimizer: optimiser of the weights.
        facts: what identifies this run, stored in its checkpoint.
        teams: runs that update their multipliers together, from the violations of all; by default each on its own.
        compile: whether to compile the steps; "auto": if there are enough of them.
    """

    def __init__(
        self,
        engine: Engine,
        task: Task | LoaderTask,
        optimizer: torch.optim.Optimizer,
        facts: Mapping[str, Any],
        teams: Sequence[Sequence[int]] = (),
        compile: Compile = False,
    ) -> None:
        settings = self.settings = task.settings
        self.engine, self.task, self.optimizer, self.teams = engine, task, optimizer, teams
        self.runs = [Run() for _ in engine.lagrangians]
        self.scheduler = settings.scheduler(optimizer, settings.epochs * task.steps)
        compiles = worthwhile(compile, engine, settings.epochs * task.steps)
        self.graph = Graph(engine, optimizer, required=compile is True) if compiles else None
        facts = {**facts, "compile": compiles}
        path = Path(settings.checkpoint) / "checkpoint.safetensors" if settings.checkpoint is not None else None
        self.saved = Saved(path, engine, task, optimizer, self.scheduler, self.runs, facts)
        self.place = Place([[] for _ in self.runs])

    def train(self, ended: Callable[[int], bool] | None = None) -> None:
        """Run all epochs, from the start or from a checkpoint.

        Args:
            ended: called after every epoch, for each run by its number; training ends if it is True for all runs.
        """
        with compiling(self.graph is not None):
            self._epochs(ended)
        if self.graph is not None:
            self.graph.close()

    def _epochs(self, ended: Callable[[int], bool] | None) -> None:
        place, epochs = self.saved.resume(), self.settings.epochs
        self.place = place
        line = Progress(epochs, "epoch", self.settings.progress, done=place.epoch)
        while place.epoch < epochs and not place.stopped:
            begun = time.monotonic()
            self._steps()
            self._close(time.monotonic() - begun, ended)
            line.update(epochs if place.stopped else place.epoch, lambda: _note(self.runs[0].history))

    def _steps(self) -> None:
        """Run the steps of one epoch, or those that remain."""
        place, task = self.place, self.task
        begin, received = place.done, 0
        if begin == 0:
            self.saved.begin_epoch()
        for index, step in enumerate(_steps(task, self.engine.stacked, len(self.runs), place.epoch)):
            received += 1
            if index == 0 and self.graph is not None:
                self.graph.expect(step)
            if index < begin:
                continue
            if index == begin > 0:
                self.saved.restore_random()
            self._step(step)
            place.done = index + 1
            if self.saved.due() and place.done < task.steps:
                self.saved.write(place)
        if received != task.steps:
            raise ValueError(f"the loader has length {task.steps}, but yielded {received} batches")

    def _step(self, step: Any) -> None:
        """w ← w − α ∇_w [L + Σ λν]; at the end of an epoch, or every `update_every` steps, λ ← λ + s Σ ν."""
        self.engine.measure(step)
        if self.graph is None or not self.graph.advance(step):
            self.optimizer.zero_grad(set_to_none=True)
            self.engine.backward(step)
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        number, every = self.place.done + 1, self.task.update_every
        if number == self.task.steps or (every and number % every == 0):
            if self.settings.ascend_on == "held-out":
                _observe(self.engine, self.task, self.teams)
            for kept, lagrangian in zip(self.place.rows, self.engine.lagrangians, strict=True):
                kept.append(lagrangian.ascend())

    def _close(self, seconds: float, ended: Callable[[int], bool] | None) -> None:
        """Finish an epoch: validation, history, best iterate, patience, callbacks, checkpoint."""
        place, settings = self.place, self.settings
        lr = float(self.optimizer.param_groups[0]["lr"])
        checks = _validate(self.engine, self.task) if self.task.validates else None
        for index, run in enumerate(self.runs):
            steps = (place.epoch + 1) * self.task.steps
            row = {**_merge(place.rows[index]), "steps": steps, "lr": lr, "seconds": seconds}
            run.history.append(row | (checks[index] if checks else {}))
            _select(run, self.engine, index, settings, checks is not None)
        place.rows, place.done, place.epoch = [[] for _ in self.runs], 0, place.epoch + 1
        if settings.patience and self.engine.lagrangians[0].settled():
            since = place.epoch - (self.runs[0].best_epoch or place.epoch)
            place.stopped = since >= settings.patience
        answers = [ended(index) for index in range(len(self.runs))] if ended is not None else [False]
        if all(answers):
            place.stopped = True
            for run in self.runs:  # none is chosen while the multipliers settle
                run.best_epoch = run.best_epoch or place.epoch
        if self.saved.due() or place.stopped or place.epoch == settings.epochs:
            self.saved.write(place)


def _steps(task: Task | LoaderTask, stacked: bool, runs: int, epoch: int) -> Iterable[Any]:
    """The steps of an epoch; for a stacked engine, those of all runs, [R, …]."""
    if not stacked or isinstance(task, LoaderTask):
        return task.plan(0, epoch)
    plans = [task.plan(run, epoch) for run in range(runs)]
    steps = []
    for together in zip(*plans, strict=True):
        names = dict.fromkeys(name for step in together for name in step)
        steps.append({name: _even(name, [step.get(name) for step in together]) for name in names})
    return steps


def _even(name: str, parts: Sequence[Tensor | None]) -> Tensor:
    """Pad pairs with −1, which is ignored; truncate rows to the shortest."""
    found = [part if part is not None else torch.zeros(0, dtype=torch.int64) for part in parts]
    if name.startswith("pairs/"):
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)
    shortest = min(len(part) for part in found)
    return torch.stack([part[:shortest] for part in found])


def _merge(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the rows of an epoch's updates: mean of means, largest maximum, last multiplier."""
    merged = dict(rows[-1])
    for name in merged:
        if name.startswith("nu_max/"):
            merged[name] = max(row[name] for row in rows)
        elif not name.startswith(("lambda", "column")):
            merged[name] = sum(row[name] for row in rows) / len(rows)
    return merged


def _held_out(engine: Engine, task: Task | LoaderTask) -> Iterator[Iterable[tuple[int, Any, Batch]]]:
    """Number, predictions and held-out rows of every run: all rows at once if in memory, otherwise batch by batch."""
    if isinstance(task.check, Data):
        found = engine.predict(task.check, task.held_out)
        yield [(run, y, task.check.take(task.held_out[run])) for run, y in enumerate(found)]
        return
    assert task.check is not None
    with torch.random.fork_rng(devices=[]):  # a loader draws random numbers, which must not change the training
        for batch in read(task.check, task.device):
            yield [(run, y, batch) for run, y in enumerate(engine.answer(batch))]


def _observe(engine: Engine, task: Task | LoaderTask, teams: Sequence[Sequence[int]]) -> None:
    """Let every Lagrangian observe its held-out rows, and those of its team."""
    for rows in _held_out(engine, task):
        for run, predictions, batch in rows:
            engine.lagrangians[run].observe(predictions, batch)
    for team in teams:
        pool([engine.lagrangians[run] for run in team])


def _validate(engine: Engine, task: Task | LoaderTask) -> list[dict[str, float]]:
    """Loss, every ν and metrics on the held-out rows of each run."""
    settings = task.settings
    # Pairs refer to rows of the training data, so separate validation data have none.
    checked = [c for c in settings.constraints if not task.separate or c.scope.name is None]
    tallies = [Tally(checked, int(lagrangian.updates)) for lagrangian in engine.lagrangians]
    values: list[list[dict[str, float]]] = [[] for _ in tallies]
    sizes: list[int] = []
    for rows in _held_out(engine, task):
        for run, predictions, batch in rows:
            tallies[run].add(predictions, batch)
            found = {"val_loss": float(settings.loss_on(predictions, batch))}
            found |= {f"val/{name}": float(metric(predictions, batch)) for name, metric in settings.metrics.items()}
            values[run].append(found)
        sizes.append(batch.rows)
    checks = []
    for tally, parts in zip(tallies, values, strict=True):
        means = {name: _mean([part[name] for part in parts], sizes) for name in parts[0]}
        row = {"val_loss": means.pop("val_loss")}
        for finding in tally.certificate().findings:
            row[f"val_nu_mean/{finding.constraint}"] = finding.mean
            row[f"val_nu_max/{finding.constraint}"] = finding.max
        checks.append(row | means)
    return checks


def _mean(values: Sequence[float], sizes: Sequence[int]) -> float:
    """Mean over all rows, from the means over parts of these sizes."""
    return sum(value * (size / sum(sizes)) for value, size in zip(values, sizes, strict=True))


def _select(run: Run, engine: Engine, index: int, settings: Settings, validated: bool) -> None:
    """Keep this iterate if it is the best by feasibility, then loss, once the multipliers have settled."""
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
        if mean > tolerance:  # False for NaN: the constraint was not evaluated
            excess += mean / tolerance - 1
    enforced = any(rule.enforces for rule in lagrangian.rules)
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

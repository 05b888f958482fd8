"""Checkpoints of a training run, from which it resumes with bit-identical results."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.constraint import Constraint
from ..core.history import History
from ..io import checkpoint as files
from .engine import Engine, unpack
from .task import LoaderTask, Task


@dataclass
class Run:
    """History and best iterate so far of one model."""

    history: History = field(default_factory=History)
    best: dict[str, Tensor] | None = None
    best_epoch: int = 0
    score: tuple[float, float] = (math.inf, math.inf)
    """Excess violation on validation data, then loss; smaller is better."""


@dataclass
class Place:
    """Progress of a training run."""

    rows: list[list[dict[str, float]]]
    """For each run, one row per multiplier update of the current epoch."""
    epoch: int = 0
    """Completed epochs."""
    done: int = 0
    """Completed steps of the current epoch."""
    stopped: bool = False
    """Whether patience or a callback ended the training."""


class Saved:
    """The checkpoint of a training run; does nothing if `path` is None."""

    def __init__(
        self,
        path: Path | None,
        engine: Engine,
        task: Task | LoaderTask,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
        runs: list[Run],
        facts: Mapping[str, Any],
    ) -> None:
        self.path, self.engine, self.optimizer, self.scheduler, self.runs = path, engine, optimizer, scheduler, runs
        settings = task.settings
        self.seconds = settings.checkpoint_seconds
        self.written = time.monotonic()
        self.loader_generator = getattr(getattr(task, "loader", None), "generator", None)
        self.epoch_random: dict[str, Tensor] = {}
        self.pending: tuple[dict[str, Tensor], list[Any]] | None = None
        self.problem: dict[str, Any] = {
            **facts,
            **task.fingerprint(),
            "constraints": [_describe(constraint) for constraint in settings.constraints],
            "optimizer": f"{type(optimizer).__name__} {_numbers(optimizer.defaults)}",
            "schedule": getattr(settings.schedule, "__qualname__", settings.schedule),
            "loss": getattr(settings.loss, "__qualname__", type(settings.loss).__name__),
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
            "unlabelled_batch_size": settings.unlabelled_batch_size,
            "update_every": settings.update_every,
            "ascend_on": settings.ascend_on,
            "metrics": sorted(settings.metrics),
            "keep": settings.keep,
            "patience": settings.patience,
        }

    def due(self) -> bool:
        """Whether the next checkpoint is due."""
        return self.path is not None and time.monotonic() - self.written >= self.seconds

    def begin_epoch(self) -> None:
        """Save the random state that a loader will shuffle with."""
        if self.path is None:
            return
        self.epoch_random = {"epoch.torch": torch.get_rng_state()}
        if self.loader_generator is not None:
            self.epoch_random["epoch.loader"] = self.loader_generator.get_state()

    def write(self, place: Place) -> None:
        """Write everything that the rest of the run depends on."""
        if self.path is None:
            return
        tensors = {f"engine.{name}": value for name, value in self.engine.state().items()}
        optimizer, optimizer_facts = files.pack_optimizer(self.optimizer)
        random, python = files.random_state()
        tensors |= optimizer | random
        if place.done:
            tensors |= self.epoch_random
        elif self.loader_generator is not None:
            tensors["epoch.loader"] = self.loader_generator.get_state()
        for index, run in enumerate(self.runs):
            tensors |= {f"best.{index}.{name}": value for name, value in (run.best or {}).items()}
        facts = {
            "problem": self.problem,
            "place": asdict(place),
            "optimizer": optimizer_facts,
            "scheduler": _plain(self.scheduler.state_dict()) if self.scheduler is not None else None,
            "python": python,
            "runs": [
                {"history": run.history.rows, "best_epoch": run.best_epoch, "score": list(run.score)}
                for run in self.runs
            ],
        }
        files.save(self.path, tensors, facts)
        self.written = time.monotonic()

    def resume(self) -> Place:
        """Restore an earlier run of the same problem, if there is one, and return its progress."""
        if self.path is None or not self.path.exists():
            return Place([[] for _ in self.runs])
        tensors, facts = files.load(self.path)
        theirs = facts["problem"]
        ours = _plain(self.problem)
        differ = [key for key in ours if theirs.get(key) != ours[key]] + sorted(set(theirs) - set(ours))
        if differ:
            listed = "; ".join(f"{key}: {theirs.get(key)!r} there, {ours.get(key)!r} here" for key in differ)
            raise files.CheckpointError(
                f"{self.path} is the checkpoint of another problem ({listed}); delete it to start over, or use "
                "another folder"
            )
        self.engine.load(unpack(tensors, "engine"))
        files.unpack_optimizer(self.optimizer, tensors, facts["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(facts["scheduler"])
        for index, run in enumerate(self.runs):
            known = facts["runs"][index]
            run.history = History(known["history"])
            run.best_epoch, run.score = known["best_epoch"], (known["score"][0], known["score"][1])
            run.best = unpack(tensors, f"best.{index}") or None
        self.pending = (tensors, facts["python"])
        if "epoch.torch" in tensors:
            torch.set_rng_state(tensors["epoch.torch"])
            self.epoch_random = {name: tensors[name] for name in tensors if name.startswith("epoch.")}
        else:
            self.restore_random()
        if self.loader_generator is not None and "epoch.loader" in tensors:
            self.loader_generator.set_state(tensors["epoch.loader"])
        return Place(**facts["place"])

    def restore_random(self) -> None:
        """Restore the random state at the time of the checkpoint."""
        if self.pending is not None:
            files.restore_random(*self.pending)
            self.pending = None


def _describe(constraint: Constraint) -> list[Any]:
    detail = constraint.scope.describe()
    slack = "schedule" if callable(constraint.slack) else constraint.slack
    exact = "exact" if constraint.exact is not None else None
    return [
        constraint.name, constraint.kind, constraint.degree, constraint.multiplier, detail, slack, constraint.cap, exact
    ]  # fmt: skip


def _numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The numeric settings, without the learning rate, which is recorded separately."""
    return {name: value for name, value in settings.items() if name != "lr" and isinstance(value, int | float | tuple)}


def _plain(value: Any) -> Any:
    """The value after a round trip through JSON; functions (of a schedule) are omitted."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items() if not callable(entry)}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return value


def shapes(model: nn.Module) -> str:
    """Identifies an architecture by its class and parameter shapes."""
    shapes = [f"{name}{list(value.shape)}" for name, value in model.state_dict().items()]
    return (
        f"{type(model).__name__} of {len(shapes)} tensors, {hashlib.sha256(' '.join(shapes).encode()).hexdigest()[:8]}"
    )

"""A training run that can be killed at any moment and taken up again, bit for bit."""

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
    """One model's course: its history and its best iterate so far."""

    history: History = field(default_factory=History)
    best: dict[str, Tensor] | None = None
    best_epoch: int = 0
    score: tuple[float, float] = (math.inf, math.inf)
    """Excess violation on validation data, then loss: the smaller the better."""


@dataclass
class Place:
    """How far a training run has come."""

    rows: list[list[dict[str, float]]]
    """For each run, what the updates of this epoch gave so far."""
    epoch: int = 0
    """Epochs that are over."""
    done: int = 0
    """Steps of this epoch."""
    stopped: bool = False
    """Whether patience has run out."""


class Saved:
    """The checkpoint of a training run, or nothing where there is no folder for one."""

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
            "update_every": settings.update_every,
            "ascend_on": settings.ascend_on,
            "metrics": sorted(settings.metrics),
            "keep": settings.keep,
            "patience": settings.patience,
        }

    def due(self) -> bool:
        """Whether it is time to write again."""
        return self.path is not None and time.monotonic() - self.written >= self.seconds

    def begin_epoch(self) -> None:
        """Remember the random numbers that a loader will shuffle by."""
        if self.path is None:
            return
        self.epoch_random = {"epoch.torch": torch.get_rng_state()}
        if self.loader_generator is not None:
            self.epoch_random["epoch.loader"] = self.loader_generator.get_state()

    def write(self, place: Place) -> None:
        """Everything that the rest of the run depends on."""
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
        """Take up an earlier run of the same problem, if there is one: how far it had come."""
        if self.path is None or not self.path.exists():
            return Place([[] for _ in self.runs])
        tensors, facts = files.load(self.path)
        theirs = facts["problem"]
        ours = _plain(self.problem)
        differ = [key for key in ours if theirs.get(key) != ours[key]] + sorted(set(theirs) - set(ours))
        if differ:
            listed = "; ".join(f"{key}: {theirs.get(key)!r} there, {ours.get(key)!r} here" for key in differ)
            raise files.CheckpointError(
                f"{self.path} is the checkpoint of another problem ({listed}); remove it to start anew, or give "
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
        """Go on with the random numbers where the checkpoint was written."""
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
    """The settings that are numbers; the learning rate has a place of its own."""
    return {name: value for name, value in settings.items() if name != "lr" and isinstance(value, int | float | tuple)}


def _plain(value: Any) -> Any:
    """As JSON gives it back; what JSON cannot hold (functions of a schedule) is left out."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items() if not callable(entry)}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return value


def shapes(model: nn.Module) -> str:
    """What tells this architecture from others."""
    shapes = [f"{name}{list(value.shape)}" for name, value in model.state_dict().items()]
    return (
        f"{type(model).__name__} of {len(shapes)} tensors, {hashlib.sha256(' '.join(shapes).encode()).hexdigest()[:8]}"
    )

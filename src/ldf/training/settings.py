"""Validated arguments of `fit` and `fit_many`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Rows, check_count
from ..core.constraint import Constraint

Loss = Callable[[Any, Any], Tensor]
Forward = Callable[[nn.Module, Batch], Any]
Metric = Callable[[Any, Batch], float | Tensor]
MakeOptimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
MakeSchedule = Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]
Unlabelled = Tensor | tuple[Any, ...] | Mapping[str, Any]


def call_on_inputs(model: nn.Module, batch: Batch) -> Any:
    """Default forward call."""
    return model(batch.inputs)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments that `fit` and `fit_many` share, under the same names."""

    loss: Loss
    constraints: tuple[Constraint, ...] = ()
    epochs: int = 80
    batch_size: int = 64
    lr: float = 1e-3
    optimizer: MakeOptimizer | None = None
    schedule: Literal["cosine"] | MakeSchedule | None = None
    validation: float | Rows | Iterable[Any] | None = None
    keep: Literal["best", "last"] = "best"
    patience: int | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    unlabelled: Unlabelled | None = None
    unlabelled_batch_size: int | None = None
    stratify: Tensor | None = None
    update_every: int | None = None
    ascend_on: Literal["training", "held-out"] = "training"
    forward: Forward = call_on_inputs
    checkpoint: str | Path | None = None
    checkpoint_seconds: float = 30.0
    progress: bool | None = None
    callbacks: tuple[Callable[[Any], Any], ...] = ()
    second: str = field(init=False, default="")
    """Name of the loss's second parameter."""

    def __post_init__(self) -> None:
        check_count(
            epochs=self.epochs,
            batch_size=self.batch_size,
            patience=self.patience,
            update_every=self.update_every,
            unlabelled_batch_size=self.unlabelled_batch_size,
        )
        if self.unlabelled_batch_size and self.unlabelled is None:
            raise ValueError("unlabelled_batch_size needs rows without targets: pass unlabelled=")
        if self.ascend_on not in ("training", "held-out"):
            raise ValueError(f"ascend_on must be 'training' or 'held-out', got {self.ascend_on!r}")
        if self.keep not in ("best", "last"):
            raise ValueError(f"keep must be 'best' or 'last', got {self.keep!r}")
        if self.schedule is not None and self.schedule != "cosine" and not callable(self.schedule):
            raise ValueError(f"schedule must be 'cosine', a function or None, got {self.schedule!r}")
        if not callable(self.loss):
            raise TypeError(f"loss must be a function (predictions, targets) → scalar, got {self.loss!r}")
        object.__setattr__(self, "second", _second(self.loss))
        for callback in self.callbacks:
            if not callable(callback):
                raise TypeError(f"callbacks must be functions of the fit so far, got {callback!r}")

    def loss_on(self, predictions: Any, batch: Batch) -> Tensor:
        """The task loss: loss(predictions, targets), or loss(predictions, batch) if its second parameter is named
        `batch` or the rows have no targets.
        """
        labelled = batch.__dict__.get("targets") is not None
        if self.second == "batch" or (not labelled and not self.second.startswith(("target", "label"))):
            return self.loss(predictions, batch)
        if not labelled:
            raise ValueError(
                f"data has no column 'targets', but the loss has a parameter {self.second!r}; without targets, a loss "
                "is a function (predictions, batch)"
            )
        return self.loss(predictions, batch.targets)

    def optimizer_of(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The optimiser for these parameters."""
        return (self.optimizer or adam(self.lr))(parameters)

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler | None:
        """The learning-rate schedule over this many steps."""
        if self.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return self.schedule(optimizer, steps) if self.schedule else None

    def check_held_out(self, validates: bool) -> None:
        """Raise if an option needs held-out rows and there are none, or if a constraint cannot use them."""
        if self.patience and not validates:
            raise ValueError("patience needs validation data: use validation=0.2, or pass separate data")
        if self.metrics and not validates:
            raise ValueError("metrics need held-out rows: use validation=0.2, or pass separate data")
        if self.ascend_on == "held-out":
            if not validates:
                raise ValueError(
                    "ascend_on='held-out' needs held-out rows: use validation=0.2, or folds=5 with fit_many"
                )
            for constraint in self.constraints:
                if not constraint.observable:
                    raise ValueError(
                        f"constraint {constraint.name!r}: its multipliers belong to training rows, so it cannot be "
                        "combined with ascend_on='held-out'"
                    )


def adam(lr: float) -> MakeOptimizer:
    """Adam, fused where the device supports it: the same steps in one pass over the weights."""

    def make(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
        return torch.optim.Adam(parameters, lr=lr, fused=fused)

    return make


def _second(loss: Loss) -> str:
    """Name of the second parameter of a loss; "" if Python cannot tell."""
    try:
        names = list(inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters)
    except (TypeError, ValueError):  # a builtin
        return ""
    return names[1] if len(names) > 1 else ""

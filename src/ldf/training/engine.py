"""Weights and Lagrangian of one model, or of many stacked ones, behind one interface."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data, free, join
from ..core.lagrangian import Lagrangian
from .settings import Settings
from .task import LoaderTask, Parts, Task

PREDICT_ROWS = 4096
"""Batch size for predictions outside training."""


class Engine(Protocol):
    """Weights and Lagrangians of one or many models."""

    lagrangians: list[Lagrangian]
    stacked: bool
    """Whether a step contains the rows of all models, [R, …]."""
    pays: int
    """Number of steps from which compiling pays: it takes 10 to 30 s, and saves .3 ms per step or more."""

    def parameters(self) -> list[Tensor]:
        """The weights to train."""

    def changed(self) -> list[Tensor]:
        """Buffers that a step changes."""

    def gradients(self, step: Any) -> tuple[Tensor, Sequence[Tensor | None]]:
        """L + Σ λν and its gradient for every weight, as a function that can be compiled."""

    def backward(self, step: Any) -> None:
        """Compute the gradient of L + Σ λν for every weight; with several models, each for its own."""

    def measure(self, step: Any) -> None:
        """Measure the units of every Lagrangian that needs it on this step."""

    def predict(self, data: Data, ids: Sequence[Tensor]) -> list[Any]:
        """Predictions of every model for its own rows."""

    def answer(self, batch: Batch) -> list[Any]:
        """Predictions of every model for the same rows, in eval mode."""

    def weights(self, run: int) -> dict[str, Tensor]:
        """Current weights and buffers of one model."""

    def state(self) -> dict[str, Tensor]:
        """All weights, buffers and multipliers, for a checkpoint."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned."""

    def finish(self, run: int, weights: Mapping[str, Tensor] | None) -> nn.Module:
        """The trained model, with these weights or the latest ones."""


class Single:
    """A single model."""

    stacked = False
    pays = 60_000

    def __init__(self, settings: Settings, model: nn.Module, lagrangian: Lagrangian, task: Task | LoaderTask) -> None:
        self.settings, self.model, self.lagrangians, self.task = settings, model, [lagrangian], task
        model.train()

    def parameters(self) -> list[Tensor]:
        """The weights to train."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _step(self, step: Any) -> Tensor:
        batch = self.task.batch(step)
        predictions = self.settings.forward(self.model, batch)
        total: Tensor = self.lagrangians[0](*self.task.parts(predictions, step, batch))
        return total

    def backward(self, step: Any) -> None:
        """∂(L + Σ λν)/∂w."""
        self._step(step).backward()

    def gradients(self, step: Any) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Forward and backward pass as one function."""
        total = self._step(step)
        return total, torch.autograd.grad(total, self.parameters(), allow_unused=True)

    def changed(self) -> list[Tensor]:
        """Buffers of model and Lagrangian."""
        return [*self.model.buffers(), *self.lagrangians[0].buffers()]

    def measure(self, step: Any) -> None:
        """Measure in eval mode, so that no random numbers are consumed."""
        if self.lagrangians[0].ready and self.lagrangians[0].measured:
            return
        batch = self.task.batch(step)
        with evaluating(self.model), torch.no_grad():
            predictions = self.settings.forward(self.model, batch)
        measure(self.lagrangians[0], self.task.parts(free(predictions), step, batch))

    def predict(self, data: Data, ids: Sequence[Tensor]) -> list[Any]:
        """Predictions in eval mode, a few thousand rows at a time."""
        return [join([self.answer(data.take(some, targets=False))[0] for some in chunks(ids[0])])]

    def answer(self, batch: Batch) -> list[Any]:
        """Predictions in eval mode."""
        with evaluating(self.model), torch.no_grad():
            return [self.settings.forward(self.model, batch)]

    def weights(self, run: int) -> dict[str, Tensor]:
        """The model's state dict."""
        return self.model.state_dict()

    def state(self) -> dict[str, Tensor]:
        """State of model and Lagrangian."""
        return pack({"model": self.model.state_dict(), "lagrangian": self.lagrangians[0].state_dict()})

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load the state of model and Lagrangian."""
        device = next(self.model.parameters()).device
        self.model.load_state_dict(unpack(state, "model"))
        self.lagrangians[0].load_state_dict(
            {name: value.to(device) for name, value in unpack(state, "lagrangian").items()}
        )

    def finish(self, run: int, weights: Mapping[str, Tensor] | None) -> nn.Module:
        """The model itself."""
        if weights is not None:
            self.model.load_state_dict(weights)
        return self.model


def measure(lagrangian: Lagrangian, parts: Parts) -> None:
    """Measure the units of one Lagrangian at predictions detached from the model."""
    loss, predictions, batch, sides = parts
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss must return a scalar tensor, the mean over the batch; got {shape}")
    if not math.isfinite(loss.item()):
        raise ValueError(f"the task loss is {loss.item()} on the first batch: check the data and the model's output")
    lagrangian.prepare(loss, predictions, batch, sides)


def chunks(ids: Tensor) -> Sequence[Tensor]:
    """Row numbers split along the last dimension, a few thousand at a time."""
    parts: Sequence[Tensor] = ids.split(PREDICT_ROWS, dim=-1)
    return parts


def pack(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Merge state dicts into one, each under its own prefix."""
    return {f"{prefix}.{name}": value for prefix, part in parts.items() for name, value in part.items()}


def unpack(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The state dict packed under this prefix."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode inside the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)

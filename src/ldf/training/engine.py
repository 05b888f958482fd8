"""Weights and Lagrangian of one model, or of many stacked ones, behind one interface."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.batch import Data, free, leaves, tree_map
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

    def backward(self, step: Any) -> None:
        """Compute the gradient of L + Σ λν for every weight; with several models, each for its own."""

    def measure(self, step: Any) -> None:
        """Measure the units of every Lagrangian that needs it on this step."""

    def predict(self, data: Data, ids: Sequence[Tensor]) -> list[Any]:
        """Predictions of every model for its own rows."""

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

    def __init__(
        self, settings: Settings, model: nn.Module, lagrangian: Lagrangian, task: Task | LoaderTask, compile: bool
    ) -> None:
        self.settings, self.model, self.lagrangians, self.task = settings, model, [lagrangian], task
        model.train()
        self._gradients = torch.compile(self._graph) if compile else None

    def parameters(self) -> list[Tensor]:
        """The weights to train."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _step(self, step: Any) -> Tensor:
        batch = self.task.batch(step)
        predictions = self.settings.forward(self.model, batch)
        total: Tensor = self.lagrangians[0](*self.task.parts(predictions, step, batch))
        return total

    def _graph(self, step: Any) -> tuple[Tensor | None, ...]:
        """Forward and backward pass as one function, so that it compiles to one graph."""
        return torch.autograd.grad(self._step(step), self.parameters(), allow_unused=True)

    def backward(self, step: Any) -> None:
        """∂(L + Σ λν)/∂w."""
        if self._gradients is None:
            self._step(step).backward()
            return
        for parameter, gradient in zip(self.parameters(), self._gradients(step), strict=True):
            parameter.grad = gradient

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
        with evaluating(self.model), torch.no_grad():
            parts = [self.settings.forward(self.model, data.take(some, targets=False)) for some in chunks(ids[0])]
        return [join(parts)]

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


def join(parts: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate the predictions of several chunks."""
    if len(parts) == 1:
        return parts[0]
    flat = iter([torch.cat(group, dim) for group in zip(*(leaves(part) for part in parts), strict=True)])
    return tree_map(lambda _: next(flat), parts[0])


def pack(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Merge state dicts into one, each under its own prefix."""
    return {f"{prefix}.{name}": value for prefix, part in parts.items() for name, value in part.items()}


def unpack(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The state dict packed under this prefix."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}


@contextmanager
def compiling(wanted: bool) -> Iterator[None]:
    """Compile the backward pass into the step's graph: the overhead of two graphs would cancel the gain."""
    if not wanted:
        yield
        return
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode inside the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)

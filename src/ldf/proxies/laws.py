"""What the laws of any network need: numbers as tensors, intervals, and flows that are computed once for all laws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.batch import leaves
from ..core.constraint import Constraint


class Laws(ABC):
    """The laws of one network on states [B, S]; all tensors of one precision, on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device | str) -> None:
        self.dtype, self.device = dtype, device

    def number(self, array: Any) -> Tensor:
        """An array of numbers."""
        return torch.as_tensor(np.asarray(array), dtype=self.dtype, device=self.device)

    def index(self, array: Any) -> Tensor:
        """An array of positions."""
        return torch.as_tensor(np.asarray(array), dtype=torch.int64, device=self.device)

    def interval(self, low: Any, high: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Which entries have a limit at all, and their limits."""
        limited = np.flatnonzero(np.isfinite(low) | np.isfinite(high))
        return self.index(limited), self.number(low[limited]), self.number(high[limited])

    @abstractmethod
    def constraints(self, read: Callable[[Any, Any], Tensor], labels: bool = True) -> list[Constraint]:
        """The laws as constraints on predictions; see `Problem.constraints`."""


def summed(values: Tensor, at: Tensor, nodes: int) -> Tensor:
    """[B, nodes] the values [B, k] added up where they belong, at [k]."""
    return values.new_zeros(len(values), nodes).index_add(1, at, values)


def outside(value: Tensor, limited: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How far the values with a limit are outside of their intervals, max(low − x, x − high): [B, len(limited)]."""
    value = value.index_select(1, limited)
    return torch.maximum(low - value, value - high)


class Last:
    """A function of (predictions, batch) that remembers its last answer: all laws look at the same flows.

    Predictions that were changed in place, or are now wanted with gradients, are others than before.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self.key: tuple[Any, Any, Any] = (None, None, None)
        self.value: Any = None

    def __call__(self, predictions: Any, batch: Any) -> Any:
        """The function's value here."""
        if torch.compiler.is_compiling():  # the compiler finds what is common by itself
            return self.function(predictions, batch)
        state = torch.is_grad_enabled(), [_version(leaf) for leaf in leaves(predictions)]
        if self.key[0] is not predictions or self.key[1] is not batch or self.key[2] != state:
            self.value, self.key = self.function(predictions, batch), (predictions, batch, state)
        return self.value


def _version(leaf: Tensor) -> tuple[bool, int]:
    """Whether gradients are wanted, and how often the tensor was changed in place (not counted in inference mode)."""
    return leaf.requires_grad, -1 if leaf.is_inference() else leaf._version

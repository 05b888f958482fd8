"""The laws of a problem as constraints on tensors: those of any program, and helpers for laws written in torch.

A program states its laws in CasADi symbols. `ProgramLaws` makes them available to torch, with derivatives, in double
precision. Laws written in torch train faster, and may use labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import casadi
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core.batch import leaves
from ..core.constraint import Constraint, equality, inequality
from .program import ByRow, Program

Floats = NDArray[np.float64]


class Laws(ABC):
    """The laws of one network on states [B, S]; all tensors have the same precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def number(self, array: Any) -> Tensor:
        """An array as a floating-point tensor."""
        return torch.as_tensor(np.asarray(array), dtype=self.dtype)

    def index(self, array: Any) -> Tensor:
        """An array as an index tensor."""
        return torch.as_tensor(np.asarray(array), dtype=torch.int64)

    def interval(self, low: Any, high: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Indices of the entries with a finite limit, and their limits."""
        limited = np.flatnonzero(np.isfinite(low) | np.isfinite(high))
        return self.index(limited), self.number(low[limited]), self.number(high[limited])

    @abstractmethod
    def constraints(self, read: Callable[[Any, Any], Tensor], labels: bool = True) -> list[Constraint]:
        """The laws as constraints on predictions; see `Problem.constraints`."""


class ProgramLaws(Laws):
    """The laws that a program states, σ(x, d) of each; they do not use labels."""

    def __init__(self, program: Program, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype)
        self.program, self.degrees = program, Compiled(program.degrees)

    def constraints(self, read: Callable[[Any, Any], Tensor], labels: bool = True) -> list[Constraint]:
        """The laws as constraints on predictions; see `Problem.constraints`."""
        at = Last(lambda predictions, batch: self.degrees(read(predictions, batch), batch.demand))

        def degree(part: slice) -> Callable[[Any, Any], Tensor]:
            return lambda y, batch: at(y, batch)[:, part]

        slices = self.program.slices
        return [
            (equality if law.equality else inequality)(name, degree(slices[name]))
            for name, law in self.program.laws.items()
        ]


class Compiled:
    """A CasADi function f(x, …) ∈ R^m on tensors: states [B, S] and other inputs [B, n] → [B, m].

    CasADi computes the derivative with respect to the states, wᵀ ∂f/∂x, by one reverse sweep per row; other inputs have
    none. Both are computed in double precision on the CPU, and returned in the states' precision and on their device.
    """

    def __init__(self, function: casadi.Function) -> None:
        self.function = ByRow(function)
        inputs = function.sx_in()
        value = casadi.densify(function(*inputs))
        weights = casadi.SX.sym("w", value.shape[0])
        pulled = casadi.densify(casadi.jtimes(value, inputs[0], weights, True))
        self.pulled = ByRow(casadi.Function(f"{function.name()}_pulled", [*inputs, weights], [pulled]))
        """(x, …, w) → wᵀ ∂f/∂x."""

    def __call__(self, states: Tensor, *others: Tensor) -> Tensor:
        """[B, m] for states [B, S] and other inputs [B, n]."""
        apply: Any = _Applied.apply
        if torch.compiler.is_compiling():  # torch.compile cannot trace CasADi
            apply = torch.compiler.disable(apply)  # as a decorator it would import the compiler: a second at start
        found: Tensor = apply(self, states, *others)
        return found


class _Applied(torch.autograd.Function):
    """Autograd function of `Compiled`."""

    @staticmethod
    def forward(ctx: Any, compiled: Compiled, states: Tensor, *others: Tensor) -> Tensor:
        ctx.compiled, ctx.given = compiled, [_array(states), *map(_array, others)]
        return torch.from_numpy(compiled.function(*ctx.given)).to(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        slope = torch.from_numpy(ctx.compiled.pulled(*ctx.given, _array(weights))).to(weights)
        return None, slope, *[None] * (len(ctx.given) - 1)


def _array(tensor: Tensor) -> Floats:
    """[B, n] in double precision; a copy, because the tensor may be changed in place before the backward pass."""
    found: Floats = tensor.detach().to("cpu", torch.float64, copy=True).numpy()
    return found


def summed(values: Tensor, at: Tensor, nodes: int) -> Tensor:
    """[B, nodes] sums of the values [B, k] by node, at [k]."""
    return values.new_zeros(len(values), nodes).index_add(1, at, values)


def outside(value: Tensor, limited: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """max(low − x, x − high) of the values with a limit, positive outside their intervals: [B, len(limited)]."""
    value = value.index_select(1, limited)
    return torch.maximum(low - value, value - high)


class Last:
    """A function of (predictions, batch) that caches its last result, because all laws use the same flows.

    The result is recomputed if predictions were changed in place, or if gradients are switched on or off.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self.key: tuple[Any, Any, Any] = (None, None, None)
        self.value: Any = None

    def __call__(self, predictions: Any, batch: Any) -> Any:
        """The function's value, cached or computed."""
        if torch.compiler.is_compiling():  # the compiler shares common subexpressions itself
            return self.function(predictions, batch)
        state = torch.is_grad_enabled(), [_version(leaf) for leaf in leaves(predictions)]
        if self.key[0] is not predictions or self.key[1] is not batch or self.key[2] != state:
            self.value, self.key = self.function(predictions, batch), (predictions, batch, state)
        return self.value


def _version(leaf: Tensor) -> tuple[bool, int]:
    """Whether gradients are required, and how often the tensor was changed in place (not counted in inference mode)."""
    return leaf.requires_grad, -1 if leaf.is_inference() else leaf._version

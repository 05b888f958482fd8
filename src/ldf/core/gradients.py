"""What pulls at the predictions, and how hard: norms, signs and curvature of gradients by ŷ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Cut(torch.autograd.Function):
    """The identity, whose gradient is shortened to at most `limit`: ∂ ← ∂ · min(1, limit/‖∂‖₂)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, limit: Tensor) -> Tensor:
        """The values as they are."""
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the limit."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Shorten the gradient."""
        (limit,) = ctx.saved_tensors
        (gradient,) = gradients
        norm = torch.linalg.vector_norm(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return gradient * (limit / norm).clamp(max=1.0), None


def length(gradients: Iterable[Tensor | None], order: int) -> Tensor:
    """The norm of several tensors taken as one vector."""
    parts = [torch.linalg.vector_norm(gradient, order) for gradient in gradients if gradient is not None]
    return torch.linalg.vector_norm(torch.stack(parts), order) if parts else torch.zeros(())


def random_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """±1 at random, of this shape."""
    return torch.randint(0, 2, like.shape, generator=generator).to(like) * 2 - 1


def curvature(gradients: Sequence[Tensor | None], parts: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """‖H ε‖/‖ε‖ for the Hessian of the loss by the predictions and random signs ε; 0 where it has none."""
    chosen = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    if not chosen:
        return torch.zeros(())
    directions = [random_signs(gradient, generator) for gradient in chosen]
    try:
        curved = torch.autograd.grad(chosen, parts, directions, retain_graph=True, allow_unused=True)
    except RuntimeError:  # a loss that can be differentiated only once: compiled, or CTC
        return torch.zeros(())
    return length(curved, 2) / length(directions, 2)

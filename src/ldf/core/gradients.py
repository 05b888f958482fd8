"""Gradient norms of the loss and of each constraint at the predictions ŷ.

For each constraint: g = ‖∂ mean(ε∘σ)/∂ŷ‖₂, the scale S (the same in the 1-norm), and
pull = ‖∂L/∂ŷ‖₂ + h·ν/g, an estimate of the loss's gradient norm where the constraint would be satisfied. ε are random
signs, because the plain mean of a two-sided bound would have zero gradient. h = ‖H ε‖/‖ε‖ is the curvature of the loss,
and ν/g the distance by which ŷ must move to satisfy the constraint: a model that fits its labels exactly has no
gradient there, but has one away from them. For a quadratic loss and one linear constraint, pull/g is the optimal λ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .batch import free, leaves
from .certificate import violations
from .constraint import Constraint
from .scope import ConstraintError


class Cut(torch.autograd.Function):
    """The identity, with its gradient clipped to norm `limit`: ∂ ← ∂ · min(1, limit/‖∂‖₂)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, limit: Tensor) -> Tensor:
        """Return the values unchanged."""
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save the limit."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Clip the gradient."""
        (limit,) = ctx.saved_tensors
        (gradient,) = gradients
        norm = torch.linalg.vector_norm(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return gradient * (limit / norm).clamp(max=1.0), None


def length(gradients: Iterable[Tensor | None], order: int) -> Tensor:
    """The norm of several tensors taken as one vector."""
    parts = [torch.linalg.vector_norm(gradient, order) for gradient in gradients if gradient is not None]
    return torch.linalg.vector_norm(torch.stack(parts), order) if parts else torch.zeros(())


def random_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Random signs ±1 of this shape."""
    return torch.randint(0, 2, like.shape, generator=generator).to(like) * 2 - 1


def curvature(gradients: Sequence[Tensor | None], parts: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """‖H ε‖/‖ε‖ for the Hessian H of the loss in the predictions and random signs ε; 0 if there is none."""
    chosen = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    if not chosen:
        return torch.zeros(())
    directions = [random_signs(gradient, generator) for gradient in chosen]
    try:
        curved = torch.autograd.grad(chosen, parts, directions, retain_graph=True, allow_unused=True)
    except RuntimeError:  # a loss that is only once differentiable: compiled, or CTC
        return torch.zeros(())
    return length(curved, 2) / length(directions, 2)


@dataclass(frozen=True)
class Pull:
    """Gradient norm and curvature of the loss at the predictions ŷ."""

    slope: Tensor
    """‖∂L/∂ŷ‖₂"""
    bend: Tensor
    """h = ‖H ε‖/‖ε‖"""
    rows: int
    reach: float
    """max(‖ŷ‖₂, √rows)"""
    signs: torch.Generator
    """Generator of ε, seeded with the number of updates."""

    @classmethod
    def of(cls, loss: Tensor, predictions: Any, seed: int, needed: bool) -> Pull:
        """Measure at these predictions; `needed`: raise if the loss does not depend on them."""
        parts = [part for part in leaves(predictions) if part.requires_grad]
        if needed and not (loss.requires_grad and parts):
            raise ValueError(
                "normalised dual rules need the predictions that the loss was computed from, with gradients enabled"
            )
        found: Sequence[Tensor | None] = ()
        if loss.requires_grad and parts:
            found = torch.autograd.grad(loss, parts, create_graph=True, allow_unused=True)
        if needed and all(gradient is None for gradient in found):
            raise ValueError(
                "the task loss does not depend on the predictions given: pass the predictions it was computed from "
                "(for example logits rather than probabilities), or use a dual rule with normalise=False"
            )
        signs = torch.Generator().manual_seed(seed)
        slope = length([gradient.detach() if gradient is not None else None for gradient in found], 2)
        bend = curvature(found, parts, signs)
        rows = leaves(predictions)[0].shape[0]
        reach = max(float(length([part.detach() for part in parts], 2)), math.sqrt(rows))
        return cls(slope, bend, rows, reach, signs)

    def against(self, constraint: Constraint, sigma: Tensor, rows: int, predictions: Any, k: int) -> Tensor | None:
        """pull, g and S of a constraint, [3]; None if σ does not depend on the predictions.

        Args:
            constraint: the constraint that σ belongs to.
            sigma: σ at the predictions.
            rows: number of rows in the mean of σ.
            predictions: leaves of an autograd graph of their own.
            k: number of dual updates so far.
        """
        if not sigma.requires_grad or not sigma.numel():
            return None
        constraint.check_finite(sigma)
        signed = (random_signs(sigma, self.signs) * sigma).mean()
        # Constraints may share parts of the graph: keep it for the next one.
        sources = [leaf for leaf in leaves(predictions) if leaf.requires_grad]
        gradients = torch.autograd.grad(signed, sources, allow_unused=True, retain_graph=True)
        gradient, scale = length(gradients, 2), length(gradients, 1)
        nu = constraint.violation(sigma.detach(), k).mean()
        # If σ is nearly flat, ν/g is meaningless: limit the distance to a hundred times the norm of ŷ.
        way = (nu / gradient * math.sqrt(self.rows / rows)).nan_to_num(0.0).clamp(max=100 * self.reach)
        found = torch.stack([self.slope + self.bend * way, gradient, scale])
        if not bool(torch.isfinite(found).all()):
            raise ConstraintError(
                f"constraint {constraint.name!r}: the gradient of its function is not finite at these predictions; the "
                "usual cause is a square root or a division at zero"
            )
        return found


def conflicts(constraints: Iterable[Constraint], predictions: Any, batch: Any, k: int) -> dict[tuple[str, str], float]:
    """Cosines between ∂ mean(ν)/∂ŷ of every two constraints violated by these predictions, except those on pairs."""
    found: dict[str, Tensor] = {}
    with torch.enable_grad():
        ours = free(predictions)
        sources = [leaf for leaf in leaves(ours) if leaf.requires_grad]
        for constraint in constraints:
            if constraint.scope.name is not None:
                continue
            total = violations(constraint, ours, batch, k, exact=False).sum()
            if total.requires_grad and float(total.detach()) > 0:
                gradients = torch.autograd.grad(total, sources, allow_unused=True, retain_graph=True)
                flat = torch.cat([g.flatten() for g in gradients if g is not None])
                if float(flat.norm()) > 0:
                    found[constraint.name] = flat / flat.norm()
    names = [name for name in found if found[name].shape == next(iter(found.values())).shape]
    return {(a, b): float(found[a] @ found[b]) for i, a in enumerate(names) for b in names[i + 1 :]}

"""Gradients of the loss and of each constraint at the predictions ŷ: the units of λ, and the multipliers they call for.

For each constraint, or for each of its columns:

- g = ‖∂ mean(ε∘σ)/∂ŷ‖₂ and the scale S, the same in the 1-norm. ε are random signs, because the plain mean of a
  two-sided bound would have zero gradient.
- pull = ‖∂L/∂ŷ‖₂ + h·ν/g, an estimate of the loss's gradient norm where the constraint would be satisfied.
  h = ‖H ε‖/‖ε‖ is the curvature of the loss, and ν/g the distance by which ŷ must move to satisfy the constraint: a
  model that fits its labels exactly has no gradient there, but has one away from them. For a quadratic loss and one
  linear constraint, pull/g is the optimal λ.

And, for rules that ask for them (`Dual.prices`), with J = ∂σ/∂ŷ of each row:

- the multipliers λ_l = argmin ‖∂L/∂ŷ_l + J_lᵀ λ‖² of each row over all constraints together, with ∂L/∂ŷ taken where
  the constraints would be satisfied: at ŷ + d, d the least-squares correction, by the Hessian of the loss. The price
  of a column is its largest multiplier in any row. An L1 penalty with a λ above the optimal multiplier of every row
  is exact: its minimum satisfies the constraint.
- the conflict κ ∈ [−1, 1] between loss and constraint: −1 if a descent on the loss lowers every violation, as with
  labels that satisfy the constraint, and 1 if it raises every violation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .batch import free, leaves
from .certificate import violations
from .constraint import Constraint
from .scope import ConstraintError

PRICED_ROWS = 32
"""Most rows whose multipliers are estimated in one measurement."""
ENTRIES = 4_000_000
"""Most entries of the gradients of one batched backward pass."""
EFFORT = 400_000_000
"""Most multiplications for the least-squares multipliers of one measurement."""


UNKNOWN = -math.inf
"""κ where it was not measured."""


class Measured(NamedTuple):
    """What is measured for a constraint: tensors [k], equal in all columns if they share one multiplier."""

    pull: Tensor
    gradient: Tensor
    scale: Tensor
    conflict: Tensor
    price: Tensor


class Cut(torch.autograd.Function):
    """The identity, with its gradient clipped to norm `limit`: ∂ ← ∂ · min(1, limit/‖∂‖₂).

    A limit [R] clips the gradient of each of R stacked tensors: torch.compile, given a function mapped by vmap, would
    take the norm of all.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, limit: Tensor) -> Tensor:
        """Return the values unchanged."""
        ctx.save_for_backward(limit)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Clip the gradient."""
        (gradient,), (limit,) = gradients, ctx.saved_tensors
        if not limit.ndim and gradient.is_cpu and not torch.compiler.is_compiling():
            # Two numbers are cheaper than four kernels.
            norm, most = torch.linalg.vector_norm(gradient).item(), limit.item()
            return (gradient if norm <= most else gradient * (most / norm)), None
        norms = torch.linalg.vector_norm(gradient.flatten(limit.ndim), dim=-1)
        factors = (limit / norms.clamp_min(torch.finfo(gradient.dtype).tiny)).clamp(max=1.0)
        return gradient * factors.reshape(limit.shape + (1,) * (gradient.ndim - limit.ndim)), None


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
    """The gradient of the loss at the predictions ŷ, with its norm and curvature."""

    gradients: Sequence[Tensor | None]
    """∂L/∂ŷ of each tensor of the predictions, differentiable again where the loss is."""
    parts: Sequence[Tensor]
    """ŷ"""
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
        bend = curvature(found, parts, signs)
        rows = leaves(predictions)[0].shape[0]
        reach = max(float(length([part.detach() for part in parts], 2)), math.sqrt(rows))
        return cls(found, parts, bend, rows, reach, signs)

    @property
    def slope(self) -> Tensor:
        """‖∂L/∂ŷ‖₂"""
        return length([None if gradient is None else gradient.detach() for gradient in self.gradients], 2)

    def against(self, constraint: Constraint, sigma: Tensor, rows: int, predictions: Any, k: int) -> Measured | None:
        """pull, g and S of all columns of a constraint together; None if σ does not depend on the predictions.

        Args:
            constraint: the constraint that σ belongs to.
            sigma: σ at the predictions: [rows, k], or [q] for groups.
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
        nu = constraint.violation(sigma.detach(), k).mean()
        found = self._measured(constraint, nu[None], length(gradients, 2)[None], length(gradients, 1)[None], rows)
        return Measured(*(part.expand(sigma.shape[-1]) for part in found))

    def against_columns(
        self, constraint: Constraint, sigma: Tensor, rows: int, predictions: Any, k: int
    ) -> tuple[Measured, Jacobian] | None:
        """pull, g and S of every column by itself, and the Jacobian; arguments as above."""
        if not sigma.requires_grad or not sigma.numel():
            return None
        constraint.check_finite(sigma)
        nu = constraint.violation(sigma.detach(), k)
        jacobian = Jacobian(constraint, sigma, nu, [leaf for leaf in leaves(predictions) if leaf.requires_grad])
        if sigma.ndim == 1:  # one comparison of all rows: S is the change of σ if every prediction changes by one
            found = self._measured(constraint, nu, jacobian.norm(2), jacobian.norm(1), rows)
        else:  # S = (mean_l ‖∂σ(l)/∂ŷ_l‖²)^½: a violation of S means that the row's ŷ is off by one
            size = jacobian.norm(2)
            found = self._measured(constraint, nu.mean(0), size / rows, size / math.sqrt(rows), rows)
        return found, jacobian

    def _measured(self, constraint: Constraint, nu: Tensor, gradient: Tensor, scale: Tensor, rows: int) -> Measured:
        # If σ is nearly flat, ν/g is meaningless: limit the distance to a hundred times the norm of ŷ.
        way = (nu / gradient * math.sqrt(self.rows / rows)).nan_to_num(0.0).clamp(max=100 * self.reach)
        pull = self.slope + self.bend * way
        if not all(bool(torch.isfinite(part).all()) for part in (pull, gradient, scale)):
            raise ConstraintError(
                f"constraint {constraint.name!r}: the gradient of its function is not finite at these predictions; the "
                "usual cause is a square root or a division at zero"
            )
        return Measured(pull, gradient, scale, torch.full_like(pull, UNKNOWN), torch.zeros_like(pull))

    def contest(self, jacobians: Sequence[Jacobian]) -> list[tuple[Tensor, Tensor]]:
        """κ [] and price [k] of each of these constraints on samples, from some rows of the batch.

        κ = −Σ_l a_l / Σ_l |a_l| with a_l = ⟨∂L/∂ŷ_l, Σ_c ν_lc ∂ν_lc/∂ŷ_l / ‖J_c‖²⟩: the smaller of its values where
        the constraints are satisfied and, with the opposite threshold, at ŷ itself (see `Automatic`).
        """
        rows = len(jacobians[0].sigma)
        columns, width = sum(j.sigma.shape[1] for j in jacobians), sum(part[0].numel() for part in self.parts)
        most = EFFORT // max(1, columns * width * min(columns, width))
        chosen = torch.randperm(rows, generator=self.signs)[: max(4, min(PRICED_ROWS, most))].to(self.bend.device)
        matrices = [jacobian.rows(chosen) for jacobian in jacobians]  # each [r, k, n]
        full = torch.cat(matrices, 1)
        outward = torch.cat([(j.nu * j.sigma.sign())[chosen] for j in jacobians], 1)  # [r, K]
        here = self._rows(self.gradients)[chosen] * rows  # the gradient of each row's own loss, [r, n]
        near = torch.cat([jacobian.near()[chosen] for jacobian in jacobians], 1)
        active = LeastSquares(full * near[:, :, None])
        moved = self._hessian(active.correction(outward), chosen)
        there = here if moved is None else here + moved[chosen] * rows
        multipliers = active.multipliers(there)
        found, start = [], 0
        for jacobian, matrix in zip(jacobians, matrices, strict=True):
            part = slice(start, start := start + matrix.shape[1])
            norms = matrix.square().sum(2).mean(0).clamp_min(torch.finfo(matrix.dtype).tiny)
            direction = (matrix * (outward[:, part] / norms)[:, :, None]).sum(1)
            at, beyond = (_balance((gradient * direction).sum(1)) for gradient in (here, there))
            own = multipliers[:, part]
            size = own.clamp(min=0) if jacobian.constraint.kind == "inequality" else own.abs()
            # At ŷ, labels that satisfy a constraint pull towards it; where it is satisfied, they need not.
            found.append((torch.where(at > -0.3, beyond, at), size.amax(0)))
        return found

    def _rows(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Tensors like those of ŷ as one matrix, [rows, n]."""
        parts = zip(tensors, self.parts, strict=True)
        return torch.cat([(torch.zeros_like(y) if t is None else t.detach()).reshape(len(y), -1) for t, y in parts], 1)

    def _hessian(self, correction: Tensor, chosen: Tensor) -> Tensor | None:
        """H d [rows, n] for the Hessian H of the loss and d in the chosen rows; None if the loss has no Hessian."""
        kept = [(g, y) for g, y in zip(self.gradients, self.parts, strict=True) if g is not None and g.requires_grad]
        if not kept:
            return None
        widths = [part[0].numel() for part in self.parts]
        pieces = dict(zip(map(id, self.parts), correction.split(widths, 1), strict=True))
        directions = [
            torch.zeros_like(y).index_copy(0, chosen, pieces[id(y)].reshape(-1, *y.shape[1:]).to(y)) for _, y in kept
        ]
        try:
            found = torch.autograd.grad(
                [g for g, _ in kept], self.parts, directions, retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # only once differentiable
            return None
        return self._rows(found)


def _balance(along: Tensor) -> Tensor:
    return -along.sum() / along.abs().sum().clamp_min(torch.finfo(along.dtype).tiny)


class LeastSquares:
    """Least-squares problems with J [r, k, n] of r rows, slightly regularised, by one factorisation for all of them."""

    def __init__(self, jacobians: Tensor) -> None:
        sizes = jacobians.square().sum(2).amax(0).sqrt()
        self.sizes = torch.where(sizes > 0, sizes, 1.0)  # [k]
        self.scaled = jacobians / self.sizes[:, None]
        _, k, n = jacobians.shape
        self.tall = k > n
        gram = self.scaled.mT @ self.scaled if self.tall else self.scaled @ self.scaled.mT
        gram.diagonal(dim1=1, dim2=2).add_(1e-3)
        self.factor = torch.linalg.cholesky(gram)

    def multipliers(self, pulls: Tensor) -> Tensor:
        """λ [r, k] that minimises ‖p + Jᵀλ‖² for p [r, n]."""
        if self.tall:
            found = self.scaled @ self._solve(pulls[:, :, None])
        else:
            found = self._solve(self.scaled @ pulls[:, :, None])
        return -found[:, :, 0] / self.sizes

    def correction(self, sigma: Tensor) -> Tensor:
        """The shortest d [r, n] with J d = −σ for σ [r, k]."""
        wanted = (sigma / self.sizes)[:, :, None]
        found = self._solve(self.scaled.mT @ wanted) if self.tall else self.scaled.mT @ self._solve(wanted)
        return -found[:, :, 0]

    def _solve(self, right: Tensor) -> Tensor:
        return torch.cholesky_solve(right, self.factor)


class Jacobian:
    """∂σ_c(l)/∂ŷ_l of every column c, by one backward pass over all columns where the functions allow it.

    A row of σ depends on its own row of ŷ alone, so that Σ_l σ_c(l) has the gradients of all rows at once.
    """

    def __init__(self, constraint: Constraint, sigma: Tensor, nu: Tensor, sources: Sequence[Tensor]) -> None:
        self.constraint, self.sigma, self.nu, self.sources = constraint, sigma.detach(), nu, sources
        width = sigma.shape[-1]
        step = max(1, ENTRIES // max(1, sum(leaf.numel() for leaf in sources)))
        eye = torch.eye(width, dtype=sigma.dtype, device=sigma.device)
        parts = [self._gradients(sigma, eye[start : start + step]) for start in range(0, width, step)]
        self.parts = [torch.cat(part) for part in zip(*parts, strict=True)]  # of each source: [k, *shape]

    def _gradients(self, sigma: Tensor, columns: Tensor) -> list[Tensor]:
        weights = columns if sigma.ndim == 1 else columns[:, None, :].expand(-1, len(sigma), -1)
        try:
            found = torch.autograd.grad(
                sigma, self.sources, weights, is_grads_batched=True, retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # a function without a batched backward pass
            each = [
                torch.autograd.grad(sigma, self.sources, weight, retain_graph=True, allow_unused=True)
                for weight in weights
            ]
            found = tuple(
                torch.stack([leaf.new_zeros(leaf.shape) if part is None else part for part in some])
                for leaf, some in zip(self.sources, zip(*each, strict=True), strict=True)
            )
        return [
            leaf.new_zeros(len(weights), *leaf.shape) if part is None else part.detach()
            for part, leaf in zip(found, self.sources, strict=True)
        ]

    def norm(self, order: int) -> Tensor:
        """The norm of each column's gradient over all rows, [k]."""
        norms = [torch.linalg.vector_norm(part.flatten(1), order, dim=1) for part in self.parts]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms), order, dim=0)
        return total

    def rows(self, chosen: Tensor) -> Tensor:
        """J of some rows: [r, k, n]."""
        return torch.cat([part[:, chosen].flatten(2) for part in self.parts], 2).transpose(0, 1)

    def near(self) -> Tensor:
        """[rows, k]: 1 for equalities, and for inequalities that are violated or about to be, by a thousandth of S."""
        if self.constraint.kind == "equality":
            return torch.ones_like(self.sigma)
        reach = torch.maximum(self.nu.mean(0), 1e-3 * self.norm(2) / math.sqrt(len(self.sigma)))
        return (self.sigma > -reach).to(self.sigma.dtype)


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

"""Projections: the nearest point to z that satisfies h(y) ≤ 0, or h(y) = 0, for many problems at once.

    min ½‖y − z‖²  subject to  h_i(y) ≤ 0, or h_i(y) = 0

`project` solves it for linear h by an active set on the dual. `nearest` linearises h repeatedly (sequential quadratic
programming); a linear h needs one linearisation. `Nearest` has the derivative of y with respect to z.

Shapes: Q problems with N variables and m functions each. The rows of a batch are Q problems; rows that are coupled, by
pairs or groups, are one problem, Q = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROUNDS = 200
"""Maximum number of active sets tried by `project`."""
EXACT = 1e-12
"""Accuracy of `project`, relative to the largest distance from w to a bound that it violates."""
CLOSE = 1e-6
"""Accuracy, relative as well, at which `project` may return a result if it cannot reach `EXACT`."""
STEP = 1e-9
"""`nearest` has converged if the next step is shorter than this, relative to 1 + ‖y − z‖."""
RESTORE = 0.2
"""The last share of the linearisations of `nearest` gives up on the shortest distance where h does not hold yet."""


class Jacobian(ABC):
    """J [Q, m, N], with every row divided by its norm: residuals are then distances."""

    norm: Tensor
    """[Q or 1, m] norms of the original rows; 1 for a row of zeros."""
    small: tuple[float, ...]
    """δ, from first to last: it makes J_A J_Aᵀ + δI invertible, and `project` repeats until it has no influence."""
    free: int
    """Active sets that `project` tries before it shortens steps."""

    @abstractmethod
    def times(self, y: Tensor) -> Tensor:
        """J y: [Q, N] → [Q, m]"""

    @abstractmethod
    def transposed(self, multipliers: Tensor) -> Tensor:
        """Jᵀ λ: [Q, m] → [Q, N]"""

    @abstractmethod
    def gram(self, multipliers: Tensor) -> Tensor:
        """J Jᵀ λ: [Q, m] → [Q, m]"""

    @abstractmethod
    def solve(self, active: Tensor, right: Tensor, delta: Tensor) -> Tensor:
        """λ with (J_A J_Aᵀ + δI) λ_A = right_A and λ = 0 elsewhere. [Q, m] bool, [Q, m], [Q, 1] → [Q, m]"""

    @abstractmethod
    def pick(self, problems: Tensor) -> Jacobian:
        """The Jacobian of these problems only."""


class Dense(Jacobian):
    """Many small problems: dense matrices and batched Cholesky factors. A J that all problems share is stored once.

    Args:
        matrix: [Q, m, N]
    """

    small = (1e-8,)
    free = 10  # most problems need fewer, and full steps need fewer than short ones

    def __init__(self, matrix: Tensor) -> None:
        if len(matrix) > 1 and bool((matrix == matrix[:1]).all()):
            matrix = matrix[:1]
        norm = torch.linalg.vector_norm(matrix, dim=2)
        self.norm = torch.where(norm > 0, norm, 1.0)
        self.matrix = matrix / self.norm[:, :, None]
        self.product = self.matrix @ self.matrix.mT

    def times(self, y: Tensor) -> Tensor:
        """J y"""
        return _apply(self.matrix, y)

    def transposed(self, multipliers: Tensor) -> Tensor:
        """Jᵀ λ"""
        return _apply(self.matrix.mT, multipliers)

    def gram(self, multipliers: Tensor) -> Tensor:
        """J Jᵀ λ"""
        return _apply(self.product, multipliers)

    def solve(self, active: Tensor, right: Tensor, delta: Tensor) -> Tensor:
        """Factorise the active rows of every problem; those that all problems share, such as equalities, only once."""
        shared = active.all(0) if len(self.product) == 1 else active.new_zeros(active.shape[1])
        if not bool(shared.any()):
            return _factorised(self.product, active, right, delta)[0]
        whole, ours = self.product[0], shared.nonzero()[:, 0]
        factor = torch.linalg.cholesky(whole[ours][:, ours] + delta[0] * torch.eye(len(ours)).to(whole))
        weights = torch.cholesky_solve(whole[ours], factor)  # [shared, m]
        rest = (whole - whole[:, ours] @ weights)[None]
        found, definite = _factorised(rest, active & ~shared, right - right[:, ours] @ weights, delta)
        if not definite:  # rounding, where rows are nearly redundant
            return _factorised(self.product, active, right, delta)[0]
        found[:, ours] = torch.cholesky_solve((right - _apply(self.product, found))[:, ours].mT, factor).mT
        return found

    def pick(self, problems: Tensor) -> Dense:
        """The matrices of these problems; the same object if all share one."""
        if len(self.matrix) == 1:
            return self
        part = object.__new__(Dense)
        part.norm, part.matrix, part.product = self.norm[problems], self.matrix[problems], self.product[problems]
        return part


class Sparse(Jacobian):
    """One large problem, by its entries: products only, and conjugate gradients.

    Args:
        rows: [entries] row of each entry.
        columns: [entries] column of each entry.
        entries: [entries]
        shape: m, N
    """

    small = tuple(0.1**power for power in range(7))
    free = 0

    def __init__(self, rows: Tensor, columns: Tensor, entries: Tensor, shape: tuple[int, int]) -> None:
        kept = entries != 0
        self.rows, self.columns, entries = rows[kept], columns[kept], entries[kept]
        self.shape = shape
        norm = entries.new_zeros(shape[0]).index_add(0, self.rows, entries.square()).sqrt()
        self.norm = torch.where(norm > 0, norm, 1.0)[None]
        self.entries = entries / self.norm[0, self.rows]

    def times(self, y: Tensor) -> Tensor:
        """J y"""
        return y.new_zeros(1, self.shape[0]).index_add(1, self.rows, self.entries * y[:, self.columns])

    def transposed(self, multipliers: Tensor) -> Tensor:
        """Jᵀ λ"""
        right = self.entries * multipliers[:, self.rows]
        return multipliers.new_zeros(1, self.shape[1]).index_add(1, self.columns, right)

    def gram(self, multipliers: Tensor) -> Tensor:
        """J Jᵀ λ"""
        return self.times(self.transposed(multipliers))

    def solve(self, active: Tensor, right: Tensor, delta: Tensor) -> Tensor:
        """λ_A = (right − J x)_A/δ, with (J_Aᵀ J_A + δI) x = J_Aᵀ right: redundant rows do not slow it down."""
        kept = active[0, self.rows]
        part = object.__new__(Sparse)
        part.rows, part.columns, part.entries = self.rows[kept], self.columns[kept], self.entries[kept]
        part.shape = self.shape
        right = torch.where(active, right, 0.0)
        x = conjugate(lambda p: part.transposed(part.times(p)) + delta * p, part.transposed(right))
        return torch.where(active, right - part.times(x), 0.0) / delta

    def pick(self, problems: Tensor) -> Sparse:
        """The same: there is one problem."""
        return self


def _factorised(product: Tensor, active: Tensor, right: Tensor, delta: Tensor) -> tuple[Tensor, bool]:
    """λ of `Jacobian.solve`, and whether all matrices were positive definite.

    The active rows of every problem are gathered, padded to the largest number of them. product: [Q or 1, m, m]
    """
    most = int(active.sum(1).max())
    order = active.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    present = active.gather(1, order)
    problem = torch.arange(len(product), device=order.device)[:, None, None]
    chosen = product[problem, order[:, :, None], order[:, None, :]]
    chosen = torch.where(present[:, :, None] & present[:, None, :], chosen, 0.0)
    chosen.diagonal(dim1=1, dim2=2).add_(torch.where(present, delta, 1.0))
    factor, info = torch.linalg.cholesky_ex(chosen)
    rights = torch.where(present, right.gather(1, order), 0.0)
    found = torch.cholesky_solve(rights[:, :, None], factor)[:, :, 0]
    return torch.zeros_like(right).scatter(1, order, found), not bool(info.any())


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """matrix · vector for every problem; one product if all have the same matrix."""
    return vector @ matrix[0].mT if len(matrix) == 1 else (matrix @ vector[:, :, None])[:, :, 0]


def conjugate(
    operator: Callable[[Tensor], Tensor], right: Tensor, rounds: int = 2000, accuracy: float = 1e-13
) -> Tensor:
    """x with operator(x) = right, by conjugate gradients, for every problem. [Q, N] → [Q, N]

    A problem stops at the accuracy, relative to the right-hand side, or at a direction without positive curvature.
    """
    x, residual, direction = torch.zeros_like(right), right, right
    size = residual.square().sum(1, keepdim=True)
    goal = accuracy**2 * size
    going = size > 0
    for _ in range(rounds):
        if not bool(going.any()):
            break
        image = operator(direction)
        bend = (direction * image).sum(1, keepdim=True)
        going &= bend > 0
        way = torch.where(going, size / torch.where(bend > 0, bend, 1.0), 0.0)
        x, residual = x + way * direction, residual - way * image
        smaller = residual.square().sum(1, keepdim=True)
        going &= smaller > goal
        direction = torch.where(going, residual + smaller / torch.where(size > 0, size, 1.0) * direction, 0.0)
        size = smaller
    return x


def project(jacobian: Jacobian, target: Tensor, bound: Tensor, equal: Tensor) -> tuple[Tensor, Tensor]:
    """The projection of w onto J y ≤ b (= b where `equal`), and its multipliers: y = w − Jᵀλ, λ ≥ 0 where not `equal`.

    The dual, min ½ λᵀ J Jᵀ λ − λᵀ(J w − b), is solved by the proximal point method: δ/2 ‖λ − λ̄‖² makes each of its
    problems strictly convex, also if rows of J are redundant. Each is solved by a semismooth Newton method with a line
    search: solve with the active rows, A = {i: J_i y − b_i + δ λ̄_i > 0}, until A stays the same. If no y satisfies all
    rows, the result minimises the sum of their squares (rows as normalised).

    Args:
        jacobian: J.
        target: [Q, N] w.
        bound: [Q, m] b, of the normalised rows; infinite for rows that do not matter.
        equal: [Q, m] bool.

    >>> row = Dense(torch.tensor([[[1.0, 1.0]]], dtype=torch.float64))  # normalised: (y₁ + y₂)/√2
    >>> w, b = torch.tensor([[2.0, 3.0]], dtype=torch.float64), 3 / row.norm
    >>> project(row, w, b, torch.tensor([[False]]))[0]
    tensor([[1.0000, 2.0000]], dtype=torch.float64)
    """
    c, fixed, work = jacobian.times(target) - bound, equal, jacobian
    value = image = centre = torch.zeros_like(c)  # λ, J Jᵀ λ and λ̄
    scale = torch.where(equal, c.abs(), c.clamp_min(0)).amax(1)  # of what is violated
    sizes = c.new_tensor(jacobian.small)
    stage = torch.zeros(len(c), dtype=torch.int64, device=c.device)
    before = torch.full_like(scale, torch.inf)
    result, best = torch.zeros_like(c), torch.full_like(scale, torch.inf)
    live = torch.arange(len(c), device=c.device)
    for number in range(ROUNDS):
        delta = sizes[stage][:, None]
        active = fixed | (c - image + delta * centre > 0)
        base = torch.where(active, centre, 0.0)
        # The increment, not λ itself, is solved for: this is iterative refinement as well.
        found = base + work.solve(active, c - work.gram(base), delta)
        product = work.gram(found)
        rest = c - product
        shifted = rest + delta * centre
        gap = (torch.where(fixed, shifted, shifted.clamp_min(0)) - delta * found).abs().amax(1)
        same = (active == (fixed | (shifted > 0))).all(1) | (gap <= EXACT * scale)
        start, value, image = (value, image), found, product
        if number >= work.free:
            most = _augmented(*start, c, centre, fixed, delta) * (1 + 1e-12)
            share = torch.ones_like(delta)
            for _ in range(30):
                worse = (_augmented(value, image, c, centre, fixed, delta) > most) & ~same
                if not bool(worse.any()):
                    break
                share = torch.where(worse[:, None], share / 2, share)
                value, image = start[0] + share * (found - start[0]), start[1] + share * (product - start[1])
        error = torch.where(active, rest.abs(), rest.clamp_min(0)).amax(1)
        wrong = torch.maximum(error, torch.where(fixed, 0.0, -found).amax(1))
        # At a vertex of many rows, rounding may lead away from the solution again: the best is kept.
        wrong = torch.where(same | (wrong <= CLOSE * scale), wrong, torch.inf)
        better = (wrong < best[live]) | torch.isinf(best[live])
        result[live[better]] = torch.where(fixed, found, found.clamp_min(0))[better]
        best[live[better]] = wrong[better]
        last = stage == len(sizes) - 1
        ended = (wrong <= EXACT * scale) | (same & last & (error > 0.9 * before))
        before = torch.where(same & last, error, before)
        stage = torch.where(same & ~last, stage + 1, stage)
        centre = torch.where(same[:, None], found, centre)
        if bool(ended.any()):
            kept = (~ended).nonzero()[:, 0]
            if not len(kept):
                break
            work, live = work.pick(kept), live[kept]
            c, fixed, value, image, centre = c[kept], fixed[kept], value[kept], image[kept], centre[kept]
            before, scale, stage = before[kept], scale[kept], stage[kept]
    return target - jacobian.transposed(result), result


def _augmented(
    multipliers: Tensor, image: Tensor, excess: Tensor, centre: Tensor, equal: Tensor, delta: Tensor
) -> Tensor:
    """½‖Jᵀλ‖² + ‖[J y − b + δ λ̄]₊‖²/2δ at y = w − Jᵀλ, the function that Newton's method minimises. [Q]"""
    shifted = excess - image + delta * centre
    shifted = torch.where(equal, shifted, shifted.clamp_min(0))
    return 0.5 * (multipliers * image).sum(1) + shifted.square().sum(1) / (2 * delta[:, 0])


class Functions(ABC):
    """h(y) of all problems: what `nearest` needs to know."""

    equal: Tensor
    """[m] bool: h = 0 instead of h ≤ 0."""
    limit: Tensor
    """[m] the largest h, or |h|, that counts as satisfied."""

    @abstractmethod
    def value(self, y: Tensor, problems: Tensor) -> Tensor:
        """h of these problems at y, differentiable: [Q, N] → [Q, m]"""

    @abstractmethod
    def linear(self, y: Tensor, problems: Tensor) -> tuple[Tensor, Jacobian]:
        """h and its Jacobian at y: [Q, N] → [Q, m]"""

    @abstractmethod
    def blocks(self, problems: Tensor) -> tuple[Tensor, ...]:
        """The problems in blocks that fit into memory."""

    def excess(self, h: Tensor) -> Tensor:
        """How far h is beyond its bound: h₊ or |h|. Values that are not finite are infinitely far."""
        return torch.where(self.equal, h.abs(), h.clamp_min(0)).nan_to_num(torch.inf, torch.inf, 0.0)

    def holds(self, h: Tensor) -> Tensor:
        """[Q] whether every function is within its limit."""
        return (self.excess(h) <= self.limit).all(1)


@dataclass
class Solution:
    """The nearest points, and what their derivative needs."""

    y: Tensor
    """[Q, N]"""
    multipliers: Tensor
    """[Q, m] μ, in units of h: y − z + Σ μ_i ∇h_i(y) = 0; 0 for functions that are not active."""
    iterations: int
    """The largest number of linearisations of a problem."""


@torch.no_grad()
def nearest(functions: Functions, z: Tensor, iterations: int) -> Solution:
    """The nearest y with h(y) ≤ 0 or = 0, for every problem, by sequential quadratic programming.

    y⁺ is the projection of y + (z − y)/γ onto the linearised functions at y, a step of the quadratic program with the
    Hessian γI. γ is 1 at first; then it is the curvature of ½‖y − z‖² + Σ μh along the last step, which is more or
    less than 1 if h is curved. Steps are shortened until ½‖y − z‖² + c Σ |h|₊ decreases. A problem that satisfies its
    functions at z keeps z, bit for bit; linear functions are solved by the first projection.
    """
    every = torch.arange(len(z), device=z.device)
    solution = Solution(z.clone(), z.new_zeros(len(z), len(functions.limit)), 0)
    for block in functions.blocks(every):
        moving = block[~functions.holds(functions.value(z[block], block))]
        if len(moving):
            _approach(functions, z, moving, iterations, solution)
    return solution


def _approach(functions: Functions, start: Tensor, live: Tensor, iterations: int, solution: Solution) -> None:
    """`nearest` for some problems; writes to the solution."""
    z = y = start[live]
    gamma = torch.ones_like(y[:, :1])
    step, multipliers, jacobian = y, solution.multipliers[live], None
    for number in range(iterations):
        h, fresh = functions.linear(y, live)
        if jacobian is not None:
            # The change of the Lagrangian's gradient along the last step gives its curvature.
            bent = step + fresh.transposed(multipliers * fresh.norm) - jacobian.transposed(multipliers * jacobian.norm)
            gamma = ((step * bent).sum(1) / step.square().sum(1).clamp_min(1e-300))[:, None].clamp(0.05, 1e6)
        jacobian = fresh
        if number >= (1 - RESTORE) * iterations:
            gamma = torch.full_like(gamma, 1e6)
        equal = functions.equal.expand_as(h)
        bound = jacobian.times(y) - h / jacobian.norm
        aim, found = project(jacobian, y + (z - y) / gamma, bound, equal)
        price = 2 * (gamma * found).abs().amax(1)
        step, share = aim - y, torch.ones_like(gamma)
        merit = _merit(functions, y, z, h, jacobian, price)
        gain = 1e-4 * (gamma * step.square()).sum(1)
        model = h + jacobian.norm * jacobian.times(step)
        size = torch.maximum(h.abs(), (h - model).abs())
        size = 1e-12 * (size + size.amax(1, keepdim=True))
        tried, reached = aim, functions.value(aim, live)
        exact = ((reached - model).abs() <= size).all(1) & (
            gamma[:, 0] == 1
        )  # h is linear: the projection is the result
        for _ in range(30):
            least = merit * (1 + 1e-14) - share[:, 0] * gain
            better = exact | (_merit(functions, tried, z, reached, jacobian, price) <= least)
            if bool(better.all()):
                break
            share = torch.where(better[:, None], share, share / 2)
            tried = y + share * step
            reached = functions.value(tried, live)
        y, step, multipliers = tried, share * step, gamma * found / jacobian.norm
        solution.y[live], solution.multipliers[live] = y, multipliers
        solution.iterations = max(solution.iterations, number + 1)
        holds = functions.holds(reached)
        short = step.norm(dim=1) <= STEP * (1 + (y - z).norm(dim=1))
        # A linear problem that does not hold after a second projection has no solution.
        ended = (holds & (exact | short)) | (~holds & exact & (number > 0))
        if number + 1 >= (1 - RESTORE) * iterations:
            ended |= holds
        kept = (~ended).nonzero()[:, 0]
        if not len(kept):
            break
        if len(kept) < len(live):
            live, jacobian = live[kept], jacobian.pick(kept)
            y, z, step, gamma, multipliers = y[kept], z[kept], step[kept], gamma[kept], multipliers[kept]


def _merit(functions: Functions, y: Tensor, z: Tensor, h: Tensor, jacobian: Jacobian, price: Tensor) -> Tensor:
    """½‖y − z‖² + c Σ |h|₊, with h in units of distance. [Q]"""
    return 0.5 * (y - z).square().sum(1) + price * (functions.excess(h) / jacobian.norm).sum(1)


class Nearest(torch.autograd.Function):
    """The nearest point y of z, with dy/dz by the implicit function theorem at y.

    With the active functions A, y − z + Σ μ_i ∇h_i(y) = 0 and h_A(y) = 0. So dy is the solution of P (I + H) dy = P dz
    with dy = P dy: P is the projection on the null space of J_A, and H = Σ μ_i ∇²h_i. For linear functions H = 0 and
    dy = P dz. A problem that did not move has dy = dz.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, functions: Functions, solution: Solution) -> Tensor:
        """The solution for z, found before."""
        ctx.functions, ctx.solution = functions, solution
        return solution.y.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Solve P (I + H) w = P g; the matrix is symmetric."""
        functions, solution = ctx.functions, ctx.solution
        result = gradients[0].clone()
        moved = (solution.multipliers != 0).any(1).nonzero()[:, 0]
        for block in functions.blocks(moved):
            if len(block):
                result[block] = _derivative(functions, solution, block, result[block])
        return result, None, None


def _derivative(functions: Functions, solution: Solution, problems: Tensor, gradient: Tensor) -> Tensor:
    """w of some problems. [Q, N] → [Q, N]"""
    multipliers = solution.multipliers[problems]
    active = multipliers != 0
    _, jacobian = functions.linear(solution.y[problems], problems)
    bound = torch.where(active, 0.0, torch.inf)

    def tangent(vector: Tensor) -> Tensor:
        return project(jacobian, vector, bound, active)[0]

    right = tangent(gradient)
    with torch.enable_grad():
        y = solution.y[problems].detach().requires_grad_()
        (slope,) = torch.autograd.grad((multipliers * functions.value(y, problems)).sum(), y, create_graph=True)
    if not slope.requires_grad:
        return right

    def curved(vector: Tensor) -> Tensor:
        bent = torch.autograd.grad(slope, y, vector, retain_graph=True, allow_unused=True)[0]
        return right.new_zeros(right.shape) if bent is None else bent

    return conjugate(lambda vector: vector + tangent(curved(vector)), right, rounds=200, accuracy=1e-10)

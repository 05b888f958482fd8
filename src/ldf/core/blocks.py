"""Stacked constraints of one scope: their degrees as columns, their penalty as one product, and their sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .scope import ConstraintError, Side

if TYPE_CHECKING:
    from .constraint import Constraint
    from .multiplier import Multiplier


SHARP = 2.0**-50
"""Knee of a column without smoothing, in σ's units: a power of two, so that λ/knee·knee is λ."""


class Block(nn.Module):
    """The stacked constraints of one scope: σ [rows, K] → Σ λν, and the sums of an epoch. Rows are samples or pairs.

    σ − clamp(σ, low, high) subtracts the slack. The degree is max(σ, floor·σ), with floor 0 for max(0, σ), −1 for |σ|
    and 1 for plain σ. Its price is the sum of a term λ·h(ν), which is smooth up to the knee δ (Huber), and ½ρν². With
    m = clamp(σ, floor·δ, δ) and r = clamp(σ, offset, ∞), whose offset is 0 for max(0, σ), −λ/ρ for the augmented term
    of plain σ ≤ 0 and −∞ otherwise, its slope is (λ/δ)·m + ρ·r, linear in what was clamped. All are vectors of
    length K; λ, ρ and offset are tables [N, K] with a multiplier per row.
    """

    floor: Tensor
    weight: Tensor
    offset: Tensor
    curvature: Tensor
    knee: Tensor
    low: Tensor
    high: Tensor
    least: Tensor
    most: Tensor
    gain: Tensor
    own_floor: Tensor
    sums: Tensor
    visits: Tensor
    violations: Tensor
    maxima: Tensor
    count: Tensor

    def __init__(self, multipliers: Sequence[Multiplier], rows: int | None, like: Tensor) -> None:
        super().__init__()
        self.multipliers = tuple(multipliers)  # a tuple, because the Lagrangian registers the modules
        self.constraints = tuple(m.constraint for m in multipliers)
        self.scope = self.constraints[0].scope
        self.per_row = multipliers[0].kind == "sample"
        self.observable = all(c.observable for c in self.constraints)
        self.slackened = any(c.slack for c in self.constraints)
        self.signed = any(m.degree == "satisfiability" for m in multipliers)
        self.shaped = any(m.curved or m.rule.knee > 0 for m in multipliers)
        self.idle = False  # whether λ and ρ are 0
        self.widths = widths = [m.columns for m in multipliers]
        ends = torch.tensor(widths).cumsum(0).tolist()
        self.slices = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        columns = sum(widths)
        table = (rows or 0, columns) if self.per_row else (columns,)

        def buffer(name: str, shape: tuple[int, ...], persistent: bool = True) -> None:
            self.register_buffer(name, like.new_zeros(shape), persistent)

        for name in ("floor", "low", "high", "own_floor"):
            buffer(name, (columns,), persistent=False)
        for name in ("weight", "offset", "curvature"):
            buffer(name, table, persistent=False)
        for name in ("least", "most", "gain"):
            buffer(name, (2, 1, columns), persistent=False)
        buffer("knee", (columns,))
        buffer("sums", table)
        buffer("visits", (rows or 0,) if self.per_row else ())
        buffer("violations", (columns,))
        buffer("maxima", (columns,))
        buffer("count", (1,))  # not []: torch.compile loses in-place additions to a 0-d float64 tensor
        for multiplier, part in zip(self.multipliers, self.slices, strict=True):
            constraint = multiplier.constraint
            floor = -1.0 if constraint.kind == "equality" else 0.0
            self.own_floor[part] = floor
            self.floor[part] = 1.0 if multiplier.degree == "satisfiability" else floor
            self.offset[..., part] = 0.0 if float(self.floor[part][0]) == 0.0 else -math.inf

    def evaluate(self, side: Side) -> Tensor:
        """σ of all constraints, concatenated: [rows, K]."""
        rows = self.scope.rows(side.predictions)
        found = [
            constraint.evaluate(*side, rows, width)
            for constraint, width in zip(self.constraints, self.widths, strict=True)
        ]
        return (found[0] if len(found) == 1 else torch.cat(found, 1)).to(self.sums.dtype)

    def degree(self, sigma: Tensor) -> Tensor:
        """ν, or σ for degree="satisfiability", from σ with the slack subtracted: [rows, K]."""
        bounded = torch.maximum(sigma, self.offset)
        return torch.maximum(bounded, bounded * self.floor)

    def relaxed(self, sigma: Tensor) -> Tensor:
        """σ − ε for inequalities; for equalities, σ shrunk towards zero by ε."""
        return sigma - torch.clamp(sigma, self.low, self.high) if self.slackened else sigma

    def forward(self, total: Tensor, side: Side, remember: bool) -> Tensor:
        """Add Σ_i λ_i mean_l ν_i(l) to the total, and this batch to the epoch's sums.

        Args:
            total: the loss so far.
            side: the rows l.
            remember: whether to add this batch to the sums.
        """
        sigma = self.relaxed(self.evaluate(side))
        present = self.scope.present(side.batch)
        ids = None
        if self.per_row:
            ids = getattr(side.batch, "ids", None)
            if ids is None:
                raise ConstraintError(
                    f"constraint {self.constraints[0].name!r} has a multiplier per sample: the batch needs `ids`"
                )
        if present is not None:
            sigma = sigma * present[:, None]
        price, degree = self.price(sigma, ids)
        if remember:
            self.accumulate(sigma.detach(), degree, ids, present)
        if present is not None:
            return total + price / present.sum().clamp_min(1)
        return torch.add(total, price, alpha=1 / sigma.shape[0])

    def price(self, sigma: Tensor, ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Σ_l Σ_i λ_i ν_i(l), with Huber smoothing and ½ρν² where a rule has them, and the degrees [rows, K].

        The slope in σ is computed along with the value, so that the graph holds a single product with σ.

        Args:
            sigma: σ with the slack subtracted, [rows, K].
            ids: which rows these are, for a multiplier per row.
        """
        values = sigma.detach()
        if not self.shaped:
            slope = values.sign().clamp(min=self.floor)
            degree = values * slope
            slope = slope * (self.weight if ids is None else self.weight[ids])
            return inner(sigma, slope), degree
        gain, least = self.gain, self.least
        if ids is not None:
            gain, least = self.shape(self.weight[ids], self.curvature[ids], self.offset[ids])
        parts = torch.clamp(values, least, self.most)
        slopes = parts * gain
        rest = parts[1]
        degree = torch.maximum(rest, rest * self.floor) if self.signed else rest.abs()
        linear = inner(sigma, slopes.sum(0))
        # Both terms are quadratic where they are not linear: σ times the slope counts the quadratic part twice.
        return torch.sub(linear, inner(slopes, parts), alpha=0.5), degree

    def shape(self, weight: Tensor, curvature: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """λ/δ and ρ, and the lower bounds of m and r: both [2, rows or 1, K]."""
        knee = torch.where(self.knee > 0, self.knee, SHARP)
        # The same λ, rounded so that λ + ρ·offset is exactly 0.
        weight = torch.where((self.floor > 0) & torch.isfinite(offset), -curvature * offset, weight)
        gain = torch.stack([weight / knee, curvature])
        least = torch.stack([(knee * self.floor).expand_as(offset), offset])
        return (gain, least) if self.per_row else (gain[:, None], least[:, None])

    def accumulate(self, sigma: Tensor, degree: Tensor, ids: Tensor | None, present: Tensor | None) -> None:
        """Add this batch to the epoch's sums; σ and the degrees are detached."""
        violation = torch.maximum(sigma, sigma * self.own_floor) if self.signed else degree
        self.maxima.copy_(torch.maximum(self.maxima, violation.amax(0)))
        self.violations.add_(violation.sum(0))
        self.count.add_(sigma.shape[0] if present is None else present.sum())
        if self.per_row:
            assert ids is not None
            self.sums.index_add_(0, ids, degree)
            seen = torch.ones_like(ids) if present is None else present
            self.visits.index_add_(0, ids, seen.to(self.visits.dtype))
        elif self.signed:
            self.sums.add_(degree.sum(0))

    def totals(self) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors to sum over processes, and those to take the maximum of."""
        return [self.sums, self.visits, self.violations, self.count], [self.maxima]

    def observe(self, side: Side) -> None:
        """Replace the sums since the last update by those of these rows alone."""
        self.reset()
        self(self.count.new_zeros(()), side, remember=True)

    def probe(self, constraint: Constraint, side: Side) -> tuple[Tensor, int]:
        """σ of one constraint as its multiplier sees it, and the number of rows in its mean."""
        sigma, present = constraint.evaluate(*side), self.scope.present(side.batch)
        if present is not None:
            sigma = sigma[present]
        return sigma, len(sigma)

    def share(self) -> None:
        """Called after the sums of all processes have been added up."""

    def settle(self) -> None:
        """Called before the dual update, to derive what follows from the epoch's sums."""

    def check(self) -> None:
        """Raise if the sums for the dual update are empty or not finite."""
        if self.scope.name is not None and not float(self.count) > 0:
            raise RuntimeError(
                f"constraint {self.constraints[0].name!r}: no pairs {self.scope.name!r} given since the last ascend()"
            )
        sound = torch.isfinite(self.violations) & torch.isfinite(self.maxima)
        for constraint, part in zip(self.constraints, self.slices, strict=True):
            if not bool(sound[part].all()):
                raise ConstraintError(
                    f"constraint {constraint.name!r}: its function returned a value that is not finite since the last "
                    "ascend()"
                )

    def observed(self) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors that pooled Lagrangians sum, and those they take the maximum of."""
        return self.totals()

    def outcome(self) -> list[tuple[Tensor, Tensor]]:
        """For every constraint: Σ of its degree, [k] or [N, k], and the number of rows in each entry."""
        if self.per_row:
            return [(self.sums[:, part], self.visits[:, None]) for part in self.slices]
        sums = self.sums if self.signed else self.violations
        return [(sums[part], self.count[0]) for part in self.slices]

    def statistics(self) -> list[tuple[Tensor, Tensor]]:
        """For every constraint: mean ν of each column over the epoch [k], and its maximum [k]."""
        means = self.violations / self.count.clamp_min(1)
        return [(means[part], self.maxima[part]) for part in self.slices]

    def reset(self) -> None:
        """Reset the sums for a new epoch."""
        for tensor in (*self.totals()[0], *self.totals()[1]):
            tensor.zero_()

    @torch.no_grad()
    def refresh(self, k: int, learned: bool = True) -> None:
        """Copy λ, ρ and ε to the columns after a change; `learned`: also take the knees from the epoch's ν."""
        for multiplier, part in zip(self.multipliers, self.slices, strict=True):
            constraint = multiplier.constraint
            slack = constraint.slack_at(k)
            self.high[part] = slack
            self.low[part] = -slack if constraint.kind == "equality" else slack
            # One multiplier for the whole constraint weights the mean of its columns.
            share = 1.0 / multiplier.columns if multiplier.kind == "constraint" else 1.0
            self.weight[..., part] = multiplier.value * share
            if multiplier.curved:
                penalty = multiplier.curvature
                self.curvature[..., part] = penalty * share
                if constraint.kind == "inequality" and multiplier.degree == "satisfiability":
                    small = torch.finfo(penalty.dtype).tiny
                    self.offset[..., part] = torch.where(penalty > small, -multiplier.value / penalty, 0.0)
            if multiplier.rule.knee > 0 and multiplier.degree == "violation" and learned:
                means = self.violations[part] / self.count.clamp_min(1)
                knee = multiplier.rule.knee * (means if multiplier.kind == "column" else means.mean())
                self.knee[part] = torch.maximum(knee, multiplier.tolerance)
        self.idle = not (bool(self.weight.any()) or bool(self.curvature.any()))
        self.arrange()

    @torch.no_grad()
    def arrange(self) -> None:
        """Derive the bounds and gains of a step from λ, ρ, offsets and knees, after any of these has changed."""
        self.most[0], self.most[1] = torch.where(self.knee > 0, self.knee, SHARP), math.inf
        if not self.per_row:
            gain, least = self.shape(self.weight, self.curvature, self.offset)
            self.gain.copy_(gain)
            self.least.copy_(least)


def inner(first: Tensor, second: Tensor) -> Tensor:
    """Σ of the products of all entries."""
    if torch.compiler.is_compiling():  # compiled, flat tensors would be indexed by divisions
        return (first * second).sum()
    return torch.dot(first.reshape(-1), second.reshape(-1))

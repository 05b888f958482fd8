"""Stacked constraints of one scope: their degrees as columns, their penalty as one product, and their sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .scope import ConstraintError, Side

if TYPE_CHECKING:
    from .constraint import Constraint
    from .multiplier import Multiplier


class Block(nn.Module):
    """The stacked constraints of one scope: σ [rows, K] → Σ λν, and the sums of an epoch. Rows are samples or pairs.

    σ − clamp(σ, low, high) subtracts the slack. max(σ, offset + floor·σ) is max(0, σ) for floor 0, |σ| for −1, σ for 1,
    and the augmented Lagrangian's term for floor 0 and offset −λ/ρ. All are vectors of length K.
    """

    floor: Tensor
    weight: Tensor
    offset: Tensor
    curvature: Tensor
    knee: Tensor
    low: Tensor
    high: Tensor
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
        self.per_row = self.constraints[0].multiplier == "sample"
        self.observable = all(c.observable for c in self.constraints)
        self.slackened = any(c.slack for c in self.constraints)
        self.signed = any(c.degree == "satisfiability" for c in self.constraints)
        self.curved = any(m.rule.curved for m in multipliers)
        self.smoothed = any(m.rule.smooths for m in multipliers)
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
            # The augmented term of σ ≤ 0 is bounded below by its offset.
            bounded = constraint.kind == "inequality" and multiplier.rule.curved
            self.floor[part] = 1.0 if constraint.degree == "satisfiability" and not bounded else floor

    def evaluate(self, side: Side) -> Tensor:
        """σ of all constraints, concatenated: [rows, K]."""
        rows = self.scope.rows(side.predictions)
        found = [
            constraint.evaluate(*side, rows, width)
            for constraint, width in zip(self.constraints, self.widths, strict=True)
        ]
        return (found[0] if len(found) == 1 else torch.cat(found, 1)).to(self.sums.dtype)

    def degree(self, sigma: Tensor, offset: Tensor | None) -> Tensor:
        """ν, or σ for degree="satisfiability", from σ with the slack subtracted: [rows, K]."""
        if offset is None:
            # σ times its slope (1 above zero, the floor below) is cheaper to differentiate than the maximum.
            return sigma * sigma.detach().sign().clamp(min=self.floor)
        return torch.maximum(sigma, torch.addcmul(offset, self.floor, sigma))

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
        sigma = self.evaluate(side)
        present = self.scope.present(side.batch)
        rows = sigma.shape[0]
        weight, curvature = self.weight, self.curvature
        offset = self.offset if self.curved else None
        ids = None
        if self.per_row:
            ids = getattr(side.batch, "ids", None)
            if ids is None:
                raise ConstraintError(
                    f"constraint {self.constraints[0].name!r} has a multiplier per sample: the batch needs `ids`"
                )
            weight = weight[ids]
            if self.curved:
                offset, curvature = self.offset[ids], curvature[ids]
        sigma = self.relaxed(sigma)
        degree = self.degree(sigma, offset)
        if present is not None:
            sigma, degree = sigma * present[:, None], degree * present[:, None]
        totals = degree.sum(0)
        if remember:
            self.accumulate(sigma.detach(), degree.detach(), totals.detach(), ids, present)
        price = self.price(degree, totals, weight, curvature)
        if present is not None:
            return total + price / present.sum().clamp_min(1)
        return torch.add(total, price, alpha=1 / rows)

    def price(self, degree: Tensor, totals: Tensor, weight: Tensor, curvature: Tensor) -> Tensor:
        """Σ_l Σ_i λ_i ν_i(l), with Huber smoothing or ½ρν² if the rule has it. degree: [rows, K]; totals: its sum."""
        if not (self.smoothed or self.curved):
            return (degree * weight).sum() if self.per_row else torch.dot(totals, weight)
        with torch.no_grad():
            value, slope = degree, torch.ones_like(degree)
            if self.smoothed:
                # ν²/2δ up to the knee δ, ν − δ/2 beyond it; a knee of 0 disables the smoothing.
                rounded = self.knee > 0
                slope = torch.where(rounded, (degree / torch.where(rounded, self.knee, 1.0)).clamp(max=1.0), 1.0)
                value = torch.where(rounded, slope * (degree - 0.5 * self.knee * slope), degree)
            value, slope = value * weight, slope * weight
            if self.curved:
                value, slope = value + 0.5 * curvature * degree.square(), slope + curvature * degree
        # Value and slope are known: one product with both replaces backpropagation through each step above.
        linear = (degree * slope).sum()
        return linear + (value.sum() - linear.detach())

    @torch.no_grad()
    def accumulate(
        self, sigma: Tensor, degree: Tensor, totals: Tensor, ids: Tensor | None, present: Tensor | None
    ) -> None:
        """Add this batch to the epoch's sums."""
        violation = torch.maximum(sigma, sigma * self.own_floor) if self.signed else degree
        self.maxima.copy_(torch.maximum(self.maxima, violation.amax(0)))
        self.violations.add_(totals if violation is degree else violation.sum(0))
        self.count.add_(sigma.shape[0] if present is None else present.sum())
        if self.per_row:
            assert ids is not None
            self.sums.index_add_(0, ids, degree)
            seen = torch.ones_like(ids) if present is None else present
            self.visits.index_add_(0, ids, seen.to(self.visits.dtype))
        elif violation is not degree:
            self.sums.add_(totals)

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
            share = 1.0 / multiplier.columns if constraint.multiplier == "constraint" else 1.0
            self.weight[..., part] = multiplier.value * share
            if multiplier.rule.curved:
                penalty = multiplier.curvature
                self.curvature[..., part] = penalty * share
                if constraint.kind == "inequality" and constraint.degree == "satisfiability":
                    small = torch.finfo(penalty.dtype).tiny
                    self.offset[..., part] = torch.where(penalty > small, -multiplier.value / penalty, 0.0)
            if multiplier.rule.smooths and constraint.degree == "violation" and learned:
                means = self.violations[part] / self.count.clamp_min(1)
                knee = means if constraint.multiplier == "column" else means.mean()
                self.knee[part] = knee.clamp_min(multiplier.tolerance)

"""Constraints of one scope, stacked: their degrees side by side, their penalty in one product, their sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .constraint import ConstraintError
from .dual import Augmented
from .multiplier import Multiplier
from .scopes import Groups

WINDOW = 1024.0
"""Rows a group's running mean looks back over; a quarter of the group where that is less."""


class Block(nn.Module):
    """The constraints of one scope, stacked: degrees [rows, K] → penalty, and an epoch's sums.

    σ − clamp(σ, low, high) takes the slack off; max(σ, offset + floor·σ) is max(0, σ) for floor 0, |σ| for −1, σ for
    1, and with floor 0 and offset −λ/ρ the augmented Lagrangian's. All are vectors of length K.
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
        self.multipliers = tuple(multipliers)  # a tuple: registered once, by the Lagrangian
        self.constraints = tuple(m.constraint for m in multipliers)
        self.per_row = rows is not None
        self.slackened = any(c.slack for c in self.constraints)
        self.signed = any(c.degree == "satisfiability" for c in self.constraints)
        self.curved = any(isinstance(m.rule, Augmented) for m in multipliers)
        self.smoothed = any(m.rule.smooths for m in multipliers)
        self.widths = widths = [m.columns for m in multipliers]
        ends = torch.tensor(widths).cumsum(0).tolist()
        self.slices = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        columns = sum(widths)
        table = (rows, columns) if rows is not None else (columns,)

        def buffer(name: str, shape: tuple[int, ...], persistent: bool = True) -> None:
            self.register_buffer(name, like.new_zeros(shape), persistent)

        for name in ("floor", "low", "high", "own_floor"):
            buffer(name, (columns,), persistent=False)
        for name in ("weight", "offset", "curvature"):
            buffer(name, table, persistent=False)
        buffer("knee", (columns,))
        buffer("sums", table)
        buffer("visits", (rows,) if rows is not None else ())
        buffer("violations", (columns,))
        buffer("maxima", (columns,))
        buffer("count", (1,))  # not []: torch.compile loses what is added to a float64 tensor without dimensions
        for multiplier, part in zip(self.multipliers, self.slices, strict=True):
            constraint = multiplier.constraint
            floor = -1.0 if constraint.kind == "equality" else 0.0
            self.own_floor[part] = floor
            # The augmented term of σ ≤ 0 is bounded below by its offset instead.
            bounded = constraint.kind == "inequality" and isinstance(multiplier.rule, Augmented)
            self.floor[part] = 1.0 if constraint.degree == "satisfiability" and not bounded else floor

    def degree(self, sigma: Tensor, offset: Tensor | None) -> Tensor:
        """ν, or σ where that was asked for; the slack taken off. [rows, K]"""
        if offset is None:
            # σ times its slope, 1 above zero and the floor below: cheaper to differentiate than the maximum.
            return sigma * sigma.detach().sign().clamp(min=self.floor)
        return torch.maximum(sigma, torch.addcmul(offset, self.floor, sigma))

    def relaxed(self, sigma: Tensor) -> Tensor:
        """σ − ε for inequalities, σ drawn towards zero by ε for equalities."""
        return sigma - torch.clamp(sigma, self.low, self.high) if self.slackened else sigma

    def forward(
        self, total: Tensor, sigma: Tensor, ids: Tensor | None, present: Tensor | None, remember: bool
    ) -> Tensor:
        """Adds Σ_i λ_i mean_l ν_i(l) to the total, and this batch to the epoch's sums.

        Args:
            total: the loss so far.
            sigma: [rows, K].
            ids: [rows] the rows' numbers, if there is a multiplier for each.
            present: [rows] bool, where rows that fill up a batch count for nothing.
            remember: whether to add to the sums.
        """
        rows = sigma.shape[0]
        weight, curvature = self.weight, self.curvature
        offset = self.offset if self.curved else None
        if self.per_row:
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
        """Σ_l Σ_i λ_i ν_i(l), with Huber's rounding or ½ρν² where a rule has it. degree: [rows, K]; totals: its sum."""
        if not (self.smoothed or self.curved):
            return (degree * weight).sum() if self.per_row else torch.dot(totals, weight)
        with torch.no_grad():
            value, slope = degree, torch.ones_like(degree)
            if self.smoothed:
                # ν²/2δ up to the knee δ, ν − δ/2 beyond it; a knee of 0 means none.
                rounded = self.knee > 0
                slope = torch.where(rounded, (degree / torch.where(rounded, self.knee, 1.0)).clamp(max=1.0), 1.0)
                value = torch.where(rounded, slope * (degree - 0.5 * self.knee * slope), degree)
            value, slope = value * weight, slope * weight
            if self.curved:
                value, slope = value + 0.5 * curvature * degree.square(), slope + curvature * degree
        # The value is known and so is its slope by ν: one product carries both, where autograd would retrace each step.
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
        """What processes add up, and what they take the maximum of."""
        return [self.sums, self.visits, self.violations, self.count], [self.maxima]

    def observe(self, sigma: Tensor, ids: Tensor | None, present: Tensor | None) -> None:
        """The sums of these rows alone, in the place of all since the last update."""
        self.reset()
        self(sigma.new_zeros(()), sigma, ids, present, remember=True)

    def observed(self) -> tuple[list[Tensor], list[Tensor]]:
        """What several Lagrangians add up to ascend together, and what they take the maximum of."""
        return self.totals()

    def outcome(self) -> list[tuple[Tensor, Tensor]]:
        """For every constraint: Σ of its degree, [k] or [N, k], and the number of rows behind each entry."""
        if self.per_row:
            return [(self.sums[:, part], self.visits[:, None]) for part in self.slices]
        sums = self.sums if self.signed else self.violations
        return [(sums[part], self.count[0]) for part in self.slices]

    def statistics(self) -> list[tuple[Tensor, Tensor]]:
        """For every constraint: mean ν of each column over the epoch [k], and its maximum [k]."""
        means = self.violations / self.count.clamp_min(1)
        return [(means[part], self.maxima[part]) for part in self.slices]

    def reset(self) -> None:
        """A new epoch begins."""
        for tensor in (*self.totals()[0], *self.totals()[1]):
            tensor.zero_()

    @torch.no_grad()
    def refresh(self, k: int, learned: bool = True) -> None:
        """Lay λ, ρ, ε out over the columns, after they have changed; `learned`: take the knees from the epoch's ν."""
        for multiplier, part in zip(self.multipliers, self.slices, strict=True):
            constraint = multiplier.constraint
            slack = constraint.slack_at(k)
            self.high[part] = slack
            self.low[part] = -slack if constraint.kind == "equality" else slack
            # One multiplier for the whole constraint weighs the mean of its columns.
            share = 1.0 / multiplier.columns if constraint.multiplier == "constraint" else 1.0
            self.weight[..., part] = multiplier.value * share
            if isinstance(multiplier.rule, Augmented):
                penalty = multiplier.state()["penalty"] * multiplier.unit
                if multiplier.rule.normalise:
                    penalty = penalty / multiplier.scale.clamp_min(torch.finfo(penalty.dtype).tiny)
                self.curvature[..., part] = penalty * share
                if constraint.kind == "inequality" and constraint.degree == "satisfiability":
                    small = torch.finfo(penalty.dtype).tiny
                    self.offset[..., part] = torch.where(penalty > small, -multiplier.value / penalty, 0.0)
            if multiplier.rule.smooths and constraint.degree == "violation" and learned:
                means = self.violations[part] / self.count.clamp_min(1)
                knee = means if constraint.multiplier == "column" else means.mean()
                self.knee[part] = knee.clamp_min(multiplier.tolerance)


class GroupBlock(Block):
    """One constraint on groups: σ = compare(means over each group).

    Over the epoch, sums and counts of every group are exact, and the multiplier ascends by them. Within a step the
    means are running ones, and this batch's rows give their gradient: E[Σ_{l∈g} s_l]/(B·P(g)) is the mean's. A group
    that is absent from a batch keeps its running mean and gives no gradient. Rows that are only observed count in the
    sums by which the multiplier ascends, and in nothing that a step uses.
    """

    group_sums: Tensor
    group_counts: Tensor
    trained_counts: Tensor
    running_sums: Tensor
    running_counts: Tensor
    window: Tensor
    rows_seen: Tensor
    shares: Tensor

    def __init__(self, multiplier: Multiplier, statistics: int, like: Tensor) -> None:
        super().__init__([multiplier], None, like)
        assert isinstance(multiplier.constraint.scope, Groups)
        self.groups = multiplier.constraint.scope
        count = self.groups.count
        self.widths = [statistics]
        self.register_buffer("group_sums", like.new_zeros(count, statistics))
        self.register_buffer("group_counts", like.new_zeros(count))
        self.register_buffer("trained_counts", like.new_zeros(count))
        self.register_buffer("running_sums", like.new_zeros(count, statistics))
        self.register_buffer("running_counts", like.new_zeros(count))
        self.register_buffer("window", like.new_full((count,), WINDOW))
        self.register_buffer("rows_seen", like.new_zeros(1))
        self.register_buffer("shares", like.new_zeros(count))  # of the last epoch's rows, over all processes

    def means(self, statistic: Tensor, member: Tensor, remember: bool, exact: Tensor | None = None) -> Tensor:
        """[G, k]: running means by value, this batch's by gradient; an epoch's sums are of `exact`, if given."""
        batch_sums = member.t() @ statistic
        with torch.no_grad():
            batch_counts = member.sum(0)
            keep = torch.exp(-batch_counts / self.window)
            sums = keep[:, None] * self.running_sums + batch_sums
            counts = keep * self.running_counts + batch_counts
            # A group nobody has seen yet is taken to be like the rest: it neither pulls nor is pulled.
            overall = sums.sum(0) / counts.sum().clamp_min(1)
            value = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1e-12)[:, None], overall)
            # The rows of each group to expect in a batch, by the last epoch's shares; in the first, by those so far.
            rows = len(statistic)
            so_far = (self.trained_counts + batch_counts) / (self.rows_seen + rows)
            expected = torch.where(self.shares > 0, self.shares, so_far) * rows
            if remember:
                self.running_sums.copy_(sums)
                self.running_counts.copy_(counts)
                self.group_sums.add_(batch_sums if exact is None else member.t() @ exact)
                self.group_counts.add_(batch_counts)
                self.trained_counts.add_(batch_counts)
                self.rows_seen.add_(rows)
        pull = batch_sums / expected.clamp_min(1e-12)[:, None]
        return value + (pull - pull.detach())

    def forward(
        self, total: Tensor, statistic: Tensor, member: Tensor | None, exact: Tensor | None, remember: bool
    ) -> Tensor:
        """Adds Σ μ ν(h(means)). statistic: [rows, k]; member: [rows, G]; exact: [rows, k], to ascend by instead."""
        assert member is not None
        sigma = self.groups.compare(self.means(statistic, member, remember, exact))[None]
        degree = self.degree(self.relaxed(sigma), self.offset if self.curved else None)
        return total + self.price(degree, degree[0], self.weight, self.curvature)

    def totals(self) -> tuple[list[Tensor], list[Tensor]]:
        """What processes add up: sums and counts of every group."""
        return [self.group_sums, self.group_counts, self.trained_counts, self.rows_seen], []

    def observe(self, statistic: Tensor, member: Tensor | None, exact: Tensor | None) -> None:
        """The sums of these rows alone."""
        assert member is not None
        self.group_sums.copy_(member.t() @ (statistic if exact is None else exact))
        self.group_counts.copy_(member.sum(0))

    def observed(self) -> tuple[list[Tensor], list[Tensor]]:
        """The sums that the multiplier ascends by."""
        return [self.group_sums, self.group_counts], []

    def share(self) -> None:
        """After the sums of all processes were added up: running means from them, the same for all."""
        if self.constraints[0].exact is not None or not torch.equal(self.group_counts, self.trained_counts):
            return  # the epoch's sums are of something else than the running ones
        seen = self.group_counts > 0
        counts = (self.group_counts / 4).clamp(1.0, WINDOW)
        means = self.group_sums / self.group_counts.clamp_min(1)[:, None]
        self.running_sums.copy_(torch.where(seen[:, None], means * counts[:, None], self.running_sums))
        self.running_counts.copy_(torch.where(seen, counts, self.running_counts))

    def settle(self) -> None:
        """The epoch's exact ν from the epoch's exact means."""
        counts = self.group_counts[:, None]
        running = self.running_sums / self.running_counts.clamp_min(1e-12)[:, None]
        means = torch.where(counts > 0, self.group_sums / counts.clamp_min(1), running)
        unseen = counts[:, 0] == 0
        if self.constraints[0].exact is None:
            unseen &= self.running_counts == 0
        seen = (~unseen).to(means)[:, None]
        means = torch.where(unseen[:, None], (means * seen).sum(0) / seen.sum().clamp_min(1), means)
        self.shares.copy_(self.trained_counts / self.rows_seen)
        sigma = self.relaxed(self.groups.compare(means)[None])
        self.sums.copy_(self.degree(sigma, self.offset if self.curved else None)[0])
        violation = torch.maximum(sigma, sigma * self.own_floor)[0]
        self.violations.copy_(violation)
        self.maxima.copy_(violation)
        self.count.fill_(1.0)
        self.window.copy_((self.trained_counts / 4).clamp(1.0, WINDOW))

    def outcome(self) -> list[tuple[Tensor, Tensor]]:
        """Σ of the degree [q], over one set of groups."""
        return [(self.sums, self.count[0])]

    def reset(self) -> None:
        """A new epoch begins; the running means go on."""
        for tensor in (self.group_sums, self.group_counts, self.trained_counts, self.rows_seen):
            tensor.zero_()
        for tensor in (self.sums, self.violations, self.maxima, self.count):
            tensor.zero_()

"""The Lagrangian loss L + Σ λ ν(g) + Σ μ ν(h) and the multipliers' ascent: the paper's equation in one module.

`Lagrangian` stacks all constraints of one scope side by side, [rows, K], so that a step costs one product whatever
their number. It holds no parameters: multipliers and an epoch's sums are buffers, saved, moved and reduced like those of
any module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .batch import leaves, tree_map
from .constraint import Constraint, ConstraintError, check_names, first_bad
from .dual import Ascent, Augmented, Balanced, Dual, Fixed, Moment
from .scopes import Groups, Pairs

PairSide = tuple[Any, Any]
"""Predictions [2, pairs, …] and the batch of the pairs, its `ids` the numbers of the pairs."""

TOLERANCE = 1e-3
"""A mean violation below this share of σ's scale S counts as none."""

WINDOW = 1024.0
"""Rows a group's running mean looks back over; a quarter of the group where that is less."""


class Multiplier(nn.Module):
    """λ of one constraint under one dual rule: [] per constraint, [k] per column, [N, k] per sample.

    λ = multiplier · unit, the rule's own number times the unit that was measured (1 in literal mode).
    """

    multiplier: Tensor
    unit: Tensor
    gradient: Tensor
    scale: Tensor

    def __init__(self, constraint: Constraint, rule: Dual, columns: int, rows: int | None, like: Tensor) -> None:
        super().__init__()
        self.constraint, self.rule, self.columns = constraint, rule, columns
        shape = {"constraint": (), "column": (columns,), "sample": (rows, columns)}[constraint.multiplier]
        self.state_names: list[str] = []
        for name, value in rule.start(like.new_zeros(shape)).items():
            self.register_buffer(name, value)
            self.state_names.append(name)
        self.register_buffer("unit", like.new_tensor(0.0 if rule.normalise else 1.0))
        self.register_buffer("gradient", like.new_zeros(()))  # ‖∂ mean(±σ)/∂ŷ‖₂, a moving average where it is tracked
        self.register_buffer("scale", like.new_zeros(()))  # S = ‖∂ mean(±σ)/∂ŷ‖₁ at the start; 0 while unknown

    @property
    def value(self) -> Tensor:
        """λ, in units of loss per σ."""
        return self.multiplier * self.unit

    @property
    def signed(self) -> bool:
        """Whether λ may be negative: only an equality's, on plain σ."""
        return self.constraint.kind == "equality" and self.constraint.degree == "satisfiability"

    @property
    def tolerance(self) -> float:
        """A mean ν up to this counts as none, in σ's units."""
        if self.constraint.tolerance is not None:
            return self.constraint.tolerance
        return TOLERANCE * (float(self.scale) or 1.0)

    def learn(self, loss_gradient: Tensor, gradient: Tensor, scale: Tensor) -> None:
        """Take in a measurement: S once, u = ‖∂L/∂ŷ‖/‖∂σ/∂ŷ‖ once or, where the rule tracks it, as a moving average."""
        first = float(self.scale) == 0.0
        if not float(gradient) > 0 or not (first or self.rule.tracks):
            return
        if first:
            self.scale.copy_(scale)
        self.gradient.copy_(gradient if first else 0.5 * self.gradient + 0.5 * gradient)
        if self.rule.normalise:
            self.unit.copy_(loss_gradient / self.gradient)

    def ascend(self, sums: Tensor, counts: Tensor, k: int, horizon: int | None) -> None:
        """One update from Σ_l of the degree and the number of rows, both of λ's shape, then the projection."""
        violation = sums / counts.clamp_min(1) if self.rule.reduce == "mean" else sums
        divisor = 1.0
        if self.rule.normalise:
            divisor = float(self.scale)
            if divisor == 0.0:  # σ has not moved with the predictions yet: no unit to ascend in
                return
        state = {name: getattr(self, name) for name in self.state_names}
        self.rule.update(state, violation / divisor, Moment(k, horizon, self.tolerance / divisor))
        if not self.signed:
            self.multiplier.clamp_(min=0)
        if self.constraint.cap is not None and float(self.unit) > 0:
            bound = self.constraint.cap / float(self.unit)
            self.multiplier.clamp_(min=-bound, max=bound)


class _Block(nn.Module):
    """The constraints of one scope, stacked: degrees [rows, K] → penalty, and an epoch's sums.

    σ − clamp(σ, low, high) takes the slack off; max(σ, offset + floor·σ) is max(0, σ) for floor 0, |σ| for −1, σ for 1, and
    with floor 0 and offset −λ/ρ the augmented Lagrangian's. All are vectors of length K.
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
        widths = [m.columns for m in multipliers]
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
        buffer("count", ())
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
            return torch.maximum(sigma, sigma * self.floor)
        return torch.maximum(sigma, torch.addcmul(offset, self.floor, sigma))

    def relaxed(self, sigma: Tensor) -> Tensor:
        """σ − ε for inequalities, σ drawn towards zero by ε for equalities."""
        return sigma - torch.clamp(sigma, self.low, self.high) if self.slackened else sigma

    def forward(self, sigma: Tensor, ids: Tensor | None) -> Tensor:
        """Σ_i λ_i mean_l ν_i(l), and the sums over the epoch. sigma: [rows, K]; ids: the rows' numbers, if per row."""
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
        totals = degree.sum(0)
        if self.training:
            self.accumulate(sigma.detach(), degree.detach(), totals.detach(), ids)
        return self.price(degree, totals, weight, curvature) / rows

    def price(self, degree: Tensor, totals: Tensor, weight: Tensor, curvature: Tensor) -> Tensor:
        """Σ_l Σ_i λ_i ν_i(l), with Huber's rounding or ½ρν² where a rule has it. degree: [rows, K]; totals: its sum."""
        if self.smoothed:
            # ν²/2δ up to the knee δ, ν − δ/2 beyond it; a knee of 0 means none.
            knee = torch.where(self.knee > 0, self.knee, 1.0)
            inner = torch.minimum(degree, knee)
            price = (torch.where(self.knee > 0, inner * (degree - 0.5 * inner) / knee, degree) * weight).sum()
        elif self.per_row:
            price = (degree * weight).sum()
        else:
            price = torch.dot(totals, weight)
        return price + 0.5 * (curvature * degree.square()).sum() if self.curved else price

    @torch.no_grad()
    def accumulate(self, sigma: Tensor, degree: Tensor, totals: Tensor, ids: Tensor | None) -> None:
        """Add this batch to the epoch's sums."""
        violation = torch.maximum(sigma, sigma * self.own_floor) if self.signed else degree
        self.maxima.copy_(torch.maximum(self.maxima, violation.amax(0)))
        self.violations.add_(totals if violation is degree else violation.sum(0))
        self.count.add_(sigma.shape[0])
        if self.per_row:
            assert ids is not None
            self.sums.index_add_(0, ids, degree)
            self.visits.index_add_(0, ids, torch.ones_like(ids, dtype=self.visits.dtype))
        elif violation is not degree:
            self.sums.add_(totals)

    def totals(self) -> tuple[list[Tensor], list[Tensor]]:
        """What processes add up, and what they take the maximum of."""
        return [self.sums, self.visits, self.violations, self.count], [self.maxima]

    def outcome(self) -> list[tuple[Tensor, Tensor]]:
        """For every constraint: Σ of its degree, [k] or [N, k], and the number of rows behind each entry."""
        if self.per_row:
            return [(self.sums[:, part], self.visits[:, None]) for part in self.slices]
        sums = self.sums if self.signed else self.violations
        return [(sums[part], self.count) for part in self.slices]

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
                penalty = multiplier.penalty * multiplier.unit
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


class _GroupBlock(_Block):
    """One constraint on groups: σ = compare(means over each group).

    Over the epoch, sums and counts of every group are exact, and the multiplier ascends by them. Within a step the means
    are running ones, and this batch's rows give their gradient: E[Σ_{l∈g} s_l]/(B·P(g)) is the mean's. A group that is absent
    from a batch keeps its running mean and gives no gradient.
    """

    group_sums: Tensor
    group_counts: Tensor
    running_sums: Tensor
    running_counts: Tensor
    window: Tensor

    def __init__(self, multiplier: Multiplier, statistics: int, like: Tensor) -> None:
        super().__init__([multiplier], None, like)
        assert isinstance(multiplier.constraint.scope, Groups)
        self.groups = multiplier.constraint.scope
        count = self.groups.count
        self.register_buffer("group_sums", like.new_zeros(count, statistics))
        self.register_buffer("group_counts", like.new_zeros(count))
        self.register_buffer("running_sums", like.new_zeros(count, statistics))
        self.register_buffer("running_counts", like.new_zeros(count))
        self.register_buffer("window", like.new_full((count,), WINDOW))

    def means(self, statistic: Tensor, member: Tensor, remember: bool) -> Tensor:
        """[G, k]: running means by value, this batch's by gradient."""
        batch_sums = member.t() @ statistic
        with torch.no_grad():
            batch_counts = member.sum(0)
            keep = torch.exp(-batch_counts / self.window)
            sums = keep[:, None] * self.running_sums + batch_sums
            counts = keep * self.running_counts + batch_counts
            # A group nobody has seen yet is taken to be like the rest: it neither pulls nor is pulled.
            overall = sums.sum(0) / counts.sum().clamp_min(1)
            value = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1e-12)[:, None], overall)
            # This batch's expected number of rows in each group, from the running shares.
            expected = counts / counts.sum().clamp_min(1) * batch_counts.sum()
            if remember:
                self.running_sums.copy_(sums)
                self.running_counts.copy_(counts)
                self.group_sums.add_(batch_sums)
                self.group_counts.add_(batch_counts)
        pull = batch_sums / expected.clamp_min(1e-12)[:, None]
        return value + (pull - pull.detach())

    def forward(self, statistic: Tensor, member: Tensor | None) -> Tensor:
        """Σ μ ν(h(means)). statistic: [rows, k]; member: [rows, G]."""
        assert member is not None
        sigma = self.groups.compare(self.means(statistic, member, remember=self.training))[None]
        degree = self.degree(self.relaxed(sigma), self.offset if self.curved else None)
        return self.price(degree, degree[0], self.weight, self.curvature)

    def totals(self) -> tuple[list[Tensor], list[Tensor]]:
        """What processes add up: sums and counts of every group."""
        return [self.group_sums, self.group_counts], []

    def settle(self) -> None:
        """The epoch's exact ν from the epoch's exact means."""
        counts = self.group_counts[:, None]
        running = self.running_sums / self.running_counts.clamp_min(1e-12)[:, None]
        means = torch.where(counts > 0, self.group_sums / counts.clamp_min(1), running)
        unseen = (counts[:, 0] == 0) & (self.running_counts == 0)
        means = torch.where(unseen[:, None], means[~unseen].mean(0), means)
        sigma = self.relaxed(self.groups.compare(means)[None])
        self.sums.copy_(self.degree(sigma, self.offset if self.curved else None)[0])
        violation = torch.maximum(sigma, sigma * self.own_floor)[0]
        self.violations.copy_(violation)
        self.maxima.copy_(violation)
        self.count.fill_(1.0)
        self.window.copy_((self.group_counts / 4).clamp(1.0, WINDOW))

    def outcome(self) -> list[tuple[Tensor, Tensor]]:
        """Σ of the degree [q], over one set of groups."""
        return [(self.sums, self.count)]

    def reset(self) -> None:
        """A new epoch begins; the running means go on."""
        for tensor in (self.group_sums, self.group_counts, self.sums, self.violations, self.maxima, self.count):
            tensor.zero_()


class _Cut(torch.autograd.Function):
    """The identity, whose gradient is shortened to at most `limit`: ∂ ← ∂ · min(1, limit/‖∂‖₂)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, limit: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (limit,) = ctx.saved_tensors
        (gradient,) = gradients
        length = torch.linalg.vector_norm(gradient).clamp_min(torch.finfo(gradient.dtype).tiny)
        return gradient * (limit / length).clamp(max=1.0), None


class Lagrangian(nn.Module):
    """L + Σ λ_i ν(g_i) + Σ μ_j ν(h_j) for a training loop of your own, and the ascent of λ and μ.

        lagrangian = ldf.Lagrangian(constraints, dual=ldf.Ascent(step=1e-2))
        for epoch in range(80):
            for batch in loader:
                loss = lagrangian(task_loss, predictions, batch)
                loss.backward(); optimizer.step(); optimizer.zero_grad()
            lagrangian.ascend()

    In eval mode it returns the same loss and adds nothing to the epoch's sums. Under torch.compile, call `prepare` on
    one batch before the first compiled step. In distributed training every process calls `ascend`, which reduces the sums.

    Args:
        constraints: made by `inequality` and `equality`, each under a name of its own.
        dual: the rule for all, or a rule for each name (λ and μ with steps of their own); None watches the constraints and
            enforces none, the paper's M.
        rows: N, the number of rows of the data set; needed by a multiplier per sample.
        updates: how many times `ascend` will be called in all; needed by step="auto".
    """

    loss_gradient: Tensor
    fresh: Tensor
    limit: Tensor
    loss_sum: Tensor
    loss_rows: Tensor
    updates: Tensor
    columns: Tensor

    def __init__(
        self,
        constraints: Iterable[Constraint],
        dual: Dual | Mapping[str, Dual] | None = Ascent(),  # noqa: B008  # frozen, so sharing it is harmless
        *,
        rows: int | None = None,
        updates: int | None = None,
    ) -> None:
        super().__init__()
        self.constraints = check_names(constraints)
        self.rules = tuple(_rules(self.constraints, dual))
        self.rows, self.horizon = rows, updates
        for constraint, rule in zip(self.constraints, self.rules, strict=True):
            if rule.needs_horizon and not updates:
                raise ValueError(
                    f"constraint {constraint.name!r}: step='auto' plans its warm-up over the whole run; "
                    "say Lagrangian(…, updates=E), the number of calls of ascend(), or give Ascent a step"
                )
            if constraint.multiplier == "sample" and constraint.scope is None and not rows:
                raise ValueError(
                    f"constraint {constraint.name!r}: a multiplier per sample needs the size of the data set; "
                    "say Lagrangian(…, rows=N)"
                )
        self.normalises = any(rule.normalise for rule in self.rules)
        self.cuts = any(isinstance(rule, Balanced) for rule in self.rules)
        self.multiplier_list = nn.ModuleList()
        self.blocks = nn.ModuleList()
        self.ready = False
        self.measured = False
        self.register_load_state_dict_post_hook(_after_load)

    # ---------------------------------------------------------------- the loss

    def forward(
        self,
        loss: Tensor,
        predictions: Any,
        batch: Any,
        pairs: PairSide | Mapping[str, PairSide] | None = None,
    ) -> Tensor:
        """L + Σ λν; adds ν to the epoch's sums.

        Args:
            loss: the task loss L of this batch, a scalar (a mean over its rows).
            predictions: ŷ, [batch, …], or a tuple, list or dict of such; what the loss was computed from.
            batch: handed to the constraints' functions as it is; with `ids` where rows are looked up by number.
            pairs: for constraints on pairs: predictions [2, pairs, …] and their batch; a mapping by the name of the
                `Pairs` where there are several.
        """
        sides = self._sides(pairs)
        if not self.ready or (self.normalises and not self.measured and loss.requires_grad):
            if torch.compiler.is_compiling():
                raise RuntimeError("call lagrangian.prepare(loss, predictions, batch) once before the compiled step")
            self.prepare(loss, predictions, batch, sides)
        if self.cuts:
            predictions = tree_map(self._cut, predictions)
            sides = {name: (tree_map(self._cut, ours), theirs) for name, (ours, theirs) in sides.items()}
        total = loss
        for block in self.blocks:
            found = self._block_sigma(block, predictions, batch, sides)
            if found is not None:
                total = total + block(*found)
        if self.training:
            rows = leaves(predictions)[0].shape[0]
            self.loss_sum.add_(loss.detach(), alpha=rows)
            self.loss_rows.add_(rows)
        if self.checks and not torch.compiler.is_compiling() and not math.isfinite(total.item()):
            self._explain(loss, predictions, batch, sides)
        return total

    def prepare(
        self,
        loss: Tensor,
        predictions: Any,
        batch: Any,
        pairs: PairSide | Mapping[str, PairSide] | None = None,
    ) -> None:
        """Lay out the buffers for these constraints and measure their units on this batch.

        `forward` does so by itself at the first batch; a compiled step needs it before. Nothing is added to the sums.
        """
        sides = self._sides(pairs)
        if not self.ready:
            self._lay_out(predictions, batch, sides)
        self.measure(loss, predictions, batch, sides)

    def measure(self, loss: Tensor, predictions: Any, batch: Any, pairs: Mapping[str, PairSide]) -> None:
        """‖∂L/∂ŷ‖₂, and for every constraint ‖∂ mean(ε∘σ)/∂ŷ‖ in the 2-norm and, for S, the 1-norm.

        ε are random signs: the plain mean of a two-sided bound would have no gradient. `ascend` takes the figures in.
        """
        self.measured = True
        parts = leaves(predictions)
        if not loss.requires_grad or not any(part.requires_grad for part in parts):
            raise ValueError("measuring needs predictions that the loss was computed from, with gradients enabled")
        found = torch.autograd.grad(loss, parts, retain_graph=True, allow_unused=True)
        if all(gradient is None for gradient in found):
            raise ValueError(
                "the task loss does not depend on the predictions given: pass what the loss was computed from (logits "
                "rather than probabilities, say), or use a rule with normalise=False"
            )
        self.fresh[0, 0] = _length(found, 2)
        signs = torch.Generator().manual_seed(int(self.updates))
        with torch.enable_grad():
            ours = tree_map(lambda leaf: leaf.detach().requires_grad_(leaf.is_floating_point()), predictions)
            theirs = {
                name: (tree_map(lambda leaf: leaf.detach().requires_grad_(leaf.is_floating_point()), side), batch)
                for name, (side, batch) in pairs.items()
            }
            for index, constraint in enumerate(self.constraints):
                sigma, sources = self._sigma(index, ours, batch, theirs)
                if sigma is None or not sigma.requires_grad:
                    self.fresh[index + 1] = 0.0
                    continue
                sign = torch.randint(0, 2, sigma.shape, generator=signs).to(sigma) * 2 - 1
                gradients = torch.autograd.grad((sign * sigma).mean(), sources, allow_unused=True)
                self.fresh[index + 1, 0] = _length(gradients, 2)
                self.fresh[index + 1, 1] = _length(gradients, 1)
                if not bool(torch.isfinite(self.fresh[index + 1]).all()):
                    raise ConstraintError(
                        f"constraint {constraint.name!r}: the gradient of its function is not finite at these "
                        "predictions; a square root or division at zero is the usual cause"
                    )

    # ---------------------------------------------------------------- the multipliers

    @torch.no_grad()
    def ascend(self) -> dict[str, float]:
        """One dual update from the batches since the last: λ ← λ + s Σ ν by the paper's rule, and a new epoch's sums.

        Returns:
            The row of a history: loss, and for every constraint mean and largest ν and its λ (over several λ: their mean
            and largest).
        """
        if not self.ready or not float(self.loss_rows) > 0:
            raise RuntimeError("ascend() without any batch since the last one: call lagrangian(loss, …) first")
        self._reduce()
        self._check_sums()
        k = int(self.updates)
        first = float(self.loss_gradient) == 0.0
        if bool(self.fresh.any()):
            self.loss_gradient.copy_(self.fresh[0, 0] if first else 0.5 * self.loss_gradient + 0.5 * self.fresh[0, 0])
        if self.cuts:
            strength = max(rule.strength for rule in self.rules if isinstance(rule, Balanced))
            self.limit.copy_(strength * self.loss_gradient)
        row = {"loss": float(self.loss_sum / self.loss_rows)}
        for index, multiplier in enumerate(self._multipliers()):
            multiplier.learn(self.loss_gradient, self.fresh[index + 1, 0], self.fresh[index + 1, 1])
        for block in self._blocks():
            if isinstance(block, _GroupBlock):
                block.settle()
            for multiplier, outcome, statistic in zip(
                block.multipliers, block.outcome(), block.statistics(), strict=True
            ):
                sums, counts = outcome
                if multiplier.constraint.multiplier == "constraint":
                    sums = sums.mean(-1)
                multiplier.ascend(sums, counts, k, self.horizon)
                name = multiplier.constraint.name
                row[f"nu_mean/{name}"] = float(statistic[0].mean())
                row[f"nu_max/{name}"] = float(statistic[1].max())
                row[f"lambda/{name}"] = float(multiplier.value.mean())
                if multiplier.multiplier.ndim:
                    row[f"lambda_max/{name}"] = float(multiplier.value.abs().max())
        self.updates.add_(1)
        for block in self._blocks():
            block.refresh(k + 1)
            block.reset()
        for tensor in (self.loss_sum, self.loss_rows, self.fresh):
            tensor.zero_()
        if any(rule.tracks for rule in self.rules):
            self.measured = False
        return row

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """λ and μ by name: [] one a constraint, [k] a column, [N, k] a sample; in units of loss per σ."""
        if not self.ready:
            raise RuntimeError("multipliers are there once a batch has been seen")
        return {m.constraint.name: m.value for m in self._multipliers()}

    @property
    def tolerances(self) -> dict[str, float]:
        """By name: up to which mean ν a constraint counts as satisfied, in σ's units."""
        return {m.constraint.name: m.tolerance for m in self._multipliers()}

    def settled(self) -> bool:
        """Whether every rule has its multipliers at work, so that this iterate may be chosen."""
        return all(rule.settled(int(self.updates), self.horizon) for rule in self.rules)

    # ---------------------------------------------------------------- inside

    checks = True
    """Look at every loss as it comes, and say which constraint is not finite; else `ascend` does so."""

    def _multipliers(self) -> list[Multiplier]:
        return list(self.multiplier_list)  # type: ignore[arg-type]

    def _blocks(self) -> list[_Block]:
        return list(self.blocks)  # type: ignore[arg-type]

    def _cut(self, leaf: Tensor) -> Tensor:
        return _Cut.apply(leaf, self.limit) if leaf.is_floating_point() else leaf  # type: ignore[no-any-return]

    def _sides(self, pairs: PairSide | Mapping[str, PairSide] | None) -> Mapping[str, PairSide]:
        if pairs is None:
            return {}
        if isinstance(pairs, Mapping):
            return pairs
        names = {c.scope.name for c in self.constraints if isinstance(c.scope, Pairs)}
        if len(names) != 1:
            raise ValueError(f"constraints stand on {len(names)} sets of pairs {sorted(names)}: give a mapping by name")
        return {names.pop(): pairs}

    def _lay_out(self, predictions: Any, batch: Any, sides: Mapping[str, PairSide]) -> None:
        """See how many columns every constraint has, and lay out all buffers."""
        widths = []
        like = leaves(predictions)[0]
        with torch.no_grad():
            for constraint in self.constraints:
                side = (predictions, batch)
                if isinstance(constraint.scope, Pairs):
                    if constraint.scope.name not in sides:
                        raise ValueError(
                            f"constraint {constraint.name!r} stands on pairs {constraint.scope.name!r}, and the first "
                            "batch has none: call lagrangian(loss, predictions, batch, pairs=(…, …))"
                        )
                    side = sides[constraint.scope.name]
                sigma = constraint.evaluate(*side)
                like = sigma
                statistics = sigma.shape[1]
                if isinstance(constraint.scope, Groups):
                    compared = constraint.scope.compare(sigma.new_zeros(constraint.scope.count, statistics))
                    if compared.ndim != 1 or not len(compared):
                        raise ConstraintError(
                            f"constraint {constraint.name!r}: compare must give a vector [q] from the groups' means "
                            f"[{constraint.scope.count}, {statistics}], got {list(compared.shape)}"
                        )
                    widths.append((len(compared), statistics))
                else:
                    widths.append((statistics, statistics))
        self._build(widths, like.detach())

    def _build(self, widths: Sequence[Sequence[int]], like: Tensor) -> None:
        self.register_buffer("columns", torch.tensor(widths, dtype=torch.int64, device=like.device).reshape(-1, 2))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=like.device))
        self.register_buffer("loss_gradient", like.new_zeros(()))
        self.register_buffer("fresh", like.new_zeros(len(self.constraints) + 1, 2))
        self.register_buffer("limit", like.new_full((), math.inf))
        self.register_buffer("loss_sum", like.new_zeros(()))
        self.register_buffer("loss_rows", like.new_zeros(()))
        stacks: dict[tuple[str, bool], list[Multiplier]] = {}
        singles: list[tuple[Multiplier, int]] = []
        for constraint, rule, (width, statistics) in zip(self.constraints, self.rules, widths, strict=True):
            rows = constraint.scope.count if isinstance(constraint.scope, Pairs) else self.rows
            multiplier = Multiplier(constraint, rule, width, rows, like)
            self.multiplier_list.append(multiplier)
            if isinstance(constraint.scope, Groups):
                singles.append((multiplier, statistics))
            else:
                name = constraint.scope.name if isinstance(constraint.scope, Pairs) else ""
                stacks.setdefault((name, constraint.multiplier == "sample"), []).append(multiplier)
        for (_, per_row), stack in stacks.items():
            scope = stack[0].constraint.scope
            size = scope.count if isinstance(scope, Pairs) else self.rows
            self.blocks.append(_Block(stack, size if per_row else None, like))
        for multiplier, statistics in singles:
            self.blocks.append(_GroupBlock(multiplier, statistics, like))
        for block in self._blocks():
            block.train(self.training)
            block.refresh(0, learned=False)
        self.ready = True

    def _block_sigma(
        self, block: nn.Module, predictions: Any, batch: Any, sides: Mapping[str, PairSide]
    ) -> tuple[Tensor, Tensor | None] | None:
        """A block's degrees, stacked [rows, K], and what goes with them: the rows' numbers, or the groups' members."""
        assert isinstance(block, _Block)
        scope = block.constraints[0].scope
        if isinstance(scope, Groups):
            statistic = block.constraints[0].evaluate(predictions, batch)
            return statistic, scope.membership(batch).to(statistic.dtype)
        if isinstance(scope, Pairs):
            if scope.name not in sides:
                return None
            predictions, batch = sides[scope.name]
        found = [constraint.evaluate(predictions, batch) for constraint in block.constraints]
        for constraint, sigma, part in zip(block.constraints, found, block.slices, strict=True):
            if sigma.shape[1] != part.stop - part.start:
                raise ConstraintError(
                    f"constraint {constraint.name!r}: its function gave {part.stop - part.start} columns at first and "
                    f"{sigma.shape[1]} now; the number of columns must stay the same"
                )
        ids = getattr(batch, "ids", None) if block.per_row else None
        return (found[0] if len(found) == 1 else torch.cat(found, 1)), ids

    def _sigma(
        self, index: int, predictions: Any, batch: Any, sides: Mapping[str, PairSide]
    ) -> tuple[Tensor | None, list[Tensor]]:
        """σ of one constraint at these predictions, and the tensors it is to be differentiated by."""
        constraint = self.constraints[index]
        if isinstance(constraint.scope, Pairs):
            if constraint.scope.name not in sides:
                return None, []
            predictions, batch = sides[constraint.scope.name]
        sigma = constraint.evaluate(predictions, batch)
        if isinstance(constraint.scope, Groups):
            (block,) = [b for b in self._blocks() if b.constraints[0] is constraint]
            assert isinstance(block, _GroupBlock)
            member = constraint.scope.membership(batch).to(sigma.dtype)
            sigma = constraint.scope.compare(block.means(sigma, member, remember=False))
        return sigma, [leaf for leaf in leaves(predictions) if leaf.requires_grad]

    def _explain(self, loss: Tensor, predictions: Any, batch: Any, sides: Mapping[str, PairSide]) -> None:
        """Say which part of the loss is not finite."""
        if not math.isfinite(loss.item()):
            raise ValueError(f"the task loss is {loss.item()}: a smaller learning rate, or a look at the data, may help")
        for constraint in self.constraints:
            side = sides.get(constraint.scope.name) if isinstance(constraint.scope, Pairs) else (predictions, batch)
            if side is None:
                continue
            sigma = constraint.evaluate(*side)
            if not bool(torch.isfinite(sigma).all()):
                raise ConstraintError(
                    f"constraint {constraint.name!r}: its function gave {first_bad(sigma)}; every value must be finite"
                )
        worst = max(self._multipliers(), key=lambda m: float(m.value.abs().max()))
        raise ConstraintError(
            f"the penalty overflowed; the largest multiplier is that of {worst.constraint.name!r}, "
            f"{float(worst.value.abs().max()):.3g}: a smaller step or a cap keeps it in bounds"
        )

    def _check_sums(self) -> None:
        for block in self._blocks():
            scope = block.constraints[0].scope
            if isinstance(scope, Pairs) and not float(block.count) > 0:
                raise RuntimeError(
                    f"constraint {block.constraints[0].name!r}: no pairs {scope.name!r} were given since the last ascend()"
                )
            tensors = [block.group_sums] if isinstance(block, _GroupBlock) else [block.violations, block.maxima]
            for tensor in tensors:
                if not bool(torch.isfinite(tensor).all()):
                    bad = [
                        constraint.name
                        for constraint, part in zip(block.constraints, block.slices, strict=True)
                        if isinstance(block, _GroupBlock) or not bool(torch.isfinite(tensor[part]).all())
                    ]
                    raise ConstraintError(
                        f"constraint {bad[0]!r}: its function gave a value that is not finite since the last ascend()"
                    )

    def _reduce(self) -> None:
        """Add up the sums of all processes, in two collectives."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        world = torch.distributed.get_world_size()
        if world == 1:
            return
        self.fresh.div_(world)
        added, largest = [self.loss_sum, self.loss_rows, self.fresh], []
        for block in self._blocks():
            sums, maxima = block.totals()
            added += sums
            largest += maxima
        for tensors, operation in (
            (added, torch.distributed.ReduceOp.SUM),
            (largest, torch.distributed.ReduceOp.MAX),
        ):
            if not tensors:
                continue
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            torch.distributed.all_reduce(flat, op=operation)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if not self.ready and f"{prefix}columns" in state_dict:
            widths = state_dict[f"{prefix}columns"]
            if len(widths) != len(self.constraints):
                raise ValueError(
                    f"this state is of {len(widths)} constraints, and here are {len(self.constraints)}: "
                    f"{', '.join(c.name for c in self.constraints)}"
                )
            self._build(widths.tolist(), state_dict[f"{prefix}loss_sum"].detach())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The constraints and their rules, a line each."""
        return "\n".join(
            f"{c.name}: {c.kind}, {rule}" for c, rule in zip(self.constraints, self.rules, strict=True)
        )


def _rules(constraints: Sequence[Constraint], dual: Dual | Mapping[str, Dual] | None) -> Iterable[Dual]:
    if dual is None:
        dual = Fixed(0.0)
    if isinstance(dual, Dual):
        return [dual] * len(constraints)
    if not isinstance(dual, Mapping):
        raise TypeError(f"dual must be a rule such as ldf.Ascent(1e-2), a mapping of them by name, or None, got {dual!r}")
    names = [constraint.name for constraint in constraints]
    unknown, missing = sorted(set(dual) - set(names)), [name for name in names if name not in dual]
    if unknown or missing:
        raise ValueError(f"dual must have a rule for each of {names}; unknown: {unknown}, missing: {missing}")
    return [dual[name] for name in names]


def _length(gradients: Iterable[Tensor | None], order: int) -> Tensor:
    """The norm of several tensors taken as one vector."""
    parts = [torch.linalg.vector_norm(gradient, order) for gradient in gradients if gradient is not None]
    return torch.linalg.vector_norm(torch.stack(parts), order) if parts else torch.zeros(())


def _after_load(module: nn.Module, keys: Any) -> None:
    """What follows from the loaded buffers is laid out anew."""
    if isinstance(module, Lagrangian) and module.ready:
        for block in module._blocks():
            block.refresh(int(module.updates), learned=False)
        module.measured = bool(module.fresh.any()) or (
            float(module.loss_gradient) > 0 and not any(rule.tracks for rule in module.rules)
        )

"""The Lagrangian loss L + Σ λ ν(g) + Σ μ ν(h) and the dual updates of its multipliers.

`Lagrangian` stacks all constraints of one scope as columns, [rows, K], so that a step costs one product whatever their
number. It has no parameters: multipliers and the sums of an epoch are buffers, saved and moved like those of any
module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .batch import check_count, free, leaves, rows_of, tree_map
from .blocks import Block
from .certificate import Certificate, Tolerance, certify
from .constraint import Constraint, check_names
from .distributed import all_reduce, rank, world
from .dual import Rules, rules_for
from .evidence import Evidence, evidence
from .gradients import Cut, Jacobian, Measured, Pull, conflicts
from .multiplier import TOLERANCE, Multiplier
from .scope import ConstraintError, Side

PairSides = tuple[Any, Any] | Mapping[str, tuple[Any, Any]] | None
"""Predictions [2, pairs, …] and their batch, whose `ids` are the pair numbers; or a mapping of these by name."""
Sides = Mapping[str | None, Side]
"""Inputs of the constraints in a step: the batch itself under None, pairs under their name."""


class Lagrangian(nn.Module):
    """L + Σ λ_i ν(g_i) + Σ μ_j ν(h_j) for your own training loop, and the dual updates of λ and μ.

        lagrangian = ldf.Lagrangian(constraints, dual=ldf.Ascent(step=1e-2))
        for epoch in range(80):
            for batch in loader:
                loss = lagrangian(task_loss, predictions, batch)
                loss.backward(); optimizer.step(); optimizer.zero_grad()
            lagrangian.ascend()

    In eval mode it returns the same loss and adds nothing to the epoch's sums. Under torch.compile, call `prepare` on
    one batch before the first compiled step, and with dual="auto" before the first step of every epoch. In distributed
    training every process calls `ascend`, which reduces the sums.

    Args:
        constraints: created with `inequality` and `equality`, with unique names.
        dual: one dual rule for all constraints, or a mapping by name (for separate steps for λ and μ); "auto" is
            `Automatic()`, for groups `Levelling()`; None monitors the constraints without enforcing them (M).
        rows: N, the number of rows of the data set; required for a multiplier per sample.
        updates: total number of calls of `ascend`; required for dual="auto".
        labelled: whether the loss compares predictions with labels. If not, it can only disagree with the constraints,
            and dual="auto" enforces them from the start.
    """

    rank: Tensor
    names: Tensor
    fresh: Tensor
    limit: Tensor
    loss_sum: Tensor
    loss_rows: Tensor
    updates: Tensor
    columns: Tensor

    def __init__(
        self,
        constraints: Iterable[Constraint],
        dual: Rules = "auto",
        *,
        rows: int | None = None,
        updates: int | None = None,
        labelled: bool = True,
    ) -> None:
        super().__init__()
        self.constraints = check_names(constraints)
        self.rules = rules_for(self.constraints, dual)
        self.rows, self.horizon, self.labelled = rows, updates, labelled
        check_count(rows=rows, updates=updates)
        for constraint, rule in zip(self.constraints, self.rules, strict=True):
            if rule.warm_up and not updates:
                raise ValueError(
                    f"constraint {constraint.name!r}: dual='auto' plans its warm-up over the whole run; "
                    "pass Lagrangian(…, updates=E), the number of calls of ascend(), or use a rule such as Ascent(1e-2)"
                )
            if constraint.multiplier == "sample" and not constraint.scope.size(rows):
                raise ValueError(
                    f"constraint {constraint.name!r}: a multiplier per sample needs the size of the data set; "
                    "pass Lagrangian(…, rows=N)"
                )
        self.normalises = any(rule.normalise for rule in self.rules)
        self.cuts = any(rule.cuts for rule in self.rules)
        self.limited = False  # whether `limit` is finite
        self.multiplier_list, self.blocks = nn.ModuleList(), nn.ModuleList()
        self._stacks: tuple[Block, ...] = ()
        self.ready = self.measured = False
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]

    # ---------------------------------------------------------------- the loss

    def forward(self, loss: Tensor, predictions: Any, batch: Any, pairs: PairSides = None) -> Tensor:
        """L + Σ λν; in training mode also adds ν to the epoch's sums.

        Args:
            loss: the task loss L of this batch, a scalar (a mean over its rows).
            predictions: ŷ that the loss was computed from, [batch, …], or a tuple, list or mapping of such tensors.
            batch: passed unchanged to the constraint functions; with `ids` if rows are looked up by id.
            pairs: for constraints on pairs: predictions [2, pairs, …] and their batch; with several `Pairs`, a mapping
                by name.
        """
        sides = self._sides(predictions, batch, pairs)
        if torch.compiler.is_compiling():
            if not self.ready:
                raise RuntimeError(
                    "call lagrangian.prepare(loss, predictions, batch) before the first compiled step, and with "
                    "dual='auto' before the first step of every epoch"
                )
        elif not self.ready or (self.normalises and not self.measured and loss.requires_grad):
            self._prepare(loss, sides)
        sides = self._seen(sides, loss)
        total = loss
        for block in self.stacks():
            side = sides.get(block.scope.name)
            if side is not None:
                total = block(total, side, remember=self.training)
        if self.training:
            rows = rows_of(predictions)
            self.loss_sum.add_(loss.detach(), alpha=rows)
            self.loss_rows.add_(rows)
        if self.checks and not torch.compiler.is_compiling() and not math.isfinite(total.item()):
            self._explain(loss, sides)
        return total

    def prepare(self, loss: Tensor, predictions: Any, batch: Any, pairs: PairSides = None) -> None:
        """Allocate the buffers for these constraints and measure their units on this batch.

        `forward` does this on the first batch; a compiled step needs it done before. Nothing is added to the sums.
        """
        self._prepare(loss, self._sides(predictions, batch, pairs))

    def _prepare(self, loss: Tensor, sides: Sides) -> None:
        if not self.ready:
            with torch.inference_mode(False):
                self._lay_out(sides)
        if torch.is_grad_enabled() and (loss.requires_grad or not self.normalises):
            self._measure(loss, sides)
        elif self.normalises and self.training:
            raise ValueError(
                "normalised dual rules need the predictions that the loss was computed from, with gradients enabled"
            )

    def _measure(self, loss: Tensor, sides: Sides) -> None:
        """Measure the gradient norms of loss and constraints at ŷ (`gradients.py`); `ascend` uses them."""
        k = int(self.updates)
        pull = Pull.of(loss, sides[None].predictions, k, self.normalises)
        with torch.enable_grad():
            freed = {name: Side(free(side.predictions), side.batch) for name, side in sides.items()}
            block_of = {c.name: block for block in self.stacks() for c in block.constraints}
            priced: list[tuple[slice, Jacobian]] = []
            for index, (constraint, multiplier) in enumerate(zip(self.constraints, self._multipliers(), strict=True)):
                part, side = self._columns_of(index), freed.get(constraint.scope.name)
                found = None
                self.fresh[part] = 0.0
                if side is None:
                    continue
                sigma, rows = block_of[constraint.name].probe(constraint, side)
                if multiplier.kind == "constraint":
                    found = pull.against(constraint, sigma, rows, side.predictions, k)
                elif (columns := pull.against_columns(constraint, sigma, rows, side.predictions, k)) is not None:
                    found, jacobian = columns
                    if multiplier.rule.prices and constraint.scope.comparable:
                        priced.append((part, jacobian))
                if found is not None:
                    self.fresh[part] = torch.stack(found, 1).to(self.fresh)
            if priced:
                contested = pull.contest([jacobian for _, jacobian in priced])
                for (part, _), (conflict, price) in zip(priced, contested, strict=True):
                    self.fresh[part, 3] = conflict.to(self.fresh)
                    self.fresh[part, 4] = price.to(self.fresh)
        self.measured = True

    # ---------------------------------------------------------------- the multipliers

    @torch.no_grad()
    def observe(self, predictions: Any, batch: Any) -> None:
        """Replace the rows seen since the last `ascend` by these, so that only these update λ.

        Use it with held-out rows: a model can satisfy a constraint on its training rows and violate it on others.
        Constraints on pairs and multipliers per sample belong to training rows and are not affected.
        """
        if not self.ready:
            raise RuntimeError("observe() was called before the first batch: call lagrangian(loss, …) first")
        for block in self.stacks():
            if block.observable:
                block.observe(Side(predictions, batch))

    @torch.no_grad()
    def ascend(self) -> dict[str, float]:
        """One dual update from all batches since the last one (the paper's λ ← λ + s Σ ν); then resets the sums.

        Returns:
            One row of a history: the loss, and for every constraint the mean and maximum of ν, Σ λν as it entered the
            loss, and λ (mean and maximum if the constraint has several).
        """
        if self.ready:
            self._reduce()
        if not self.ready or not float(self.loss_rows) > 0:
            raise RuntimeError("ascend() was called without a batch since the last one: call lagrangian(loss, …) first")
        k = int(self.updates)
        for block in self.stacks():
            block.check()
        row = {"loss": float(self.loss_sum / self.loss_rows)}
        for index, multiplier in enumerate(self._multipliers()):
            multiplier.learn(Measured(*self.fresh[self._columns_of(index)].unbind(1)), k, self.horizon)
        for block in self.stacks():
            block.settle()
            for multiplier, outcome, nu in zip(block.multipliers, block.outcome(), block.statistics(), strict=True):
                row |= multiplier.ascend(*outcome, k, self.horizon, *nu)
        if self.cuts:
            limits = torch.stack([m.rule.cut(m.state()) * m.pull.max() for m in self._multipliers() if m.rule.cuts])
            self.limit.copy_(limits.nan_to_num(nan=math.inf, posinf=math.inf).max())  # ∞ · 0 is no limit
            self.limited = bool(torch.isfinite(self.limit))
        self.updates.add_(1)
        for block in self.stacks():
            block.refresh(k + 1)
            block.reset()
        for tensor in (self.loss_sum, self.loss_rows, self.fresh):
            tensor.zero_()
        if any(rule.measures(k + 1) for rule in self.rules):
            self.measured = False
        return row

    @property
    def multipliers(self) -> dict[str, Tensor]:
        """λ and μ by name: [] per constraint, [k] per column, [N, k] per sample; in units of loss per σ."""
        if not self.ready:
            raise RuntimeError("there are no multipliers before the first batch: call lagrangian(loss, …) first")
        return {m.constraint.name: m.value for m in self._multipliers()}

    @property
    def tolerances(self) -> dict[str, float]:
        """The largest mean ν that counts as satisfied, by name, in σ's units."""
        return {m.constraint.name: float(m.tolerance.mean()) for m in self._multipliers()}

    def certify(self, predictions: Any, batch: Any, tolerance: Tolerance | None = None) -> Certificate:
        """Per constraint: maximum and mean ν, in σ's units, and the fraction of rows violated beyond the tolerance.

        Args:
            predictions: predictions for all rows of the batch.
            batch: the rows.
            tolerance: by default that of training, per column: the constraint's own, or a thousandth of its scale. The
                doctor compares the mean of ν with it, a certificate every row.
        """
        limits = self._limits() if tolerance is None else tolerance
        return certify(self.constraints, predictions, batch, tolerance=limits, k=self._k())

    def evidence(self, predictions: Any, batch: Any, tolerance: Tolerance | None = None) -> dict[str, Evidence]:
        """Whether predictions exist that satisfy all constraints, by repairs of up to 64 of these rows.

        Args:
            predictions: predictions for all rows of the batch.
            batch: the rows; targets that have the form of predictions are evaluated too.
            tolerance: by default that of training.
        """
        limits = self._limits() if tolerance is None else tolerance
        return evidence(self.constraints, predictions, batch, limits, self._k())

    def conflicts(self, predictions: Any, batch: Any) -> dict[tuple[str, str], float]:
        """Cosines between the gradients ∂ mean(ν)/∂ŷ of every two constraints violated by these predictions.

        Near −1, reducing one violation increases the other. Constraints on pairs are omitted.
        """
        return conflicts(self.constraints, predictions, batch, self._k())

    def settled(self) -> bool:
        """Whether the current model may be selected as the best, according to every dual rule."""
        return all(rule.settled(int(self.updates), self.horizon) for rule in self.rules)

    # ---------------------------------------------------------------- internals

    checks = True
    """Check every loss and name the constraint that is not finite; if False, only `ascend` checks."""

    def _columns_of(self, index: int) -> slice:
        """The rows of `fresh` that belong to a constraint's columns."""
        ends = self.columns[:, 0].cumsum(0).tolist()
        return slice(ends[index - 1] if index else 0, ends[index])

    def _k(self) -> int:
        """Number of dual updates so far."""
        return int(self.updates) if self.ready else 0

    def _limits(self) -> dict[str, float | Tensor]:
        """The tolerance by name, [] or [k]; of comparisons of groups the smallest, since some may be missing."""
        if not self.ready:
            return {c.name: TOLERANCE if c.tolerance is None else c.tolerance for c in self.constraints}
        return {
            m.constraint.name: m.tolerance if m.constraint.scope.rowwise else m.tolerance.min()
            for m in self._multipliers()
        }

    def _multipliers(self) -> list[Multiplier]:
        return list(self.multiplier_list)  # type: ignore[arg-type]

    def stacks(self) -> tuple[Block, ...]:
        """The blocks of stacked constraints."""
        return self._stacks

    def _seen(self, sides: Sides, loss: Tensor) -> Sides:
        """The sides with limited gradients; while every λ is 0 without any, which saves a backward pass."""
        change: Callable[[Tensor], Tensor] | None = self._cut if self.cuts else None
        if not torch.compiler.is_compiling():  # a compiled step is one graph for all values of λ
            if loss.requires_grad and all(block.idle for block in self.stacks()):
                change = torch.detach
            elif not self.limited:
                change = None
        if change is None:
            return sides
        return {name: Side(tree_map(change, side.predictions), side.batch) for name, side in sides.items()}

    def _cut(self, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return Cut.apply(leaf, self.limit)  # type: ignore[no-any-return, no-untyped-call]

    def _sides(self, predictions: Any, batch: Any, pairs: PairSides) -> Sides:
        sides: dict[str | None, Side] = {None: Side(predictions, batch)}
        if pairs is None:
            return sides
        if not isinstance(pairs, Mapping):
            names = {c.scope.name for c in self.constraints if c.scope.name is not None}
            if not names:
                raise ValueError("pairs were given, but no constraint has scope=ldf.Pairs(…)")
            if len(names) > 1:
                raise ValueError(f"there are {len(names)} sets of pairs, {sorted(names)}: pass a mapping by name")
            pairs = {names.pop(): pairs}
        return sides | {name: Side(*side) for name, side in pairs.items()}

    def _lay_out(self, sides: Sides) -> None:
        """Find the number of columns of every constraint, and allocate all buffers."""
        widths = []
        dtype = torch.float32  # minimum: sums over an epoch would stagnate in half precision
        with torch.no_grad():
            for constraint in self.constraints:
                side = sides.get(constraint.scope.name)
                if side is None:
                    raise ValueError(
                        f"constraint {constraint.name!r} needs pairs {constraint.scope.name!r}, but the first batch "
                        "has none: call lagrangian(loss, predictions, batch, pairs=(…, …))"
                    )
                sigma = constraint.evaluate(*side)
                dtype = torch.promote_types(dtype, sigma.dtype)
                widths.append((constraint.scope.columns(constraint.name, sigma), sigma.shape[1]))
        device = leaves(sides[None].predictions)[0].device
        self._build(widths, torch.empty((), dtype=dtype, device=device))

    def _build(self, widths: Sequence[Sequence[int]], like: Tensor) -> None:
        self.register_buffer("columns", torch.tensor(widths, dtype=torch.int64, device=like.device).reshape(-1, 2))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=like.device))
        self.register_buffer("rank", torch.tensor(rank(), device=like.device), persistent=False)  # owner of the sums
        self.register_buffer("names", _encoded(self.constraints).to(like.device))
        self.register_buffer("fresh", like.new_zeros(sum(width for width, _ in widths), len(Measured._fields)))
        self.register_buffer("limit", like.new_full((), math.inf))
        # [1], not []: torch.compile loses in-place additions to a 0-d float64 tensor.
        self.register_buffer("loss_sum", like.new_zeros(1))
        self.register_buffer("loss_rows", like.new_zeros(1))
        stacks: dict[Hashable, list[int]] = {}
        for index, (constraint, rule) in enumerate(zip(self.constraints, self.rules, strict=True)):
            rows = constraint.scope.size(self.rows)
            multiplier = Multiplier(constraint, rule, widths[index][0], rows, like, self.labelled)
            self.multiplier_list.append(multiplier)
            stacks.setdefault(constraint.scope.stack(constraint.name, multiplier.kind), []).append(index)
        multipliers = self._multipliers()
        self._stacks = tuple(  # in addition to the module list, which is slow to iterate over
            self.constraints[own[0]].scope.block([multipliers[i] for i in own], widths[own[0]][1], self.rows, like)
            for own in stacks.values()
        )
        self.blocks.extend(self._stacks)
        for block in self.stacks():
            block.refresh(0, learned=False)
        self.ready = True

    def _explain(self, loss: Tensor, sides: Sides) -> None:
        """Raise an error that names the part of the loss that is not finite."""
        if not math.isfinite(loss.item()):
            raise ValueError(f"the task loss is {loss.item()}: check the data, or try a smaller learning rate")
        for constraint in self.constraints:
            if constraint.scope.name in sides:
                constraint.check_finite(constraint.evaluate(*sides[constraint.scope.name]))
        worst = max(self._multipliers(), key=lambda m: float(m.value.abs().max()))
        raise ConstraintError(
            f"the penalty overflowed; the largest multiplier is that of {worst.constraint.name!r}, "
            f"{float(worst.value.abs().max()):.3g}: use a smaller step, or cap="
        )

    def _reduce(self) -> None:
        """Add up the sums of all processes, in two collectives."""
        if world() == 1:
            return
        self.fresh.div_(world())
        strange = self.loss_sum.new_tensor([float(int(self.rank) not in (-1, rank()))])
        added, largest = [strange, self.loss_sum, self.loss_rows, self.fresh], []
        for block in self.stacks():
            sums, maxima = block.totals()
            added += sums
            largest += maxima
        all_reduce(added, largest)
        if float(strange) > 0:
            raise RuntimeError(
                "this process's sums were overwritten by another's: DistributedDataParallel broadcasts the buffers "
                "of what it wraps; wrap only the model, or use DistributedDataParallel(…, broadcast_buffers=False)"
            )
        self.rank.fill_(rank())
        for block in self.stacks():
            block.share()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        names = state_dict.get(f"{prefix}names")
        if names is not None and not torch.equal(names.cpu(), _encoded(self.constraints)):
            theirs = bytes(names.tolist()).decode().split("\n")
            raise ValueError(
                f"this state has the constraints {theirs}, this Lagrangian has {[c.name for c in self.constraints]}"
            )
        if not self.ready and f"{prefix}columns" in state_dict:
            self._build(state_dict[f"{prefix}columns"].tolist(), state_dict[f"{prefix}loss_sum"].detach())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The constraints and their dual rules, one per line."""
        return "\n".join(f"{c.name}: {c.kind}, {rule}" for c, rule in zip(self.constraints, self.rules, strict=True))


@torch.no_grad()
def pool(lagrangians: Sequence[Lagrangian]) -> None:
    """Combine the sums since the last `ascend` of several Lagrangians with the same constraints.

    Models trained on different folds then share one dual update, from each fold's held-out rows. Their units are the
    mean of the units measured for each, so that their multipliers are equal.
    """
    fresh = torch.stack([lagrangian.fresh for lagrangian in lagrangians]).mean(0)
    for lagrangian in lagrangians:
        lagrangian.fresh.copy_(fresh)
    for blocks in zip(*(lagrangian.stacks() for lagrangian in lagrangians), strict=True):
        if not blocks[0].observable:
            continue
        added, largest = zip(*(block.observed() for block in blocks), strict=True)
        for tensors in zip(*added, strict=True):
            total = torch.stack(tensors).sum(0)
            for tensor in tensors:
                tensor.copy_(total)
        for tensors in zip(*largest, strict=True):
            most = torch.stack(tensors).amax(0)
            for tensor in tensors:
                tensor.copy_(most)


def _encoded(constraints: Sequence[Constraint]) -> Tensor:
    """The constraint names in order, encoded as a tensor for the state dict."""
    return torch.tensor(list("\n".join(constraint.name for constraint in constraints).encode()), dtype=torch.uint8)


def _after_load(module: nn.Module, keys: Any) -> None:
    """Recompute everything derived from the loaded buffers."""
    if isinstance(module, Lagrangian) and module.ready:
        for block in module.stacks():
            block.refresh(int(module.updates), learned=False)
        module.limited = bool(torch.isfinite(module.limit))
        module.rank.fill_(rank())
        wanted = any(rule.measures(int(module.updates)) for rule in module.rules)
        module.measured = bool(module.fresh.any()) or not wanted

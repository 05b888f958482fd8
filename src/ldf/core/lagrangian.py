"""The Lagrangian loss L + Σ λ ν(g) + Σ μ ν(h) and the multipliers' ascent: the paper's equation in one module.

`Lagrangian` stacks all constraints of one scope side by side, [rows, K], so that a step costs one product whatever
their number. It holds no parameters: multipliers and an epoch's sums are buffers, saved, moved and reduced like those
of any module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .batch import free, leaves, tree_map
from .blocks import Block, GroupBlock
from .certificate import Certificate, certify, violations
from .constraint import Constraint, ConstraintError, check_names, first_bad
from .distributed import all_reduce, rank, world
from .dual import Ascent, Balanced, Dual, Fixed
from .gradients import Cut, curvature, length, random_signs
from .multiplier import Multiplier
from .scopes import Groups, Pairs, check_rows

PairSide = tuple[Any, Any]
"""Predictions [2, pairs, …] and the batch of the pairs, its `ids` the numbers of the pairs."""


class Lagrangian(nn.Module):
    """L + Σ λ_i ν(g_i) + Σ μ_j ν(h_j) for a training loop of your own, and the ascent of λ and μ.

        lagrangian = ldf.Lagrangian(constraints, dual=ldf.Ascent(step=1e-2))
        for epoch in range(80):
            for batch in loader:
                loss = lagrangian(task_loss, predictions, batch)
                loss.backward(); optimizer.step(); optimizer.zero_grad()
            lagrangian.ascend()

    In eval mode it returns the same loss and adds nothing to the epoch's sums. Under torch.compile, call `prepare` on
    one batch before the first compiled step, and with step="auto" before the first of every epoch. In distributed
    training every process calls `ascend`, which reduces the sums.

    Args:
        constraints: made by `inequality` and `equality`, each under a name of its own.
        dual: the rule for all, or a rule for each name (λ and μ with steps of their own); None watches the constraints
            and enforces none, the paper's M.
        rows: N, the number of rows of the data set; needed by a multiplier per sample.
        updates: how many times `ascend` will be called in all; needed by step="auto".
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
        dual: Dual | Mapping[str, Dual] | None = Ascent(),  # noqa: B008  # frozen, so sharing it is harmless
        *,
        rows: int | None = None,
        updates: int | None = None,
    ) -> None:
        super().__init__()
        self.constraints = check_names(constraints)
        self.rules = tuple(_rules(self.constraints, dual))
        self.rows, self.horizon = rows, updates
        for name, value in (("rows", rows), ("updates", updates)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")
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
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]

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
                raise RuntimeError(
                    "call lagrangian.prepare(loss, predictions, batch) before the first compiled step, and with "
                    "step='auto' before the first of every epoch"
                )
            self.prepare(loss, predictions, batch, sides)
        if self.cuts:
            predictions = tree_map(self._cut, predictions)
            sides = {name: (tree_map(self._cut, ours), theirs) for name, (ours, theirs) in sides.items()}
        total = loss
        for block in self.stacks():
            found = self._block_sigma(block, predictions, batch, sides)
            if found is not None:
                total = block(total, *found, remember=self.training)
        if self.training:
            rows = check_rows(predictions, None)
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
            with torch.inference_mode(False):
                self._lay_out(predictions, batch, sides)
        if torch.is_grad_enabled() and (loss.requires_grad or not self.normalises):
            self.measure(loss, predictions, batch, sides)
        elif self.normalises and self.training:
            raise ValueError("measuring needs predictions that the loss was computed from, with gradients enabled")

    def measure(self, loss: Tensor, predictions: Any, batch: Any, pairs: Mapping[str, PairSide]) -> None:
        """What the loss and each constraint pull with at the predictions; `ascend` takes the figures in.

        For every constraint g = ‖∂ mean(ε∘σ)/∂ŷ‖₂, S the same in the 1-norm, and the loss's pull against it where the
        constraint would hold, ‖∂L/∂ŷ‖₂ + h·ν/g. ε are random signs: the plain mean of a two-sided bound would have no
        gradient. h = ‖H ε‖/‖ε‖ is the loss's curvature and ν/g how far ŷ must move to keep the constraint: a model
        that fits its labels exactly has no gradient left, but resists as it is drawn away from them. For a quadratic
        loss and one linear constraint, pull/g is the optimal λ itself.
        """
        parts = [part for part in leaves(predictions) if part.requires_grad]
        if self.normalises and not (loss.requires_grad and parts):
            raise ValueError("measuring needs predictions that the loss was computed from, with gradients enabled")
        found: Sequence[Tensor | None] = ()
        if loss.requires_grad and parts:
            found = torch.autograd.grad(loss, parts, create_graph=True, allow_unused=True)
        if self.normalises and all(gradient is None for gradient in found):
            raise ValueError(
                "the task loss does not depend on the predictions given: pass what the loss was computed from (logits "
                "rather than probabilities, say), or use a rule with normalise=False"
            )
        signs = torch.Generator().manual_seed(int(self.updates))
        slope = length([gradient.detach() if gradient is not None else None for gradient in found], 2)
        bend = curvature(found, parts, signs)
        size = leaves(predictions)[0].shape[0]
        reach = max(float(length([part.detach() for part in parts], 2)), math.sqrt(size))
        with torch.enable_grad():
            ours = free(predictions)
            theirs = {name: (free(side), rest) for name, (side, rest) in pairs.items()}
            for index, constraint in enumerate(self.constraints):
                sigma, sources = self._sigma(index, ours, batch, theirs)
                if sigma is None or not sigma.requires_grad or not sigma.numel():
                    self.fresh[index] = 0.0
                    continue
                if not bool(torch.isfinite(sigma).all()):
                    raise ConstraintError(
                        f"constraint {constraint.name!r}: its function gave "
                        f"{first_bad(sigma.reshape(len(sigma), -1))}; every value must be finite"
                    )
                signed = (random_signs(sigma, signs) * sigma).mean()
                # Constraints may share what they compute: the graph is kept for the next one.
                gradients = torch.autograd.grad(signed, sources, allow_unused=True, retain_graph=True)
                gradient, scale = length(gradients, 2), length(gradients, 1)
                nu = constraint.violation(sigma.detach(), int(self.updates)).mean()
                rows = size if isinstance(constraint.scope, Groups) else sigma.shape[0]
                # Where σ is all but flat, ν/g has no meaning: ŷ never moves further than a hundred times its size.
                way = (nu / gradient * math.sqrt(size / rows)).nan_to_num(0.0).clamp(max=100 * reach)
                self.fresh[index] = torch.stack([slope + bend * way, gradient, scale]).to(self.fresh)
                if not bool(torch.isfinite(self.fresh[index]).all()):
                    raise ConstraintError(
                        f"constraint {constraint.name!r}: the gradient of its function is not finite at these "
                        "predictions; a square root or division at zero is the usual cause"
                    )
        self.measured = True

    # ---------------------------------------------------------------- the multipliers

    @torch.no_grad()
    def observe(self, predictions: Any, batch: Any) -> None:
        """Put these rows in the place of all since the last `ascend`, which then moves λ by them alone.

        By rows that were not trained on, say: a model can keep a constraint on rows that it knows and break it on
        others. Pairs, and multipliers per sample, belong to rows of the training data and are left as they are.
        """
        if not self.ready:
            raise RuntimeError("observe() before the first batch: call lagrangian(loss, …) first")
        for block in self.stacks():
            if block.per_row or isinstance(block.constraints[0].scope, Pairs):
                continue
            found = self._block_sigma(block, predictions, batch, {})
            assert found is not None
            block.observe(*found)

    @torch.no_grad()
    def ascend(self) -> dict[str, float]:
        """One dual update from the batches since the last: λ ← λ + s Σ ν by the paper's rule, and a new epoch's sums.

        Returns:
            The row of a history: loss, and for every constraint the mean and the largest ν, Σ λν as it entered the
            loss, and λ (where there are several, their mean and the largest).
        """
        if self.ready:
            self._reduce()
        if not self.ready or not float(self.loss_rows) > 0:
            raise RuntimeError("ascend() without any batch since the last one: call lagrangian(loss, …) first")
        self._check_sums()
        k = int(self.updates)
        row = {"loss": float(self.loss_sum / self.loss_rows)}
        for index, multiplier in enumerate(self._multipliers()):
            multiplier.learn(*self.fresh[index])
        if self.cuts:
            limits = [m.rule.strength * m.pull for m in self._multipliers() if isinstance(m.rule, Balanced)]
            self.limit.copy_(torch.stack(limits).max())
        for block in self.stacks():
            if isinstance(block, GroupBlock):
                block.settle()
            for multiplier, outcome, statistic in zip(
                block.multipliers, block.outcome(), block.statistics(), strict=True
            ):
                sums, counts = outcome
                if multiplier.constraint.multiplier == "constraint":
                    sums = sums.mean(-1)
                name = multiplier.constraint.name
                row[f"penalty/{name}"] = float((multiplier.value * sums).sum() / counts.sum().clamp_min(1))
                multiplier.ascend(sums, counts, k, self.horizon)
                row[f"nu_mean/{name}"] = float(statistic[0].mean())
                row[f"nu_max/{name}"] = float(statistic[1].max())
                row[f"lambda/{name}"] = float(multiplier.value.mean())
                if multiplier.multiplier.ndim:
                    row[f"lambda_max/{name}"] = float(multiplier.value.abs().max())
        self.updates.add_(1)
        for block in self.stacks():
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

    def certify(self, predictions: Any, batch: Any, tolerance: float | Mapping[str, float] = 1e-4) -> Certificate:
        """Per constraint: largest and mean ν and the share of rows violated beyond the tolerance, in σ's units."""
        k = int(self.updates) if self.ready else 0
        return certify(self.constraints, predictions, batch, tolerance=tolerance, k=k)

    def conflicts(self, predictions: Any, batch: Any) -> dict[tuple[str, str], float]:
        """Cosines between the gradients ∂ mean(ν)/∂ŷ of every two constraints that these predictions violate.

        Near −1, what helps the one harms the other. Constraints on pairs are left out.
        """
        found: dict[str, Tensor] = {}
        with torch.enable_grad():
            ours = free(predictions)
            sources = [leaf for leaf in leaves(ours) if leaf.requires_grad]
            for constraint in self.constraints:
                if isinstance(constraint.scope, Pairs):
                    continue
                mean = violations(replace(constraint, exact=None), ours, batch, int(self.updates)).sum()
                if mean.requires_grad and float(mean.detach()) > 0:
                    gradients = torch.autograd.grad(mean, sources, allow_unused=True, retain_graph=True)
                    flat = torch.cat([g.flatten() for g in gradients if g is not None])
                    if float(flat.norm()) > 0:
                        found[constraint.name] = flat / flat.norm()
        names = [name for name in found if found[name].shape == next(iter(found.values())).shape]
        return {(a, b): float(found[a] @ found[b]) for i, a in enumerate(names) for b in names[i + 1 :]}

    def settled(self) -> bool:
        """Whether every rule has its multipliers at work, so that this iterate may be chosen."""
        return all(rule.settled(int(self.updates), self.horizon) for rule in self.rules)

    # ---------------------------------------------------------------- inside

    checks = True
    """Look at every loss as it comes, and say which constraint is not finite; else `ascend` does so."""

    def _multipliers(self) -> list[Multiplier]:
        return list(self.multiplier_list)  # type: ignore[arg-type]

    def stacks(self) -> list[Block]:
        """The constraints, block by block."""
        return list(self.blocks)  # type: ignore[arg-type]

    def _cut(self, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return Cut.apply(leaf, self.limit)  # type: ignore[no-any-return, no-untyped-call]

    def _sides(self, pairs: PairSide | Mapping[str, PairSide] | None) -> Mapping[str, PairSide]:
        if pairs is None:
            return {}
        if isinstance(pairs, Mapping):
            return pairs
        names = {c.scope.name for c in self.constraints if isinstance(c.scope, Pairs)}
        if not names:
            raise ValueError("pairs were given, but no constraint stands on pairs: scope=ldf.Pairs(…)")
        if len(names) != 1:
            raise ValueError(f"constraints stand on {len(names)} sets of pairs {sorted(names)}: give a mapping by name")
        return {names.pop(): pairs}

    def _lay_out(self, predictions: Any, batch: Any, sides: Mapping[str, PairSide]) -> None:
        """See how many columns every constraint has, and lay out all buffers."""
        widths = []
        like = leaves(predictions)[0]
        dtype = torch.float32  # at least: an epoch's sums in half precision would stand still
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
                dtype = torch.promote_types(dtype, sigma.dtype)
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
        self._build(widths, torch.empty((), dtype=dtype, device=like.device))

    def _build(self, widths: Sequence[Sequence[int]], like: Tensor) -> None:
        self.register_buffer("columns", torch.tensor(widths, dtype=torch.int64, device=like.device).reshape(-1, 2))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64, device=like.device))
        self.register_buffer("rank", torch.tensor(rank(), device=like.device), persistent=False)  # whose sums these are
        self.register_buffer("names", _encoded(self.constraints).to(like.device))
        self.register_buffer("fresh", like.new_zeros(len(self.constraints), 3))
        self.register_buffer("limit", like.new_full((), math.inf))
        # [1], not []: torch.compile loses what a graph adds to a float64 tensor without dimensions.
        self.register_buffer("loss_sum", like.new_zeros(1))
        self.register_buffer("loss_rows", like.new_zeros(1))
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
            self.blocks.append(Block(stack, size if per_row else None, like))
        for multiplier, statistics in singles:
            self.blocks.append(GroupBlock(multiplier, statistics, like))
        for block in self.stacks():
            block.refresh(0, learned=False)
        self.ready = True

    def _block_sigma(
        self, block: Block, predictions: Any, batch: Any, sides: Mapping[str, PairSide]
    ) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
        """A block's degrees, stacked [rows, K], and what goes with them: the rows' numbers, or the groups' members; and
        which of the rows are there at all, where a batch of pairs was filled up, or the exact statistic of groups.
        """
        scope = block.constraints[0].scope
        if isinstance(scope, Pairs):
            if scope.name not in sides:
                return None
            predictions, batch = sides[scope.name]
        rows = check_rows(predictions, scope)
        found = [constraint.sigma(predictions, batch) for constraint in block.constraints]
        for constraint, sigma, width in zip(block.constraints, found, block.widths, strict=True):
            constraint.check(sigma, rows, width)
        stacked = (found[0] if len(found) == 1 else torch.cat(found, 1)).to(self.loss_sum.dtype)
        if isinstance(scope, Groups):
            exact = None
            (constraint,) = block.constraints
            if constraint.exact is not None:
                exact = constraint.exact(predictions, batch)
                constraint.check(exact, rows, block.widths[0])
                exact = exact.detach().to(stacked.dtype)
            return stacked, scope.membership(batch).to(stacked.dtype), exact
        ids = getattr(batch, "ids", None) if block.per_row else None
        return stacked, ids, getattr(batch, "present", None) if isinstance(scope, Pairs) else None

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
        if isinstance(constraint.scope, Pairs) and getattr(batch, "present", None) is not None:
            sigma = sigma[batch.present]
        if isinstance(constraint.scope, Groups):
            (block,) = [b for b in self.stacks() if b.constraints[0] is constraint]
            assert isinstance(block, GroupBlock)
            member = constraint.scope.membership(batch).to(block.sums.dtype)
            sigma = constraint.scope.compare(block.means(sigma.to(member), member, remember=False))
        return sigma, [leaf for leaf in leaves(predictions) if leaf.requires_grad]

    def _explain(self, loss: Tensor, predictions: Any, batch: Any, sides: Mapping[str, PairSide]) -> None:
        """Say which part of the loss is not finite."""
        if not math.isfinite(loss.item()):
            raise ValueError(
                f"the task loss is {loss.item()}: a smaller learning rate, or a look at the data, may help"
            )
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
        for block in self.stacks():
            scope = block.constraints[0].scope
            if isinstance(scope, Pairs) and not float(block.count) > 0:
                raise RuntimeError(
                    f"constraint {block.constraints[0].name!r}: no pairs {scope.name!r} since the last ascend()"
                )
            tensors = [block.group_sums] if isinstance(block, GroupBlock) else [block.violations, block.maxima]
            for tensor in tensors:
                if not bool(torch.isfinite(tensor).all()):
                    bad = [
                        constraint.name
                        for constraint, part in zip(block.constraints, block.slices, strict=True)
                        if isinstance(block, GroupBlock) or not bool(torch.isfinite(tensor[part]).all())
                    ]
                    raise ConstraintError(
                        f"constraint {bad[0]!r}: its function gave a value that is not finite since the last ascend()"
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
                "of what it wraps; wrap the model alone, or say DistributedDataParallel(…, broadcast_buffers=False)"
            )
        self.rank.fill_(rank())
        for block in self.stacks():
            if isinstance(block, GroupBlock):
                block.share()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        names = state_dict.get(f"{prefix}names")
        if names is not None and not torch.equal(names.cpu(), _encoded(self.constraints)):
            theirs = bytes(names.tolist()).decode().split("\n")
            raise ValueError(
                f"this state is of the constraints {theirs}; here are {[c.name for c in self.constraints]}"
            )
        if not self.ready and f"{prefix}columns" in state_dict:
            self._build(state_dict[f"{prefix}columns"].tolist(), state_dict[f"{prefix}loss_sum"].detach())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The constraints and their rules, a line each."""
        return "\n".join(f"{c.name}: {c.kind}, {rule}" for c, rule in zip(self.constraints, self.rules, strict=True))


@torch.no_grad()
def pool(lagrangians: Sequence[Lagrangian]) -> None:
    """Let several Lagrangians of the same constraints share what each has seen since the last `ascend`.

    Networks that were each trained without one fold of the data then ascend together, by the rows that none knows.
    Their units are the mean of what each has measured, so that their multipliers are the same.
    """
    fresh = torch.stack([lagrangian.fresh for lagrangian in lagrangians]).mean(0)
    for lagrangian in lagrangians:
        lagrangian.fresh.copy_(fresh)
    for blocks in zip(*(lagrangian.stacks() for lagrangian in lagrangians), strict=True):
        if blocks[0].per_row or isinstance(blocks[0].constraints[0].scope, Pairs):
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


def _rules(constraints: Sequence[Constraint], dual: Dual | Mapping[str, Dual] | None) -> Iterable[Dual]:
    if dual is None:
        dual = Fixed(0.0)
    if isinstance(dual, Dual):
        return [dual] * len(constraints)
    if not isinstance(dual, Mapping):
        raise TypeError(
            f"dual must be a rule such as ldf.Ascent(1e-2), a mapping of them by name, or None, got {dual!r}"
        )
    names = [constraint.name for constraint in constraints]
    unknown, missing = sorted(set(dual) - set(names)), [name for name in names if name not in dual]
    if unknown or missing:
        raise ValueError(f"dual must have a rule for each of {names}; unknown: {unknown}, missing: {missing}")
    for name in names:
        if not isinstance(dual[name], Dual):
            raise TypeError(f"dual: the rule for {name!r} must be one such as ldf.Ascent(1e-2), got {dual[name]!r}")
    return [dual[name] for name in names]


def _encoded(constraints: Sequence[Constraint]) -> Tensor:
    """The constraints' names in their order, as a tensor: a state dict holds nothing else."""
    return torch.tensor(list("\n".join(constraint.name for constraint in constraints).encode()), dtype=torch.uint8)


def _after_load(module: nn.Module, keys: Any) -> None:
    """What follows from the loaded buffers is laid out anew."""
    if isinstance(module, Lagrangian) and module.ready:
        for block in module.stacks():
            block.refresh(int(module.updates), learned=False)
        module.rank.fill_(rank())
        known = all(float(multiplier.scale) > 0 for multiplier in module._multipliers())
        module.measured = bool(module.fresh.any()) or (known and not any(rule.tracks for rule in module.rules))

"""Constraints on groups of samples, the paper's h on subsets S: comparisons of group means."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .batch import Widened, describe, leaves, tree_map
from .blocks import Block
from .scope import ConstraintError, Scope, Side

if TYPE_CHECKING:
    from .constraint import Constraint
    from .multiplier import Multiplier

WINDOW = 1024.0
"""Window of a group's running mean, in rows; a quarter of the group if that is smaller."""


def every_pair(means: Tensor) -> Tensor:
    """σ = mean of group b − mean of group a for every pair a < b; zero if all groups agree. [G, k] → [pairs·k].

    >>> every_pair(torch.tensor([[0.2], [0.5], [0.9]]))
    tensor([0.3000, 0.7000, 0.4000])
    """
    first, second = torch.triu_indices(means.shape[0], means.shape[0], offset=1, device=means.device)
    return (means[second] - means[first]).flatten()


class Groups(Scope):
    """Subsets S₁ … S_G of the rows, for constraints on group means, such as equal positive rates.

    The function of a constraint on groups returns a statistic [batch, k] of each row (for example the probability of a
    positive decision); `compare` maps its exact group means, [G, k], to the constraint's σ, [q].

    Args:
        labels: the group of each row of the data set, [N] int64 with −1 for no group; or membership [N, G] bool, which
            allows overlapping groups; or the name of a column of the batch, or a function of the batch, for either.
        count: G; required if `labels` is a name or a function.
        compare: means [G, k] → σ [q]; by default the difference of every pair.
        names: names of the groups in messages.

    >>> Groups(torch.tensor([0, 1, 1, -1])).count
    2
    """

    rowwise = False

    def __init__(
        self,
        labels: Tensor | str | Callable[[Any], Tensor],
        count: int | None = None,
        *,
        compare: Callable[[Tensor], Tensor] = every_pair,
        names: list[str] | None = None,
    ) -> None:
        if isinstance(labels, Tensor):
            if labels.dtype == torch.bool and labels.ndim == 2:
                found = labels.shape[1]
            elif labels.dtype == torch.int64 and labels.ndim == 1 and len(labels):
                found = int(labels.max()) + 1
            else:
                raise TypeError(f"Groups: labels must be [N] int64 or [N, G] bool, got {describe(labels)}")
            count = found if count is None else count
            if labels.ndim == 2 and count != found:
                raise ValueError(f"Groups: labels has {found} columns, but count = {count}")
            if count < found:
                raise ValueError(f"Groups: label {found - 1} needs count ≥ {found}, got {count}")
        elif count is None:
            raise ValueError(f"Groups: labels={labels!r} requires the number of groups: pass count=")
        if count < 1:
            raise ValueError(f"Groups: count must be ≥ 1, got {count}")
        if names is not None and len(names) != count:
            raise ValueError(f"Groups: {count} groups but {len(names)} names")
        self.labels, self.count, self.compare = labels, count, compare
        self.names = names or [str(group) for group in range(count)]

    def membership(self, batch: Any) -> Tensor:
        """Membership of each row of the batch: [batch, G] bool."""
        labels: Tensor
        if isinstance(self.labels, Tensor):
            ids = getattr(batch, "ids", None)
            if ids is None:
                raise ValueError("Groups with a tensor of labels look rows up by id: the batch needs `ids`")
            labels = self.labels.to(ids.device)[ids]
        elif isinstance(self.labels, str):
            labels = getattr(batch, self.labels)
        else:
            labels = self.labels(batch)
        return self._member(labels)

    def _member(self, labels: Tensor) -> Tensor:
        if labels.dtype == torch.bool and labels.ndim == 2:
            return labels
        return labels[:, None] == torch.arange(self.count, device=labels.device)

    def columns(self, constraint: str, sigma: Tensor) -> int:
        """q, the number of comparisons."""
        compared = self.compare(sigma.new_zeros(self.count, sigma.shape[1]))
        if compared.ndim != 1 or not len(compared):
            raise ConstraintError(
                f"constraint {constraint!r}: compare must return a vector [q] from the group means "
                f"[{self.count}, {sigma.shape[1]}], got {list(compared.shape)}"
            )
        return len(compared)

    def compared(self, sigma: Tensor, member: Tensor | None) -> Tensor:
        """[comparisons, 1] of the exact means over these rows; comparisons with an empty group are omitted."""
        assert member is not None
        member = member.to(sigma.dtype)
        counts = member.sum(0)[:, None]
        # NaN marks a group without rows; 0/0 would give the others a NaN gradient.
        means = torch.where(counts > 0, (member.t() @ sigma) / counts.clamp_min(1), torch.nan)
        found = self.compare(means)[:, None]
        return found[~torch.isnan(found[:, 0])]

    def decided(
        self, constraint: Constraint, predictions: Any, batch: Any, settle: Callable[..., Tensor], k: int
    ) -> Any:
        """Change the decisions nearest to their threshold, as many of each group as the nearest rates need.

        A row that changes its decision moves just across its threshold, the others stay: a threshold for each group.
        """
        parts = [leaf for leaf in leaves(predictions) if leaf.is_floating_point()]
        member = self.membership(batch)
        if len(parts) != 1 or parts[0].numel() != len(parts[0]) or int(member.sum(1).max()) > 1:
            raise ValueError(
                f"constraint {constraint.name!r}: a repair of `exact` needs one number per row and groups that do not "
                f"overlap, got predictions {describe(parts[0]) if len(parts) == 1 else len(parts)}"
            )

        def decide(values: Tensor) -> Tensor:
            moved = tree_map(lambda leaf: values.view_as(leaf) if leaf.is_floating_point() else leaf, predictions)
            with Widened():
                found = constraint.evaluate(moved, batch, exact=True)
            if found.shape[1] != 1 or bool(((found != 0) & (found != 1)).any()):
                raise ValueError(
                    f"constraint {constraint.name!r}: a repair of `exact` needs one decision per row, 0 or 1"
                )
            return found[:, 0] > 0.5

        y = parts[0].reshape(-1)
        decisions = decide(y)
        members = member.to(y.dtype)
        counts = members.sum(0)
        rates = (members.t() @ decisions.to(y.dtype)) / counts.clamp_min(1)
        if bool((constraint.violation(self.compared(decisions.to(y.dtype)[:, None], member), k) <= 0).all()):
            return predictions
        wanted = settle(constraint, self.compare, rates, counts, constraint.slack_at(k)).clamp(0, 1)
        more = self._whole(constraint, wanted * counts, counts, k) - rates * counts
        way = _crossing(decide, y, decisions)
        for group, change in enumerate(more.round().tolist()):
            able = member[:, group] & (decisions == (change < 0)) & torch.isfinite(way)
            rows = able.nonzero()[:, 0]
            rows = rows[way[rows].abs().argsort()[: abs(int(change))]]
            y = y.index_add(0, rows, way[rows])
        return tree_map(lambda leaf: y.view_as(leaf) if leaf.is_floating_point() else leaf, predictions)

    def _whole(self, constraint: Constraint, wanted: Tensor, counts: Tensor, k: int) -> Tensor:
        """Whole numbers of decisions [G] near these, changed by one at a time until their rates satisfy the constraint.

        Rates are multiples of 1/n: an equality without slack may have no solution, and gets a small violation.
        """

        def excess(numbers: Tensor) -> float:
            rates = torch.where(counts > 0, numbers / counts, torch.nan)
            return float(constraint.violation(self.compare(rates[:, None]), k).nan_to_num(0.0).sum())

        found = wanted.round()
        left = excess(found)
        steps = torch.eye(len(counts), dtype=found.dtype, device=found.device)
        while left > 0:
            tried = [torch.minimum((found + step).clamp_min(0), counts) for step in (*steps, *-steps)]
            scores = [(excess(one), float((one - wanted).abs().sum())) for one in tried]
            (least, _), best = min(zip(scores, tried, strict=True), key=lambda pair: pair[0])
            if least >= left:
                break
            found, left = best, least
        return found

    def stack(self, name: str, multiplier: str) -> Hashable:
        """One stack per constraint."""
        return "groups", name

    def block(self, multipliers: Sequence[Multiplier], statistics: int, rows: int | None, like: Tensor) -> Block:
        """A block that sums over each group."""
        (multiplier,) = multipliers
        return GroupBlock(self, multiplier, statistics, like)

    def check_data(self, constraint: str, rows: int, trained: Sequence[Tensor], elsewhere: bool) -> None:
        """Raise unless a tensor of labels has one label per row and every group has a training row."""
        if not isinstance(self.labels, Tensor):
            return
        if len(self.labels) != rows:
            raise ValueError(
                f"constraint {constraint!r}: {len(self.labels)} group labels for {rows} rows (including "
                "unlabelled rows; −1 means no group)"
            )
        if elsewhere:
            raise ValueError(
                f"constraint {constraint!r}: with separate validation data, the group labels must be a column of the "
                "data: use Groups('column', count)"
            )
        for own in trained:
            labels = self.labels.cpu()[own]
            counts = self._member(labels).sum(0)
            if int(counts.min()) == 0:
                group = self.names[int(counts.argmin())]
                raise ValueError(f"constraint {constraint!r}: group {group!r} has no training rows")

    def describe(self) -> int:
        """The number of groups."""
        return self.count


def _crossing(decide: Callable[[Tensor], Tensor], y: Tensor, decisions: Tensor) -> Tensor:
    """The smallest shift of each row's prediction that changes its decision; infinite if none does. [rows]

    Found by doubling and bisection, in both directions. A millionth more keeps the decision if the value is rounded.
    """
    best = torch.full_like(y, torch.inf)
    for sign in (1.0, -1.0):
        far = torch.full_like(y, torch.inf)
        for power in range(-30, 40):
            tried = torch.full_like(y, sign * 2.0**power)
            far = torch.where(torch.isinf(far) & (decide(y + tried) != decisions), tried, far)
        near, known = far / 2, torch.isfinite(far)
        near = torch.where(near.abs() <= 2.0**-31, 0.0, near)
        for _ in range(60):
            middle = torch.where(known, (near + far) / 2, 0.0)
            across = decide(y + middle) != decisions
            near, far = torch.where(across, near, middle), torch.where(across, middle, far)
        far = torch.where(known, far + sign * 1e-6 * (y.abs() + far.abs()), far)
        best = torch.where(far.abs() < best.abs(), far, best)
    return best


class GroupBlock(Block):
    """One constraint on groups: σ = compare(means over each group).

    Over the epoch, the sums and counts of every group are exact, and the dual update uses them. A training step uses
    running means, with gradients from the rows of this batch: E[Σ_{l∈g} s_l]/(B·P(g)) is the group mean. A group that
    is absent from a batch keeps its running mean and gets no gradient. Observed rows (`observe`) enter the sums of the
    dual update only, not the training steps.
    """

    group_sums: Tensor
    group_counts: Tensor
    trained_counts: Tensor
    running_sums: Tensor
    running_counts: Tensor
    window: Tensor
    rows_seen: Tensor
    shares: Tensor

    def __init__(self, groups: Groups, multiplier: Multiplier, statistics: int, like: Tensor) -> None:
        super().__init__([multiplier], None, like)
        self.groups, count = groups, groups.count
        self.widths = [statistics]
        self.register_buffer("group_sums", like.new_zeros(count, statistics))
        self.register_buffer("group_counts", like.new_zeros(count))
        self.register_buffer("trained_counts", like.new_zeros(count))
        self.register_buffer("running_sums", like.new_zeros(count, statistics))
        self.register_buffer("running_counts", like.new_zeros(count))
        self.register_buffer("window", like.new_full((count,), WINDOW))
        self.register_buffer("rows_seen", like.new_zeros(1))
        self.register_buffer("shares", like.new_zeros(count))  # fractions of the last epoch's rows, over all processes

    def means(self, statistic: Tensor, member: Tensor, remember: bool, exact: Tensor | None = None) -> Tensor:
        """[G, k]: running means, with this batch's gradient; the epoch's sums are those of `exact`, if given."""
        batch_sums = member.t() @ statistic
        with torch.no_grad():
            batch_counts = member.sum(0)
            keep = torch.exp(-batch_counts / self.window)
            sums = keep[:, None] * self.running_sums + batch_sums
            counts = keep * self.running_counts + batch_counts
            # A group not seen so far gets the overall mean, so that it is not compared as different.
            overall = sums.sum(0) / counts.sum().clamp_min(1)
            value = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1e-12)[:, None], overall)
            # Expected rows of each group per batch, by the last epoch's fractions; in the first epoch, by those so far.
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

    def exact(self, side: Side) -> Tensor | None:
        """[rows, k] values of `exact`, which replace σ in the dual update; None if the constraint has none."""
        (constraint,) = self.constraints
        if constraint.exact is None:
            return None
        return constraint.evaluate(*side, columns=self.widths[0], exact=True).detach().to(self.sums.dtype)

    def member(self, side: Side) -> Tensor:
        """[rows, G]: 1 if a row is in a group, else 0."""
        return self.groups.membership(side.batch).to(self.sums.dtype)

    def forward(self, total: Tensor, side: Side, remember: bool) -> Tensor:
        """Add Σ μ ν(h(means)) to the total."""
        means = self.means(self.evaluate(side), self.member(side), remember, self.exact(side))
        sigma = self.groups.compare(means)[None]
        return total + self.price(self.relaxed(sigma))[0]

    def totals(self) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors to sum over processes: sums and counts of every group."""
        return [self.group_sums, self.group_counts, self.trained_counts, self.rows_seen], []

    def observe(self, side: Side) -> None:
        """Replace the group sums by those of these rows alone."""
        exact, member = self.exact(side), self.member(side)
        self.group_sums.copy_(member.t() @ (self.evaluate(side) if exact is None else exact))
        self.group_counts.copy_(member.sum(0))

    def probe(self, constraint: Constraint, side: Side) -> tuple[Tensor, int]:
        """The comparisons [q] of these rows' means, and the number of rows."""
        statistic = constraint.evaluate(*side).to(self.sums.dtype)
        means = self.means(statistic, self.member(side), remember=False)
        return self.groups.compare(means), len(statistic)

    def check(self) -> None:
        """Raise if the sums for the dual update are not finite."""
        if not bool(torch.isfinite(self.group_sums).all()):
            raise ConstraintError(
                f"constraint {self.constraints[0].name!r}: its function returned a value that is not finite since the "
                "last ascend()"
            )

    def observed(self) -> tuple[list[Tensor], list[Tensor]]:
        """The group sums used by the dual update."""
        return [self.group_sums, self.group_counts], []

    def share(self) -> None:
        """Set the running means from the sums over all processes, so that all processes agree."""
        if self.constraints[0].exact is not None or not torch.equal(self.group_counts, self.trained_counts):
            return  # the epoch's sums are not those of the running means
        seen = self.group_counts > 0
        counts = (self.group_counts / 4).clamp(1.0, WINDOW)
        means = self.group_sums / self.group_counts.clamp_min(1)[:, None]
        self.running_sums.copy_(torch.where(seen[:, None], means * counts[:, None], self.running_sums))
        self.running_counts.copy_(torch.where(seen, counts, self.running_counts))

    def settle(self) -> None:
        """Compute the epoch's exact ν from its exact means."""
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
        self.sums.copy_(self.degree(sigma)[0])
        violation = torch.maximum(sigma, sigma * self.own_floor)[0]
        self.violations.copy_(violation)
        self.maxima.copy_(violation)
        self.count.fill_(1.0)
        self.window.copy_((self.trained_counts / 4).clamp(1.0, WINDOW))

    def outcome(self) -> list[tuple[Tensor, Tensor]]:
        """Σ of the degree, [q], and a row count of 1."""
        return [(self.sums, self.count[0])]

    def reset(self) -> None:
        """Reset the sums for a new epoch; the running means continue."""
        for tensor in (self.group_sums, self.group_counts, self.trained_counts, self.rows_seen):
            tensor.zero_()
        for tensor in (self.sums, self.violations, self.maxima, self.count):
            tensor.zero_()

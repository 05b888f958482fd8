"""Over what a constraint is stated: each sample, pairs of samples, or groups (the paper's subsets S)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .batch import describe, rows_of


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs (i, j) of rows of the data set, for constraints between two samples such as ŷᵢ ≤ ŷⱼ for dᵢ ≼ dⱼ.

    The function of a constraint on pairs gets predictions of shape [2, pairs, …], first and second partner, and a
    batch whose columns have the same two leading dimensions; it returns [pairs, k].

    Args:
        indices: [P, 2] row numbers of the data set; labelled rows first, unlabelled rows after them.
        name: tells several sets of pairs in one training run apart.

    >>> Pairs(torch.tensor([[0, 1], [1, 2]])).count
    2
    """

    indices: Tensor
    name: str = "pairs"

    def __post_init__(self) -> None:
        if not isinstance(self.indices, Tensor) or self.indices.dtype != torch.int64:
            raise TypeError(f"Pairs {self.name!r}: indices must be an int64 tensor, got {describe(self.indices)}")
        if self.indices.ndim != 2 or self.indices.shape[1] != 2 or self.indices.shape[0] == 0:
            raise ValueError(f"Pairs {self.name!r}: indices must have shape [P, 2], got {list(self.indices.shape)}")
        if int(self.indices.min()) < 0:
            raise ValueError(f"Pairs {self.name!r}: row numbers must be ≥ 0, got {int(self.indices.min())}")

    @property
    def count(self) -> int:
        """P, the number of pairs."""
        return int(self.indices.shape[0])


def every_pair(means: Tensor) -> Tensor:
    """σ = mean of group b − mean of group a for every pair a < b: zero when all groups agree. [G, k] → [pairs·k].

    >>> every_pair(torch.tensor([[0.2], [0.5], [0.9]]))
    tensor([0.3000, 0.7000, 0.4000])
    """
    first, second = torch.triu_indices(means.shape[0], means.shape[0], offset=1, device=means.device)
    return (means[second] - means[first]).flatten()


class Groups:
    """Subsets S₁ … S_G of the rows, for constraints on means over each of them, such as equal positive rates.

    The function of a constraint on groups returns a statistic [batch, k] of each row (say, the probability of a
    positive decision); `compare` turns its exact means over each group, [G, k], into the constraint's σ, [q].

    Args:
        labels: the group of each row of the data set, [N] int64 with −1 for "in none"; or membership [N, G] bool, so
            that subsets may overlap; or the name of a batch's column, or a function of the batch, giving either.
        count: G; needed where `labels` is a name or a function.
        compare: means [G, k] → σ [q]; by default every pair's difference.
        names: what the groups are called in messages.

    >>> Groups(torch.tensor([0, 1, 1, -1])).count
    2
    """

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
                raise ValueError(f"Groups: membership in {found} groups, but count = {count}")
            if count < found:
                raise ValueError(f"Groups: label {found - 1} needs count ≥ {found}, got {count}")
        elif count is None:
            raise ValueError(f"Groups: with labels={labels!r} the number of groups must be given, as count=")
        if count < 1:
            raise ValueError(f"Groups: count must be ≥ 1, got {count}")
        if names is not None and len(names) != count:
            raise ValueError(f"Groups: {count} groups but {len(names)} names")
        self.labels, self.count, self.compare = labels, count, compare
        self.names = names or [str(group) for group in range(count)]

    def membership(self, batch: Any) -> Tensor:
        """Which row of the batch is in which group: [batch, G] bool."""
        labels: Tensor
        if isinstance(self.labels, Tensor):
            ids = getattr(batch, "ids", None)
            if ids is None:
                raise ValueError("Groups with a tensor of labels look a row up by its number: the batch needs `ids`")
            labels = self.labels.to(ids.device)[ids]
        elif isinstance(self.labels, str):
            labels = getattr(batch, self.labels)
        else:
            labels = self.labels(batch)
        if labels.dtype == torch.bool and labels.ndim == 2:
            return labels
        return labels[:, None] == torch.arange(self.count, device=labels.device)

    def whole(self, rows: Tensor) -> Tensor:
        """How many of these rows of the data set are in each group: [G]; only for a tensor of labels."""
        if not isinstance(self.labels, Tensor):
            raise TypeError("Groups.whole needs a tensor of labels")
        labels = self.labels.cpu()[rows]
        member = labels if labels.ndim == 2 else labels[:, None] == torch.arange(self.count)
        return member.sum(0)


Scope = Pairs | Groups | None


def shuffled(rows: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
    """The rows in random order, cut into batches; the last one may be shorter."""
    return list(rows[torch.randperm(len(rows), generator=generator)].split(batch_size))


def stratified(
    rows: Tensor, labels: Tensor, batch_size: int, generator: torch.Generator, at_least: int = 1
) -> list[Tensor]:
    """The rows in random order, cut into batches that each hold every group's share, and `at_least` rows of each.

    A group with fewer rows than that takes is gone through again, so that its rows occur more than once in an epoch.

    Args:
        rows: [n] row numbers.
        labels: [n] int64, the group of each of them.
    """
    batches = math.ceil(len(rows) / batch_size)
    order, batch_of = [], []
    for rank, group in enumerate(torch.unique(labels)):
        members = rows[labels == group]
        wanted = max(len(members), at_least * batches)
        rounds = [torch.randperm(len(members), generator=generator) for _ in range(math.ceil(wanted / len(members)))]
        order.append(members[torch.cat(rounds)[:wanted]])
        # Row j goes to batch ⌊(j + offset)·batches/wanted⌋: every batch gets ⌊wanted/batches⌋ rows or one more; the
        # offset, another for each group, keeps the larger shares of all groups from meeting in one batch.
        offset = (rank * 0.6180339887) % 1.0
        batch_of.append(((torch.arange(wanted) + offset) * batches / wanted).long().clamp(max=batches - 1))
    flat, place = torch.cat(order), torch.cat(batch_of)
    sizes = torch.bincount(place, minlength=batches).tolist()
    return list(flat[torch.argsort(place, stable=True)].split(sizes))


class StratifiedBatches:
    """A batch sampler for `DataLoader(dataset, batch_sampler=…)`: every batch holds every group, however rare.

    >>> batches = StratifiedBatches(torch.tensor([0] * 97 + [1] * 3), batch_size=10)
    >>> all(any(row >= 97 for row in batch) for batch in batches)
    True
    """

    def __init__(self, labels: Tensor, batch_size: int, *, at_least: int = 1, seed: int = 0) -> None:
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.ndim != 1 or not len(labels):
            raise TypeError(f"StratifiedBatches: labels must be a non-empty [N] int64 tensor, got {describe(labels)}")
        if batch_size < 1 or at_least < 0:
            raise ValueError(f"StratifiedBatches: batch_size ≥ 1 and at_least ≥ 0, got {batch_size} and {at_least}")
        self.labels, self.batch_size, self.at_least, self.seed, self.epoch = labels, batch_size, at_least, seed, 0

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = epoch_generator(self.seed, self.epoch)
        self.epoch += 1
        rows = torch.arange(len(self.labels))
        for batch in stratified(rows, self.labels, self.batch_size, generator, self.at_least):
            yield batch.tolist()


class PairBatches:
    """Hands out all pairs once an epoch, in random order, as many batches as asked for: for loops of your own.

    >>> [batch.tolist() for batch in PairBatches(Pairs(torch.tensor([[0, 1], [1, 2], [0, 2]])), batches=2)]
    [[2, 0], [1]]
    """

    def __init__(self, pairs: Pairs, batches: int, *, seed: int = 0) -> None:
        if batches < 1:
            raise ValueError(f"PairBatches: batches must be ≥ 1, got {batches}")
        self.pairs, self.batches, self.seed, self.epoch = pairs, batches, seed, 0

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Tensor]:
        generator = epoch_generator(self.seed, self.epoch)
        self.epoch += 1
        yield from torch.randperm(self.pairs.count, generator=generator).tensor_split(self.batches)


def epoch_generator(seed: int, epoch: int, stream: int = 0) -> torch.Generator:
    """The random numbers of one epoch, the same however the run came there: nothing of it needs to be saved."""
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) % 2**63
    return torch.Generator().manual_seed(mixed)


def check_rows(predictions: Any, scope: Scope) -> int:
    """How many rows σ must have for these predictions."""
    return rows_of(predictions, dim=1 if isinstance(scope, Pairs) else 0)

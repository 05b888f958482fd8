"""Samplers for rows and pairs: shuffled or stratified, reproducible by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .batch import describe
from .pairs import Pairs


def shuffled(rows: Tensor, batch_size: int, generator: torch.Generator) -> list[Tensor]:
    """The rows in random order, split into batches; the last one may be smaller."""
    return list(rows[torch.randperm(len(rows), generator=generator)].split(batch_size))


def stratified(
    rows: Tensor, labels: Tensor, batch_size: int, generator: torch.Generator, at_least: int = 1
) -> list[Tensor]:
    """The rows in random order, split into batches with every group in proportion, and `at_least` rows of each.

    The rows of a group too small for that occur more than once in an epoch.

    Args:
        rows: [n] row numbers.
        labels: [n] int64, the group of each row.
        batch_size: rows per batch.
        generator: source of the random order.
        at_least: minimum number of rows of each group per batch.
    """
    batches = math.ceil(len(rows) / batch_size)
    order, batch_of = [], []
    for rank, group in enumerate(torch.unique(labels)):
        members = rows[labels == group]
        wanted = max(len(members), at_least * batches)
        rounds = [torch.randperm(len(members), generator=generator) for _ in range(math.ceil(wanted / len(members)))]
        order.append(members[torch.cat(rounds)[:wanted]])
        # Row j goes to batch ⌊(j + offset)·batches/wanted⌋: every batch gets ⌊wanted/batches⌋ rows or one more. The
        # offset differs between groups, so that their extra rows do not fall into the same batches.
        offset = (rank * 0.6180339887) % 1.0
        batch_of.append(((torch.arange(wanted) + offset) * batches / wanted).long().clamp(max=batches - 1))
    flat, place = torch.cat(order), torch.cat(batch_of)
    sizes = torch.bincount(place, minlength=batches).tolist()
    return list(flat[torch.argsort(place, stable=True)].split(sizes))


class StratifiedBatches:
    """A batch sampler for `DataLoader(dataset, batch_sampler=…)`: every batch contains every group, however rare.

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
    """Yields every pair once per epoch, in random order, in a given number of batches: for your own training loop.

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
    """The random generator of one epoch. It depends only on the arguments, so checkpoints need not store it."""
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) % 2**63
    return torch.Generator().manual_seed(mixed)

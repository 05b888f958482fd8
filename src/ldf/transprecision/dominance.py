"""Dominance between configurations: x ≼ x′ if no width of x exceeds that of x′.

A set of configurations is stored as a row of bits. For each variable k and value v, the set of configurations with at
least v in k is computed once. The configurations that dominate x are the intersection of one such set per variable. No
loop runs over pairs. Memory beyond the returned pairs is bounded: blocks of bit rows, or n²/8 bytes for covering pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

BLOCK = 1 << 23
"""Size of a block of bit rows, in bytes."""

LIMIT = 20_000_000
"""Maximum number of pairs returned without sampling: 320 MB."""


class Violations(NamedTuple):
    """Violations of monotonicity over dominated pairs."""

    pairs: int
    """Number of dominated pairs."""
    violated: int
    """VC: number of violated pairs."""
    total: float
    """SMVC: Σ (value at x − value at x′) over violated pairs."""
    worst: float
    """Largest violation of a pair."""


class Dominance:
    """The order ≼ on the rows of an integer table, [n, variables].

    >>> order = Dominance([[1, 1], [2, 1], [1, 2], [2, 2]])
    >>> order.count(), order.pairs().tolist(), order.covering().tolist()
    (5, [[0, 1], [0, 2], [0, 3], [1, 3], [2, 3]], [[0, 1], [0, 2], [1, 3], [2, 3]])
    """

    def __init__(self, configurations: npt.ArrayLike) -> None:
        table = np.asarray(configurations)
        if table.ndim != 2 or table.shape[1] == 0 or not np.issubdtype(table.dtype, np.integer):
            raise ValueError(
                "configurations must be a 2-D array of integers with one column per variable, got "
                f"{table.dtype} of shape {table.shape}"
            )
        self.rows = len(table)
        # Ranks have the same order as the values, and their sums cannot overflow.
        ranks = [np.unique(column, return_inverse=True)[1].reshape(-1) for column in table.T]
        distinct, place = np.unique(np.stack(ranks, 1), axis=0, return_inverse=True)
        # Sorted by sum, so that a configuration comes before those that dominate it.
        order = np.argsort(distinct.sum(1), kind="stable")
        self.table: Ints = distinct[order].astype(np.int64)
        """[distinct, variables] the ranks of each distinct configuration."""
        self.place: Ints = np.argsort(order)[place.reshape(-1)]
        """[n] index of each row's configuration in `table`."""
        copies = np.argsort(self.place, kind="stable")
        self.copies = _Copies(copies, np.bincount(self.place, minlength=len(order)))
        self.words = max(1, (len(order) + 63) // 64)
        self._sets = [_Sets(self.table[:, column], self.words) for column in range(table.shape[1])]

    def count(self) -> int:
        """The number of pairs i ≺ j, without building them."""
        sizes = self.copies.sizes
        total = 0
        single = bool((sizes == 1).all())
        for start, above in self._above(BLOCK if single else BLOCK // 64):
            if single:
                total += int(np.bitwise_count(above).sum())
            else:
                member = _unpacked(above, len(sizes))
                total += int((sizes[start : start + len(above)] * (member @ sizes)).sum())
        return total

    def pairs(self, sample: int | None = None, seed: int = 0) -> Ints:
        """Pairs (i, j) of rows with row i ≺ row j: [P, 2], sorted by i, then j; an error if more than `LIMIT`.

        Args:
            sample: if there are more pairs, return this many, sampled without replacement; it may exceed `LIMIT`.
            seed: random seed for sampling.
        """
        total = self.count()
        chosen = None
        if sample is not None and sample < total:
            chosen = _drawn(total, sample, np.random.default_rng(seed))
        elif total > LIMIT:
            raise ValueError(
                f"{self.rows} configurations have {total} dominated pairs, more than {LIMIT}: sample fewer of "
                "them with `sample`, or use `covering`"
            )
        found, offset = [], 0
        for part in self._pairs():
            if chosen is not None:
                low, high = np.searchsorted(chosen, [offset, offset + len(part)])
                offset += len(part)
                part = part[chosen[low:high] - (offset - len(part))]
            found.append(part)
        return self._sorted(found)

    def covering(self) -> Ints:
        """The pairs (i, j), i ≺ j with no configuration in between; all other pairs follow from them. [P, 2]

        Equal rows cover, and are covered by, the same rows.
        """
        count = len(self.table)
        whole = np.concatenate([above for _, above in self._above()] or [np.zeros((0, 1), dtype=np.uint64)])
        found = []
        for start in range(0, count, 64):
            # Rows that dominate these, directly or not, come after them, so the earlier words are empty.
            rest = whole[:, start // 64 :]
            above = rest[start : start + 64]
            row, over = np.nonzero(_unpacked(above, count - start))
            between = np.zeros_like(above)
            size = max(1, BLOCK // (8 * rest.shape[1]))
            for begin in range(0, len(row), size):
                part = slice(begin, begin + size)
                first = np.flatnonzero(np.diff(row[part], prepend=-1))
                between[row[part][first]] |= np.bitwise_or.reduceat(rest[over[part] + start], first, axis=0)
            low, high = np.nonzero(_unpacked(above & ~between, count - start))
            found.append(self.copies.expand(low + start, high + start))
        return self._sorted(found)

    def closures(self, values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """For every row, the largest value of the rows it dominates and the smallest of those that dominate it.

        The row itself and rows equal to it are included. values: [n] → [n], [n].
        """
        count = len(self.table)
        least, most = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(least, self.place, values)
        np.maximum.at(most, self.place, values)
        below, above = most.copy(), least.copy()
        for start, sets in self._above(BLOCK // 64):
            member = _unpacked(sets, count)
            own = slice(start, start + len(sets))
            above[own] = np.minimum(above[own], np.where(member, least, np.inf).min(1))
            np.maximum(below, np.where(member, most[own, None], -np.inf).max(0), out=below)
        return below[self.place], above[self.place]

    def violations(self, values: npt.ArrayLike) -> Violations:
        """VC and SMVC: the number of pairs x ≺ x′ with a larger value at x, and the total excess. values: [n]"""
        given = np.asarray(values, dtype=np.float64)
        if given.shape != (self.rows,):
            raise ValueError(f"values must have one entry for each of the {self.rows} rows, got shape {given.shape}")
        pairs = count = 0
        total = worst = 0.0
        for part in self._pairs():
            excess = given[part[:, 0]] - given[part[:, 1]]
            excess = excess[excess > 0]
            pairs, count, total = pairs + len(part), count + len(excess), total + float(excess.sum())
            worst = max(worst, float(excess.max(initial=0.0)))
        return Violations(pairs, count, total, worst)

    def _above(self, block: int = BLOCK) -> Iterator[tuple[int, Words]]:
        """For each distinct configuration, those that dominate it, without itself: bits [rows, words], in blocks."""
        count = len(self.table)
        size = max(1, block // (8 * self.words))
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            above = self._sets[0].at_least(part)
            for sets in self._sets[1:]:
                above &= sets.at_least(part)
            own = np.arange(part.start, part.stop)
            above[own - start, own // 64] &= ~(np.uint64(1) << (own % 64).astype(np.uint64))
            yield start, above

    def _pairs(self) -> Iterator[Ints]:
        """All pairs of rows i ≺ j, in blocks."""
        count = len(self.table)
        for start, above in self._above(BLOCK // 8):
            low, high = np.nonzero(_unpacked(above, count))
            yield self.copies.expand(low + start, high)

    def _sorted(self, parts: list[Ints]) -> Ints:
        """All parts in one table, sorted by i, then j."""
        keys = np.concatenate([part[:, 0] * self.rows + part[:, 1] for part in parts] or [np.zeros(0, dtype=np.int64)])
        keys.sort()
        return np.stack(np.divmod(keys, max(1, self.rows)), 1)


class _Sets:
    """The sets {x ≽ v} of one variable; computed once for every v, or on demand if that needs too much memory."""

    def __init__(self, column: Ints, words: int) -> None:
        values, self.rank = np.unique(column, return_inverse=True)
        self.column, self.words = column, words
        fits = len(values) * words * 8 <= BLOCK
        self.prepared = _packed(column >= values[:, None], words) if fits else None

    def at_least(self, rows: slice) -> Words:
        """Bits [rows, words]: which configurations have at least the value of each of these rows."""
        if self.prepared is not None:
            return self.prepared[self.rank[rows]]
        return _packed(self.column >= self.column[rows, None], self.words)


@dataclass(frozen=True)
class _Copies:
    """The rows of each distinct configuration."""

    rows: Ints
    """[n] rows, grouped by configuration."""
    sizes: Ints
    """[distinct] number of rows of each configuration."""

    @cached_property
    def starts(self) -> Ints:
        """[distinct] start of each configuration in `rows`."""
        return np.cumsum(self.sizes) - self.sizes

    def expand(self, low: Ints, high: Ints) -> Ints:
        """Pairs of distinct configurations as pairs of rows, all copies combined: [P], [P] → [Q, 2]."""
        if len(self.rows) == len(self.sizes):
            return np.stack([self.rows[low], self.rows[high]], 1)
        repeats = self.sizes[low] * self.sizes[high]
        pair = np.repeat(np.arange(len(low)), repeats)
        within = np.arange(len(pair)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        first, second = np.divmod(within, self.sizes[high][pair])
        return np.stack([self.rows[self.starts[low][pair] + first], self.rows[self.starts[high][pair] + second]], 1)


def _drawn(total: int, sample: int, generator: np.random.Generator) -> Ints:
    """`sample` distinct integers below `total`, sorted, without a list of all."""
    if total <= LIMIT:
        return np.sort(generator.choice(total, sample, replace=False, shuffle=False))
    found = np.unique(generator.integers(total, size=sample))
    while len(found) < sample:
        found = np.unique(np.concatenate([found, generator.integers(total, size=sample)]))
    return np.sort(generator.permutation(found)[:sample])


def _packed(member: npt.NDArray[np.bool_], words: int) -> Words:
    """Pack a table of bools into bits, [rows, n] → [rows, words]."""
    packed = np.zeros((len(member), 8 * words), dtype=np.uint8)
    packed[:, : (member.shape[1] + 7) // 8] = np.packbits(member, axis=1, bitorder="little")
    return packed.view("<u8").astype(np.uint64, copy=False)


def _unpacked(words: Words, count: int) -> npt.NDArray[np.bool_]:
    """Unpack bits into a table of bools, [rows, words] → [rows, count]."""
    octets = np.ascontiguousarray(words).astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=count, bitorder="little").view(np.bool_)

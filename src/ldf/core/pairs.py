"""Constraints between two samples, such as ŷᵢ ≤ ŷⱼ for dᵢ ≼ dⱼ."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .batch import Batch, describe, leaves, pick, rows_of, tree_map
from .blocks import Block
from .scope import Scope, Side

if TYPE_CHECKING:
    from .multiplier import Multiplier


@dataclass(frozen=True, eq=False)
class Pairs(Scope):
    """Pairs (i, j) of rows of the data set, for constraints between two samples such as ŷᵢ ≤ ŷⱼ for dᵢ ≼ dⱼ.

    The function of a constraint on pairs receives predictions [2, pairs, …], first and second partner, and a
    batch whose columns have the same two leading dimensions; it returns [pairs, k].

    Args:
        indices: [P, 2] row numbers of the data set; labelled rows come first, then unlabelled rows.
        name: distinguishes several sets of pairs in one training run.

    >>> Pairs(torch.tensor([[0, 1], [1, 2]])).count
    2
    """

    indices: Tensor
    name: str = "pairs"

    unit = "pair"

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

    def rows(self, predictions: Any) -> int:
        """The number of pairs in predictions [2, pairs, …]."""
        return rows_of(predictions, dim=1)

    def size(self, rows: int | None) -> int:
        """P, independent of the size of the data set."""
        return self.count

    def present(self, batch: Any) -> Tensor | None:
        """The batch's column `present`, if pairs were padded to the same number for several runs."""
        return getattr(batch, "present", None)

    def gather(self, predictions: Any, batch: Any) -> Side:
        """Predictions [2, P, …] and columns of both partners, for the pairs with both partners among these rows."""
        if not isinstance(batch, Batch):
            raise TypeError(
                f"pairs {self.name!r} are looked up by row id: the batch must be an ldf.Batch, got {type(batch)}"
            )
        count = len(leaves(predictions)[0])
        columns = batch.columns()
        ids = columns.pop("ids", torch.arange(count)).cpu()
        place = torch.full((max(int(self.indices.max()), int(ids.max())) + 1,), -1)
        place[ids] = torch.arange(count)
        partners = place[self.indices.cpu()].t()  # [2, P]
        numbers = (partners >= 0).all(0).nonzero()[:, 0]
        partners = partners[:, numbers]
        both, chosen = tree_map(lambda leaf: leaf[partners.to(leaf.device)], (predictions, columns))
        return Side(both, Batch(ids=numbers, **chosen))

    def stack(self, name: str, multiplier: str) -> Hashable:
        """Constraints on the same pairs share a stack, except those with a multiplier per pair."""
        return "pairs", self.name, multiplier == "sample"

    def block(self, multipliers: Sequence[Multiplier], statistics: int, rows: int | None, like: Tensor) -> Block:
        """A block that sums over pairs."""
        return Block(multipliers, self.count, like)

    def check_data(self, constraint: str, rows: int, trained: Sequence[Tensor], elsewhere: bool) -> None:
        """Raise unless every partner is a row of the data set."""
        if int(self.indices.max()) >= rows:
            raise ValueError(
                f"constraint {constraint!r}: a pair has row {int(self.indices.max())}, but the data have "
                f"{rows} rows, numbered from 0"
            )

    def pool(self, excluded: Sequence[Tensor], device: torch.device) -> Pool:
        """The pool of rows in these pairs."""
        return Pool(self, excluded, device)

    def describe(self) -> str:
        """Name and number of pairs."""
        return f"{self.name}: {self.count}"


class Pool:
    """The rows that occur in pairs. Each is predicted once if the pairs of a step would need more rows than that."""

    def __init__(self, pairs: Pairs, excluded: Sequence[Tensor], device: torch.device) -> None:
        indices = pairs.indices.cpu()
        self.numbers = [(~torch.isin(indices, out).any(1)).nonzero()[:, 0] for out in excluded]
        """For each run, the pairs with both rows in the training set."""
        if any(len(numbers) == 0 for numbers in self.numbers):
            raise ValueError(f"pairs {pairs.name!r}: no pair has both rows in the training set")
        rows, place = torch.unique(indices, return_inverse=True)
        self.indices, self.rows, self.place = indices.to(device), rows.to(device), place.to(device)
        self.whole = True

    def plan(self, steps: int) -> None:
        """Decide from the number of pairs per step whether to predict all rows of the pool."""
        self.whole = 2 * max(len(numbers) for numbers in self.numbers) / steps > len(self.rows)

    def rows_of(self, numbers: Tensor) -> Tensor:
        """The rows to predict for these pairs."""
        both: Tensor = self.indices[numbers].mT
        return self.rows.expand(*numbers.shape[:-1], -1) if self.whole else both.flatten(-2)

    def side(self, given: Tensor, predictions: Any, columns: dict[str, Any]) -> Side:
        """Both partners of the pairs with these numbers (−1 for padding), from the predictions for `rows_of`."""
        numbers = given.clamp(min=0)
        place = self.place[numbers].mT if self.whole else torch.arange(2 * len(numbers)).view(2, -1)
        place = place.to(numbers.device)  # [2, P]
        batch = Batch(**{**pick(columns, place), "ids": numbers, "present": given >= 0})
        return Side(pick(predictions, place), batch)

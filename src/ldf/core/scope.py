"""Over what a constraint is stated: the face that samples, pairs and groups show to everything else.

A scope owns what follows from it: which rows a constraint looks at, how σ is compared, how it is summed while training
(its `Block`), and how it is certified.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .batch import rows_of

if TYPE_CHECKING:
    from .blocks import Block
    from .multiplier import Multiplier
    from .pairs import Pool


class ConstraintError(ValueError):
    """A constraint whose value cannot be used: the message names it, what it gave and what would be right."""


class Side(NamedTuple):
    """What a constraint's function gets: predictions and the batch that they are of."""

    predictions: Any
    batch: Any


class Scope(ABC):
    """Over what a constraint is stated."""

    name: str | None = None
    """Which rows of a step it looks at: None the batch itself, else the pairs of this name."""
    unit: str = "sample"
    """What a row of σ is of."""
    rowwise: bool = True
    """Whether every row of σ is a constraint of its own, which may have a multiplier of its own."""

    def rows(self, predictions: Any) -> int:
        """How many rows σ must have for these predictions."""
        return rows_of(predictions)

    def size(self, rows: int | None) -> int | None:
        """How many rows of σ there are in all, of so many rows of the data set."""
        return rows

    def columns(self, constraint: str, sigma: Tensor) -> int:
        """How many numbers a multiplier per column has, for what the constraint's function returned: [rows, k]."""
        return sigma.shape[1]

    def present(self, batch: Any) -> Tensor | None:
        """[rows] bool, where some of a batch's rows only fill it up and count for nothing."""
        return None

    def gather(self, predictions: Any, batch: Any) -> Side:
        """All that can be looked at among these rows: what a certificate is about."""
        return Side(predictions, batch)

    def compared(self, sigma: Tensor, batch: Any) -> Tensor:
        """σ [rows, k] as it is certified, from what the function returned for these rows."""
        return sigma

    @abstractmethod
    def stack(self, name: str, multiplier: str) -> Hashable:
        """Constraints of the same stack share a block; `name` and `multiplier` are the constraint's."""

    @abstractmethod
    def block(self, multipliers: Sequence[Multiplier], statistics: int, rows: int | None, like: Tensor) -> Block:
        """What sums up such constraints while training.

        Args:
            multipliers: of the constraints of one stack.
            statistics: the columns of what the first one's function returns.
            rows: N of the data set, where known.
            like: of the dtype and device that all buffers are to have.
        """

    def check_data(self, constraint: str, rows: int, trained: Sequence[Tensor], elsewhere: bool) -> None:
        """Refuse data that this scope does not fit.

        Args:
            constraint: its name, for the message.
            rows: of the data set.
            trained: for each run, the numbers of the rows that it is trained on.
            elsewhere: whether the model is validated on data of their own.
        """
        return

    def pool(self, excluded: Sequence[Tensor], device: torch.device) -> Pool | None:
        """Where the rows of pairs come from, if this scope has pairs; without those of rows excluded from each run."""
        return None

    def describe(self) -> str | int | None:
        """What tells this scope from others of its kind, for a checkpoint."""
        return None

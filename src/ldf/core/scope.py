"""Scopes: the common interface of samples, pairs and groups.

A scope defines which rows a constraint uses, how σ is compared, how it is summed during training (its `Block`), and how
it is certified.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .batch import rows_of

if TYPE_CHECKING:
    from .blocks import Block
    from .constraint import Constraint
    from .multiplier import Multiplier
    from .pairs import Pool


class ConstraintError(ValueError):
    """A constraint returned an unusable value; the message names the constraint, the value and what is expected."""


class Side(NamedTuple):
    """The arguments of a constraint's function: predictions and their batch."""

    predictions: Any
    batch: Any


class Scope(ABC):
    """What a constraint applies to: samples, pairs or groups."""

    name: str | None = None
    """Which rows of a step it uses: None for the batch itself, otherwise the pairs of this name."""
    unit: str = "sample"
    """What a row of σ refers to."""
    rowwise: bool = True
    """Whether each row of σ is a separate constraint, which may have its own multiplier."""
    apart: bool = False
    """Whether each row of σ depends on its own row of the predictions only, so that rows can be repaired one by one."""

    @property
    def comparable(self) -> bool:
        """Whether a row of σ can be compared with the loss of the same row."""
        return self.rowwise and self.name is None

    def rows(self, predictions: Any) -> int:
        """The number of rows σ must have for these predictions."""
        return rows_of(predictions)

    def size(self, rows: int | None) -> int | None:
        """The total number of rows of σ, for a data set with this many rows."""
        return rows

    def columns(self, constraint: str, sigma: Tensor) -> int:
        """The length of a multiplier per column, from the value of the constraint's function: [rows, k]."""
        return sigma.shape[1]

    def present(self, batch: Any) -> Tensor | None:
        """[rows] bool, False for padding rows that must not count; None if there is no padding."""
        return None

    def gather(self, predictions: Any, batch: Any) -> Side:
        """Everything that can be evaluated on these rows, for a certificate."""
        return Side(predictions, batch)

    def membership(self, batch: Any) -> Tensor | None:
        """What `compared` needs to know of these rows, one entry per row; None if nothing."""
        return None

    def compared(self, sigma: Tensor, member: Tensor | None) -> Tensor:
        """σ [rows, k] as certified, from the function's value and the membership of the same rows."""
        return sigma

    def decided(
        self, constraint: Constraint, predictions: Any, batch: Any, settle: Callable[..., Tensor], k: int
    ) -> Any:
        """Predictions moved so that `exact` satisfies the constraint; only scopes that allow `exact` need it.

        Args:
            constraint: the constraint, with `exact`.
            predictions: predictions for all rows of the batch.
            batch: the rows.
            settle: (constraint, compare, rates [G], weights [G], slack) → the nearest rates that satisfy it, [G].
            k: number of dual updates so far, for a slack schedule.
        """
        raise NotImplementedError

    @abstractmethod
    def stack(self, name: str, multiplier: str) -> Hashable:
        """Key of the stack of a constraint with this name and `multiplier`; each stack has one block."""

    @abstractmethod
    def block(self, multipliers: Sequence[Multiplier], statistics: int, rows: int | None, like: Tensor) -> Block:
        """The block that sums up the constraints of one stack during training.

        Args:
            multipliers: the multipliers of these constraints.
            statistics: number of columns returned by the first constraint's function.
            rows: N of the data set, if known.
            like: a tensor with the dtype and device for all buffers.
        """

    def check_data(self, constraint: str, rows: int, trained: Sequence[Tensor], elsewhere: bool) -> None:
        """Raise if this scope does not match the data.

        Args:
            constraint: name of the constraint, for the message.
            rows: number of rows of the data set.
            trained: for each run, the row numbers of its training set.
            elsewhere: whether the model is validated on a separate data set.
        """
        return

    def pool(self, excluded: Sequence[Tensor], device: torch.device) -> Pool | None:
        """The pool of rows in pairs, without pairs of each run's excluded rows; None if this scope has no pairs."""
        return None

    def describe(self) -> str | int | None:
        """What distinguishes this scope from others of its type, for a checkpoint."""
        return None

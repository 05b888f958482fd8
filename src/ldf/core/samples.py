"""Constraints on each sample: the paper's g."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from .blocks import Block
from .scope import Scope

if TYPE_CHECKING:
    from .multiplier import Multiplier


class Samples(Scope):
    """Each row of the batch on its own; the default scope of a constraint."""

    apart = True

    def __repr__(self) -> str:
        return "Samples()"

    def stack(self, name: str, multiplier: str) -> Hashable:
        """All constraints share a stack, except those with a multiplier per row."""
        return "samples", multiplier == "sample"

    def block(self, multipliers: Sequence[Multiplier], statistics: int, rows: int | None, like: Tensor) -> Block:
        """A block that sums over rows."""
        return Block(multipliers, rows, like)


SAMPLES = Samples()

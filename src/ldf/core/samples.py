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
    """Every row of the batch for itself; what a constraint without a scope has."""

    def __repr__(self) -> str:
        return "Samples()"

    def stack(self, name: str, multiplier: str) -> Hashable:
        """All side by side; those with a multiplier for each row apart."""
        return "samples", multiplier == "sample"

    def block(self, multipliers: Sequence[Multiplier], statistics: int, rows: int | None, like: Tensor) -> Block:
        """Sums over rows."""
        return Block(multipliers, rows, like)


SAMPLES = Samples()

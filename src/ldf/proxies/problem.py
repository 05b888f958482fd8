"""What it takes to learn an optimisation problem O(d): the face that power and gas networks show to this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..constraint import Constraint
from .nlp import Solution

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Solver(Protocol):
    """The ground truth: built once, asked for many demands."""

    def solve(self, demand: Floats | None = None, start: Solution | None = None) -> Solution:
        """The optimal state for a demand [D], cold or warm-started."""

    def project(self, demand: Floats, prediction: Floats) -> Solution:
        """The feasible state nearest to a prediction [S] in the controls; its objective is the squared distance."""


class Problem(Protocol):
    """A parametric optimisation problem: D numbers of demand in, S numbers of state out."""

    kind: str
    name: str
    fingerprint: str
    nominal: Floats
    """[D] the nominal demand."""
    loads: Ints
    """[D] which load an entry of the demand belongs to, from 0; −1 where there is none, and the entry never varies."""
    quantities: Mapping[str, slice]
    """The parts of a state."""
    controls: Mapping[str, str]
    """What repair moves: the name in the violations table, and the quantity."""
    laws: Mapping[str, str]
    """The names of the constraints, and their number in the paper."""
    units: Mapping[str, str]
    """Of what `present` and `duals` give."""
    lower: Floats
    """[S] bounds of a state."""
    upper: Floats

    def solver(self) -> Solver:
        """A solver of its own for each caller."""

    def save(self, folder: Path) -> None:
        """Write what is needed to have the problem again."""

    def objective(self, states: Tensor) -> Tensor:
        """[B] the cost of states [B, S]."""

    def reported(self, states: Tensor) -> dict[str, Tensor]:
        """What the table of prediction errors reports, by its name there: [B, k] each."""

    def entry(self, index: int) -> tuple[str, str, float]:
        """What an entry of the demand is called, its unit for people, and by what to multiply to have it."""

    def demands(self, table: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """[rows, D] from the columns of a user's table; what is not in it is nominal."""

    def present(self, state: Floats) -> dict[str, dict[str, float]]:
        """A state [S] for people: by quantity, then by the number the network's file gives a thing."""

    def duals(self, solution: Solution) -> dict[str, dict[str, float]]:
        """What the multipliers of a solution mean, for people."""

    def constraints(
        self, read: Callable[[Any, Any], Tensor], dtype: torch.dtype, labels: bool = True
    ) -> list[Constraint]:
        """Every law as a constraint on predictions; read(predictions, batch) gives states [B, S].

        A batch has its demands [B, D] as batch.demand and, for laws that look at labels, states [B, S] as batch.states.
        """

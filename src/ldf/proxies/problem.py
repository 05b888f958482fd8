"""What it takes to learn an optimisation problem O(d): the face that power and gas networks show to this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
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


class Laws(Protocol):
    """The constraints in torch, on states [B, S] in the problem's own units."""

    def violations(self, states: Tensor, demands: Tensor) -> dict[str, Tensor]:
        """σ of every law, [B, k] each, by the paper's number."""


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

    def constraints(self, read: Any) -> list[Constraint]:
        """Every law as a constraint; read(predictions, batch) gives states [B, S]."""

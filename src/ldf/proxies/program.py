"""A network's optimisation problem and the projection onto its feasible states, both built once for all demands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import casadi
import numpy as np
from numpy.typing import NDArray

from .nlp import NLP, Solution

Floats = NDArray[np.float64]

APART = 1e-3
"""States that differ by more than this, per unit, are different optima of the same demand."""


@dataclass(frozen=True)
class Expressions:
    """minimise cost(x) subject to limits on g(x, d), in CasADi's symbols."""

    x: casadi.SX
    """[S] the state."""
    d: casadi.SX
    """[D] the demand."""
    cost: casadi.SX
    g: casadi.SX
    """[m]"""
    limits: tuple[Floats, Floats]
    """Lower and upper of g; equal where it is an equality."""
    stand_in: casadi.SX | None = None
    """What is minimised in place of the cost: smooth, and with one optimum where the cost has many."""


class Program(ABC):
    """The solver of one network: demands [D] are parameters, states [S] are variables."""

    quantities: Mapping[str, slice]
    """The parts of a state."""
    controls: Sequence[str]
    """The quantities in which the projection measures distance."""
    nominal: Floats
    """[D]"""
    lower: Floats
    """[S] bounds of a state."""
    upper: Floats
    unit: float = 1.0
    """By which the model's cost is multiplied to have the objective that is reported: its cost is of size one."""
    several: bool = False
    """Whether there may be more than one local optimum, so that one start is not enough."""
    sharpness: float = 1e6
    """By which the projection's distance is multiplied: at an active bound the barrier keeps off by about
    √(tolerance / 2·sharpness)."""
    options: Mapping[str, Any] = {}  # of IPOPT, beside those of `NLP`; never changed

    def __init__(self, tolerance: float, iterations: int = 300) -> None:
        self.settings = (tolerance, iterations, self.options)

    @abstractmethod
    def expressions(self) -> Expressions:
        """The model; asked for once."""

    @abstractmethod
    def starts(self, demand: Floats) -> list[Floats]:
        """Where to begin without a warm start, [S] each."""

    @cached_property
    def model(self) -> Expressions:
        """Symbols and expressions that the optimum and the projection share."""
        return self.expressions()

    @cached_property
    def _optimum(self) -> NLP:
        m = self.model
        f = m.cost if m.stand_in is None else m.stand_in
        return NLP(m.x, m.d, f, m.g, (self.lower, self.upper), m.limits, *self.settings)

    @cached_property
    def _cost(self) -> casadi.Function:
        return casadi.Function("cost", [self.model.x], [self.model.cost])

    @cached_property
    def _constraints(self) -> casadi.Function:
        return casadi.Function("g", [self.model.x, self.model.d], [self.model.g])

    @cached_property
    def _projection(self) -> NLP:
        m = self.model
        controls = casadi.vertcat(*[m.x[self.quantities[name]] for name in self.controls])
        aim = casadi.SX.sym("aim", controls.shape[0])
        distance = self.sharpness * casadi.sumsqr(controls - aim)
        return NLP(m.x, casadi.vertcat(m.d, aim), distance, m.g, (self.lower, self.upper), m.limits, *self.settings)

    def solve(self, demand: Floats | None = None, start: Solution | None = None, close: bool = False) -> Solution:
        """The cheapest state for a demand, cold or warm-started at another demand's solution.

        Args:
            close: the start is nearly optimal for this demand.
        """
        demand = self.nominal if demand is None else demand
        return self.optima(demand)[0] if start is None else self._solve(demand, start, close)

    def violation(self, demand: Floats, state: Floats) -> float:
        """By how much the worst of the model's constraints and bounds is violated, in the model's own units."""
        g = np.asarray(self._constraints(state, demand)).ravel()
        low, high = self.model.limits
        beyond = [low - g, g - high, self.lower - state, state - self.upper]
        return float(max(part.max(initial=0.0) for part in beyond))

    def optima(self, demand: Floats) -> list[Solution]:
        """The local optima that a cold start leads to, the cheapest first; if to none, how the last one ended."""
        found = [self._solve(demand, start) for start in self.starts(demand)]
        return distinct(found) or found[-1:]

    def _solve(self, demand: Floats, start: Floats | Solution, close: bool = False) -> Solution:
        found = self._optimum.solve(demand, start, close)
        cost = found.objective if self.model.stand_in is None else float(self._cost(found.state))
        return replace(found, objective=self.unit * cost)

    def project(self, demand: Floats, prediction: Floats) -> Solution:
        """The feasible state with the least squared distance in the controls; its objective is that distance."""
        aim = np.concatenate([prediction[self.quantities[name]] for name in self.controls])
        found = self._projection.solve(np.concatenate([demand, aim]), np.clip(prediction, self.lower, self.upper))
        return replace(found, objective=found.objective / self.sharpness)


def distinct(solutions: Sequence[Solution]) -> list[Solution]:
    """Those that are optima, each once, the cheapest first."""
    kept: list[Solution] = []
    for found in sorted((s for s in solutions if s.solved), key=lambda s: s.objective):
        if all(np.abs(found.state - other.state).max() > APART for other in kept):
            kept.append(found)
    return kept


def incidence(rows: int, at: NDArray[np.int64]) -> casadi.DM:
    """[rows, len(at)], one where column k belongs to row at[k]."""
    return casadi.DM.triplet(list(at), list(range(len(at))), casadi.DM.ones(len(at)), rows, len(at))

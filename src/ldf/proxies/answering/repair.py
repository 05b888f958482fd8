"""Repair: move a prediction to a feasible state. Whether it is one, the certifier says.

A repair takes a demand and a prediction and gives a state. The paper's repair is the projection: the feasible state
with the least squared distance in the controls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from ..nlp import Solution
from ..problem import Floats, Problem, Solver
from ..program import Program
from .points import Points

CLOSE = 1e-2
"""A prediction that violates no constraint of the model by more than this, per unit, is taken to be nearly optimal."""


@dataclass(frozen=True)
class Repaired:
    """A state, which repair made it, and what that repair did."""

    state: Floats
    repair: str
    """The route taken."""
    status: str
    """"predicted": left as it was; "corrected"; "projected"; "optimal"; or the solver's word for how it failed."""
    solved: bool = True
    """Whether there is a state to judge: not where a solver failed."""
    solution: Solution | None = None
    """With its multipliers, where a solver found the optimum."""


class Repair(ABC):
    """A way to make predictions feasible."""

    @abstractmethod
    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The state for a demand [D], from a prediction [S]."""

    def prepare(self) -> None:
        """Build now what the first call would build otherwise."""
        return

    def many(self, demands: Floats, predictions: Floats) -> list[Repaired]:
        """States for demands [B, D], from predictions [B, S]."""
        return [self(demand, prediction) for demand, prediction in zip(demands, predictions, strict=True)]


class Untouched(Repair):
    """No repair: the prediction itself."""

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The prediction as it is."""
        return Repaired(prediction, "none", "predicted")


class Projection(Repair):
    """The paper's proximal operator, by the solver; where it fails, the optimum itself, from a cold start."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The nearest feasible state."""
        found = self.solver.project(demand, prediction)
        if found.solved:
            return Repaired(found.state, "projection", "projected")
        return _optimum(self.solver.solve(demand))

    def prepare(self) -> None:
        """The graphs of both solvers."""
        self.solver.prepare("project", "cold")


class Optimal(Repair):
    """The optimum, by the solver, from the prediction and the multipliers of a demand nearby; cold where that fails."""

    def __init__(self, solver: Solver, points: Points) -> None:
        self.solver, self.points = solver, points

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The optimal state."""
        start = self.points.start(demand, prediction)
        found = self.solver.solve(demand, start, self.solver.violation(demand, start.state) <= CLOSE)
        if not found.solved:
            found = self.solver.solve(demand)
        return _optimum(found)

    def prepare(self) -> None:
        """The graphs of the solver, from any start."""
        self.solver.prepare("warm", "cold")


class Kept(Repair):
    """The prediction itself where it keeps every law already; elsewhere another repair."""

    def __init__(self, program: Program, tolerance: float, other: Repair) -> None:
        self.program, self.tolerance, self.other = program, tolerance, other

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The prediction, or what the other repair makes of it."""
        return self.many(demand[None], prediction[None])[0]

    def many(self, demands: Floats, predictions: Floats) -> list[Repaired]:
        """The same for demands [B, D] and predictions [B, S]."""
        worst = np.max(list(self.program.violations(demands, predictions).values()), 0)
        kept = worst <= self.tolerance
        others = iter(self.other.many(demands[~kept], predictions[~kept]))
        return [
            Repaired(state, "prediction", "predicted") if keep else next(others)
            for state, keep in zip(predictions, kept, strict=True)
        ]

    def prepare(self) -> None:
        """The compiled laws, and what the other repair needs."""
        self.program.prepare("check")
        self.other.prepare()


def fastest(problem: Problem, points: Points, tolerance: float) -> Repair:
    """A problem's own fast repair; where it has none the prediction, or its projection where that breaks a law."""
    return problem.fast(points, tolerance) or Kept(problem.model, tolerance, Projection(problem.solver()))


def _optimum(found: Solution) -> Repaired:
    """What a solver found, or how it failed."""
    return Repaired(found.state, "solver", found.status, found.solved, found if found.solved else None)

"""Repair: turn a prediction into a feasible state. The certifier checks whether it is feasible.

A repair takes a demand and a prediction and returns a state. The paper's repair is the projection: the feasible state
with the smallest squared distance in the controls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..nlp import Solution
from ..problem import Floats, Problem, Solver
from ..program import Program
from .points import Points

SOLVED = ("interior", "interior-cold", "solver")
"""Routes of optima: by `ldf`'s own solver from the prediction, or from a flat start, or by IPOPT."""


@dataclass(frozen=True)
class Repaired:
    """A repaired state, the repair that produced it, and the outcome."""

    state: Floats
    repair: str
    """Name of the repair."""
    status: str
    """"predicted": unchanged; "corrected"; "projected"; "optimal"; or the status of a solver that failed."""
    solved: bool = True
    """Whether there is a state to certify; False if a solver failed."""
    solution: Solution | None = None
    """What a solver found, if one was called: the optimum with its multipliers, or why there is none."""

    @property
    def optimal(self) -> bool:
        """Whether this is the optimum of a solver, with its multipliers."""
        return self.solution is not None and self.solution.solved


class Repair(ABC):
    """A way to make predictions feasible."""

    @abstractmethod
    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The state for a demand [D], from a prediction [S]."""

    def prepare(self) -> None:
        """Build in advance what the first call would otherwise build."""
        return

    def limit(self, seconds: float | None) -> None:
        """Set the time that a demand may take, before the first one."""
        return

    def rehearse(self, predict: Callable[[Floats], Floats]) -> None:
        """Find out how to repair fastest, with predictions [B, S] for demands [B, D] of one's own choice."""
        return

    def many(self, demands: Floats, predictions: Floats) -> list[Repaired]:
        """States for demands [B, D], from predictions [B, S]."""
        return [self(demand, prediction) for demand, prediction in zip(demands, predictions, strict=True)]


class Untouched(Repair):
    """No repair: the prediction itself."""

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The prediction, unchanged."""
        return Repaired(prediction, "none", "predicted")


class Projection(Repair):
    """The paper's proximal operator, by the solver; if that fails, the optimum from a cold start."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The nearest feasible state."""
        found = self.solver.project(demand, prediction)
        if found.solved:
            return Repaired(found.state, "projection", "projected")
        return _optimum(self.solver.solve(demand))

    def limit(self, seconds: float | None) -> None:
        """Limit the solver's time."""
        self.solver.budget = seconds

    def prepare(self) -> None:
        """Build both solvers."""
        self.solver.prepare("project", "cold")


class Optimal(Repair):
    """The optimum, by a solver warm-started from the prediction and a nearby point's multipliers, or else cold.

    Args:
        tolerance: end as soon as a certificate with this tolerance holds and the cost is within .001 % of the optimum,
            if the solver can; by default, at the solver's own tolerance.
    """

    def __init__(self, solver: Solver, points: Points, tolerance: float | None = None) -> None:
        self.solver, self.points, self.tolerance = solver, points, tolerance

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The optimal state."""
        return self.many(demand[None], prediction[None])[0]

    def many(self, demands: Floats, predictions: Floats) -> list[Repaired]:
        """The optimal states for demands [B, D], from predictions [B, S]."""
        if not len(demands):
            return []
        starts = self.points.starts(demands, predictions)
        return list(map(_optimum, self.solver.many(demands, starts, self.tolerance)))

    def rehearse(self, predict: Callable[[Floats], Floats]) -> None:
        """Solve every other point from its prediction, with the multipliers of the points between."""
        known, asked = self.points.take(slice(0, None, 2)), self.points.demands[1::2]
        if len(asked):
            self.solver.rehearse(asked, known.starts(asked, predict(asked)), self.tolerance)

    def limit(self, seconds: float | None) -> None:
        """Limit the solver's time."""
        self.solver.budget = seconds

    def prepare(self) -> None:
        """Build the solver for warm and cold starts."""
        self.solver.prepare("warm", "cold")


class Kept(Repair):
    """The prediction itself if it already satisfies every constraint; otherwise another repair."""

    def __init__(self, program: Program, tolerance: float, other: Repair) -> None:
        self.program, self.tolerance, self.other = program, tolerance, other

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The prediction, or the result of the other repair."""
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

    def rehearse(self, predict: Callable[[Floats], Floats]) -> None:
        """As the other repair does."""
        self.other.rehearse(predict)

    def limit(self, seconds: float | None) -> None:
        """Limit the time of the other repair."""
        self.other.limit(seconds)

    def prepare(self) -> None:
        """Build the compiled laws, and what the other repair needs."""
        self.program.prepare("check")
        self.other.prepare()


def fastest(problem: Problem, points: Points, tolerance: float) -> Repair:
    """A problem's own fast repair; by default the prediction if feasible, else its projection."""
    return problem.fast(points, tolerance) or Kept(problem.model, tolerance, Projection(problem.solver()))


def _optimum(found: Solution) -> Repaired:
    """Result of a solver, solved or failed."""
    route = SOLVED[2] if found.solver == "ipopt" else SOLVED[0] if found.warm else SOLVED[1]
    return Repaired(found.state, route, found.status, found.solved, found)

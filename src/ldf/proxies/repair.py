"""Repair and certify: move a prediction to a feasible state, and say of the answer how far every law is from holding.

A repair takes a demand and a prediction and gives a state; `Certifier.answer` puts the certificate to it. The paper's
repair is the projection: the feasible state with the least squared distance in the controls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ..batch import Batch
from ..certificate import violations
from ..constraint import Constraint
from .problem import Floats, Problem, Solver

TOLERANCE = 1e-5
"""A law holds when no ν is above this, per unit or radians: a hundred times the solver's own tolerance."""
FREE = 1e-3
"""An optimum that costs less than this, in the objective's unit, costs nothing: there is no gap relative to it."""


@dataclass(frozen=True)
class Repaired:
    """A state, which repair made it, and whether that repair says it succeeded."""

    state: Floats
    repair: str
    status: str


class Repair(Protocol):
    """A way to make predictions feasible."""

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The state for a demand [D], from a prediction [S]."""


class Untouched:
    """No repair: the prediction itself."""

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The prediction as it is."""
        return Repaired(prediction, "none", "predicted")


class Projection:
    """The paper's proximal operator, by the solver; where it fails, the optimum itself, from a cold start."""

    def __init__(self, solver: Solver) -> None:
        self.solver = solver

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The nearest feasible state."""
        found, name = self.solver.project(demand, prediction), "projection"
        if not found.solved:
            found, name = self.solver.solve(demand), "solver"
        return Repaired(found.state, name, found.status)


@dataclass(frozen=True)
class Answer:
    """A state with its certificate."""

    state: Floats
    status: str
    """"certified": every law holds; "uncertified": some does not; "unsolvable": no feasible state was found."""
    reason: str
    """What stands in the way, or nothing."""
    repair: str
    objective: float
    gap: float | None
    """100·(cost − optimum)/optimum, where the optimum was asked for and costs something."""
    moved: dict[str, float]
    """100·‖ȳ − ŷ‖₂/‖ŷ‖₂ by control."""
    violations: dict[str, float]
    """The largest ν of every law."""
    seconds: float
    """To predict and to repair."""
    warning: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The certificate without the state."""
        return {name: value for name, value in self.__dict__.items() if name != "state"}


@dataclass
class Certifier:
    """Puts certificates to states."""

    problem: Problem
    tolerance: float = TOLERANCE
    laws: list[Constraint] = field(init=False)

    def __post_init__(self) -> None:
        self.laws = self.problem.constraints(lambda states, _: states, torch.float64, labels=False)

    def worst(self, demand: Floats, state: Floats) -> dict[str, float]:
        """The largest ν of every law at one state; infinite where the state is no number."""
        if not np.isfinite(state).all():
            return {law.name: math.inf for law in self.laws}
        states, demands = torch.from_numpy(state)[None], torch.from_numpy(demand)[None]
        rows = Batch(inputs=demands, demand=demands)
        with torch.no_grad():
            return {law.name: float(violations(law, states, rows).max()) for law in self.laws}

    def answer(
        self,
        demand: Floats,
        prediction: Floats,
        repair: Repair,
        *,
        optimum: float | Callable[[Floats], float | None] | None = None,
        predicted_in: float = 0.0,
        warning: str | None = None,
    ) -> Answer:
        """Repair one prediction and certify the answer.

        Args:
            optimum: the cost of the optimal state, or demand → that cost, asked for certified answers only.
            predicted_in: the seconds that the prediction took.
            warning: what is to be said with the answer.
        """
        begun = time.perf_counter()
        found = repair(demand, prediction)
        seconds = predicted_in + time.perf_counter() - begun
        worst = self.worst(demand, found.state)
        broken = {name: nu for name, nu in worst.items() if not nu <= self.tolerance}
        if found.status not in ("optimal", "predicted"):
            status, reason = "unsolvable", f"the solver ended with {found.status!r}"
        elif broken:
            name = max(broken, key=lambda law: broken[law])
            status, reason = "uncertified", f"{name} is violated by {broken[name]:.2g}"
        else:
            status, reason = "certified", ""
        cost = float(self.problem.objective(torch.from_numpy(found.state)[None]))
        best = None
        if status == "certified":
            best = optimum(demand) if callable(optimum) else optimum
        return Answer(
            state=found.state,
            status=status,
            reason=reason,
            repair=found.repair,
            objective=cost,
            gap=100 * (cost - best) / abs(best) if best is not None and abs(best) > FREE else None,
            moved=distances(self.problem, prediction, found.state),
            violations=worst,
            seconds=seconds,
            warning=warning,
        )


def distances(problem: Problem, before: Floats, after: Floats) -> dict[str, float]:
    """100·‖ȳ − ŷ‖₂/‖ŷ‖₂ of one state, by control: the paper's third table."""
    found = {}
    for name, quantity in problem.controls.items():
        part = problem.quantities[quantity]
        size = max(float(np.linalg.norm(before[part])), 1e-12)
        found[name] = 100 * float(np.linalg.norm(after[part] - before[part])) / size
    return found

"""Repair and certify: move a prediction to a feasible state, and say of the answer how far every law is from holding.

A repair takes a demand and a prediction and gives a state; `Certifier.answer` puts the certificate to it. The paper's
repair is the projection: the feasible state with the least squared distance in the controls.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ...core.batch import Batch
from ...core.certificate import violations
from ...core.constraint import Constraint
from ..nlp import Solution
from ..problem import Floats, Problem, Solver
from .points import Points

TOLERANCE = 1e-5
"""A law holds when no ν is above this, per unit or radians: a hundred times the solver's own tolerance."""
CLOSE = 1e-2
"""A prediction that violates no constraint of the model by more than this, per unit, is taken to be nearly optimal."""
FREE = 1e-3
"""An optimum that costs less than this, in the objective's unit, costs nothing: there is no gap relative to it."""


@dataclass(frozen=True)
class Repaired:
    """A state, which repair made it, and whether that repair says it succeeded."""

    state: Floats
    repair: str
    status: str
    violations: dict[str, float] | None = None
    """The largest ν of every law, where the repair has computed them."""
    objective: float | None = None
    """The state's cost, where the repair has computed it."""
    solution: Solution | None = None
    """With its multipliers, where a solver found the optimum."""


class Repair(ABC):
    """A way to make predictions feasible."""

    @abstractmethod
    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The state for a demand [D], from a prediction [S]."""

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
        found, name = self.solver.project(demand, prediction), "projection"
        if not found.solved:
            found, name = self.solver.solve(demand), "solver"
        return Repaired(found.state, name, found.status)


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
        return Repaired(found.state, "solver", found.status, solution=found if found.solved else None)


class Kept(Repair):
    """The prediction itself where it keeps every law already; elsewhere another repair."""

    def __init__(self, problem: Problem, tolerance: float, other: Repair) -> None:
        self.certifier, self.other = Certifier(problem, tolerance), other

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The prediction, or what the other repair makes of it."""
        return self.many(demand[None], prediction[None])[0]

    def many(self, demands: Floats, predictions: Floats) -> list[Repaired]:
        """The same for demands [B, D] and predictions [B, S]."""
        worst = self.certifier.worst_of(demands, predictions)
        kept = np.max(list(worst.values()), 0) <= self.certifier.tolerance
        others = iter(self.other.many(demands[~kept], predictions[~kept]))
        return [
            Repaired(state, "prediction", "predicted", {name: float(nu[row]) for name, nu in worst.items()})
            if kept[row]
            else next(others)
            for row, state in enumerate(predictions)
        ]


@dataclass(frozen=True)
class Answer:
    """A state with its certificate."""

    state: Floats
    status: str
    """"certified": every law holds; "uncertified": some does not; "unsolvable": no feasible state was found."""
    reason: str
    """What stands in the way, or nothing."""
    tolerance: float
    """Up to which ν a law holds, per unit or radians."""
    repair: str
    """The route taken."""
    objective: float
    moved: dict[str, float]
    """100·‖ȳ − ŷ‖₂/‖ŷ‖₂ by control."""
    violations: dict[str, float]
    """The largest ν of every law."""
    gap: float | None = None
    """100·(cost − optimum)/optimum, where the optimum is known and costs something."""
    seconds: float = 0.0
    """To predict and to repair."""
    warning: str | None = None
    prices: Floats | None = None
    """[K] predicted or, where a solver found the optimum, its own."""

    def beside(self, optimum: float | None) -> Answer:
        """The same, with the gap to the cost of the optimum."""
        if optimum is None or abs(optimum) <= FREE:
            return self
        return replace(self, gap=100 * (self.objective - optimum) / abs(optimum))

    def to_dict(self) -> dict[str, Any]:
        """The certificate without the state and its prices."""
        return {name: value for name, value in self.__dict__.items() if name not in ("state", "prices")}


@dataclass
class Certifier:
    """Puts certificates to states."""

    problem: Problem
    tolerance: float = TOLERANCE
    laws: list[Constraint] = field(init=False)

    def __post_init__(self) -> None:
        self.laws = self.problem.constraints(lambda states, _: states, torch.float64, labels=False)

    def worst(self, demand: Floats, state: Floats) -> dict[str, float]:
        """The largest ν of every law at one state [S]; infinite where the state is no number."""
        return {name: float(nu[0]) for name, nu in self.worst_of(demand[None], state[None]).items()}

    def worst_of(self, demands: Floats, states: Floats) -> dict[str, Floats]:
        """The largest ν of every law at states [B, S], [B] each."""
        sound = np.isfinite(states).all(1) & np.isfinite(demands).all(1)
        given = torch.from_numpy(demands[sound])
        rows = Batch(inputs=given, demand=given)
        found = {law.name: np.full(len(states), math.inf) for law in self.laws}
        if sound.any():
            with torch.no_grad():
                for law in self.laws:
                    found[law.name][sound] = violations(law, torch.from_numpy(states[sound]), rows).amax(1).numpy()
        return found

    def answer(
        self,
        demand: Floats,
        prediction: Floats,
        repair: Callable[[Floats, Floats], Repaired],
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
        answer = replace(self.certify(demand, prediction, found), seconds=seconds, warning=warning)
        if answer.status != "certified" or optimum is None:
            return answer
        return answer.beside(optimum(demand) if callable(optimum) else optimum)

    def certify(self, demand: Floats, prediction: Floats, found: Repaired) -> Answer:
        """The certificate of a repaired state."""
        worst = self.worst(demand, found.state) if found.violations is None else found.violations
        broken = {name: nu for name, nu in worst.items() if not nu <= self.tolerance}
        if found.status not in ("optimal", "predicted"):
            status, reason = "unsolvable", f"the solver ended with {found.status!r}"
        elif broken:
            name = max(broken, key=lambda law: broken[law])
            status, reason = "uncertified", f"{name} is violated by {broken[name]:.2g}"
        else:
            status, reason = "certified", ""
        cost = found.objective
        return Answer(
            state=found.state,
            status=status,
            reason=reason,
            tolerance=self.tolerance,
            repair=found.repair,
            objective=cost if cost is not None else float(self.problem.objective(torch.from_numpy(found.state)[None])),
            moved=distances(self.problem, prediction, found.state),
            violations=worst,
        )


def distances(problem: Problem, before: Floats, after: Floats) -> dict[str, float]:
    """100·‖ȳ − ŷ‖₂/‖ŷ‖₂ of one state, by control: the paper's third table."""
    found = {}
    for name, quantity in problem.controls.items():
        part = problem.quantities[quantity]
        apart = after[part] - before[part]
        size = max(math.sqrt(before[part] @ before[part]), 1e-12)
        found[name] = 100 * math.sqrt(apart @ apart) / size
    return found

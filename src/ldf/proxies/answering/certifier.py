"""Certify a state: how far it violates each constraint, and its cost.

Everything is computed from the state itself, by the compiled laws of the problem's program. Only one statement of a
repair is used: that there is no state to certify, because the solver failed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..learning.evaluation import squared
from ..problem import Floats, Problem
from ..program import Program
from .repair import Repaired

FREE = 1e-3
"""An optimum that costs less than this, in the objective's unit, counts as free and has no relative gap."""


@dataclass(frozen=True)
class Answer:
    """A state with its certificate."""

    state: Floats
    status: str
    """"certified": every constraint is satisfied; "uncertified": one is not; "unsolvable": no feasible state found."""
    reason: str
    """Why the answer is not certified; empty if it is."""
    tolerance: float
    """Largest ν at which a constraint counts as satisfied, per unit or radians."""
    repair: str
    """Name of the repair used."""
    objective: float
    moved: dict[str, float]
    """100·‖ȳ − ŷ‖₂/‖ŷ‖₂ by control."""
    violations: dict[str, float]
    """Largest ν of every law."""
    gap: float | None = None
    """100·(cost − optimum)/optimum, if the optimum is known and not free."""
    seconds: float = 0.0
    """Time to predict, repair and certify."""
    warning: str | None = None
    prices: Floats | None = None
    """[K] predicted prices or, if a solver found the optimum, those of the optimum."""

    def beside(self, optimum: float | None) -> Answer:
        """A copy with the gap to the cost of the optimum."""
        if optimum is None or abs(optimum) <= FREE:
            return self
        return replace(self, gap=100 * (self.objective - optimum) / abs(optimum))

    def to_dict(self) -> dict[str, Any]:
        """The certificate without the state and its prices."""
        return {name: value for name, value in self.__dict__.items() if name not in ("state", "prices")}


class Certifier:
    """Certifies states.

    Args:
        problem: the problem whose laws are checked.
        tolerance: the largest ν of any law in a certified state, per unit or radians.
    """

    def __init__(self, problem: Problem, tolerance: float) -> None:
        if not 0 < tolerance < math.inf:
            raise ValueError(f"the tolerance must be above 0, got {tolerance}")
        self.problem, self.tolerance, self.controls = problem, tolerance, problem.controls
        self.program: Program = problem.model
        self.program.prepare("check")

    def certify(self, demand: Floats, prediction: Floats, found: Repaired) -> Answer:
        """Certify one repaired state."""
        return self.many(demand[None], prediction[None], [found])[0]

    def many(self, demands: Floats, predictions: Floats, found: Sequence[Repaired]) -> list[Answer]:
        """Certify states repaired for demands [B, D] from predictions [B, S]."""
        if not found:
            return []
        states = np.array([each.state for each in found])
        violations, costs = self.program.check(demands, states)
        worst = zip(*[nu.tolist() for nu in violations.values()], strict=True)
        moved = self.distances(predictions, states)
        return [
            self._judged(each, dict(zip(violations, nu, strict=True)), cost, dict(zip(moved, sizes, strict=True)))
            for each, nu, cost, sizes in zip(
                found, worst, costs.tolist(), zip(*moved.values(), strict=True), strict=True
            )
        ]

    def distances(self, before: Floats, after: Floats) -> dict[str, list[float]]:
        """100·‖ȳ − ŷ‖₂/‖ŷ‖₂ of states [B, S], by control, as in the paper's third table."""
        found = {}
        for name, quantity in self.controls.items():
            part = self.problem.quantities[quantity]
            start = before[:, part]
            apart = after[:, part] - start
            found[name] = (100 * np.sqrt(squared(apart) / np.maximum(squared(start), 1e-24))).tolist()
        return found

    def _judged(self, found: Repaired, worst: dict[str, float], cost: float, moved: dict[str, float]) -> Answer:
        law = max(worst, key=lambda name: worst[name])
        if not found.solved:
            status, reason = "unsolvable", f"the solver ended with {found.status!r}"
            if found.solution is not None and found.solution.reason:
                reason += f": {found.solution.reason}"
        elif not worst[law] <= self.tolerance:
            status, reason = "uncertified", f"{law} is violated by {worst[law]:.2g}"
        else:
            status, reason = "certified", ""
        return Answer(
            state=found.state,
            status=status,
            reason=reason,
            tolerance=self.tolerance,
            repair=found.repair,
            objective=cost,
            moved=moved,
            violations=worst,
        )

    def answer(
        self,
        demand: Floats,
        prediction: Floats,
        repair: Callable[[Floats, Floats], Repaired],
        *,
        optimum: float | Callable[[Floats], float | None] | None = None,
        predicted_in: float = 0.0,
    ) -> Answer:
        """Repair one prediction and certify the answer.

        Args:
            optimum: the cost of the optimal state, or demand → that cost, called for certified answers only.
            predicted_in: the seconds that the prediction took.
        """
        begun = time.perf_counter()
        answer = self.certify(demand, prediction, repair(demand, prediction))
        answer = replace(answer, seconds=predicted_in + time.perf_counter() - begun)
        if answer.status != "certified" or optimum is None:
            return answer
        return answer.beside(optimum(demand) if callable(optimum) else optimum)

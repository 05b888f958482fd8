"""A nonlinear program, built once and solved for many parameters, with CasADi derivatives and IPOPT."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import casadi
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Start = Literal["cold", "warm", "close"]

STATUS = {
    "Solve_Succeeded": "optimal",
    "Solved_To_Acceptable_Level": "acceptable",
    "Infeasible_Problem_Detected": "infeasible",
    "Maximum_Iterations_Exceeded": "iterations",
    "Maximum_CpuTime_Exceeded": "time",
    "Maximum_WallTime_Exceeded": "time",
    "Restoration_Failed": "infeasible",
}
"""IPOPT's return status → ours; any other is "failed"."""


def _from_near(barrier: float) -> dict[str, Any]:
    """IPOPT options for a start with multipliers: barrier parameter, and distance kept from bounds."""
    pushes = ("bound_push", "bound_frac", "slack_bound_push", "slack_bound_frac", "mult_bound_push")
    near = {f"ipopt.warm_start_{push}": barrier for push in pushes}
    return {"ipopt.warm_start_init_point": "yes", "ipopt.mu_init": barrier, **near}


STARTS: dict[Start, dict[str, Any]] = {
    "cold": {},
    # Barrier and multipliers start near the given ones; this value was the best on 30, 118 and 300 buses.
    "warm": _from_near(1e-4),
    # Takes half the time of "warm" from a nearly optimal point, and more time than "warm" from any other.
    "close": _from_near(1e-6),
}
"""IPOPT options by start: from a point, from another solution, or from a solution that is nearly optimal."""


ALONE = threading.RLock()
"""Held while CasADi builds and IPOPT solves: neither CasADi's symbols nor MUMPS may be used by two threads."""


@dataclass(frozen=True)
class Solution:
    """Result of a solve: a point, its objective, its multipliers, and the solver's status."""

    status: str
    objective: float
    state: Floats
    multipliers: Floats = field(repr=False)
    """Multipliers of the constraints g, [m]: increase of the objective per unit decrease of a right-hand side."""
    bounds: Floats = field(repr=False)
    """Multipliers of the variables' bounds, [n]."""
    iterations: int
    seconds: float
    solver: str = "ipopt"
    """Which solver found it: "ipopt", or "ldf", the interior point of `power/interior.py`."""
    warm: bool = False
    """Whether the given start led to it."""
    reason: str = ""
    """Why a demand is infeasible, if known."""

    @property
    def solved(self) -> bool:
        """Whether the point is an optimum, to the solver's tolerance."""
        return self.status == "optimal"


@dataclass(frozen=True)
class Starts:
    """Starting points for B demands: states [B, n], multipliers of constraints [B, m] and of bounds [B, n]."""

    states: Floats
    multipliers: Floats
    bounds: Floats

    def __len__(self) -> int:
        return len(self.states)

    @classmethod
    def of(cls, solutions: Sequence[Solution]) -> Starts:
        """Solutions of other demands."""
        return cls(
            *(np.array([getattr(each, name) for each in solutions]) for name in ("state", "multipliers", "bounds"))
        )

    def __getitem__(self, row: int) -> Solution:
        """One of them, as a solution to start from."""
        return Solution("start", float("nan"), self.states[row], self.multipliers[row], self.bounds[row], 0, 0.0)


class NLP:
    """minimise f(x, d) subject to lower ≤ x ≤ upper and g_lower ≤ g(x, d) ≤ g_upper.

    Args:
        x: symbols of the variables [n].
        d: symbols of the parameters.
        f: the objective.
        g: the constraints [m].
        bounds: lower and upper bounds of x.
        limits: lower and upper limits of g; equal where g is an equality.
        tolerance: IPOPT's tolerance.
        iterations: maximum number of IPOPT iterations.
        options: IPOPT options in addition to those set here.
    """

    def __init__(
        self,
        x: casadi.SX,
        d: casadi.SX,
        f: casadi.SX,
        g: casadi.SX,
        bounds: tuple[Floats, Floats],
        limits: tuple[Floats, Floats],
        tolerance: float,
        iterations: int,
        options: Mapping[str, Any],
    ) -> None:
        self.problem = {"x": x, "p": d, "f": f, "g": g}
        self.bounds, self.limits = bounds, limits
        self.tolerance, self.iterations = tolerance, iterations
        self.options = {f"ipopt.{name}": value for name, value in options.items()}
        self._solvers: dict[Start, casadi.Function] = {}

    def prepare(self, *starts: Start) -> None:
        """Build the solvers for these starts; otherwise each is built on first use."""
        for start in starts:
            if start not in self._solvers:
                self._solvers[start] = self._build(start, STARTS[start])

    def _build(self, name: str, options: dict[str, Any]) -> casadi.Function:
        return casadi.nlpsol(
            name,
            "ipopt",
            self.problem,
            {
                "print_time": False,
                "error_on_fail": False,
                "ipopt.print_level": 0,
                "ipopt.sb": "yes",
                "ipopt.tol": self.tolerance,
                "ipopt.max_iter": self.iterations,
                # Detects an infeasible demand in a third of the iterations; other demands solve as before.
                "ipopt.expect_infeasible_problem": "yes",
                "ipopt.linear_solver": "mumps",
                # Plain orderings: the matrices are small, and MUMPS's analysis costs more than it saves.
                "ipopt.mumps_pivot_order": 0,
                "ipopt.mumps_permuting_scaling": 0,
                "ipopt.mumps_scaling": 0,
                **self.options,
                **options,
            },
        )

    def solve(self, d: Floats, start: Floats | Solution, close: bool = False) -> Solution:
        """The optimum for parameters d, from a point or from another solution with its multipliers.

        Args:
            close: whether that solution is nearly optimal for d too.
        """
        if isinstance(start, Solution):
            given = {"x0": start.state, "lam_g0": start.multipliers, "lam_x0": start.bounds}
            name: Start = "close" if close else "warm"
        else:
            given, name = {"x0": start}, "cold"
        with ALONE:
            self.prepare(name)
            solver = self._solvers[name]
            begun = time.perf_counter()
            found = solver(p=d, lbx=self.bounds[0], ubx=self.bounds[1], lbg=self.limits[0], ubg=self.limits[1], **given)
            seconds = time.perf_counter() - begun
            stats = solver.stats()
        return Solution(
            status=STATUS.get(stats["return_status"], "failed"),
            objective=float(found["f"]),
            state=np.asarray(found["x"]).ravel(),
            multipliers=np.asarray(found["lam_g"]).ravel(),
            bounds=np.asarray(found["lam_x"]).ravel(),
            iterations=int(stats["iter_count"]),
            seconds=seconds,
        )

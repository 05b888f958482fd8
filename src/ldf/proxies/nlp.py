"""A nonlinear program, built once and solved for many parameters: CasADi's derivatives, IPOPT's interior point."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
"""IPOPT's words for how a solve ended, and ours; any other is "failed"."""


def _from_near(barrier: float) -> dict[str, Any]:
    """IPOPT's options for a start with multipliers: barrier parameter, and distance kept from bounds."""
    pushes = ("bound_push", "bound_frac", "slack_bound_push", "slack_bound_frac", "mult_bound_push")
    near = {f"ipopt.warm_start_{push}": barrier for push in pushes}
    return {"ipopt.warm_start_init_point": "yes", "ipopt.mu_init": barrier, **near}


STARTS: dict[Start, dict[str, Any]] = {
    "cold": {},
    # Barrier and multipliers start near those handed in; this value did best on 30, 118 and 300 buses.
    "warm": _from_near(1e-4),
    # Half the time of "warm" from a point that is nearly optimal, and more time than it from any other.
    "close": _from_near(1e-6),
}
"""IPOPT's options by where a solve starts: at a point, at another solution, or at one that is nearly optimal."""


@dataclass(frozen=True)
class Solution:
    """What a solve gave: a point, its objective, the multipliers there, and how it ended."""

    status: str
    objective: float
    state: Floats
    multipliers: Floats = field(repr=False)
    """Of the constraints g, [m]: what the objective rises by when a right-hand side falls by one."""
    bounds: Floats = field(repr=False)
    """Of the variables' bounds, [n]."""
    iterations: int
    seconds: float

    @property
    def solved(self) -> bool:
        """Whether the point is an optimum, to the solver's tolerance."""
        return self.status == "optimal"


class NLP:
    """minimise f(x, d) subject to lower ≤ x ≤ upper and g_lower ≤ g(x, d) ≤ g_upper.

    Args:
        x: symbols [n].
        d: the parameters' symbols.
        f: the objective.
        g: the constraints [m].
        bounds: lower and upper of x.
        limits: lower and upper of g; equal where g is an equality.
        tolerance: IPOPT's.
        iterations: after how many to give up.
        options: of IPOPT, beside those that every program here has.
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
        """Build the solvers for these starts: each is built when it is first asked for, otherwise."""
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
                # Tells a demand that cannot be met in a third of the iterations, and solves the others as before.
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
        """The optimum for parameters d, from a point, or from another solution with its multipliers.

        Args:
            close: that solution is nearly optimal for d too.
        """
        if isinstance(start, Solution):
            given = {"x0": start.state, "lam_g0": start.multipliers, "lam_x0": start.bounds}
            name: Start = "close" if close else "warm"
        else:
            given, name = {"x0": start}, "cold"
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

"""The solver of power networks: the interior point, with IPOPT for what it leaves undecided."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..proxies.nlp import ALONE, Solution, Starts
from ..proxies.program import Task
from .acopf import ACOPF
from .case import Case
from .constraints import LIMITS
from .interior import WIDE, InteriorPoint

Floats = NDArray[np.float64]

FAR = 1e3
"""Limit of an angle difference, rad, that no state reaches."""


@cache
def compiles() -> bool:
    """Whether numba is installed; if it is not, this says so once."""
    if find_spec("numba") is not None:
        return True
    print(
        "numba is not installed: IPOPT solves, 30 to 60 times slower; for our own: pip install 'ldf[fast]'",
        file=sys.stderr,
    )
    return False


class InteriorACOPF(ACOPF):
    """AC-OPF by the interior point; IPOPT decides what it leaves undecided.

    Args:
        case: the network.
        threads: number of cores to use for many demands; all of them by default.
    """

    def __init__(self, case: Case, threads: int | None = None) -> None:
        super().__init__(case)
        self.interior = InteriorPoint(case, threads)

    @property
    def threads(self) -> int:
        """Number of cores that `many` uses."""
        return self.interior.threads

    @threads.setter
    def threads(self, count: int) -> None:
        self.interior.threads = count

    @staticmethod
    def serves(case: Case) -> bool:
        """Whether the interior point can be used: numba is installed, and all costs are convex."""
        return bool((case.cost[:, 0] >= 0).all()) and compiles()

    @cached_property
    def _limited(self) -> dict[str, int]:
        """The laws that a state can violate, with their places in `LIMITS`."""
        case = self.case
        limits = {
            "voltage": (case.v_min, case.v_max),
            "angle": (case.angle_min, case.angle_max),
            "active": (case.p_min, case.p_max),
            "reactive": (case.q_min, case.q_max),
            "thermal": (case.limit,),
        }
        every = {name: limits.get(name, (np.zeros(1),)) for name in LIMITS}
        return {name: k for k, name in enumerate(LIMITS) if any(np.isfinite(limit).any() for limit in every[name])}

    def prepare(self, *tasks: Task) -> None:
        """Compile the interior point, for one demand and for several."""
        if {"cold", "warm"} & {*tasks}:
            for count in (1, WIDE):
                self.interior.solve(np.tile(self.nominal, (count, 1)))
            _ = self._pace
        if "check" in tasks:
            self.interior.check(self.nominal[None], self.flat[None])
        if "project" in tasks:
            super().prepare("project")

    def solve(self, demand: Floats | None = None, start: Solution | None = None) -> Solution:
        """The cheapest state for a demand, from a cold start or from another demand's solution."""
        demand = self.nominal if demand is None else demand
        return self.many(demand[None], None if start is None else Starts.of([start]))[0]

    def optima(self, demand: Floats) -> list[Solution]:
        """The optimum from a cold start."""
        return [self.solve(demand)]

    def many(
        self,
        demands: Floats,
        starts: Starts | None = None,
        tolerance: float | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> list[Solution]:
        """The cheapest states for demands [B, 2N], see `InteriorPoint.solve`; IPOPT decides what that leaves open."""
        begun = perf_counter()
        most = None if self.budget is None else max(1, int(self.budget / self._pace))
        found = self.interior.solve(demands, starts, changes, tolerance, most)
        each = (perf_counter() - begun) / max(1, len(demands))
        solutions = [
            Solution("optimal", objective, state, multipliers, bounds, int(iterations), each, "ldf", warm)
            for objective, state, multipliers, bounds, iterations, warm in zip(
                found.objective.tolist(),
                found.state,
                found.multipliers,
                found.bounds,
                found.iterations.tolist(),
                found.warm.tolist(),
                strict=True,
            )
        ]
        for row in np.flatnonzero(~found.optimal).tolist():
            if row in found.short:
                reason = self._missing(found.short[row])
                solutions[row] = replace(solutions[row], status="infeasible", reason=reason)
            elif self.budget is not None:
                solutions[row] = replace(
                    solutions[row], status="time", reason=f"not solved in {1e3 * self.budget:g} ms"
                )
            else:
                solutions[row] = self._decided(demands[row], _one(changes or {}, row))
        return solutions

    def rehearse(self, demands: Floats, starts: Starts, tolerance: float | None = None) -> None:
        """Find out which starts are of use, see `InteriorPoint.rehearse`."""
        self.interior.rehearse(demands, starts, tolerance)

    @cached_property
    def _pace(self) -> float:
        """Seconds per iteration, of one demand at a time."""
        begun = perf_counter()
        found = self.interior.solve(self.nominal[None])
        return (perf_counter() - begun) / max(1.0, float(found.iterations[0]))

    def _decided(self, demand: Floats, changes: Mapping[str, Floats]) -> Solution:
        """IPOPT's answer for one demand."""
        if not np.isfinite(demand).all():
            nothing = np.full(self.size, np.nan)
            return Solution("failed", np.nan, nothing, np.zeros(self.interior.multipliers), nothing, 0, 0.0)
        with ALONE:
            return ACOPF(changed(self.case, changes)).solve(demand) if changes else self._solve(demand, self.flat)

    def _missing(self, short: Floats) -> str:
        """Where power is missing, [2N]."""
        case, n = self.case, self.case.buses
        p, q = short[:n] * case.base, short[n:] * case.base
        at = int((p + q).argmax())
        return f"{p.sum():.3g} MW and {q.sum():.3g} MVAr cannot be balanced, most at bus {case.bus[at]}"

    def check(self, demands: Floats, states: Floats) -> tuple[dict[str, Floats], Floats]:
        """`violations` and `costs` of states [B, S] for demands [B, 2N], in one pass of compiled code."""
        found = self.interior.check(demands, states)
        sound = np.isfinite(found[:, -1])
        if not sound.all():
            found[~sound, :-2] = np.inf
        return {name: found[:, k] for name, k in self._limited.items()}, found[:, -2]

    def costs(self, states: Floats) -> Floats:
        """[B] cost of states [B, S], in $/h."""
        p = states[:, self.quantities["pg"]]
        c2, c1, c0 = self.case.cost.T
        found: Floats = (p * (c2 * p + c1) + c0).sum(1)
        return found


def _one(changes: Mapping[str, Any], row: int) -> dict[str, Floats]:
    """The parameters of one row."""
    arrays = {name: np.asarray(values, np.float64) for name, values in changes.items()}
    return {name: array[row] if array.ndim > 1 + (name == "cost") else array for name, array in arrays.items()}


def changed(case: Case, changes: Mapping[str, Floats]) -> Case:
    """A network with other parameters, `CHANGES`. Elements out of service stay, without admittance, output or cost."""
    given: dict[str, Any] = dict(changes)
    out = given.pop("branch", np.ones(case.branches)) == 0
    off = given.pop("generator", np.ones(case.generators)) == 0
    for name in ("p_min", "p_max", "q_min", "q_max"):
        given[name] = np.where(off, 0.0, given.get(name, getattr(case, name)))
    given["cost"] = np.where(off[:, None], 0.0, given.get("cost", case.cost))
    for name, far in (("angle_min", -FAR), ("angle_max", FAR)):
        limit = given.get(name, getattr(case, name))
        given[name] = np.where(out & np.isfinite(limit), far, limit)
    found = replace(case, **given)
    parts = {name: getattr(case.arcs, name) for name in ("g_self", "b_self", "g_mutual", "b_mutual")}
    kept = {name: np.where(np.tile(out, 2), 0.0, part) for name, part in parts.items()}
    found.__dict__["arcs"] = replace(case.arcs, **kept)
    return found

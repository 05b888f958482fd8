"""An interior point for AC optimal power flow: its arrays for a network, its start, and what becomes of a demand.

`newton.py` has the method and the equations. This file decides what to do with a demand that is not solved at first:

1. Solve it, from a given start, or else from the network's own.
2. Find the least squared shortage of power, with costs of zero. If power is missing, the demand is infeasible.
3. Otherwise solve it again: from that state, then from the network's start with more patience.
4. What is left is undecided; `solver.py` asks IPOPT.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import splu

from ..proxies.nlp import Starts
from .case import Case
from .constraints import LIMITS
from .ordering import eliminated, updates

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDE = 4
"""Demands side by side on one core; eight are no faster."""
MISSING, NONE_MISSING = 1e-4, 1e-5
"""A demand of which more power than the first is missing, per unit, is infeasible; less than the second is nothing."""
ELASTIC = 1e-5
"""ε where a balance may fail, at a cost of its squared mismatch over 2ε."""
ENOUGH = 5e-6
"""Σ zμ, and what violations save, relative to the cost, where a cost within .001 % of the optimum is enough."""
MARGIN, ROUGH = 0.1, 1e-5
"""Largest violation there, as a fraction of the certificate's tolerance, and per unit."""
DISTANCES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Largest mismatches, per unit, of starts with multipliers that a rehearsal compares."""
PATIENT = 60
"""Iterations without better feasibility, after which a second attempt is given up."""
BOUNDED = ("v", "p", "q", "angle")
"""What has limits `v_min` and so on, in the order of `kernel.Parameters`."""
BALANCES = slice(5, 7)
"""The balances among `LIMITS`."""
SUMMARY = 12
"""Width of `kernel.Found.summary`."""
REAL = 5
"""Number of fields of `newton.Grid` with real numbers."""
COMPILING = 5.0
"""Seconds after which it is said that numba compiles; otherwise it loads what it has compiled before."""
CHANGES = {
    **dict.fromkeys(("v_min", "v_max"), "N"),
    **dict.fromkeys(("p_min", "p_max", "q_min", "q_max", "generator"), "G"),
    **dict.fromkeys(("angle_min", "angle_max", "limit", "branch"), "E"),
    "cost": "G, 3",
}
"""Parameters that may differ from row to row, with their shapes: fields of `Case`, and the status, 1 or 0, of branches
and generators."""


class Results:
    """What was found for B demands.

    Args:
        found: `kernel.Found`.
        sizes: number of variables S and of constraints m.
    """

    def __init__(self, found: Any, sizes: tuple[int, int]) -> None:
        self.point, self.summary = found
        size, constraints = sizes
        ends = (size, size + constraints)
        self.state, self.multipliers, self.bounds = (
            self.point[:, : ends[0]], self.point[:, ends[0] : ends[1]], self.point[:, ends[1] :]
        )  # fmt: skip
        """[B, S], [B, m], [B, S]"""
        self.objective, self.code, self.iterations = self.summary[:, 0], self.summary[:, 1], self.summary[:, 2]
        """[B] each"""
        self.optimal = self.code == 0
        """[B]"""
        self.warm = np.zeros(len(self.point), bool)
        """[B] whether the given start led to the optimum."""
        self.short: dict[int, Floats] = {}
        """By row of an infeasible demand: active and reactive power that is missing at each bus, [2N] per unit."""

    def put(self, where: Ints, other: Results, which: Any) -> None:
        """Replace some rows by rows of another result, adding up iterations."""
        other.iterations[which] += self.iterations[where]
        self.point[where], self.summary[where] = other.point[which], other.summary[which]
        self.optimal[where] = other.optimal[which]

    def status(self, row: int) -> str:
        """What became of a row: "optimal", "infeasible", or "undecided", for another solver to decide."""
        return "optimal" if self.optimal[row] else "infeasible" if row in self.short else "undecided"


class InteriorPoint:
    """Solves AC optimal power flow on one network, for many demands, from any number of threads.

    Args:
        case: the network.
        threads: number of cores to use for many demands; all of them by default.
    """

    def __init__(self, case: Case, threads: int | None = None) -> None:
        from . import kernel, newton  # compiled by numba, which may be missing

        self.case, self.kernel, self.newton, self.threads = case, kernel, newton, threads or cores()
        n, g, e = self.sizes = case.buses, case.generators, case.branches
        order, columns, rows = eliminated(n, case.source, case.target)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        source, target = place[case.source], place[case.target]
        flipped = source < target
        source, target = np.maximum(source, target), np.minimum(source, target)
        arcs = case.arcs
        each = np.stack([arcs.g_self, arcs.b_self, arcs.g_mutual, arcs.b_mutual], 1).reshape(2, e, 4)
        keys = np.repeat(np.arange(n), np.diff(columns)) * n + rows
        # The multipliers of `acopf.py`: two balances per bus, thermal limits of arcs that have one, then angle limits.
        rated = np.isfinite(np.tile(case.limit, 2))
        angled = np.isfinite(case.angle_min) | np.isfinite(case.angle_max)
        places = 2 * n + np.cumsum(np.concatenate([rated, angled])) - 1
        places = np.where(np.concatenate([rated, angled]), places, -1)
        pinned = np.zeros(n)
        pinned[place[case.reference]] = 1.0
        grid = newton.Grid(
            sizes=np.array([n, g, e]),
            order=order,
            pinned=pinned,
            at=place[case.at],
            source=source,
            target=target,
            flipped=flipped,
            place=n + np.searchsorted(keys, target * n + source),
            shunt=np.concatenate([case.gs[order], case.bs[order]]),
            admittance=np.where(
                flipped[:, None], each[::-1].swapaxes(0, 1).reshape(e, 8), each.swapaxes(0, 1).reshape(e, 8)
            ).ravel(),
            proximal=self._proximal(),
            rated=places[: 2 * e],
            angled=places[2 * e :],
            columns=columns,
            rows=rows,
            updates=updates(n, columns, rows, keys),
            unit=np.array([self._unit()]),
        )
        self.unit = float(grid.unit[0])
        whole, real = grid[:-REAL], grid[-REAL:]
        ends = [np.concatenate([[0], np.cumsum([len(part) for part in parts])]) for parts in (whole, real)]
        self.stored = (
            np.concatenate(whole).astype(np.int64), np.concatenate(real).astype(np.float64), np.concatenate(ends)
        )  # fmt: skip
        """The arguments of `newton.gridded`."""
        self.multipliers = 2 * n + int(rated.sum() + angled.sum())
        self.variables = 2 * g + 2 * n
        self.limits = 2 * n + 4 * g + 4 * e
        """M, the number of inequalities."""
        self.common = self._common()
        self.ends = {width: width * np.concatenate([[0], np.cumsum(self._sizes(len(rows)))]) for width in (1, WIDE)}
        """Where the parts of `newton.Lane` and `newton.Work` end, for W lanes."""
        self.warm: tuple[float, int] = (1.0, 14)
        """Largest mismatch of a start with multipliers, per unit, and maximum number of iterations; see `rehearse`."""
        self._settings: dict[float | None, tuple[Any, Any]] = {}
        self._spaces: dict[int, list[Any]] = {1: [], WIDE: []}
        """Arrays for W lanes that no thread uses at present."""

    def __reduce__(self) -> tuple[Any, ...]:
        return InteriorPoint, (self.case, self.threads)

    def _proximal(self) -> Floats:
        """δ of the thermal limits: larger where ∇h, about 2|y|/s at the limit, is steep."""
        case = self.case
        steep = np.where(np.isfinite(case.limit), 2 / np.hypot(case.r, case.x) / case.limit, 0.0)
        return self.newton.PROXIMAL * np.maximum(1.0, 1e-5 * steep**2)

    def _unit(self) -> float:
        """Unit of the costs: a hundredth of the largest marginal cost of any generator over its range."""
        case = self.case
        c2, c1, _ = case.cost.T
        ends = [2 * c2 * np.where(np.isfinite(limit), limit, 0.0) + c1 for limit in (case.p_min, case.p_max)]
        largest = float(np.max(np.abs(ends)))
        return largest / 100 if largest > 0 else 1.0

    def _common(self) -> dict[str, Floats]:
        """The network's own parameters and start, [1, …] each."""
        case, (_, g, e) = self.case, self.sizes
        v, theta = self._start()
        lower, upper = (np.concatenate([getattr(case, f"{name}_{end}") for name in BOUNDED]) for end in ("min", "max"))
        own = self.kernel.Parameters(lower, upper, case.limit, case.cost.T.ravel(), np.ones(e), np.ones(g), np.zeros(1))
        ends = np.cumsum([0, *map(len, own)]).tolist()
        self.places = {name: slice(*pair) for name, pair in zip(own._fields, itertools.pairwise(ends), strict=True)}
        """Where the parameters are in a row of `kernel.Rows.parameters`."""
        start = np.concatenate([[self.kernel.COLD], np.zeros(2 * g), v, theta])
        rest = np.zeros(self.multipliers + self.variables)
        return {"parameters": np.concatenate(own)[None], "start": np.concatenate([start, rest])[None]}

    def _start(self) -> tuple[Floats, Floats]:
        """v that minimises Σ|y|(v_i/τ − v_j)² + Σ(v − 1)², and θ that minimises Σ|y|(θ_i − θ_j − φ)²."""
        case, n = self.case, self.sizes[0]
        y, i, j = 1 / np.hypot(case.r, case.x), case.source, case.target

        def least(first: Floats, wanted: Floats, anchor: Floats, at: Floats) -> Floats:
            """argmin Σ y (first x_i − x_j − wanted)² + Σ anchor (x − at)²."""
            entries = np.concatenate([y * first**2, y, -y * first, -y * first, anchor])
            places = np.concatenate([i, j, i, j, np.arange(n)]), np.concatenate([i, j, j, i, np.arange(n)])
            right = anchor * at
            np.add.at(right, i, y * first * wanted)
            np.add.at(right, j, -y * wanted)
            found: Floats = splu(sparse.coo_matrix((entries, places), (n, n)).tocsc()).solve(right)
            return found

        held = np.zeros(n)
        held[case.reference] = 1e8
        v = least(1 / case.tap, np.zeros(len(y)), np.ones(n), np.ones(n))
        theta = least(np.ones(len(y)), case.shift, held, np.zeros(n))
        return v, theta

    def rows(self, demands: Floats, changes: Mapping[str, Any] | None = None) -> dict[str, Floats]:
        """Parameters of demands [B, 2N] that differ from the network's own.

        Args:
            changes: any of `CHANGES`, [B, …] each, or without B where all demands share it.
        """
        case, (n, g, e) = self.case, self.sizes
        found = {"demand": shaped("demands", demands, (len(demands), 2 * n))}
        if not changes:
            return found
        sizes = {"N": (n,), "G": (g,), "E": (e,), "G, 3": (g, 3)}
        given: dict[str, Floats] = {}
        for name, values in changes.items():
            if name not in CHANGES:
                raise ValueError(f"unknown parameter {name!r}: what may change is {', '.join(CHANGES)}")
            array, shape = np.asarray(values, np.float64), sizes[CHANGES[name]]
            if array.shape not in (shape, (len(demands), *shape)):
                raise ValueError(
                    f"{name} should be [{CHANGES[name]}] = {shape}, or one of these for each of "
                    f"{len(demands)} demands, got an array {array.shape}"
                )
            wrong, wanted = np.isnan(array), "a number"
            if name in ("branch", "generator"):
                wrong, wanted = (array != 0) & (array != 1), "0 or 1"
            elif name == "limit":
                wrong, wanted = ~(array > 0), "above 0"
            elif name == "cost":
                wrong, wanted = wrong | (array[..., :1] < 0), "a number, with c₂ ≥ 0"
            if wrong.any():
                raise ValueError(f"{name} has the value {array[wrong][0]}; it should be {wanted}")
            given[name] = array if array.ndim > len(shape) else array[None]
        parts = {}
        for row, end in (("lower", "min"), ("upper", "max")):
            names = [f"{quantity}_{end}" for quantity in BOUNDED]
            if given.keys() & {*names}:
                held = [given.get(name, getattr(case, name)[None]) for name in names]
                count = max(map(len, held))
                parts[row] = np.concatenate([np.broadcast_to(part, (count, part.shape[1])) for part in held], 1)
        parts |= {name: given[name] for name in given.keys() & {"limit", "branch", "generator"}}
        if "cost" in given:
            parts["cost"] = given["cost"].swapaxes(1, 2).reshape(len(given["cost"]), 3 * g)
        return found | {"parameters": self._changed(self.common["parameters"], parts)}

    def _changed(self, parameters: Floats, parts: Mapping[str, Any]) -> Floats:
        """Parameters [., P] with some parts replaced, [., …] each."""
        count = max(len(parameters), *map(len, parts.values()))
        found = np.repeat(parameters, count // len(parameters), 0)
        for name, values in parts.items():
            found[:, self.places[name]] = values
        return found

    def run(self, rows: Mapping[str, Floats], settings: Any) -> Results:
        """What the kernel finds for rows, on all cores; parameters and starts not given are the network's own."""
        count = len(rows["demand"])
        width = 1 if count < WIDE else WIDE
        found = self.kernel.Found(np.zeros((count, 2 * self.variables + self.multipliers)), np.empty((count, SUMMARY)))
        every = self.kernel.Rows(**{**self.common, **rows})
        workers = min(self.threads, count // (2 * WIDE))
        if workers < 2:
            self._run(width, every, found, settings)
        else:
            ends = np.linspace(0, count, workers + 1).astype(int).tolist()
            parts = []
            for part in (slice(*pair) for pair in itertools.pairwise(ends)):
                some = self.kernel.Rows(*[array[part] if len(array) > 1 else array for array in every])
                parts.append((some, self.kernel.Found(*[array[part] for array in found])))
            jobs = [_pool().submit(self._run, width, *part, settings) for part in parts[1:]]
            self._run(width, *parts[0], settings)
            for job in jobs:
                job.result()
        return Results(found, (self.variables, self.multipliers))

    def _run(self, width: int, rows: Any, found: Any, settings: Any) -> None:
        """Solve rows on this thread."""
        spaces, ends = self._spaces[width], self.ends[width]
        try:
            space = spaces.pop()
        except IndexError:
            space = np.zeros(ends[-1])
        given = (0,) * width, self.stored, space, ends, rows
        if width not in _ready:
            ready(width, self.kernel.solve, *given, type(found)(*[array[:0] for array in found]), settings)
        self.kernel.solve(*given, found, settings)
        spaces.append(space)

    def _sizes(self, blocks: int) -> list[int]:
        """Sizes of the parts of `newton.Lane` and `newton.Work`, for one lane."""
        n, g, e = self.sizes
        sizes = {
            **dict.fromkeys(("demand", "x", "y", "grad"), 2 * n),
            **dict.fromkeys(("cost", "s", "size", "push", "ds"), 2 * g),
            **dict.fromkeys(("lower", "upper"), n + 2 * g + e),
            **dict.fromkeys(("rate", "weight", "status"), e),
            **dict.fromkeys(("on", "z", "mu", "h", "w", "n", "dz", "dmu"), self.limits),
            **dict.fromkeys(("elastic", "gamma", "centre", "shift"), 1),
            "fixed": 2 * n + 2 * g,
            "slope": 6 * e,
            "step": 4 * n,
            "blocks": 16 * (n + blocks),
            "inverse": 16 * n,
            "temporary": 16,
            "stats": 9,
        }
        return [sizes[name] for name in (*self.newton.Lane._fields, *self.newton.Work._fields)]

    def solve(
        self,
        demands: Floats,
        starts: Starts | None = None,
        changes: Mapping[str, Any] | None = None,
        tolerance: float | None = None,
        most: int | None = None,
    ) -> Results:
        """The optima for demands [B, 2N].

        Args:
            starts: a start for each, such as predicted states with the multipliers of solutions nearby.
            changes: parameters that differ from the network's own, see `rows`.
            tolerance: enough for a certificate with this tolerance, at a cost within .001 % of the optimum.
            most: maximum number of iterations for a demand; more leave it undecided.
        """
        rows = self.rows(demands, changes)
        settings, first = self._ends(tolerance)
        if most is not None:
            settings, first = (each._replace(iterations=min(each.iterations, most)) for each in (settings, first))
        if starts is None:
            found = self.run(rows, settings)
        else:
            found = self.run(rows | {"start": self._started(starts, len(demands))}, first)
            found.warm = found.optimal.copy()
            left = np.flatnonzero(~found.optimal & (most is None or found.iterations < most))
            if len(left):
                found.put(left, self.run(_taken(rows, left), settings), slice(None))
        if not found.optimal.all():
            self._decide(rows, found, most)
        return found

    def _started(self, starts: Starts, count: int) -> Floats:
        """Starts with multipliers as rows of `kernel.Rows.start`."""
        size, constraints = self.variables, self.multipliers
        start = np.empty((count, 1 + 2 * size + constraints))
        start[:, 0] = self.kernel.SOLUTION
        start[:, 1 : 1 + size] = shaped("starts", starts.states, (count, size))
        start[:, 1 + size : -size] = shaped("multipliers", starts.multipliers, (count, constraints))
        start[:, -size:] = shaped("multipliers of bounds", starts.bounds, (count, size))
        return start

    def _decide(self, rows: Mapping[str, Floats], found: Results, most: int | None) -> None:
        """Find what is missing for the rows that are not solved, and solve those again of which nothing is.

        With a maximum number of iterations, only find what is missing, where half of them are left.
        """
        kernel, n = self.kernel, self.sizes[0]
        left = np.flatnonzero(~found.optimal & (most is None or 2 * found.iterations <= most))
        if not len(left):
            return
        some = {**self.common, **_taken(rows, left)}
        costless = {"cost": np.zeros((1, 3 * self.sizes[1])), "elastic": np.full((1, 1), ELASTIC)}
        rough = kernel.Settings(feasible=1e-6, complementary=1e-6, stationary=1e-3, saved=1.0, patience=PATIENT)
        if most is not None:
            rough = rough._replace(iterations=most // 2)
        relaxed = self.run(some | {"parameters": self._changed(some["parameters"], costless)}, rough)
        short = np.abs(ELASTIC / self.unit * relaxed.multipliers[:, : 2 * n])
        total = short.sum(1)
        found.short = {int(left[k]): short[k] for k in np.flatnonzero(relaxed.optimal & (total > MISSING))}
        if most is not None:
            return
        again = np.flatnonzero(~relaxed.optimal | (total <= NONE_MISSING))
        start = np.repeat(self.common["start"], len(left), 0)
        start[:, 0], start[:, 1 : 1 + self.variables] = kernel.STATE, relaxed.state
        for given in ({"start": start}, {}):
            if len(again):
                second = self.run(_taken(some | given, again), kernel.Settings(patience=PATIENT, curvature=1.0))
                found.put(left[again[second.optimal]], second, second.optimal)
                again = again[~second.optimal]

    def _ends(self, tolerance: float | None) -> tuple[Any, Any]:
        """Settings of a solve, and from a start with multipliers.

        With a tolerance they end as soon as a certificate with it holds and the cost is within .001 % of the optimum.
        """
        if tolerance not in self._settings:
            settings = exact = self.kernel.Settings()
            if tolerance is not None:
                settings = exact._replace(
                    feasible=max(exact.feasible, min(MARGIN * tolerance, ROUGH)),
                    absolute=True,
                    complementary=ENOUGH,
                    stationary=exact.nearly[2],
                    saved=ENOUGH,
                )
            furthest, most = self.warm
            self._settings[tolerance] = settings, settings._replace(furthest=furthest, iterations=most)
        return self._settings[tolerance]

    def rehearse(self, demands: Floats, starts: Starts, tolerance: float | None = None) -> None:
        """Find out for which starts with multipliers a solve is faster than a cold one, and how long to try.

        The largest mismatch of a start, and the maximum number of iterations, are those with the fewest iterations in
        total for these demands [B, 2N].
        """
        far = self.check(demands, starts.states)[:, BALANCES].max(1)
        cold = self.solve(demands, tolerance=tolerance)
        longest = 2 * int(cold.iterations.max())
        every = self._ends(tolerance)[0]._replace(furthest=np.inf, iterations=longest)
        found = self.run(self.rows(demands) | {"start": self._started(starts, len(demands))}, every)
        best = np.inf
        for most in np.unique(np.append(found.iterations[found.optimal], 1)).astype(int).tolist():
            tried = np.where(found.optimal & (found.iterations <= most), found.iterations, most + cold.iterations)
            for furthest in DISTANCES:
                total = float(np.where(far <= furthest, tried, cold.iterations).sum())
                if total < best:
                    best, self.warm = total, (furthest, most)
        self._settings = {}

    def check(self, demands: Floats, states: Floats, changes: Mapping[str, Any] | None = None) -> Floats:
        """[B, 9] largest ν of every law of `LIMITS`, cost, and a sum that is not finite if a value is not."""
        rows = self.kernel.Rows(**{**self.common, **self.rows(demands, changes)})
        found = np.empty((len(states), len(LIMITS) + 2))
        given = shaped("states", states, (len(demands), self.variables))
        if 0 not in _ready:
            ready(0, self.kernel.check, self.stored, rows, given[:0], found[:0])
        self.kernel.check(self.stored, rows, given, found)
        return found


def shaped(name: str, values: Any, shape: tuple[int, ...]) -> Floats:
    """An array of this shape, contiguous; compiled code does not check."""
    found = np.ascontiguousarray(values, np.float64)
    if found.shape != shape:
        raise ValueError(f"{name} should be an array {shape}, got {found.shape}")
    return found


def _taken(rows: Mapping[str, Floats], which: Any) -> dict[str, Floats]:
    """Some rows of problems; what all share stays."""
    return {name: values[which] if len(values) > 1 else values for name, values in rows.items()}


@cache
def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores())


_ready: set[int] = set()
_said = threading.Event()


def _say() -> None:
    """Say once that numba compiles."""
    if not _said.is_set():
        _said.set()
        line = "compiling the interior point for power networks: a minute, once on this machine"
        print(line, file=sys.stderr, flush=True)


def ready(kind: int, function: Callable[..., None], *nothing: Any) -> None:
    """Compile a function, or load what was compiled before, by a call without rows; says so if it takes a while."""
    timer = threading.Timer(COMPILING, _say)
    timer.daemon = True
    timer.start()
    try:
        function(*nothing)
    finally:
        timer.cancel()
    _ready.add(kind)

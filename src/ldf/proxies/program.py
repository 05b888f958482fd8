"""An optimisation problem, its laws, and the projection onto its feasible states, all built once for all demands.

Every law is stated once, in CasADi symbols. The solver's constraints and the certificate are both built from it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import casadi
import numpy as np
from numpy.typing import NDArray

from .nlp import NLP, Solution, Starts

Floats = NDArray[np.float64]
Task = Literal["check", "cold", "warm", "project"]
"""Tasks of a program: check states, solve from a cold or a warm start, project."""

CLOSE = 1e-2
"""A start that violates no constraint of the model by more than this, per unit, counts as nearly optimal."""
APART = 1e-3
"""States that differ by more than this, per unit, are different optima of the same demand."""


@dataclass(frozen=True)
class Law:
    """The constraint low ≤ expression(x, d) ≤ high, elementwise; an equality where both limits are equal."""

    expression: casadi.SX
    """[k]"""
    low: Floats
    """[k], −∞ where there is no limit."""
    high: Floats
    """[k], ∞ where there is no limit."""

    def __post_init__(self) -> None:
        shapes = self.expression.shape, self.low.shape, self.high.shape
        if shapes != ((len(self), 1), (len(self),), (len(self),)):
            raise ValueError(f"a law needs a column of k entries and [k] limits, got the shapes {shapes}")
        if not (self.low <= self.high).all():
            k = int(np.flatnonzero(~(self.low <= self.high))[0])
            raise ValueError(f"entry {k} of a law has no value between its limits {self.low[k]} and {self.high[k]}")

    def __len__(self) -> int:
        return len(self.low)

    @property
    def equality(self) -> bool:
        """Whether all entries are equalities."""
        return bool((self.low == self.high).all())

    @property
    def degree(self) -> casadi.SX:
        """σ [k]: e − low for an equality, max(low − e, e − high) for any other law."""
        e, low, high = self.expression, casadi.DM(self.low), casadi.DM(self.high)
        return e - low if self.equality else casadi.fmax(low - e, e - high)

    @classmethod
    def limited(cls, expression: casadi.SX, low: Floats, high: Floats) -> Law:
        """The law restricted to entries with a finite limit."""
        rows = np.flatnonzero(np.isfinite(low) | np.isfinite(high))
        # CasADi gives an empty selection from one symbol the shape [1, 0], hence the reshape.
        return cls(casadi.reshape(expression[rows.tolist()], len(rows), 1), low[rows], high[rows])

    @classmethod
    def stacked(cls, laws: Iterable[Law]) -> Law:
        """Several laws as one, in this order."""
        held = list(laws) or [cls(casadi.SX(0, 1), np.zeros(0), np.zeros(0))]
        low, high = (np.concatenate([getattr(law, side) for law in held]) for side in ("low", "high"))
        return cls(casadi.vertcat(*[law.expression for law in held]), low, high)


@dataclass(frozen=True)
class Expressions:
    """minimise cost(x) subject to laws on x and d, in CasADi symbols."""

    x: casadi.SX
    """[S] the state."""
    d: casadi.SX
    """[D] the demand."""
    cost: casadi.SX
    laws: Mapping[str, Law]
    """All constraints on a state, by name, in the units of a certificate; laws without entries are omitted."""
    g: Law | None = None
    """The same constraints in the form passed to the solver, in addition to the bounds of x: scaled, reordered, without
    redundant ones. By default all laws, stacked."""
    gauge: Sequence[int] = ()
    """Entries of x whose bounds only select one of many equivalent states, such as a reference angle: not a law."""
    stand_in: casadi.SX | None = None
    """Minimised instead of the cost: smooth, and with a single optimum where the cost has many."""


class ByRow:
    """Evaluates a CasADi function row by row: inputs [B, n] each, output [B, m].

    It uses the function's buffers, because converting between arrays and CasADi matrices takes longer than the
    arithmetic. Every thread has its own buffers.
    """

    def __init__(self, function: casadi.Function) -> None:
        self.function, self.width = function, function.numel_out(0)
        self.widths = [function.numel_in(i) for i in range(function.n_in())]
        self._held = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return ByRow, (self.function,)

    def __call__(self, *inputs: Floats) -> Floats:
        """[B, m]"""
        given = [np.ascontiguousarray(array, np.float64) for array in inputs]
        found = np.empty((len(given[0]), self.width))
        shapes, expected = [array.shape for array in given], [(len(found), width) for width in self.widths]
        if shapes != expected:
            raise ValueError(f"{self.function.name()} takes arrays {expected}, got {shapes}")
        if not hasattr(self._held, "buffers"):
            self._held.buffers = self.function.buffer()
        buffer, run = self._held.buffers
        for row in range(len(found)):
            for index, array in enumerate(given):
                buffer.set_arg(index, memoryview(array[row]))
            buffer.set_res(0, memoryview(found[row]))
            run()
        return found


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
    """Factor from the model's cost, which should be of order one, to the reported objective."""
    several: bool = False
    """Whether there may be more than one local optimum, so that one start is not enough."""
    sharpness: float = 1e6
    """Factor on the projection's distance: at an active bound the barrier keeps a distance of about
    √(tolerance / 2·sharpness)."""
    threads: int = 0
    """Number of cores that `many` uses for demands side by side; 0 if it solves one after the other."""
    budget: float | None = None
    """Seconds that a solve may take, to be set before the first one; a longer one ends with the status "time"."""
    tolerance: float = 1e-8
    """IPOPT's tolerance."""
    iterations: int = 300
    """Maximum number of IPOPT iterations."""
    options: Mapping[str, Any] = {}  # for IPOPT, in addition to those of `NLP`; never changed

    @abstractmethod
    def expressions(self) -> Expressions:
        """The model; called once."""

    def vectorised(self) -> Expressions:
        """The same model in CasADi's matrix symbols, MX, if the program provides it: checks are then faster."""
        return self.model

    @abstractmethod
    def starts(self, demand: Floats) -> list[Floats]:
        """Initial points of a cold start, [S] each."""

    @cached_property
    def model(self) -> Expressions:
        """Symbols and expressions shared by the optimum and the projection."""
        return self.expressions()

    @cached_property
    def laws(self) -> dict[str, Law]:
        """The laws of the model, by name; bounds of x that none of them states form one more, "bounds"."""
        laws = self._named(self.model)
        if not laws:
            raise ValueError("a program needs a law or a bound: without one there is nothing to certify")
        return laws

    def _named(self, m: Expressions) -> dict[str, Law]:
        """The laws of the model, in SX or MX symbols."""
        limited = {name: Law.limited(law.expression, law.low, law.high) for name, law in m.laws.items()}
        laws = {name: law for name, law in limited.items() if len(law)}
        rest = Law.limited(m.x, *self._unstated)
        if len(rest) and "bounds" in laws:
            raise ValueError('a law named "bounds" should state every bound of x, or have another name')
        return laws | {"bounds": rest} if len(rest) else laws

    @cached_property
    def _unstated(self) -> tuple[Floats, Floats]:
        """[S] each: bounds of x that no law of the model states, infinite elsewhere."""
        m = self.model
        place = {symbol.element_hash(): i for i, symbol in enumerate(casadi.vertsplit(m.x))}
        stated = np.zeros(len(self.lower), bool)
        stated[list(m.gauge)] = True
        for law in m.laws.values():
            for entry, low, high in zip(casadi.vertsplit(law.expression), law.low, law.high, strict=True):
                i = place.get(entry.element_hash())
                if i is not None and low >= self.lower[i] and high <= self.upper[i]:
                    stated[i] = True
        return np.where(stated, -np.inf, self.lower), np.where(stated, np.inf, self.upper)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The rows of `degrees` by law."""
        ends = np.cumsum([len(law) for law in self.laws.values()]).tolist()
        return {name: slice(end - len(law), end) for end, (name, law) in zip(ends, self.laws.items(), strict=True)}

    @cached_property
    def degrees(self) -> casadi.Function:
        """(x, d) → σ of all laws, stacked, [m]: e − low for equalities, max(low − e, e − high) for the others."""
        sigma = casadi.vertcat(*[law.degree for law in self.laws.values()])
        return casadi.Function("degrees", [self.model.x, self.model.d], [casadi.densify(sigma)], ["x", "d"], ["sigma"])

    @cached_property
    def _check(self) -> ByRow:
        """(x, d) → the largest ν of every law, the cost, and the sum of all values, not finite if one is not."""
        m = self.vectorised()
        laws = self._named(m).values()
        degrees = [law.degree for law in laws]
        sizes = [casadi.fabs(sigma) if law.equality else sigma for law, sigma in zip(laws, degrees, strict=True)]
        worst = [casadi.fmax(casadi.mmax(size), 0) for size in sizes]
        # A maximum ignores NaN, hence the sum.
        every = casadi.sum1(casadi.vertcat(m.x, m.d, *degrees))
        found = casadi.cse(casadi.densify(casadi.vertcat(*worst, m.cost, every)))
        return ByRow(casadi.Function("check", [m.x, m.d], [found]))

    @cached_property
    def _g(self) -> Law:
        """The constraints in the form passed to the solver."""
        return Law.stacked(self.model.laws.values()) if self.model.g is None else self.model.g

    @cached_property
    def _optimum(self) -> NLP:
        m = self.model
        f = m.cost if m.stand_in is None else m.stand_in
        return self._nlp(m.d, f)

    @cached_property
    def _cost(self) -> ByRow:
        return ByRow(casadi.Function("cost", [self.model.x], [casadi.densify(self.model.cost)]))

    @cached_property
    def _constraints(self) -> ByRow:
        return ByRow(casadi.Function("g", [self.model.x, self.model.d], [casadi.densify(self._g.expression)]))

    @cached_property
    def _projection(self) -> NLP:
        m = self.model
        controls = casadi.vertcat(*[m.x[self.quantities[name]] for name in self.controls])
        aim = casadi.SX.sym("aim", controls.shape[0])
        return self._nlp(casadi.vertcat(m.d, aim), self.sharpness * casadi.sumsqr(controls - aim))

    def _nlp(self, parameters: casadi.SX, objective: casadi.SX) -> NLP:
        """An objective under the constraints passed to the solver."""
        bounds, limits = (self.lower, self.upper), (self._g.low, self._g.high)
        limit = {} if self.budget is None else {"max_wall_time": self.budget}
        settings = self.tolerance, self.iterations, {**self.options, **limit}
        return NLP(self.model.x, parameters, objective, self._g.expression, bounds, limits, *settings)

    def prepare(self, *tasks: Task) -> None:
        """Build in advance what these tasks would otherwise build on first use."""
        if "check" in tasks:
            _ = self.laws, self._check
        if {"cold", "warm"} & {*tasks}:
            _ = self._cost
        if "cold" in tasks:
            self._optimum.prepare("cold")
        if "warm" in tasks:
            self._optimum.prepare("warm", "close")
            _ = self._constraints
        if "project" in tasks:
            self._projection.prepare("cold")

    def solve(self, demand: Floats | None = None, start: Solution | None = None) -> Solution:
        """The cheapest state for a demand, from a cold start or warm-started from another demand's solution."""
        demand = self.nominal if demand is None else demand
        return self.optima(demand)[0] if start is None else self._solve(demand, start)

    def many(self, demands: Floats, starts: Starts | None = None, tolerance: float | None = None) -> list[Solution]:
        """The cheapest states for demands [B, D].

        Args:
            starts: a start for each; without one, or if it leads to no optimum, the start is cold.
            tolerance: the solver may end as soon as a certificate with this tolerance holds and the cost is within
                .001 % of the optimum. By default, and with IPOPT always, it ends at its own tolerance.
        """
        found = []
        for row, demand in enumerate(demands):
            solution = None
            if starts is not None:
                start = starts[row]
                solution = self._solve(demand, start, self.violation(demand, start.state) <= CLOSE)
            warm = solution is not None and solution.solved
            found.append(replace(solution, warm=True) if solution is not None and warm else self.solve(demand))
        return found

    def rehearse(self, demands: Floats, starts: Starts, tolerance: float | None = None) -> None:
        """Find out which starts are of use; a solver may do without."""
        return

    def check(self, demands: Floats, states: Floats) -> tuple[dict[str, Floats], Floats]:
        """`violations` and `costs` of states [B, S] for demands [B, D], in one pass."""
        found = self._check(states, demands)
        unsound = ~np.isfinite(found[:, -1])
        if unsound.any():
            found[unsound, :-2] = np.inf
        *worst, costs, _ = found.T
        return dict(zip(self.laws, worst, strict=True)), self.unit * costs

    def violations(self, demands: Floats, states: Floats) -> dict[str, Floats]:
        """The largest ν of every law at states [B, S], [B] each: max(0, low − e, e − high) over its entries.

        Infinite where a state, a demand or a value computed from them is not finite.
        """
        return self.check(demands, states)[0]

    def costs(self, states: Floats) -> Floats:
        """[B] cost of states [B, S], in the objective's unit."""
        found: Floats = self.unit * self._cost(states)[:, 0]
        return found

    def violation(self, demand: Floats, state: Floats) -> float:
        """The largest violation of the solver's constraints and bounds, in the solver's scaling."""
        g, limits = self._constraints(state[None], demand[None])[0], self._g
        beyond = [limits.low - g, g - limits.high, self.lower - state, state - self.upper]
        return float(max(part.max(initial=0.0) for part in beyond))

    def optima(self, demand: Floats) -> list[Solution]:
        """Local optima reached from the cold starts, cheapest first; if there is none, the last failed solve."""
        found = [self._solve(demand, start) for start in self.starts(demand)]
        return distinct(found) or found[-1:]

    def _solve(self, demand: Floats, start: Floats | Solution, close: bool = False) -> Solution:
        found = self._optimum.solve(demand, start, close)
        if self.model.stand_in is None:
            return replace(found, objective=self.unit * found.objective)
        return replace(found, objective=float(self.costs(found.state[None])[0]))

    def project(self, demand: Floats, prediction: Floats) -> Solution:
        """The feasible state with the smallest squared distance in the controls; its objective is that distance."""
        aim = np.concatenate([prediction[self.quantities[name]] for name in self.controls])
        found = self._projection.solve(np.concatenate([demand, aim]), np.clip(prediction, self.lower, self.upper))
        return replace(found, objective=found.objective / self.sharpness)


def distinct(solutions: Sequence[Solution]) -> list[Solution]:
    """The distinct optima among solutions, cheapest first."""
    kept: list[Solution] = []
    for found in sorted((s for s in solutions if s.solved), key=lambda s: s.objective):
        if all(np.abs(found.state - other.state).max() > APART for other in kept):
            kept.append(found)
    return kept


def incidence(rows: int, at: NDArray[np.int64]) -> casadi.DM:
    """[rows, len(at)], with a one where column k belongs to row at[k]."""
    return casadi.DM.triplet(list(at), list(range(len(at))), casadi.DM.ones(len(at)), rows, len(at))

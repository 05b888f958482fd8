"""The interface of an optimisation problem O(d) that can be learnt: power and gas networks, and any other."""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import casadi
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.constraint import Constraint
from .laws import Compiled, Laws, ProgramLaws
from .nlp import Solution, Starts
from .program import Program, Task

if TYPE_CHECKING:
    from .answering.points import Points
    from .answering.repair import Repair

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Solver(Protocol):
    """The ground-truth solver: built once, called for many demands."""

    @property
    def several(self) -> bool:
        """Whether there may be more than one local optimum."""

    def solve(self, demand: Floats | None = None, start: Solution | None = None) -> Solution:
        """The optimal state for a demand [D], from a cold start or from another demand's solution."""

    threads: int
    """Number of cores that `many` uses for demands side by side; 0 if it solves one after the other."""
    budget: float | None
    """Seconds that a solve may take; to be set before the first one."""

    def many(self, demands: Floats, starts: Starts | None = None, tolerance: float | None = None) -> list[Solution]:
        """The optimal states for demands [B, D], see `Program.many`."""

    def rehearse(self, demands: Floats, starts: Starts, tolerance: float | None = None) -> None:
        """Find out for which starts like these `many` is faster than from a cold start."""

    def optima(self, demand: Floats) -> list[Solution]:
        """Local optima for a demand [D], cheapest first; if none is found, the last failed solve."""

    def project(self, demand: Floats, prediction: Floats) -> Solution:
        """The feasible state nearest to a prediction [S] in the controls; its objective is the squared distance."""

    def prepare(self, *tasks: Task) -> None:
        """Build in advance what these tasks would otherwise build on first use."""


class Network(Protocol):
    """The network that a problem is defined on."""

    @property
    def name(self) -> str:
        """Display name."""

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any number in the network."""


class Problem(ABC):
    """A parametric optimisation problem O(d): a demand of D numbers in, a state of S numbers out.

    A subclass **must** define `kind`, `open`, `load` and `save`, and pass its network and its `Program` to `__init__`.
    The program determines demand, state and bounds, the solver, the cost and the laws (also as differentiable
    functions of tensors), and the quantities that repair changes.

    It **may** define how results are shown: `units`, `factors` and `names` (`present`, `entry` and `demands` use them),
    or these three methods directly; `reported`, `assumptions`; prices (`priced`, `nodes`, `prices`); a plot (`draw`).

    It may also replace the default laws by laws in torch (`_laws`, `laws`, `precision`), which train faster, the
    default repair by its own (`fast`), and the solver (`solvers`, `solver`).

    Args:
        network: the network, with a name and a fingerprint that changes with any of its numbers.
        program: creates a solver; called once for the problem itself, and once for each `solver()`.
        loads: [D] index of the load that a demand entry belongs to, from 0; −1 for an entry that belongs to no load
            and never varies. By default every nonzero entry is a load of its own.
    """

    kind: str
    """Name of this kind of problem on the command line, and of its entry point (`registry.py`)."""
    name: str
    fingerprint: str
    nominal: Floats
    """[D] the nominal demand."""
    loads: Ints
    """[D] index of the load that a demand entry belongs to, from 0; −1 for an entry without one, which never varies."""
    lower: Floats
    """[S] lower bounds of a state."""
    upper: Floats
    quantities: Mapping[str, slice]
    """The parts of a state."""
    units: Mapping[str, str] = {}
    """Units of quantities, of "demand", of prices by part, of the objective, and of ν by law; none by default."""
    factors: Mapping[str, float] = {}
    """Factor that converts a quantity, or "demand", to its unit; 1 by default."""
    names: Mapping[str, Sequence[Any] | Ints] = {}
    """Names of the entries of a quantity, or of "demand", in the network's file; by default numbers from 1."""
    priced: Mapping[str, slice] = {}
    """The parts of a price vector, each with one price per node: K = N times the number of parts; none by default."""
    nodes: Sequence[Any] | Ints = ()
    """Names of the N nodes in the network's file, if they have prices."""
    assumptions: Sequence[str] = ()
    """Assumptions made about the network, as text."""
    precision: torch.dtype = torch.float64
    """Precision in which laws are computed during training."""

    def __init__(self, network: Network, program: Callable[[], Program], loads: Ints | None = None) -> None:
        self.name, self.fingerprint = network.name, network.fingerprint
        self.program = program
        self.model: Any = program()
        self.nominal, self.lower, self.upper = self.model.nominal, self.model.lower, self.model.upper
        self.quantities = self.model.quantities
        self.loads = numbered(np.flatnonzero(self.nominal), len(self.nominal)) if loads is None else loads

    @classmethod
    def recognises(cls, case: str) -> bool:
        """Whether a network's name or file is of this kind, if the user does not name a kind."""
        return False

    @classmethod
    @abstractmethod
    def open(cls, case: str) -> Self:
        """Open the problem of a network, by name or file."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Self:
        """Load from a folder that `save` wrote to."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything that `load` needs, so that the network's original file is no longer required."""

    solvers: Sequence[str] = ("ipopt",)
    """Names of the solvers that `solver` can return, the default first."""

    def solver(self, which: str | None = None) -> Solver:
        """A new solver for each caller: the default one, or one of `solvers`."""
        self._known(which)
        return self.program()

    def _known(self, which: str | None) -> None:
        if which not in (None, *self.solvers):
            raise ValueError(f"{self.name} is solved by {' or '.join(self.solvers)}, not by {which!r}")

    def fast(self, points: Points, tolerance: float) -> Repair | None:
        """The problem's own fast repair, whose answers satisfy every constraint to a tolerance; None if it has none."""
        return None

    @property
    def controls(self) -> Mapping[str, str]:
        """Quantities that repair changes, by their name in the violations table."""
        return {name: name for name in self.model.controls}

    @property
    def laws(self) -> Mapping[str, str]:
        """Names of the constraints, each with its number in the paper, if it has one."""
        return dict.fromkeys(self.model.laws, "")

    def objective(self, states: Tensor) -> Tensor:
        """[B] cost of states [B, S], in the unit of the objective; differentiable."""
        found: Tensor = self._objective(states)[:, 0]
        return found

    @cached_property
    def _objective(self) -> Compiled:
        model = self.model.model
        return Compiled(casadi.Function("objective", [model.x], [self.model.unit * model.cost]))

    def reported(self, states: Tensor) -> dict[str, Tensor]:
        """Quantities in the table of prediction errors, by name: [B, k] each."""
        return {name: states[:, part] for name, part in self.quantities.items()}

    def entry(self, index: int) -> tuple[str, str, float]:
        """Name of a demand entry, its display unit, and the factor that converts to that unit."""
        name = self._called("demand", len(self.nominal))[index]
        return f"demand at {name}", self.units.get("demand", ""), self.factors.get("demand", 1.0)

    def demands(self, table: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """[rows, D] from the columns of a user's table, named like entries; entries without a column are nominal."""
        names = [str(name) for name in self._called("demand", len(self.nominal))]
        place = {name: index for index, name in enumerate(names)}

        def key(column: str) -> int:
            if column not in place:
                near = difflib.get_close_matches(column, names, cutoff=0.0) or names[:3]
                raise ValueError(f"unknown column {column!r}; the closest demands of {self.name} are {', '.join(near)}")
            return place[column]

        found = np.tile(self.nominal, (rows, 1))
        for index, values in columns(table, rows, key).items():
            found[:, index] = values / self.entry(index)[2]
        return found

    def present(self, state: Floats) -> dict[str, dict[str, float]]:
        """A state [S] in display units: by quantity, then by name in the network's file."""
        shown = {name: state[part] * self.factors.get(name, 1.0) for name, part in self.quantities.items()}
        return {name: named(self._called(name, len(values)), values) for name, values in shown.items()}

    def _called(self, what: str, size: int) -> Sequence[Any] | Ints:
        """[size] names of the entries of a quantity, or of "demand"."""
        return self.names.get(what, range(1, size + 1))

    def prices(self, solution: Solution) -> Floats:
        """[K] prices from the multipliers of a solution, in the units of `units`."""
        return np.zeros(0)

    def multipliers(self, solution: Solution) -> dict[str, dict[str, float]]:
        """What each limit costs in a solution, by law, then by name; none by default."""
        return {}

    def draw(self, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
        """Plot a prediction [S] and, next to it, its repair: what is violated, and by how much."""
        raise NotImplementedError(f"problems of kind {self.kind!r} have no plot: define {type(self).__name__}.draw")

    def _laws(self, dtype: torch.dtype) -> Laws:
        """The laws in this precision."""
        return ProgramLaws(self.model, dtype)

    def name_prices(self, prices: Floats) -> dict[str, dict[str, float]]:
        """Prices [K] by part, then by node."""
        return {name: named(self.nodes, prices[part]) for name, part in self.priced.items()}

    def duals(self, solution: Solution) -> dict[str, dict[str, float]]:
        """Prices of a solution by part, then by node."""
        return self.name_prices(self.prices(solution))

    def physics(self, dtype: torch.dtype) -> Any:
        """The laws in this precision, built once."""
        held: dict[torch.dtype, Laws] = self.__dict__.setdefault("_made", {})
        if dtype not in held:
            held[dtype] = self._laws(dtype)
        return held[dtype]

    def constraints(
        self, read: Callable[[Any, Any], Tensor], dtype: torch.dtype, labels: bool = True
    ) -> list[Constraint]:
        """Every law as a constraint on predictions; read(predictions, batch) returns states [B, S].

        A batch has demands [B, D] as batch.demand and, for laws that use labels, states [B, S] as batch.states.
        """
        found: list[Constraint] = self.physics(dtype).constraints(read, labels)
        return found


def numbered(loads: Ints, size: int) -> Ints:
    """[size] index of each node's load, from 0; −1 for nodes without a load."""
    found = np.full(size, -1)
    found[loads] = np.arange(len(loads))
    return found


def named(names: Iterable[Any], values: Floats) -> dict[str, float]:
    """Values by name."""
    return dict(zip(map(str, names), values.tolist(), strict=True))


Key = TypeVar("Key", bound=Hashable)


def columns(table: Mapping[str, Sequence[Any]], rows: int, key: Callable[[str], Key]) -> dict[Key, Floats]:
    """The columns of a user's table, [rows] each, by the demand that `key` reads from a column's name."""
    found: dict[Key, Floats] = {}
    names: dict[Key, str] = {}
    for name, column in table.items():
        of = key(str(name).strip())
        if of in names:
            raise ValueError(f"columns {names[of]!r} and {name!r} are the same demand")
        if len(column) != rows:
            raise ValueError(f"column {name!r} has {len(column)} rows, not {rows}")
        names[of], found[of] = name, np.array([_number(value) for value in column])
        bad = np.flatnonzero(~np.isfinite(found[of]))
        if len(bad):
            raise ValueError(f"column {name!r}, row {bad[0] + 1}: {column[bad[0]]!r} is not a number")
    return found


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan

"""What it takes to learn an optimisation problem O(d): the face that power and gas networks, and any other, show."""

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
from .nlp import Solution
from .program import Program, Task

if TYPE_CHECKING:
    from .answering.points import Points
    from .answering.repair import Repair

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Solver(Protocol):
    """The ground truth: built once, asked for many demands."""

    @property
    def several(self) -> bool:
        """Whether there may be more than one local optimum."""

    def solve(self, demand: Floats | None = None, start: Solution | None = None, close: bool = False) -> Solution:
        """The optimal state for a demand [D], cold or warm-started; `close`: where that start is nearly optimal."""

    def violation(self, demand: Floats, state: Floats) -> float:
        """The largest violation of a constraint of the model at a state [S], in the model's own units."""

    def optima(self, demand: Floats) -> list[Solution]:
        """Local optima for a demand [D], the cheapest first; if there is none, how the search ended."""

    def project(self, demand: Floats, prediction: Floats) -> Solution:
        """The feasible state nearest to a prediction [S] in the controls; its objective is the squared distance."""

    def prepare(self, *tasks: Task) -> None:
        """Build now what these tasks would build when they are first done."""


class Network(Protocol):
    """What a problem is about."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with any number of it."""


class Problem(ABC):
    """A parametric optimisation problem O(d): D numbers of demand in, S numbers of state out.

    A subclass **must** give `kind`, `open`, `load` and `save`, and hand its network and its `Program` to `__init__`.
    From the program follow demand, state and bounds, the solver, cost and laws, also as functions of tensors with
    derivatives, and what repair moves.

    It **may** say more for people: `units`, `factors` and `names` (then `present`, `entry` and `demands` follow), or
    these three methods themselves; `reported`, `assumptions`; prices (`priced`, `nodes`, `prices`); a picture (`draw`).

    It may do better: laws of its own in torch (`_laws`, `laws`, `precision`), which train faster than the program's,
    and a repair of its own (`fast`, `sensitivities`).

    Args:
        network: what the problem is about; its name, and a fingerprint that changes with any number of it.
        program: makes a solver; called once for the problem itself, and once for each `solver()`.
        loads: [D] which load an entry of the demand belongs to, from 0; −1 where there is none, and the entry never
            varies. By default every entry that is not zero is a load of its own.
    """

    kind: str
    """What the command line calls such problems: the name of the entry point (`registry.py`)."""
    name: str
    fingerprint: str
    nominal: Floats
    """[D] the nominal demand."""
    loads: Ints
    """[D] which load an entry of the demand belongs to, from 0; −1 where there is none, and the entry never varies."""
    lower: Floats
    """[S] bounds of a state."""
    upper: Floats
    quantities: Mapping[str, slice]
    """The parts of a state."""
    units: Mapping[str, str] = {}
    """Of what `present` gives, of "demand", of prices by part, of the objective, and of ν by law; none by default."""
    factors: Mapping[str, float] = {}
    """By what to multiply a quantity, or "demand", to have it in its unit; 1 by default."""
    names: Mapping[str, Sequence[Any] | Ints] = {}
    """What the network's file calls the entries of a quantity, or of "demand"; by default their numbers, from 1."""
    priced: Mapping[str, slice] = {}
    """The parts of a vector of prices, each with one for every node: K = N times their number; by default none."""
    nodes: Sequence[Any] | Ints = ()
    """What the network's file calls its N nodes, where they have prices."""
    assumptions: Sequence[str] = ()
    """What had to be assumed about the network, in words."""
    precision: torch.dtype = torch.float64
    """In which laws are computed while training."""

    def __init__(self, network: Network, program: Callable[[], Program], loads: Ints | None = None) -> None:
        self.name, self.fingerprint = network.name, network.fingerprint
        self.program = program
        self.model: Any = program()
        self.nominal, self.lower, self.upper = self.model.nominal, self.model.lower, self.model.upper
        self.quantities = self.model.quantities
        self.loads = numbered(np.flatnonzero(self.nominal), len(self.nominal)) if loads is None else loads

    @classmethod
    def recognises(cls, case: str) -> bool:
        """Whether the name or file of a network is of this kind, where nobody says so."""
        return False

    @classmethod
    @abstractmethod
    def open(cls, case: str) -> Self:
        """The problem of a network, by its name or file."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Self:
        """From a folder that `save` wrote to."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what is needed to have the problem again, whatever becomes of the network's file."""

    def solver(self) -> Solver:
        """A solver of its own for each caller."""
        return self.program()

    def sensitivities(self, points: Points) -> dict[str, NDArray[Any]]:
        """What `fast` needs to know at points that were solved beforehand, [K, …] each."""
        return {}

    def fast(self, points: Points, tolerance: float) -> Repair | None:
        """The fastest repair there is whose answers keep all laws up to a tolerance, where it has one of its own."""
        return None

    @property
    def controls(self) -> Mapping[str, str]:
        """What repair moves: the name in the violations table, and the quantity."""
        return {name: name for name in self.model.controls}

    @property
    def laws(self) -> Mapping[str, str]:
        """The names of the constraints, and their number in the paper, if it has them."""
        return dict.fromkeys(self.model.laws, "")

    def objective(self, states: Tensor) -> Tensor:
        """[B] the cost of states [B, S], in the unit of the objective; with derivatives."""
        found: Tensor = self._objective(states)[:, 0]
        return found

    @cached_property
    def _objective(self) -> Compiled:
        model = self.model.model
        return Compiled(casadi.Function("objective", [model.x], [self.model.unit * model.cost]))

    def reported(self, states: Tensor) -> dict[str, Tensor]:
        """What the table of prediction errors reports, by its name there: [B, k] each."""
        return {name: states[:, part] for name, part in self.quantities.items()}

    def entry(self, index: int) -> tuple[str, str, float]:
        """What an entry of the demand is called, its unit for people, and by what to multiply to have it."""
        name = self._called("demand", len(self.nominal))[index]
        return f"demand at {name}", self.units.get("demand", ""), self.factors.get("demand", 1.0)

    def demands(self, table: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """[rows, D] from the columns of a user's table, named like entries; what is not in it is nominal."""
        names = [str(name) for name in self._called("demand", len(self.nominal))]
        place = {name: index for index, name in enumerate(names)}

        def key(column: str) -> int:
            if column not in place:
                near = difflib.get_close_matches(column, names, cutoff=0.0) or names[:3]
                raise ValueError(f"column {column!r} is no demand of {self.name}; near it are {', '.join(near)}")
            return place[column]

        found = np.tile(self.nominal, (rows, 1))
        for index, values in columns(table, rows, key).items():
            found[:, index] = values / self.entry(index)[2]
        return found

    def present(self, state: Floats) -> dict[str, dict[str, float]]:
        """A state [S] for people: by quantity, then by what the network's file calls a thing."""
        shown = {name: state[part] * self.factors.get(name, 1.0) for name, part in self.quantities.items()}
        return {name: named(self._called(name, len(values)), values) for name, values in shown.items()}

    def _called(self, what: str, size: int) -> Sequence[Any] | Ints:
        """[size] what the entries of a quantity, or of "demand", are called."""
        return self.names.get(what, range(1, size + 1))

    def prices(self, solution: Solution) -> Floats:
        """[K] what the multipliers of a solution mean, in the units of `units`."""
        return np.zeros(0)

    def draw(self, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
        """A picture of a prediction [S] and, beside it, of its repair: what is violated, and by how much."""
        raise NotImplementedError(f"a problem of the kind {self.kind!r} has no picture: {type(self).__name__}.draw")

    def _laws(self, dtype: torch.dtype) -> Laws:
        """The laws in this precision."""
        return ProgramLaws(self.model, dtype)

    def name_prices(self, prices: Floats) -> dict[str, dict[str, float]]:
        """Prices [K] for people: by part, then by node."""
        return {name: named(self.nodes, prices[part]) for name, part in self.priced.items()}

    def duals(self, solution: Solution) -> dict[str, dict[str, float]]:
        """What the multipliers of a solution mean, for people."""
        return self.name_prices(self.prices(solution))

    def physics(self, dtype: torch.dtype) -> Any:
        """The laws in this precision, made once."""
        held: dict[torch.dtype, Laws] = self.__dict__.setdefault("_made", {})
        if dtype not in held:
            held[dtype] = self._laws(dtype)
        return held[dtype]

    def constraints(
        self, read: Callable[[Any, Any], Tensor], dtype: torch.dtype, labels: bool = True
    ) -> list[Constraint]:
        """Every law as a constraint on predictions; read(predictions, batch) gives states [B, S].

        A batch has its demands [B, D] as batch.demand and, for laws that look at labels, states [B, S] as batch.states.
        """
        found: list[Constraint] = self.physics(dtype).constraints(read, labels)
        return found


def numbered(loads: Ints, size: int) -> Ints:
    """[size] for the nodes that have a load its number, from 0; −1 for the others."""
    found = np.full(size, -1)
    found[loads] = np.arange(len(loads))
    return found


def named(names: Iterable[Any], values: Floats) -> dict[str, float]:
    """Values by name."""
    return dict(zip(map(str, names), values.tolist(), strict=True))


Key = TypeVar("Key", bound=Hashable)


def columns(table: Mapping[str, Sequence[Any]], rows: int, key: Callable[[str], Key]) -> dict[Key, Floats]:
    """The columns of a user's table by what they are the demand of, as `key` reads it from a column's name: [rows]."""
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

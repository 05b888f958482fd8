"""What it takes to learn an optimisation problem O(d): the face that power and gas networks show to this package."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.constraint import Constraint
from .laws import Laws
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
    """A parametric optimisation problem: D numbers of demand in, S numbers of state out."""

    kind: str
    name: str
    fingerprint: str
    nominal: Floats
    """[D] the nominal demand."""
    loads: Ints
    """[D] which load an entry of the demand belongs to, from 0; −1 where there is none, and the entry never varies."""
    quantities: Mapping[str, slice]
    """The parts of a state."""
    nodes: Sequence[Any]
    """What the network's file calls its N nodes."""
    priced: Mapping[str, slice]
    """The parts of a vector of prices, each with one for every node: K = N times their number."""
    controls: Mapping[str, str]
    """What repair moves: the name in the violations table, and the quantity."""
    laws: Mapping[str, str]
    """The names of the constraints, and their number in the paper."""
    units: Mapping[str, str]
    """Of what `present` gives, of prices by part, of the objective, and of ν by law."""
    assumptions: Sequence[str] = ()
    """What had to be assumed about the network, in words."""
    precision: torch.dtype = torch.float32
    """In which laws are computed while training."""
    lower: Floats
    """[S] bounds of a state."""
    upper: Floats

    def __init__(self, network: Network, program: Callable[[], Program], loads: Ints) -> None:
        self.name, self.fingerprint, self.loads = network.name, network.fingerprint, loads
        self.program = program
        self.model: Any = program()
        self.nominal, self.lower, self.upper = self.model.nominal, self.model.lower, self.model.upper
        self.quantities = self.model.quantities

    def solver(self) -> Solver:
        """A solver of its own for each caller."""
        return self.program()

    def sensitivities(self, points: Points) -> dict[str, NDArray[Any]]:
        """What `fast` needs to know at points that were solved beforehand, [K, …] each."""
        return {}

    def fast(self, points: Points, tolerance: float) -> Repair | None:
        """The fastest repair there is whose answers keep all laws up to a tolerance, where it has one of its own."""
        return None

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what is needed to have the problem again."""

    @abstractmethod
    def objective(self, states: Tensor) -> Tensor:
        """[B] the cost of states [B, S]."""

    @abstractmethod
    def reported(self, states: Tensor) -> dict[str, Tensor]:
        """What the table of prediction errors reports, by its name there: [B, k] each."""

    @abstractmethod
    def entry(self, index: int) -> tuple[str, str, float]:
        """What an entry of the demand is called, its unit for people, and by what to multiply to have it."""

    @abstractmethod
    def demands(self, table: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """[rows, D] from the columns of a user's table; what is not in it is nominal."""

    @abstractmethod
    def present(self, state: Floats) -> dict[str, dict[str, float]]:
        """A state [S] for people: by quantity, then by the number the network's file gives a thing."""

    @abstractmethod
    def prices(self, solution: Solution) -> Floats:
        """[K] what the multipliers of a solution mean, in the units of `units`."""

    @abstractmethod
    def draw(self, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
        """A picture of a prediction [S] and, beside it, of its repair: what is violated, and by how much."""

    @abstractmethod
    def _laws(self, dtype: torch.dtype) -> Laws:
        """The laws in this precision."""

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

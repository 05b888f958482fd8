"""Optimal gas flow as a problem to learn: withdrawals of all junctions in, ratios, pressures and flows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from ..io.text import write_whole
from ..proxies.answering.points import Points
from ..proxies.answering.repair import Kept, Optimal, Repair
from ..proxies.nlp import Solution
from ..proxies.problem import Problem, columns, named
from .catalogue import NETWORKS, load
from .constraints import LAWS, GasLaws
from .document import to_json
from .network import BAR, Network
from .ogf import OGF

Floats = NDArray[np.float64]

FILE = "network.json"


class Gas(Problem):
    """One network. Demands are the withdrawals of all junctions, D = N; states [R, p, q].

    Flows are in units of the nominal demand altogether, pressures in units of the slack's.
    """

    kind = "gas"
    laws: Mapping[str, str] = LAWS
    # Weymouth's law turns the last digits of a pressure into the first ones of a flow.
    precision = torch.float64
    units: Mapping[str, str] = {
        "R": "",
        "p": "bar",
        "q": "kg/s",
        "prices": "kg/s per kg/s",
        "pressure_prices": "kg/s per bar",
        "objective": "kg/s",
        **dict.fromkeys(LAWS, "p.u."),
        "weymouth": "p.u.²",
    }

    def __init__(self, network: Network) -> None:
        super().__init__(network, lambda: OGF(network))
        self.network, self.assumptions = network, network.assumptions
        self.nodes, n = network.junction, network.junctions
        self.priced = {"prices": slice(0, n), "pressure_prices": slice(n, 2 * n)}

    def __repr__(self) -> str:
        return f"Gas({self.network})"

    @classmethod
    def recognises(cls, case: str) -> bool:
        """The names there are, and files of their formats; MATPOWER's have the same ending as those of MATGAS."""
        path = Path(case)
        if path.suffix.lower() == ".m":
            return path.is_file() and "mgc." in path.read_text(errors="replace")
        return case in NETWORKS or path.suffix.lower() in (".net", ".zip", ".json")

    @classmethod
    def open(cls, case: str) -> Self:
        """By name or path of a file."""
        return cls(load(case))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """From a folder that `save` wrote to."""
        return cls(load(folder / FILE))

    def save(self, folder: Path) -> None:
        """The network as JSON, whatever it was read from."""
        write_whole(folder / FILE, to_json(self.network))

    def fast(self, points: Points, tolerance: float) -> Repair:
        """The prediction where it keeps all laws; elsewhere the optimum, which takes less time than the projection."""
        return Kept(self.model, tolerance, Optimal(self.solver(), points))

    def _laws(self, dtype: torch.dtype) -> GasLaws:
        return GasLaws(self.network, dtype)

    def entry(self, index: int) -> tuple[str, str, float]:
        """The withdrawal at a junction."""
        return f"demand at junction {self.network.junction[index]}", "kg/s", self.network.base_flow

    def demands(self, table: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """[rows, N] from columns named like junctions, or with a q before: kg/s withdrawn there."""
        network = self.network

        def key(name: str) -> int:
            bare = name[1:].removeprefix("_") if name[:1] in ("q", "Q") else name
            return network.position(bare if name not in network.junction and bare in network.junction else name)

        found = np.tile(self.nominal, (rows, 1))
        for junction, flow in columns(table, rows, key).items():
            found[:, junction] = flow / network.base_flow
        return found

    def present(self, state: Floats) -> dict[str, dict[str, float]]:
        """Ratios by arc, pressures in bar by junction, flows in kg/s by arc."""
        network, part = self.network, self.quantities
        return {
            "R": named((network.arc[k] for k in network.compressor), state[part["R"]]),
            "p": named(network.junction, state[part["p"]] * network.base_pressure / BAR),
            "q": named(network.arc, state[part["q"]] * network.base_flow),
        }

    def prices(self, solution: Solution) -> Floats:
        """[2N] by junction: what the effort would rise by for a kg/s more of demand, then for a bar more of pressure.

        The latter is zero unless the pressure stands at a limit, and is for that limit.
        """
        return np.concatenate([self.model.prices(solution), self.model.pressure_prices(solution) * BAR])

    def draw(self, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
        """Flows, pressures and, in red, what is violated."""
        from .plot import draw

        draw(self.network, before, after, demand, path, title)

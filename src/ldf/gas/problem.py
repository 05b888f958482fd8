"""Optimal gas flow as a learning problem: from withdrawals at all junctions to ratios, pressures and flows."""

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
    """One network. Demands are the withdrawals at all junctions, D = N; states are [R, p, q].

    Flows are in units of the total nominal demand, pressures in units of the slack pressure.
    """

    kind = "gas"
    laws: Mapping[str, str] = LAWS
    # By Weymouth's law, the last digits of a pressure can decide the first digits of a flow.
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
        """Whether `case` is a built-in name or a gas network file; .m files must be MATGAS, not MATPOWER."""
        path = Path(case)
        if path.suffix.lower() == ".m":
            return path.is_file() and "mgc." in path.read_text(errors="replace")
        return case in NETWORKS or path.suffix.lower() in (".net", ".zip", ".json")

    @classmethod
    def open(cls, case: str) -> Self:
        """Open a network by name or file path."""
        return cls(load(case))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load from a folder written by `save`."""
        return cls(load(folder / FILE))

    def save(self, folder: Path) -> None:
        """Save the network as JSON, whatever format it was read from."""
        write_whole(folder / FILE, to_json(self.network))

    def fast(self, points: Points, tolerance: float) -> Repair:
        """The prediction if it satisfies all constraints, else the optimum, which is faster than the projection."""
        return Kept(self.model, tolerance, Optimal(self.solver(), points))

    def _laws(self, dtype: torch.dtype) -> GasLaws:
        return GasLaws(self.network, dtype)

    def entry(self, index: int) -> tuple[str, str, float]:
        """Name, unit and base value of the withdrawal at a junction."""
        return f"demand at junction {self.network.junction[index]}", "kg/s", self.network.base_flow

    def demands(self, table: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """[rows, N] from columns of withdrawals in kg/s, named after junctions, optionally prefixed with q."""
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
        """[2N] by junction: increase of the effort per additional kg/s of demand, then per additional bar of pressure.

        The latter is zero unless the pressure is at a limit, and is the price of that limit.
        """
        return np.concatenate([self.model.prices(solution), self.model.pressure_prices(solution) * BAR])

    def draw(self, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
        """Draw flows, pressures and, in red, violations."""
        from .plot import draw

        draw(self.network, before, after, demand, path, title)

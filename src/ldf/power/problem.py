"""AC optimal power flow as a problem to learn: demands of all buses in, dispatch and voltages out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..io.text import write_whole
from ..proxies.answering.points import Points
from ..proxies.answering.repair import Optimal, Repair
from ..proxies.nlp import Solution
from ..proxies.problem import Problem, columns, numbered
from ..proxies.source import NetworkError
from .acopf import ACOPF
from .case import Case, load
from .constraints import LAWS, PowerLaws
from .fast import FastDispatch
from .flow import PowerFlow

Floats = NDArray[np.float64]


class Power(Problem):
    """One network. Demands are [p^d, q^d] of all buses, D = 2N; states [p^g, q^g, v, θ]; per unit and radians."""

    kind = "power"
    laws: Mapping[str, str] = LAWS
    precision = torch.float32
    units: Mapping[str, str] = {
        "pg": "MW",
        "qg": "MVAr",
        "v": "p.u.",
        "theta": "°",
        "prices": "$/MWh",
        "reactive_prices": "$/MVArh",
        "objective": "$/h",
        **dict.fromkeys(LAWS, "p.u."),
        "angle": "rad",
        "thermal": "p.u.²",
    }

    def __init__(self, case: Case) -> None:
        super().__init__(case, lambda: ACOPF(case), np.tile(numbered(case.loads, case.buses), 2))
        self.case, self.nodes, n = case, case.bus.tolist(), case.buses
        self.names = {"pg": case.generator, "qg": case.generator, "v": case.bus, "theta": case.bus}
        self.factors = {"pg": case.base, "qg": case.base, "theta": 180 / np.pi}
        self.priced = {"prices": slice(0, n), "reactive_prices": slice(n, 2 * n)}

    def __repr__(self) -> str:
        return f"Power({self.case})"

    @classmethod
    def recognises(cls, case: str) -> bool:
        """Names as PGLib has them, and .m files, but those of MATGAS."""
        path = Path(case)
        if path.suffix.lower() == ".m":
            return not (path.is_file() and "mgc." in path.read_text(errors="replace"))
        return bool(re.fullmatch(r"\w+", case))

    @classmethod
    def open(cls, case: str) -> Self:
        """By PGLib name or path of a MATPOWER file."""
        return cls(load(case))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """From a folder that `save` wrote to."""
        found = list(folder.glob("*.m"))
        if len(found) != 1:
            raise NetworkError(f"{folder} should hold the network as one .m file, and holds {len(found)}")
        return cls(load(found[0]))

    def save(self, folder: Path) -> None:
        """The network's own file."""
        write_whole(folder / f"{self.name}.m", self.case.text)

    def sensitivities(self, points: Points) -> dict[str, NDArray[Any]]:
        """T = ∂[θ, v]/∂u, [K, 2N + 2, U]."""
        if len(self.case.reference) > 1:
            return {}
        v, theta = (points.states[:, self.quantities[name]] for name in ("v", "theta"))
        flow = PowerFlow(self.case)
        return {"moved": np.array([flow.sensitivity(at) for at in v * np.exp(1j * theta)], np.float32)}

    def fast(self, points: Points, tolerance: float) -> Repair:
        """Corrected power flows; with several reference buses, which a power flow does not have, the optimum."""
        optimal = Optimal(self.solver(), points)
        return FastDispatch(self.model, points, tolerance, optimal) if "moved" in points.extra else optimal

    def _laws(self, dtype: torch.dtype) -> PowerLaws:
        return PowerLaws(self.case, dtype)

    def reported(self, states: Tensor) -> dict[str, Tensor]:
        """p^g, v, θ, and the active flows of all arcs."""
        at = self.physics(states.dtype).states(states)
        return {"p": at.pg, "v": at.v, "theta": at.theta, "pf": at.p}

    def entry(self, index: int) -> tuple[str, str, float]:
        """Active, then reactive demand of a bus."""
        what, unit = ("active", "MW") if index < self.case.buses else ("reactive", "MVAr")
        return f"{what} demand at bus {self.case.bus[index % self.case.buses]}", unit, self.case.base

    def demands(self, table: Mapping[str, Sequence[Any]], rows: int) -> Floats:
        """[rows, 2N] from columns `p5` (or just `5`): MW at bus 5, and `q5`: MVAr there.

        A bus without a column keeps its nominal demand; where only p is given, q follows at the nominal power factor.
        """
        case, n = self.case, self.case.buses

        def key(name: str) -> tuple[str, int]:
            match = re.fullmatch(r"([pq]?)_?(\d+)", name.lower())
            if not match:
                raise ValueError(f"column {name!r} is no demand: columns are p5 (or 5) for MW and q5 for MVAr at bus 5")
            return match[1] or "p", case.position(int(match[2]))

        found = np.tile(self.nominal, (rows, 1))
        given = columns(table, rows, key)
        for (kind, bus), power in given.items():
            found[:, bus if kind == "p" else n + bus] = power / case.base
            if kind == "p" and ("q", bus) not in given and case.pd[bus]:
                found[:, n + bus] = power / case.base * case.qd[bus] / case.pd[bus]
        return found

    def prices(self, solution: Solution) -> Floats:
        """[2N] by bus: what one more MW would cost, then what one more MVAr would."""
        return np.concatenate(self.model.prices(solution))

    def draw(self, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
        """Loadings, voltages and, in red, what is violated."""
        from .plot import draw

        draw(self.case, before, after, demand, path, title)

"""AC optimal power flow as a learning problem: from demands at all buses to dispatch and voltages."""

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
from ..proxies.problem import Problem, columns, named, numbered
from ..proxies.source import NetworkError
from .acopf import ACOPF
from .case import Case, load
from .constraints import LAWS, PowerLaws
from .solver import InteriorACOPF

Floats = NDArray[np.float64]


class Power(Problem):
    """AC-OPF on one network. Demands are [p^d, q^d] of all buses, D = 2N; states [p^g, q^g, v, θ]; per unit, rad."""

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
        self.own: type[ACOPF] = InteriorACOPF if InteriorACOPF.serves(case) else ACOPF
        super().__init__(case, lambda: self.own(case), np.tile(numbered(case.loads, case.buses), 2))
        self.solvers = ("ldf", "ipopt") if self.own is InteriorACOPF else ("ipopt",)
        self.case, self.nodes, n = case, case.bus.tolist(), case.buses
        self.names = {"pg": case.generator, "qg": case.generator, "v": case.bus, "theta": case.bus}
        self.factors = {"pg": case.base, "qg": case.base, "theta": 180 / np.pi}
        self.priced = {"prices": slice(0, n), "reactive_prices": slice(n, 2 * n)}

    def __repr__(self) -> str:
        return f"Power({self.case})"

    @classmethod
    def recognises(cls, case: str) -> bool:
        """True for PGLib names and for .m files, except those of MATGAS."""
        path = Path(case)
        if path.suffix.lower() == ".m":
            return not (path.is_file() and "mgc." in path.read_text(errors="replace"))
        return bool(re.fullmatch(r"\w+", case))

    @classmethod
    def open(cls, case: str) -> Self:
        """Open a network by PGLib name or path to a MATPOWER file."""
        return cls(load(case))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the network from a folder written by `save`."""
        found = list(folder.glob("*.m"))
        if len(found) != 1:
            raise NetworkError(f"{folder} should contain the network as one .m file, but contains {len(found)}")
        return cls(load(found[0]))

    def save(self, folder: Path) -> None:
        """Write the network's MATPOWER file to a folder."""
        write_whole(folder / f"{self.name}.m", self.case.text)

    def solver(self, which: str | None = None) -> ACOPF:
        """The interior point of `interior.py`, with IPOPT as its fallback, or IPOPT alone."""
        self._known(which)
        return ACOPF(self.case) if which == "ipopt" else self.own(self.case)

    def fast(self, points: Points, tolerance: float) -> Repair:
        """The optimum, from the prediction, to the precision that a certificate needs."""
        return Optimal(self.solver(), points, tolerance)

    def _laws(self, dtype: torch.dtype) -> PowerLaws:
        return PowerLaws(self.case, dtype)

    def objective(self, states: Tensor) -> Tensor:
        """[B] cost of states [B, S] in $/h; differentiable."""
        p = states[:, self.quantities["pg"]]
        c2, c1, c0 = (torch.from_numpy(each).to(states) for each in self.case.cost.T.copy())
        found: Tensor = (p * (c2 * p + c1) + c0).sum(1)
        return found

    def reported(self, states: Tensor) -> dict[str, Tensor]:
        """p^g, v, θ, and the active flows of all arcs."""
        at = self.physics(states.dtype).states(states)
        return {"p": at.pg, "v": at.v, "theta": at.theta, "pf": at.p}

    def entry(self, index: int) -> tuple[str, str, float]:
        """Name, unit and factor of an entry: active demands by bus, then reactive ones."""
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
                raise ValueError(f"unknown column {name!r}: use p5 (or 5) for MW and q5 for MVAr at bus 5")
            return match[1] or "p", case.position(int(match[2]))

        found = np.tile(self.nominal, (rows, 1))
        given = columns(table, rows, key)
        for (kind, bus), power in given.items():
            found[:, bus if kind == "p" else n + bus] = power / case.base
            if kind == "p" and ("q", bus) not in given and case.pd[bus]:
                found[:, n + bus] = power / case.base * case.qd[bus] / case.pd[bus]
        return found

    def prices(self, solution: Solution) -> Floats:
        """[2N] nodal prices by bus: $/MWh, then $/MVArh."""
        return np.concatenate(self.model.prices(solution))

    def multipliers(self, solution: Solution) -> dict[str, dict[str, float]]:
        """What it saves to relax a limit by one unit: of an upper limit positive, of a lower one negative.

        voltage: $/h per p.u., by bus. active, reactive: $/MWh and $/MVArh, by generator. thermal: $/h per MVA of
        rating, by branch. angle: $/h per degree, by branch. Limits that do not exist are omitted.
        """
        case, n = self.case, self.case.buses
        bounds = {name: solution.bounds[part] for name, part in self.quantities.items()}
        rated, angled = np.isfinite(case.limit), np.isfinite(case.angle_min) | np.isfinite(case.angle_max)
        ends = 2 * n + np.array([0, rated.sum(), 2 * rated.sum()])
        loading = solution.multipliers[ends[0] : ends[1]] + solution.multipliers[ends[1] : ends[2]]
        return {
            "voltage": named(case.bus, bounds["v"]),
            "active": named(case.generator, bounds["pg"] / case.base),
            "reactive": named(case.generator, bounds["qg"] / case.base),
            # The solver's limit is (p² + q²)/s² ≤ 1 at either end.
            "thermal": named(case.branch[rated], 2 * loading / (case.limit[rated] * case.base)),
            "angle": named(case.branch[angled], solution.multipliers[ends[2] :] * np.pi / 180),
        }

    def draw(self, before: Floats, after: Floats | None, demand: Floats, path: Path, title: str = "") -> None:
        """Draw loadings, voltages and, in red, violations."""
        from .plot import draw

        draw(self.case, before, after, demand, path, title)

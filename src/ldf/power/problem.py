"""AC optimal power flow as a problem to learn: demands of all buses in, dispatch and voltages out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..constraint import Constraint
from ..proxies.nlp import Solution
from ..text import write_whole
from .acopf import ACOPF
from .case import Case, CaseError, load
from .constraints import LAWS, Laws

Floats = NDArray[np.float64]


class Power:
    """One network. Demands are [p^d, q^d] of all buses, D = 2N; states [p^g, q^g, v, θ]; per unit and radians."""

    kind = "power"
    controls: Mapping[str, str] = {"pg": "pg", "v": "v"}  # never changed
    laws: Mapping[str, str] = LAWS
    units: Mapping[str, str] = {
        "pg": "MW",
        "qg": "MVAr",
        "v": "p.u.",
        "theta": "°",
        "prices": "$/MWh",
        "reactive_prices": "$/MVArh",
    }

    def __init__(self, case: Case) -> None:
        self.case = case
        self.name, self.fingerprint = case.name, case.fingerprint
        self.model = ACOPF(case)
        self.nominal, self.lower, self.upper = self.model.nominal, self.model.lower, self.model.upper
        self.quantities: Mapping[str, slice] = self.model.quantities
        loads = np.full(case.buses, -1)
        loads[case.loads] = np.arange(len(case.loads))
        self.loads = np.concatenate([loads, loads])

    def __repr__(self) -> str:
        return f"Power({self.case})"

    @classmethod
    def open(cls, case: str) -> Power:
        """By PGLib name or path of a MATPOWER file."""
        return cls(load(case))

    @classmethod
    def load(cls, folder: Path) -> Power:
        """From a folder that `save` wrote to."""
        found = list(folder.glob("*.m"))
        if len(found) != 1:
            raise CaseError(f"{folder} should hold the network as one .m file, and holds {len(found)}")
        return cls(load(found[0]))

    def save(self, folder: Path) -> None:
        """The network's own file."""
        write_whole(folder / f"{self.name}.m", self.case.text)

    def solver(self) -> ACOPF:
        """AC-OPF in CasADi and IPOPT."""
        return ACOPF(self.case)

    def physics(self, dtype: torch.dtype) -> Laws:
        """The laws in this precision."""
        return self._single if dtype == torch.float32 else self._double

    @cached_property
    def _single(self) -> Laws:
        return Laws(self.case, torch.float32)

    @cached_property
    def _double(self) -> Laws:
        return Laws(self.case, torch.float64)

    def objective(self, states: Tensor) -> Tensor:
        """Σ c₂ p² + c₁ p + c₀ in $/h: [B]."""
        p = states[:, self.quantities["pg"]]
        c2, c1, c0 = torch.as_tensor(self.case.cost, dtype=states.dtype).unbind(1)
        return (c2 * p * p + c1 * p + c0).sum(1)

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
        found = np.tile(self.nominal, (rows, 1))
        given: dict[tuple[str, int], str] = {}
        for name in table:
            match = re.fullmatch(r"([pq]?)_?(\d+)", str(name).strip().lower())
            if not match:
                raise ValueError(f"column {name!r} is no demand: columns are p5 (or 5) for MW and q5 for MVAr at bus 5")
            key = match[1] or "p", case.position(int(match[2]))
            if key in given:
                raise ValueError(f"columns {given[key]!r} and {name!r} are the same demand")
            given[key] = name
        for (kind, bus), name in given.items():
            values = np.asarray(table[name], np.float64) / case.base
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise ValueError(f"column {name!r}, row {bad[0] + 1}: {table[name][bad[0]]!r} is not a number")
            found[:, bus if kind == "p" else n + bus] = values
            if kind == "p" and ("q", bus) not in given and case.pd[bus]:
                found[:, n + bus] = values * case.qd[bus] / case.pd[bus]
        return found

    def present(self, state: Floats) -> dict[str, dict[str, float]]:
        """By quantity, then by number of generator or bus, in the units of `units`."""
        case, part = self.case, self.quantities
        numbers = {"pg": case.generator, "qg": case.generator, "v": case.bus, "theta": case.bus}
        factors = {"pg": case.base, "qg": case.base, "v": 1.0, "theta": 180 / np.pi}
        return {
            name: dict(zip(map(str, ids), (state[part[name]] * factors[name]).tolist(), strict=True))
            for name, ids in numbers.items()
        }

    def duals(self, solution: Solution) -> dict[str, dict[str, float]]:
        """Nodal prices by bus: what one more MW, or MVAr, would cost."""
        active, reactive = self.model.prices(solution)
        buses = [str(number) for number in self.case.bus]
        return {
            "prices": dict(zip(buses, active.tolist(), strict=True)),
            "reactive_prices": dict(zip(buses, reactive.tolist(), strict=True)),
        }

    def constraints(
        self, read: Callable[[Any, Any], Tensor], dtype: torch.dtype, labels: bool = True
    ) -> list[Constraint]:
        """ν3 … ν8, or without labels ν3 … ν7."""
        return self.physics(dtype).constraints(read, labels)

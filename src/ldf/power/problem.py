"""AC optimal power flow as a problem to learn: demands of all buses in, dispatch and voltages out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..constraint import Constraint
from ..text import write_whole
from .acopf import ACOPF
from .case import Case, CaseError, load
from .constraints import LAWS, Laws


class Power:
    """One network. Demands are [p^d, q^d] of all buses, D = 2N; states [p^g, q^g, v, θ]; per unit and radians."""

    kind = "power"
    controls = {"pg": "pg", "v": "v"}
    laws = LAWS

    def __init__(self, case: Case) -> None:
        self.case = case
        self.name, self.fingerprint = case.name, case.fingerprint
        model = ACOPF(case)
        self.nominal, self.quantities, self.lower, self.upper = model.nominal, model.quantities, model.lower, model.upper
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

    def constraints(
        self, read: Callable[[Any, Any], Tensor], dtype: torch.dtype, labels: bool = True
    ) -> list[Constraint]:
        """ν3 … ν8, or without labels ν3 … ν7."""
        return self.physics(dtype).constraints(read, labels)

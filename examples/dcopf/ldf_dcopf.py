"""DC optimal power flow as a problem for `ldf`, in a separate package.

    minimise    Σ c₂ p² + c₁ p + c₀                              over generators
    subject to  p^l ≤ p ≤ p^u                                    for generators
                −s^u ≤ f ≤ s^u,  f = (θ_i − θ_j − φ) / xτ        for branches (i, j)
                θ^l ≤ θ_i − θ_j ≤ θ^u                            for branches (i, j)
                Σ_j f_ij − Σ_j f_ji + g^s + p^d − p = 0          for buses i
                θ = 0                                            at the reference

After `pip install examples/dcopf` every command of ldf accepts the kind "dc": `ldf solve dc case30_ieee`.
"""

# --8<-- [start:program]
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import casadi
import numpy as np

from ldf.power.case import Case, load
from ldf.proxies import Expressions, Law, Problem, Program, Solution, incidence


class DCOPF(Program):
    """Solver for one network: demands [N] at all buses, states [p, θ], in per unit and radians."""

    controls = ("pg",)
    tolerance = 1e-9

    def __init__(self, case: Case) -> None:
        self.case, g, n = case, case.generators, case.buses
        self.quantities = {"pg": slice(0, g), "theta": slice(g, g + n)}
        self.nominal = case.pd
        angle = np.full(n, np.inf)
        angle[case.reference] = 0.0
        self.lower, self.upper = np.concatenate([case.p_min, -angle]), np.concatenate([case.p_max, angle])

    def starts(self, demand: np.ndarray) -> list[np.ndarray]:
        """Zero, clipped to the bounds."""
        return [np.clip(np.zeros(len(self.lower)), self.lower, self.upper)]

    def expressions(self) -> Expressions:
        """The equations above; the limits of p and the reference angle are bounds."""
        case, n = self.case, self.case.buses
        x, d = casadi.SX.sym("x", len(self.lower)), casadi.SX.sym("d", n)
        p, theta = (x[part] for part in self.quantities.values())
        net = incidence(n, case.source) - incidence(n, case.target)
        across = net.T @ theta
        flow = (across - casadi.DM(case.shift)) / casadi.DM(case.x * case.tap)
        balance = net @ flow + casadi.DM(case.gs) + d - incidence(n, case.at) @ p
        c2, c1, c0 = map(casadi.DM, case.cost.T)
        return Expressions(
            x=x,
            d=d,
            cost=casadi.sum1(c2 * p**2 + c1 * p + c0),
            laws={
                "balance": Law(balance, np.zeros(n), np.zeros(n)),
                "flow": Law.limited(flow, -case.limit, case.limit),
                "angle": Law.limited(across, case.angle_min, case.angle_max),
            },
        )


# --8<-- [end:program]
# --8<-- [start:problem]
class DC(Problem):
    """One network, with demands in MW by bus."""

    kind = "dc"
    units: Mapping[str, str] = {"pg": "MW", "theta": "°", "demand": "MW", "prices": "$/MWh", "objective": "$/h"}

    def __init__(self, case: Case) -> None:
        super().__init__(case, lambda: DCOPF(case))
        self.case, self.nodes, self.priced = case, case.bus, {"prices": slice(0, case.buses)}
        self.names = {"pg": case.generator, "theta": case.bus, "demand": case.bus}
        self.factors = {"pg": case.base, "theta": 180 / np.pi, "demand": case.base}

    @classmethod
    def open(cls, case: str) -> Self:
        """Open a network by PGLib name or by path of a MATPOWER file."""
        return cls(load(case))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the network from a folder written by `save`."""
        return cls(load(next(folder.glob("*.m"))))

    def save(self, folder: Path) -> None:
        """Write the network's MATPOWER file."""
        (folder / f"{self.name}.m").write_text(self.case.text)

    def prices(self, solution: Solution) -> np.ndarray:
        """[N] $/MWh by bus: the multipliers of the balance, which is the first law."""
        return solution.multipliers[: self.case.buses] / self.case.base


# --8<-- [end:problem]

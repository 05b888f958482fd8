"""AC optimal power flow, the paper's Model 1, as a nonlinear program in polar voltages, built once for all demands.

    minimise    Σ c₂ p² + c₁ p + c₀                                                           (1)
    subject to  θ = 0 at the reference                                                        (2)
                v^l ≤ v ≤ v^u                                                                 (3)
                θ^l_ij ≤ θ_i − θ_j ≤ θ^u_ij                          for branches (i, j) ∈ E  (4)
                p^gl ≤ p^g ≤ p^gu,  q^gl ≤ q^g ≤ q^gu                                         (5)
                p_ij² + q_ij² ≤ (s^u_ij)²                            for arcs in E ∪ E^R      (6)
                p^g_i − p^d_i = Σ_j p_ij + g^s_i v_i²,  similarly q  for buses i ∈ N          (7)

with p_ij and q_ij by Ohm's law (8) in `ohm.py`: flows are expressions here, not variables.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import casadi
import numpy as np
from numpy.typing import NDArray

from ..proxies.nlp import Solution
from ..proxies.program import Expressions, Law, Program, incidence
from .case import Case
from .ohm import flows

Floats = NDArray[np.float64]


class ACOPF(Program):
    """AC-OPF solver of one network. Demands are parameters, [2N] per unit: active, then reactive, in bus order.

    A state is [p^g, q^g, v, θ], per unit and radians. The projection minimises the distance in p^g and v.
    """

    controls = ("pg", "v")

    def __init__(self, case: Case) -> None:
        self.case = case
        n, g = case.buses, case.generators
        self.quantities = {
            "pg": slice(0, g),
            "qg": slice(g, 2 * g),
            "v": slice(2 * g, 2 * g + n),
            "theta": slice(2 * g + n, 2 * g + 2 * n),
        }
        self.size = 2 * g + 2 * n
        self.nominal = np.concatenate([case.pd, case.qd])
        theta = np.full(n, np.inf)
        theta[case.reference] = 0.0
        self.lower = np.concatenate([case.p_min, case.q_min, case.v_min, -theta])
        self.upper = np.concatenate([case.p_max, case.q_max, case.v_max, theta])
        with np.errstate(invalid="ignore"):  # −∞ + ∞
            middle = (self.lower[: 2 * g] + self.upper[: 2 * g]) / 2
        self.flat = np.concatenate([np.where(np.isfinite(middle), middle, 0.0), np.ones(n), np.zeros(n)])

    def starts(self, demand: Floats) -> list[Floats]:
        """The flat start, the same for every demand."""
        return [self.flat]

    def expressions(self) -> Expressions:
        """Model 1 with flows eliminated."""
        return self._stated(casadi.SX)

    def vectorised(self) -> Expressions:
        """Model 1 in vector form: a check on 118 buses takes less than half the time."""
        return self._stated(casadi.MX)

    def _stated(self, symbols: Any) -> Expressions:
        """Model 1 in CasADi symbols of the given type, SX or MX."""
        case, n = self.case, self.case.buses
        x, d = symbols.sym("x", self.size), symbols.sym("d", 2 * n)
        pg, qg, v, theta = (x[part] for part in self.quantities.values())
        difference = theta[case.source] - theta[case.target]
        cos, sin = casadi.cos(difference), casadi.sin(difference)
        arcs = case.arcs
        v_source, v_target = v[arcs.source], v[arcs.target]
        numbers = SimpleNamespace(
            **{k: casadi.DM(getattr(arcs, k)) for k in ("g_self", "b_self", "g_mutual", "b_mutual")}
        )
        p, q = flows(numbers, v_source, v_target, casadi.vertcat(cos, cos), casadi.vertcat(sin, -sin))
        leaving, placed = incidence(n, arcs.source), incidence(n, case.at)
        balance_p = leaving @ p + casadi.DM(case.gs) * v**2 - (placed @ pg - d[:n])
        balance_q = leaving @ q - casadi.DM(case.bs) * v**2 - (placed @ qg - d[n:])
        c2, c1, c0 = case.cost.T
        limit = np.tile(case.limit, 2)
        zero = np.zeros(n)
        laws = {
            "voltage": Law.limited(v, case.v_min, case.v_max),
            "angle": Law.limited(difference, case.angle_min, case.angle_max),
            "active": Law.limited(pg, case.p_min, case.p_max),
            "reactive": Law.limited(qg, case.q_min, case.q_max),
            "thermal": Law.limited(p**2 + q**2, np.full(len(limit), -np.inf), limit**2),
            "balance_p": Law(balance_p, zero, zero),
            "balance_q": Law(balance_q, zero, zero),
        }
        # (6) is divided by the squared limit, so that all rows are of order one.
        thermal, unit = laws["thermal"], np.ones(len(laws["thermal"]))
        loading = Law(thermal.expression / casadi.DM(thermal.high), thermal.low, unit)
        return Expressions(
            x=x,
            d=d,
            cost=casadi.dot(casadi.DM(c2), pg**2) + casadi.dot(casadi.DM(c1), pg) + c0.sum(),
            laws=laws,
            g=Law.stacked([laws["balance_p"], laws["balance_q"], loading, laws["angle"]]),
            gauge=(self.quantities["theta"].start + case.reference).tolist(),
        )

    def prices(self, solution: Solution) -> tuple[Floats, Floats]:
        """Nodal prices in $/MWh and $/MVArh: the cost of one more MW, or MVAr, of demand at a bus."""
        n, base = self.case.buses, self.case.base
        return solution.multipliers[:n] / base, solution.multipliers[n : 2 * n] / base

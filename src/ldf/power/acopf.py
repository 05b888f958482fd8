"""AC optimal power flow, the paper's Model 1, as a nonlinear program in polar voltages, built once for all demands.

    minimise    Σ c₂ p² + c₁ p + c₀                                                           (1)
    subject to  θ = 0 at the reference                                                        (2)
                v^l ≤ v ≤ v^u                                                                 (3)
                θ^l_ij ≤ θ_i − θ_j ≤ θ^u_ij                          for branches (i, j) ∈ E  (4)
                p^gl ≤ p^g ≤ p^gu,  q^gl ≤ q^g ≤ q^gu                                         (5)
                p_ij² + q_ij² ≤ (s^u_ij)²                            for arcs in E ∪ E^R      (6)
                p^g_i − p^d_i = Σ_j p_ij + g^s_i v_i²,  and q alike  for buses i ∈ N          (7)

with p_ij and q_ij by Ohm's law (8) in `ohm.py`: flows are expressions here, not variables.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace

import casadi
import numpy as np
from numpy.typing import NDArray

from ..proxies.nlp import NLP, Solution
from .case import Case
from .ohm import flows

Floats = NDArray[np.float64]

SHARPNESS = 1e6
"""By which the projection's distance is multiplied: at an active bound the barrier keeps off by √(μ / 2·sharpness),
2e-8 instead of 2e-5."""


class ACOPF:
    """The solver of one network: demands are parameters, [2N] per unit, active then reactive, in the order of buses.

    A state is [p^g, q^g, v, θ], per unit and radians.
    """

    def __init__(self, case: Case, tolerance: float = 1e-8, iterations: int = 300) -> None:
        self.case = case
        self.settings = (tolerance, iterations)
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

    @cached_property
    def _model(self) -> SimpleNamespace:
        """Symbols and expressions that the optimum and the projection share."""
        case, n = self.case, self.case.buses
        x, d = casadi.SX.sym("x", self.size), casadi.SX.sym("d", 2 * n)
        pg, qg, v, theta = (x[part] for part in self.quantities.values())
        difference = theta[case.source] - theta[case.target]
        cos, sin = casadi.cos(difference), casadi.sin(difference)
        arcs = case.arcs
        v_source, v_target = v[arcs.source], v[arcs.target]
        numbers = SimpleNamespace(
            **{k: casadi.DM(getattr(arcs, k)) for k in ("g_self", "b_self", "g_mutual", "b_mutual")}
        )
        p, q = flows(numbers, v_source, v_target, casadi.vertcat(cos, cos), casadi.vertcat(sin, -sin))
        leaving, placed = _incidence(n, arcs.source), _incidence(n, case.at)
        balance_p = leaving @ p + casadi.DM(case.gs) * v**2 - (placed @ pg - d[:n])
        balance_q = leaving @ q - casadi.DM(case.bs) * v**2 - (placed @ qg - d[n:])
        c2, c1, c0 = case.cost.T
        rated = np.flatnonzero(np.isfinite(np.tile(case.limit, 2)))
        limit = np.tile(case.limit, 2)[rated]
        angled = np.flatnonzero(np.isfinite(case.angle_min) | np.isfinite(case.angle_max))
        # (6) in units of the limit, so that all rows have size one.
        thermal = (p[rated] ** 2 + q[rated] ** 2) / casadi.DM(limit**2)
        # Nothing out of one symbol is a row, [1, 0], to CasADi.
        spread = casadi.reshape(difference[angled], len(angled), 1)
        return SimpleNamespace(
            x=x,
            d=d,
            pg=pg,
            v=v,
            cost=casadi.dot(casadi.DM(c2), pg**2) + casadi.dot(casadi.DM(c1), pg) + c0.sum(),
            g=casadi.vertcat(balance_p, balance_q, thermal, spread),
            limits=(
                np.concatenate([np.zeros(2 * n), np.full(len(rated), -np.inf), case.angle_min[angled]]),
                np.concatenate([np.zeros(2 * n), np.ones(len(rated)), case.angle_max[angled]]),
            ),
        )

    @cached_property
    def _optimum(self) -> NLP:
        m = self._model
        return NLP(m.x, m.d, m.cost, m.g, (self.lower, self.upper), m.limits, *self.settings)

    @cached_property
    def _projection(self) -> NLP:
        m = self._model
        aim = casadi.SX.sym("aim", self.case.generators + self.case.buses)
        distance = SHARPNESS * casadi.sumsqr(casadi.vertcat(m.pg, m.v) - aim)
        return NLP(m.x, casadi.vertcat(m.d, aim), distance, m.g, (self.lower, self.upper), m.limits, *self.settings)

    def solve(self, demand: Floats | None = None, start: Solution | None = None) -> Solution:
        """The cheapest state for a demand, cold or warm-started at another demand's solution."""
        demand = self.nominal if demand is None else demand
        return self._optimum.solve(demand, self.flat if start is None else start)

    def project(self, demand: Floats, prediction: Floats) -> Solution:
        """The feasible state with the least ‖p^g − p̂^g‖² + ‖v − v̂‖²; its objective is that distance."""
        aim = np.concatenate([prediction[self.quantities["pg"]], prediction[self.quantities["v"]]])
        found = self._projection.solve(np.concatenate([demand, aim]), np.clip(prediction, self.lower, self.upper))
        return replace(found, objective=found.objective / SHARPNESS)

    def prices(self, solution: Solution) -> tuple[Floats, Floats]:
        """Nodal prices in $/MWh and $/MVArh: what one more MW, or MVAr, of demand at a bus would cost."""
        n, base = self.case.buses, self.case.base
        return solution.multipliers[:n] / base, solution.multipliers[n : 2 * n] / base


def _incidence(rows: int, at: NDArray[np.int64]) -> casadi.DM:
    """[rows, len(at)], one where column k belongs to row at[k]."""
    return casadi.DM.triplet(list(at), list(range(len(at))), casadi.DM.ones(len(at)), rows, len(at))

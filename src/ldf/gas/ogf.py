"""Optimal gas flow, the paper's Model 2, as a nonlinear program, built once for all demands.

    minimise    Σ μ⁻¹ |q_ij| (max{R_ij, 1}^(2(γ−1)/γ) − 1)             over compressors (i, j) ∈ C   (9)
    subject to  Σ_j q_ij − Σ_j q_ji = q_i                              for junctions i ∈ J           (10)
                p^l ≤ p ≤ p^u,  q^l ≤ q ≤ q^u                                                        (11)
                R^l ≤ R ≤ R^u                                                                        (12)
                p = p^T at the slack,  q_i = q^d_i                                                   (13)
                R_ij² p_i² − p_j² = W_ij q_ij |q_ij|                   for compressors               (14)
                p_i² − p_j² = W_ij q_ij |q_ij|                         for other arcs                (15)

q_i is the net injection at a junction: its share of the total demand minus its withdrawal. The balance at the slack
follows from the others and is omitted. On arcs without resistance, (14) and (15) are linear in p: R_ij p_i = p_j.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import casadi
import numpy as np
from numpy.typing import NDArray

from ..proxies.nlp import Solution
from ..proxies.program import Expressions, Law, Program, incidence
from .network import Network
from .physics import effort, loss, size

Floats = NDArray[np.float64]

TIE = 1e-5
"""Weight of Σ |R − 1| in the solver's objective: a compressor without flow costs nothing and should be idle."""


class OGF(Program):
    """Solver of one network: demands are parameters, [N] in units of the total nominal demand.

    A state is [R, p, q] with p in units of the slack pressure and q in units of the nominal demand. The projection is
    on R, which together with the demand determines the rest of the state.
    """

    controls = ("R",)
    several = True
    sharpness = 1e3  # with a larger value and this tolerance, steps become too small
    # The adaptive barrier needs a third of the iterations of IPOPT's default, and fails less often.
    options: Mapping[str, Any] = {"mu_strategy": "adaptive"}  # read-only

    tolerance = 1e-10
    iterations = 150

    def __init__(self, network: Network) -> None:
        self.network, self.unit = network, network.base_flow
        n, e, c = network.junctions, network.arcs, network.compressors
        self.quantities = {"R": slice(0, c), "p": slice(c, c + n), "q": slice(c + n, c + n + e)}
        self.nominal = network.demand / network.base_flow
        p_min, p_max = network.p_min / network.base_pressure, network.p_max / network.base_pressure
        p_min[network.slack] = p_max[network.slack] = 1.0
        self.lower = np.concatenate([network.ratio_min, p_min, network.flow_min / network.base_flow])
        self.upper = np.concatenate([network.ratio_max, p_max, network.flow_max / network.base_flow])
        self.others = np.delete(np.arange(n), network.slack)
        self._spread = self._spreading()

    def _spreading(self) -> Floats:
        """[E, N−1] flows that carry the injection at each junction to the slack, mainly over low resistance."""
        network = self.network
        balance = np.zeros((network.junctions, network.arcs))
        every = np.arange(network.arcs)
        balance[network.source, every] += 1
        balance[network.target, every] -= 1
        balance = balance[self.others]
        ease = 1 / np.maximum(network.scaled_resistance, 1e-2)
        spread: Floats = (ease[:, None] * balance.T) @ np.linalg.inv((balance * ease) @ balance.T)
        return spread

    def starts(self, demand: Floats) -> list[Floats]:
        """Balanced flows with uniform ratios and pressures."""
        enters = (self.network.share * demand.sum() - demand)[self.others]
        q = self._spread @ enters
        points = []
        for ratio, pressure in ((1.2, 1.2), (1.05, 1.2)):
            point = [np.full(self.network.compressors, ratio), np.full(self.network.junctions, pressure), q]
            points.append(np.clip(np.concatenate(point), self.lower, self.upper))
        return points

    def expressions(self) -> Expressions:
        """Model 2 as CasADi expressions."""
        network, n = self.network, self.network.junctions
        x, d = casadi.SX.sym("x", len(self.lower)), casadi.SX.sym("d", n)
        ratio, p, q = (x[part] for part in self.quantities.values())
        entering = casadi.DM(network.share) * casadi.sum1(d) - d
        net = incidence(n, network.source) - incidence(n, network.target)
        balance = Law(net @ q - entering, np.zeros(n), np.zeros(n))
        inlet = p[list(network.source)]
        compressors = list(network.compressor)
        if compressors:
            inlet[compressors] *= ratio
        outlet = p[list(network.target)]
        w = network.scaled_resistance
        free, pipes = np.flatnonzero(w == 0).tolist(), np.flatnonzero(w > 0).tolist()
        # In CasADi an empty selection from a single symbol has shape [1, 0], hence the reshapes.
        drop = casadi.reshape((inlet**2 - outlet**2 - loss(q, casadi.DM(w)))[pipes], len(pipes), 1)
        level = casadi.reshape((inlet - outlet)[free], len(free), 1)
        through = casadi.reshape(q[compressors], len(compressors), 1)

        def bounded(name: str) -> Law:
            part = self.quantities[name]
            return Law.limited(x[part], self.lower[part], self.upper[part])

        def spent(working: casadi.SX) -> casadi.SX:
            total: casadi.SX = casadi.sum1(effort(working, through, network.gamma, network.efficiency))
            return total

        cost = spent(casadi.fmax(ratio, 1))
        if (network.ratio_min >= 1).all():  # then max{R, 1} = R and |R − 1| = R − 1
            smooth, idle = spent(ratio), ratio - 1
        else:
            smooth, idle = cost, size(ratio - 1)
        zero, others = np.zeros(network.arcs), self.others.tolist()
        weymouth = Law(casadi.vertcat(drop, level), zero, zero)
        return Expressions(
            x=x,
            d=d,
            cost=casadi.densify(cost),
            laws={
                "balance": balance,
                "pressure": bounded("p"),
                "limits": bounded("q"),
                "ratio": bounded("R"),
                "weymouth": weymouth,
            },
            g=Law.stacked([Law(balance.expression[others], balance.low[others], balance.high[others]), weymouth]),
            stand_in=casadi.densify(smooth + TIE * casadi.sum1(idle)),
        )

    def prices(self, solution: Solution) -> Floats:
        """[N] increase of the effort, kg/s, per additional kg/s withdrawn at a junction."""
        network = self.network
        balance = np.zeros(network.junctions)
        balance[self.others] = solution.multipliers[: len(self.others)]
        prices: Floats = balance - network.share @ balance
        return prices

    def pressure_prices(self, solution: Solution) -> Floats:
        """[N] increase of the effort, kg/s per Pa, if the active pressure limit at a junction were higher.

        Zero where the pressure is between its limits; at the slack both limits are p^T.
        """
        prices: Floats = -solution.bounds[self.quantities["p"]] * self.unit / self.network.base_pressure
        return prices

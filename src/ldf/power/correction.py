"""Correction of a dispatch: a small quadratic program that brings it back within its limits.

With u = [p, q of generators, v of the slack], T = ∂[θ, v]/∂u and the cost's gradient c,

    minimise ½ δᵀ M δ + w cᵀ δ    subject to    u^l ≤ u + δ ≤ u^u,    y^l ≤ y(u) + ∂y/∂u δ ≤ y^u

where y holds bus voltages, p and q of the slack, and apparent power and angle differences of branches. Quantities far
from their limits are omitted. Generator limits are bounds on p and q, so they hold exactly; voltages are nearly linear
in p and q.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .case import Case
from .flow import Phasors, PowerFlow
from .ohm import slopes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COST = 3.5
"""w times the largest marginal cost of any generator."""
SIZES = {"p": 1.0, "q": 1.0, "v": 0.05}
"""Scales of the control steps, per unit."""
BEND = 300.0
"""Weight in M of squared changes of angle differences, rad², relative to scaled steps; not used if `near`."""
MARGIN = 0.2
"""Limits are tightened by this fraction of the tolerance, to allow for linearisation error."""
REACH = {True: 0.02, False: 0.03}
"""Limits of voltages and of the slack enter if they are closer than this, per unit; by `near`."""
LOADED = {True: 0.9, False: 0.7}
"""Branch limits enter if the flow exceeds this fraction of the limit; by `near`."""
TURNED = 0.1
"""Angle limits enter if the angle difference is within this distance of them, rad."""
NO_LIMIT = 1e30


class Correction:
    """Corrects dispatches of one network.

    Args:
        flow: the network's power flow.
        tolerance: largest allowed violation of a limit, per unit.
    """

    def __init__(self, flow: PowerFlow, tolerance: float) -> None:
        import daqp

        self.solve = daqp.solve
        case = self.case = flow.case
        self.flow, self.margin = flow, MARGIN * tolerance
        self.rated = np.flatnonzero(np.isfinite(np.tile(case.limit, 2)))
        self.limit = np.tile(case.limit, 2)[self.rated]
        arcs = case.arcs
        self.source, self.target = arcs.source[self.rated], arcs.target[self.rated]
        self.admittance = SimpleNamespace(g_self=arcs.g_self[self.rated], b_self=arcs.b_self[self.rated])
        own, mutual = arcs.g_self + 1j * arcs.b_self, arcs.g_mutual + 1j * arcs.b_mutual
        rows = np.tile(np.arange(len(self.rated)), 2)
        entries = np.concatenate([own[self.rated], mutual[self.rated]])
        places = rows, np.concatenate([self.source, self.target])
        self.currents = sparse.csr_matrix((entries, places), (len(self.rated), case.buses))
        """V [N] → I_ij of the arcs with a limit."""
        self.angled = np.flatnonzero(np.isfinite(case.angle_min) | np.isfinite(case.angle_max))
        self.first, self.second = case.source[self.angled], case.target[self.angled]
        self.angle_min, self.angle_max = case.angle_min[self.angled], case.angle_max[self.angled]
        q_min, q_max = by_bus(case, case.q_min), by_bus(case, case.q_max)
        n, u, free, reactive, slack, b = case.buses, flow.controls, flow.free, flow.reactive, flow.slack, flow.balancing
        self.active = slice(0, len(free))
        self.reactive = slice(len(free), u - 1)
        self.size = np.concatenate([np.full(len(free), SIZES["p"]), np.full(len(reactive), SIZES["q"]), [SIZES["v"]]])
        self.u_min = _finite(case.p_min[free], q_min[reactive], case.v_min[[slack]])
        self.u_max = _finite(case.p_max[free], q_max[reactive], case.v_max[[slack]])
        self.y_min = _finite(case.p_min[[b]], q_min[[slack]], case.v_min[flow.others])
        self.y_max = _finite(case.p_max[[b]], q_max[[slack]], case.v_max[flow.others])
        self.y_rows = np.concatenate([[2 * n, 2 * n + 1], n + flow.others])
        self.identity = np.eye(u)
        c2, c1, _ = case.cost.T
        large = np.where(np.isfinite(case.p_max), np.maximum(np.abs(case.p_max), np.abs(case.p_min)), 1.0)
        highest = float(np.abs(2 * c2 * large + c1).max())
        self.weight = COST / highest if highest else 0.0

    def __call__(
        self, p: Floats, q: Floats, phasors: Phasors, moved: Floats, *, near: bool, cheaper: bool
    ) -> Floats | None:
        """δ [U] for one dispatch, or None if the linearised limits are infeasible.

        Args:
            p: active power of generators, [G].
            q: reactive power of buses, [N].
            phasors: V, [N].
            moved: T, [2N + 2, U].
            near: violations are small: fewer limits enter, and M is the identity.
            cheaper: include the cost term w cᵀ δ.
        """
        case, flow, n = self.case, self.flow, self.case.buses
        v, b, slack = np.abs(phasors), flow.balancing, flow.slack
        now = np.concatenate([[p[b], q[slack]], v[flow.others]])
        low, high = self.y_min - now, self.y_max - now
        kept = np.flatnonzero((low > -REACH[near]) | (high < REACH[near]))
        rows, lows, highs = [moved[self.y_rows[kept]]], [low[kept]], [high[kept]]
        if len(self.rated):
            flows = self.flows(phasors)
            size = np.abs(flows)
            loaded = np.flatnonzero(size > LOADED[near] * self.limit)
            rows.append(self._gradients(loaded, flows[loaded], v, moved))
            lows.append(np.full(len(loaded), -NO_LIMIT))
            highs.append((self.limit - size)[loaded])
        if len(self.angled):
            across = self.across(phasors)
            low, high = self.angle_min - across, self.angle_max - across
            turned = np.flatnonzero((low > -TURNED) | (high < TURNED))
            branch = self.angled[turned]
            rows.append(moved[case.source[branch]] - moved[case.target[branch]])
            lows.append(np.maximum(low[turned], -NO_LIMIT))
            highs.append(np.minimum(high[turned], NO_LIMIT))
        low, high = np.concatenate(lows) + self.margin, np.concatenate(highs) - self.margin
        tight = low > high  # for example, equal limits: aim at the midpoint
        low[tight] = high[tight] = (low[tight] + high[tight]) / 2
        metric, slope = self.identity, np.zeros(flow.controls)
        if not near:
            spread = (moved[case.source] - moved[case.target]) * self.size
            metric = metric + BEND * (spread.T @ spread)
        if cheaper:
            c2, c1, _ = case.cost.T
            marginal = 2 * c2 * p + c1
            slope = marginal[b] * moved[2 * n]
            slope[self.active] += marginal[flow.free]
            slope *= self.weight * self.size
        u = self.controls(p, q, v)
        x, _, flag, _ = self.solve(
            metric,
            slope,
            np.concatenate(rows) * self.size,
            np.concatenate([(self.u_max - u) / self.size, high]),
            np.concatenate([(self.u_min - u) / self.size, low]),
        )
        return x * self.size if flag > 0 else None

    def controls(self, p: Floats, q: Floats, v: Floats) -> Floats:
        """Controls u [U] of one dispatch."""
        flow = self.flow
        return np.concatenate([p[flow.free], q[flow.reactive], v[[flow.slack]]])

    def makes_up(self, q: Floats) -> bool:
        """Whether the slack is within its reactive power limits, given q [N]."""
        slack = q[self.flow.slack]
        return bool(self.y_min[1] <= slack <= self.y_max[1])

    def clipped(self, p: Floats, q: Floats, phasors: Phasors) -> Floats:
        """δ [U] that only clips the controls to their bounds."""
        u = self.controls(p, q, np.abs(phasors))
        found: Floats = np.clip(u, self.u_min, self.u_max) - u
        return found

    def flows(self, phasors: Phasors) -> Phasors:
        """S_ij = V_i I_ij* of the arcs with a limit, [..., arcs]."""
        currents = (self.currents @ phasors.T).T
        found: Phasors = phasors[..., self.source] * currents.conj()
        return found

    def across(self, phasors: Phasors) -> Floats:
        """θ_i − θ_j of the branches with an angle limit, [..., branches]."""
        return np.angle(phasors[..., self.first] * phasors[..., self.second].conj())

    def _gradients(self, arcs: Ints, flows: Phasors, v: Floats, moved: Floats) -> Floats:
        """∂|S|/∂u of the given arcs, whose flows are S [arcs]: [arcs, U]."""
        n, i, j = self.case.buses, self.source[arcs], self.target[arcs]
        numbers = SimpleNamespace(g_self=self.admittance.g_self[arcs], b_self=self.admittance.b_self[arcs])
        p, q = flows.real, flows.imag
        of_p, of_q = slopes(numbers, p, q, v[i], v[j])
        size = np.abs(flows)
        turned, first, second = (((p * dp + q * dq) / size)[:, None] for dp, dq in zip(of_p, of_q, strict=True))
        found: Floats = turned * (moved[i] - moved[j]) + first * moved[n + i] + second * moved[n + j]
        return found


def by_bus(case: Case, values: Floats) -> Floats:
    """[N] sum of values [G] over the generators at each bus."""
    found = np.zeros(case.buses)
    np.add.at(found, case.at, values)
    return found


def _finite(*limits: Any) -> Floats:
    """Concatenate limits; infinite ones become ±1e30, because the QP solver accepts no infinities."""
    found: Floats = np.clip(np.concatenate(limits), -NO_LIMIT, NO_LIMIT)
    return found

"""A feasible dispatch near a predicted one, in milliseconds: power flow, and corrections by small quadratic programs.

1. The predicted p and v, cut to their bounds, and the power flow that follows from them: all balances hold.
2. If a limit is broken, one correction δ of the controls u = [p, q of generators, v of the slack], with limits in the
   state linearised by T = ∂[θ, v]/∂u, those far from binding left out, and the cost's gradient c to go the cheaper way:

       minimise ½ δᵀ M δ + w cᵀ δ    subject to    u^l ≤ u + δ ≤ u^u,    y^l ≤ y(u) + ∂y/∂u δ ≤ y^u.

   In p and q the limits of generators are bounds, and hold exactly; voltages are nearly linear in them.
3. A power flow from there, and the full check of all laws: that is the certificate. Else another correction.

While little is broken, T is that of the nearest of some points computed beforehand, and M = 1. Otherwise T is computed
where the network stands, all limits enter, and M also holds back angles across branches, which are what bends.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..proxies.points import Points
from ..proxies.repair import Repair, Repaired
from .case import Case
from .flow import Given, Phasors, PowerFlow
from .ohm import flows, slopes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LITTLE = 0.02
"""Up to this violation, per unit, the sensitivities of a point nearby will do."""
PASSES = 8
"""Corrections at most."""
PATIENCE = 2
"""Corrections with the sensitivities of a point nearby, at most."""
COST = 3.5
"""The weight of the cost in first corrections, in units of the dearest generator's; later ones only seek a way in."""
REACH = {True: 0.02, False: 0.03}
"""Limits of voltages and of the slack that enter a correction are those nearer than this, per unit; by whether little
is broken."""
LOADED = {True: 0.9, False: 0.7}
"""Branches that enter are those with more than this share of their limit."""
SIZES = {"p": 1.0, "q": 1.0, "v": 0.05}
"""Steps of the controls that count as one, per unit."""
BEND = 300.0
"""What a radian across a branch counts, squared, beside such steps."""
HALVINGS = 3
"""How often a step is halved whose power flow does not converge."""
TOGETHER = 8
"""From so many demands on, those near the same point share its factorisation."""


@dataclass
class Dispatch:
    """B dispatches in the making: active power [B, G], reactive power of buses [B, N], and V [B, N]."""

    demands: Floats
    p: Floats
    q: Floats
    v: Phasors

    def take(self, rows: Any) -> Dispatch:
        """Some of them."""
        return Dispatch(self.demands[rows], self.p[rows], self.q[rows], self.v[rows])

    def put(self, rows: Any, other: Dispatch) -> None:
        """Replace some of them."""
        self.p[rows], self.q[rows], self.v[rows] = other.p, other.q, other.v


class FastDispatch(Repair):
    """The repair of one network's dispatches.

    Args:
        flow: the network's power flow.
        points: solved beforehand, with their sensitivities T, [K, 2N + 2, U], as "moved".
        tolerance: the largest ν of any law that is certified, per unit or radians.
        fallback: what answers where corrections lead nowhere.
    """

    def __init__(self, flow: PowerFlow, points: Points, tolerance: float, fallback: Repair) -> None:
        self.flow, self.points, self.tolerance, self.fallback = flow, points, tolerance, fallback
        case = self.case = flow.case
        n, g = case.buses, case.generators
        self.parts = [slice(0, g), slice(g, 2 * g), slice(2 * g, 2 * g + n), slice(2 * g + n, 2 * g + 2 * n)]
        self.rated = np.flatnonzero(np.isfinite(np.tile(case.limit, 2)))
        self.limit = np.tile(case.limit, 2)[self.rated]
        arcs = case.arcs
        self.source, self.target = arcs.source[self.rated], arcs.target[self.rated]
        self.admittance = SimpleNamespace(
            **{name: getattr(arcs, name)[self.rated] for name in ("g_self", "b_self", "g_mutual", "b_mutual")}
        )
        self.angled = np.flatnonzero(np.isfinite(case.angle_min) | np.isfinite(case.angle_max))
        self.q_min, self.q_max = (_by_bus(case, limit) for limit in (case.q_min, case.q_max))
        span = case.q_max - case.q_min
        bounded = np.isfinite(span)
        least = np.where(bounded, case.q_min, 0.0)
        total = _by_bus(case, np.where(bounded, span, 0.0))[case.at]
        alike = _by_bus(case, np.ones(g))[case.at]
        whole = _by_bus(case, (~bounded).astype(float))[case.at] == 0
        self.share = np.where(whole & (total > 0), span / np.where(total > 0, total, 1.0), 1 / alike)
        """Of a bus's reactive power beyond its least, what each of its generators gives."""
        self.least, self.least_of_bus = least, _by_bus(case, least)[case.at]
        u, free, reactive, slack = flow.controls, flow.free, flow.reactive, flow.slack
        self.active = slice(0, len(free))
        self.reactive = slice(len(free), u - 1)
        self.size = np.concatenate([np.full(len(free), SIZES["p"]), np.full(len(reactive), SIZES["q"]), [SIZES["v"]]])
        self.u_min = np.concatenate([case.p_min[free], self.q_min[reactive], case.v_min[[slack]]])
        self.u_max = np.concatenate([case.p_max[free], self.q_max[reactive], case.v_max[[slack]]])
        b = flow.balancing
        self.y_min = np.concatenate([[case.p_min[b], self.q_min[slack]], case.v_min[flow.others]])
        self.y_max = np.concatenate([[case.p_max[b], self.q_max[slack]], case.v_max[flow.others]])
        self.y_rows = np.concatenate([[2 * n, 2 * n + 1], n + flow.others])
        c2, c1, _ = case.cost.T
        p_large = np.where(np.isfinite(case.p_max), np.maximum(np.abs(case.p_max), np.abs(case.p_min)), 1.0)
        dearest = float(np.abs(2 * c2 * p_large + c1).max())
        self.weight = COST / dearest if dearest else 0.0
        self.moved = points.extra["moved"]
        v, theta = points.states[:, self.parts[2]], points.states[:, self.parts[3]]
        self.v: Phasors = v * np.exp(1j * theta)
        """V of the points, [K, N]."""
        self.factors: dict[tuple[int, Given], Any] = {}

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """The dispatch for one demand [2N] from a predicted state [S]."""
        return self.many(demand[None], prediction[None])[0]

    def many(self, demands: Floats, predictions: Floats) -> list[Repaired]:
        """Dispatches for demands [B, 2N] from predicted states [B, S], side by side."""
        case, nearest = self.case, self.points.nearest(demands)
        sound = np.isfinite(predictions).all(1, keepdims=True)
        predictions = np.where(sound, predictions, self.points.states[nearest])
        p, _, v, theta = (predictions[:, part] for part in self.parts)
        at = Dispatch(
            demands,
            np.clip(p, case.p_min, case.p_max),
            np.zeros((len(demands), case.buses)),
            np.clip(v, case.v_min, case.v_max) * np.exp(1j * theta),
        )
        solved = self._settle(at, "voltages", nearest)
        found: list[Repaired | None] = [None] * len(demands)
        rows = np.flatnonzero(solved)
        for turn in range(PASSES + 1):
            if not len(rows):
                break
            here = at.take(rows)
            worst = self.check(here)
            largest = np.max(list(worst.values()), 0)
            states = self.states(here)
            for i in np.flatnonzero(largest <= self.tolerance):
                laws = {name: float(nu[i]) for name, nu in worst.items()}
                found[rows[i]] = Repaired(states[i], f"fast-{turn}" if turn else "flow", "optimal", laws)
            left = largest > self.tolerance
            rows, here = rows[left], here.take(left)
            if turn == PASSES or not len(rows):
                break
            moved = self._correct(here, nearest[rows], largest[left], turn)
            at.put(rows, here)
            rows = rows[moved]
        return [
            self.fallback(demand, prediction) if answer is None else answer
            for demand, prediction, answer in zip(demands, predictions, found, strict=True)
        ]

    def _settle(self, at: Dispatch, given: Given, nearest: Ints) -> NDArray[np.bool_]:
        """Solve the power flows and let the slack make up for what is missing; which were solved, [B]."""
        case, flow, n = self.case, self.flow, self.case.buses
        injections: Any = 1j * at.q - (at.demands[:, :n] + 1j * at.demands[:, n:])
        for_each = np.arange(len(at.p))[:, None]
        np.add.at(injections, (for_each, case.at), at.p)
        done = np.zeros(len(at.p), bool)
        if len(done) >= TOGETHER:
            for point in np.unique(nearest):
                members = np.flatnonzero(nearest == point)
                v, solved = flow.chord(injections[members], at.v[members], given, self._factors(int(point), given))
                at.v[members[solved]], done[members] = v[solved], solved
        for row in np.flatnonzero(~done):
            found = flow.newton(injections[row], at.v[row], given)
            if found is not None:
                at.v[row], done[row] = found, True
        injected = flow.injected(at.v) + at.demands[:, :n] + 1j * at.demands[:, n:]
        if given == "voltages":
            at.q[:, flow.generating] = injected.imag[:, flow.generating]
        b, slack = flow.balancing, flow.slack
        at.q[:, slack] = injected.imag[:, slack]
        at.p[:, b] += injected.real[:, slack] - at.p[:, case.at == slack].sum(1)
        return done

    def _factors(self, point: int, given: Given) -> Any:
        key = point, given
        if key not in self.factors:
            self.factors[key] = self.flow.factorise(self.v[point], given)
        return self.factors[key]

    def states(self, at: Dispatch) -> Floats:
        """[B, S]: reactive power of a bus shared among its generators, angles from the reference."""
        case = self.case
        qg = self.least + self.share * (at.q[:, case.at] - self.least_of_bus)
        theta = np.angle(at.v * at.v[:, case.reference].conj())
        return np.concatenate([at.p, qg, np.abs(at.v), theta], 1)

    def check(self, at: Dispatch) -> dict[str, Floats]:
        """The largest ν of every law, [B] each: all that `constraints.py` states, written for arrays."""
        case, n, v = self.case, self.case.buses, np.abs(at.v)
        p, q = self._flows(at.v, v)
        qg = self.least + self.share * (at.q[:, case.at] - self.least_of_bus)
        wrong = self.flow.injected(at.v) + at.demands[:, :n] + 1j * (at.demands[:, n:] - at.q)
        np.subtract.at(wrong, (np.arange(len(v))[:, None], case.at), at.p)
        found = {"voltage": _outside(v, case.v_min, case.v_max)}
        if len(self.angled):
            found["angle"] = _outside(self._spread(at.v), case.angle_min[self.angled], case.angle_max[self.angled])
        found["active"] = _outside(at.p, case.p_min, case.p_max)
        found["reactive"] = _outside(qg, case.q_min, case.q_max)
        if len(self.rated):
            found["thermal"] = _outside(p * p + q * q - self.limit**2, -np.inf, 0.0)
        return found | {"balance_p": np.abs(wrong.real).max(1), "balance_q": np.abs(wrong.imag).max(1)}

    def _flows(self, phasors: Phasors, v: Floats) -> tuple[Floats, Floats]:
        """p and q of the arcs with a limit, [B, arcs]."""
        source, target = self.source, self.target
        turned = phasors[..., source] * phasors[..., target].conj()
        product = v[..., source] * v[..., target]
        p, q = flows(self.admittance, v[..., source], v[..., target], turned.real / product, turned.imag / product)
        return p, q

    def _spread(self, v: Phasors) -> Floats:
        """θ_i − θ_j of the branches with a limit."""
        case = self.case
        return np.angle(v[..., case.source[self.angled]] * v[..., case.target[self.angled]].conj())

    def _correct(self, at: Dispatch, nearest: Ints, largest: Floats, turn: int) -> NDArray[np.bool_]:
        """Correct every dispatch once and solve its power flow; which have one, [B]."""
        n, flow = self.case.buses, self.flow
        steps, shifts = np.zeros((len(at.p), flow.controls)), np.zeros((len(at.p), 2 * n))
        feasible = np.zeros(len(at.p), bool)
        for row in range(len(at.p)):
            little = turn < PATIENCE and largest[row] <= LITTLE
            for near in (True, False) if little else (False,):
                moved = self.moved[nearest[row]] if near else flow.sensitivity(at.v[row])
                step = self._program(at, row, moved, turn, near)
                if step is not None:
                    steps[row], shifts[row], feasible[row] = step, moved[: 2 * n] @ step, True
                    break
        before = at.take(slice(None))
        rows, share = np.flatnonzero(feasible), 1.0
        for _ in range(HALVINGS):
            trial = before.take(rows)
            trial.p[:, flow.free] += share * steps[rows][:, self.active]
            trial.q[:, flow.reactive] += share * steps[rows][:, self.reactive]
            shift = share * shifts[rows]
            trial.v = (np.abs(trial.v) + shift[:, n:]) * np.exp(1j * (np.angle(trial.v) + shift[:, :n]))
            solved = self._settle(trial, "reactive", nearest[rows])
            at.put(rows[solved], trial.take(solved))
            rows, share = rows[~solved], share / 2
            if not len(rows):
                break
        feasible[rows] = False
        return feasible

    def _program(self, at: Dispatch, row: int, moved: Floats, turn: int, near: bool) -> Floats | None:
        """The correction δ [U], or None where the linearised limits leave no room."""
        import daqp

        case, flow, n = self.case, self.flow, self.case.buses
        p, q, phasors = at.p[row], at.q[row], at.v[row]
        v, b, slack = np.abs(phasors), flow.balancing, flow.slack
        margin = self.tolerance / 5
        now = np.concatenate([[p[b], q[slack]], v[flow.others]])
        low, high = self.y_min - now, self.y_max - now
        kept = (low > -REACH[near]) | (high < REACH[near])
        rows, lows, highs = [moved[self.y_rows[kept]]], [low[kept]], [high[kept]]
        if len(self.rated):
            pf, qf = self._flows(phasors, v)
            size = np.hypot(pf, qf)
            binding = np.flatnonzero(size > LOADED[near] * self.limit)
            rows.append(self._gradients(binding, pf, qf, size, v, moved))
            lows.append(np.full(len(binding), -np.inf))
            highs.append((self.limit - size)[binding])
        if len(self.angled):
            spread = self._spread(phasors)
            low, high = case.angle_min[self.angled] - spread, case.angle_max[self.angled] - spread
            close = np.flatnonzero((low > -0.1) | (high < 0.1))
            branch = self.angled[close]
            rows.append(moved[case.source[branch]] - moved[case.target[branch]])
            lows.append(low[close])
            highs.append(high[close])
        matrix = np.concatenate(rows).astype(np.float64) * self.size
        low, high = np.concatenate(lows) + margin, np.concatenate(highs) - margin
        tight = low > high  # as between equal limits: aim at the middle
        low[tight] = high[tight] = (low[tight] + high[tight]) / 2
        u = np.concatenate([p[flow.free], q[flow.reactive], v[[slack]]])
        metric = np.eye(flow.controls)
        if not near:
            across = (moved[case.source] - moved[case.target]) * self.size
            metric += BEND * across.T @ across
        slope = np.zeros(flow.controls)
        if turn == 0 or near:
            c2, c1, _ = case.cost.T
            marginal = 2 * c2 * p + c1
            slope = marginal[b] * moved[2 * n].astype(np.float64)
            slope[self.active] += marginal[flow.free]
            slope *= self.weight * self.size
        upper, lower = (self.u_max - u) / self.size, (self.u_min - u) / self.size
        x, _, flag, _ = daqp.solve(
            metric,
            slope,
            matrix,
            np.nan_to_num(np.concatenate([upper, high]), posinf=1e30),
            np.nan_to_num(np.concatenate([lower, low]), neginf=-1e30),
        )
        return x * self.size if flag > 0 else None

    def _gradients(self, arcs: Ints, p: Floats, q: Floats, size: Floats, v: Floats, moved: Floats) -> Floats:
        """∂|S|/∂u of some arcs, [arcs, U]."""
        n, i, j = self.case.buses, self.source[arcs], self.target[arcs]
        numbers = SimpleNamespace(g_self=self.admittance.g_self[arcs], b_self=self.admittance.b_self[arcs])
        of_p, of_q = slopes(numbers, p[arcs], q[arcs], v[i], v[j])
        turned, first, second = (
            ((p[arcs] * dp + q[arcs] * dq) / size[arcs])[:, None] for dp, dq in zip(of_p, of_q, strict=True)
        )
        found: Floats = turned * (moved[i] - moved[j]) + first * moved[n + i] + second * moved[n + j]
        return found


def _outside(values: Floats, low: Any, high: Any) -> Floats:
    """[B] by how much the worst of [B, k] is outside of its interval; 0 if none is."""
    if not values.shape[1]:
        return np.zeros(len(values))
    worst: Floats = np.maximum(low - values, values - high).max(1)
    return np.maximum(worst, 0.0)


def _by_bus(case: Case, values: Floats) -> Floats:
    """[N] the sum over the generators of each bus."""
    found = np.zeros(case.buses)
    np.add.at(found, case.at, values)
    return found

"""Fast repair: a feasible dispatch near a predicted one, in milliseconds, by power flows and small quadratic programs.

1. Clip the predicted p and v to their bounds and solve the power flow: all balances hold.
2. If a limit is violated, correct the controls once (`correction.py`) and solve the power flow again.
3. Check all constraints, and correct again if necessary. If corrections fail, use the fallback.

For small violations, sensitivities are those of the nearest warm-start point. For larger ones, they are computed at the
current state, more limits enter, and changes of angle differences, the main nonlinearity, are penalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..proxies.answering.points import Points
from ..proxies.answering.repair import Repair, Repaired
from .acopf import ACOPF
from .correction import Correction, by_bus
from .flow import Given, Phasors, PowerFlow

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PRECISION = 0.01
"""Largest mismatch of a solved power flow, as a fraction of the tolerance."""
SLIGHT = 1e-3
"""Up to this violation, per unit, a correction ignores the cost, because the step is small."""
LITTLE = 0.1
"""Up to this violation the sensitivities of the nearest point are used."""
STEADY = 0.02
"""Up to this violation the sensitivities of the previous correction are used again."""
PATIENCE = 2
"""Maximum number of corrections with the sensitivities of the nearest point."""
PASSES = 6
"""Maximum number of corrections."""
HALVINGS = 3
"""Maximum number of attempts at a step; after each power flow that does not converge the step is halved."""
BESIDE = 0.02
"""Demands within this relative distance of a point's demand use that point's factorisation."""


@dataclass
class Dispatch:
    """B dispatches under repair."""

    demanded: Phasors
    """p^d + jq^d, [B, N]."""
    p: Floats
    """Active power of generators, [B, G]."""
    q: Floats
    """Reactive power of buses, [B, N]."""
    v: Phasors
    """V, [B, N]."""
    injected: Phasors
    """Injections S at V, [B, N]."""
    nearest: Ints
    """[B] index of the nearest point."""
    beside: Bools
    """[B] whether that point is close enough for its factorisation to be used."""
    moved: NDArray[Any]
    """[B] T at an earlier state of the repair, or None."""
    largest: Floats
    """[B] largest violation before the last correction."""

    def __len__(self) -> int:
        return len(self.p)

    def take(self, rows: Any) -> Dispatch:
        """The dispatches in these rows."""
        return Dispatch(*[value[rows] for value in self.__dict__.values()])

    def only(self, kept: Bools) -> Dispatch:
        """The dispatches where `kept` [B] is true; not a copy if all are kept."""
        return self if kept.all() else self.take(kept)

    def put(self, rows: Any, other: Dispatch) -> None:
        """Replace the dispatches in these rows."""
        for name, value in other.__dict__.items():
            getattr(self, name)[rows] = value


class FastDispatch(Repair):
    """Fast repair of dispatches of one network.

    Args:
        program: AC-OPF of a network with one reference bus; its constraints decide whether a correction is necessary.
        points: warm-start points, with their sensitivities T, [K, 2N + 2, U], as "moved".
        tolerance: largest accepted ν of any constraint, per unit or radians.
        fallback: repair used where corrections fail.
    """

    def __init__(self, program: ACOPF, points: Points, tolerance: float, fallback: Repair) -> None:
        self.program, self.points, self.tolerance, self.fallback = program, points, tolerance, fallback
        case = self.case = program.case
        flow = self.flow = PowerFlow(case, PRECISION * tolerance)
        n, g = case.buses, case.generators
        self.correction = Correction(flow, tolerance)
        self.placed = np.zeros((g, n))
        """[G, N] one if the generator is at the bus, else zero."""
        self.placed[np.arange(g), case.at] = 1.0
        self.beside = np.flatnonzero(case.at == flow.slack)
        """Generators at the slack bus."""
        span = case.q_max - case.q_min
        bounded = np.isfinite(span)
        self.least = np.where(bounded, case.q_min, 0.0)
        self.least_of_bus = by_bus(case, self.least)[case.at]
        total = by_bus(case, np.where(bounded, span, 0.0))[case.at]
        alike = by_bus(case, np.ones(g))[case.at]
        whole = by_bus(case, (~bounded).astype(float))[case.at] == 0
        self.share = np.where(whole & (total > 0), span / np.where(total > 0, total, 1.0), 1 / alike)
        """Each generator's share of its bus's reactive power above the minimum."""
        self.moved = points.extra["moved"].astype(np.float64)
        v, theta = (points.states[:, program.quantities[name]] for name in ("v", "theta"))
        self.v: Phasors = v * np.exp(1j * theta)
        """V of the points, [K, N]."""
        self.near = BESIDE * np.linalg.norm(points.demands, axis=1)
        self.factors = {given: [flow.factorise(at, given) for at in self.v] for given in flow.unknown}
        """Factorised Jacobians at the points."""

    def __call__(self, demand: Floats, prediction: Floats) -> Repaired:
        """Repair a predicted state [S] for one demand [2N]."""
        return self.many(demand[None], prediction[None])[0]

    def prepare(self) -> None:
        """Compile the constraints, initialise Newton's method at a point, and prepare the fallback."""
        self.program.prepare("check")
        for given in self.flow.unknown:
            self.flow.newton(self.flow.injected(self.v[0]), self.v[0], given)
        self.fallback.prepare()

    def many(self, demands: Floats, predictions: Floats) -> list[Repaired]:
        """Repair predicted states [B, S] for demands [B, 2N] as one batch."""
        at = self.begin(demands, predictions)
        found: list[Repaired | None] = [None] * len(at)
        best, least = predictions.copy(), np.full(len(at), np.inf)
        rows = np.flatnonzero(self._settle(at, "voltages"))
        for turn in range(PASSES + 1):
            if not len(rows):
                break
            here = at if len(rows) == len(at) else at.take(rows)
            states = self.states(here)
            worst = self.program.violations(demands[rows], states)
            largest = np.max(list(worst.values()), 0)
            left = ~(largest <= self.tolerance)
            for i in (~left).nonzero()[0]:
                found[rows[i]] = Repaired(states[i], f"fast-{turn}" if turn else "flow", "corrected")
            if not left.any():
                break
            better = largest < least[rows]
            best[rows[better]], least[rows[better]] = states[better], largest[better]
            if turn == PASSES:
                break
            rows, here = rows[left], here.only(left)
            others = np.max([nu[left] for name, nu in worst.items() if name != "reactive"], 0)
            solved = self._correct(here, largest[left], others <= self.tolerance, turn)
            if here is not at:
                at.put(rows, here)
            rows = rows[solved]
        return [
            self.fallback(demand, state) if answer is None else answer
            for demand, state, answer in zip(demands, best, found, strict=True)
        ]

    def begin(self, demands: Floats, predictions: Floats) -> Dispatch:
        """Clip predictions to their bounds; a prediction that is not finite becomes the state of the nearest point."""
        case, points, count = self.case, self.points, len(demands)
        nearest, distance = points.nearest.measured(demands)
        sound = np.isfinite(predictions).all(1, keepdims=True)
        if not sound.all():
            predictions = np.where(sound, predictions, points.states[nearest])
        p, _, v, theta = (predictions[:, part] for part in self.program.quantities.values())
        n = case.buses
        return Dispatch(
            demanded=demands[:, :n] + 1j * demands[:, n:],
            p=np.minimum(np.maximum(p, case.p_min), case.p_max),  # np.clip takes four times as long on one row
            q=np.zeros((count, n)),
            v=np.minimum(np.maximum(v, case.v_min), case.v_max) * np.exp(1j * theta),
            injected=np.zeros((count, n), complex),
            nearest=nearest,
            beside=distance < self.near[nearest],
            moved=np.full(count, None),
            largest=np.full(count, np.inf),
        )

    def _settle(self, at: Dispatch, given: Given) -> Bools:
        """Solve the power flows, with the slack balancing each; return which converged, [B]."""
        flow = self.flow
        injections: Any = at.p @ self.placed + 1j * at.q - at.demanded
        done = np.zeros(len(at), bool)
        for point in set(at.nearest[at.beside].tolist()):
            members = np.flatnonzero(at.beside & (at.nearest == point))
            v, injected, solved = flow.chord(injections[members], at.v[members], given, self.factors[given][point])
            at.v[members[solved]], at.injected[members], done[members] = v[solved], injected, solved
        for row in np.flatnonzero(~done):
            found = flow.newton(injections[row], at.v[row], given)
            if found is not None:
                at.v[row], at.injected[row], done[row] = found, flow.injected(found), True
        generated = at.injected + at.demanded
        if given == "voltages":
            at.q[:, flow.generating] = generated.imag[:, flow.generating]
        at.q[:, flow.slack] = generated.imag[:, flow.slack]
        at.p[:, flow.balancing] += generated.real[:, flow.slack] - at.p[:, self.beside].sum(1)
        return done

    def states(self, at: Dispatch) -> Floats:
        """States [B, S]: reactive power of a bus shared among its generators, angles relative to the reference."""
        case = self.case
        qg = self.least + self.share * (at.q[:, case.at] - self.least_of_bus)
        theta = np.angle(at.v * at.v[:, case.reference].conj())
        return np.concatenate([at.p, qg, np.abs(at.v), theta], 1)

    def _correct(self, at: Dispatch, largest: Floats, reactive: Bools, turn: int) -> Bools:
        """Correct every dispatch once and solve its power flow; return which succeeded, [B].

        Args:
            largest: largest violation, [B].
            reactive: whether only limits of reactive power are violated, [B].
        """
        n, flow, correction = self.case.buses, self.flow, self.correction
        steps, shifts = np.zeros((len(at), flow.controls)), np.zeros((len(at), 2 * n))
        feasible = np.zeros(len(at), bool)
        for row in range(len(at)):
            now = at.p[row], at.q[row], at.v[row]
            moved, step = at.moved[row], None
            cheaper = bool(largest[row] > SLIGHT and turn < PATIENCE)
            if turn == 0 and reactive[row] and largest[row] <= SLIGHT and correction.makes_up(at.q[row]):
                # PV–PQ switching: a generator at its limit holds its reactive power, not its voltage.
                steps[row], feasible[row] = correction.clipped(*now), True
                continue
            if moved is None and turn < PATIENCE and largest[row] <= LITTLE:
                moved = self.moved[at.nearest[row]]
                step = correction(*now, moved, near=True, cheaper=cheaper)
            if step is None:
                # T is used again while violations are small and each correction halves them.
                if at.moved[row] is None or at.largest[row] > STEADY or largest[row] > 0.5 * at.largest[row]:
                    at.moved[row] = flow.sensitivity(at.v[row])
                moved = at.moved[row]
                step = correction(*now, moved, near=False, cheaper=cheaper and turn == 0)
            if step is not None:
                steps[row], shifts[row], feasible[row] = step, moved[: 2 * n] @ step, True
        at.largest[:] = largest
        rows, share, before = np.flatnonzero(feasible), 1.0, at.take(slice(None))
        for _ in range(HALVINGS):
            if not len(rows):
                break
            trial = before.take(rows)
            trial.p[:, flow.free] += share * steps[rows, correction.active]
            trial.q[:, flow.reactive] += share * steps[rows, correction.reactive]
            shift = share * shifts[rows]
            trial.v = (np.abs(trial.v) + shift[:, n:]) * np.exp(1j * (np.angle(trial.v) + shift[:, :n]))
            solved = self._settle(trial, "reactive")
            at.put(rows[solved], trial.only(solved))
            rows, share = rows[~solved], share / 2
        feasible[rows] = False
        return feasible

"""Power flow: the state that follows from a dispatch, by Newton's method, and how it moves with the dispatch.

One bus, the slack, makes up for what is missing. Elsewhere active injections are given, and at every bus either its
reactive injection or, at buses with generators, its voltage magnitude. With V = v e^{jθ} and S = V (Y V)*,

    ∂S_i/∂θ_k = −j V_i (Y_ik V_k)* + [i = k] j S_i,        ∂S_i/∂v_k = (V_i (Y_ik V_k)* + [i = k] S_i) / v_k.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import splu

from ..proxies.source import NetworkError
from .case import Case

Floats = NDArray[np.float64]
Phasors = NDArray[np.complex128]
Ints = NDArray[np.int64]
Given = Literal["voltages", "reactive"]
"""What is given at buses with generators: their voltage magnitudes, or their reactive injections."""

PRECISION = 1e-8
"""The largest mismatch of an injection, per unit, at which a power flow is solved, unless told otherwise."""
ITERATIONS = 12
"""Of Newton's method; from a prediction it takes two or three."""
CHORDS = 12
"""Of the chord method, with a factorisation at another point; from a near one it takes four to six."""


class PowerFlow:
    """Power flows of one network, and their sensitivities to the controls

    u = [p of the free generators (U_p), q of the generator buses but the slack (U_q), v of the slack].

    Args:
        case: with one reference bus.
        precision: the largest mismatch of an injection, per unit, at which a power flow is solved.
    """

    def __init__(self, case: Case, precision: float = PRECISION) -> None:
        if len(case.reference) != 1:
            raise NetworkError(f"{case.name} has {len(case.reference)} reference buses; a power flow needs one")
        self.case, self.precision = case, precision
        n, arcs, every = case.buses, case.arcs, np.arange(case.buses)
        entries = np.concatenate(
            [arcs.g_self + 1j * arcs.b_self, arcs.g_mutual + 1j * arcs.b_mutual, case.gs + 1j * case.bs]
        )
        rows, columns = (
            np.concatenate([arcs.source, arcs.source, every]),
            np.concatenate([arcs.source, arcs.target, every]),
        )
        self.admittance = sparse.coo_matrix((entries, (rows, columns)), (n, n)).tocsc()
        self.admittance.sort_indices()
        self.by_row = self.admittance.tocsr()
        self.generating = np.unique(case.at)
        """Buses with generators."""
        room = case.p_max - case.p_min
        here = np.flatnonzero(case.at == case.reference[0])
        # Where the reference has no generator with room to move, the roomiest one elsewhere makes up the balance.
        roomy = here if len(here) and room[here].max() > 0 else np.arange(case.generators)
        self.balancing = int(roomy[np.argmax(room[roomy])])
        """The generator that makes up for what is missing."""
        self.slack = int(case.at[self.balancing])
        self.others = every[every != self.slack]
        self.free = np.flatnonzero((room > 0) & (np.arange(case.generators) != self.balancing))
        """U_p: generators whose active power can be chosen."""
        self.reactive = self.generating[self.generating != self.slack]
        """U_q: buses whose reactive injection can be chosen."""
        self.controls = len(self.free) + len(self.reactive) + 1
        loads = np.setdiff1d(every, self.generating)
        self.unknown: dict[Given, Ints] = {
            "voltages": np.concatenate([self.others, n + loads]),
            "reactive": np.concatenate([self.others, n + self.others]),
        }
        """Positions in [θ, v] of what a power flow finds, and in [p, q] of the injections that are given."""
        # A complex number in memory is its real part, then its imaginary one. Injections are p + jq, steps ln v + jθ.
        buses, quantity = {k: u % n for k, u in self.unknown.items()}, {k: u // n for k, u in self.unknown.items()}
        self._picked = {k: 2 * buses[k] + quantity[k] for k in self.unknown}
        self._turned = {k: 2 * buses[k] + 1 - quantity[k] for k in self.unknown}
        self._types = {
            "voltages": (self.reactive.astype(np.int32), loads.astype(np.int32)),
            "reactive": (np.zeros(0, np.int32), self.others.astype(np.int32)),
        }
        self._weights = (every == self.slack).astype(float)
        self._slack = np.array([self.slack], np.int32)

    @cached_property
    def _newton(self) -> dict[str, Any]:
        from lightsim2grid.algorithm import NRSing_KLU

        return {given: NRSing_KLU() for given in self._types}  # each keeps the order of its factorisation

    def newton(self, injections: Phasors, start: Phasors, given: Given) -> Phasors | None:
        """V [N] for injections [N], from V [N]; None where Newton's method does not converge."""
        solver = self._newton[given]
        try:
            solved = solver.compute_pf(
                self.admittance,
                start,
                injections,
                self._slack,
                self._weights,
                *self._types[given],
                ITERATIONS,
                self.precision,
            )
        except RuntimeError:
            solved = False
        found = np.array(solver.get_V()) if solved else None
        # A mismatch that is no number passes for none.
        if found is None or not (np.isfinite(found).all() and np.isfinite(injections).all()):
            del self._newton  # what a failed factorisation left behind must not spoil the next
            return None
        return found

    def chord(
        self, injections: Phasors, start: Phasors, given: Given, factors: Any
    ) -> tuple[Phasors, Phasors, NDArray[np.bool_]]:
        """V [B, N] for injections [B, N] by Newton's method with one factorisation for all.

        Args:
            factors: of the Jacobian at a point near all of them, by `factorise`.

        Returns:
            V, what it injects, [B, N] each, and which converged, [B].
        """
        injected: Phasors = self.injected(start)
        before: Any = np.inf
        found, picked, turned = start, self._picked[given], self._turned[given]
        for _ in range(CHORDS):
            mismatch = (injected - injections).view(np.float64)[:, picked]
            size = np.abs(mismatch).max(1)
            done = size <= self.precision
            if not (~done & (size < 0.5 * before)).any():  # what hardly shrinks is left to `newton`
                break
            step = np.zeros_like(found)
            step.view(np.float64)[:, turned] = factors.solve(mismatch.T).T
            found, before = found * np.exp(-step), size
            injected = self.injected(found)
        return found, injected, done

    def injected(self, v: Phasors) -> Phasors:
        """S = V (Y V)* of [N] or [B, N]."""
        currents = self.by_row @ v if v.ndim == 1 else (self.by_row @ v.T).T
        injected: Phasors = np.multiply(v, currents.conj(), order="C")
        return injected

    @cached_property
    def _entries(self) -> tuple[Ints, Ints, Phasors, Ints]:
        """Rows, columns and values of Y's entries, and which of them are on the diagonal."""
        y = self.by_row.tocoo()
        return y.row, y.col, y.data, np.flatnonzero(y.row == y.col)

    @cached_property
    def _pattern(self) -> tuple[Ints, Any, dict[Given, tuple[Ints, Any]]]:
        """Where the Jacobian's entries go, by columns: their order, a matrix to fill, and both for its parts."""
        n = self.case.buses
        row, column, _, _ = self._entries
        rows = np.concatenate([row, row, row + n, row + n])
        columns = np.concatenate([column, column + n, column, column + n])
        numbered = sparse.csc_matrix((np.arange(1.0, len(rows) + 1), (rows, columns)), (2 * n, 2 * n))
        order = numbered.data.astype(np.int64) - 1
        places = sparse.csc_matrix((np.arange(1.0, len(rows) + 1), numbered.indices, numbered.indptr), (2 * n, 2 * n))
        parts: dict[Given, tuple[Ints, Any]] = {}
        for given, unknown in self.unknown.items():
            part = places[unknown][:, unknown].tocsc()
            parts[given] = part.data.astype(np.int64) - 1, part
        return order, places, parts

    def jacobian(self, v: Phasors) -> Any:
        """∂[p, q]/∂[θ, v] at V [N]: sparse, [2N, 2N]."""
        row, column, y, diagonal = self._entries
        order, places, _ = self._pattern
        own, terms = self.injected(v), v[row] * (y * v[column]).conj()
        by_angle, by_magnitude = -1j * terms, terms
        by_angle[diagonal] += 1j * own[row[diagonal]]
        by_magnitude[diagonal] += own[row[diagonal]]
        by_magnitude /= np.abs(v)[column]
        values = np.concatenate([by_angle.real, by_magnitude.real, by_angle.imag, by_magnitude.imag])
        return _filled(places, values[order])

    def _part(self, jacobian: Any, given: Given) -> Any:
        """The part of a Jacobian that a power flow solves with."""
        order, part = self._pattern[2][given]
        return _filled(part, jacobian.data[order])

    def factorise(self, v: Phasors, given: Given) -> Any:
        """The factorised Jacobian of a power flow at V [N], by θ and ln v: steps in them turn and stretch V."""
        scaled = self.jacobian(v)
        scaled.data *= np.repeat(np.concatenate([np.ones(len(v)), np.abs(v)]), np.diff(scaled.indptr))
        return splu(self._part(scaled, given))

    def sensitivity(self, v: Phasors) -> Floats:
        """T = ∂[θ, v, p of the slack, q of the slack]/∂u at V [N]: [2N + 2, U]."""
        case, n = self.case, self.case.buses
        jacobian, unknown = self.jacobian(v), self.unknown["reactive"]
        active, u = len(self.free), self.controls
        pushed = np.zeros((2 * n, u))
        pushed[case.at[self.free], np.arange(active)] = 1.0
        pushed[n + self.reactive, np.arange(active, u - 1)] = 1.0
        column = slice(*jacobian.indptr[n + self.slack : n + self.slack + 2])
        pushed[jacobian.indices[column], -1] = -jacobian.data[column]
        moved = np.zeros((2 * n + 2, u))
        moved[unknown] = splu(self._part(jacobian, "reactive")).solve(pushed[unknown])
        moved[n + self.slack, -1] = 1.0
        moved[2 * n :] = jacobian[[self.slack, n + self.slack]] @ moved[: 2 * n]
        # What other generators at the slack's bus give, the balancing one need not.
        moved[2 * n, np.flatnonzero(case.at[self.free] == self.slack)] -= 1.0
        return moved


def _filled(pattern: Any, values: Floats) -> Any:
    """A sparse matrix with the places of another; nothing is copied or checked."""
    found = sparse.csc_matrix(pattern.shape)
    found.data, found.indices, found.indptr = values, pattern.indices, pattern.indptr
    return found

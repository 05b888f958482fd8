"""Power flow: the state for a given dispatch, by Newton's method, and its sensitivities to the dispatch.

One bus, the slack, balances the network. At every other bus the active injection is given, and either the reactive
injection or, at buses with generators, the voltage magnitude. With V = v e^{jθ} and S = V (Y V)*,

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
"""Default for the largest injection mismatch of a solved power flow, per unit."""
ITERATIONS = 12
"""Maximum iterations of Newton's method; from a prediction it takes two or three."""
CHORDS = 12
"""Maximum iterations of the chord method; near the point of its factorisation it takes four to six."""


class PowerFlow:
    """Power flows of one network, and their sensitivities to the controls u.

    u = [p of the free generators (U_p), q of the generator buses except the slack (U_q), v of the slack].

    Args:
        case: a network with one reference bus.
        precision: largest injection mismatch of a solved power flow, per unit.
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
        # If no generator at the reference can change its output, the generator with the widest range balances.
        roomy = here if len(here) and room[here].max() > 0 else np.arange(case.generators)
        self.balancing = int(roomy[np.argmax(room[roomy])])
        """The generator that balances the network."""
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
        """Positions of the unknowns in [θ, v], and of the given injections in [p, q]."""
        # In memory a complex number is its real part, then its imaginary part. Injections are p + jq, steps ln v + jθ.
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

        return {given: NRSing_KLU() for given in self._types}  # each keeps the ordering of its factorisation

    def newton(self, injections: Phasors, start: Phasors, given: Given) -> Phasors | None:
        """V [N] for injections [N], starting from V [N]; None if Newton's method does not converge."""
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
        # A NaN mismatch is reported as converged.
        if found is None or not (np.isfinite(found).all() and np.isfinite(injections).all()):
            del self._newton  # discard the state that a failed factorisation left behind
            return None
        return found

    def chord(
        self, injections: Phasors, start: Phasors, given: Given, factors: Any
    ) -> tuple[Phasors, Phasors, NDArray[np.bool_]]:
        """V [B, N] for injections [B, N] by the chord method: Newton's, with one factorisation for all rows.

        Args:
            factors: factorised Jacobian at a point near all rows, from `factorise`.

        Returns:
            V and its injections, [B, N] each, and which rows converged, [B].
        """
        injected: Phasors = self.injected(start)
        before: Any = np.inf
        found, picked, turned = start, self._picked[given], self._turned[given]
        for _ in range(CHORDS):
            mismatch = (injected - injections).view(np.float64)[:, picked]
            size = np.abs(mismatch).max(1)
            done = size <= self.precision
            if not (~done & (size < 0.5 * before)).any():  # rows that converge slowly are left to `newton`
                break
            step = np.zeros_like(found)
            step.view(np.float64)[:, turned] = factors.solve(mismatch.T).T
            found, before = found * np.exp(-step), size
            injected = self.injected(found)
        return found, injected, done

    def injected(self, v: Phasors) -> Phasors:
        """S = V (Y V)* for V [N] or [B, N]."""
        currents = self.by_row @ v if v.ndim == 1 else (self.by_row @ v.T).T
        injected: Phasors = np.multiply(v, currents.conj(), order="C")
        return injected

    @cached_property
    def _entries(self) -> tuple[Ints, Ints, Phasors, Ints]:
        """Rows, columns and values of the entries of Y, and which of them are on the diagonal."""
        y = self.by_row.tocoo()
        return y.row, y.col, y.data, np.flatnonzero(y.row == y.col)

    @cached_property
    def _pattern(self) -> tuple[Ints, Any, dict[Given, tuple[Ints, Any]]]:
        """CSC pattern of the Jacobian: the order of its entries, a matrix to fill, and both for its submatrices."""
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
        """The submatrix of a Jacobian that a power flow uses."""
        order, part = self._pattern[2][given]
        return _filled(part, jacobian.data[order])

    def factorise(self, v: Phasors, given: Given) -> Any:
        """Factorise the Jacobian of a power flow at V [N] with respect to θ and ln v, which rotate and scale V."""
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
        # The output of other generators at the slack bus reduces that of the balancing one.
        moved[2 * n, np.flatnonzero(case.at[self.free] == self.slack)] -= 1.0
        return moved


def _filled(pattern: Any, values: Floats) -> Any:
    """A sparse matrix with the sparsity pattern of another; nothing is copied or checked."""
    found = sparse.csc_matrix(pattern.shape)
    found.data, found.indices, found.indptr = values, pattern.indices, pattern.indptr
    return found

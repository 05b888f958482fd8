"""Ohm's law for AC networks, stated once for CasADi symbols, torch tensors and numpy arrays.

A branch (i, j) is a π circuit: series admittance y = 1/(r + jx), line charging b, and an ideal transformer of
ratio τ and shift φ at its first end. With t = τ e^{jφ} the currents at its two ends are

    I_ij = (y + jb/2)/τ² V_i − y/t* V_j,        I_ji = (y + jb/2) V_j − y/t V_i.

With S = V I* an arc (i, j) of E ∪ E^R carries

    p_ij =  g_ii v_i² + v_i v_j (g_ij cos δ + b_ij sin δ)
    q_ij = −b_ii v_i² + v_i v_j (g_ij sin δ − b_ij cos δ),        δ = θ_i − θ_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Arcs:
    """Arcs E ∪ E^R: from first to second bus, then from second to first; admittances per unit, [2E] each."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    g_self: NDArray[np.float64]
    b_self: NDArray[np.float64]
    g_mutual: NDArray[np.float64]
    b_mutual: NDArray[np.float64]


def arcs_of(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    r: NDArray[np.float64],
    x: NDArray[np.float64],
    charging: NDArray[np.float64],
    tap: NDArray[np.float64],
    shift: NDArray[np.float64],
) -> Arcs:
    """The arcs of branches with impedance r + jx, charging susceptance, tap ratio and phase shift (radians)."""
    y = 1 / (r + 1j * x)
    t = tap * np.exp(1j * shift)
    own = y + 0.5j * charging
    self_admittance = np.concatenate([own / tap**2, own])
    mutual = np.concatenate([-y / t.conj(), -y / t])
    return Arcs(
        source=np.concatenate([source, target]),
        target=np.concatenate([target, source]),
        g_self=self_admittance.real,
        b_self=self_admittance.imag,
        g_mutual=mutual.real,
        b_mutual=mutual.imag,
    )


def flows(arcs: Any, v_source: Any, v_target: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    """(p, q) of every arc, elementwise. Ohm's law is written only here.

    Args:
        arcs: g_self, b_self, g_mutual, b_mutual, of a type that multiplies with the other arguments.
        v_source: v_i, one for each arc.
        v_target: v_j.
        cos: cos(θ_i − θ_j).
        sin: sin(θ_i − θ_j).
    """
    squared, product = v_source * v_source, v_source * v_target
    p = arcs.g_self * squared + product * (arcs.g_mutual * cos + arcs.b_mutual * sin)
    q = -arcs.b_self * squared + product * (arcs.g_mutual * sin - arcs.b_mutual * cos)
    return p, q


def slopes(
    arcs: Any, p: Any, q: Any, v_source: Any, v_target: Any
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Derivatives of p and q of every arc with respect to δ, v_i and v_j. With G = g_ii v_i² and B = b_ii v_i²:

    ∂p/∂δ = −(q + B),  v_i ∂p/∂v_i = p + G,  v_j ∂p/∂v_j = p − G,
    ∂q/∂δ =   p − G,   v_i ∂q/∂v_i = q − B,  v_j ∂q/∂v_j = q + B.
    """
    g, b = arcs.g_self * v_source * v_source, arcs.b_self * v_source * v_source
    return (
        (-(q + b), (p + g) / v_source, (p - g) / v_target),
        (p - g, (q - b) / v_source, (q + b) / v_target),
    )

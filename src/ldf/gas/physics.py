"""Weymouth's law and compressor effort, defined once for the solver (CasADi), NumPy and torch.

Flows are in units of the nominal demand, pressures in units of the slack pressure. |q| is smoothed to √(q² + ε), so
that derivatives exist where a flow changes sign; `flow` is the exact inverse of the smoothed `loss`.
"""

from __future__ import annotations

from typing import Any

SMOOTHING = 1e-10
"""ε, the smoothing of |q|."""


def size(q: Any) -> Any:
    """Smoothed |q|: √(q² + ε)."""
    return (q * q + SMOOTHING) ** 0.5


def loss(q: Any, resistance: Any) -> Any:
    """W q|q|: drop of the squared pressure along a pipe."""
    return resistance * q * size(q)


def flow(drop: Any, resistance: Any) -> Any:
    """The q with W q|q| = drop: flow through a pipe, from the squared pressures at its ends."""
    s = drop / resistance
    return s * (2 / (SMOOTHING + (SMOOTHING * SMOOTHING + 4 * s * s) ** 0.5)) ** 0.5


def effort(ratio: Any, q: Any, gamma: float, efficiency: float) -> Any:
    """Compressor effort μ⁻¹ |q| (max{R, 1}^(2(γ−1)/γ) − 1), for ratios of at least 1."""
    return size(q) * (ratio ** (2 * (gamma - 1) / gamma) - 1) / efficiency

"""Weymouth's law and the compressors' effort: stated once, for the solver (CasADi), for numpy and for torch.

Flows are in units of the nominal demand, pressures in units of the slack's. |q| is smoothed to √(q² + ε), so that
flows that turn around have derivatives; the flow that belongs to a pressure drop is the exact inverse of that.
"""

from __future__ import annotations

from typing import Any

SMOOTHING = 1e-10
"""ε."""


def size(q: Any) -> Any:
    """|q|, smoothed: √(q² + ε)."""
    return (q * q + SMOOTHING) ** 0.5


def loss(q: Any, resistance: Any) -> Any:
    """What a pipe takes of the squared pressure, W q|q|."""
    return resistance * q * size(q)


def flow(drop: Any, resistance: Any) -> Any:
    """The q with W q|q| = drop: the flow through a pipe from the squared pressures at its ends."""
    s = drop / resistance
    return s * (2 / (SMOOTHING + (SMOOTHING * SMOOTHING + 4 * s * s) ** 0.5)) ** 0.5


def effort(ratio: Any, q: Any, gamma: float, efficiency: float) -> Any:
    """What compressors cost, μ⁻¹ |q| (max{R, 1}^(2(γ−1)/γ) − 1), for ratios that are at least 1."""
    return size(q) * (ratio ** (2 * (gamma - 1) / gamma) - 1) / efficiency

"""The closed form of the Lagrangian: the decision rule that minimises error + Σ m σ, and the m that equalises rates.

With η(x) = P(y = 1 | x), q_c(x) = P(cell c | x), π_c = P(cell c) and σ = C · rates, the decision that minimises
P(ŷ ≠ y) + Σ m σ is

    ŷ = 1  iff  η(x) > ½ + ½ Σ_c t_c q_c(x)/π_c,    t = Cᵀ m.

For a network trained with binary cross-entropy the same boundary corresponds to μ = 2m: the minimum of BCE + Σ μ σ is
at ŷ = ½ where η = ½ + ¼ Σ t q/π, t = Cᵀ μ. So two unconstrained fits, of η and of q, give the decision rule for every
ε, and the multipliers that dual ascent would find.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from .rates import Floats, Ints, Rates

SOFTNESS = (0.1, 0.01, 0.002)
"""Successive smoothing widths of the decisions while m is optimised, on the scale of the margin 2η − 1."""
ROUNDS = 6
"""Maximum number of corrections of the modelled gap by the observed gap."""


@dataclass(frozen=True)
class Rule:
    """ŷ = 1 iff η > threshold(q)."""

    multipliers: Floats
    """m, [pairs]."""
    pull: Floats
    """t_c/π_c, [cells]."""

    def threshold(self, chances: Floats) -> Floats:
        """½ + ½ Σ t_c q_c/π_c. [n, cells] → [n]"""
        return 0.5 + 0.5 * np.asarray(chances @ self.pull)

    def decide(self, positive: Floats, chances: Floats) -> NDArray[np.bool_]:
        """Decisions, [n]."""
        return np.asarray(positive > self.threshold(chances))


def solve(rates: Rates, positive: Floats, chances: Floats, cells: Ints, slack: float = 0.0) -> Rule:
    """The rule with the smallest expected error whose observed gaps are at most the slack.

    m minimises the convex dual function mean (2η − 1 − Σ m w)₊ + ε Σ |m|, w = C q/π. If q is inaccurate, the observed
    gaps differ from the modelled ones; the bounds are shifted by the difference and m is optimised again.

    Args:
        positive: [n] η, predicted for held-out rows.
        chances: [n, cells] q of the same rows.
        cells: [n] the cell of each row; −1 for none.
        slack: ε.
    """
    shares = np.bincount(cells[cells >= 0], minlength=rates.count) / len(cells)
    if (shares == 0).any():
        raise ValueError("every group must have rows to compute thresholds")
    differences = rates.differences
    # Modelled shares instead of observed ones, so that the modelled rates are weighted means with weights q/Σ q.
    w = (chances / chances.mean(0)) @ differences.T
    gain = 2 * positive - 1
    pairs = len(differences)
    offset, multipliers = np.zeros(pairs), np.zeros(2 * pairs)
    best: tuple[float, float, Floats] | None = None
    for _ in range(ROUNDS):
        multipliers = _minimise(gain, w, slack - offset, slack + offset, multipliers)
        net = multipliers[:pairs] - multipliers[pairs:]
        decisions = gain - w @ net > 0
        observed = rates.gaps(decisions, cells)
        excess = float(np.maximum(np.abs(observed) - slack, 0).max())
        score = (excess, -float(gain[decisions].sum()))
        if best is None or score < best[:2]:
            best = (*score, net)
        if excess < 1e-4:
            break
        offset = observed - w.T @ decisions / len(w)
    assert best is not None
    return Rule(best[2], (differences.T @ best[2]) / chances.mean(0))


def _minimise(gain: Floats, w: Floats, above: Floats, below: Floats, start: Floats) -> Floats:
    """(m₊, m₋) ≥ 0 that minimises the dual function with the bound term m₊ · above + m₋ · below."""
    pairs = w.shape[1]
    bounds = np.concatenate([above, below])

    def dual(m: Floats, width: float) -> tuple[float, Floats]:
        margin = (gain - w @ (m[:pairs] - m[pairs:])) / width
        soft = np.logaddexp(0, margin)
        slope = w.T @ np.exp(margin - soft) / len(w)
        return width * float(soft.mean()) + float(m @ bounds), bounds - np.concatenate([slope, -slope])

    for width in SOFTNESS:
        found: Any = minimize(dual, start, args=(width,), jac=True, method="L-BFGS-B", bounds=[(0, 50)] * len(start))
        start = found.x
    return np.asarray(start)

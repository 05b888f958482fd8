"""The closed form of the Lagrangian: which decision minimises error + Σ m σ, and the m that keeps the rates together.

With η(x) = P(y = 1 | x), q_c(x) = P(cell c | x), π_c = P(cell c) and σ = C · rates, the decision that minimises
P(ŷ ≠ y) + Σ m σ is

    ŷ = 1  iff  η(x) > ½ + ½ Σ_c t_c q_c(x)/π_c,    t = Cᵀ m.

For a network under binary cross-entropy the same boundary belongs to μ = 2m: BCE + Σ μ σ is least at ŷ = ½ where
η = ½ + ¼ Σ t q/π. So two unconstrained fits, of η and of q, give every ε's decision rule, and the multipliers that
dual ascent would find.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from .rates import Floats, Ints, Rates

SOFTNESS = (0.1, 0.01, 0.002)
"""Widths, on the scale of η's margin 2η − 1, over which decisions are smoothed while m is sought, one after another."""
ROUNDS = 6
"""Of correcting the modelled gap by the observed one."""


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
        """The decisions, [n]."""
        return np.asarray(positive > self.threshold(chances))


def solve(rates: Rates, positive: Floats, chances: Floats, cells: Ints, slack: float = 0.0) -> Rule:
    """The rule of least expected error whose observed gaps are at most the slack.

    m minimises the convex dual function mean (2η − 1 − Σ m w)₊ + ε Σ |m|, w = C q/π. Where q is not quite right, the
    gaps that are observed differ from those it predicts; the difference is taken into the bounds, and m sought again.

    Args:
        positive: [n] η, of rows that it was not fitted on.
        chances: [n, cells] q, of the same rows.
        cells: [n] the cells these rows are in.
        slack: ε.
    """
    shares = np.bincount(cells[cells >= 0], minlength=rates.count) / len(cells)
    if (shares == 0).any():
        raise ValueError("every group must have rows to set thresholds by")
    differences = rates.differences
    # Shares as the model has them, so that the modelled rates are means: Σ q/Σ q.
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
    """(m₊, m₋) ≥ 0 of the dual function, bounds m₊ · above + m₋ · below."""
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

"""Score predictions: errors as the paper reports them, errors of prices, ν of every law, and the cost gap.

Also detects demands that are unlike those trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.batch import Batch
from ...core.certificate import certify
from ..data.dataset import Dataset
from ..problem import Floats, Problem
from .network import components


@dataclass(frozen=True)
class Scores:
    """Scores of one set of predictions."""

    errors: dict[str, float]
    """100·‖ŷ − y‖₁/‖y‖₁ by quantity."""
    violations: dict[str, float]
    """Mean ν by law, in the problem's own units."""
    worst: dict[str, float]
    """Largest ν by law."""
    gap: float
    """100·Σ|cost(ŷ) − cost(y)|/Σ|cost(y)|, a ratio of sums because a single optimum may cost nothing."""
    prices: dict[str, float] | None
    """100·‖π̂ − π‖₁/‖π‖₁ by part; None if no prices were predicted."""


def errors(problem: Problem, predicted: Tensor, true: Tensor) -> dict[str, float]:
    """100·‖ŷ − y‖₁/‖y‖₁ over all rows, by quantity as in the paper's tables."""
    return _shares(problem.reported(predicted), problem.reported(true))


def price_errors(problem: Problem, predicted: Tensor, true: Tensor) -> dict[str, float]:
    """100·‖π̂ − π‖₁/‖π‖₁ over all rows of prices [n, K], by part."""
    ours, theirs = ({name: prices[:, part] for name, part in problem.priced.items()} for prices in (predicted, true))
    return _shares(ours, theirs)


def _shares(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, float]:
    return {
        name: 100 * float((ours[name] - theirs[name]).abs().sum() / theirs[name].abs().sum().clamp_min(1e-300))
        for name in theirs
    }


def evaluate(predicted: Tensor, data: Dataset, prices: Tensor | None = None) -> Scores:
    """Compare predicted states [n, S], and prices [n, K] if given, with those of a data set."""
    problem = data.problem
    laws = problem.constraints(lambda states, _: states, torch.float64)
    rows = Batch(inputs=data.demand, demand=data.demand, states=data.state)
    found = certify(laws, predicted, rows).findings
    return Scores(
        errors=errors(problem, predicted, data.state),
        violations={finding.constraint: finding.mean for finding in found},
        worst={finding.constraint: finding.max for finding in found},
        gap=100 * float((problem.objective(predicted) - data.objective).abs().sum() / data.objective.abs().sum()),
        prices=price_errors(problem, prices, data.prices) if prices is not None and data.prices is not None else None,
    )


def reach(demand: Tensor) -> dict[str, Tensor]:
    """The range of training demands [n, D]: low and high [D], centre [D] and the directions [D, r] they span."""
    centre, span = components(demand, scaled=False)
    return {"low": demand.amin(0), "high": demand.amax(0), "centre": centre, "span": span.contiguous()}


def outside(problem: Problem, known: Mapping[str, Floats], given: Floats) -> list[str | None]:
    """For each of demands [B, D] how it differs from the training demands with this `reach`, as text, or None."""
    low, high, centre, span = (known[name] for name in ("low", "high", "centre", "span"))
    away = given - centre
    left = squared(away) - squared(product(away.astype(span.dtype), span))  # the directions have unit length
    apart = left > 1e-6 * np.maximum(squared(given), 1e-24)
    found: list[str | None] = [None] * len(given)
    if not apart.any() and (given >= low).all() and (given <= high).all():
        return found
    beyond = np.maximum(low - given, given - high) - (1e-6 + 0.01 * (high - low))
    for row in np.flatnonzero((beyond.max(1) > 0) | apart):
        worst = int(beyond[row].argmax())
        if beyond[row, worst] > 0:
            name, unit, factor = problem.entry(worst)
            found[row] = (
                f"{name} is {given[row, worst] * factor:.4g} {unit}, trained between "
                f"{low[worst] * factor:.4g} and {high[worst] * factor:.4g}"
            )
        else:
            share = float(np.sqrt(left[row] / squared(given)[row]))
            found[row] = f"load proportions differ from those of all training rows, by {100 * share:.2g} %"
    return found


def product(rows: Floats, matrix: Floats) -> Floats:
    """[B, n] @ [n, k] on as many threads as torch uses: those of NumPy's library would disturb the solver's."""
    if len(rows) == 1:
        return rows @ matrix
    found: Floats = (torch.from_numpy(rows) @ torch.from_numpy(matrix)).numpy()
    return found


def squared(rows: Floats) -> Floats:
    """Σ x² of each row, [B]."""
    found: Floats = np.add.reduce(rows * rows, 1)
    return found

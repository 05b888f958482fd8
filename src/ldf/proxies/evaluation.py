"""How good predicted states are: errors as the paper reports them, ν of every law, and what they would cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch
from ..certificate import certify
from .dataset import Dataset
from .problem import Problem


@dataclass(frozen=True)
class Scores:
    """Of one set of predictions."""

    errors: dict[str, float]
    """100·‖ŷ − y‖₁/‖y‖₁ by quantity."""
    violations: dict[str, float]
    """Mean ν by law, in the problem's own units."""
    worst: dict[str, float]
    """Largest ν by law."""
    gap: float
    """100·Σ|cost(ŷ) − cost(y)|/Σ|cost(y)|: an optimum may cost nothing."""


def errors(problem: Problem, predicted: Tensor, true: Tensor) -> dict[str, float]:
    """100·‖ŷ − y‖₁/‖y‖₁ over all rows, by quantity as in the paper's tables."""
    ours, theirs = problem.reported(predicted), problem.reported(true)
    return {
        name: 100 * float((ours[name] - theirs[name]).abs().sum() / theirs[name].abs().sum().clamp_min(1e-300))
        for name in theirs
    }


def evaluate(predicted: Tensor, data: Dataset) -> Scores:
    """Compare predicted states [n, S] with a data set's own."""
    problem = data.problem
    laws = problem.constraints(lambda states, _: states, torch.float64)
    rows = Batch(inputs=data.demand, demand=data.demand, states=data.state)
    found = certify(laws, predicted, rows).findings
    return Scores(
        errors=errors(problem, predicted, data.state),
        violations={finding.constraint: finding.mean for finding in found},
        worst={finding.constraint: finding.max for finding in found},
        gap=100 * float((problem.objective(predicted) - data.objective).abs().sum() / data.objective.abs().sum()),
    )

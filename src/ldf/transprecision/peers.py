"""Baselines: a constant, a linear model, and gradient boosting with monotone constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .dominance import Ints
from .precision import Floats
from .training import Sample

Predict = Callable[[Ints], Floats]


class Settings(NamedTuple):
    """Boosting hyperparameters."""

    leaves: int
    """Maximum number of leaves per tree."""
    rows: int
    """Minimum number of rows per leaf."""
    rate: float
    """Learning rate."""


GRID = (Settings(15, 3, 0.05), Settings(63, 2, 0.03))
"""Candidates; one is chosen on validation rows, together with the number of trees."""

ROUNDS = 2000
"""Maximum number of trees."""


def mean(sample: Sample) -> Predict:
    """Constant prediction: the mean of the targets."""
    level = float(sample.targets.mean())
    return lambda configurations: np.full(len(configurations), level)


def linear(sample: Sample) -> Predict:
    """Least squares on the widths."""

    def columns(configurations: Ints) -> Floats:
        return np.column_stack([configurations, np.ones(len(configurations))]).astype(np.float64)

    weights = np.linalg.lstsq(columns(sample.configurations), sample.targets, rcond=None)[0]
    return lambda configurations: np.asarray(columns(configurations) @ weights)


def lightgbm(sample: Sample, seed: int = 0) -> Predict:
    """LightGBM with monotone constraints, method "advanced"; refitted on all rows with the chosen settings."""
    import lightgbm as package

    def fit(settings: Settings, rows: Sample, trees: int, held: Sample | None = None) -> Any:
        options = {
            "num_leaves": settings.leaves,
            "min_data_in_leaf": settings.rows,
            "learning_rate": settings.rate,
            "min_data_in_bin": 1,
            "monotone_constraints": [1] * rows.configurations.shape[1],
            "monotone_constraints_method": "advanced",
            "objective": "l2",
            "metric": "l1",
            "seed": seed,
            "num_threads": 1,
            "verbosity": -1,
        }
        given = package.Dataset(rows.configurations, rows.targets)
        if held is None:
            return package.train(options, given, trees)
        check = package.Dataset(held.configurations, held.targets, reference=given)
        stop = package.early_stopping(50, verbose=False)
        return package.train(options, given, trees, valid_sets=[check], callbacks=[stop])

    kept, held = _split(sample, seed)
    found = [(settings, fit(settings, kept, ROUNDS, held)) for settings in GRID]
    settings, best = min(found, key=lambda one: float(one[1].best_score["valid_0"]["l1"]))
    final = fit(settings, sample, best.best_iteration)
    return lambda configurations: np.asarray(final.predict(configurations))


def scikit_learn(sample: Sample, seed: int = 0) -> Predict:
    """scikit-learn's histogram boosting with monotone constraints; refitted on all rows with the chosen settings."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def fit(settings: Settings, rows: Sample, trees: int) -> HistGradientBoostingRegressor:
        model = HistGradientBoostingRegressor(
            max_iter=trees,
            max_leaf_nodes=settings.leaves,
            min_samples_leaf=settings.rows,
            learning_rate=settings.rate,
            monotonic_cst=[1] * rows.configurations.shape[1],
            early_stopping=False,
            random_state=seed,
        )
        return model.fit(rows.configurations, rows.targets)

    kept, held = _split(sample, seed)
    found = []
    for settings in GRID:
        stages = fit(settings, kept, ROUNDS // 5).staged_predict(held.configurations)
        losses = [float(np.abs(stage - held.targets).mean()) for stage in stages]
        found.append((min(losses), settings, int(np.argmin(losses)) + 1))
    _, settings, trees = min(found)
    final = fit(settings, sample, trees)
    return lambda configurations: np.asarray(final.predict(configurations))


def _split(sample: Sample, seed: int) -> tuple[Sample, Sample]:
    """Split into four fifths for fitting and one fifth for validation."""
    order = np.random.default_rng(seed).permutation(len(sample.targets))
    held, kept = np.split(order, [max(1, len(order) // 5)])
    return (
        Sample(sample.configurations[kept], sample.targets[kept]),
        Sample(sample.configurations[held], sample.targets[held]),
    )

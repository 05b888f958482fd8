"""Fairness problems with a known distribution: exact probabilities for `synthetic`, and problems with more groups.

Also both classifiers with settings that train quickly.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import norm

from ldf.fairness import FairBoostingClassifier, FairClassifier
from ldf.fairness.datasets import synthetic
from ldf.fairness.rates import Rates

CONSTRAINTS = ("demographic parity", "equal opportunity", "equalised odds")
FREE_GAP = norm.cdf(-0.5) - norm.cdf(0.5)
"""Gap b − a of the most accurate classifier on `synthetic`."""


class Known(NamedTuple):
    """Rows with their exact probabilities η = P(y = 1 | x) and P(group | x)."""

    positive: np.ndarray
    of_groups: np.ndarray
    labels: np.ndarray
    groups: np.ndarray


def known(rows: int = 2000, seed: int = 0) -> Known:
    """`synthetic` with exact posterior probabilities."""
    data = synthetic(rows, seed=seed)
    x1, blue = data.features["x1"].to_numpy(), (data.features["colour"] == "blue").to_numpy()
    a = 0.7 * norm.pdf(x1, 0.5) * np.where(blue, 0.2, 0.8)
    b = 0.3 * norm.pdf(x1, -0.5) * np.where(blue, 0.8, 0.2)
    chances = np.stack([a, b], 1) / (a + b)[:, None]
    return Known(norm.cdf(x1 / 0.5), chances, data.labels, (data.groups == "b").astype(np.int64))


def several(rows: int = 3000, centres: Sequence[float] = (0.6, 0.0, -0.6), seed: int = 0) -> Known:
    """One group per centre: x ~ N(centre, 1), P(y = 1 | x) = Φ(2x)."""
    random = np.random.default_rng(seed)
    groups = random.integers(0, len(centres), rows)
    x = random.standard_normal(rows) + np.array(centres)[groups]
    density = np.stack([norm.pdf(x, centre) for centre in centres], 1)
    labels = (x + 0.5 * random.standard_normal(rows) > 0).astype(np.int64)
    return Known(norm.cdf(2 * x), density / density.sum(1, keepdims=True), labels, groups)


def rates_of(constraint: str, groups: int) -> Rates:
    return Rates(constraint, tuple("abcdef"[:groups]))


def cell_rows(constraint: str, groups: np.ndarray, labels: np.ndarray, count: int) -> list[np.ndarray]:
    """Rows that each rate is computed from, events outermost."""
    events = {
        "demographic parity": [np.ones(len(labels), bool)],
        "equal opportunity": [labels == 1],
        "equalised odds": [labels == 1, labels == 0],
    }[constraint]
    return [event & (groups == group) for event in events for group in range(count)]


def gaps_of(constraint: str, values: np.ndarray, groups: np.ndarray, labels: np.ndarray, count: int) -> list[float]:
    """Every difference between the rates of two groups, computed directly."""
    rates = [values[rows].mean() for rows in cell_rows(constraint, groups, labels, count)]
    parts = [rates[start : start + count] for start in range(0, len(rates), count)]
    return [part[b] - part[a] for part in parts for a, b in itertools.combinations(range(count), 2)]


def population(points: int = 150, centres: Sequence[float] = (0.5, -0.5), copies: int = 4000) -> Known:
    """Rows whose counts per group and label match the probabilities exactly: modelled rates equal observed ones.

    `of_groups` holds P(group | x, y = 0), then P(group | x, y = 1).
    """
    # Every x occurs in one colour per group; 80 % of the time a row has the colour of its group.
    x = np.repeat(np.linspace(-3, 3, points), len(centres))
    colour = np.tile(np.arange(len(centres)), points)[:, None] == np.arange(len(centres))
    of_label = np.stack([norm.cdf(-x / 0.7), norm.cdf(x / 0.7)], 1)
    density = np.stack([norm.pdf(x, centre) for centre in centres], 1) * 6 / points
    density *= np.where(colour, 0.8, 0.2 / (len(centres) - 1))
    counts = np.round(copies * density[:, :, None] * of_label[:, None]).astype(np.int64)
    counts = counts[(counts.sum(1) > 0).all(1)]
    given_label = counts / counts.sum(1, keepdims=True)
    number, group, label = (index.ravel() for index in np.indices(counts.shape))
    row = np.repeat(np.arange(counts.size), counts.ravel())
    number, positive = number[row], counts.sum(1)[:, 1] / counts.sum((1, 2))
    of_groups = np.concatenate([given_label[:, :, 0], given_label[:, :, 1]], 1)
    return Known(positive[number], of_groups[number], label[row], group[row])


def chances_of(rates: Rates, case: Known) -> np.ndarray:
    """P(cell | x), for group probabilities conditioned on the label or not."""
    if rates.constraint == "demographic parity" and rates.halves(case.of_groups):
        negative, positive = np.split(case.of_groups, 2, axis=1)
        return case.positive[:, None] * positive + (1 - case.positive)[:, None] * negative
    return rates.chances(case.of_groups, case.positive)


BOTH = pytest.mark.parametrize("kind", ["network", "boosting"])
NETWORK = {"epochs": 14, "hidden": (16,), "lr": 2e-2, "batch_size": 192, "folds": 3, "random_state": 0}
TREES = {"trees": 40, "leaves": 8, "learning_rate": 0.15, "n_jobs": 1, "folds": 3, "random_state": 0}
TRAIN, FRESH, FEW = synthetic(1500, seed=4), synthetic(10_000, seed=7), synthetic(300, seed=1)


def make(kind: str, **options):
    return FairClassifier(**NETWORK | options) if kind == "network" else FairBoostingClassifier(**TREES | options)


def quick(kind: str, **options):
    """A classifier with very little training."""
    return make(kind, **({"epochs": 2} if kind == "network" else {"trees": 6}) | {"folds": 2} | options)


@functools.cache
def fitted(kind: str, **options):
    """A classifier trained on `TRAIN`, cached for all tests."""
    return make(kind, **options).fit(TRAIN.features, TRAIN.labels, sensitive_features=TRAIN.groups)


def few(kind: str, X=FEW.features, y=FEW.labels, z=FEW.groups, weight=None, **options):
    """A classifier with very little training on `FEW`."""
    return quick(kind, **options).fit(X, y, sensitive_features=z, sample_weight=weight)

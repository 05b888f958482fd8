"""Training of M, MC and MCD on configurations, with the paper's or the tuned recipe, for many training sets at once.

The constraint is the paper's: for x₁ ≼ x₂, ν = max(0, M(x₁) − M(x₂)), with one multiplier per pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.constraint import Constraint, inequality
from ..core.dual import Ascent, Dual, Fixed
from ..core.pairs import Pairs
from ..training.fitting import Fit
from ..training.replicas import fit_many
from ..training.settings import MakeSchedule
from .dominance import Dominance, Ints
from .networks import Perceptron, Profiles
from .precision import Floats

MODELS = ("M", "MC", "MCD")

SCALES = (0.03, 0.1, 0.3)
"""Candidates for the `scale` of `Profiles`; one is chosen on validation rows."""

ALL_PAIRS = 20_000
"""A training set with more pairs than this is constrained on its covering pairs, which imply the others."""


class Sample(NamedTuple):
    """A training set: widths [n, variables] and targets [n] in [0, 1], larger for more bits."""

    configurations: Ints
    targets: Floats


@dataclass(frozen=True)
class Ranges:
    """Smallest and largest width of each variable."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Both as float32 tensors."""
        return torch.tensor(self.low, dtype=torch.float32), torch.tensor(self.high, dtype=torch.float32)


def monotone(pairs: Tensor) -> Constraint:
    """ν = max(0, ŷ(x₁) − ŷ(x₂)) for pairs x₁ ≼ x₂ of rows, [P, 2], with one multiplier per pair."""
    return inequality("monotone", lambda y, _: y[0] - y[1], scope=Pairs(pairs), degree="violation", multiplier="sample")


def directed(ranges: Ranges, count: int, generator: np.random.Generator) -> Ints:
    """Random pairs x₁ ≼ x₂ within the ranges: [2, count, variables]; x₂ is x₁ with some widths raised.

    In half of the pairs a single width is raised by one to four bits, and the other widths are sampled above it so that
    it limits the error. In the other half each width is resampled with probability 0.4 and replaced if the new one is
    larger. If no width was raised, x₂ = x₁ and the pair has no effect.
    """
    low, high = np.array(ranges.low), np.array(ranges.high)
    shape = (count, len(low))
    first = generator.integers(low, high + 1, shape)
    raised = np.where(generator.random(shape) < 0.4, generator.integers(low, high + 1, shape), first)
    second = np.maximum(first, raised)
    one = np.arange(count // 2)
    which = generator.integers(len(low), size=len(one))
    share = (first[one, which] - low[which]) / np.maximum(1, high - low)[which]
    floor = low + np.floor(share[:, None] * (high - low)).astype(np.int64)
    others = generator.integers(floor, high + 1)
    others[one, which] = first[one, which]
    first[one], second[one] = others, others
    second[one, which] = np.minimum(first[one, which] + generator.integers(1, 5, len(one)), high[which])
    return np.stack([first, second])


@dataclass(frozen=True)
class Recipe:
    """Settings for training.

    Args:
        duals: dual rule of each model, by name, for penalties that are means over pairs.
        labelled: maximum number of pairs of training rows; None uses all, or the covering pairs if there are many.
        directed: number of pairs of unlabelled configurations, for the constrained models.
        literal: weight penalties as in the paper's sums, Σ_l L + Σ_pairs μν.
    """

    name: str
    network: type[Perceptron] | type[Profiles]
    duals: Mapping[str, Dual | None]
    epochs: int
    lr: float
    steps: int | None = None
    """Steps per epoch; None uses batches of 64 rows."""
    schedule: MakeSchedule | None = None
    labelled: int | None = None
    directed: int = 0
    literal: bool = False

    def batch_size(self, rows: int) -> int:
        """Rows per step."""
        return 64 if self.steps is None else min(1024, math.ceil(rows / self.steps))


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """One-cycle schedule: up to the learning rate, then down to almost zero."""
    top = [float(group["lr"]) for group in optimizer.param_groups]
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, top, total_steps=steps)


PAPER = Recipe(
    "paper",
    Perceptron,
    {"M": None, "MC": Fixed(1.0), "MCD": Ascent(1e-3, normalise=False)},
    epochs=150,
    lr=1e-3,
    literal=True,
)
"""The paper's settings, with penalties summed over pairs."""

DIRECTED = Recipe(
    "directed",
    Perceptron,
    {"MCD": Ascent(100 / 2**0.5, remeasure=False)},
    epochs=150,
    lr=1e-3,
    labelled=0,
    directed=3000,
)
"""The paper's network and learning rate, constrained on unlabelled pairs, with a dual step of 71."""

TUNED = Recipe(
    "tuned",
    Profiles,
    {"M": None, "MC": Fixed(1.0), "MCD": Ascent(50 / 2**0.5, remeasure=False)},
    epochs=200,
    lr=3e-2,
    steps=4,
    schedule=one_cycle,
    labelled=2000,
    directed=3000,
)
"""The default, with the best results."""


def recipe_named(name: str) -> Recipe:
    """The recipe called "paper" or "tuned"."""
    for recipe in (PAPER, TUNED):
        if recipe.name == name:
            return recipe
    raise ValueError(f"recipe must be paper or tuned, got {name!r}")


def train(
    samples: Sequence[Sample],
    ranges: Ranges,
    recipe: Recipe,
    models: Sequence[str] = MODELS,
    *,
    seeds: Sequence[int] | None = None,
    epochs: int | None = None,
    progress: bool | None = None,
    checkpoint: Path | None = None,
) -> list[dict[str, Fit]]:
    """Train all models of all training sets as one stacked model, on one thread because the steps are small.

    Args:
        samples: training sets with the same number of rows.
        seeds: random seeds for weights, batches and pairs, one per training set; 0, 1, … by default.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(samples, ranges, recipe, models, seeds, epochs, progress, checkpoint)
    finally:
        torch.set_num_threads(threads)


def _train(
    samples: Sequence[Sample],
    ranges: Ranges,
    recipe: Recipe,
    models: Sequence[str],
    seeds: Sequence[int] | None,
    epochs: int | None,
    progress: bool | None,
    checkpoint: Path | None,
) -> list[dict[str, Fit]]:
    seeds = list(range(len(samples))) if seeds is None else list(seeds)
    rows = len(samples[0].targets)
    inputs = torch.from_numpy(np.concatenate([sample.configurations for sample in samples])).float()
    targets = torch.from_numpy(np.concatenate([sample.targets for sample in samples])).float()[:, None]
    subsets = list(torch.arange(len(inputs)).split(rows))
    low, high = ranges.tensors()
    options: dict[str, Any] = {
        "loss": nn.functional.l1_loss,
        "epochs": epochs or recipe.epochs,
        "lr": recipe.lr,
        "schedule": recipe.schedule,
        "keep": "last",
        "progress": progress,
    }
    scales = [0.0] * len(samples)
    if recipe.network is Profiles:
        scales = _choose_scales(inputs, targets, subsets, seeds, ranges, recipe, options)
    pairs, unlabelled = _pairs(samples, ranges, recipe, seeds, len(inputs))
    # Σ_l L + Σ_pairs μν divided by the number of rows is the mean of L plus P/n times the mean of μν.
    counts = np.bincount(pairs[:, 0].numpy() // rows, minlength=len(samples))
    weights = [count / rows if recipe.literal and count else 1.0 for count in counts.tolist()]
    rules = [recipe.duals[model] for model in models]
    duals = [[None if rule is None else rule.times(weight) for rule in rules] for weight in weights[: len(samples)]]
    each = iter([scale for scale in scales for _ in models])

    def factory() -> nn.Module:
        scale = next(each)
        return Profiles(low, high, scale) if recipe.network is Profiles else Perceptron(low, high)

    fits = fit_many(
        factory,
        (inputs, targets),
        constraints=[monotone(pairs)] if len(pairs) else [],
        duals=duals,
        seeds=seeds,
        subsets=subsets,
        batch_size=recipe.batch_size(rows),
        unlabelled=unlabelled,
        checkpoint=checkpoint,
        compile=False,  # the same numbers with and without a C++ compiler
        **options,
    )
    groups = [fits[i : i + len(models)] for i in range(0, len(fits), len(models))]
    return [dict(zip(models, group, strict=True)) for group in groups]


def _pairs(
    samples: Sequence[Sample], ranges: Ranges, recipe: Recipe, seeds: Sequence[int], start: int
) -> tuple[Tensor, Tensor | None]:
    """Row numbers of all pairs, [P, 2], and the unlabelled rows they refer to, numbered from `start`."""
    found, free = [], None
    offset = 0
    for sample, seed in zip(samples, seeds, strict=True):
        found.append(training_pairs(sample.configurations, recipe.labelled, seed) + offset)
        offset += len(sample.targets)
    if recipe.directed:
        drawn = directed(ranges, recipe.directed, np.random.default_rng([seeds[0], 7]))
        numbers = start + np.arange(recipe.directed)
        found.append(np.stack([numbers, numbers + recipe.directed], 1))
        free = torch.from_numpy(drawn.reshape(-1, drawn.shape[-1])).float()
    return torch.from_numpy(np.concatenate(found)), free


def training_pairs(configurations: Ints, limit: int | None, seed: int = 0) -> Ints:
    """Constrained pairs of rows: all, or the covering pairs if there are more than 20,000, or a sample of `limit`."""
    order = Dominance(configurations)
    if limit == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if limit is not None:
        return order.pairs(sample=limit, seed=seed)
    return order.pairs() if order.count() <= ALL_PAIRS else order.covering()


def _choose_scales(
    inputs: Tensor,
    targets: Tensor,
    subsets: Sequence[Tensor],
    seeds: Sequence[int],
    ranges: Ranges,
    recipe: Recipe,
    options: Mapping[str, Any],
) -> list[float]:
    """For each training set, the scale with the smallest loss on a held-out fifth of its rows, without constraints."""
    low, high = ranges.tensors()
    each = iter(SCALES * len(subsets))
    fits = fit_many(
        lambda: Profiles(low, high, next(each)),
        (inputs, targets),
        seeds=[seed for seed in seeds for _ in SCALES],
        subsets=[rows for rows in subsets for _ in SCALES],
        validation=0.2,
        dual=None,
        batch_size=recipe.batch_size(round(0.8 * len(subsets[0]))),
        compile=False,
        **options,
    )
    losses = np.array([fit.history.rows[-1]["val_loss"] for fit in fits]).reshape(-1, len(SCALES))
    return [SCALES[best] for best in losses.argmin(1)]

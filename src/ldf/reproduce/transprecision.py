"""The paper's table on transprecision computing: MAE, violated pairs and their size, by size of the training set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from ..transprecision import peers
from ..transprecision.dominance import Dominance, Ints
from ..transprecision.kernels import KERNELS, LOW, Kernel, target
from ..transprecision.networks import Profiles
from ..transprecision.precision import FULL, Floats
from ..transprecision.predictor import predictions
from ..transprecision.repair import isotonic
from ..transprecision.tables import draw
from ..transprecision.training import DIRECTED, PAPER, TUNED, Ranges, Sample, train
from . import jobs
from .figures import curves_figure, profiles_figure
from .jobs import Job
from .options import Options
from .published import FIGURES
from .tables import Figure, Part, row_of

SIZES = tuple(int(case) for case in FIGURES["transprecision"])
TEST = 1000
POOL = 20_000
"""Number of configurations from which training sets are chosen."""
PAIRS = 6_000_000
"""The pool is reduced if it has more dominated pairs than this."""
CANDIDATES = 32
"""Random candidates for each configuration added to a training set of the paper's kind."""
SEED = 2020
"""Random seed for sampling configurations."""
SECONDS = 14.0
"""Mean seconds of one core for all models of one training set, as measured."""
UNITS = {"MAE": "10^(−y)", "VC": "pairs", "SMVC": "10^(−y)", "MAE y": "y", "SMVC y": "y"}
"""Units of the quantities."""

NOTES = (
    "y = clip(−log10 error, 0, 30)/30, where error is the largest (out − ref)²/ref² over the outputs: more bits, "
    "larger y. MAE and SMVC are on the paper's scale 10^(−y), MAE y and SMVC y on the scale of y. VC counts violated "
    "pairs among all dominated pairs of the test configurations. The data are runs of our own kernel, so the paper's "
    "values are not directly comparable.",
    "Paper recipe: three hidden layers of 10, MAE, Adam 1e-3, 150 epochs, batches of 64 (not given in the paper), λ = "
    "1 (MC) or μ ← μ + 1e-3 Σν (MCD) for every dominated pair of the training set, Σ L + Σ μν as printed. Training "
    "sets are built greedily so that half of their dominated pairs have labels that contradict the order. Such sets "
    "are far from a random sample, which costs all models accuracy on the test set.",
    "MCD directed: the paper's network, learning rate and epochs on the same training sets, constrained on 3000 "
    "unlabelled pairs, in which one configuration has some widths raised, with a dual step that works.",
    "Tuned recipe: random training sets; a softmin of learned profiles over the widths; 2000 pairs of training rows "
    "and 3000 unlabelled directed pairs, one multiplier each. The curvature of the profiles is chosen on a fifth of "
    "the training rows. MC: λ = 1 on the mean over pairs.",
    "MCD repaired: profiles made monotone (tuned), or the least-squares change that makes predictions monotone on "
    "training and test configurations (paper).",
    "LightGBM and scikit-learn: gradient boosting with monotone constraints; tree size and number of trees chosen on a "
    "fifth of the training rows, then refitted on all.",
)


@dataclass(frozen=True)
class Cell(Job):
    """One cell of the table: all models on all training sets of one size."""

    version = 1
    kernel: str
    recipe: str
    size: int
    sets: int
    epochs: int | None

    def describe(self) -> str:
        """Text of the progress line."""
        return f"{self.kernel} {self.recipe} {self.size}"

    def path(self, work: Path) -> Path:
        """The file of its scores."""
        epochs = f"-{self.epochs}" if self.epochs else ""
        return work / "transprecision" / f"{self.kernel}-{self.recipe}-{self.size}-{self.sets}{epochs}.json"

    @property
    def seconds(self) -> float:
        """Estimated seconds, a mean over the sizes; half of them are proportional to the epochs."""
        return SECONDS * self.sets * (0.5 + 0.5 * (self.epochs or 150) / 150)

    def run(self, work: Path) -> dict[str, Any]:
        """Train and score: "scores" by model, one per training set, and the data of the plot, "picture"."""
        kernel = KERNELS[self.kernel]
        test, pool = data(kernel)
        sets = [rows[: self.size] for rows in CHOICE[self.recipe](pool, self.sets, max(*SIZES, self.size))]
        samples = [Sample(pool.configurations[rows], pool.targets[rows]) for rows in sets]
        ranges = Ranges((LOW,) * len(kernel.variables), (FULL,) * len(kernel.variables))
        scores: dict[str, list[dict[str, float]]] = {}
        picture: dict[str, Any] = {}
        order = Dominance(test.configurations)

        def add(model: str, values: Floats) -> None:
            scores.setdefault(model, []).append(score(values, test, order))

        for sample in samples:
            add("mean", peers.mean(sample)(test.configurations))
            add("linear", peers.linear(sample)(test.configurations))
        recipe = PAPER if self.recipe == "paper" else TUNED
        fits = train(samples, ranges, recipe, epochs=self.epochs, progress=False)
        for sample, models in zip(samples, fits, strict=True):
            for model, fit in models.items():
                add(model, predictions(fit.model, test.configurations))
            repaired = _repaired(models["MCD"].model, sample, test)
            add("MCD repaired", repaired)
            if isinstance(models["MCD"].model, Profiles) and not picture:
                profiles = models["MCD"].model.repaired().profiles().detach().tolist()
                picture = {"profiles": profiles, "measured": test.targets.tolist(), "predicted": repaired.tolist()}
        if self.recipe == "paper":
            for models in train(samples, ranges, DIRECTED, ["MCD"], epochs=self.epochs, progress=False):
                add("MCD directed", predictions(models["MCD"].model, test.configurations))
        for seed, sample in enumerate(samples):
            add("LightGBM", peers.lightgbm(sample, seed)(test.configurations))
            add("scikit-learn", peers.scikit_learn(sample, seed)(test.configurations))
        return {"scores": scores, "picture": picture}

    def rows(self, found: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows of results.json."""
        sampling = "half-violated" if self.recipe == "paper" else "random"
        place: dict[str, Any] = {"case": str(self.size), "sampling": sampling, "recipe": self.recipe}
        place |= {"epochs": self.epochs} if self.epochs else {}
        return [
            row_of(_table(self.kernel), model, quantity, unit, [score[quantity] for score in scores], **place)
            for model, scores in found["scores"].items()
            for quantity, unit in UNITS.items()
        ]


def cells(options: Options) -> list[Cell]:
    """All cells of the table."""
    for name in options.kernels:
        if name not in KERNELS:
            raise ValueError(f"unknown kernel {name!r}; the kernels are {', '.join(KERNELS)}")
    for case in options.cases:
        if not case.isdigit():
            raise ValueError(f"a case of transprecision is a training set size, such as 200; got {case!r}")
    sizes = [int(case) for case in options.cases]
    _check_pool(options.seeds, max(*SIZES, *sizes), POOL)
    return [
        Cell(kernel, recipe, size, options.seeds, options.epochs)
        for kernel in options.kernels
        for recipe in options.recipes
        for size in sizes
    ]


def left(options: Options) -> dict[Path, float]:
    """Files still to be made, with the seconds of one core for each."""
    return jobs.left(cells(options), options.work)


def make(options: Options) -> Part:
    """The table; missing cells are computed first."""
    every = cells(options)
    # Larger training sets take longer.
    found = jobs.run(sorted(every, key=lambda cell: -cell.size), options.work, options.workers, options.progress)
    rows = [row for cell in every for row in cell.rows(found[cell])]
    facts: dict[str, str] = {}
    figures = []
    for kernel in options.kernels:
        for recipe in options.recipes:
            facts[f"training sets, {kernel}, {recipe} recipe"] = _sets(KERNELS[kernel], recipe, options)
            chosen = [row for row in rows if row["table"] == _table(kernel) and row["recipe"] == recipe]
            path = f"{_table(kernel)}-{recipe}.png"
            curves_figure(chosen, options.out / path, ("VC", "SMVC", "MAE y"), "training configurations")
            figures.append(Figure(path, f"{kernel}, {recipe} recipe, against the size of the training set"))
        if "tuned" in options.recipes:
            largest = max((c for c in every if (c.kernel, c.recipe) == (kernel, "tuned")), key=lambda c: c.size)
            path, picture = f"profiles-{kernel}.png", found[largest]["picture"]
            profiles_figure(KERNELS[kernel].variables, range(LOW, FULL + 1), picture, options.out / path)
            caption = f"{kernel}: the profile of each variable, and predictions on test configurations; MCD repaired"
            figures.append(Figure(path, f"{caption}, {largest.size} training configurations, first set"))
    title = "Transprecision: errors of reduced precision, monotone"
    return Part("transprecision", title, rows, figures, NOTES, facts, "training sets", options.quick)


def _sets(kernel: Kernel, recipe: str, options: Options) -> str:
    """Number of dominated pairs in the training sets, and the share that the labels contradict."""
    _, pool = data(kernel)
    choose = cache(lambda size: CHOICE[recipe](pool, options.seeds, size))
    parts = []
    for size in (int(case) for case in options.cases):
        counts, shares = [], []
        sets = choose(max(*SIZES, size))
        for rows in sets:
            found = Dominance(pool.configurations[rows[:size]]).violations(pool.targets[rows[:size]])
            counts.append(found.pairs)
            shares.append(found.violated / max(1, found.pairs))
        parts.append(f"{size} rows: {np.mean(counts):.0f} pairs, {100 * np.mean(shares):.1f} % contradicted")
    return f"{options.seeds} of each size; mean number of dominated pairs and share contradicted: {'; '.join(parts)}"


def _table(kernel: str) -> str:
    return "transprecision" if kernel == "correlation" else f"transprecision-{kernel}"


def _repaired(network: Any, sample: Sample, test: Sample) -> Floats:
    if isinstance(network, Profiles):
        return network.monotone(test.configurations)
    both = np.concatenate([test.configurations, sample.configurations])
    return isotonic(predictions(network, both), both)[: len(test.targets)]


def score(values: Floats, test: Sample, order: Dominance) -> dict[str, float]:
    """MAE and SMVC on both scales, and VC."""
    found = order.violations(values)
    # 10^(−y) is decreasing in y.
    powers = order.violations(-(10.0**-values))
    return {
        "MAE": float(np.abs(10.0**-values - 10.0**-test.targets).mean()),
        "VC": float(found.violated),
        "SMVC": powers.total,
        "MAE y": float(np.abs(values - test.targets).mean()),
        "SMVC y": found.total,
    }


def data(kernel: Kernel) -> tuple[Sample, Sample]:
    """(test, pool): distinct configurations and their targets."""
    drawn = draw(len(kernel.variables), TEST + POOL, SEED)
    targets = target(kernel.errors(drawn))
    return Sample(drawn[:TEST], targets[:TEST]), Sample(drawn[TEST:], targets[TEST:])


def _check_pool(sets: int, size: int, rows: int) -> None:
    if sets * size > rows:
        raise ValueError(f"{sets} disjoint training sets of {size} rows need more than the {rows} rows of the pool")


def scattered(pool: Sample, sets: int, size: int) -> list[Ints]:
    """Disjoint random training sets: rows of the pool."""
    _check_pool(sets, size, len(pool.targets))
    return list(np.arange(sets * size).reshape(sets, size))


def contradicting(pool: Sample, sets: int, size: int) -> list[Ints]:
    """Disjoint training sets in which half of the dominated pairs have labels against the order, if possible.

    A set grows by one configuration at a time, chosen among CANDIDATES random ones: the one with the most pairs among
    those that leave at least half of all pairs contradicted, or else the one that comes closest. The first rows of a
    set, in any number, form such a set too.
    """
    _check_pool(sets, size, len(pool.targets))
    rows = len(pool.targets)
    while rows > sets * size and Dominance(pool.configurations[:rows]).count() > PAIRS:
        rows = max(sets * size, rows * 3 // 4)
    pairs = Dominance(pool.configurations[:rows]).pairs()
    against = pool.targets[pairs[:, 0]] > pool.targets[pairs[:, 1]]
    both = np.concatenate([pairs, pairs[:, ::-1]])
    links = sparse.csr_array((np.tile(against, 2).astype(np.int64) + 1, (both[:, 0], both[:, 1])), shape=(rows, rows))
    generator = np.random.default_rng(SEED)
    free = generator.permutation(rows)
    found = []
    for _ in range(sets):
        chosen = np.empty(size, dtype=np.int64)
        # For every configuration: pairs with those chosen so far, and how many of them are contradicted.
        total, bad = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
        all_pairs = all_bad = 0
        for place in range(size):
            candidates = generator.integers(len(free), size=min(CANDIDATES, len(free)))
            with_pairs, with_bad = total[free[candidates]], bad[free[candidates]]
            surplus = all_bad + with_bad - 0.5 * (all_pairs + with_pairs)
            best = int(np.where(surplus >= 0, with_pairs, surplus).argmax())
            row = chosen[place] = free[candidates[best]]
            free = np.delete(free, candidates[best])
            all_pairs, all_bad = all_pairs + int(total[row]), all_bad + int(bad[row])
            near = slice(links.indptr[row], links.indptr[row + 1])
            total[links.indices[near]] += 1
            bad[links.indices[near]] += links.data[near] - 1
        found.append(chosen)
    return found


CHOICE = {"paper": contradicting, "tuned": scattered}
"""By recipe, how training sets are chosen."""

"""The paper's experiment: M, M_C, M_C^D and Zafar's constraint on five folds of a variant, with its recipe and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import Tensor

from ..core.batch import Batch
from ..core.constraint import Constraint
from ..core.dual import Ascent, Dual, Fixed
from ..training.fitting import Fit
from ..training.replicas import fit_many
from ..training.settings import adam
from .boosting import FairBoostingClassifier
from .datasets import Variant
from .encoding import Encoder
from .estimator import FairEstimator
from .network import Decider, Estimators, FairClassifier, call, cross_entropy
from .rates import NAME, Ints, Rates, covariance

FOLDS = 5
SEED = 2020
"""Random seed for the folds."""
BATCH = 512
"""Batch size; the paper does not state it."""
STEP = 0.7
"""Step size. The paper states 1e-4, with which 100 epochs at a gap of .2 change a multiplier by only .002."""
HIDDEN = (10, 10, 10)
EPOCHS = 100

EXPECTED = "expected gap"
COVARIANCE = "covariance"


def folds_of(variant: Variant) -> list[Ints]:
    """Test rows of five folds of equal size, stratified by label and group.

    The remainder of the division (fewer than five rows) is always in the training rows.
    """
    groups = np.unique(variant.groups.astype(str), return_inverse=True)[1]
    rows = np.random.default_rng(SEED).permutation(variant.rows)
    rows = rows[np.argsort(2 * groups[rows] + variant.labels[rows], kind="stable")]
    whole = variant.rows // FOLDS * FOLDS
    return [np.sort(rows[fold:whole:FOLDS]) for fold in range(FOLDS)]


def score(decisions: NDArray[Any], labels: Ints, groups: NDArray[Any]) -> dict[str, float]:
    """Accuracy, the paper's DT = |σ|, and signed σ: rate of the second group − rate of the first, in sorted order."""
    first, second = (float(decisions[groups == group].mean()) for group in sorted(set(groups.tolist())))
    return {
        "accuracy": float((decisions == (labels == 1)).mean()),
        "DT": abs(second - first),
        "signed DT": second - first,
    }


Scores = dict[str, list[dict[str, float]]]
"""Scores by model, one per fold."""


@dataclass(frozen=True)
class Stack:
    """All folds of a variant stacked for `fit_many`, each encoded with an encoder fitted on its training rows."""

    data: dict[str, Tensor]
    subsets: list[Tensor]
    held_out: list[Tensor]
    tests: list[Ints]
    variant: Variant
    rates: Rates
    shares: NDArray[np.float64]

    @classmethod
    def of(cls, variant: Variant, folds: int) -> Stack:
        """Stack the first `folds` folds."""
        tests = folds_of(variant)[:folds]
        names, groups = np.unique(variant.groups.astype(str), return_inverse=True)
        everything = np.arange(variant.rows)
        inputs = []
        for test in tests:
            train = np.setdiff1d(everything, test)
            encoder = Encoder("standard").fit(variant.features.iloc[train], variant.labels[train])
            inputs.append(torch.from_numpy(encoder.transform(variant.features)))
        # A fold whose training rows lack a category has fewer columns.
        width = max(block.shape[1] for block in inputs)
        padded = [torch.nn.functional.pad(block, (0, width - block.shape[1])) for block in inputs]
        group = torch.from_numpy(groups.astype(np.int64)).repeat(folds)
        labels = torch.from_numpy(variant.labels).repeat(folds).float()
        rows = torch.arange(variant.rows)
        return cls(
            data={
                "inputs": torch.cat(padded),
                "targets": torch.stack([labels, torch.ones_like(labels)], 1),
                "group": group,
                "cell": group,
            },
            subsets=[rows + fold * variant.rows for fold in range(folds)],
            held_out=[torch.from_numpy(test) + fold * variant.rows for fold, test in enumerate(tests)],
            tests=tests,
            variant=variant,
            rates=Rates("demographic parity", tuple(names.tolist())),
            shares=np.bincount(groups) / variant.rows,
        )

    def train(
        self,
        constraints: Sequence[Constraint],
        duals: Mapping[str, Any],
        epochs: int,
        estimators: Estimators = "shared",
    ) -> dict[str, list[Fit]]:
        """Train the paper's network with every dual rule on every fold; fits by rule name, one per fold."""
        width = self.data["inputs"].shape[1]
        fits = fit_many(
            lambda: Decider(width, HIDDEN, estimators, len(self.rates.groups), 0.0),
            self.data,
            loss=cross_entropy,
            constraints=constraints,
            duals=list(duals.values()),
            seeds=range(len(self.subsets)),
            subsets=self.subsets,
            held_out=self.held_out,
            epochs=epochs,
            batch_size=BATCH,
            optimizer=adam(1e-3),
            keep="last",
            metrics={"accuracy": accuracy, "gap": gap},
            forward=call,
            compile=False,  # the same numbers with and without a C++ compiler
        )
        return {name: fits[place :: len(duals)] for place, name in enumerate(duals)}

    def scores(self, fits: Mapping[str, Sequence[Fit]]) -> Scores:
        """Scores on the test rows of each fold."""
        found: Scores = {}
        for name, own in fits.items():
            for fit, rows, test in zip(own, self.held_out, self.tests, strict=True):
                with torch.no_grad():
                    logits = fit.model.eval()(self.data["inputs"][rows], self.data["group"][rows])
                decisions = (logits[:, 0] > 0).numpy()
                own_score = score(decisions, self.variant.labels[test], self.variant.groups[test])
                found.setdefault(name, []).append(own_score)
        return found


def accuracy(logits: Tensor, batch: Batch) -> Tensor:
    """Share of correct decisions."""
    correct: Tensor = (logits[:, 0] > 0) == (batch.targets[:, 0] > 0.5)
    return correct.double().mean()


def gap(logits: Tensor, batch: Batch) -> Tensor:
    """σ of 0/1 decisions: rate of the second group − rate of the first."""
    decisions = (logits[:, 0] > 0).double()
    return decisions[batch.group == 1].mean() - decisions[batch.group == 0].mean()


def ascent(step: float) -> Ascent:
    """The paper's rule as printed, μ ← μ + s σ."""
    return Ascent(step, normalise=False)


def paper(
    variant: Variant, folds: int = FOLDS, epochs: int | None = None
) -> tuple[Scores, dict[str, dict[str, list[list[float]]]]]:
    """The paper's network and rates; all models of all folds are trained together.

    Returns:
        scores on the test rows; and the traces over the epochs, by model and quantity, one per fold.
    """
    stack = Stack.of(variant, folds)
    laws = [
        stack.rates.law(),
        stack.rates.law(degree="violation", name=EXPECTED),
        covariance(stack.rates.groups, stack.shares),
    ]
    idle: dict[str, Dual] = {name: Fixed(0.0) for name in (NAME, EXPECTED, COVARIANCE)}
    duals: dict[str, dict[str, Dual]] = {
        "M": idle,
        "MC": idle | {EXPECTED: Fixed(1.0)},
        "MCD": idle | {NAME: ascent(STEP)},
        "MCD expected": idle | {EXPECTED: ascent(STEP)},
        "Zafar": idle | {COVARIANCE: ascent(STEP)},
    }
    fits = stack.train(laws, duals, epochs or EPOCHS)
    traces = {
        model: {
            "accuracy": [fit.history["val/accuracy"] for fit in own],
            "DT": [[abs(value) for value in fit.history["val/gap"]] for fit in own],
        }
        for model, own in fits.items()
    }
    return stack.scores(fits), traces


def paper_separate(variant: Variant, folds: int = FOLDS, epochs: int | None = None) -> Scores:
    """M_C^D with the objective as printed: M, M₀ and M₁, ν = |E[M₀ | z=0] − E[M₁ | z=1]|; M_i decides for group i."""
    stack = Stack.of(variant, folds)
    law = stack.rates.law(degree="violation", name=EXPECTED)
    return stack.scores(stack.train([law], {"MCD separate": ascent(STEP)}, epochs or EPOCHS, "separate"))


def paper_relaxed(
    variant: Variant, shares: Sequence[float], folds: int = FOLDS, epochs: int | None = None
) -> dict[float, Scores]:
    """Scores of M_C^D with the paper's recipe and |σ| ≤ ε, by share; ε is the share times the gap of the labels."""
    stack = Stack.of(variant, folds)
    # All slacks are trained in one stack: each model has a multiplier for its own slack only.
    names = {share: f"{NAME} {share}" for share in shares}
    laws = [stack.rates.law(share * abs(variant.gap), name=name) for share, name in names.items()]
    idle: dict[str, Dual] = {name: Fixed(0.0) for name in names.values()}
    duals = {str(share): idle | {name: ascent(STEP)} for share, name in names.items()}
    scores = stack.scores(stack.train(laws, duals, epochs or EPOCHS))
    return {share: {"MCD": scores[str(share)]} for share in shares}


KINDS: dict[str, Callable[..., FairEstimator]] = {
    "network": FairClassifier,
    # One thread: folds run in parallel.
    "boosting": partial(FairBoostingClassifier, n_jobs=1),
}
"""Models of our recipe."""

SLACKS = (0.05, 0.2, 0.5)
"""ε of the relaxed constraint, as shares of the gap of the labels."""
CURVE = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""ε of the trade-off curve, as shares of the gap of the labels; includes `SLACKS`."""


@dataclass(frozen=True)
class Split:
    """One fold of a variant."""

    variant: Variant
    fold: int

    @property
    def test(self) -> Ints:
        """Test rows of the fold."""
        return folds_of(self.variant)[self.fold]

    @property
    def train(self) -> Ints:
        """Training rows: all other rows."""
        return np.setdiff1d(np.arange(self.variant.rows), self.test)

    def fit(self, model: Any) -> Any:
        """Fit the model on the training rows."""
        rows, of = self.train, self.variant
        return model.fit(of.features.iloc[rows], of.labels[rows], sensitive_features=of.groups[rows])

    def score(self, model: Any, attribute: bool = False) -> dict[str, float]:
        """Scores on the test rows, with or without the protected attribute at prediction."""
        rows, of = self.test, self.variant
        given = {"sensitive_features": of.groups[rows]} if attribute else {}
        return score(model.predict(of.features.iloc[rows], **given) == 1, of.labels[rows], of.groups[rows])


def tuned(kind: str, split: Split, epochs: int | None = None) -> dict[str, Any]:
    """One fold with our recipe: M, its two repairs, M_C^D, the closed-form trade-off, and dual rules for `SLACKS`.

    Returns:
        "scores" by model; "curve", the scores of the plug-in rule for the slacks in `CURVE`; "relaxed", the same for
        `SLACKS`; "duals", the step size and initial multipliers for each of `SLACKS`.
    """
    make = _shortened(kind, epochs)
    base = split.fit(make(dual=None, repair="plug-in", random_state=split.fold))
    held = split.fit(make(dual=base.dual_rule(), random_state=split.fold))
    whole = abs(split.variant.gap)

    def at(share: float) -> dict[str, float]:
        return split.score(base.with_repair("plug-in", share * whole))

    points = {share: at(share) for share in CURVE}
    rules = {share: base.dual_rule(share * whole) for share in SLACKS}
    return {
        "scores": {
            "M": split.score(base.with_repair(None)),
            "MCD": split.score(held),
            "plug-in": split.score(base),
            "thresholds": split.score(base.with_repair("thresholds"), attribute=True),
        },
        "curve": list(points.values()),
        "relaxed": {str(share): points[share] for share in SLACKS},
        "duals": {str(share): [rule.step, list(rule.initial)] for share, rule in rules.items()},
    }


def tuned_relaxed(
    kind: str, split: Split, duals: Mapping[str, Any], epochs: int | None = None
) -> dict[str, dict[str, float]]:
    """M_C^D with our recipe for each of `SLACKS`, with the dual rules from `tuned`."""
    found = {}
    for share in SLACKS:
        step, initial = duals[str(share)]
        rule = Ascent(step, normalise=False, reduce="mean", initial=tuple(initial))
        model = _shortened(kind, epochs)(dual=rule, slack=share * abs(split.variant.gap), random_state=split.fold)
        found[str(share)] = split.score(split.fit(model))
    return found


def _shortened(kind: str, epochs: int | None) -> Callable[..., FairEstimator]:
    """Our recipe with this many epochs (or ten times as many trees)."""
    if epochs is None:
        return KINDS[kind]
    return partial(KINDS[kind], **{"epochs": epochs} if kind == "network" else {"trees": 10 * epochs})


def baselines(split: Split) -> dict[str, dict[str, float]]:
    """Majority class ("mean") and logistic regression ("linear")."""
    train, of = split.train, split.variant
    known, labels = of.features.iloc[train], of.labels[train]
    simple = make_pipeline(FunctionTransformer(Encoder("standard").fit(known, labels).transform), LogisticRegression())
    return {
        "mean": split.score(DummyClassifier().fit(known, labels)),
        "linear": split.score(simple.fit(known, labels)),
    }

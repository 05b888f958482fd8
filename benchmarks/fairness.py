"""Fair classifiers compared with fairlearn, OxonFair, Cooper and Zafar's constraint, on the same folds and base model.

    python benchmarks/fairness.py [--out DIR] [--json] [--work DIR] [--variant NAME]… [--folds N] [--quick]

Post-processing methods use the same base model and the same held-out predictions as ours; networks use our encoding,
size and optimiser. All methods are fitted on training rows only. Results are cached in the work folder together with
those of `ldf reproduce fairness`, which are computed if missing; an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from torch import Tensor

import ldf
from ldf.core.samplers import epoch_generator, stratified
from ldf.fairness import study
from ldf.fairness.datasets import VARIANTS, load
from ldf.fairness.encoding import Codes, Encoder
from ldf.fairness.network import Decider, FairClassifier, call, cross_entropy
from ldf.fairness.rates import Floats, Ints, covariance
from ldf.reproduce import fairness, jobs
from ldf.reproduce.figures import tradeoff_figure
from ldf.reproduce.options import BOTH, Options
from ldf.reproduce.report import write
from ldf.reproduce.tables import Figure, Part, terminal
from ldf.viewing import figures, page

VERSION = 1
"""Version of the cached results of the other methods; results of other versions are ignored."""
SLACK = 0.005
"""Gap allowed for OxonFair on held-out rows; with 0 its grid has few solutions, and poor ones."""
STEPS = (0.01, 0.1, 1.0)
"""Candidate step sizes of Cooper's multiplier, chosen on a fifth of the training rows of the first fold."""
NEAR = 0.02
"""Accuracy that may be traded for a smaller gap in this choice."""
OURS = FairClassifier()
"""Settings used for the networks of the other methods."""
Train = Callable[[Decider, dict[str, Tensor], int, int], None]
"""Trains a network in place: model, data, epochs, seed."""
QUICK = 2
"""Epochs with --quick."""

NOTES = (
    "All models use the same folds. (z): requires the protected attribute at prediction; compare these models with "
    "each other only.",
    "ThresholdOptimizer (fairlearn), OxonFair, M + plug-in and M + thresholds post-process the same M, based on its "
    f"out-of-fold predictions for the training rows. OxonFair: accuracy under a gap of at most {SLACK}; without z its "
    "thresholds use the same predicted group probabilities as the plug-in rule, hard (its default) or soft, whichever "
    "is more accurate on these rows.",
    "ExponentiatedGradient (fairlearn): a mixture of LightGBM classifiers of our size, difference_bound and eps 0.01. "
    "Randomised decisions (ExponentiatedGradient, ThresholdOptimizer) are scored by their expectation.",
    "Cooper and Zafar: one network with our encoding, size and optimiser on all training rows; ours are five, each "
    "trained without a fifth of them. Cooper: the expected gap of a batch in the loss, and its 0/1 gap for the "
    "multiplier, which is updated in every step. Zafar: zero covariance of z and the logit. Paper recipe: the paper's "
    "network.",
)

MARKS = {
    "M + plug-in": "#D55E00 X", "M + thresholds (z)": "#000000 X", "ThresholdOptimizer (z)": "#7A4EAB *",
    "OxonFair (z)": "#7A4EAB p", "OxonFair": "#CC79A7 p", "ExponentiatedGradient": "#009E73 h", "Cooper": "#009E73 P",
    "Zafar": "#8C6D31 v", "MCD (paper recipe)": "#56B4E9 d", "Zafar (paper recipe)": "#C9A95C v",
}  # fmt: skip
"""Colour and marker in the plots, in addition to those of M, MCD and linear."""

Score = dict[str, float]


def expected(chances: NDArray[Any], labels: Ints, groups: NDArray[Any]) -> Score:
    """Expected score of randomised decisions that are positive with these probabilities."""
    right = np.where(labels == 1, chances, 1 - chances)
    return study.score(chances, labels, groups) | {"accuracy": float(right.mean())}


class Rows(NamedTuple):
    """Predictions of a base model, with the labels and groups of the same rows."""

    positive: Floats
    of_groups: Floats
    labels: Ints
    groups: NDArray[Any]


class Passthrough(BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """A classifier whose input X, [n, 1], is P(y = 1)."""

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Passthrough:
        """Do nothing; required by the interface."""
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        """Probabilities of both classes, [n, 2]."""
        return np.column_stack([1 - X[:, 0], X[:, 0]])


def threshold_optimizer(known: Rows, new: Rows) -> Score:
    """fairlearn's ThresholdOptimizer: two thresholds per group, chosen at random for each row."""
    from fairlearn.postprocessing import ThresholdOptimizer

    options = {"constraints": "demographic_parity", "objective": "accuracy_score", "predict_method": "predict_proba"}
    rule = ThresholdOptimizer(estimator=Passthrough(), prefit=True, **options)
    rule.fit(known.positive[:, None], known.labels, sensitive_features=known.groups)
    chances = rule._pmf_predict(new.positive[:, None], sensitive_features=new.groups)[:, 1]
    return expected(chances, new.labels, new.groups)


def oxonfair(known: Rows, new: Rows, attribute: bool) -> Score:
    """OxonFair's thresholds: one per group, or per inferred group, hard or soft."""
    from oxonfair import FairPredictor, group_metrics

    logging.getLogger("oxonfair").setLevel(logging.ERROR)
    # It requires targets of new rows too, but does not use them.
    seen, unseen = (
        {"data": np.column_stack([1 - r.positive, r.positive, r.of_groups]), "groups": r.groups, "target": target}
        for r, target in ((known, known.labels), (new, np.zeros_like(new.labels)))
    )
    ways: list[dict[str, Any]] = [{}]
    if not attribute:
        ways = [{"inferred_groups": lambda data: data[:, 2:], "use_fast": fast} for fast in (False, True)]
    found: list[tuple[bool, float, NDArray[Any]]] = []
    for way in ways:
        try:
            # A copy, because it adds its thresholds in place.
            rule = FairPredictor(lambda data: data[:, :2].copy(), seen, **way)
            rule.fit(group_metrics.accuracy, group_metrics.demographic_parity, SLACK)
            own = study.score(rule.predict(seen) == 1, known.labels, known.groups)
            found.append((own["DT"] <= SLACK + 1e-9, own["accuracy"], rule.predict(unseen) == 1))
        except (ValueError, IndexError):
            # The fast search (second) sorts rows into unsure, first and second group, and may fail if one is empty.
            if not found:
                raise
    return study.score(max(found, key=lambda one: one[:2])[2], new.labels, new.groups)


def exponentiated_gradient(split: study.Split, quick: bool) -> Score:
    """fairlearn's ExponentiatedGradient: a reduction to weighted fits of LightGBM."""
    import lightgbm
    from fairlearn.reductions import DemographicParity, ExponentiatedGradient

    of, train, test = split.variant, split.train, split.test
    codes = Codes().fit(of.features.iloc[train])

    class Booster(lightgbm.LGBMClassifier):  # type: ignore[misc, name-defined]
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            return super().fit(X, y, sample_weight=sample_weight, categorical_feature=codes.categorical)

    booster = Booster(n_estimators=100, learning_rate=0.1, verbose=-1, n_jobs=1, random_state=split.fold)
    law = DemographicParity(difference_bound=0.01)
    mixture = ExponentiatedGradient(booster, law, eps=0.01, max_iter=3 if quick else 50)
    mixture.fit(codes.transform(of.features.iloc[train]), of.labels[train], sensitive_features=of.groups[train])
    chances = np.asarray(mixture._pmf_predict(codes.transform(of.features.iloc[test])))[:, 1]
    return expected(chances, of.labels[test], of.groups[test])


def batch_size(rows: int) -> int:
    """Our batch size for this many rows."""
    return min(max(rows // 64, 32), 512) if OURS.batch_size == "auto" else OURS.batch_size


def network(split: study.Split, train: Ints, test: Ints, epochs: int | None, method: Train) -> Score:
    """Score on the test rows of a network of our size and encoding, trained on the training rows."""
    of = split.variant
    encoder = Encoder(OURS.encoding).fit(of.features.iloc[train], of.labels[train])
    inputs = torch.from_numpy(encoder.transform(of.features))
    group = torch.from_numpy(np.unique(of.groups.astype(str), return_inverse=True)[1].astype(np.int64))
    labels = torch.from_numpy(of.labels).float()
    data = {"inputs": inputs, "targets": torch.stack([labels, torch.ones_like(labels)], 1), "group": group}
    torch.manual_seed(split.fold)
    model = Decider(encoder.width, OURS.hidden, "shared", 2, OURS.dropout)
    method(model, {name: column[train] for name, column in data.items()}, epochs or OURS.epochs, split.fold)
    with torch.no_grad():
        logits = model.eval()(inputs[test], group[test])
    return study.score((logits[:, 0] > 0).numpy(), of.labels[test], of.groups[test])


def zafar(model: Decider, data: dict[str, Tensor], epochs: int, seed: int) -> None:
    """Zero covariance of group and logit, with our training loop."""
    group = data["group"]
    law = covariance(("first", "second"), (group.bincount() / len(group)).double().numpy())
    ldf.fit(
        model, data | {"cell": group}, loss=cross_entropy, constraints=[law], dual=study.ascent(study.STEP),
        epochs=epochs, batch_size=batch_size(len(group)), optimizer=OURS._optimizer, schedule="cosine", keep="last",
        stratify=group, forward=call, seed=seed, progress=False,
    )  # fmt: skip


def cooper(step: float) -> Train:
    """Cooper's training loop: every step first updates the multiplier by the 0/1 gap of the batch."""
    import cooper as library

    def gap(decided: Tensor, group: Tensor) -> Tensor:
        return decided[group == 1].mean() - decided[group == 0].mean()

    def train(model: Decider, data: dict[str, Tensor], epochs: int, seed: int) -> None:
        class Problem(library.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                multiplier = library.multipliers.DenseMultiplier(num_constraints=1)
                self.parity = library.Constraint(library.ConstraintType.EQUALITY, multiplier=multiplier)

            def compute_cmp_state(self, ids: Tensor) -> library.CMPState:
                group = data["group"][ids]
                logits = model(data["inputs"][ids], group)
                soft, hard = torch.sigmoid(logits[:, 0]), (logits.detach()[:, 0] > 0).float()
                state = library.ConstraintState(violation=gap(soft, group), strict_violation=gap(hard, group))
                loss = cross_entropy(logits, data["targets"][ids])
                return library.CMPState(loss=loss, observed_constraints={self.parity: state})

        problem, rows = Problem(), torch.arange(len(data["group"]))
        primal = OURS._optimizer(model.parameters())
        dual = torch.optim.SGD(problem.dual_parameters(), lr=step, maximize=True)
        both = library.optim.AlternatingDualPrimalOptimizer(cmp=problem, primal_optimizers=primal, dual_optimizers=dual)
        size = batch_size(len(rows))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(primal, epochs * -(-len(rows) // size))
        for epoch in range(epochs):
            for ids in stratified(rows, data["group"], size, epoch_generator(seed, epoch)):
                both.roll(compute_cmp_state_kwargs={"ids": ids})
                schedule.step()

    return train


def choose(split: study.Split, epochs: int | None) -> dict[str, Any]:
    """Step size for Cooper: the smallest gap among those accurate enough on a fifth of the training rows."""
    of, rows = split.variant, split.train
    strata = [f"{group} {label}" for group, label in zip(of.groups[rows], of.labels[rows], strict=True)]
    train, check = train_test_split(rows, test_size=0.2, stratify=strata, random_state=study.SEED)
    tried = {step: network(split, train, check, epochs, cooper(step)) for step in STEPS}
    best = max(score["accuracy"] for score in tried.values())
    enough = [step for step in STEPS if tried[step]["accuracy"] >= best - NEAR]
    return {"step": min(enough, key=lambda step: tried[step]["DT"]), "tried": {str(s): tried[s] for s in STEPS}}


def peers(split: study.Split, step: float, epochs: int | None) -> dict[str, Any]:
    """Scores and times (seconds) by model, and the scores of both base models ("bases")."""
    found: dict[str, dict[str, Any]] = {"scores": {}, "times": {}, "bases": {}}

    def add(name: str, make: Callable[..., Score], *arguments: Any) -> None:
        begun = time.monotonic()
        found["scores"][name] = make(*arguments)
        found["times"][name] = time.monotonic() - begun

    of, test = split.variant, split.test
    for kind, before in (("boosting", "boosting "), ("network", "")):
        begun = time.monotonic()
        base = split.fit(study._shortened(kind, epochs)(dual=None, repair="plug-in", random_state=split.fold))
        found["times"][f"{before}M"] = time.monotonic() - begun
        found["bases"][kind] = split.score(base.with_repair(None))
        given, new = base.rows_, base._forecast(of.features.iloc[test], None, chances=True)
        both = (
            Rows(given.forecast.positive, given.forecast.of_groups, given.labels, base.groups_[given.groups]),
            Rows(new.positive, new.of_groups, of.labels[test], of.groups[test].astype(str)),
        )
        add(f"{before}ThresholdOptimizer (z)", threshold_optimizer, *both)
        add(f"{before}OxonFair (z)", oxonfair, *both, True)
        add(f"{before}OxonFair", oxonfair, *both, False)
    add("boosting ExponentiatedGradient", exponentiated_gradient, split, epochs is not None)
    add("Cooper", network, split, split.train, test, epochs, cooper(step))
    add("Zafar", network, split, split.train, test, epochs, zafar)
    return found


class Peers(fairness.Cell):
    """The other methods on one fold of a variant; without a fold, the choice of Cooper's step size."""

    @property
    def seconds(self) -> float:
        """Not estimated."""
        return math.nan

    @property
    def needs(self) -> list[Peers]:
        """The job that chooses Cooper's step size."""
        return [] if self.fold is None else [peers_of(self.variant, None, self.epochs)]

    def run(self, work: Path) -> dict[str, Any]:
        """Train and score all methods."""
        warnings.simplefilter("ignore")
        split = study.Split(load(self.variant), self.fold or 0)
        if self.fold is None:
            return choose(split, self.epochs)
        (chosen,) = self.needs
        return peers(split, chosen.read(work)["step"], self.epochs)


def peers_of(variant: str, fold: int | None, epochs: int | None) -> Peers:
    """The job; it does not depend on how many folds are run."""
    return Peers(f"{'cooper-step' if fold is None else 'peers'}-{VERSION}", variant, fold, 1, epochs)


def panels(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of the boosting base and of the network base, one panel each."""
    figures.COLOURS.update({model: mark.split()[0] for model, mark in MARKS.items()})
    figures.MARKERS.update({model: mark.split()[1] for model, mark in MARKS.items()})
    boosting = {model.removeprefix("boosting "): own for model, own in scores.items() if model.startswith("boosting ")}
    return {"boosting base": boosting, "network base": {m: s for m, s in scores.items() if "boosting " not in m}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="output folder for results.json, table.md, index.html and plots")
    parser.add_argument("--json", action="store_true", help="print accuracy and |mean signed DT| as one flat object")
    parser.add_argument("--work", type=Path, default=Path("ldf-work"), help="folder of cached results (ldf-work)")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="repeatable (default: all)")
    parser.add_argument(
        "--folds", type=int, default=study.FOLDS, choices=range(1, study.FOLDS + 1), help="number of folds (5)"
    )
    parser.add_argument("--workers", type=int, help="single-threaded processes (one per core)")
    parser.add_argument("--quick", action="store_true", help="smoke test: one fold of one variant, two epochs")
    asked = parser.parse_args()
    variants, folds = (["bank-balanced-age"], 1) if asked.quick else (asked.variant or list(VARIANTS), asked.folds)
    epochs = QUICK if asked.quick else None
    options = Options("fairness", asked.work, asked.work, variants, recipes=BOTH, seeds=folds, epochs=epochs)
    own = jobs.run(fairness.cells(options), asked.work, asked.workers)
    wanted = [peers_of(variant, fold, epochs) for variant in variants for fold in (None, *range(folds))]
    cells = jobs.run(wanted, asked.work, asked.workers)
    rows, plots, flat, steps = [], [], {}, []
    for variant in variants:
        paper, scores = (fairness.scores_of(own, variant, recipe) for recipe in ("paper", "tuned"))
        scores |= {f"{model} (paper recipe)": paper[model] for model in ("MCD", "Zafar")}
        for cell, found in cells.items():
            if cell.variant != variant:
                continue
            if cell.fold is None:
                flat[f"{variant}_Cooper_dual_lr"] = found["step"]
                steps.append(f"{variant} {found['step']:g}")
                continue
            for model, score in found["scores"].items():
                scores.setdefault(model, []).append(score)
            for kind, score in found["bases"].items():
                ours = scores[fairness.NAMES[kind]["M"]][cell.fold]
                if abs(ours["accuracy"] - score["accuracy"]) > 1e-9:
                    print(f"{cell.describe()}: {kind} base differs from the one in the work folder", file=sys.stderr)
        rows += fairness.rows_of("fairness-peers", variant, "tuned", scores, None)
        for model, scored in scores.items():
            flat[f"{variant}_{model}_accuracy"] = fmean(score["accuracy"] for score in scored)
            flat[f"{variant}_{model}_dt"] = abs(fmean(score["signed DT"] for score in scored))
        if asked.out:
            path = f"trade-off-{variant}.png"
            tradeoff_figure(variant, panels(scores), fairness.curves_of(own, variant), asked.out / path)
            caption = f"{variant}: accuracy against |mean signed DT|; lines: the closed form on both base models"
            plots.append(Figure(path, caption))
    if asked.out:
        versions = ", ".join(f"{name} {version(name)}" for name in ("fairlearn", "oxonfair", "cooper-optim"))
        facts = fairness.facts_of(folds, own | cells) | {"peers": versions, "Cooper's step": ", ".join(steps)}
        title = "Fair classifiers compared with other libraries"
        part = Part("fairness-peers", title, rows, plots, NOTES, facts, "folds", asked.quick)
        write(asked.out, title, [part], {"command": shlex.join(["python", *sys.argv]), **page.machine()}, {})
    if asked.json:
        print(json.dumps({name: round(value, 6) for name, value in flat.items()}))
        return
    print(terminal(rows))
    print(f"Cooper's step size: {', '.join(steps)}")


if __name__ == "__main__":
    main()

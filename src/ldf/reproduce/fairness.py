"""The paper's tables on fair classifiers: accuracy and DT, with and without slack, and their traces over the epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from ..fairness import study
from ..fairness.datasets import VARIANTS, load
from ..io.text import write_whole
from . import jobs
from .figures import epochs_figure, relaxed_figure, tradeoff_figure
from .jobs import Job
from .options import PANELS, Options
from .tables import Figure, Part, row_of

SECONDS = {
    "paper": 220.0, "paper-separate": 130.0, "paper-relaxed": 125.0, "network": 29.0, "boosting": 13.0,
    "network-relaxed": 32.0, "boosting-relaxed": 12.0,
}  # fmt: skip
"""Mean seconds of one core for a cell with all its epochs, as measured."""
QUANTITIES = ("accuracy", "DT", "signed DT")
TRACED = ("M", "MC", "MCD", "Zafar")

NAMES = {
    "network": {"M": "M", "MCD": "MCD", "plug-in": "M + plug-in", "thresholds": "M + thresholds (z)"},
    "boosting": {
        "M": "boosting M",
        "MCD": "boosting MCD",
        "plug-in": "boosting M + plug-in",
        "thresholds": "boosting M + thresholds (z)",
    },
}
"""Names of the tuned recipe's models in the tables."""

NOTES = (
    "DT is |rate of positive decisions in one group − in the other| on test rows, the mean over five folds as in the "
    "paper; signed DT is the mean of the signed difference (second group − first, in alphabetical order), which, "
    "unlike DT, noise does not bias upwards. Its standard error is about .0045 (adult-sex), .0065 (adult-race), .005 "
    "(default-sex), .0225 (bank-balanced-age): smaller differences are not significant.",
    "The paper names race for Adult and 41,188 rows for Bank; its results agree with sex, and with the balanced file "
    "of 11,162 rows. Both variants are run, each compared with the same published values. Age means 25 to 60 "
    "against the rest. The protected attribute is not a feature. Encodings are fitted on the training rows of each "
    "fold.",
    "Paper recipe: three hidden layers of 10, cross-entropy, Adam 1e-3, 100 epochs, batches of 512 (not given in the "
    "paper). MC: λ = 1 on |E[p | z=1] − E[p | z=0]|. MCD: the same expected rates in the loss; the multiplier is "
    "signed and updated with the 0/1 rates of the epoch's decisions, from which DT is computed, with step 0.7. (With "
    "the printed step of 1e-4, 100 epochs with a gap of .2 raise the multiplier to .002 and change nothing.) MCD "
    "expected: ν = |σ| of expected rates for both, as printed, with step 0.7. MCD separate: the same with the "
    "objective of M, M₀ and M₁, where each group has its own network and the attribute is needed at prediction (on one "
    "variant of each data set). Zafar: zero covariance of z and the logit, by the same ascent and network.",
    "Tuned recipe: five networks (one-hot and piecewise-linear encoding, 2 × 64), or boosters of LightGBM, each "
    "trained without one fifth of the training rows; multipliers start at the closed form's values and are updated "
    "with signed, out-of-fold 0/1 rates. M + plug-in: the closed-form rule applied to M. (z): needs the attribute at "
    "prediction, which is worth .003 to .005 of accuracy; compare only with other (z) models. mean: always the more "
    "frequent label; linear: logistic regression.",
    "Relaxed: |σ| ≤ ε, where ε is a fraction (the slack) of the labels' own gap in the data set.",
)


@dataclass(frozen=True)
class Cell(Job):
    """One cell: all folds of a variant with the paper's recipe, or one fold with the tuned recipe."""

    version = 1
    kind: str
    variant: str
    fold: int | None
    folds: int
    epochs: int | None

    @property
    def recipe(self) -> str:
        """The recipe, paper or tuned."""
        return "tuned" if self.kind.partition("-")[0] in study.KINDS else "paper"

    def describe(self) -> str:
        """Text of the progress line."""
        return f"{self.variant} {self.kind}" + (f" fold {self.fold + 1}" if self.fold is not None else "")

    def path(self, work: Path) -> Path:
        """The file of its scores."""
        part = f"{self.folds}-folds" if self.fold is None else f"fold-{self.fold}"
        epochs = f"-{self.epochs}" if self.epochs else ""
        return work / "fairness" / f"{self.variant}-{self.kind}-{part}{epochs}.json"

    @property
    def seconds(self) -> float:
        """Estimated seconds; 0.7 of them are proportional to the epochs."""
        return (0.3 + 0.7 * (self.epochs or study.EPOCHS) / study.EPOCHS) * SECONDS[self.kind]

    @property
    def needs(self) -> Sequence[Cell]:
        """With the tuned recipe, a relaxed constraint starts from the multipliers of the same fold without slack."""
        kind, _, rest = self.kind.partition("-")
        return [replace(self, kind=kind)] if rest and kind in study.KINDS else []

    def run(self, work: Path) -> dict[str, Any]:
        """Train and score: "scores" by model, "relaxed" by slack, and the data of the plots."""
        variant = load(self.variant)
        if self.kind == "paper":
            scores, traces = study.paper(variant, self.folds, self.epochs)
            for fold in range(self.folds):
                for model, score in study.baselines(study.Split(variant, fold)).items():
                    scores.setdefault(model, []).append(score)
            return {"scores": scores, "traces": traces}
        if self.kind == "paper-separate":
            return {"scores": study.paper_separate(variant, self.folds, self.epochs)}
        if self.kind == "paper-relaxed":
            relaxed = study.paper_relaxed(variant, study.SLACKS, self.folds, self.epochs)
            return {"relaxed": {str(share): scores for share, scores in relaxed.items()}}
        assert self.fold is not None
        split = study.Split(variant, self.fold)
        if self.needs:
            (known,) = self.needs
            return {"relaxed": study.tuned_relaxed(known.kind, split, known.read(work)["duals"], self.epochs)}
        found = study.tuned(self.kind, split, self.epochs)
        if self.kind == "network":
            found["scores"] |= study.baselines(split)
        return found


Found = Mapping[Cell, Mapping[str, Any]]
"""Results by cell."""
Made = tuple[list[dict[str, Any]], list[Figure]]
"""Rows of results.json, and plots."""


def available(options: Options) -> tuple[Options, dict[str, str]]:
    """The options with the available variants, and why others are missing; an error if none is available."""
    missing: dict[str, str] = {}
    for variant in options.cases:
        if variant in VARIANTS:
            try:
                load(variant)
            except (ValueError, OSError) as error:
                missing[variant] = str(error)
    kept = tuple(variant for variant in options.cases if variant not in missing)
    if missing and not kept:
        raise ValueError("; ".join(dict.fromkeys(missing.values())))
    return replace(options, cases=kept), missing


def cells(options: Options) -> list[Cell]:
    """All cells of a table; the traces have the paper's recipe only."""
    for name in options.cases:
        if name not in VARIANTS:
            raise ValueError(f"unknown variant {name!r}; the variants are {', '.join(VARIANTS)}")
    if not 1 <= options.seeds <= study.FOLDS:
        raise ValueError(f"the number of folds must be 1 to {study.FOLDS}, got {options.seeds}")
    more = "-relaxed" if options.table == "relaxed-fairness" else ""
    traces = options.table == "fairness-traces"
    found = []
    for variant in options.cases:
        cell = partial(Cell, variant=variant, folds=options.seeds, epochs=options.epochs)
        if "paper" in options.recipes or traces:
            found.append(cell(f"paper{more}", fold=None))
            if variant in PANELS and options.table == "fairness":
                found.append(cell("paper-separate", fold=None))
        if "tuned" in options.recipes and not traces:
            found += [cell(kind + more, fold=fold) for kind in study.KINDS for fold in range(options.seeds)]
    return found


def left(options: Options) -> dict[Path, float]:
    """Files still to be made, with the seconds of one core for each."""
    return jobs.left(cells(options), options.work)


def make(options: Options) -> Part:
    """One of the tables; missing cells are computed first."""
    options, missing = available(options)
    found = jobs.run(cells(options), options.work, options.workers, options.progress)
    table = TABLES[options.table]
    rows, figures = table.make(options, found)
    facts = {**facts_of(options.seeds, found), **table.facts}
    return Part(options.table, table.title, rows, figures, table.notes, facts, "folds", options.quick, missing)


def main_table(options: Options, found: Found) -> Made:
    """Accuracy and DT of every model on every variant, and a plot of the trade-off."""
    rows, figures = [], []
    for variant in options.cases:
        scores = {recipe: scores_of(found, variant, recipe) for recipe in options.recipes}
        for recipe, own in scores.items():
            rows += rows_of("fairness", variant, recipe, own, options.epochs)
        path = f"trade-off-{variant}.png"
        tradeoff_figure(variant, scores, curves_of(found, variant), options.out / path)
        caption = f"{variant}: accuracy against DT, means over the folds; hollow: the paper; lines: the closed form"
        figures.append(Figure(path, caption))
    return rows, figures


def relaxed_table(options: Options, found: Found) -> Made:
    """Accuracy and DT of M_C^D with a gap of up to ε allowed."""
    rows: list[dict[str, Any]] = []
    for variant in options.cases:
        whole = abs(load(variant).gap)
        for recipe in options.recipes:
            own = [(cell, result) for cell, result in found.items() if (cell.variant, cell.recipe) == (variant, recipe)]
            for share in study.SLACKS:
                scores: study.Scores = {}
                for cell, result in own:
                    if recipe == "paper":
                        scores |= result["relaxed"][str(share)]
                    for known in cell.needs:
                        names = NAMES[known.kind]
                        scores.setdefault(names["MCD"], []).append(result["relaxed"][str(share)])
                        scores.setdefault(names["plug-in"], []).append(known.read(options.work)["relaxed"][str(share)])
                more = {"slack": share, "epsilon": share * whole}
                rows += rows_of("relaxed-fairness", variant, recipe, scores, options.epochs, **more)
    relaxed_figure(rows, options.out / "relaxed.png")
    return rows, [Figure("relaxed.png", "accuracy and DT against the slack; dotted: DT = ε; hollow: the paper")]


def traces_table(options: Options, found: Found) -> Made:
    """Accuracy and DT on the held-out fold after every epoch, the paper's recipe."""
    rows: list[dict[str, Any]] = []
    lines = ["variant,model,fold,epoch,accuracy,DT"]
    for cell, result in found.items():
        last: study.Scores = {}
        for model, traces in result["traces"].items():
            for fold, (accuracy, gaps) in enumerate(zip(traces["accuracy"], traces["DT"], strict=True)):
                for epoch, values in enumerate(zip(accuracy, gaps, strict=True), 1):
                    lines.append(f"{cell.variant},{model},{fold},{epoch},{values[0]:.6g},{values[1]:.6g}")
            if model in TRACED:
                signed = [score["signed DT"] for score in result["scores"][model]]
                ends = zip(traces["accuracy"], traces["DT"], signed, strict=True)
                last[model] = [{"accuracy": a[-1], "DT": d[-1], "signed DT": s} for a, d, s in ends]
        rows += rows_of("fairness-traces", cell.variant, "paper", last, options.epochs)
    write_whole(options.out / "traces.csv", "\n".join(lines) + "\n")
    traces = {cell.variant: result["traces"] for cell, result in found.items()}
    epochs_figure(traces, TRACED, options.out / "traces.png")
    caption = "accuracy and DT on the held-out fold over the epochs: mean over the folds; band: minimum to maximum"
    return rows, [Figure("traces.png", caption)]


@dataclass(frozen=True)
class Table:
    """A page of results, and the function that makes its rows and plots from the results of its cells."""

    title: str
    make: Callable[[Options, Found], Made]
    notes: Sequence[str] = NOTES
    facts: Mapping[str, str] = field(default_factory=dict)


TABLES = {
    "fairness": Table("Fair classifiers", main_table),
    "relaxed-fairness": Table("Fair classifiers with a slack", relaxed_table),
    "fairness-traces": Table("Fair classifiers over the epochs", traces_table, NOTES[:3], {"all epochs": "traces.csv"}),
}
"""The tables by their name on the command line."""


def scores_of(found: Found, variant: str, recipe: str) -> study.Scores:
    """Scores of all folds, by model."""
    scores: study.Scores = {}
    for cell, result in found.items():
        if (cell.variant, cell.recipe) != (variant, recipe):
            continue
        if cell.fold is None:
            scores |= result["scores"]
            continue
        for model, score in result["scores"].items():
            scores.setdefault(NAMES[cell.kind].get(model, model), []).append(score)
    return scores


def curves_of(found: Found, variant: str) -> dict[str, list[tuple[float, float]]]:
    """(DT, accuracy) of the plug-in rule for every slack, by kind of base; means over the folds."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for kind in study.KINDS:
        own = [result["curve"] for cell, result in found.items() if (cell.variant, cell.kind) == (variant, kind)]
        if own:
            curves[kind] = [
                (abs(fmean(one["signed DT"] for one in points)), fmean(one["accuracy"] for one in points))
                for points in zip(*own, strict=True)
            ]
    return curves


def rows_of(
    table: str, variant: str, recipe: str, scores: study.Scores, epochs: int | None, **more: Any
) -> list[dict[str, Any]]:
    """Rows of results.json: mean and spread over the folds."""
    place = {"case": variant, "sampling": None, "recipe": recipe, **more, **({"epochs": epochs} if epochs else {})}
    return [
        row_of(table, model, quantity, None, [score[quantity] for score in own], **place)
        for model, own in scores.items()
        for quantity in QUANTITIES
    ]


def facts_of(folds: int, found: Mapping[Any, Mapping[str, Any]]) -> dict[str, str]:
    """Facts for the report: the folds and the computing time."""
    spent = sum(result["seconds"] for result in found.values())
    return {
        "folds": f"{folds} of {study.FOLDS}, seed {study.SEED}, stratified by label and group",
        "computing time": f"{spent / 60:.1f} minutes of one core, in all cells",
    }

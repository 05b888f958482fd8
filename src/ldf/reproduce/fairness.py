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
"""Of one core, for a cell with all its epochs: what was measured on average."""
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
"""What the models of our recipe are called in the tables."""

NOTES = (
    "DT is |rate of positive decisions in one group − in the other| on test rows, the mean over five folds as in the "
    "paper; signed DT is the mean of the signed difference (second group − first, in alphabetical order), which chance "
    "does not push upwards. Its standard error is about .0045 (adult-sex), .0065 (adult-race), .005 (default-sex), "
    ".0225 (bank-balanced-age): smaller differences say nothing.",
    "The paper names race for Adult and 41,188 rows for Bank; its own figures are reached with sex, and with the "
    "balanced file of 11,162 rows. Both variants are run, each beside the same published rows. Age means 25 to 60 "
    "against the rest. The protected attribute is left out of the features. Encodings are fitted on the training rows "
    "of each fold.",
    "Paper recipe: three hidden layers of 10, cross-entropy, Adam 1e-3, 100 epochs, batches of 512 (not said in the "
    "paper). MC: λ = 1 on |E[p | z=1] − E[p | z=0]|. MCD: the same expected rates in the loss; the multiplier is "
    "signed and moved by the 0/1 rates of the epoch's decisions, which DT is made of, with the step 0.7. (The printed "
    "step is 1e-4: 100 epochs of a gap of .2 then move a multiplier to .002, and nothing changes.) MCD expected: "
    "ν = |σ| of expected rates for both, as printed, with the step 0.7. MCD separate: the same with the objective of "
    "M, M₀ and M₁, where each group is decided by its own network and the attribute is needed at prediction (on one "
    "variant of each data set). Zafar: no covariance of z and the logit, by the same ascent and network.",
    "Tuned recipe: five networks (one-hot and piecewise-linear encoding, 2 × 64), or boosters of LightGBM, each "
    "trained without one fifth of the training rows; multipliers start where the closed form puts them and ascend by "
    "signed, out-of-fold 0/1 rates. M + plug-in: the closed form on M itself. (z): the attribute is needed at "
    "prediction, which is worth .003 to .005 of accuracy; compare like with like. mean: the more frequent label for "
    "all; linear: logistic regression.",
    "Relaxed: |σ| ≤ ε with ε a share (the slack) of the labels' own gap in the data set.",
)


@dataclass(frozen=True)
class Cell(Job):
    """One cell: a variant with the paper's recipe, all folds at once, or one fold with ours."""

    version = 1
    kind: str
    variant: str
    fold: int | None
    folds: int
    epochs: int | None

    @property
    def recipe(self) -> str:
        """The paper's, or ours."""
        return "tuned" if self.kind.partition("-")[0] in study.KINDS else "paper"

    def describe(self) -> str:
        """For the line of progress."""
        return f"{self.variant} {self.kind}" + (f" fold {self.fold + 1}" if self.fold is not None else "")

    def path(self, work: Path) -> Path:
        """Where its scores are kept."""
        part = f"{self.folds}-folds" if self.fold is None else f"fold-{self.fold}"
        epochs = f"-{self.epochs}" if self.epochs else ""
        return work / "fairness" / f"{self.variant}-{self.kind}-{part}{epochs}.json"

    @property
    def seconds(self) -> float:
        """0.7 of it for the epochs."""
        return (0.3 + 0.7 * (self.epochs or study.EPOCHS) / study.EPOCHS) * SECONDS[self.kind]

    @property
    def needs(self) -> Sequence[Cell]:
        """With our recipe, a relaxed constraint starts from the multipliers of the same fold without slack."""
        kind, _, rest = self.kind.partition("-")
        return [replace(self, kind=kind)] if rest and kind in study.KINDS else []

    def run(self, work: Path) -> dict[str, Any]:
        """Train and score: "scores" by model, "relaxed" by slack, and what pictures are drawn from."""
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
"""Rows of results.json, and pictures."""


def available(options: Options) -> tuple[Options, dict[str, str]]:
    """The options with the variants that can be had, and why others cannot; all of them missing is an error."""
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
    """All cells of a table; the traces are of the paper's recipe only."""
    for name in options.cases:
        if name not in VARIANTS:
            raise ValueError(f"there is no variant {name!r}; there are {', '.join(VARIANTS)}")
    if not 1 <= options.seeds <= study.FOLDS:
        raise ValueError(f"there are {study.FOLDS} folds, got {options.seeds}")
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
    """What is still to be made, and how many seconds of one core each of it takes."""
    return jobs.left(cells(options), options.work)


def make(options: Options) -> Part:
    """One of the tables, from cells that are made where they are not there yet."""
    options, missing = available(options)
    found = jobs.run(cells(options), options.work, options.workers, options.progress)
    table = TABLES[options.table]
    rows, figures = table.make(options, found)
    facts = {**facts_of(options.seeds, found), **table.facts}
    return Part(options.table, table.title, rows, figures, table.notes, facts, "folds", options.quick, missing)


def main_table(options: Options, found: Found) -> Made:
    """Accuracy and DT of every model on every variant, and the trade-off as a picture."""
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
    """Accuracy and DT of M_C^D where a gap of ε is allowed."""
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
    caption = "accuracy and DT on the held-out fold over the epochs: mean over the folds, band: from least to most"
    return rows, [Figure("traces.png", caption)]


@dataclass(frozen=True)
class Table:
    """A page of results, and what makes its rows and pictures from the results of its cells."""

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
    """By model, the scores of all folds."""
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
    """(DT, accuracy) of the plug-in rule for every slack, by kind of base, means over the folds."""
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
    """What a report says of the folds, and of the time."""
    spent = sum(result["seconds"] for result in found.values())
    return {
        "folds": f"{folds} of {study.FOLDS}, drawn with seed {study.SEED}, stratified by label and group",
        "computing time": f"{spent / 60:.1f} minutes of one core, in all cells",
    }

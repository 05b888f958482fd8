"""The paper's tables on fair classifiers: accuracy and DT, with and without slack, and their traces over the epochs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import joblib

from ..fairness import study
from ..fairness.datasets import READINGS, load
from ..io.text import Progress, write_whole
from ..viewing.figures import grid, key, markers_of, palette, save
from .tables import Figure, Part, summary

VERSION = 1
"""Of what is computed: results of another are not shown."""
SECONDS = {
    "paper": 220.0, "paper-separate": 130.0, "paper-relaxed": 125.0, "network": 29.0, "boosting": 13.0,
    "network-relaxed": 32.0, "boosting-relaxed": 12.0,
}  # fmt: skip
"""Of one core, for a cell with all its epochs, 0.7 of it for them: what was measured on average."""
QUANTITIES = ("accuracy", "DT", "signed DT")
TRACED = ("M", "MC", "MCD", "Zafar")
PANELS = ("adult-sex", "default-sex", "bank-balanced-age")
"""One reading of each of the paper's data sets, those that its own figures are of."""

PUBLISHED = {
    "adult": {"M": (0.8423, 0.1853), "MC": (0.8333, 0.0627), "MCD": (0.8335, 0.0545), "Zafar": (0.7328, 0.1037)},
    "default": {"M": (0.8160, 0.0162), "MC": (0.8182, 0.0216), "MCD": (0.8166, 0.0101), "Zafar": (0.6304, 0.0109)},
    "bank": {"M": (0.8257, 0.4465), "MC": (0.7744, 0.4515), "MCD": (0.8135, 0.1216), "Zafar": (0.7860, 0.0363)},
}
"""Accuracy and DT, by data set and model."""
RELAXED = {
    "adult": {0.05: (0.8336, 0.0567), 0.2: (0.8339, 0.0586), 0.5: (0.8358, 0.0812)},
    "default": {0.05: (0.8164, 0.0073), 0.2: (0.8162, 0.0087), 0.5: (0.8159, 0.0092)},
    "bank": {0.05: (0.8161, 0.1556), 0.2: (0.8215, 0.2437), 0.5: (0.8251, 0.3372)},
}
"""Accuracy and DT of M_C^D, by data set and slack."""

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

ROLES = {
    "M": "#E69F00", "MC": "#009E73", "MCD": "#0072B2", "MCD expected": "#56B4E9", "MCD separate": "#CC79A7",
    "Zafar": "#8C6D31", "linear": "#888888", "M + plug-in": "#D55E00", "M + thresholds (z)": "#000000",
}  # fmt: skip
"""Colours in the pictures of trade-offs; a square is of boosted trees."""

NOTES = (
    "DT is |rate of positive decisions in one group − in the other| on test rows, the mean over five folds as in the "
    "paper; signed DT is the mean of the signed difference (second group − first, in alphabetical order), which chance "
    "does not push upwards. Its standard error is about .0045 (adult-sex), .0065 (adult-race), .005 (default-sex), "
    ".0225 (bank-balanced-age): smaller differences say nothing.",
    "The paper names race for Adult and 41,188 rows for Bank; its own figures are reached with sex, and with the "
    "balanced file of 11,162 rows. Both readings are run, each beside the same published rows. Age means 25 to 60 "
    "against the rest. The protected attribute is left out of the features. Encodings are fitted on the training rows "
    "of each fold.",
    "Paper recipe: three hidden layers of 10, cross-entropy, Adam 1e-3, 100 epochs, batches of 512 (not said in the "
    "paper). MC: λ = 1 on |E[p | z=1] − E[p | z=0]|. MCD: the same expected rates in the loss; the multiplier is "
    "signed and moved by the 0/1 rates of the epoch's decisions, which DT is made of, with the step 0.7. (The printed "
    "step is 1e-4: 100 epochs of a gap of .2 then move a multiplier to .002, and nothing changes.) MCD expected: "
    "ν = |σ| of expected rates for both, as printed, with the step 0.7. MCD separate: the same with the objective of "
    "M, M₀ and M₁, where each group is decided by its own network and the attribute is needed at prediction (on one "
    "reading of each data set). Zafar: no covariance of z and the logit, by the same ascent and network.",
    "Tuned recipe: five networks (one-hot and piecewise-linear encoding, 2 × 64), or boosters of LightGBM, each "
    "trained without one fifth of the training rows; multipliers start where the closed form puts them and ascend by "
    "signed, out-of-fold 0/1 rates. M + plug-in: the closed form on M itself. (z): the attribute is needed at "
    "prediction, which is worth .003 to .005 of accuracy; compare like with like. mean: the more frequent label for "
    "all; linear: logistic regression.",
    "Relaxed: |σ| ≤ ε with ε a share (the slack) of the labels' own gap in the data set.",
)


@dataclass(frozen=True)
class Options:
    """What to run."""

    readings: Sequence[str] = tuple(READINGS)
    recipes: Sequence[str] = ("paper", "tuned")
    folds: int = study.FOLDS
    epochs: int | None = None
    workers: int | None = None
    progress: bool | None = None
    quick: bool = False

    @property
    def told(self) -> dict[str, int]:
        """What a row says of its making besides."""
        return {"epochs": self.epochs} if self.epochs else {}


@dataclass(frozen=True)
class Job:
    """One cell: a reading with the paper's recipe, all folds at once, or one fold with ours."""

    kind: str
    reading: str
    fold: int | None
    folds: int
    epochs: int | None

    def describe(self) -> str:
        """For the line of progress."""
        return f"{self.reading} {self.kind}" + (f" fold {self.fold + 1}" if self.fold is not None else "")

    def path(self, work: Path) -> Path:
        """Where its scores are kept."""
        part = f"{self.folds}-folds" if self.fold is None else f"fold-{self.fold}"
        epochs = f"-{self.epochs}" if self.epochs else ""
        return work / "fairness" / f"{self.reading}-{self.kind}-{part}{epochs}.json"

    def read(self, work: Path) -> dict[str, Any] | None:
        """What an earlier run found, or None."""
        try:
            found: dict[str, Any] = json.loads(self.path(work).read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("version") == VERSION else None

    def run(self, work: Path) -> Job:
        """Train, score and write."""
        import torch

        torch.set_num_threads(1)
        begun = time.monotonic()
        reading = load(self.reading)
        found: dict[str, Any]
        if self.kind == "paper":
            scores, traces = study.paper(reading, self.folds, self.epochs)
            for fold in range(self.folds):
                for model, score in study.baselines(study.Split(reading, fold)).items():
                    scores.setdefault(model, []).append(score)
            found = {"scores": scores, "traces": traces}
        elif self.kind == "paper-separate":
            found = {"scores": study.paper_separate(reading, self.folds, self.epochs)}
        elif self.kind == "paper-relaxed":
            relaxed = study.paper_relaxed(reading, study.SLACKS, self.folds, self.epochs)
            found = {"relaxed": {str(share): scores for share, scores in relaxed.items()}}
        else:
            assert self.fold is not None
            split = study.Split(reading, self.fold)
            kind, _, rest = self.kind.partition("-")
            if rest:
                known = self.needs[0].read(work)
                assert known is not None
                found = {"relaxed": study.tuned_relaxed(kind, split, known["duals"], self.epochs)}
            else:
                found = study.tuned(kind, split, self.epochs)
                if kind == "network":
                    found["scores"] |= study.baselines(split)
        self.path(work).parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path(work), json.dumps({"version": VERSION, "seconds": time.monotonic() - begun, **found}))
        return self

    @property
    def needs(self) -> list[Job]:
        """What must be there before: the multipliers' start for a relaxed constraint."""
        kind, _, rest = self.kind.partition("-")
        return [Job(kind, self.reading, self.fold, self.folds, self.epochs)] if rest and kind != "paper" else []


def available(options: Options) -> tuple[Options, dict[str, str]]:
    """The options with the readings that can be had, and why others cannot; all of them missing is an error."""
    missing: dict[str, str] = {}
    for reading in options.readings:
        if reading in READINGS:
            try:
                load(reading)
            except (ValueError, OSError) as error:
                missing[reading] = str(error)
    kept = tuple(reading for reading in options.readings if reading not in missing)
    if missing and not kept:
        raise ValueError("; ".join(dict.fromkeys(missing.values())))
    return replace(options, readings=kept), missing


def jobs_of(options: Options, relaxed: bool = False, traces: bool = False) -> list[Job]:
    """All cells of a table: of the main one, of that with slack, or of the traces."""
    for name in options.readings:
        if name not in READINGS:
            raise ValueError(f"there is no reading {name!r}; there are {', '.join(READINGS)}")
    if not 1 <= options.folds <= study.FOLDS:
        raise ValueError(f"there are {study.FOLDS} folds, got {options.folds}")
    more = "-relaxed" if relaxed else ""
    jobs = []
    for reading in options.readings:
        make = partial(Job, reading=reading, folds=options.folds, epochs=options.epochs)
        if "paper" in options.recipes:
            kinds = [f"paper{more}"]
            if reading in PANELS and not relaxed and not traces:
                kinds.append("paper-separate")
            jobs += [make(kind, fold=None) for kind in kinds]
        if "tuned" in options.recipes:
            jobs += [make(kind + more, fold=fold) for kind in study.KINDS for fold in range(options.folds)]
    return jobs


def left(name: str, work: Path, options: Options) -> dict[Path, float]:
    """What is still to be made, and how many seconds of one core each of it takes, as measured on one machine."""
    if name == "fairness-traces":
        options = replace(options, recipes=("paper",))
    jobs = jobs_of(options, relaxed=name == "relaxed-fairness", traces=name == "fairness-traces")
    every = list(dict.fromkeys([*(need for job in jobs for need in job.needs), *jobs]))
    share = 0.3 + 0.7 * (options.epochs or study.EPOCHS) / study.EPOCHS
    return {job.path(work): share * SECONDS[job.kind] for job in every if job.read(work) is None}


def run(jobs: Sequence[Job], work: Path, options: Options) -> dict[Job, dict[str, Any]]:
    """Run what is not there yet, on all cores, what others need first."""
    needed = list(dict.fromkeys(need for job in jobs for need in job.needs))
    everything = [*(job for job in needed if job not in jobs), *jobs]
    todo = [job for job in everything if job.read(work) is None]
    line = Progress(len(everything), "cell", options.progress, done=len(everything) - len(todo))
    done = len(everything) - len(todo)
    for later in (False, True):
        # The long ones first, so that both ends of the queue finish together.
        turn = sorted((job for job in todo if bool(job.needs) == later), key=lambda job: job.fold is not None)
        pool = joblib.Parallel(n_jobs=options.workers or -1, return_as="generator_unordered")
        for job in pool(joblib.delayed(Job.run)(job, work) for job in turn):
            done += 1
            line.update(done, job.describe)
    found = {}
    for job in jobs:
        cell = job.read(work)
        assert cell is not None
        found[job] = cell
    return found


def scores_of(cells: Mapping[Job, Mapping[str, Any]], reading: str, recipe: str) -> study.Scores:
    """By model, the scores of all folds."""
    scores: study.Scores = {}
    for job, cell in cells.items():
        if job.reading != reading or job.kind.startswith("paper") != (recipe == "paper"):
            continue
        if job.fold is None:
            scores |= cell["scores"]
            continue
        for model, score in cell["scores"].items():
            scores.setdefault(NAMES[job.kind].get(model, model), []).append(score)
    return scores


def rows_of(
    table: str, reading: str, recipe: str, scores: study.Scores, published: Mapping[str, Sequence[float]], **more: Any
) -> list[dict[str, Any]]:
    """Rows of results.json: mean and spread over the folds."""
    return [
        {
            "table": table,
            "case": reading,
            "sampling": None,
            "recipe": recipe,
            "model": model,
            "quantity": quantity,
            **summary([score[quantity] for score in own]),
            "unit": None,
            "paper": dict(zip(QUANTITIES, published.get(model, ()), strict=False)).get(quantity),
            **more,
        }
        for model, own in scores.items()
        for quantity in QUANTITIES
    ]


def _set(reading: str) -> str:
    return reading.partition("-")[0]


def facts_of(options: Options, cells: Mapping[Any, Mapping[str, Any]]) -> dict[str, str]:
    """What a report says of the folds, and of the time."""
    spent = sum(cell["seconds"] for cell in cells.values())
    return {
        "folds": f"{options.folds} of {study.FOLDS}, drawn with seed {study.SEED}, stratified by label and group",
        "computing time": f"{spent / 60:.1f} minutes of one core, in all cells",
    }


def make_fairness(out: Path, work: Path, options: Options) -> Part:
    """Accuracy and DT of every model on every reading, and the trade-off as a picture."""
    options, missing = available(options)
    cells = run(jobs_of(options), work, options)
    rows, figures = [], []
    for reading in options.readings:
        scores = {recipe: scores_of(cells, reading, recipe) for recipe in options.recipes}
        for recipe, own in scores.items():
            rows += rows_of("fairness", reading, recipe, own, PUBLISHED[_set(reading)], **options.told)
        path = f"trade-off-{reading}.png"
        tradeoff_figure(reading, scores, curves_of(cells, reading), out / path)
        caption = f"{reading}: accuracy against DT, means over the folds; hollow: the paper; lines: the closed form"
        figures.append(Figure(path, caption))
    facts = facts_of(options, cells)
    return Part("fairness", "Fair classifiers", rows, figures, NOTES, facts, "folds", options.quick, missing)


def curves_of(cells: Mapping[Job, Mapping[str, Any]], reading: str) -> dict[str, list[tuple[float, float]]]:
    """(DT, accuracy) of the plug-in rule for every slack, by kind of base, means over the folds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for kind in study.KINDS:
        own = [cell["curve"] for job, cell in cells.items() if job.reading == reading and job.kind == kind]
        if own:
            found[kind] = [
                (abs(fmean(one["signed DT"] for one in points)), fmean(one["accuracy"] for one in points))
                for points in zip(*own, strict=True)
            ]
    return found


def make_relaxed(out: Path, work: Path, options: Options) -> Part:
    """Accuracy and DT of M_C^D where a gap of ε is allowed."""
    options, missing = available(options)
    jobs = jobs_of(options, relaxed=True)
    cells = run(jobs, work, options)
    rows: list[dict[str, Any]] = []
    for reading in options.readings:
        for recipe in options.recipes:
            for share in study.SLACKS:
                scores: study.Scores = {}
                for job, cell in cells.items():
                    if job.reading != reading or job.kind.startswith("paper") != (recipe == "paper"):
                        continue
                    if recipe == "paper":
                        scores |= cell["relaxed"][str(share)]
                        continue
                    kind = job.kind.partition("-")[0]
                    scores.setdefault(NAMES[kind]["MCD"], []).append(cell["relaxed"][str(share)])
                    known = job.needs[0].read(work)
                    assert known is not None
                    scores.setdefault(NAMES[kind]["plug-in"], []).append(known["relaxed"][str(share)])
                published = {"MCD": RELAXED[_set(reading)][share]}
                epsilon = share * abs(load(reading).gap)
                rows += rows_of(
                    "relaxed-fairness", reading, recipe, scores, published, slack=share, epsilon=epsilon, **options.told
                )
    relaxed_figure(rows, out / "relaxed.png")
    figures = [Figure("relaxed.png", "accuracy and DT against the slack; dotted: DT = ε; hollow: the paper")]
    title, facts = "Fair classifiers with a slack", facts_of(options, cells)
    return Part("relaxed-fairness", title, rows, figures, NOTES, facts, "folds", options.quick, missing)


def make_traces(out: Path, work: Path, options: Options) -> Part:
    """Accuracy and DT on the held-out fold after every epoch, the paper's recipe."""
    options, missing = available(options)
    only = replace(options, recipes=("paper",))
    cells = run(jobs_of(only, traces=True), work, only)
    rows: list[dict[str, Any]] = []
    lines = ["reading,model,fold,epoch,accuracy,DT"]
    for job, cell in cells.items():
        last: study.Scores = {}
        for model, traces in cell["traces"].items():
            for fold, (accuracy, gaps) in enumerate(zip(traces["accuracy"], traces["DT"], strict=True)):
                for epoch, values in enumerate(zip(accuracy, gaps, strict=True), 1):
                    lines.append(f"{job.reading},{model},{fold},{epoch},{values[0]:.6g},{values[1]:.6g}")
            if model in TRACED:
                signed = [score["signed DT"] for score in cell["scores"][model]]
                ends = zip(traces["accuracy"], traces["DT"], signed, strict=True)
                last[model] = [{"accuracy": a[-1], "DT": d[-1], "signed DT": s} for a, d, s in ends]
        rows += rows_of("fairness-traces", job.reading, "paper", last, PUBLISHED[_set(job.reading)], **options.told)
    write_whole(out / "traces.csv", "\n".join(lines) + "\n")
    traces_figure({job.reading: cell["traces"] for job, cell in cells.items()}, out / "traces.png")
    caption = "accuracy and DT on the held-out fold over the epochs: mean over the folds, band: from least to most"
    title, figures = "Fair classifiers over the epochs", [Figure("traces.png", caption)]
    facts = facts_of(only, cells) | {"all epochs": "traces.csv"}
    return Part("fairness-traces", title, rows, figures, NOTES[:3], facts, "folds", options.quick, missing)


MAKE = {"fairness": make_fairness, "relaxed-fairness": make_relaxed, "fairness-traces": make_traces}
"""The tables, by name."""


def tradeoff_figure(
    reading: str,
    scores: Mapping[str, study.Scores],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
) -> None:
    """Accuracy against |signed DT|, a mark a model: up and to the left is better. Bars: standard error over the folds.

    Args:
        scores: by recipe, or by whatever else a panel is to be of.
        curves: lines by name, (DT, accuracy), drawn in the last panel.
    """
    figure, panels = grid(len(scores), 6.4, 4.8, columns=2)
    for place, ((recipe, own), axes) in enumerate(zip(scores.items(), panels, strict=True)):
        models = [model for model in own if model != "mean"]
        colours, markers = palette(models), markers_of(models)
        for model in models:
            role = model.removeprefix("boosting ")
            if role in ROLES:
                colours[model], markers[model] = ROLES[role], "s" if role != model else "o"
        if place == len(panels) - 1:
            for (name, points), dashes in zip(curves.items(), ("-", "--"), strict=False):
                axes.plot(*zip(*points, strict=True), color="#999999", linestyle=dashes, linewidth=1.2, zorder=1)
                axes.annotate(name, points[len(points) // 2], (4, -9), textcoords="offset points", fontsize=7)
        published = PUBLISHED[_set(reading)] if recipe == "paper" else {}
        for model in models:
            gaps = [score["signed DT"] for score in own[model]]
            right = [score["accuracy"] for score in own[model]]
            error = [summary(values)["std"] / len(values) ** 0.5 for values in (gaps, right)]
            style = {"color": colours[model], "marker": markers[model]}
            at = (abs(fmean(gaps)), fmean(right))
            axes.errorbar(*at, xerr=error[0], yerr=error[1], markersize=7, elinewidth=0.8, label=model, **style)
            if model in published:
                accuracy, gap = published[model]
                axes.plot(gap, accuracy, markersize=7, markerfacecolor="white", linestyle="", **style)
        axes.set_xlim(left=-0.002)
        axes.set_xlabel("|signed DT|, mean over the folds", fontsize=9)
        axes.set_ylabel("accuracy", fontsize=9)
        axes.set_title(f"{reading} · {recipe}", fontsize=10)
        axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)
    save(figure, path)


def relaxed_figure(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """DT and accuracy against ε, a column a reading."""
    readings = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys((row["recipe"], row["model"]) for row in rows))
    labels = [f"{model} ({recipe})" for recipe, model in names]
    colours, markers = {}, {}
    for (recipe, model), label in zip(names, labels, strict=True):
        role = model.removeprefix("boosting ")
        colours[label] = "#56B4E9" if recipe == "paper" else ROLES[role]
        markers[label] = "D" if recipe == "paper" else "s" if role != model else "o"
    figure, panels = grid(2 * len(readings), 3.6, 3.0, columns=len(readings))
    for index, axes in enumerate(panels):
        reading, quantity = readings[index % len(readings)], ("DT", "accuracy")[index // len(readings)]
        for (recipe, model), label in zip(names, labels, strict=True):
            own = [
                row
                for row in rows
                if (row["case"], row["quantity"], row["recipe"], row["model"]) == (reading, quantity, recipe, model)
            ]
            places = [row["epsilon"] for row in own]
            style = {"color": colours[label], "marker": markers[label], "markersize": 4.5}
            dashes = "--" if markers[label] == "s" else "-"
            axes.errorbar(
                places, [row["mean"] for row in own], [row["std"] for row in own], linewidth=1.2, elinewidth=0.8,
                linestyle=dashes, **style,
            )  # fmt: skip
            if own and own[0]["paper"] is not None and label == labels[0]:
                hollow = {"color": "#555555", "marker": "o", "markerfacecolor": "white", "markersize": 5}
                axes.plot(places, [row["paper"] for row in own], linestyle=":", **hollow)
        if quantity == "DT":
            axes.set_title(reading, fontsize=10)
            ends = sorted({row["epsilon"] for row in rows if row["case"] == reading})
            axes.plot(ends, ends, color="#999999", linestyle=":", linewidth=1)
        axes.set_xlabel("ε", fontsize=9)
        axes.set_ylabel(quantity, fontsize=9)
        axes.tick_params(labelsize=8)
    handles = [key(colours[label], markers[label], colours[label]) for label in labels]
    handles.append(key("#555555", "o", "white"))
    figure.legend(
        handles, [*labels, "the paper's MCD"], loc="outside lower center", ncols=min(6, len(handles)), frameon=False,
        fontsize=8,
    )  # fmt: skip
    save(figure, path)


def traces_figure(traces: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A line of panels for each reading: accuracy on the left, DT on the right."""
    colours = ROLES
    figure, panels = grid(2 * len(traces), 5.4, 2.7, columns=2)
    for index, axes in enumerate(panels):
        reading, quantity = list(traces)[index // 2], ("accuracy", "DT")[index % 2]
        for model in TRACED:
            folds = list(zip(*traces[reading][model][quantity], strict=True))
            epochs = range(1, len(folds) + 1)
            axes.fill_between(
                epochs, [min(e) for e in folds], [max(e) for e in folds], color=colours[model], alpha=0.13, linewidth=0
            )
            axes.plot(epochs, [fmean(e) for e in folds], color=colours[model], linewidth=1.5, label=model)
        axes.set_title(f"{reading}: {quantity}", fontsize=10)
        axes.tick_params(labelsize=8)
        if quantity == "DT":
            axes.set_ylim(bottom=0)
        else:  # the first epochs are far below
            later = [
                v for model in TRACED for fold in traces[reading][model][quantity] for v in fold[len(fold) // 10 :]
            ]
            axes.set_ylim(min(later) - 0.02, max(later) + 0.01)
        if index >= len(panels) - 2:
            axes.set_xlabel("epoch", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    save(figure, path)

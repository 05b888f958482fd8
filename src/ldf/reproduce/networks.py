"""The paper's tables on power and gas networks: errors of predictions, and how far repair has to move them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..core.batch import Batch
from ..core.certificate import violations as violated
from ..core.history import History
from ..proxies import kind_of, open_problem
from ..proxies.answering.repair import Projection
from ..proxies.data import dataset
from ..proxies.data.sampling import Mode, Sampling
from ..proxies.learning.network import Rows
from ..proxies.learning.study import Run, Study
from ..proxies.learning.training import MODELS
from ..viewing.figures import multipliers_figure, traces_figure
from .figures import errors_figure
from .published import PUBLISHED, REPAIRS
from .tables import Figure, Part, summary

LABELS = 4000
SEEDS = 5


@dataclass(frozen=True)
class Options:
    """What to run; without cases, those of the paper."""

    cases: Sequence[str] | None = None
    samplings: Sequence[Mode] = ("shared", "independent")
    recipes: Sequence[str] | None = None
    """By default both, and of independent demands, which the paper does not have, ours alone."""
    samples: int | None = None
    """Labels; by default as many as can be had in reasonable time."""
    seeds: int | None = None
    """Networks of each kind; by default five, fewer where one takes very long."""
    epochs: int | None = None
    repairs: int = 100
    workers: int | None = None
    progress: bool | None = None
    quick: bool = False

    def of(self, kinds: Sequence[str]) -> list[tuple[str, str]]:
        """The cases of these kinds, each with its kind."""
        if self.cases is None:
            return [(kind, case) for kind in kinds for case in PUBLISHED[kind].cases]
        return [(kind_of(case), case) for case in self.cases if kind_of(case) in kinds]

    def recipes_of(self, mode: Mode) -> Sequence[str]:
        """The recipes for demands that are drawn so."""
        return self.recipes or (("paper", "tuned") if mode == "shared" else ("tuned",))

    def runs(self, study: Study) -> list[Run]:
        """All networks of a study."""
        fewer, name = PUBLISHED[study.problem.kind].seeds, study.problem.name
        return [
            run
            for recipe in self.recipes_of(study.sampling.mode)
            for run in Run.all_of(recipe, self.seeds or fewer.get((name, recipe), SEEDS), self.epochs)
        ]

    def studies(self, work: Path, kinds: Sequence[str]) -> tuple[list[Study], dict[str, str]]:
        """A study for each case of these kinds and each sampling; and the networks that cannot be had, with the reason.

        One that was asked for by name, and cannot be had, is an error.
        """
        cases = self.of(kinds)
        if not cases:
            raise ValueError(
                f"{', '.join(self.cases or ())}: no network of the kind {' or '.join(kinds)} among the cases"
            )
        found: list[Study] = []
        missing: dict[str, str] = {}
        for kind, case in cases:
            try:
                problem = open_problem(kind, case)
            except (ValueError, OSError) as error:
                if self.cases is not None:
                    raise
                missing[case] = str(error)
                continue
            for mode in self.samplings:
                published = PUBLISHED[kind]
                samples = self.samples or published.labels.get((problem.name, mode), LABELS)
                sampling = Sampling(mode=mode, hot_start=published.hot_start.get(mode, 0.0))
                folder = work / kind / f"{problem.name}-{mode}-{samples}"
                found.append(Study(problem, sampling, samples, folder, self.workers, self.progress))
        if not found:
            raise ValueError("; ".join(missing.values()))
        return found, missing


@dataclass(frozen=True)
class Table:
    """A page of results.

    Args:
        title: of the page.
        kinds: of networks.
        errors: 100·‖ŷ − y‖₁/‖y‖₁ by quantity on test rows, and ν of every law: the paper's first and second table.
        repairs: how far repair moves the controls, in %: the third table.
    """

    title: str
    kinds: tuple[str, ...]
    errors: bool = False
    repairs: bool = False


TABLES = {
    "power-errors": Table("Prediction errors on power networks", ("power",), errors=True),
    "gas-errors": Table("Prediction errors on gas networks", ("gas",), errors=True),
    "violations": Table("From predictions to feasible states", ("power", "gas"), repairs=True),
}
"""The paper's tables by their name on the command line."""

DEMO = Table("Learning AC optimal power flow", ("power",), errors=True, repairs=True)


def make(name: str, table: Table, out: Path, work: Path, options: Options) -> Part:
    """Label, train, score, repair and draw, for every case and sampling."""
    rows: list[dict[str, Any]] = []
    figures: list[Figure] = []
    facts: dict[str, str] = {}
    names: dict[str, str] = {}
    titles: dict[str, str] = {}
    notes: list[str] = []
    ascents: dict[str, dict[str, History]] = {}
    studies, missing = options.studies(work, table.kinds)
    for study in studies:
        problem, published = study.problem, PUBLISHED[study.problem.kind]
        recipes = options.recipes_of(study.sampling.mode)
        data = study.label()
        about = f"{problem.name}, {study.sampling.mode}"
        failed = ", ".join(f"{count} {reason}" for reason, count in sorted(data.failures.items())) or "none failed"
        facts[f"labels, {about}"] = f"{len(data)} rows of {data.draws} draws ({failed})"
        if problem.assumptions:
            facts[f"assumptions, {problem.name}"] = "; ".join(problem.assumptions)
        names |= published.names
        titles |= {law: f"ν{number} {law}" for law, number in problem.laws.items()}
        notes += [note for note in published.notes if note not in notes]
        runs = options.runs(study)
        study.train(runs)
        first = (study is studies[0]) and recipes[-1]  # whose pictures are shown at once
        if table.errors:
            rows += error_rows(study, runs, recipes)
            for recipe in recipes:
                histories = {model: _first(study, runs, recipe, model).history for model in MODELS}
                ascents.setdefault(recipe, {})[about] = histories["MCD"]
                path = f"nu-{problem.name}-{study.sampling.mode}-{recipe}.png"
                traces_figure(histories, out / path, titles)
                caption = f"Mean ν per law over the epochs: {about}, {recipe} recipe, seed 0."
                figures.append(Figure(path, caption, "" if recipe == first else "Violations over the epochs"))
        if table.repairs:
            repaired = study.repair(runs, options.repairs)
            rows += violation_rows(study, repaired, recipes, options.repairs)
            answers = [answer for found in repaired.values() for answer in found]
            certified = sum(answer["status"] == "certified" for answer in answers)
            cold = sum(answer["repair"] == "solver" for answer in answers)
            facts[f"repairs, {about}"] = f"{certified} of {len(answers)} certified, {cold} by a cold solve"
            for recipe in recipes:
                path = f"network-{problem.name}-{study.sampling.mode}-{recipe}.png"
                picture(study, _first(study, runs, recipe, "MCD"), data, out / path)
                caption = f"The test row that keeps the laws least, before and after repair: {about}, {recipe}, MCD."
                figures.append(Figure(path, caption, "" if recipe == first else "Maps of the networks"))
    for recipe, histories in ascents.items():
        path = f"multipliers-{name}-{recipe}.png"
        multipliers_figure(histories, out / path, titles)
        figures.insert(0, Figure(path, f"Multipliers of MCD over the epochs: {recipe} recipe, seed 0."))
    captions = {"violations": "Distance that repair moves, %"} | {f"{kind}-errors": "Errors, %" for kind in table.kinds}
    for kind, caption in captions.items():
        chosen = [row for row in rows if row["table"] == kind]
        if chosen:
            errors_figure(chosen, out / f"{kind}.png", names)
            figures.insert(0, Figure(f"{kind}.png", f"{caption}, by model; hollow: the paper's figures."))
    notes = [*(REPAIRS if table.repairs else ()), *notes]
    return Part(name, table.title, rows, figures, notes, facts, quick=options.quick, missing=missing)


def left(table: Table, work: Path, options: Options) -> dict[Path, float]:
    """What is still to be made, and how many seconds of one core each of it takes, as measured; NaN: nobody knows."""
    found: dict[Path, float] = {}
    for study in options.studies(work, table.kinds)[0]:
        cost = COSTS.get(study.problem.name, UNKNOWN)
        if not study.labelled:
            found[study.labels] = study.rows * cost.label[study.sampling.mode]
        runs = options.runs(study)
        size = study.rows / LABELS
        found |= {
            study.folder_of(run): BEGIN + size * cost.run[run.recipe] * run.epochs / 80
            for run in runs
            if not study.done(run)
        }
        if table.repairs:
            rows = min(options.repairs, study.rows // 5)
            found |= {
                study.repairs_of(run, options.repairs): rows * cost.repair
                for run in runs
                if not study.repairs_of(run, options.repairs).exists()
            }
    return found


@dataclass(frozen=True)
class Cost:
    """Seconds of one core of a 2-core machine."""

    label: Mapping[str, float]
    """By sampling; failed draws included."""
    run: Mapping[str, float]
    """By recipe, 80 epochs of 4000 labels; mean of the three models."""
    repair: float


BEGIN = 3.0
"""Of one core, for a run to read its labels, to fit its base and to be scored."""
COSTS = {
    "case30_ieee": Cost({"shared": 0.02, "independent": 0.01}, {"paper": 50, "tuned": 35}, 0.02),
    "case118_ieee": Cost({"shared": 0.04, "independent": 0.04}, {"paper": 120, "tuned": 45}, 0.08),
    "case300_ieee": Cost({"shared": 0.4, "independent": 6.0}, {"paper": 400, "tuned": 95}, 0.3),
    "24-pipe": Cost({"shared": 0.1, "independent": 0.1}, {"paper": 14, "tuned": 18}, 0.01),
    "gaslib-40": Cost({"shared": 0.1, "independent": 0.1}, {"paper": 20, "tuned": 20}, 0.01),
    "gaslib-135": Cost({"shared": 0.7, "independent": 0.7}, {"paper": 130, "tuned": 45}, 0.02),
}
"""Of the paper's networks."""
UNKNOWN = Cost(defaultdict(lambda: math.nan), defaultdict(lambda: math.nan), math.nan)


def error_rows(study: Study, runs: Sequence[Run], recipes: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the first or second table, and of ν per law, for one case and sampling."""
    rows = []
    kind = study.problem.kind
    base = study.baselines()
    for recipe in recipes:
        scores = {name: [found] for name, found in base.items()}
        scores |= {m: [study.scores(run) for run in runs if (run.recipe, run.model) == (recipe, m)] for m in MODELS}
        row = partial(_row, study=study, recipe=recipe, epochs=_epochs(runs, recipe))
        for model, found in scores.items():
            for quantity in found[0].errors:
                published = PUBLISHED[kind].errors.get(study.problem.name, {}).get(quantity)
                figure = summary([one.errors[quantity] for one in found])
                rows.append(row(f"{kind}-errors", model, quantity, "%", figure, published))
            for law in found[0].violations:
                figure = summary([one.violations[law] for one in found])
                rows.append(row(f"{kind}-laws", model, law, study.problem.units[law], figure))
            gap = summary([one.gap for one in found])
            rows.append(row(f"{kind}-laws", model, "cost gap", "%", gap))
    return rows


def violation_rows(
    study: Study, repaired: dict[Run, list[dict[str, Any]]], recipes: Sequence[str], count: int
) -> list[dict[str, Any]]:
    """Rows of the third table for one case and sampling; an answer that could not be certified has no distance."""
    rows = []
    kind = study.problem.kind
    for recipe in recipes:
        row = partial(_row, study=study, recipe=recipe, epochs=_epochs(list(repaired), recipe), repairs=count)
        for model in MODELS:
            found = [answers for run, answers in repaired.items() if (run.recipe, run.model) == (recipe, model)]
            held = [[answer for answer in answers if answer["status"] == "certified"] for answers in found]
            for control in study.problem.controls:
                published = PUBLISHED[kind].violations.get(study.problem.name, {}).get(control)
                figure = summary([fmean(a["moved"][control] for a in answers) for answers in held if answers])
                rows.append(row("violations", model, control, "%", figure, published))
            gaps = [[a["gap"] for a in answers if a["gap"] is not None] for answers in held]
            gap = summary([fmean(found) for found in gaps if found])
            share = summary([100 * len(kept) / len(every) for kept, every in zip(held, found, strict=True)])
            rows.append(row(f"{kind}-repairs", model, "cost gap", "%", gap))
            rows.append(row(f"{kind}-repairs", model, "certified", "%", share))
    return rows


def picture(study: Study, trained: Any, data: dataset.Dataset, path: Path) -> None:
    """The test row that keeps the laws least, before and after repair."""
    _, test = data.split()
    test = test.take(torch.arange(min(50, len(test))))
    problem = data.problem
    predicted = trained.proxy.predict(Rows.of(test))
    batch = Batch(inputs=test.demand, demand=test.demand)
    laws = problem.constraints(lambda states, _: states, torch.float64, labels=False)
    row = int(torch.stack([violated(law, predicted, batch).amax(1) for law in laws]).sum(0).argmax())
    demand, state = test.demand[row].numpy(), predicted[row].numpy()
    after = Projection(problem.solver())(demand, state)
    problem.draw(state, after.state, demand, path, f"{problem.name}, {study.sampling.mode} sampling")


def _row(
    table: str,
    model: str,
    quantity: str,
    unit: str,
    figure: dict[str, Any],
    published: tuple[float, ...] | None = None,
    *,
    study: Study,
    recipe: str,
    **more: Any,
) -> dict[str, Any]:
    paper = published[MODELS.index(model)] if published and model in MODELS else None
    return {
        "table": table,
        "case": study.problem.name,
        "sampling": study.sampling.mode,
        "recipe": recipe,
        "model": model,
        "quantity": quantity,
        **figure,
        "unit": unit,
        "paper": paper,
        "samples": study.rows,
        **more,
    }


def _epochs(runs: Sequence[Run], recipe: str) -> int:
    return next(run.epochs for run in runs if run.recipe == recipe)


def _first(study: Study, runs: Sequence[Run], recipe: str, model: str) -> Any:
    """The run of a model's first seed."""
    return study.trained(next(run for run in runs if (run.recipe, run.model) == (recipe, model)))

"""The paper's tables on power and gas networks: errors of predictions, and how far repair has to move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..batch import Batch
from ..certificate import violations as violated
from ..proxies import dataset, kind_of, open_problem
from ..proxies.network import Rows
from ..proxies.repair import Projection
from ..proxies.sampling import Mode, Sampling
from ..proxies.study import Run, Study
from ..proxies.training import MODELS
from .figures import errors_figure, traces_figure
from .published import PUBLISHED, REPAIRS
from .report import Figure, summary, write


@dataclass(frozen=True)
class Options:
    """What to run; without cases, those of the paper."""

    cases: Sequence[str] | None = None
    samplings: Sequence[Mode] = ("shared", "independent")
    recipes: Sequence[str] = ("tuned",)
    samples: int = 4000
    seeds: int = 5
    epochs: int | None = None
    repairs: int = 100
    workers: int | None = None
    progress: bool | None = None
    first: bool = False
    """Without cases: only the paper's first of each kind."""

    def of(self, kinds: Sequence[str]) -> list[tuple[str, str]]:
        """The cases of these kinds, each with its kind."""
        if self.cases is None:
            return [(kind, case) for kind in kinds for case in PUBLISHED[kind].cases[: 1 if self.first else None]]
        return [(kind_of(case), case) for case in self.cases if kind_of(case) in kinds]

    def studies(self, work: Path, kinds: Sequence[str]) -> list[Study]:
        """A study for each case of these kinds and each sampling; a network that cannot be had is told at once."""
        cases = self.of(kinds)
        if not cases:
            raise ValueError(
                f"{', '.join(self.cases or ())}: no network of the kind {' or '.join(kinds)} among the cases"
            )
        found = []
        for kind, case in cases:
            problem = open_problem(kind, case)
            for mode in self.samplings:
                sampling = Sampling(mode=mode, hot_start=PUBLISHED[kind].hot_start.get(mode, 0.0))
                folder = work / kind / f"{problem.name}-{mode}-{self.samples}"
                found.append(Study(problem, sampling, self.samples, folder, self.workers, self.progress))
        return found


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


def make(table: Table, out: Path, work: Path, options: Options, command: str) -> tuple[list[dict[str, Any]], Path]:
    """Label, train, score, repair, draw and write, for every case and sampling.

    Returns:
        the rows of `results.json`, and the page's path.
    """
    rows: list[dict[str, Any]] = []
    figures: list[Figure] = []
    facts = {"command": command}
    names: dict[str, str] = {}
    notes: list[str] = []
    for study in options.studies(work, table.kinds):
        problem, published = study.problem, PUBLISHED[study.problem.kind]
        data = study.label()
        name = f"{problem.name}, {study.sampling.mode}"
        failed = ", ".join(f"{count} {reason}" for reason, count in sorted(data.failures.items())) or "none failed"
        facts[f"labels, {name}"] = f"{len(data)} rows of {data.draws} draws ({failed})"
        if problem.assumptions:
            facts[f"assumptions, {problem.name}"] = "; ".join(problem.assumptions)
        names |= published.names
        notes += [note for note in published.notes if note not in notes]
        runs = study.train(options.recipes, options.seeds, options.epochs)
        if table.errors:
            rows += error_rows(study, runs, options.recipes)
            for recipe in options.recipes:
                histories = {model: _first(study, runs, recipe, model).history for model in MODELS}
                path = f"nu-{problem.name}-{study.sampling.mode}-{recipe}.png"
                traces_figure(histories, out / path, {law: f"ν{n} {law}" for law, n in problem.laws.items()})
                figures.append(Figure(path, f"Mean ν per law over the epochs: {name}, {recipe} recipe, seed 0"))
        if table.repairs:
            repaired = study.repair(runs, options.repairs)
            rows += violation_rows(study, repaired, options.recipes)
            answers = [answer for found in repaired.values() for answer in found]
            certified = sum(answer["status"] == "certified" for answer in answers)
            cold = sum(answer["repair"] == "solver" for answer in answers)
            facts[f"repairs, {name}"] = f"{certified} of {len(answers)} certified, {cold} by a cold solve"
        for recipe in options.recipes:
            path = f"network-{problem.name}-{study.sampling.mode}-{recipe}.png"
            picture(study, _first(study, runs, recipe, "MCD"), data, out / path)
            figures.append(Figure(path, f"A test row before and after repair: {name}, {recipe} recipe, MCD"))
    captions = {"violations": "Distance that repair moves, %"} | {f"{kind}-errors": "Errors, %" for kind in table.kinds}
    for name, caption in captions.items():
        chosen = [row for row in rows if row["table"] == name]
        if chosen:
            errors_figure(chosen, out / f"{name}.png", names)
            figures.insert(0, Figure(f"{name}.png", f"{caption}, by model; hollow: the paper's figures"))
    return rows, write(out, table.title, rows, figures, [*(REPAIRS if table.repairs else ()), *notes], facts)


def error_rows(study: Study, runs: Sequence[Run], recipes: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the first or second table, and of ν per law, for one case and sampling."""
    rows = []
    kind = study.problem.kind
    base = study.baselines()
    for recipe in recipes:
        scores = {name: [found] for name, found in base.items()}
        scores |= {m: [study.scores(run) for run in runs if (run.recipe, run.model) == (recipe, m)] for m in MODELS}
        for model, found in scores.items():
            for quantity in found[0].errors:
                published = PUBLISHED[kind].errors.get(study.problem.name, {}).get(quantity)
                figure = summary([one.errors[quantity] for one in found])
                rows.append(_row(f"{kind}-errors", study, recipe, model, quantity, "%", figure, published))
            for law in found[0].violations:
                figure = summary([one.violations[law] for one in found])
                rows.append(_row(f"{kind}-laws", study, recipe, model, law, study.problem.units[law], figure, None))
            gap = summary([one.gap for one in found])
            rows.append(_row(f"{kind}-laws", study, recipe, model, "cost gap", "%", gap, None))
    return rows


def violation_rows(
    study: Study, repaired: dict[Run, list[dict[str, Any]]], recipes: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of the third table for one case and sampling; an answer that could not be certified has no distance."""
    rows = []
    kind = study.problem.kind
    for recipe in recipes:
        for model in MODELS:
            found = [answers for run, answers in repaired.items() if (run.recipe, run.model) == (recipe, model)]
            held = [[answer for answer in answers if answer["status"] == "certified"] for answers in found]
            for control in study.problem.controls:
                published = PUBLISHED[kind].violations.get(study.problem.name, {}).get(control)
                figure = summary([fmean(a["moved"][control] for a in answers) for answers in held if answers])
                rows.append(_row("violations", study, recipe, model, control, "%", figure, published))
            gaps = [[a["gap"] for a in answers if a["gap"] is not None] for answers in held]
            gap = summary([fmean(found) for found in gaps if found])
            share = summary([100 * len(kept) / len(every) for kept, every in zip(held, found, strict=True)])
            rows.append(_row(f"{kind}-repairs", study, recipe, model, "cost gap", "%", gap, None))
            rows.append(_row(f"{kind}-repairs", study, recipe, model, "certified", "%", share, None))
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
    study: Study,
    recipe: str,
    model: str,
    quantity: str,
    unit: str,
    figure: dict[str, Any],
    published: tuple[float, ...] | None,
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
    }


def _first(study: Study, runs: Sequence[Run], recipe: str, model: str) -> Any:
    """The run of a model's first seed."""
    return study.trained(next(run for run in runs if (run.recipe, run.model) == (recipe, model)))

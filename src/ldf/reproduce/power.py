"""The paper's tables on power networks: errors of predictions, and how far repair has to move them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..power.plot import draw
from ..power.problem import Power
from ..proxies import dataset
from ..proxies.network import Rows
from ..proxies.repair import Projection
from ..proxies.sampling import Mode, Sampling
from ..proxies.study import Run, Study, summary
from ..proxies.training import MODELS
from .report import Figure, errors_figure, traces_figure, write

CASES = ("case30_ieee", "case118_ieee", "case300_ieee")

PAPER_ERRORS = {
    "case30_ieee": {
        "p": (3.3465, 0.3052, 0.0055),
        "v": (14.699, 0.3130, 0.0070),
        "theta": (4.3130, 0.0580, 0.0041),
        "pf": (27.213, 0.2030, 0.0620),
    },
    "case118_ieee": {
        "p": (0.2150, 0.0380, 0.0340),
        "v": (7.1520, 0.1170, 0.0290),
        "theta": (4.2600, 1.2750, 0.2070),
        "pf": (38.863, 0.6640, 0.4550),
    },
    "case300_ieee": {
        "p": (0.0838, 0.0174, 0.0126),
        "v": (28.025, 3.1130, 0.0610),
        "theta": (12.137, 7.2330, 2.5670),
        "pf": (125.47, 26.905, 1.1360),
    },
}
"""The paper's first table, %: M, M_C, M_C^D."""

PAPER_VIOLATIONS = {
    "case30_ieee": {"pg": (2.0793, 0.1815, 0.0007), "v": (83.138, 0.0944, 0.0037)},
    "case118_ieee": {"pg": (0.1071, 0.0043, 0.0038), "v": (3.4391, 0.0956, 0.0866)},
    "case300_ieee": {"pg": (0.0447, 0.0091, 0.0084), "v": (31.698, 0.2383, 0.1994)},
}
"""The power rows of the paper's third table, %: M, M_C, M_C^D."""

NAMES = {"p": "p^g", "v": "v", "theta": "θ", "pf": "p^f", "pg": "p^g"}

UNITS = {"angle": "rad", "thermal": "p.u.²"}
"""Of ν, where it is not per unit."""

NOTES = (
    "shared: one factor in [0.8, 1.2] for all loads, with a hot start from an optimal state within 1 %. independent: a "
    "factor for each load, no hot start. Draws without a solution are left out and counted.",
    "All models of a table see the same inputs, the earlier state included; the paper gives it to the constrained "
    "models only. previous repeats the earlier state, linear is ridge regression, mean is a constant.",
    "With shared sampling demands lie on a line. The closed-form base of the tuned recipe, which bends along it, "
    "leaves almost nothing to learn, and its models hardly differ.",
    "Cases are PGLib-OPF's. NESTA, which the paper used, became PGLib with other costs and limits in places; the "
    "paper's figures stand beside as they were printed.",
    "ν8 compares with the flows of the labels. Slips in the paper's degrees are corrected: σ5c has the lower bound, σ6 "
    "the squared limit, ν7 is a mean over buses. Both ends of a branch count in p^f and ν6.",
    "Paper recipe: five linear layers with ReLU, twice as wide as the output, raw per-unit values, Adam 1e-3, 80 "
    "epochs, batches of 64, λ = 1 (MC), λ ← λ + 1e-4 Σν (MCD), the last iterate. A tenth of the "
    "training rows is held out to choose on, in both recipes.",
)

REPAIR_NOTES = (
    "Repair is the projection min ‖p^g − p̂^g‖² + ‖v − v̂‖² under all of AC-OPF's constraints, started at the "
    "prediction. A distance is the mean of 100·‖ȳ − ŷ‖₂/‖ŷ‖₂ over the first test rows that could be certified.",
)


@dataclass(frozen=True)
class Options:
    """What to run."""

    cases: Sequence[str] = CASES
    samplings: Sequence[Mode] = ("shared", "independent")
    recipes: Sequence[str] = ("tuned",)
    samples: int = 4000
    seeds: int = 5
    epochs: int | None = None
    repairs: int = 100
    workers: int | None = None
    progress: bool | None = None

    def studies(self, work: Path) -> list[Study]:
        """A study for each case and sampling."""
        found = []
        for case in self.cases:
            problem = Power.open(case)
            for mode in self.samplings:
                sampling = Sampling(mode=mode, hot_start=0.01 if mode == "shared" else 0.0)
                folder = work / "power" / f"{problem.name}-{mode}-{self.samples}"
                found.append(Study(problem, sampling, self.samples, folder, self.workers, self.progress))
        return found


Made = tuple[list[dict[str, Any]], Path]
"""The rows of `results.json`, and the page's path."""


def power_errors(out: Path, work: Path, options: Options, command: str) -> Made:
    """The first table: 100·‖ŷ − y‖₁/‖y‖₁ of p^g, v, θ and p^f on test rows; and ν of every law."""
    return _report(out, work, options, command, "Prediction errors on power networks", errors=True)


def violations(out: Path, work: Path, options: Options, command: str) -> Made:
    """The power rows of the third table: how far repair moves p^g and v, in %."""
    return _report(out, work, options, command, "From predictions to feasible states", repairs=True)


def demonstrate(out: Path, work: Path, options: Options, command: str) -> Made:
    """Both tables on one page."""
    return _report(out, work, options, command, "Learning AC optimal power flow", errors=True, repairs=True)


def _report(
    out: Path, work: Path, options: Options, command: str, title: str, errors: bool = False, repairs: bool = False
) -> Made:
    """Label, train, score, repair, draw and write: for every case and sampling."""
    rows: list[dict[str, Any]] = []
    figures: list[Figure] = []
    facts = {"command": command}
    for study in options.studies(work):
        data = study.label()
        name = f"{study.problem.name}, {study.sampling.mode}"
        failed = ", ".join(f"{count} {reason}" for reason, count in sorted(data.failures.items())) or "none failed"
        facts[f"labels, {name}"] = f"{len(data)} rows of {data.draws} draws ({failed})"
        runs = study.train(options.recipes, options.seeds, options.epochs)
        if errors:
            rows += error_rows(study, runs, options.recipes)
            for recipe in options.recipes:
                histories = {model: _first(study, runs, recipe, model).history for model in MODELS}
                path = f"nu-{study.problem.name}-{study.sampling.mode}-{recipe}.png"
                traces_figure(histories, out / path, {law: f"ν{n} {law}" for law, n in study.problem.laws.items()})
                figures.append(Figure(path, f"Mean ν per law over the epochs: {name}, {recipe} recipe, seed 0"))
        if repairs:
            repaired = study.repair(runs, options.repairs)
            rows += violation_rows(study, repaired, options.recipes)
            answers = [answer for found in repaired.values() for answer in found]
            certified = sum(answer["status"] == "certified" for answer in answers)
            cold = sum(answer["repair"] == "solver" for answer in answers)
            facts[f"repairs, {name}"] = f"{certified} of {len(answers)} certified, {cold} by a cold solve"
            for recipe in options.recipes:
                path = f"network-{study.problem.name}-{study.sampling.mode}-{recipe}.png"
                picture(study, _first(study, runs, recipe, "MCD"), data, out / path)
                figures.append(Figure(path, f"A test row before and after repair: {name}, {recipe} recipe, MCD"))
    for table, caption in (("violations", "Distance that repair moves, %"), ("power-errors", "Errors, %")):
        chosen = [row for row in rows if row["table"] == table]
        if chosen:
            errors_figure(chosen, out / f"{table}.png", NAMES)
            figures.insert(0, Figure(f"{table}.png", f"{caption}, by model; hollow: the paper's figures"))
    return rows, write(out, title, rows, figures, [*(REPAIR_NOTES if repairs else ()), *NOTES], facts)


def error_rows(study: Study, runs: Sequence[Run], recipes: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the first table, and of ν per law, for one case and sampling."""
    rows = []
    base = study.baselines()
    for recipe in recipes:
        scores = {name: [found] for name, found in base.items()}
        scores |= {m: [study.scores(run) for run in runs if (run.recipe, run.model) == (recipe, m)] for m in MODELS}
        for model, found in scores.items():
            for quantity in found[0].errors:
                published = PAPER_ERRORS.get(study.problem.name, {}).get(quantity)
                figure = summary([one.errors[quantity] for one in found])
                rows.append(_row("power-errors", study, recipe, model, quantity, "%", figure, published))
            for law in found[0].violations:
                figure = summary([one.violations[law] for one in found])
                rows.append(_row("power-laws", study, recipe, model, law, UNITS.get(law, "p.u."), figure, None))
            rows.append(
                _row("power-laws", study, recipe, model, "cost gap", "%", summary([one.gap for one in found]), None)
            )
    return rows


def violation_rows(
    study: Study, repaired: dict[Run, list[dict[str, Any]]], recipes: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of the third table for one case and sampling; an answer that could not be certified has no distance."""
    rows = []
    for recipe in recipes:
        for model in MODELS:
            found = [answers for run, answers in repaired.items() if (run.recipe, run.model) == (recipe, model)]
            held = [[answer for answer in answers if answer["status"] == "certified"] for answers in found]
            for control in study.problem.controls:
                published = PAPER_VIOLATIONS.get(study.problem.name, {}).get(control)
                figure = summary([fmean(a["moved"][control] for a in answers) for answers in held if answers])
                rows.append(_row("violations", study, recipe, model, control, "%", figure, published))
            gaps = [[a["gap"] for a in answers if a["gap"] is not None] for answers in held]
            gap = summary([fmean(found) for found in gaps if found])
            share = summary([100 * len(kept) / len(every) for kept, every in zip(held, found, strict=True)])
            rows.append(_row("power-repairs", study, recipe, model, "cost gap", "%", gap, None))
            rows.append(_row("power-repairs", study, recipe, model, "certified", "%", share, None))
    return rows


def picture(study: Study, trained: Any, data: dataset.Dataset, path: Path) -> None:
    """The test row that keeps the laws least, before and after repair."""
    _, test = data.split()
    test = test.take(torch.arange(min(50, len(test))))
    problem = Power.load(study.labels)
    predicted = trained.proxy.predict(Rows.of(test))
    at = problem.physics(torch.float64)
    row = int(at.balance_p(at.states(predicted), test.demand).abs().amax(1).argmax())
    demand, state = test.demand[row].numpy(), predicted[row].numpy()
    after = Projection(problem.solver())(demand, state)
    draw(problem.case, state, after.state, demand, path, f"{problem.name}, {study.sampling.mode} sampling")


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


TABLES: dict[str, Callable[[Path, Path, Options, str], Made]] = {
    "power-errors": power_errors,
    "violations": violations,
}
"""The tables by their name on the command line."""

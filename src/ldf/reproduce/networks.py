"""The paper's tables on power and gas networks: prediction errors, and the distance that repair moves predictions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ..core.history import History
from ..proxies import kind_of, open_problem
from ..proxies.answering.certifier import Certifier
from ..proxies.answering.repair import SOLVED, Projection
from ..proxies.data import dataset
from ..proxies.data.labelling import DatasetError, label, read_manifest
from ..proxies.data.sampling import Mode, Sampling
from ..proxies.learning.evaluation import Scores, evaluate
from ..proxies.learning.network import Rows
from ..proxies.learning.training import MODELS, Trained, baselines, recipe_named, train
from ..proxies.problem import Problem
from ..viewing.figures import multipliers_figure, traces_figure
from . import jobs, operator
from .figures import errors_figure
from .jobs import Job
from .options import LABELS, Options
from .published import FIGURES
from .tables import Figure, Part, row_of

RECIPE = (
    "Paper recipe: five linear layers with ReLU, twice as wide as the output, raw per-unit values, Adam 1e-3, 80 "
    "epochs, batches of 64, λ = 1 (MC), λ ← λ + 1e-4 Σν (MCD), the last iterate. A tenth of the "
    "training rows is held out for validation, in both recipes."
)
LINE = (
    "With shared sampling all demands lie on a line. The closed-form base of the tuned recipe is piecewise linear "
    "along it and leaves almost nothing to learn, so M, MC and MCD hardly differ."
)

REPAIRS = (
    "Repair is the projection on the controls, min ‖p^g − p̂^g‖² + ‖v − v̂‖² or min ‖R − R̂‖², under all constraints of "
    "the model, started at the prediction. A distance is the mean of 100·‖ȳ − ŷ‖₂/‖ŷ‖₂ over the certified answers to "
    "the first test rows.",
)

NOTES = {
    "power": (
        "Power: shared demands have one factor in [0.8, 1.2] for all loads and a hot start from an optimal state "
        "within 1 %; independent demands have one factor per load and no hot start. Samples without a solution are "
        "left out and counted. For independent demands on 300 buses these are three of four, so 1000 labels are used "
        "instead of 4000. The paper's recipe is run on shared demands, on 300 buses with three seeds (each network "
        "takes seven minutes of a core, each repair a second); the tuned recipe on both.",
        "All models of a table have the same inputs, including the earlier state; the paper gives it to the "
        "constrained models only. previous repeats the earlier state, linear is ridge regression, mean is a constant.",
        LINE,
        "Cases are from PGLib-OPF. The paper used its predecessor NESTA, some of whose costs and limits differ. The "
        "paper's values are shown as printed.",
        "ν8 compares flows with those of the labels. Misprints in the paper's degrees are corrected: σ5c has the lower "
        "bound, σ6 the squared limit, ν7 is a mean over buses. Both ends of a branch count in p^f and ν6.",
        RECIPE,
    ),
    "gas": (
        "Gas: shared demands have one factor in [0.8, 1.2] for all loads, independent demands one per load; no earlier "
        "state, as in the paper. Samples without a solution are left out and counted. linear is ridge regression, mean "
        "is a constant.",
        LINE,
        "gaslib-40 and gaslib-135 are not the paper's 40-pipe and 135-pipe networks. Those have 26 and 19 loads and 6 "
        "and 10 compressors; GasLib's have 29 and 99 loads and 6 and 29 compressors. The paper's values are shown as "
        "printed. The assumptions made for each network are listed with its labels.",
        "q are the predicted flows. ν10 and ν14 use indirect flows, computed from pressures and ratios by Weymouth's "
        "law; σ14 is weighted by min(1, √W), and where W|q| < 0.001 the predicted flow is used.",
        "If a demand has several local optima, as on gaslib-135, its label is the cheapest one found. A term "
        "1e-5·Σ|R − 1| keeps compressors without flow at R = 1; it is not part of the cost.",
        RECIPE,
    ),
}
"""By kind, the differences between the paper's setting and ours."""

NAMES = {
    "power": {"p": "p^g", "v": "v", "theta": "θ", "pf": "p^f", "pg": "p^g"},
    "gas": {"R": "R", "p": "p", "q": "q"},
}
"""By kind, labels of the quantities in plots."""

PROJECTED = 1e-5
"""Tolerance of the violations table; the solver's own tolerance, which projections satisfy, is a hundredth of it."""
HOT_START = {("power", "shared"): 0.01}
"""By kind and sampling, the largest relative distance between the earlier demand and the present one."""


@dataclass(frozen=True)
class Table:
    """A page of results.

    Args:
        title: title of the page.
        kinds: kinds of networks.
        errors: whether it has 100·‖ŷ − y‖₁/‖y‖₁ by quantity on test rows, and ν of every law (Tables 1 and 2).
        repairs: whether it has the distance that repair moves the controls, in % (Table 3).
    """

    title: str
    kinds: tuple[str, ...]
    errors: bool = False
    repairs: bool = False


TABLES = {
    "power-errors": Table("Prediction errors on power networks", ("power",), errors=True),
    "gas-errors": Table("Prediction errors on gas networks", ("gas",), errors=True),
    "violations": Table("From predictions to feasible states", ("power", "gas"), repairs=True),
    "demo": Table("Learning AC optimal power flow", ("power",), errors=True, repairs=True),
}
"""The paper's tables by their name on the command line, and the demo."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one core of a 2-core machine."""

    label: Mapping[str, float]
    """Per label, by sampling; failed samples included."""
    run: Mapping[str, float]
    """Per network, by recipe: 80 epochs of 4000 labels, mean over M, MC and MCD."""
    repair: float


BEGIN = 3.0
"""Seconds of one core to read the labels, fit the base and score a network."""
COSTS = {
    "case30_ieee": Cost({"shared": 0.02, "independent": 0.01}, {"paper": 50, "tuned": 35}, 0.02),
    "case118_ieee": Cost({"shared": 0.04, "independent": 0.04}, {"paper": 120, "tuned": 45}, 0.08),
    "case300_ieee": Cost({"shared": 0.4, "independent": 6.0}, {"paper": 400, "tuned": 95}, 0.3),
    "24-pipe": Cost({"shared": 0.1, "independent": 0.1}, {"paper": 14, "tuned": 18}, 0.01),
    "gaslib-40": Cost({"shared": 0.1, "independent": 0.1}, {"paper": 20, "tuned": 20}, 0.01),
    "gaslib-135": Cost({"shared": 0.7, "independent": 0.7}, {"paper": 130, "tuned": 45}, 0.02),
}
"""Costs of the paper's networks."""
UNKNOWN = Cost(defaultdict(lambda: math.nan), defaultdict(lambda: math.nan), math.nan)


@dataclass(frozen=True)
class Labels:
    """A data set: a number of solved demands of one network."""

    kind: str
    case: str
    mode: Mode
    rows: int

    def folder(self, work: Path) -> Path:
        """The folder of the data set."""
        return work / self.kind / f"{self.case}-{self.mode}-{self.rows}" / "labels"

    def left(self, work: Path) -> dict[Path, float]:
        """Its folder and the seconds of one core that it takes; empty if it is complete."""
        folder = self.folder(work)
        try:
            if read_manifest(folder)["complete"]:
                return {}
        except DatasetError:
            pass
        return {folder: self.rows * self.cost.label[self.mode]}

    @property
    def cost(self) -> Cost:
        """Costs of the network."""
        return COSTS.get(self.case, UNKNOWN)


@dataclass(frozen=True)
class Training(Job):
    """One network: trained, and scored on the test rows."""

    unit = "run"
    labels: Labels
    recipe: str
    model: str
    seed: int
    epochs: int

    def describe(self) -> str:
        """Text of the progress line."""
        return f"{self.labels.case} {self.labels.mode}, {self.recipe} {self.model}, seed {self.seed}"

    def folder(self, work: Path) -> Path:
        """The folder of the network."""
        return self.labels.folder(work).parent / f"{self.recipe}-{self.epochs}" / f"{self.model}-{self.seed}"

    def path(self, work: Path) -> Path:
        """The file of its scores."""
        return self.folder(work) / "scores.json"

    @property
    def seconds(self) -> float:
        """Proportional to labels and epochs."""
        return BEGIN + self.labels.rows / LABELS * self.labels.cost.run[self.recipe] * self.epochs / 80

    def run(self, work: Path) -> dict[str, Any]:
        """Errors and violations on the test rows."""
        folder = self.labels.folder(work)
        data = dataset.load(folder)
        _, test = data.split()
        trained = train(
            data,
            self.model,
            recipe_named(self.recipe),
            seed=self.seed,
            epochs=self.epochs,
            folder=self.folder(work),
            facts={"data": str(folder.resolve())},
            progress=False,
        )
        return asdict(evaluate(trained.proxy.predict(Rows.of(test)), test))


@dataclass(frozen=True)
class Repairs(Job):
    """The first test rows of a network, repaired."""

    unit = "repair"
    training: Training
    rows: int

    def describe(self) -> str:
        """Text of the progress line."""
        return self.training.describe()

    def path(self, work: Path) -> Path:
        """The file of the certificates."""
        return self.training.folder(work) / f"repairs-{self.rows}.json"

    @property
    def seconds(self) -> float:
        """Seconds for all repairs; a fifth of the labels are test rows."""
        labels = self.training.labels
        return min(self.rows, labels.rows // 5) * labels.cost.repair

    @property
    def needs(self) -> Sequence[Training]:
        """The network to repair."""
        return [self.training]

    def run(self, work: Path) -> list[dict[str, Any]]:
        """For each row its certificate, and the distance that the controls moved."""
        _, test = dataset.load(self.training.labels.folder(work)).split()
        test = test.take(torch.arange(min(self.rows, len(test))))
        trained = Trained.load(self.training.folder(work), test.problem)
        certifier, projection = Certifier(test.problem, PROJECTED), Projection(test.problem.solver())
        predicted = trained.proxy.predict(Rows.of(test)).numpy()
        return [
            certifier.answer(demand, state, projection, optimum=best).to_dict()
            for demand, state, best in zip(test.demand.numpy(), predicted, test.objective.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Study:
    """One data set and all networks trained on it."""

    problem: Problem
    labels: Labels
    runs: Sequence[Training]

    @property
    def recipes(self) -> list[str]:
        """Recipes of the networks, in order."""
        return list(dict.fromkeys(run.recipe for run in self.runs))

    def of(self, recipe: str, model: str) -> list[Training]:
        """The networks of all seeds, for a recipe and a model."""
        return [run for run in self.runs if (run.recipe, run.model) == (recipe, model)]

    def first(self, recipe: str, model: str, work: Path) -> Trained:
        """The network of a model's first seed."""
        return Trained.load(self.of(recipe, model)[0].folder(work), self.problem)

    def label(self, options: Options) -> None:
        """Label what is missing of the data set, on all cores."""
        mode = self.labels.mode
        sampling = Sampling(mode=mode, hot_start=HOT_START.get((self.labels.kind, mode), 0.0))
        folder = self.labels.folder(options.work)
        label(self.problem, self.labels.rows, sampling, folder, workers=options.workers, progress=options.progress)

    def row(self, recipe: str, **more: Any) -> Callable[..., dict[str, Any]]:
        """A function that makes a row of results.json from table name, model, quantity, unit and values."""
        labels, epochs = self.labels, next(run.epochs for run in self.runs if run.recipe == recipe)
        place: dict[str, Any] = {"case": labels.case, "sampling": labels.mode, "recipe": recipe}
        return partial(row_of, **place, samples=labels.rows, epochs=epochs, **more)


def cases_of(options: Options) -> list[tuple[str, str]]:
    """(kind, case) for the cases of a table; by default those of the paper."""
    kinds = TABLES[options.table].kinds
    if not options.cases:
        return [(kind, case) for kind in kinds for case in FIGURES[f"{kind}-errors"]]
    return [(kind, case) for case in options.cases if (kind := kind_of(case)) in kinds]


def studies_of(options: Options) -> tuple[list[Study], dict[str, str]]:
    """A study for each case and sampling of a table; and the networks that are not available, with the reason.

    A network asked for by name that is not available is an error.
    """
    cases = cases_of(options)
    if not cases:
        kinds = " or ".join(TABLES[options.table].kinds)
        raise ValueError(f"{', '.join(options.cases)}: no network of the kind {kinds} among the cases")
    found: list[Study] = []
    missing: dict[str, str] = {}
    for kind, case in cases:
        try:
            problem = open_problem(kind, case)
        except (ValueError, OSError) as error:
            if options.cases:
                raise
            missing[case] = str(error)
            continue
        for mode in options.samplings:
            labels = Labels(kind, problem.name, mode, options.labels_of(problem.name, mode))
            runs = [
                Training(labels, recipe, model, seed, options.epochs or recipe_named(recipe).epochs)
                for recipe in options.recipes_of(mode)
                for seed in range(options.seeds_of(problem.name, recipe))
                for model in MODELS
            ]
            found.append(Study(problem, labels, runs))
    if not found:
        raise ValueError("; ".join(missing.values()))
    return found, missing


def cells(studies: Sequence[Study], options: Options) -> list[Job]:
    """All networks of a table, and their repairs if the table has them."""
    runs = [run for study in studies for run in study.runs]
    return [*runs, *(Repairs(run, options.repairs) for run in runs if TABLES[options.table].repairs)]


def left(options: Options) -> dict[Path, float]:
    """Files still to be made, with the seconds of one core for each; NaN if not known."""
    studies, _ = studies_of(options)
    found = {path: cost for study in studies for path, cost in study.labels.left(options.work).items()}
    return found | jobs.left(cells(studies, options), options.work)


def make(options: Options) -> Part:
    """Label, train, score, repair and draw, for every case and sampling."""
    name, table, out = options.table, TABLES[options.table], options.out
    rows: list[dict[str, Any]] = []
    figures: list[Figure] = []
    facts: dict[str, str] = {}
    names: dict[str, str] = {}
    titles: dict[str, str] = {}
    notes = [*(REPAIRS if table.repairs else ())]
    ascents: dict[str, dict[str, History]] = {}
    studies, missing = studies_of(options)
    for study in studies:
        study.label(options)
    found = jobs.run(cells(studies, options), options.work, options.workers, options.progress)
    for study in studies:
        problem, labels = study.problem, study.labels
        data = dataset.load(labels.folder(options.work), problem)
        about = f"{labels.case}, {labels.mode}"
        failed = ", ".join(f"{count} {reason}" for reason, count in sorted(data.failures.items())) or "none failed"
        facts[f"labels, {about}"] = f"{len(data)} rows from {data.draws} samples ({failed})"
        if problem.assumptions:
            facts[f"assumptions, {problem.name}"] = "; ".join(problem.assumptions)
        names |= NAMES[problem.kind]
        titles |= {law: f"ν{number} {law}" for law, number in problem.laws.items()}
        notes += [note for note in NOTES[problem.kind] if note not in notes]
        shown = study.recipes[-1] if study is studies[0] else ""  # the only one whose plots are not folded away
        if table.errors:
            rows += error_rows(study, data, found)
            for recipe in study.recipes:
                histories = {model: study.first(recipe, model, options.work).history for model in MODELS}
                ascents.setdefault(recipe, {})[about] = histories["MCD"]
                path = f"nu-{labels.case}-{labels.mode}-{recipe}.png"
                traces_figure(histories, out / path, titles)
                caption = f"Mean ν per constraint over the epochs: {about}, {recipe} recipe, seed 0."
                figures.append(Figure(path, caption, "" if recipe == shown else "Violations over the epochs"))
        if table.repairs:
            repaired = {run: found[Repairs(run, options.repairs)] for run in study.runs}
            rows += violation_rows(study, repaired, options.repairs)
            answers = [answer for own in repaired.values() for answer in own]
            certified = sum(answer["status"] == "certified" for answer in answers)
            cold = sum(answer["repair"] in SOLVED for answer in answers)
            facts[f"repairs, {about}"] = f"{certified} of {len(answers)} certified, {cold} by a cold solve"
            for recipe in study.recipes:
                path = f"network-{labels.case}-{labels.mode}-{recipe}.png"
                network_map(study.first(recipe, "MCD", options.work), data, out / path)
                caption = f"The test row with the largest violations, before and after repair: {about}, {recipe}, MCD."
                figures.append(Figure(path, caption, "" if recipe == shown else "Maps of the networks"))
    answer = None
    if name == "demo":
        study = studies[0]
        data = dataset.load(study.labels.folder(options.work), study.problem)
        run = study.of(study.recipes[-1], "MCD")[0].folder(options.work)
        answer = operator.answered(run, data, out / "answer.png")
    for recipe, histories in ascents.items():
        path = f"multipliers-{name}-{recipe}.png"
        multipliers_figure(histories, out / path, titles)
        figures.insert(0, Figure(path, f"Multipliers of MCD over the epochs: {recipe} recipe, seed 0."))
    captions = {"violations": "Distance moved by repair, %"} | {f"{kind}-errors": "Errors, %" for kind in table.kinds}
    for kind, caption in captions.items():
        chosen = [row for row in rows if row["table"] == kind]
        if chosen:
            errors_figure(chosen, out / f"{kind}.png", names)
            figures.insert(0, Figure(f"{kind}.png", f"{caption}, by model; hollow: the paper's values."))
    return Part(name, table.title, rows, figures, notes, facts, quick=options.quick, missing=missing, answer=answer)


def error_rows(study: Study, data: dataset.Dataset, found: Mapping[Job, Any]) -> list[dict[str, Any]]:
    """Rows of Table 1 or 2, and of ν per constraint, for one case and sampling."""
    rows = []
    kind = study.problem.kind
    _, test = data.split()
    base = {name: [evaluate(predict(test), test)] for name, predict in baselines(data).items()}
    for recipe in study.recipes:
        row = study.row(recipe)
        scores = base | {model: [Scores(**found[run]) for run in study.of(recipe, model)] for model in MODELS}
        for model, own in scores.items():
            for quantity in own[0].errors:
                rows.append(row(f"{kind}-errors", model, quantity, "%", [one.errors[quantity] for one in own]))
            for law in own[0].violations:
                unit = study.problem.units[law]
                rows.append(row(f"{kind}-laws", model, law, unit, [one.violations[law] for one in own]))
            rows.append(row(f"{kind}-laws", model, "cost gap", "%", [one.gap for one in own]))
    return rows


def violation_rows(
    study: Study, repaired: Mapping[Training, Sequence[Mapping[str, Any]]], count: int
) -> list[dict[str, Any]]:
    """Rows of Table 3 for one case and sampling; only certified answers have a distance."""
    rows = []
    kind = study.problem.kind
    for recipe in study.recipes:
        row = study.row(recipe, repairs=count)
        for model in MODELS:
            found = [repaired[run] for run in study.of(recipe, model)]
            held = [[answer for answer in answers if answer["status"] == "certified"] for answers in found]
            for control in study.problem.controls:
                moved = [fmean(answer["moved"][control] for answer in answers) for answers in held if answers]
                rows.append(row("violations", model, control, "%", moved))
            gaps = [[answer["gap"] for answer in answers if answer["gap"] is not None] for answers in held]
            share = [100 * len(kept) / len(every) for kept, every in zip(held, found, strict=True)]
            rows.append(row(f"{kind}-repairs", model, "cost gap", "%", [fmean(own) for own in gaps if own]))
            rows.append(row(f"{kind}-repairs", model, "certified", "%", share))
    return rows


def network_map(trained: Trained, data: dataset.Dataset, path: Path) -> None:
    """Draw the test row with the largest violations, before and after projection."""
    _, test = data.split()
    test = test.take(torch.arange(min(operator.FIRST, len(test))))
    predicted = trained.proxy.predict(Rows.of(test))
    row = operator.hardest(test, predicted)
    demand, state = test.demand[row].numpy(), predicted[row].numpy()
    after = Projection(data.problem.solver())(demand, state)
    data.problem.draw(state, after.state, demand, path, f"{data.problem.name}, {data.sampling.mode} sampling")

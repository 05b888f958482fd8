"""`ldf solve`, `label`, `train`, `evaluate`, `predict`, `doctor`: an optimisation problem, from data to answers."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..core.certificate import TOLERANCE
from ..proxies.registry import OWN, kinds
from .options import Epochs, Workers, advice

if TYPE_CHECKING:
    from ..proxies.nlp import Solution
    from ..proxies.problem import Problem

app = typer.Typer()

KINDS = kinds()
OTHERS = f" {', '.join(KINDS[len(OWN) :])}: see the package." if len(KINDS) > len(OWN) else ""
Kind = Annotated[str, typer.Argument(help=f"Kind of problem: {', '.join(KINDS)}.")]
Mode = Literal["shared", "independent"]
Model = Literal["M", "MC", "MCD"]
RecipeName = Literal["paper", "tuned"]
SolverName = Literal["ldf", "ipopt"]
How = Literal["fast", "projection", "optimal", "none"]
Case = Annotated[
    str,
    typer.Argument(
        help="power: a PGLib name such as case30_ieee, or a MATPOWER .m file. gas: 24-pipe, gaslib-40, gaslib-135, or "
        f"a MATGAS .m, GasLib .net or .zip, or .json file.{OTHERS}"
    ),
]
Run = Annotated[Path, typer.Argument(help="Folder of a trained network.")]
STATUSES = ("certified", "uncertified", "unsolvable")
TOGETHER = 256
"""Number of demands answered in one batch."""
DEMANDS = (
    "CSV or Parquet file, one row per demand. power: column p5 (or 5) is MW at bus 5, q5 MVAr; without q5, q keeps the "
    f"nominal power factor. gas: column 5 (or q5) is kg/s at junction 5.{OTHERS} Loads without a column keep their "
    "nominal demand."
)


@app.command()
def solve(
    kind: Kind,
    case: Case,
    demands: Annotated[Path | None, typer.Option(help=DEMANDS)] = None,
    solver: Annotated[
        SolverName | None,
        typer.Option(
            help="ldf: the interior point for power networks, with IPOPT where it does not decide; ipopt: IPOPT alone. "
            "By default ldf for power networks, if numba is installed, else ipopt."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: an object, or a list of them.")] = False,
) -> None:
    """Solve the nominal demand, or a file of demands, to optimality."""
    from ..io.text import Progress, table
    from ..proxies import open_problem

    problem = open_problem(kind, case)
    wanted = problem.nominal[None] if demands is None else _demands(demands, problem)
    solving = problem.solver(solver)
    answers: list[dict[str, Any]] = []
    line = Progress(len(wanted), "demand", None)
    together = TOGETHER if solving.threads else 1
    for first in range(0, len(wanted), together):
        answers += [_solution(problem, found) for found in solving.many(wanted[first : first + together])]
        line.update(len(answers), lambda: problem.name)
    if as_json:
        typer.echo(json.dumps(answers[0] if demands is None else answers, indent=1))
    else:
        rows = [
            [
                i,
                a["status"],
                "–" if a["objective"] is None else f"{a['objective']:.2f}",
                a["solver"],
                a["iterations"],
                a["seconds"],
            ]
            for i, a in enumerate(answers, 1)
        ]
        objective = f"objective {problem.units.get('objective', '')}".rstrip()
        typer.echo(table(["demand", "status", objective, "solver", "iterations", "seconds"], rows))
        if demands is None and answers[0]["state"]:
            parts = {**answers[0]["state"], **{name: answers[0][name] for name in problem.priced}}
            spans = [
                [f"{name} {problem.units.get(name, '')}".rstrip(), min(values.values()), max(values.values())]
                for name, values in parts.items()
                if values
            ]
            typer.echo("\n" + table(["", "minimum", "maximum"], spans))
        if problem.assumptions:
            typer.echo("\nAssumptions:\n" + "\n".join(f"- {line}" for line in problem.assumptions))
        for i, answer in enumerate(answers, 1):
            if answer["reason"]:
                typer.echo(f"demand {i} is {answer['status']}: {answer['reason']}", err=True)
    if any(answer["status"] != "optimal" for answer in answers):
        raise typer.Exit(1)


@app.command()
def label(
    kind: Kind,
    case: Case,
    out: Annotated[Path, typer.Option(help="Folder of the data set; an unfinished data set is resumed.")],
    n: Annotated[int, typer.Option("-n", "--rows", min=1, help="Number of solved demands.")] = 4000,
    sampling: Annotated[
        Mode, typer.Option(help="shared: one random factor for all loads; independent: one per load.")
    ] = "shared",
    low: Annotated[float, typer.Option(help="Smallest factor on nominal demand.")] = 0.8,
    high: Annotated[float, typer.Option(help="Largest factor on nominal demand.")] = 1.2,
    noise: Annotated[float, typer.Option(help="Extra independent noise per load, as a fraction.")] = 0.0,
    hot_start: Annotated[
        float,
        typer.Option(help="Also give each row the optimal state of a demand within this fraction (paper: 0.01)."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for sampling.")] = 0,
    workers: Workers = None,
) -> None:
    """Sample demands, solve them on all cores, and write Parquet shards."""
    from ..proxies import open_problem
    from ..proxies.data import labelling
    from ..proxies.data.sampling import Sampling

    problem = open_problem(kind, case)
    drawn = Sampling(sampling, low, high, noise, hot_start)
    begun = time.monotonic()
    done = labelling.label(problem, n, drawn, out, seed=seed, workers=workers, progress=True)
    failed = ", ".join(f"{count} {reason}" for reason, count in sorted(done["failures"].items())) or "none failed"
    typer.echo(f"{n} rows in {out}, from {done['draws']} samples ({failed}), {time.monotonic() - begun:.1f} s")


@app.command()
def train(
    kind: Kind,
    data: Annotated[Path, typer.Argument(help="Folder of a data set made by `ldf label`.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run is resumed.")],
    model: Annotated[Model, typer.Option(help="M: no constraints; MC: λ = 1; MCD: λ by dual ascent.")] = "MCD",
    recipe: Annotated[RecipeName, typer.Option(help="Training settings: the paper's, or the tuned ones.")] = "tuned",
    epochs: Epochs = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for weights, batches and held-out rows.")] = 0,
) -> None:
    """Train a network on labelled demands."""
    import torch

    from ..proxies.answering.answers import points_of
    from ..proxies.data import dataset
    from ..proxies.learning import training as runs

    torch.set_num_threads(1)
    labelled = dataset.load(data)
    if labelled.problem.kind != kind:
        raise ValueError(f"{data} has labels of kind {labelled.problem.kind}, not {kind}")
    chosen = runs.recipe_named(recipe)
    place = {"data": str(data.resolve())}
    done = runs.train(labelled, model, chosen, seed=seed, epochs=epochs, folder=out, facts=place, progress=True)
    points_of(done, out, progress=True)
    typer.echo(f"{model} in {out}, best epoch {done.facts['best_epoch']} of {done.facts['epochs']}")
    typer.echo(advice(done.facts))


@app.command()
def evaluate(
    run: Run,
    data: Annotated[Path | None, typer.Option(help="Data set to evaluate on; by default the training one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print errors of states and prices, violations and cost gap on test rows, next to the baselines."""
    from dataclasses import asdict

    from ..io.text import number, table
    from ..proxies.data import dataset
    from ..proxies.learning.evaluation import evaluate as score
    from ..proxies.learning.network import Rows
    from ..proxies.learning.training import Trained, baselines

    trained = Trained.load(run)
    place = data or Path(trained.facts.get("data", ""))
    labelled = dataset.load(place)
    if labelled.problem.fingerprint != trained.problem.fingerprint:
        raise ValueError(
            f"{place} has labels of {labelled.problem.name}, but the run was trained on {trained.problem.name}"
        )
    if trained.proxy.hot and not labelled.hot:
        raise ValueError(f"{place} has no earlier states, but {run} was trained with a hot start")
    _, test = labelled.split()
    model = trained.facts["model"]
    states = {name: predict(test) for name, predict in baselines(labelled).items()}
    states[model] = trained.proxy.predict(Rows.of(test))
    prices, priced = {}, labelled.priced()
    if priced is not None:
        _, rows = priced.split()
        prices = {name: predict(rows) for name, predict in baselines(priced).items()}
        if trained.prices is not None:
            prices[model] = trained.prices.predict(Rows.of(rows))
    scores = {name: score(found, test, prices.get(name)) for name, found in states.items()}
    if as_json:
        typer.echo(json.dumps({name: asdict(found) for name, found in scores.items()}, indent=1))
        return
    first = next(iter(scores.values()))
    lines = [[f"error {q} %", *[number(s.errors[q]) for s in scores.values()]] for q in first.errors]
    lines += [
        [f"error {part} %", *[number(s.prices[part]) if s.prices is not None else "–" for s in scores.values()]]
        for part in first.prices or ()
    ]
    lines += [[f"mean ν {law}", *[number(s.violations[law]) for s in scores.values()]] for law in first.violations]
    lines += [["cost gap %", *[number(s.gap) for s in scores.values()]]]
    typer.echo(table([f"{len(test)} test rows", *scores], lines))


@app.command()
def predict(
    run: Run,
    demands: Annotated[Path, typer.Option(help=DEMANDS)],
    out: Annotated[Path, typer.Option(help="Output file for answers, .csv or .parquet.")],
    repair: Annotated[
        How,
        typer.Option(
            help="fast: from the prediction to a certified state at least cost; projection: nearest feasible state; "
            "optimal: the optimum, to the solver's own precision; none: the prediction itself."
        ),
    ] = "fast",
    tolerance: Annotated[
        float, typer.Option(help="Largest violation of a certified answer, per unit or radians.")
    ] = TOLERANCE,
    gap: Annotated[
        bool, typer.Option("--gap", help="Also solve each demand, to report the cost gap to the optimum.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(help="Milliseconds that a repair may take; a demand that takes longer has no answer."),
    ] = None,
) -> None:
    """Answer demands with a trained network: repaired, with prices, each with a certificate."""
    import torch

    from ..io.files import check_writable
    from ..io.text import Progress
    from ..proxies.answering.answers import Responder
    from ..proxies.answering.certifier import Answer
    from ..proxies.answering.files import write_answers

    torch.set_num_threads(1)
    check_writable(out, "answers")
    seconds = None if budget is None else budget / 1e3
    respond = Responder.open(run, repair, tolerance, gap, progress=True, budget=seconds)
    wanted = _demands(demands, respond.problem)
    answers: list[Answer] = []
    line = Progress(len(wanted), "answer", None)
    for first in range(0, len(wanted), TOGETHER):
        answers.extend(respond.many(wanted[first : first + TOGETHER]))
        line.update(len(answers), lambda: answers[-1].status)
    write_answers(out, respond.problem, answers)
    for row, answer in enumerate(answers, 1):
        if answer.warning:
            typer.echo(f"Warning: demand {row} is outside the training range: {answer.warning}", err=True)
        if answer.status == "unsolvable":
            typer.echo(f"demand {row} has no answer: {answer.reason}", err=True)
    counts = Counter(answer.status for answer in answers)
    routes = Counter(answer.repair for answer in answers if answer.status != "unsolvable")
    said = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    ways = ", ".join(f"{count} by {route}" for route, count in routes.most_common())
    each = 1e3 * sum(answer.seconds for answer in answers) / len(answers)
    typer.echo(f"{said} at {tolerance:g} in {out} ({ways or 'none'}; {each:.3g} ms per answer)")


@app.command()
def doctor(run: Run) -> None:
    """Report which constraints are not satisfied, why, and what to change."""
    from ..proxies.learning.training import Trained

    trained = Trained.load(run)
    typer.echo(f"{trained.facts['model']}, {trained.facts['recipe']} recipe, {trained.facts['case']}")
    typer.echo(advice(trained.facts))


def _demands(path: Path, problem: Problem) -> Any:
    from ..proxies.answering.files import read_demands

    return read_demands(path, problem)


def _solution(problem: Problem, found: Solution) -> dict[str, Any]:
    """A solved demand as JSON data."""
    answer: dict[str, Any] = {
        "case": problem.name,
        "status": found.status,
        "reason": found.reason,
        "objective": found.objective if found.solved else None,
        "solver": found.solver,
        "iterations": found.iterations,
        "seconds": found.seconds,
        "state": None,
    }
    if found.solved:
        answer |= {"state": problem.present(found.state), **problem.duals(found), "units": dict(problem.units)}
        answer["multipliers"] = problem.multipliers(found)
    if problem.assumptions:
        answer["assumptions"] = list(problem.assumptions)
    return answer

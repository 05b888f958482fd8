"""The command line. What is slow to import is imported by the command that needs it."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import __version__
from . import cli_transprecision as transprecision

if TYPE_CHECKING:
    from .proxies.problem import Problem, Solver
    from .reproduce.plan import Job

app = typer.Typer(
    name="ldf",
    help="Train neural networks under constraints by Lagrangian duality: train, repair, certify.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(transprecision.app)


Kind = Literal["power", "gas"]
Mode = Literal["shared", "independent"]
Model = Literal["M", "MC", "MCD"]
RecipeName = Literal["paper", "tuned"]
How = Literal["fast", "projection", "optimal", "none"]
Modes = Literal["shared", "independent", "both"]
Recipes = Literal["paper", "tuned", "both"]
Table = Literal[
    "power-errors",
    "gas-errors",
    "violations",
    "transprecision",
    "fairness",
    "relaxed-fairness",
    "fairness-traces",
    "all",
]
Case = Annotated[
    str,
    typer.Argument(
        help="power: a PGLib name such as case30_ieee, or a MATPOWER .m file. gas: 24-pipe, gaslib-40, gaslib-135, or "
        "a MATGAS .m, GasLib .net or .zip, or .json file."
    ),
]
Run = Annotated[Path, typer.Argument(help="The folder of a trained network.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; all cores by default.")]
Seeds = Annotated[int, typer.Option(min=1, help="Networks of each kind.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the data; the recipe's own by default.")]
STATUSES = ("certified", "uncertified", "unsolvable")
TOGETHER = 256
"""Demands that are answered at once."""
DEMANDS = (
    "CSV or Parquet, a row for each demand. power: column p5 (or 5) is MW at bus 5, q5 MVAr there; q follows p at the "
    "nominal power factor. gas: column 5 (or q5) is kg/s at junction 5. What is left out keeps its nominal demand."
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ldf {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("out/demo"),
    case: Annotated[str, typer.Option(help="A PGLib name or the path of a MATPOWER .m file.")] = "case30_ieee",
    samples: Annotated[int, typer.Option(min=20, help="Demands to label, a fifth of them to test on.")] = 1000,
    seeds: Seeds = 2,
    epochs: Epochs = 60,
    workers: Workers = None,
) -> None:
    """Learn AC optimal power flow end to end: label demands, train M, MC and MCD, repair, certify, report.

    A run that was stopped goes on where it was. Takes a few minutes on two cores.
    """
    from .reproduce.networks import DEMO, Options, left, make
    from .reproduce.plan import Job

    options = Options(
        cases=[case],
        samplings=["independent"],
        recipes=["tuned"],
        samples=samples,
        seeds=seeds,
        epochs=epochs,
        repairs=min(50, samples // 5),
        workers=workers,
        progress=True,
    )
    work = out / "work"
    job = Job("demo", lambda: left(DEMO, work, options), lambda: make("demo", DEMO, out, work, options))
    _report([job], out, workers)


@app.command()
def solve(
    kind: Kind,
    case: Case,
    demands: Annotated[Path | None, typer.Option(help=DEMANDS)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: an object, or a list for a file.")] = False,
) -> None:
    """Solve one demand, the nominal one by default, or a file of them: the ground truth."""
    from .proxies import open_problem
    from .text import table

    problem = open_problem(kind, case)
    wanted = problem.nominal[None] if demands is None else _demands(demands, problem)
    solver = problem.solver()
    answers = [_solution(problem, solver, demand) for demand in wanted]
    if as_json:
        typer.echo(json.dumps(answers[0] if demands is None else answers, indent=1))
    else:
        rows = [
            [i, a["status"], "–" if a["objective"] is None else f"{a['objective']:.2f}", a["iterations"], a["seconds"]]
            for i, a in enumerate(answers, 1)
        ]
        objective = f"objective {problem.units['objective']}"
        typer.echo(table(["demand", "status", objective, "iterations", "seconds"], rows))
        if demands is None and answers[0]["state"]:
            duals = {name: answers[0][name] for name in problem.units if isinstance(answers[0].get(name), dict)}
            parts = {**answers[0]["state"], **duals}
            spans = [
                [f"{name} {problem.units[name]}".rstrip(), min(values.values()), max(values.values())]
                for name, values in parts.items()
                if values
            ]
            typer.echo("\n" + table(["", "least", "most"], spans))
        if problem.assumptions:
            typer.echo("\nAssumed:\n" + "\n".join(f"- {line}" for line in problem.assumptions))
    if any(answer["status"] != "optimal" for answer in answers):
        raise typer.Exit(1)


@app.command()
def label(
    kind: Kind,
    case: Case,
    out: Annotated[Path, typer.Option(help="The folder of the data set; one that was begun is gone on with.")],
    n: Annotated[int, typer.Option("-n", "--rows", min=1, help="Solved demands to have in the end.")] = 4000,
    sampling: Annotated[Mode, typer.Option(help="One factor for all loads, or one for each.")] = "shared",
    low: Annotated[float, typer.Option(help="The smallest factor on nominal demands.")] = 0.8,
    high: Annotated[float, typer.Option(help="The largest.")] = 1.2,
    noise: Annotated[float, typer.Option(help="Each load varies by ± this share besides.")] = 0.0,
    hot_start: Annotated[
        float, typer.Option(help="With 0.01 a row also has an earlier demand, within 1 %, and its state.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    workers: Workers = None,
) -> None:
    """Draw demands and solve them on all cores, into Parquet shards."""
    from .proxies import labelling, open_problem
    from .proxies.sampling import Sampling

    problem = open_problem(kind, case)
    drawn = Sampling(sampling, low, high, noise, hot_start)
    begun = time.monotonic()
    done = labelling.label(problem, n, drawn, out, seed=seed, workers=workers, progress=True)
    failed = ", ".join(f"{count} {reason}" for reason, count in sorted(done["failures"].items())) or "none failed"
    typer.echo(f"{n} rows of {done['draws']} draws ({failed}) in {out}, {time.monotonic() - begun:.1f} s")


@app.command()
def train(
    kind: Kind,
    data: Annotated[Path, typer.Argument(help="The folder of a data set, made by `ldf label`.")],
    out: Annotated[Path, typer.Option(help="The folder of the run; one that was stopped is gone on with.")],
    model: Annotated[Model, typer.Option(help="M: no constraints; MC: λ = 1; MCD: λ by dual ascent.")] = "MCD",
    recipe: Annotated[RecipeName, typer.Option(help="What the paper prescribes, or what works best.")] = "tuned",
    epochs: Epochs = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, batches and held-out rows.")] = 0,
) -> None:
    """Train a network on labelled demands."""
    import torch

    from .proxies import dataset
    from .proxies import training as runs
    from .proxies.answers import points_of

    torch.set_num_threads(1)
    labelled = dataset.load(data)
    if labelled.problem.kind != kind:
        raise ValueError(f"{data} has labels for {labelled.problem.kind}, not for {kind}")
    chosen = runs.recipe_named(recipe)
    place = {"data": str(data.resolve())}
    done = runs.train(labelled, model, chosen, seed=seed, epochs=epochs, folder=out, facts=place, progress=True)
    points_of(done, out, progress=True)
    typer.echo(f"{model} in {out}, best epoch {done.facts['best_epoch']} of {done.facts['epochs']}")
    typer.echo(done.facts["doctor"])


@app.command()
def evaluate(
    run: Run,
    data: Annotated[Path | None, typer.Option(help="Another data set; by default the one trained on.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Errors of states and prices, violations and cost gap on test rows, beside the baselines."""
    from dataclasses import asdict

    from .proxies import dataset
    from .proxies.evaluation import evaluate as score
    from .proxies.network import Rows
    from .proxies.training import Trained, baselines
    from .text import number, table

    trained = Trained.load(run)
    place = data or Path(trained.facts.get("data", ""))
    labelled = dataset.load(place)
    if labelled.problem.fingerprint != trained.problem.fingerprint:
        raise ValueError(f"{place} has labels of {labelled.problem.name}, the run is of {trained.problem.name}")
    if trained.proxy.hot and not labelled.hot:
        raise ValueError(f"{place} has no earlier states, and {run} was trained with a hot start")
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
    out: Annotated[Path, typer.Option(help="The file to write answers to, .csv or .parquet.")],
    repair: Annotated[
        How,
        typer.Option(
            help="fast: the fastest that certifies, in milliseconds; projection: the nearest feasible state; optimal: "
            "the optimum, by the solver from the prediction; none: the prediction as it is."
        ),
    ] = "fast",
    tolerance: Annotated[
        float, typer.Option(help="Certify answers that keep every law up to this, per unit or radians.")
    ] = 1e-4,
    gap: Annotated[
        bool, typer.Option("--gap", help="Solve each demand too, to say how far its answer's cost is from the optimum.")
    ] = False,
) -> None:
    """Answer demands with a trained network: repaired, priced, and each with its certificate."""
    import torch

    from .files import check_writable
    from .proxies.answers import Responder
    from .proxies.files import write_answers
    from .proxies.repair import Answer
    from .text import Progress

    torch.set_num_threads(1)
    check_writable(out, "answers")
    respond = Responder.open(run, repair, tolerance, gap, progress=True)
    wanted = _demands(demands, respond.problem)
    respond(wanted[0])  # solvers are built when they are first asked: before the clock runs
    answers: list[Answer] = []
    line = Progress(len(wanted), "answer", None)
    for first in range(0, len(wanted), TOGETHER):
        answers.extend(respond.many(wanted[first : first + TOGETHER]))
        line.update(len(answers), lambda: answers[-1].status)
    write_answers(out, respond.problem, answers)
    for row, answer in enumerate(answers, 1):
        if answer.warning:
            typer.echo(f"Warning: demand {row} is outside of what was trained on: {answer.warning}", err=True)
        if answer.status == "unsolvable":
            typer.echo(f"demand {row} has no answer: {answer.reason}", err=True)
    counts = Counter(answer.status for answer in answers)
    routes = Counter(answer.repair for answer in answers if answer.status != "unsolvable")
    said = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    ways = ", ".join(f"{count} by {route}" for route, count in routes.most_common())
    each = 1e3 * sum(answer.seconds for answer in answers) / len(answers)
    typer.echo(f"{said} at {tolerance:g} in {out} ({ways or 'none'}; {each:.3g} ms an answer)")


@app.command()
def doctor(run: Run) -> None:
    """Say which law does not hold, why, and what to change."""
    from .proxies.training import Trained

    trained = Trained.load(run)
    typer.echo(f"{trained.facts['model']}, {trained.facts['recipe']} recipe, {trained.facts['case']}")
    typer.echo(trained.facts["doctor"])


@app.command()
def reproduce(
    table: Annotated[Table, typer.Argument(help="The table, or all of them.")],
    out: Annotated[Path, typer.Option(help="The folder for results.json, table.md, figures and index.html.")],
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="A network, a size of training sets (transprecision) or a reading such as adult-sex (fairness); may "
            "be given several times. All by default."
        ),
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="transprecision: a kernel; may be given several times.")
    ] = None,
    sampling: Annotated[
        Modes | None, typer.Option(help="How demands are drawn; both by default, with --quick as in the paper: shared.")
    ] = None,
    recipe: Annotated[
        Recipes | None,
        typer.Option(
            help="The paper's recipe, ours, or both; by default both, and of independent demands, which the paper does "
            "not have, ours."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=20, help="Labels; 4000 by default, 1000 of independent demands on 300 buses.")
    ] = None,
    epochs: Epochs = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Networks of each kind, 5 by default (3 by the paper's recipe on 300 buses); training sets for "
            "transprecision, 10; folds for fairness, 5.",
        ),
    ] = None,
    repairs: Annotated[
        int | None, typer.Option(min=1, help="Test rows to repair, for violations; 100 by default.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look in ten minutes at most: few labels, epochs and seeds.")
    ] = False,
    work: Annotated[
        Path | None,
        typer.Option(help="Where labels and networks lie, for tables to share; OUT/work by default."),
    ] = None,
    workers: Workers = None,
) -> None:
    """Make a table of the paper again, or all of them on one page, from labels to pictures.

    Says first how long it will take, and goes on where it was stopped.
    """
    from .reproduce import plan

    wish = plan.Wish(
        table=table,
        cases=case,
        kernels=kernel,
        samplings=None if sampling is None else ["shared", "independent"] if sampling == "both" else [sampling],
        recipes=None if recipe is None else ["paper", "tuned"] if recipe == "both" else [recipe],
        samples=samples,
        epochs=epochs,
        seeds=seeds,
        repairs=repairs,
        quick=quick,
        workers=workers,
    )
    _report(plan.plan(wish, out, work or out / "work"), out, workers)


def _report(jobs: Sequence[Job], out: Path, workers: int | None) -> None:
    """Say how long it takes, make the tables, and end with 1 where one of them is missing."""
    from .reproduce import plan, targets
    from .reproduce.tables import terminal

    typer.echo(plan.expected(jobs, workers or os.cpu_count() or 1), err=True)
    parts, missing, page = plan.run(jobs, out, _command())
    for part in parts:
        typer.echo(terminal(part.rows) + "\n")
    if len(parts) > 1:
        typer.echo("\n".join(targets.summary(parts)) + "\n")
    for name, reason in missing.items():
        typer.echo(f"missing: {name}: {reason}", err=True)
    typer.echo(page)
    if missing:
        raise typer.Exit(1)


def _command() -> str:
    """The command as it was typed."""
    return shlex.join(["ldf", *sys.argv[1:]])


def _demands(path: Path, problem: Problem) -> Any:
    from .proxies.files import read_demands

    return read_demands(path, problem)


def _solution(problem: Problem, solver: Solver, demand: Any) -> dict[str, Any]:
    """What a program wants to know of a solved demand."""
    found = solver.solve(demand)
    answer: dict[str, Any] = {
        "case": problem.name,
        "status": found.status,
        "objective": found.objective if found.solved else None,
        "iterations": found.iterations,
        "seconds": found.seconds,
        "state": None,
    }
    if found.solved:
        answer |= {"state": problem.present(found.state), **problem.duals(found), "units": dict(problem.units)}
    if problem.assumptions:
        answer["assumptions"] = list(problem.assumptions)
    return answer

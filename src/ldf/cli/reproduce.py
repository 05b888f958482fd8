"""`ldf demo` and `ldf reproduce`: a first look, and the paper's tables."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .options import Epochs, Workers

if TYPE_CHECKING:
    from ..reproduce.options import Options

app = typer.Typer()

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
Seeds = Annotated[int, typer.Option(min=1, help="Number of networks per model.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("out/demo"),
    case: Annotated[str, typer.Option(help="A PGLib name, or the path of a MATPOWER .m file.")] = "case30_ieee",
    samples: Annotated[
        int, typer.Option(min=20, help="Number of labelled demands; a fifth of them are test rows.")
    ] = 1000,
    seeds: Seeds = 2,
    epochs: Epochs = 60,
    workers: Workers = None,
) -> None:
    """Learn AC optimal power flow end to end: label demands, train M, MC and MCD, repair, certify, report.

    Takes about a minute on two cores. A stopped run resumes.
    """
    from ..reproduce.options import Options

    options = Options(
        table="demo",
        out=out,
        work=out / "work",
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
    _report([options])


@app.command()
def reproduce(
    table: Annotated[Table, typer.Argument(help="Table to reproduce, or all of them.")],
    out: Annotated[Path, typer.Option(help="Output folder for results.json, table.md, plots and index.html.")],
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="A network, a training set size (transprecision), or a variant such as adult-sex (fairness). Repeat "
            "for several; all by default."
        ),
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option(help="transprecision: a kernel. Repeat for several.")] = None,
    sampling: Annotated[
        Modes | None,
        typer.Option(help="How demands are sampled; both by default, shared (as in the paper) with --quick."),
    ] = None,
    recipe: Annotated[
        Recipes | None,
        typer.Option(
            help="The paper's recipe, the tuned one, or both. By default both; for independent demands, which the "
            "paper does not have, tuned."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=20, help="Labels per network; 4000 by default, 1000 for independent demands on 300 buses."),
    ] = None,
    epochs: Epochs = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Networks per model, 5 by default (3 for the paper's recipe on 300 buses); training sets for "
            "transprecision, 10; folds for fairness, 5.",
        ),
    ] = None,
    repairs: Annotated[
        int | None, typer.Option(min=1, help="violations: number of test rows to repair; 100 by default.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Few labels, epochs and seeds: ten minutes at most; results are not for comparison."
        ),
    ] = False,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder of labels and networks, which tables may share; OUT/work by default."),
    ] = None,
    workers: Workers = None,
) -> None:
    """Reproduce a table of the paper, or all of them on one page, from labels to plots.

    Prints an estimate of the time first. A stopped run resumes.
    """
    from ..reproduce.options import Options
    from ..reproduce.plan import plan

    asked = Options(
        table=table,
        out=out,
        work=work or out / "work",
        cases=case or (),
        kernels=kernel or (),
        samplings=() if sampling is None else ["shared", "independent"] if sampling == "both" else [sampling],
        recipes=() if recipe is None else ["paper", "tuned"] if recipe == "both" else [recipe],
        samples=samples,
        epochs=epochs,
        seeds=seeds or 0,
        repairs=repairs or 0,
        quick=quick,
        workers=workers,
        progress=True,
    )
    _report(plan(asked))


def _report(tables: Sequence[Options]) -> None:
    """Print the expected time, make the tables, and exit with 1 if one of them is missing."""
    from ..reproduce import plan, targets
    from ..reproduce.tables import terminal

    typer.echo(plan.expected(tables, tables[0].workers or os.cpu_count() or 1), err=True)
    parts, missing, page = plan.run(tables, _command())
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
    """The command as typed."""
    return shlex.join(["ldf", *sys.argv[1:]])

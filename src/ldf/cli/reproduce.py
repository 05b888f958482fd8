"""`ldf demo` and `ldf reproduce`: the paper's tables, and a first look."""

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
Seeds = Annotated[int, typer.Option(min=1, help="Networks of each kind.")]


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
    table: Annotated[Table, typer.Argument(help="The table, or all of them.")],
    out: Annotated[Path, typer.Option(help="The folder for results.json, table.md, figures and index.html.")],
    case: Annotated[
        list[str] | None,
        typer.Option(
            help="A network, a size of training sets (transprecision) or a variant such as adult-sex (fairness); may "
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
    """Say how long it takes, make the tables, and end with 1 where one of them is missing."""
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
    """The command as it was typed."""
    return shlex.join(["ldf", *sys.argv[1:]])

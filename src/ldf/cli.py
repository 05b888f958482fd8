"""The command line. What is slow to import is imported by the command that needs it."""

from pathlib import Path
from typing import Annotated

import typer

from . import __version__

app = typer.Typer(
    name="ldf",
    help="Train neural networks under constraints by Lagrangian duality: train, repair, certify.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 80,
    seeds: Annotated[int, typer.Option(min=1, help="Models of each kind.")] = 5,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew, even if the folder has a run.")] = False,
) -> None:
    """Learn to share a load between four units: without constraints (M), with λ = 1 (MC) and by dual ascent (MCD).

    Shows errors, violations and multipliers, and writes them as JSON, CSV and a picture. A run that was stopped goes on
    where it was.
    """
    import torch
    from rich.console import Console

    from .demo import run

    torch.set_num_threads(1)  # the networks are small: a second thread costs more than it brings
    if fresh:
        (out / "checkpoint" / "checkpoint.safetensors").unlink(missing_ok=True)
    run(out, epochs=epochs, seeds=seeds, show=Console(highlight=False, soft_wrap=True).print, progress=True)

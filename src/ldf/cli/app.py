"""The `ldf` command. Slow imports are made by the commands that need them."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import networks, reproduce, transprecision

app = typer.Typer(
    name="ldf",
    help="Train neural networks under constraints by Lagrangian duality: train, repair, certify.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (reproduce, networks):
    app.add_typer(group.app)
app.add_typer(transprecision.app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ldf {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass

"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Workers = Annotated[int | None, typer.Option(min=1, help="Number of processes; all cores by default.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Number of epochs; the recipe's by default.")]

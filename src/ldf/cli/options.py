"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Workers = Annotated[int | None, typer.Option(min=1, help="Processes; all cores by default.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over the data; the recipe's own by default.")]

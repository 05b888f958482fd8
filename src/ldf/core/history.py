"""The training history: loss, ν and λ of every constraint, per epoch."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..io.text import table, write_whole


class History:
    """A table with one row per epoch.

    Columns: epoch, loss, steps (of the optimiser, so far), lr, seconds, and for every constraint nu_mean/…, nu_max/…,
    lambda/…, penalty/… (Σ λν, as it entered the loss) and excess/… (the largest mean ν of a column as a multiple of its
    tolerance); with validation data also val_loss, val_nu_mean/…, val_nu_max/… and val/… for each metric.

    `history["loss"]` is a column; `pandas.DataFrame(history.rows)` makes a data frame.

    >>> history = History([{"epoch": 1, "loss": 0.5}])
    >>> history.append({"epoch": 2, "loss": 0.25, "lambda/balance": 1.0})
    >>> history["loss"], history["lambda/balance"]
    ([0.5, 0.25], [nan, 1.0])
    """

    def __init__(self, rows: Iterable[Mapping[str, float]] = ()) -> None:
        self.rows: list[dict[str, float]] = [dict(row) for row in rows]

    def append(self, row: Mapping[str, float]) -> None:
        """Add an epoch; in your own training loop: `history.append(lagrangian.ascend())`."""
        self.rows.append({"epoch": len(self.rows) + 1, **row})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> list[float]:
        if self.rows and not any(column in row for row in self.rows):
            raise KeyError(f"no column {column!r} in this history; it has: {', '.join(self.columns)}")
        return [row.get(column, math.nan) for row in self.rows]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def constraints(self) -> list[str]:
        """The names of the constraints in this history."""
        return [name.removeprefix("nu_mean/") for name in self.columns if name.startswith("nu_mean/")]

    def __str__(self) -> str:
        names = [name for name in self.columns if name in ("epoch", "loss", "val_loss")]
        names += [f"{part}/{name}" for name in self.constraints for part in ("nu_mean", "nu_max", "lambda")]
        stride = max(1, math.ceil(len(self.rows) / 20))
        shown = [row for index, row in enumerate(self.rows) if index % stride == 0 or index == len(self.rows) - 1]
        return table(names, [[row.get(name, math.nan) for name in names] for row in shown])

    def to_csv(self, path: str | Path) -> None:
        """Write all columns to a file, atomically."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="nan")
        writer.writeheader()
        writer.writerows(self.rows)
        write_whole(Path(path), text.getvalue())

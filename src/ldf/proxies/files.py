"""Demands from a user's file, answers to one: CSV or Parquet, in the units people use."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ..text import write_whole
from .labelling import write_table
from .problem import Floats, Problem
from .repair import Answer


def read_demands(path: Path, problem: Problem) -> Floats:
    """[B, D] from a file with a row for each demand; what its columns are called, the problem says."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".parquet":
            table = pq.read_table(path)
        elif path.suffix.lower() == ".csv":
            table = pa.csv.read_csv(path)
        else:
            raise ValueError(
                f"{path}: demands are read from .csv or .parquet files, not {path.suffix or 'without suffix'}"
            )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is damaged or no table: {error}") from error
    if not table.num_rows:
        raise ValueError(f"{path} has no row")
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise ValueError(f"{path}: there is more than one column {name!r}")
        values = table[name].to_pylist()
        for row, value in enumerate(values, 1):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{path}: column {name!r}, row {row}: expected a number, got {value!r}")
        columns[name] = values
    try:
        return problem.demands(columns, table.num_rows)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_answers(path: Path, problem: Problem, answers: Sequence[Answer]) -> None:
    """A row for each answer: its certificate, then its state; an unsolvable demand has no state."""
    rows = [_flat(problem, answer) for answer in answers]
    names = list(dict.fromkeys(name for row in rows for name in row))
    if path.suffix.lower() == ".parquet":
        write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def check_answers(path: Path) -> None:
    """Refuse a file name that answers cannot be written to, before any work is done."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{path}: answers are written to .csv or .parquet files")


def _flat(problem: Problem, answer: Answer) -> dict[str, Any]:
    solvable = answer.status != "unsolvable"
    row: dict[str, Any] = {
        "status": answer.status,
        "reason": answer.reason,
        "warning": answer.warning or "",
        "repair": answer.repair,
        "seconds": answer.seconds,
        "objective": answer.objective if solvable else None,
        "gap_percent": answer.gap,
    }
    row |= {f"moved_{name}_percent": value for name, value in answer.moved.items()} if solvable else {}
    row |= {f"nu_{name}": value for name, value in answer.violations.items()}
    parts = problem.present(answer.state) if solvable else {}
    return row | {f"{name}{number}": value for name, part in parts.items() for number, value in part.items()}

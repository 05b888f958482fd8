"""Read demands from a user's file and write answers to one: CSV or Parquet, in display units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...io.files import read_columns, write_columns
from ..problem import Floats, Problem
from .certifier import Answer


def read_demands(path: Path, problem: Problem) -> Floats:
    """[B, D] from a file with one row per demand; the problem defines the names of the columns."""
    columns = read_columns(path, "demands")
    try:
        return problem.demands(columns, len(next(iter(columns.values()))))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_answers(path: Path, problem: Problem, answers: Sequence[Answer]) -> None:
    """Write one row per answer: its certificate, then its state and prices; an unsolvable demand has neither."""
    rows = [_flat(problem, answer) for answer in answers]
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_columns(path, {name: [row.get(name) for row in rows] for name in names})


def _flat(problem: Problem, answer: Answer) -> dict[str, Any]:
    solvable = answer.status != "unsolvable"
    row: dict[str, Any] = {
        "status": answer.status,
        "reason": answer.reason,
        "warning": answer.warning or "",
        "tolerance": answer.tolerance,
        "repair": answer.repair,
        "milliseconds": 1e3 * answer.seconds,
        "objective": answer.objective if solvable else None,
        "gap_percent": answer.gap,
    }
    row |= {f"moved_{name}_percent": value for name, value in answer.moved.items()} if solvable else {}
    row |= {f"nu_{name}": value for name, value in answer.violations.items()}
    parts = problem.present(answer.state) if solvable else {}
    if solvable and answer.prices is not None:
        parts |= problem.name_prices(answer.prices)
    return row | {f"{name}{number}": value for name, part in parts.items() for number, value in part.items()}

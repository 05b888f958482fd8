"""Tables that people bring and take away: CSV or Parquet, read with their faults named, written whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from .text import write_whole


def read_columns(path: Path, what: str) -> dict[str, list[int | float]]:
    """The columns of a file by name, all of numbers and of the same length; at least one row.

    Args:
        what: the rows are, for messages: "demands".
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".parquet":
            table = pq.read_table(path)
        elif path.suffix.lower() == ".csv":
            table = pa.csv.read_csv(path)
        else:
            raise ValueError(
                f"{path}: {what} are read from .csv or .parquet files, not {path.suffix or 'without suffix'}"
            )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is damaged or no table: {error}") from error
    if not table.num_rows:
        raise ValueError(f"{path} has no row")
    columns: dict[str, list[int | float]] = {}
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise ValueError(f"{path}: there is more than one column {name!r}")
        values = table[name].to_pylist()
        for row, value in enumerate(values, 1):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{path}: column {name!r}, row {row}: expected a number, got {value!r}")
        columns[name] = values
    return columns


def write_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """A .csv or .parquet file with these columns; None is an empty cell."""
    if path.suffix.lower() == ".parquet":
        write_table(pa.table({name: list(values) for name, values in columns.items()}), path)
        return
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_whole(path, text.getvalue())


def write_table(table: pa.Table, path: Path) -> None:
    """A Parquet file, whole or not at all."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    write_whole(path, sink.getvalue().to_pybytes())


def check_writable(path: Path, what: str) -> None:
    """Refuse a file name that a table cannot be written to, before any work is done."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{path}: {what} are written to .csv or .parquet files")

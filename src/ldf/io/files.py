"""Read and write tables as CSV or Parquet; errors name the column and row, and writes are atomic."""

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
    """The numeric columns of a file by name, with at least one row.

    Args:
        what: what the rows are, for messages, such as "demands".
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
                f"{path}: {what} are read from .csv or .parquet files, not {path.suffix or 'files without a suffix'}"
            )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is damaged or not a table: {error}") from error
    if not table.num_rows:
        raise ValueError(f"{path} has no rows")
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
    """Write a .csv or .parquet file with these columns; None becomes an empty cell."""
    if path.suffix.lower() == ".parquet":
        write_table(pa.table({name: list(values) for name, values in columns.items()}), path)
        return
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_whole(path, text.getvalue())


def write_table(table: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    write_whole(path, sink.getvalue().to_pybytes())


def check_writable(path: Path, what: str) -> None:
    """Raise early if a table cannot be written to a file of this name."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{path}: {what} are written to .csv or .parquet files")

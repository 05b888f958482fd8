"""Tables of configurations and errors: sampled and run for a kernel, or read from a file."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
import pyarrow as pa

from ..io.files import check_writable, read_columns, write_columns, write_table
from ..io.text import Progress
from .dominance import Ints
from .kernels import CHUNK, LOW, Kernel, open_kernel, target
from .precision import FULL, Floats

RESULTS = ("error", "target")
"""Columns of a labelled table that are not widths."""


@dataclass(frozen=True)
class Table:
    """Configurations [n, variables] and their targets [n]."""

    variables: tuple[str, ...]
    configurations: Ints
    targets: Floats

    def __len__(self) -> int:
        return len(self.configurations)


def draw(variables: int, n: int, seed: int, low: int = LOW, high: int = FULL) -> Ints:
    """n distinct configurations, each width uniform between low and high; a larger n extends the same sequence.

    If at most n configurations exist, all of them in random order.
    """
    if not 1 <= low <= high <= FULL:
        raise ValueError(f"widths must satisfy 1 ≤ low ≤ high ≤ {FULL} bits, got low = {low} and high = {high}")
    generator = np.random.default_rng([seed, variables])
    count = (high - low + 1) ** variables
    if count <= n:
        every = np.stack(np.meshgrid(*[np.arange(low, high + 1)] * variables, indexing="ij"), -1)
        return generator.permutation(every.reshape(-1, variables))
    # Blocks of a fixed size, so that the first configurations do not depend on n.
    found = np.zeros((0, variables), dtype=np.int64)
    while len(found) < n:
        found = np.concatenate([found, generator.integers(low, high + 1, (4096, variables))])
        _, first = np.unique(found, axis=0, return_index=True)
        found = found[np.sort(first)]
    return found[:n]


def run(kernel: Kernel, configurations: Ints, workers: int | None = None, progress: bool | None = None) -> Floats:
    """Errors of all configurations, [n]; in parallel if the run is long and the kernel can be opened by name."""
    count = len(configurations)
    line = Progress(count, "configuration", progress)
    errors = np.empty(count)
    done = 0
    begun = time.monotonic()
    while done < count:
        part = slice(done, done + CHUNK)
        errors[part] = kernel.errors(configurations[part])
        done = min(done + CHUNK, count)
        line.update(done, lambda: kernel.name)
        left = (time.monotonic() - begun) / done * (count - done)
        if kernel.source is not None and left > 5.0 and workers != 1:
            break
    parts = [slice(start, start + CHUNK) for start in range(done, count, CHUNK)]
    if parts:
        pool = joblib.Parallel(n_jobs=workers or -1, return_as="generator")
        jobs = (joblib.delayed(_errors)(kernel.source, configurations[part]) for part in parts)
        for part, found in zip(parts, pool(jobs), strict=True):
            errors[part] = found
            line.update(min(part.stop, count), lambda: kernel.name)
    return errors


def _errors(source: str, configurations: Ints) -> Floats:
    return open_kernel(source).errors(configurations)


def label(
    kernel: Kernel,
    n: int,
    path: Path | None = None,
    *,
    seed: int = 0,
    low: int = LOW,
    high: int = FULL,
    workers: int | None = None,
    progress: bool | None = None,
) -> Table:
    """Sample n configurations, run them and, if a path is given, write widths, error and target (y) as columns."""
    if path is not None:
        check_writable(path, "labels")
        taken = [name for name in kernel.variables if name in RESULTS]
        if taken:
            raise ValueError(
                f"kernel {kernel.name!r}: the variable name {taken[0]!r} is reserved for a result column; rename it"
            )
    configurations = draw(len(kernel.variables), n, seed, low, high)
    errors = run(kernel, configurations, workers, progress)
    targets = target(errors)
    if path is not None:
        columns = dict(zip(kernel.variables, configurations.T, strict=True))
        columns |= {"error": errors, "target": targets}
        if path.suffix.lower() == ".parquet":
            facts = {"kernel": kernel.name, "seed": seed, "low": low, "high": high}
            table = pa.table(columns).replace_schema_metadata({"ldf": json.dumps(facts)})
            write_table(table, path)
        else:
            write_columns(path, {name: values.tolist() for name, values in columns.items()})
    return Table(kernel.variables, configurations, targets)


def read_table(path: Path, target_name: str | None = None, variables: Sequence[str] | None = None) -> Table:
    """Read a table of configurations with a target.

    Args:
        target_name: column to learn; by default `target` or, if there is none, `error`, which is converted to y.
        variables: integer columns with the widths; by default all columns except the target column, error and target.
    """
    columns = read_columns(path, "configurations")
    name = target_name or next((name for name in reversed(RESULTS) if name in columns), None)
    if name is None or name not in columns:
        wanted = target_name or " or ".join(reversed(RESULTS))
        raise ValueError(f"{path} has no target column: expected {wanted}, found {', '.join(columns)}")
    values = np.array(columns[name], dtype=np.float64)
    if target_name is None and name == "error":
        if (values < 0).any() or np.isnan(values).any():
            raise ValueError(f"{path}: column 'error': values must be numbers ≥ 0")
        values = target(values)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"{path}: column {name!r}, row {bad[0] + 1}: expected a finite number, got {values[bad[0]]}")
    names = tuple(variables or (other for other in columns if other != name and other not in RESULTS))
    return Table(names, configurations_of(columns, names, path), values)


def read_configurations(path: Path, variables: Sequence[str]) -> Ints:
    """Read configurations from a file with a column for each of these variables."""
    return configurations_of(read_columns(path, "configurations"), variables, path)


def configurations_of(columns: dict[str, list[int | float]], variables: Sequence[str], path: Path) -> Ints:
    """[n, variables] integers, or an error that names the column and the row."""
    if not variables:
        raise ValueError(f"{path} has no column of widths")
    for name in variables:
        if name not in columns:
            raise ValueError(f"{path} has no column {name!r}; it has: {', '.join(columns)}")
        for row, value in enumerate(columns[name], 1):
            if value != value or value in (float("inf"), -float("inf")) or int(value) != value:
                raise ValueError(f"{path}: column {name!r}, row {row}: expected an integer, got {value}")
    return np.array([columns[name] for name in variables], dtype=np.int64).T

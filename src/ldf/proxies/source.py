"""Helpers to read any network: tables of MATLAB files, a fingerprint, and a check that it is connected."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class NetworkError(ValueError):
    """A network cannot be used: the message names the file, the entry and what is expected."""


def read_text(path: Path) -> str:
    """The text of a network's file."""
    if not path.is_file():
        raise NetworkError(f"there is no file {path}")
    try:
        return path.read_text(encoding="utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise NetworkError(f"{path} is not a text file: {error}") from error


def without_comments(text: str) -> str:
    """MATLAB text without comments."""
    return re.sub(r"%[^\n]*", "", text)


def as_number(token: str, where: str) -> float:
    """Parse a token as a number."""
    try:
        return float(token)
    except ValueError:
        raise NetworkError(f"{where}: expected a number, got {token!r}") from None


def scalar(plain: str, name: str) -> str | None:
    """The value of `name = …`, or None if there is no such line."""
    found = re.search(rf"{re.escape(name)}\s*=\s*([^;\n]+)", plain)
    return found[1].strip() if found else None


def table(plain: str, name: str, least: int, where: str, ragged: bool = False) -> Floats | None:
    """The rows of `name = [ … ]`, [rows, columns], with NaN for quoted text; None if there is no such table.

    Args:
        plain: text without comments.
        least: minimum number of columns.
        ragged: rows may differ in length; shorter ones are padded with NaN.
    """
    found = re.search(rf"{re.escape(name)}\s*=\s*\[(.*?)\]", plain, re.DOTALL)
    if not found:
        return None
    body = re.sub(r"'[^'\n]*'", " nan ", found[1])
    lines = [line.replace(",", " ").split() for line in re.split(r"[;\n]", body)]
    rows = [
        [as_number(token, f"{where}: {name} row {i}") for token in line]
        for i, line in enumerate(filter(None, lines), 1)
    ]
    if not rows:
        raise NetworkError(f"{where}: {name} is empty")
    for i, row in enumerate(rows, 1):
        if len(row) < least:
            raise NetworkError(f"{where}: {name} row {i} has {len(row)} columns, at least {least} are needed")
    width = max(map(len, rows))
    if not ragged and any(len(row) != width for row in rows):
        raise NetworkError(f"{where}: the rows of {name} differ in length")
    return np.array([row + [np.nan] * (width - len(row)) for row in rows])


def fingerprint(network: Any, *but: str) -> str:
    """Sixteen hex digits that change with any field of a dataclass except those in `but`."""
    digest = hashlib.sha256()
    for field in fields(network):
        if field.name not in but:
            digest.update(f"{field.name}:".encode() + np.asarray(getattr(network, field.name)).tobytes())
    return digest.hexdigest()[:16]


def check_connected(
    where: str,
    names: Sequence[Any] | Ints,
    source: Ints,
    target: Ints,
    roots: Sequence[int] | Ints,
    words: tuple[str, str],
) -> None:
    """Raise if a node has no path to a root: its state would be undefined.

    Args:
        names: names of the nodes.
        words: terms for the nodes and for the root.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(source)), (source, target)), shape=(len(names), len(names)))
    _, island = connected_components(graph, directed=False)
    apart = [names[i] for i in np.flatnonzero(~np.isin(island, island[np.asarray(roots)])).tolist()]
    if apart:
        some = ", ".join(str(name) for name in apart[:5]) + (", …" if len(apart) > 5 else "")
        raise NetworkError(
            f"{where}: {len(apart)} of {len(names)} {words[0]} have no path in service to the {words[1]} "
            f"{names[roots[0]]}: {some}"
        )

"""Text tables, number formatting, atomic file writes and progress lines."""

from __future__ import annotations

import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as text, with numbers right-aligned.

    >>> print(table(["name", "ν"], [["balance", 0.25], ["capacity", 0.0]]))
    name         ν
    balance   0.25
    capacity     0
    """
    cells = [[number(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(headers))]
    widths = [max(len(line[i]) for line in [list(headers), *cells]) for i in range(len(headers))]
    lines = [
        "  ".join(cell.rjust(width) if flush else cell.ljust(width) for cell, width, flush in zip(*parts, strict=True))
        for parts in ((line, widths, right) for line in [list(headers), *cells])
    ]
    return "\n".join(line.rstrip() for line in lines)


def number(value: float) -> str:
    """A number with at most four significant digits.

    >>> number(0.000123456), number(12.0), number(float("nan"))
    ('0.0001235', '12', 'nan')
    """
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file atomically: to a temporary file in the same folder, synced to disk, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    # Opened like any new file, so that the user's umask applies.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Progress:
    """One line on standard error with the progress, rate and remaining time of long work.

    Args:
        total: number of units of work.
        unit: name of one unit.
        show: None shows the line only on a terminal; True also prints it every few seconds elsewhere.
        done: units completed before the start.
    """

    def __init__(self, total: int, unit: str, show: bool | None = None, done: int = 0) -> None:
        self.total, self.unit, self.begun, self.start = total, unit, done, time.monotonic()
        self.terminal = sys.stderr.isatty()
        self.show = self.terminal if show is None else show
        self.last = 0.0

    def update(self, done: int, note: Callable[[], str]) -> None:
        """Report that `done` units are finished; `note` is called only when the line is written."""
        now = time.monotonic()
        pause = 0.1 if self.terminal else 5.0
        if not self.show or (now - self.last < pause and done < self.total):
            return
        self.last = now
        line = f"{self.unit} {done}/{self.total}  {note()}"
        if done > self.begun:
            rate = (done - self.begun) / max(now - self.start, 1e-9)
            left = f"{(self.total - done) / rate:.0f} s left" if done < self.total else f"{now - self.start:.1f} s"
            line += f"  {rate:.3g} {self.unit}s/s, {left}"
        sys.stderr.write(f"\r{line[:118]:<118}" if self.terminal else f"{line}\n")
        if self.terminal and done >= self.total:
            sys.stderr.write("\n")
        sys.stderr.flush()

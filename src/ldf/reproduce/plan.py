"""Which tables to make, how long they will take, and one report of all of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..viewing import page
from .options import FAIR, NETWORKS, TABLES, Options
from .report import write
from .tables import Part

TITLE = "Lagrangian Duality for Constrained Deep Learning: the paper's tables, reproduced"


class Family(Protocol):
    """A module that makes tables."""

    def left(self, options: Options) -> Mapping[Path, float]:
        """Files of a table still to be made, with the seconds of one core for each."""

    def make(self, options: Options) -> Part:
        """Make the table."""


def family(table: str) -> Family:
    """The module that makes a table. Each needs packages of its own, so it is imported only on demand."""
    if table == "transprecision":
        from . import transprecision

        return transprecision
    if table in FAIR:
        from . import fairness

        return fairness
    from . import networks

    return networks


def plan(asked: Options) -> list[Options]:
    """The tables to make, each with its own options.

    With "all", a case selects tables: a training set size selects transprecision, a variant fairness, a network the
    others.
    """
    if asked.table != "all":
        return [asked.of(asked.table, asked.cases)]
    sizes = [case for case in asked.cases if case.isdigit()]
    variants = [case for case in asked.cases if case.startswith(("adult-", "default-", "bank-"))]
    others = [case for case in asked.cases if case not in (*sizes, *variants)]
    own = {**dict.fromkeys(NETWORKS, others), "transprecision": sizes, **dict.fromkeys(FAIR, variants)}
    meant = [asked.of(name, own[name]) for name in TABLES if own[name] or not asked.cases]
    return [options for options in meant if options.table not in NETWORKS or _has_networks(options)]


def _has_networks(options: Options) -> bool:
    from .networks import cases_of

    return bool(cases_of(options))


def expected(tables: Sequence[Options], cores: int) -> str:
    """How long it will take, in words. Work that several tables share is counted once."""
    known: set[Path] = set()
    parts, total, unknown = [], 0.0, False
    for options in tables:
        try:
            left = family(options.table).left(options)
        except (ValueError, OSError):
            if len(tables) == 1:
                raise
            continue  # reported when the table is made
        todo = {path: seconds for path, seconds in left.items() if path not in known}
        known |= todo.keys()
        seconds = sum(value for value in todo.values() if not math.isnan(value)) / cores
        unknown |= any(math.isnan(value) for value in todo.values())
        total += seconds
        if seconds >= 1:
            parts.append(f"{options.table} {duration(seconds)}")
    if unknown:
        return "The time needed is not known for these networks. If stopped, run the same command again to resume."
    if not parts:
        return "All results are there already; only tables and plots are made."
    listed = f" ({', '.join(parts)})" if len(tables) > 1 else ""
    return (
        f"Expected: about {duration(total)} on {cores} cores for the missing results{listed}. "
        "You can stop at any time and run the same command again to resume."
    )


def duration(seconds: float) -> str:
    """Seconds as readable text.

    >>> duration(40), duration(400), duration(8000)
    ('40 s', '7 min', '2 h 13 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def run(tables: Sequence[Options], command: str) -> tuple[list[Part], dict[str, str], Path]:
    """Make every table and the report; a table that fails does not stop the others.

    Returns:
        the tables; the missing ones with the reason; the path of the page.
    """
    parts: list[Part] = []
    missing: dict[str, str] = {}
    for options in tables:
        name = options.table
        if len(tables) > 1:
            sys.stderr.write(f"{name}\n")
        try:
            parts.append(family(name).make(options))
            for case, reason in parts[-1].missing.items():
                missing[f"{name}, {case}"] = reason
                sys.stderr.write(f"ldf: {name}: {case} is left out: {reason}\n")
        except (ValueError, OSError) as error:
            if len(tables) == 1:
                raise
            sys.stderr.write(f"ldf: {name}: {error}\n")
            missing[name] = str(error)
    title = parts[0].title if len(tables) == 1 else TITLE
    return parts, missing, write(tables[0].out, title, parts, {"command": command, **page.machine()}, missing)

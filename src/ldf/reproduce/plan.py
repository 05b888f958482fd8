"""Which tables are asked for, how long they will take, and one report of all of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..viewing import page
from .report import write
from .tables import NETWORKS, Part

if TYPE_CHECKING:
    from ..proxies.data.sampling import Mode

FAIR = ("fairness", "relaxed-fairness", "fairness-traces")
"""The tables on fair classifiers."""
TABLES = (*NETWORKS, "transprecision", *FAIR)
"""All of them, by their name on the command line."""
BOTH = ("paper", "tuned")

TITLE = "Lagrangian Duality for Constrained Deep Learning: the paper's tables, made again"


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line; None takes what is usual."""

    table: str
    cases: Sequence[str] | None = None
    kernels: Sequence[str] | None = None
    samplings: Sequence[Mode] | None = None
    recipes: Sequence[str] | None = None
    samples: int | None = None
    epochs: int | None = None
    seeds: int | None = None
    repairs: int | None = None
    quick: bool = False
    workers: int | None = None


@dataclass(frozen=True)
class Job:
    """One table to make."""

    name: str
    left: Callable[[], Mapping[Path, float]]
    """What is not there yet, and its seconds of one core."""
    make: Callable[[], Part]


def plan(wish: Wish, out: Path, work: Path) -> list[Job]:
    """The tables that are meant.

    With "all", a case says which: a size of training sets transprecision, a reading fairness, a network the others.
    """
    cases = wish.cases or ()
    sizes = [case for case in cases if case.isdigit()]
    readings = [case for case in cases if case.startswith(("adult-", "default-", "bank-"))]
    networks = [case for case in cases if case not in (*sizes, *readings)]
    everything = wish.table == "all"
    jobs: list[Job] = []
    if wish.table in NETWORKS or (everything and (networks or not cases)):
        jobs += _networks(wish, (networks if everything else cases) or None, out, work)
    if wish.table == "transprecision" or (everything and (sizes or not cases)):
        if not everything and len(sizes) < len(cases):
            raise ValueError(f"a case of transprecision is a size of training sets, such as 200; got {cases[0]!r}")
        jobs.append(_transprecision(wish, sizes, out, work))
    if wish.table in FAIR or (everything and (readings or not cases)):
        jobs += _fairness(wish, readings if everything else cases, out, work)
    return jobs


def _networks(wish: Wish, cases: Sequence[str] | None, out: Path, work: Path) -> list[Job]:
    from . import networks

    options = networks.Options(
        cases=cases,
        samplings=wish.samplings or (("shared",) if wish.quick else ("shared", "independent")),
        recipes=wish.recipes,
        samples=wish.samples or (100 if wish.quick else None),
        seeds=wish.seeds or (2 if wish.quick else None),
        epochs=wish.epochs or (6 if wish.quick else None),
        repairs=wish.repairs or (5 if wish.quick else 100),
        workers=wish.workers,
        progress=True,
        quick=wish.quick,
    )
    jobs = []
    for name, table in networks.TABLES.items():
        if wish.table in (name, "all") and (options.of(table.kinds) or wish.table != "all"):

            def left(table: networks.Table = table) -> Mapping[Path, float]:
                return networks.left(table, work, options)

            def make(name: str = name, table: networks.Table = table) -> Part:
                return networks.make(name, table, out, work, options)

            jobs.append(Job(name, left, make))
    return jobs


def _transprecision(wish: Wish, sizes: Sequence[str], out: Path, work: Path) -> Job:
    from . import transprecision

    options = transprecision.Options(
        kernels=wish.kernels or ("correlation",),
        sizes=[int(size) for size in sizes] or transprecision.SIZES,
        recipes=wish.recipes or BOTH,
        sets=wish.seeds or (2 if wish.quick else 10),
        epochs=wish.epochs or (20 if wish.quick else None),
        workers=wish.workers,
        progress=True,
        quick=wish.quick,
    )
    return Job(
        "transprecision",
        lambda: transprecision.left(work, options),
        lambda: transprecision.make(out, work, options),
    )


def _fairness(wish: Wish, readings: Sequence[str], out: Path, work: Path) -> list[Job]:
    from ..fairness.datasets import READINGS
    from . import fairness

    jobs = []
    for name in FAIR:
        if wish.table not in (name, "all"):
            continue
        options = fairness.Options(
            readings=readings or (tuple(READINGS) if name == "fairness" and not wish.quick else fairness.PANELS),
            recipes=wish.recipes or BOTH,
            folds=wish.seeds or (2 if wish.quick else 5),
            epochs=wish.epochs or (2 if wish.quick else None),
            workers=wish.workers,
            progress=True,
            quick=wish.quick,
        )

        def left(name: str = name, options: fairness.Options = options) -> Mapping[Path, float]:
            return fairness.left(name, work, options)

        def make(name: str = name, options: fairness.Options = options) -> Part:
            return fairness.MAKE[name](out, work, options)

        jobs.append(Job(name, left, make))
    return jobs


def expected(jobs: Sequence[Job], cores: int) -> str:
    """How long it will take, in words; what several tables share counts for the first."""
    known: set[Path] = set()
    parts, total, unknown = [], 0.0, False
    for job in jobs:
        try:
            todo = {path: seconds for path, seconds in job.left().items() if path not in known}
        except (ValueError, OSError):
            if len(jobs) == 1:
                raise
            continue  # said when its turn comes
        known |= todo.keys()
        seconds = sum(value for value in todo.values() if not math.isnan(value)) / cores
        unknown |= any(math.isnan(value) for value in todo.values())
        total += seconds
        if seconds >= 1:
            parts.append(f"{job.name} {duration(seconds)}")
    if unknown:
        return "How long it takes is not known for these networks. The same command goes on where it was stopped."
    if not parts:
        return "All of it is there already: only tables and pictures are made."
    listed = f" ({', '.join(parts)})" if len(jobs) > 1 else ""
    return (
        f"Expected: about {duration(total)} on {cores} cores for what is not there yet{listed}. "
        "It can be stopped at any time: the same command goes on where it was."
    )


def duration(seconds: float) -> str:
    """For people.

    >>> duration(40), duration(400), duration(8000)
    ('40 s', '7 min', '2 h 13 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def run(jobs: Sequence[Job], out: Path, command: str) -> tuple[list[Part], dict[str, str], Path]:
    """Make every table and the report; one that cannot be made does not keep the others from it.

    Returns:
        the tables; those that are missing, with the reason; the page's path.
    """
    parts: list[Part] = []
    missing: dict[str, str] = {}
    for job in jobs:
        if len(jobs) > 1:
            sys.stderr.write(f"{job.name}\n")
        try:
            parts.append(job.make())
            for case, reason in parts[-1].missing.items():
                missing[f"{job.name}, {case}"] = reason
                sys.stderr.write(f"ldf: {job.name}: {case} is left out: {reason}\n")
        except (ValueError, OSError) as error:
            if len(jobs) == 1:
                raise
            sys.stderr.write(f"ldf: {job.name}: {error}\n")
            missing[job.name] = str(error)
    title = parts[0].title if len(jobs) == 1 else TITLE
    return parts, missing, write(out, title, parts, {"command": command, **page.machine()}, missing)

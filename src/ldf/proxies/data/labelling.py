"""Label demands with their optimal states, on all cores, into Parquet shards from which a killed run resumes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...io.files import write_table
from ...io.text import Progress, write_whole
from ..nlp import Solution
from ..problem import Floats, Problem, Solver
from ..program import distinct
from .sampling import Sampling

FORMAT = "ldf-dataset-1"
MANIFEST = "dataset.json"
HOPELESS = 200
"""Labelling stops after this many samples without a single solution."""
SMALL, LARGE = 100, 1000
"""Maximum number of samples per shard, if a solver takes them one after the other, or side by side."""
ANCHORS = 21
"""Number of factors on the nominal demand whose solutions serve as warm starts."""
FINE = 81
"""The same if there may be several local optima: close enough to follow each of them from one to the next."""
BRANCHES = 6
"""Maximum number of local optima per anchor."""


class DatasetError(ValueError):
    """A data set is damaged, unfinished, or not the requested one."""


@dataclass(frozen=True)
class Origin:
    """Everything that determines the rows of a data set."""

    kind: str
    case: str
    fingerprint: str
    seed: int
    shard: int
    """Samples per shard."""
    sampling: Sampling

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"format": FORMAT, **asdict(self)}


class Labeller:
    """Solves samples, each from the nearest of a few precomputed solutions, independently of the samples before it.

    A solver that takes many demands side by side needs no such solutions: its cold starts are as fast.
    """

    def __init__(self, problem: Problem, origin: Origin) -> None:
        self.problem, self.origin = problem, origin
        self.solver: Solver = problem.solver()
        sampling = origin.sampling
        if self.solver.threads:
            self.solver.threads = 1  # `label` uses all cores, with a shard on each
            return
        count = FINE if self.solver.several else ANCHORS
        self.factors = np.linspace(sampling.low, sampling.high, count)
        self.anchors = [distinct(self.solver.optima(problem.nominal * f)) for f in self.factors]
        if self.solver.several:
            self._follow(range(1, count), -1)
            self._follow(range(count - 2, -1, -1), +1)

    def _follow(self, order: range, back: int) -> None:
        """Follow every optimum of an anchor to the next one, so an optimum found once is known wherever it exists."""
        for i in order:
            demand = self.problem.nominal * self.factors[i]
            carried = [self.solver.solve(demand, known) for known in self.anchors[i + back]]
            self.anchors[i] = distinct([*self.anchors[i], *carried])[:BRANCHES]

    def solve(self, demand: Floats, start: Solution | None = None) -> Solution:
        """The optimum, from a given solution or else the nearest anchor; from a cold start if that fails.

        If there may be several local optima, all optima of the two nearest anchors are starts; if one of these anchors
        has more than one, cold starts are added. The cheapest result is returned.
        """
        if self.solver.threads:
            return self.solver.solve(demand)
        starts = [] if start is None else [start]
        near: list[list[Solution]] = []
        if self.solver.several or not starts:
            total = float(np.abs(demand).sum() / max(np.abs(self.problem.nominal).sum(), 1e-12))
            order = np.argsort(np.abs(self.factors - total), kind="stable")
            near = [self.anchors[i] for i in order if self.anchors[i]][: 2 if self.solver.several else 1]
            starts += [known for anchor in near for known in anchor]
        found = [self.solver.solve(demand, each) for each in starts]
        if any(len(anchor) > 1 for anchor in near):
            found += self.solver.optima(demand)
        best = distinct(found)
        if best:
            return best[0]
        if found and found[-1].status == "infeasible" and not self.solver.several:
            return found[-1]
        return self.solver.solve(demand)

    def many(self, demands: Floats, starts: list[Solution] | None = None) -> list[Solution]:
        """The optima for demands [B, D]; with a hot start, those of the second demands are solved from the first's."""
        if self.solver.threads:
            return self.solver.many(demands)
        if starts is None:
            return [self.solve(demand) for demand in demands]
        found = [self.solve(demand, start) for demand, start in zip(demands, starts, strict=True)]
        return [each if each.solved else self.solve(demand) for demand, each in zip(demands, found, strict=True)]

    def shard(self, number: int) -> pa.Table:
        """The solved samples of a shard as a table; its metadata count the failures by reason."""
        origin, problem = self.origin, self.problem
        rows: dict[str, list[Any]] = {name: [] for name in schema(problem, origin.sampling).names}
        failures: Counter[str] = Counter()
        indices = range(number * origin.shard, (number + 1) * origin.shard)
        drawn = [origin.sampling.draw(origin.seed, index, problem.loads) for index in indices]
        demands = problem.nominal * np.array([first for first, _ in drawn])
        found = self.many(demands)
        earlier: Sequence[Solution | None] = [None] * len(found)
        earlier_demands = demands
        if origin.sampling.hot_start:
            solved = [i for i, each in enumerate(found) if each.solved]
            demands = problem.nominal * np.array([second for _, second in drawn])
            earlier, found = found, list(found)
            for i, each in zip(solved, self.many(demands[solved], [found[i] for i in solved]), strict=True):
                found[i] = each
        for i, index in enumerate(indices):
            if not found[i].solved:
                failures[found[i].status] += 1
                continue
            row = {"draw": index, "demand": demands[i], "state": found[i].state, "objective": found[i].objective}
            before = earlier[i]
            if before is not None:
                row |= {"earlier_demand": earlier_demands[i], "earlier_state": before.state}
            if problem.priced:
                row["prices"] = problem.prices(found[i])
                if before is not None:
                    row["earlier_prices"] = problem.prices(before)
            for name, value in row.items():
                rows[name].append(value)
        facts = {**origin.to_dict(), "number": number, "failures": dict(sorted(failures.items()))}
        return as_table(rows, schema(problem, origin.sampling), facts)


def schema(problem: Problem, sampling: Sampling) -> pa.Schema:
    """The columns of a shard: demands [D] and states [S] in the problem's own units, prices [K] in display units."""
    demand = pa.list_(pa.float64(), len(problem.nominal))
    state = pa.list_(pa.float64(), len(problem.lower))
    prices = pa.list_(pa.float64(), len(problem.nodes) * len(problem.priced))
    columns = [("draw", pa.int64()), ("demand", demand), ("state", state), ("objective", pa.float64())]
    if problem.priced:
        columns += [("prices", prices)]
    if sampling.hot_start:
        columns += [("earlier_demand", demand), ("earlier_state", state)]
        columns += [("earlier_prices", prices)] if problem.priced else []
    return pa.schema(columns)


def as_table(rows: dict[str, list[Any]], schema: pa.Schema, facts: dict[str, Any]) -> pa.Table:
    """Lists of numbers and vectors as an Arrow table, with the facts in its metadata."""
    arrays = []
    for field in schema:
        values = rows[field.name]
        if pa.types.is_fixed_size_list(field.type):
            flat = np.concatenate(values) if values else np.zeros(0)
            arrays.append(pa.FixedSizeListArray.from_arrays(pa.array(flat, pa.float64()), field.type.list_size))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema.with_metadata({"ldf": json.dumps(facts)}))


def read_shard(path: Path, origin: Origin) -> tuple[pa.Table, dict[str, Any]]:
    """A shard and its facts; raises if it is damaged or belongs to another data set."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        facts = json.loads((table.schema.metadata or {})[b"ldf"])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DatasetError(f"{path} is damaged or not a shard of a data set: {error}") from error
    for name, value in origin.to_dict().items():
        if facts.get(name) != value:
            raise DatasetError(f"{path} belongs to another data set: its {name} is {facts.get(name)!r}, not {value!r}")
    if path.name != shard_path(path.parent, facts.get("number", -1)).name:
        raise DatasetError(f"{path} is damaged or misnamed: it contains shard {facts.get('number')}")
    return table, facts


def shard_path(folder: Path, number: int) -> Path:
    """Path of shard `number`."""
    return folder / f"shard-{number:05d}.parquet"


@lru_cache(maxsize=1)
def _labeller(cls: type[Problem], folder: str, origin: Origin) -> Labeller:
    """One labeller per process: building it costs as much as hundreds of solves."""
    return Labeller(cls.load(Path(folder)), origin)


def _work(cls: type[Problem], folder: str, origin: Origin, number: int) -> tuple[int, int, dict[str, int]]:
    """Label one shard in a worker: (its number, rows solved, failures by reason).

    The class is passed by name or, from a notebook, by value: a worker need not know the problem's kind.
    """
    table = _labeller(cls, folder, origin).shard(number)
    write_table(table, shard_path(Path(folder), number))
    return number, table.num_rows, json.loads(table.schema.metadata[b"ldf"])["failures"]


def label(
    problem: Problem,
    rows: int,
    sampling: Sampling,
    folder: Path,
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Sample and solve until the folder has `rows` solved demands; existing shards are kept.

    Samples are numbered, and a data set has the first `rows` that could be solved: the same rows for any number of
    workers and of interruptions.

    Returns:
        the contents of the manifest.
    """
    from joblib import Parallel, cpu_count, delayed

    if rows < 1:
        raise ValueError(f"the number of rows must be at least 1, got {rows}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if seed < 0:
        raise ValueError(f"the seed must be at least 0, got {seed}")
    if not (problem.loads >= 0).any():
        raise ValueError(f"{problem.name} has no load to vary")
    folder.mkdir(parents=True, exist_ok=True)
    threads = problem.solver().threads
    origin = _settle(problem, rows, sampling, folder, seed, LARGE if threads else SMALL)
    problem.save(folder)
    done: dict[int, tuple[int, dict[str, int]]] = {}  # by shard: rows, failures
    for path in sorted(folder.glob("shard-*.parquet")):
        table, facts = read_shard(path, origin)
        done[int(facts["number"])] = table.num_rows, facts["failures"]

    before = set(done)

    # Copies of `done`: joblib calls `missing` in its own thread, while this one adds to `done`.
    def solved() -> int:
        return sum(count for count, _ in list(done.values()))

    def failures() -> Counter[str]:
        return sum((Counter(failed) for _, failed in list(done.values())), Counter())

    def missing() -> Iterator[int]:
        # Called as workers become idle. Shards before the last are always finished, so samples have no gaps.
        number = 0
        while number <= max(done, default=-1) or solved() < rows:
            if not solved() and sum(failures().values()) >= HOPELESS:
                return
            if number not in done:
                yield number
            number += 1

    line = Progress(rows, "row", progress, done=min(solved(), rows))
    # One shard at a time: joblib would collect short ones into batches, and solve far more than are needed.
    run = Parallel(
        n_jobs=workers or cpu_count(),
        backend="threading" if threads else "loky",
        return_as="generator_unordered",
        pre_dispatch="1.5*n_jobs",
        batch_size=1,
    )
    work = partial(_work, type(problem), str(folder), origin)
    for number, count, failed in run(delayed(work)(number) for number in missing()):
        done[number] = count, failed
        line.update(min(solved(), rows), lambda: f"{sum(failures().values())} samples failed")
    if not solved():
        raise DatasetError(
            f"none of the first {sum(failures().values())} samples could be solved: {_reasons(failures())}"
        )
    total = 0
    for number in sorted(done):
        if total >= rows:  # not needed: several workers may finish extra shards
            if number not in before:
                shard_path(folder, number).unlink(missing_ok=True)
            del done[number]
        else:
            total += done[number][0]
    draws = len(done) * origin.shard
    manifest = {**origin.to_dict(), "rows": rows, "draws": draws, "failures": dict(failures()), "complete": True}
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return manifest


def _reasons(failures: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(failures.items())) or "none"


def _settle(problem: Problem, rows: int, sampling: Sampling, folder: Path, seed: int, most: int) -> Origin:
    """The origin of the folder's data set: written before the first shard, and fixed from then on."""
    path = folder / MANIFEST
    shard = max(10, min(most, rows // 40))
    if path.exists():
        shard = int(read_manifest(folder)["shard"])
    origin = Origin(problem.kind, problem.name, problem.fingerprint, seed, shard, sampling)
    if path.exists():
        held = read_manifest(folder)
        for name, value in origin.to_dict().items():
            if held[name] != value:
                raise DatasetError(
                    f"{folder} has another data set: its {name} is {held[name]!r}, not {value!r}; "
                    "use another folder, or remove this one"
                )
    manifest = {**origin.to_dict(), "rows": rows, "complete": False}
    write_whole(path, json.dumps(manifest, indent=1) + "\n")
    return origin


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder's data set."""
    path = folder / MANIFEST
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        raise DatasetError(f"{folder} has no {MANIFEST}: it is not a data set; `ldf label` creates one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} is damaged: {error}") from error
    needed = Origin.__dataclass_fields__.keys()
    if not isinstance(held, dict) or held.get("format") != FORMAT or not needed <= held.keys():
        raise DatasetError(f"{path} is not of the format {FORMAT}")
    return held

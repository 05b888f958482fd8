"""Label demands with their optimal states, on all cores, into Parquet shards that a killed run goes on with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
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
"""After so many draws without a single solution labelling stops."""
ANCHORS = 21
"""Solutions of the nominal demand times so many factors, as warm starts."""
FINE = 81
"""Where there may be several local optima: close enough together to follow each of them from one to the next."""
BRANCHES = 6
"""Local optima of an anchor to start from, at most."""


class DatasetError(ValueError):
    """A data set that is damaged, unfinished, or not the one that was asked for."""


@dataclass(frozen=True)
class Origin:
    """All that decides which rows a data set has."""

    kind: str
    case: str
    fingerprint: str
    seed: int
    shard: int
    """Draws to a shard."""
    sampling: Sampling

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"format": FORMAT, **asdict(self)}


class Labeller:
    """Solves draws, each from the nearest of a few solutions computed beforehand, whatever was solved before it."""

    def __init__(self, problem: Problem, origin: Origin) -> None:
        self.problem, self.origin = problem, origin
        self.solver: Solver = problem.solver()
        sampling = origin.sampling
        count = FINE if self.solver.several else ANCHORS
        self.factors = np.linspace(sampling.low, sampling.high, count)
        self.anchors = [distinct(self.solver.optima(problem.nominal * f)) for f in self.factors]
        if self.solver.several:
            self._follow(range(1, count), -1)
            self._follow(range(count - 2, -1, -1), +1)

    def _follow(self, order: range, back: int) -> None:
        """Follow every optimum of an anchor to the next one: an optimum found once is known wherever it exists."""
        for i in order:
            demand = self.problem.nominal * self.factors[i]
            carried = [self.solver.solve(demand, known) for known in self.anchors[i + back]]
            self.anchors[i] = distinct([*self.anchors[i], *carried])[:BRANCHES]

    def solve(self, demand: Floats, start: Solution | None = None) -> Solution:
        """The optimum, from a solution at hand or else the nearest anchor; cold where that leads nowhere.

        Where there may be several local optima, from all that the two nearest anchors have; if one of them has more
        than one, cold as well. The cheapest counts.
        """
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

    def shard(self, number: int) -> pa.Table:
        """The solved draws of a shard as a table; how many failed, and why, is in its metadata."""
        origin, problem = self.origin, self.problem
        rows: dict[str, list[Any]] = {name: [] for name in schema(problem, origin.sampling).names}
        failures: Counter[str] = Counter()
        for index in range(number * origin.shard, (number + 1) * origin.shard):
            first, second = origin.sampling.draw(origin.seed, index, problem.loads)
            demand = problem.nominal * first
            found = self.solve(demand)
            earlier = None
            if second is not None and found.solved:
                earlier, earlier_demand = found, demand
                demand = problem.nominal * second
                found = self.solve(demand, earlier)
                if not found.solved:
                    found = self.solve(demand)
            if not found.solved:
                failures[found.status] += 1
                continue
            row = {"draw": index, "demand": demand, "state": found.state, "objective": found.objective}
            if earlier is not None:
                row |= {"earlier_demand": earlier_demand, "earlier_state": earlier.state}
            if problem.priced:
                row["prices"] = problem.prices(found)
                if earlier is not None:
                    row["earlier_prices"] = problem.prices(earlier)
            for name, value in row.items():
                rows[name].append(value)
        facts = {**origin.to_dict(), "number": number, "failures": dict(sorted(failures.items()))}
        return as_table(rows, schema(problem, origin.sampling), facts)


def schema(problem: Problem, sampling: Sampling) -> pa.Schema:
    """The columns of a shard: demands [D] and states [S] in the problem's own units, prices [K] in people's."""
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
    """Lists of numbers and vectors as an Arrow table with the facts in its metadata."""
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
    """A shard and its facts; refused if it is damaged or of another data set."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        facts = json.loads((table.schema.metadata or {})[b"ldf"])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DatasetError(f"{path} is damaged or not a shard of a data set: {error}") from error
    for name, value in origin.to_dict().items():
        if facts.get(name) != value:
            raise DatasetError(f"{path} belongs to another data set: its {name} is {facts.get(name)!r}, not {value!r}")
    if path.name != shard_path(path.parent, facts.get("number", -1)).name:
        raise DatasetError(f"{path} is damaged or has another's name: it says that it is shard {facts.get('number')}")
    return table, facts


def shard_path(folder: Path, number: int) -> Path:
    """Where shard `number` lies."""
    return folder / f"shard-{number:05d}.parquet"


@lru_cache(maxsize=1)
def _labeller(cls: type[Problem], folder: str, origin: Origin) -> Labeller:
    """One labeller for each process: building it costs as much as hundreds of solves."""
    return Labeller(cls.load(Path(folder)), origin)


def _work(cls: type[Problem], folder: str, origin: Origin, number: int) -> tuple[int, int, dict[str, int]]:
    """Label one shard in a worker: (its number, rows solved, failures by reason).

    The class comes by name or, from a notebook, by value: a worker need not know the problem's kind.
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
    """Draw and solve until there are `rows` solved demands in the folder; shards already there are kept.

    Draws are numbered, and a data set has the first `rows` that could be solved: the same ones however many workers
    there are and however often the run was stopped.

    Returns:
        what the manifest holds.
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
    origin = _settle(problem, rows, sampling, folder, seed)
    problem.save(folder)
    done: dict[int, tuple[int, dict[str, int]]] = {}  # by shard: rows, failures
    for path in sorted(folder.glob("shard-*.parquet")):
        table, facts = read_shard(path, origin)
        done[int(facts["number"])] = table.num_rows, facts["failures"]

    before = set(done)

    # Copies of `done`: joblib asks `missing` in a thread of its own, while `done` grows in this one.
    def solved() -> int:
        return sum(count for count, _ in list(done.values()))

    def failures() -> Counter[str]:
        return sum((Counter(failed) for _, failed in list(done.values())), Counter())

    def missing() -> Iterator[int]:
        # Asked for as workers fall idle. Shards before the last are always finished: draws stay without a gap.
        number = 0
        while number <= max(done, default=-1) or solved() < rows:
            if not solved() and sum(failures().values()) >= HOPELESS:
                return
            if number not in done:
                yield number
            number += 1

    line = Progress(rows, "row", progress, done=min(solved(), rows))
    run = Parallel(n_jobs=workers or cpu_count(), return_as="generator_unordered", pre_dispatch="1.5*n_jobs")
    work = partial(_work, type(problem), str(folder), origin)
    for number, count, failed in run(delayed(work)(number) for number in missing()):
        done[number] = count, failed
        line.update(min(solved(), rows), lambda: f"{sum(failures().values())} draws failed")
    if not solved():
        raise DatasetError(
            f"none of the first {sum(failures().values())} draws could be solved: {_reasons(failures())}"
        )
    total = 0
    for number in sorted(done):
        if total >= rows:  # beyond what is needed: several workers finish more than one alone
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


def _settle(problem: Problem, rows: int, sampling: Sampling, folder: Path, seed: int) -> Origin:
    """The origin of the folder's data set: written down before the first shard, and the same ever after."""
    path = folder / MANIFEST
    shard = max(10, min(100, rows // 40))
    if path.exists():
        shard = int(read_manifest(folder)["shard"])
    origin = Origin(problem.kind, problem.name, problem.fingerprint, seed, shard, sampling)
    if path.exists():
        held = read_manifest(folder)
        for name, value in origin.to_dict().items():
            if held[name] != value:
                raise DatasetError(
                    f"{folder} has another data set: its {name} is {held[name]!r}, not {value!r}; "
                    "take another folder, or remove this one"
                )
    manifest = {**origin.to_dict(), "rows": rows, "complete": False}
    write_whole(path, json.dumps(manifest, indent=1) + "\n")
    return origin


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a folder says of its data set."""
    path = folder / MANIFEST
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        raise DatasetError(f"{folder} has no {MANIFEST}: it is not a data set; `ldf label` makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} is damaged: {error}") from error
    needed = Origin.__dataclass_fields__.keys()
    if not isinstance(held, dict) or held.get("format") != FORMAT or not needed <= held.keys():
        raise DatasetError(f"{path} is not of the format {FORMAT}")
    return held

"""Labelled demands in memory, read from the files that `labelling.py` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..problem import Floats, Problem
from ..registry import load_problem
from .labelling import DatasetError, Origin, read_manifest, read_shard, schema, shard_path
from .sampling import Sampling

RARE = 0.005
"""Fraction of prices that count as rare, on either side."""
TEST_SHARE = 0.2
"""Fraction of test rows: the paper's 80/20 split."""
VALIDATION_SHARE = 0.1
"""Fraction of the training rows for model selection, never for reporting."""


@dataclass(frozen=True)
class Dataset:
    """n rows: a demand [D], its optimal state [S] and its prices [K]; with a hot start also those of an earlier demand.

    Rows are independent samples, and every row has its own earlier state, so no state is on both sides of the split.
    There are no prices if the problem has none.
    """

    problem: Problem
    sampling: Sampling
    seed: int
    draws: int
    failures: dict[str, int]
    demand: Tensor
    state: Tensor
    objective: Tensor
    earlier_demand: Tensor | None = None
    earlier_state: Tensor | None = None
    prices: Tensor | None = None
    earlier_prices: Tensor | None = None

    def __len__(self) -> int:
        return len(self.demand)

    @property
    def hot(self) -> bool:
        """Whether rows have an earlier state."""
        return self.earlier_state is not None

    @property
    def parts(self) -> Mapping[str, slice]:
        """The parts of the learnt vector."""
        return self.problem.quantities

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """[S] lower and upper bounds of the learnt vector."""
        return self.problem.lower, self.problem.upper

    def priced(self) -> Priced | None:
        """The same rows with prices in place of states; None if the problem has no prices."""
        if not self.problem.priced:
            return None
        return Priced(**{**self.__dict__, "state": self.prices, "earlier_state": self.earlier_prices})

    def take(self, rows: Tensor) -> Dataset:
        """A subset of the rows."""
        taken: dict[str, Any] = {name: v[rows] for name, v in self.__dict__.items() if isinstance(v, Tensor)}
        return replace(self, **taken)

    def split(self) -> tuple[Dataset, Dataset]:
        """(training, test): the last fifth of the rows is for testing, regardless of the training seed."""
        cut = len(self) - max(1, round(TEST_SHARE * len(self)))
        if cut < 1:
            raise DatasetError(f"{len(self)} rows are too few to train and to test")
        every = torch.arange(len(self))
        return self.take(every[:cut]), self.take(every[cut:])


class Priced(Dataset):
    """Rows with prices in place of states, so that prices are learnt in the same way."""

    @property
    def parts(self) -> Mapping[str, slice]:
        """The parts of a price vector."""
        return self.problem.priced

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """[K] smallest and largest of these prices."""
        return self.state.amin(0).numpy(), self.state.amax(0).numpy()

    def cut(self) -> Priced:
        """Clip each node's prices to their range without a fraction `RARE` on either side.

        Scarcity prices have no upper limit, and a few of them would dominate the squared error.
        """
        rows = len(self) - 1
        ordered = self.state.sort(0).values
        few = int(RARE * rows)
        return replace(self, state=self.state.clamp(ordered[few], ordered[rows - few]))


def divide(data: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Split training rows into rows to fit and validation rows."""
    order = torch.from_numpy(np.random.default_rng([seed, 1]).permutation(len(data)))
    held = max(1, round(VALIDATION_SHARE * len(data)))
    if len(data) - held < 2:
        raise ValueError(f"{len(data)} training rows are too few: 2 are needed to fit and 1 to validate")
    return data.take(order[held:]), data.take(order[:held])


def load(folder: Path, problem: Problem | None = None) -> Dataset:
    """Read a finished data set; raises if a part is missing, damaged or belongs to another data set."""
    manifest = read_manifest(folder)
    if not manifest["complete"]:
        raise DatasetError(f"{folder} is not finished: run the same `ldf label` again to resume it")
    problem = problem or load_problem(manifest["kind"], folder)
    if problem.fingerprint != manifest["fingerprint"]:
        raise DatasetError(
            f"{folder}: its labels are for another network than {problem.name}; the network's file was changed"
        )
    names = {name: manifest[name] for name in Origin.__dataclass_fields__ if name != "sampling"}
    origin = Origin(**names, sampling=Sampling(**manifest["sampling"]))
    paths = [shard_path(folder, number) for number in range(manifest["draws"] // origin.shard)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DatasetError(f"{missing[0]} is missing; run the same `ldf label` again to recreate it")
    shards = [read_shard(path, origin)[0] for path in paths]
    wanted = schema(problem, origin.sampling)
    for path, shard in zip(paths, shards, strict=True):
        if shard.schema != wanted:
            raise DatasetError(f"{path} is damaged: its columns should be {', '.join(wanted.names)}")
    table = pa.concat_tables(shards).slice(0, manifest["rows"])
    if table.num_rows < manifest["rows"]:
        raise DatasetError(f"{folder} has {table.num_rows} rows, not the {manifest['rows']} in its manifest")
    return Dataset(
        problem=problem,
        sampling=origin.sampling,
        seed=origin.seed,
        draws=manifest["draws"],
        failures=manifest["failures"],
        **{name: _column(table, name) for name in table.column_names if name != "draw"},
    )


def _column(table: pa.Table, name: str) -> Tensor:
    """[n] or [n, k], in double precision."""
    column: Any = table[name].combine_chunks()
    if pa.types.is_fixed_size_list(column.type):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return torch.from_numpy(np.array(flat)).view(len(column), column.type.list_size)
    return torch.from_numpy(np.array(column.to_numpy(zero_copy_only=False)))

"""Labelled demands in memory, as `labelling.py` left them on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from .labelling import DatasetError, Origin, read_manifest, read_shard, shard_path
from .problem import Problem
from .sampling import Sampling

TEST_SHARE = 0.2
"""The paper's 80/20 split."""


@dataclass(frozen=True)
class Dataset:
    """n rows: a demand [D] and its optimal state [S]; with a hot start also an earlier demand and its optimal state.

    Rows are independent draws, and every row has an earlier state of its own: no state is on both sides of the split.
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

    def __len__(self) -> int:
        return len(self.demand)

    @property
    def hot(self) -> bool:
        """Whether rows have an earlier state."""
        return self.earlier_state is not None

    def take(self, rows: Tensor) -> Dataset:
        """Some of the rows."""
        taken: dict[str, Any] = {name: v[rows] for name, v in self.__dict__.items() if isinstance(v, Tensor)}
        return replace(self, **taken)

    def split(self) -> tuple[Dataset, Dataset]:
        """(training, test): the last fifth of the rows is for testing, whatever the seed of a training run."""
        cut = len(self) - max(1, round(TEST_SHARE * len(self)))
        if cut < 1:
            raise DatasetError(f"{len(self)} rows are too few to train and to test")
        every = torch.arange(len(self))
        return self.take(every[:cut]), self.take(every[cut:])


def load(folder: Path, problem: Problem | None = None) -> Dataset:
    """Read a finished data set; refused if a part is missing, damaged or not its own."""
    from . import load_problem

    manifest = read_manifest(folder)
    if not manifest["complete"]:
        raise DatasetError(f"{folder} is not finished: run the same `ldf label` again, and it goes on where it stopped")
    problem = problem or load_problem(manifest["kind"], folder)
    if problem.fingerprint != manifest["fingerprint"]:
        raise DatasetError(
            f"{folder}: its labels are not of its network ({problem.name}): the network's file was changed"
        )
    names = {name: manifest[name] for name in Origin.__dataclass_fields__ if name != "sampling"}
    origin = Origin(**names, sampling=Sampling(**manifest["sampling"]))
    paths = [shard_path(folder, number) for number in range(manifest["draws"] // origin.shard)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DatasetError(f"{missing[0]} is missing; run the same `ldf label` again to make it anew")
    table = pa.concat_tables([read_shard(path, origin)[0] for path in paths]).slice(0, manifest["rows"])
    if table.num_rows < manifest["rows"]:
        raise DatasetError(f"{folder} has {table.num_rows} rows, {manifest['rows']} were promised")
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

"""Training data step by step: batches of rows, unlabelled rows and pairs, reproducible by seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch, Data, as_batch, pick
from ..core.samplers import epoch_generator, shuffled, stratified
from ..core.scope import Scope, Side
from ..io.checkpoint import as_bytes
from .settings import Settings

Step = dict[str, Tensor]
"""Row numbers of one step: "ids" labelled, "free" unlabelled, "pairs/NAME" pair numbers; [R, …] for R runs."""

Parts = tuple[Tensor, Any, Batch, dict[str, Side]]
"""Arguments of a Lagrangian: loss, predictions, batch, pairs."""


class Task:
    """Data in memory, the held-out rows of each run, and the batches of every epoch."""

    def __init__(
        self,
        settings: Settings,
        data: Data,
        seeds: Sequence[int],
        held_out: Sequence[Tensor] | None = None,
        subsets: Sequence[Tensor] | None = None,
    ) -> None:
        """Plan the batches of every run.

        Args:
            settings: includes validation data and strata.
            data: labelled rows, followed by unlabelled rows.
            seeds: seed of each run.
            held_out: rows that each run is validated on, if already chosen.
            subsets: labelled rows that each run uses, by default all.
        """
        self.settings, self.data, self.rows = settings, data, data.rows
        self.seeds = list(seeds)
        everything = torch.arange(data.labelled)
        own = list(subsets) if subsets is not None else [everything] * len(self.seeds)
        self.check, self.separate = data, False
        if isinstance(settings.validation, Mapping | tuple | list):
            self.check, self.separate = Data(settings.validation).to(data.targets.device), True
        self.held_out = list(held_out) if held_out is not None else self._hold_out(own)
        self.validates = len(self.held_out[0]) > 0
        settings.check_held_out(self.validates)
        kept = [rows[:0] for rows in own] if self.separate else self.held_out
        self.training = [rows[~torch.isin(rows, out)] for rows, out in zip(own, kept, strict=True)]
        self.free = torch.arange(data.labelled, data.rows)
        # Constraints on pairs look up their own rows; other constraints need the unlabelled rows in the batch.
        self.alone = any(c.scope.name is None for c in settings.constraints)
        self.stratify = self._strata()
        self._check_scopes()
        self.steps = math.ceil(min(len(rows) for rows in self.training) / settings.batch_size)
        excluded = [everything[~torch.isin(everything, rows)] for rows in self.training]
        found = {c.scope.name: c.scope.pool(excluded, data.targets.device) for c in settings.constraints}
        self.pools = {name: pool for name, pool in found.items() if name is not None and pool is not None}
        for pool in self.pools.values():
            pool.plan(self.steps)
        self.updates_per_epoch = _updates(self.steps, settings)

    def _hold_out(self, own: Sequence[Tensor]) -> list[Tensor]:
        """Rows that each run is validated on: all rows of separate validation data, or a fraction of its own."""
        if self.separate:
            return [torch.arange(self.check.rows) for _ in self.seeds]
        share = self.settings.validation
        if share is None:
            return [torch.zeros(0, dtype=torch.int64) for _ in self.seeds]
        return [rows[_share(len(rows), share, seed)] for rows, seed in zip(own, self.seeds, strict=True)]

    def _strata(self) -> Tensor | None:
        strata, rows = self.settings.stratify, self.data.labelled
        if strata is not None and (strata.dtype != torch.int64 or strata.shape != (rows,)):
            raise ValueError(f"stratify must be int64 of shape [{rows}], got {list(strata.shape)} {strata.dtype}")
        return strata.cpu() if strata is not None else None

    def _check_scopes(self) -> None:
        trained = [torch.cat([rows, self.free]) for rows in self.training]
        known: dict[str, Scope] = {}
        for constraint in self.settings.constraints:
            scope = constraint.scope
            if scope.name is not None and known.setdefault(scope.name, scope) is not scope:
                raise ValueError(f"two sets of pairs are named {scope.name!r}: give each a unique name")
            scope.check_data(constraint.name, self.rows, trained, self.separate)

    def plan(self, run: int, epoch: int) -> list[Step]:
        """The batches of one epoch of a run; the same seed always gives the same batches."""
        seed, rows = self.seeds[run], self.training[run]
        generator = epoch_generator(seed, epoch)
        if self.stratify is not None:
            batches = stratified(rows, self.stratify[rows], self.settings.batch_size, generator)
        else:
            batches = shuffled(rows, self.settings.batch_size, generator)
        plan: list[Step] = [{"ids": ids} for ids in batches]
        if len(self.free) and self.alone:
            order = self.free[torch.randperm(len(self.free), generator=epoch_generator(seed, epoch, 1))]
            for step, part in zip(plan, order.tensor_split(len(plan)), strict=True):
                step["free"] = part
        for stream, (name, pool) in enumerate(self.pools.items()):
            numbers = pool.numbers[run]
            order = numbers[torch.randperm(len(numbers), generator=epoch_generator(seed, epoch, 2 + stream))]
            for step, part in zip(plan, order.tensor_split(len(plan)), strict=True):
                if len(part):
                    step[f"pairs/{name}"] = part
        return plan

    def batch(self, step: Step) -> Batch:
        """All rows that a step needs predictions for: the batch, unlabelled rows and the rows of its pairs;
        [R, rows] for the stacked step of R runs.
        """
        if len(step) == 1:
            return self.data.take(step["ids"])
        rows = [step[name] for name in ("ids", "free") if name in step]
        for name, pool in self.pools.items():
            if f"pairs/{name}" in step:
                rows.append(pool.rows_of(step[f"pairs/{name}"].clamp(min=0)))
        return self.data.take(torch.cat(rows, -1), targets=False)

    def parts(self, predictions: Any, step: Step, batch: Batch) -> Parts:
        """Loss, predictions, batch and pairs of a step, from the predictions for `batch(step)`."""
        if len(step) == 1:
            return self.settings.loss(predictions, batch.targets), predictions, batch, {}
        labelled = step["ids"].shape[0]
        stop = labelled + (step["free"].shape[0] if "free" in step else 0)
        columns = pick(batch.columns(), slice(stop))
        targets = self.data.targets[step["ids"]]
        ours = pick(predictions, slice(stop))
        head = ours
        if "free" in step:
            head = pick(ours, slice(labelled))
        else:
            columns["targets"] = targets
        sides: dict[str, Side] = {}
        for name, pool in self.pools.items():
            if f"pairs/{name}" in step:
                given = step[f"pairs/{name}"]
                start, stop = stop, stop + pool.rows_of(given.clamp(min=0)).shape[0]
                part = slice(start, stop)
                sides[name] = pool.side(given, pick(predictions, part), pick(batch.columns(), part))
        return self.settings.loss(head, targets), ours, Batch(**columns), sides

    def fingerprint(self) -> dict[str, Any]:
        """Identifies the data, for the checkpoint."""
        return {
            "data": _digest(self.data),
            "rows": [self.data.labelled, self.data.rows],
            "held out": [len(out) for out in self.held_out],
            "validation": _digest(self.check) if self.separate else None,
        }


class LoaderTask:
    """Data from a DataLoader or any iterable of batches that can be iterated repeatedly."""

    separate = True

    def __init__(
        self,
        settings: Settings,
        loader: Iterable[Any],
        device: torch.device,
    ) -> None:
        self.settings, self.loader, self.device = settings, loader, device
        if not isinstance(loader, Sized) or not isinstance(loader, Iterable):
            raise TypeError(f"data must be tensors or a DataLoader with a length, got {type(loader).__name__}")
        self.steps = len(loader)
        if self.steps == 0:
            raise ValueError("data is empty: the loader yields no batches")
        for what, given in (("unlabelled", settings.unlabelled), ("stratify", settings.stratify)):
            if given is not None:
                raise ValueError(f"{what} needs data in memory; with a DataLoader, put it into the loader's batches")
        for constraint in settings.constraints:
            if constraint.scope.name is not None:
                raise ValueError(
                    f"constraint {constraint.name!r}: pairs are looked up by row and need data in memory, or your own "
                    "training loop with ldf.PairBatches"
                )
        validation = settings.validation
        if isinstance(validation, float | int):
            raise ValueError("a fraction can only be held out of data in memory: pass separate validation data")
        self.validates = validation is not None
        self.check = Data(validation).to(device) if validation is not None else None
        self.held_out = [torch.arange(self.check.rows if self.check else 0)]
        settings.check_held_out(self.validates)
        dataset = getattr(loader, "dataset", None)
        self.rows = len(dataset) if isinstance(dataset, Sized) else None
        self.updates_per_epoch = _updates(self.steps, settings)

    def plan(self, run: int, epoch: int) -> Iterable[Batch]:
        """One pass over the loader."""
        return (as_batch(item).to(self.device) for item in self.loader)

    def batch(self, step: Batch) -> Batch:
        """The batch unchanged."""
        return step

    def parts(self, predictions: Any, step: Batch, batch: Batch) -> Parts:
        """Loss, predictions and batch."""
        return self.settings.loss(predictions, step.targets), predictions, step, {}

    def fingerprint(self) -> dict[str, Any]:
        """Identifies a loader without iterating over it."""
        return {
            "data": f"{type(self.loader).__name__} of {self.steps} batches",
            "rows": self.rows,
            "validation": _digest(self.check) if self.check is not None else None,
        }


def _digest(data: Data) -> str:
    """Hash of all columns and targets."""
    digest = hashlib.sha256()
    for column in (*data.columns.values(), data.targets):
        digest.update(str((column.shape, column.dtype)).encode())
        digest.update(as_bytes(column))
    return digest.hexdigest()[:16]


def _updates(steps: int, settings: Settings) -> int:
    """Dual updates in an epoch of this many steps."""
    return math.ceil(steps / settings.update_every) if settings.update_every else 1


def _share(rows: int, share: Any, seed: int) -> Tensor:
    """Row numbers that are held out."""
    sound = isinstance(share, float | int) and not isinstance(share, bool) and 0 < share < 1
    if not sound or not 0 < round(share * rows) < rows:
        raise ValueError(f"validation must be a fraction between 0 and 1 that leaves rows on both sides, got {share!r}")
    order = torch.randperm(rows, generator=epoch_generator(seed, 0, stream=99))
    return order[: round(share * rows)].sort().values

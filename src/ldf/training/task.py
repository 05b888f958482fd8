"""What is trained on, step by step: batches of rows, unlabelled rows and pairs, the same for the same seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Batch, Data, as_batch, pick
from ..core.constraint import Constraint
from ..core.lagrangian import PairSide
from ..core.scopes import Groups, Pairs, epoch_generator, shuffled, stratified
from ..io.checkpoint import as_bytes

Loss = Callable[[Any, Tensor], Tensor]
Forward = Callable[[nn.Module, Batch], Any]
Metric = Callable[[Any, Batch], float | Tensor]
MakeSchedule = Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]
Labelled = tuple[Tensor, Tensor] | Mapping[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """What `fit` and `fit_many` were asked for, checked."""

    loss: Loss
    constraints: tuple[Constraint, ...]
    epochs: int
    batch_size: int
    schedule: Literal["cosine"] | MakeSchedule | None
    keep: Literal["best", "last"]
    patience: int | None
    update_every: int | None
    forward: Forward
    checkpoint_seconds: float
    ascend_on: Literal["training", "held-out"] = "training"
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience", "update_every"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")
        if self.ascend_on not in ("training", "held-out"):
            raise ValueError(f"ascend_on must be 'training' or 'held-out', got {self.ascend_on!r}")
        if self.keep not in ("best", "last"):
            raise ValueError(f"keep must be 'best' or 'last', got {self.keep!r}")
        if self.schedule is not None and self.schedule != "cosine" and not callable(self.schedule):
            raise ValueError(f"schedule must be 'cosine', a function or None, got {self.schedule!r}")
        if not callable(self.loss):
            raise TypeError(f"loss must be a function (predictions, targets) → scalar, got {self.loss!r}")

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler | None:
        """The learning-rate schedule over so many steps."""
        if self.schedule == "cosine":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return self.schedule(optimizer, steps) if self.schedule else None


Step = dict[str, Tensor]
"""The row numbers of one step: "ids" labelled, "free" unlabelled, "pairs/NAME" the numbers of pairs; [R, …] for R
runs."""

Parts = tuple[Tensor, Any, Batch, dict[str, PairSide]]
"""What a Lagrangian takes: loss, predictions, batch, pairs."""


class Task:
    """Data in memory, its rows held out for each run, and the batches of every epoch."""

    def __init__(
        self,
        settings: Settings,
        data: Data,
        validation: float | Labelled | None,
        stratify: Tensor | None,
        seeds: Sequence[int],
        held_out: Sequence[Tensor] | None = None,
        subsets: Sequence[Tensor] | None = None,
    ) -> None:
        self.settings, self.data, self.rows = settings, data, data.rows
        self.seeds = list(seeds)
        everything = torch.arange(data.labelled)
        own = list(subsets) if subsets is not None else [everything] * len(self.seeds)
        self.check = data
        self.separate = isinstance(validation, Mapping | tuple | list)
        if held_out is not None:
            self.held_out = list(held_out)
        elif isinstance(validation, float | int):
            self.held_out = [
                rows[_hold_out(len(rows), validation, seed)] for rows, seed in zip(own, self.seeds, strict=True)
            ]
        elif validation is None:
            self.held_out = [torch.zeros(0, dtype=torch.int64) for _ in self.seeds]
        else:
            assert isinstance(validation, Mapping | tuple | list)
            self.check = Data(validation).to(data.targets.device)
            self.held_out = [torch.arange(self.check.rows) for _ in self.seeds]
        self.validates = len(self.held_out[0]) > 0
        if settings.patience and not self.validates:
            raise ValueError("patience needs validation data: say validation=0.2, or give labelled data of their own")
        kept = [rows[:0] for rows in own] if self.separate else self.held_out
        self.training = [rows[~torch.isin(rows, out)] for rows, out in zip(own, kept, strict=True)]
        excluded = [everything[~torch.isin(everything, rows)] for rows in self.training]
        self.free = torch.arange(data.labelled, data.rows)
        # Constraints on pairs look their rows up by themselves: others need unlabelled rows in the batch.
        self.alone = any(not isinstance(c.scope, Pairs) for c in settings.constraints)
        if stratify is not None and (stratify.dtype != torch.int64 or stratify.shape != (data.labelled,)):
            raise ValueError(
                f"stratify must be int64 of shape [{data.labelled}], got {list(stratify.shape)} {stratify.dtype}"
            )
        self.stratify = stratify.cpu() if stratify is not None else None
        self._check_scopes()
        self.pools = {
            c.scope.name: _Pool(c.scope, excluded, data.targets.device)
            for c in settings.constraints
            if isinstance(c.scope, Pairs)
        }
        self.steps = math.ceil(min(len(rows) for rows in self.training) / settings.batch_size)
        for pool in self.pools.values():
            pool.plan(self.steps)
        every = settings.update_every
        self.updates_per_epoch = math.ceil(self.steps / every) if every else 1

    def _check_scopes(self) -> None:
        pairs: dict[str, Pairs] = {}
        for constraint in self.settings.constraints:
            scope = constraint.scope
            if isinstance(scope, Pairs):
                if pairs.setdefault(scope.name, scope) is not scope:
                    raise ValueError(f"two sets of pairs are named {scope.name!r}: give each a name of its own")
                if int(scope.indices.max()) >= self.rows:
                    raise ValueError(
                        f"constraint {constraint.name!r}: pair of row {int(scope.indices.max())}, but the data have "
                        f"{self.rows} rows, numbered from 0"
                    )
            if isinstance(scope, Groups) and isinstance(scope.labels, Tensor):
                if len(scope.labels) != self.rows:
                    raise ValueError(
                        f"constraint {constraint.name!r}: {len(scope.labels)} group labels for {self.rows} rows "
                        "(unlabelled rows included; −1 puts a row in no group)"
                    )
                if self.separate:
                    raise ValueError(
                        f"constraint {constraint.name!r}: with validation data of their own, groups must be a column: "
                        "put the labels into the data and say Groups('column', count)"
                    )
                for rows in self.training:
                    counts = scope.whole(torch.cat([rows, self.free]))
                    if int(counts.min()) == 0:
                        group = scope.names[int(counts.argmin())]
                        raise ValueError(f"constraint {constraint.name!r}: group {group!r} has no row to train on")

    def plan(self, run: int, epoch: int) -> list[Step]:
        """The batches of one run's epoch: always the same for the same seed."""
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
        """All rows that a step needs predictions of: the batch, unlabelled rows, and the partners of its pairs; for
        the stacked step of R runs, [R, rows].
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
        sides: dict[str, PairSide] = {}
        for name, pool in self.pools.items():
            if f"pairs/{name}" in step:
                given = step[f"pairs/{name}"]
                numbers = given.clamp(min=0)
                start, stop = stop, stop + pool.rows_of(numbers).shape[0]
                place = pool.places(numbers)
                side = pick(pick(predictions, slice(start, stop)), place)
                partners = pick(pick(batch.columns(), slice(start, stop)), place)
                sides[name] = (side, Batch(**{**partners, "ids": numbers, "present": given >= 0}))
        return self.settings.loss(head, targets), ours, Batch(**columns), sides

    def fingerprint(self) -> dict[str, Any]:
        """What tells these data from others."""
        return {
            "data": _digest(self.data),
            "rows": [self.data.labelled, self.data.rows],
            "held out": [len(out) for out in self.held_out],
            "validation": _digest(self.check) if self.separate else None,
        }


class _Pool:
    """The rows that pairs are made of: predicted once each where a step's pairs would need more rows than there are."""

    def __init__(self, pairs: Pairs, excluded: Sequence[Tensor], device: torch.device) -> None:
        indices = pairs.indices.cpu()
        self.numbers = [(~torch.isin(indices, out).any(1)).nonzero()[:, 0] for out in excluded]
        if any(len(numbers) == 0 for numbers in self.numbers):
            raise ValueError(f"pairs {pairs.name!r}: no pair is left whose two rows are both trained on")
        rows, place = torch.unique(indices, return_inverse=True)
        self.indices, self.rows, self.place = indices.to(device), rows.to(device), place.to(device)
        self.whole = True

    def plan(self, steps: int) -> None:
        """Decide once, from the size of a step's share of the pairs."""
        self.whole = 2 * max(len(numbers) for numbers in self.numbers) / steps > len(self.rows)

    def rows_of(self, numbers: Tensor) -> Tensor:
        """The rows to predict for these pairs."""
        both: Tensor = self.indices[numbers].mT
        return self.rows.expand(*numbers.shape[:-1], -1) if self.whole else both.flatten(-2)

    def places(self, numbers: Tensor) -> Tensor:
        """Where among `rows_of` the two partners of each pair stand, [2, P]."""
        place = self.place[numbers].mT if self.whole else torch.arange(2 * len(numbers)).view(2, -1)
        return place.to(numbers.device)


class LoaderTask:
    """Data from a DataLoader or any iterable of batches that can be gone through again."""

    separate = True

    def __init__(
        self,
        settings: Settings,
        loader: Iterable[Any],
        validation: Any,
        unlabelled: Any,
        stratify: Any,
        device: torch.device,
    ) -> None:
        self.settings, self.loader, self.device = settings, loader, device
        if not isinstance(loader, Sized) or not isinstance(loader, Iterable):
            raise TypeError(f"data must be tensors or a DataLoader with a length, got {type(loader).__name__}")
        self.steps = len(loader)
        if self.steps == 0:
            raise ValueError("data is empty: the loader hands out no batch")
        for what, given in (("unlabelled", unlabelled), ("stratify", stratify)):
            if given is not None:
                raise ValueError(f"{what} goes with data in memory; with a DataLoader put it into the loader's batches")
        for constraint in settings.constraints:
            if isinstance(constraint.scope, Pairs):
                raise ValueError(
                    f"constraint {constraint.name!r}: pairs are looked up by row and need data in memory, or a loop of "
                    "your own with ldf.PairBatches"
                )
        if isinstance(validation, float | int):
            raise ValueError("a share of the data can be held out of data in memory only: give validation data")
        self.validates = validation is not None
        self.check = Data(validation).to(device) if validation is not None else None
        self.held_out = [torch.arange(self.check.rows if self.check else 0)]
        if settings.patience and not self.validates:
            raise ValueError("patience needs validation data")
        dataset = getattr(loader, "dataset", None)
        self.rows = len(dataset) if isinstance(dataset, Sized) else None
        every = settings.update_every
        self.updates_per_epoch = math.ceil(self.steps / every) if every else 1

    def plan(self, run: int, epoch: int) -> Iterable[Batch]:
        """One pass over the loader."""
        return (as_batch(item).to(self.device) for item in self.loader)

    def batch(self, step: Batch) -> Batch:
        """The batch as it is."""
        return step

    def parts(self, predictions: Any, step: Batch, batch: Batch) -> Parts:
        """Loss, predictions and batch."""
        return self.settings.loss(predictions, step.targets), predictions, step, {}

    def fingerprint(self) -> dict[str, Any]:
        """What can be known of a loader without going through it."""
        return {
            "data": f"{type(self.loader).__name__} of {self.steps} batches",
            "rows": self.rows,
            "validation": _digest(self.check) if self.check is not None else None,
        }


def _digest(data: Data) -> str:
    """What tells these rows from others."""
    digest = hashlib.sha256()
    for column in (*data.columns.values(), data.targets):
        digest.update(str((column.shape, column.dtype)).encode())
        digest.update(as_bytes(column))
    return digest.hexdigest()[:16]


def _hold_out(rows: int, share: float, seed: int) -> Tensor:
    if isinstance(share, bool) or not 0 < share < 1 or not 0 < round(share * rows) < rows:
        raise ValueError(f"validation must be a share between 0 and 1 that leaves rows on both sides, got {share!r}")
    order = torch.randperm(rows, generator=epoch_generator(seed, 0, stream=99))
    return order[: round(share * rows)].sort().values

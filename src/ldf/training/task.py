"""Training data step by step: batches of rows, unlabelled rows and pairs, reproducible by seed; held-out rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import torch
from torch import Tensor

from ..core.batch import Batch, Data, as_batch, in_memory, leaves, pick
from ..core.dual import Dual
from ..core.samplers import epoch_generator, shuffled, stratified
from ..core.scope import Scope, Side
from ..io.checkpoint import as_bytes
from .settings import Settings

Step = dict[str, Tensor]
"""Row numbers of one step: "ids" for the loss, "free" unlabelled, "pairs/NAME" pair numbers; [R, …] for R runs."""

Parts = tuple[Tensor, Any, Batch, dict[str, Side]]
"""Arguments of a Lagrangian: loss, predictions, batch, pairs."""

SAMPLE = 256
"""Training rows on which the doctor tests whether the constraints can be satisfied, at most."""


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
            data: rows with a loss, followed by unlabelled rows.
            seeds: seed of each run.
            held_out: rows that each run is validated on, if already chosen.
            subsets: rows with a loss that each run uses, by default all.
        """
        self.settings, self.data, self.rows = settings, data, data.rows
        self.labelled = data.targets is not None
        self.seeds = list(seeds)
        everything = torch.arange(data.labelled)
        own = list(subsets) if subsets is not None else [everything] * len(self.seeds)
        self.device = data.device
        separate = None if isinstance(settings.validation, float | int) else _separate(settings, self.device)
        self.check, self.separate = data if separate is None else separate, separate is not None
        self.held_out = list(held_out) if held_out is not None else self._hold_out(own)
        self.validates = self.separate or len(self.held_out[0]) > 0
        settings.check_held_out(self.validates)
        kept = [rows[:0] for rows in own] if self.separate else self.held_out
        self.training = [rows[~torch.isin(rows, out)] for rows, out in zip(own, kept, strict=True)]
        self.free = torch.arange(data.labelled, data.rows)
        self.passes: dict[int, dict[int, Tensor]] = {}
        # Constraints on pairs look up their own rows; other constraints need the unlabelled rows in the batch.
        self.alone = any(c.scope.name is None for c in settings.constraints)
        self.stratify = self._strata()
        self._check_scopes()
        self.steps = math.ceil(min(len(rows) for rows in self.training) / settings.batch_size)
        excluded = [everything[~torch.isin(everything, rows)] for rows in self.training]
        found = {c.scope.name: c.scope.pool(excluded, self.device) for c in settings.constraints}
        self.pools = {name: pool for name, pool in found.items() if name is not None and pool is not None}
        for pool in self.pools.values():
            pool.plan(self.steps)
        self.update_every = settings.update_every

    def _hold_out(self, own: Sequence[Tensor]) -> list[Tensor]:
        """Rows that each run is validated on: all rows of separate validation data, or a fraction of its own."""
        share = self.settings.validation
        if self.separate:
            return [_rows(self.check) for _ in self.seeds]
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
        """The batches of one epoch of a run; they depend on the seed and the epoch only."""
        seed, rows = self.seeds[run], self.training[run]
        generator = epoch_generator(seed, epoch)
        if self.stratify is not None:
            batches = stratified(rows, self.stratify[rows], self.settings.batch_size, generator)
        else:
            batches = shuffled(rows, self.settings.batch_size, generator)
        plan: list[Step] = [{"ids": ids} for ids in batches]
        if len(self.free) and self.alone:
            for step, part in zip(plan, self._unlabelled(seed, epoch, len(plan)), strict=True):
                step["free"] = part
        for stream, (name, pool) in enumerate(self.pools.items()):
            numbers = pool.numbers[run]
            order = numbers[torch.randperm(len(numbers), generator=epoch_generator(seed, epoch, 2 + stream))]
            for step, part in zip(plan, order.tensor_split(len(plan)), strict=True):
                if len(part):
                    step[f"pairs/{name}"] = part
        return plan

    def _unlabelled(self, seed: int, epoch: int, steps: int) -> Sequence[Tensor]:
        """The unlabelled rows of each step: all of them in every epoch, if a batch size suffices for that; otherwise
        each step takes the next rows of a pass through all of them, which lasts for several epochs.
        """
        count, asked = len(self.free), self.settings.unlabelled_batch_size
        if asked is None and count <= steps * self.settings.batch_size:
            order: Tensor = self.free[torch.randperm(count, generator=epoch_generator(seed, epoch, 1))]
            return torch.tensor_split(order, steps)
        size = min(asked or self.settings.batch_size, count)
        begin, end = epoch * steps * size, (epoch + 1) * steps * size
        # A pass may last for many epochs: its order is kept, since drawing it again could cost more than the steps.
        known = self.passes.get(seed, {})
        self.passes[seed] = {
            number: known[number]
            if number in known
            else torch.randperm(count, generator=epoch_generator(seed, number, 1))
            for number in range(begin // count, (end - 1) // count + 1)
        }
        parts = [order[max(begin - n * count, 0) : end - n * count] for n, order in self.passes[seed].items()]
        chosen: Tensor = self.free[torch.cat(parts)]
        return torch.split(chosen, size)

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
            return self.settings.loss_on(predictions, batch), predictions, batch, {}
        labelled = step["ids"].shape[0]
        stop = labelled + (step["free"].shape[0] if "free" in step else 0)
        ours, columns = pick((predictions, batch.columns()), slice(stop))
        head, own = pick((ours, columns), slice(labelled)) if "free" in step else (ours, columns)
        if self.data.targets is not None:
            own["targets"] = pick(self.data.targets, step["ids"])
        sides: dict[str, Side] = {}
        for name, pool in self.pools.items():
            if f"pairs/{name}" in step:
                given = step[f"pairs/{name}"]
                start, stop = stop, stop + pool.rows_of(given.clamp(min=0)).shape[0]
                part = slice(start, stop)
                sides[name] = pool.side(given, pick(predictions, part), pick(batch.columns(), part))
        return self.settings.loss_on(head, Batch(**own)), ours, Batch(**columns), sides

    def sample(self, run: int) -> Batch:
        """Some training rows of a run, evenly spaced, for the doctor."""
        rows = self.training[run]
        return self.data.take(rows[:: math.ceil(len(rows) / SAMPLE)])

    def fingerprint(self) -> dict[str, Any]:
        """Identifies the data, for the checkpoint."""
        return {
            "data": _digest(self.data),
            "rows": [self.data.labelled, self.data.rows],
            "held out": [len(out) for out in self.held_out],
            "validation": _identity(self.check) if self.separate else None,
        }


class LoaderTask:
    """Data from a DataLoader or any iterable of batches that can be iterated repeatedly."""

    separate = True
    labelled = True  # unknown before the first batch; the automatic rule then finds out after a twentieth of the run

    def __init__(
        self,
        settings: Settings,
        loader: Iterable[Any],
        device: torch.device,
    ) -> None:
        self.settings, self.loader, self.device = settings, loader, device
        self.latest: Batch | None = None
        self.steps = _batches("data", loader)
        for what, given in (("unlabelled", settings.unlabelled), ("stratify", settings.stratify)):
            if given is not None:
                raise ValueError(f"{what} needs data in memory; with a DataLoader, put it into the loader's batches")
        for constraint in settings.constraints:
            if constraint.scope.name is not None:
                raise ValueError(
                    f"constraint {constraint.name!r}: pairs are looked up by row and need data in memory, or your own "
                    "training loop with ldf.PairBatches"
                )
        if isinstance(settings.validation, float | int):
            raise ValueError("a fraction can only be held out of data in memory: pass separate validation data")
        self.check = _separate(settings, device)
        self.validates = self.check is not None
        self.held_out = [_rows(self.check)]
        settings.check_held_out(self.validates)
        dataset = getattr(loader, "dataset", None)
        self.rows = len(dataset) if isinstance(dataset, Sized) else None
        self.update_every = settings.update_every

    def plan(self, run: int, epoch: int) -> Iterable[Batch]:
        """One pass over the loader."""
        for batch in read(self.loader, self.device):
            self.latest = batch
            yield batch

    def batch(self, step: Batch) -> Batch:
        """The batch unchanged."""
        return step

    def parts(self, predictions: Any, step: Batch, batch: Batch) -> Parts:
        """Loss, predictions and batch."""
        return self.settings.loss_on(predictions, step), predictions, step, {}

    def sample(self, run: int) -> Batch | None:
        """Some rows of the latest batch, for the doctor; None if a resumed run had no steps left."""
        return Batch(**pick(self.latest.columns(), slice(SAMPLE))) if self.latest is not None else None

    def fingerprint(self) -> dict[str, Any]:
        """Identifies a loader without iterating over it."""
        return {
            "data": f"{type(self.loader).__name__} of {self.steps} batches",
            "rows": self.rows,
            "validation": _identity(self.check),
        }


def read(loader: Iterable[Any], device: torch.device) -> Iterator[Batch]:
    """One pass over a loader, with its batches on a device."""
    return (as_batch(item).to(device) for item in loader)


def _separate(settings: Settings, device: torch.device) -> Data | Iterable[Any] | None:
    """Separate validation data, in memory or as a loader."""
    given: Any = settings.validation
    if given is None:
        return None
    if in_memory(given):
        return Data(given).to(device)
    _batches("validation", given)
    if settings.ascend_on == "held-out":
        raise ValueError("ascend_on='held-out' needs the held-out rows in memory: pass validation as tensors")
    return given  # type: ignore[no-any-return]


def _batches(what: str, loader: Any) -> int:
    """Number of batches of a loader."""
    if not isinstance(loader, Sized) or not isinstance(loader, Iterable):
        raise TypeError(f"{what} must be tensors or a DataLoader with a length, got {type(loader).__name__}")
    if len(loader) == 0:
        raise ValueError(f"{what} is empty: the loader yields no batches")
    return len(loader)


def _rows(check: Data | Iterable[Any] | None) -> Tensor:
    """Row numbers of separate validation data; none for a loader, which is read batch by batch."""
    return torch.arange(check.rows if isinstance(check, Data) else 0)


def _identity(data: Data | Iterable[Any] | None) -> str | None:
    """Identifies validation data: a hash of all columns, or the number of batches of a loader."""
    if isinstance(data, Data):
        return _digest(data)
    return f"{type(data).__name__} of {_batches('validation', data)} batches" if data is not None else None


def _digest(data: Data) -> str:
    """Hash of all columns and targets."""
    digest = hashlib.sha256()
    for column in leaves((*data.columns.values(), data.targets)):
        digest.update(str((column.shape, column.dtype)).encode())
        digest.update(as_bytes(column))
    return digest.hexdigest()[:16]


def plan_updates(task: Task | LoaderTask, rules: Iterable[Dual]) -> int:
    """Decide how often multipliers are updated, and return the number of updates of the whole run.

    By default once an epoch; more often if a rule wants more updates than there are epochs, but not before 5 steps.
    """
    epochs, wanted = task.settings.epochs, max((rule.updates for rule in rules), default=0)
    if task.update_every is None and epochs < wanted:
        every = max(5, round(epochs * task.steps / wanted))
        task.update_every = every if every < task.steps else None
    return epochs * (math.ceil(task.steps / task.update_every) if task.update_every else 1)


def _share(rows: int, share: Any, seed: int) -> Tensor:
    """Row numbers that are held out."""
    sound = isinstance(share, float | int) and not isinstance(share, bool) and 0 < share < 1
    if not sound or not 0 < round(share * rows) < rows:
        raise ValueError(f"validation must be a fraction between 0 and 1 that leaves rows on both sides, got {share!r}")
    order = torch.randperm(rows, generator=epoch_generator(seed, 0, stream=99))
    return order[: round(share * rows)].sort().values

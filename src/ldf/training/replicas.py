"""`fit_many`: seeds × dual rules × folds of one architecture, trained as one stacked model."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.batch import Data, Rows, describe
from ..core.constraint import Constraint, check_names
from ..core.dual import Rules, rules_for
from ..core.lagrangian import Lagrangian
from ..core.samplers import epoch_generator
from ..io.checkpoint import as_bytes
from .engine import Single
from .fitting import Callback, Fit, as_tuple, own_random_numbers, trained
from .loop import Loop
from .resume import shapes
from .settings import Forward, Loss, MakeOptimizer, MakeSchedule, Metric, Settings, Unlabelled, call_on_inputs
from .stacked import Stacked
from .task import Task, plan_updates


def fit_many(
    factory: Callable[[], nn.Module],
    data: Rows,
    *,
    loss: Loss,
    constraints: Iterable[Constraint] = (),
    dual: Rules = "auto",
    duals: Sequence[Rules] | Sequence[Sequence[Rules]] | None = None,
    seeds: Iterable[int] = (0,),
    folds: int | None = None,
    subsets: Sequence[Tensor] | None = None,
    held_out: Sequence[Tensor] | None = None,
    epochs: int = 80,
    batch_size: int = 64,
    lr: float = 1e-3,
    optimizer: MakeOptimizer | None = None,
    schedule: Literal["cosine"] | MakeSchedule | None = None,
    validation: float | Rows | Iterable[Any] | None = None,
    keep: Literal["best", "last"] = "best",
    metrics: Mapping[str, Metric] | None = None,
    unlabelled: Unlabelled | None = None,
    unlabelled_batch_size: int | None = None,
    stratify: Tensor | None = None,
    update_every: int | None = None,
    ascend_on: Literal["training", "held-out"] = "training",
    forward: Forward | None = None,
    compile: bool | Literal["auto"] = "auto",
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | None = None,
    callbacks: Callback | Iterable[Callback] = (),
) -> list[Fit]:
    """Train one model for every seed, dual rule and fold, all at once; each result is that of a separate `fit`.

    The weights of all models are stacked, so that a step is one batched product instead of many small ones. The
    optimiser must act elementwise (SGD, Adam, AdamW, RMSprop and the like do; norms over all weights do not).

    Args:
        factory: creates a model; called once per run, under the run's seed.
        data: inputs, (inputs, targets) or a mapping of columns, in memory.
        duals: several rules to try, or a list of rules for each seed; use `dual` for a single rule.
        seeds: random seeds for weights and batches.
        folds: K-fold cross-validation: every seed and rule is trained K times, each time without one K-th of the rows,
            on which it is validated (rows left over by the division are always trained on).
        subsets: for each seed, the labelled rows that its runs use; all subsets have the same size.
        held_out: for each seed, the rows to validate on and exclude from training; all sets have the same size.
        callbacks: as for `fit`, called after every epoch for each run; training ends once True was returned for all
            runs in the same epoch.
        loss, constraints, epochs, batch_size, lr, optimizer, schedule, validation, keep, metrics, unlabelled,
            unlabelled_batch_size, stratify, update_every, ascend_on, forward, compile, checkpoint, checkpoint_seconds,
            progress: as for `fit`; "auto" compiles R models from 200 000/R steps on. If `stratify` gives batches of
            different sizes in different folds, all are truncated to the shortest. With folds and ascend_on="held-out"
            the folds of a seed and rule share their multipliers, which are updated from the out-of-fold predictions of
            all rows.

    Returns:
        One `Fit` per run, seeds outermost and folds innermost, with the run in `.label` and its fold in `.held_out`.

    >>> import ldf
    >>> inputs = torch.rand(256, 3, generator=torch.Generator().manual_seed(0))
    >>> balance = ldf.equality("balance", lambda y, batch: y.sum(1, keepdim=True) - 1)
    >>> runs = fit_many(lambda: nn.Linear(3, 3), (inputs, inputs), loss=nn.functional.mse_loss, constraints=[balance],
    ...                 duals=[None, ldf.Ascent(0.1)], seeds=range(2), epochs=3)
    >>> [(run.label["seed"], run.label["dual"]) for run in runs][:2]
    [(0, None), (0, Ascent(step=0.1, normalise=True, reduce='mean', initial=0.0, remeasure=True))]
    """
    settings = Settings(
        loss=loss,
        constraints=check_names(constraints),
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        optimizer=optimizer,
        schedule=schedule,
        validation=validation,
        keep=keep,
        metrics=dict(metrics or {}),
        unlabelled=unlabelled,
        unlabelled_batch_size=unlabelled_batch_size,
        stratify=stratify,
        update_every=update_every,
        ascend_on=ascend_on,
        forward=forward or call_on_inputs,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
        callbacks=as_tuple(callbacks),
    )
    if sum(given is not None for given in (folds, held_out, validation)) > 1:
        raise ValueError("folds, held_out and validation each hold rows out: give only one of them")
    source = Data(data, unlabelled)
    runs = _Runs.of(list(seeds), duals if duals is not None else [dual], folds)
    own, out = runs.rows(source.labelled, subsets, held_out)
    models = []
    for seed in runs.seeds:
        with own_random_numbers(seed, torch.device("cpu")):
            models.append(factory())
    first = next(models[0].parameters(), None)
    if first is None:
        raise ValueError("the model has no trainable parameters")
    task = Task(settings, source.to(first.device), runs.seeds, out, own)
    rules = [rule for _, given, _ in runs.plan for rule in rules_for(settings.constraints, given)]
    updates = plan_updates(task, rules)
    lagrangians = [
        Lagrangian(settings.constraints, rule, rows=task.rows, updates=updates, labelled=task.labelled)
        for _, rule, _ in runs.plan
    ]
    # A single run has nothing to stack, and its plain step is cheaper.
    engine: Single | Stacked
    turn = len(models) > 1 and compile is not False
    if len(models) == 1:
        engine = Single(settings, models[0], lagrangians[0], task)
    else:
        engine = Stacked(settings, models, lagrangians, task, turn)
    facts: dict[str, Any] = {
        "model": shapes(models[0]),
        "lr": lr,
        "runs": [[seed, repr(rule), fold] for seed, rule, fold in runs.plan],
        "transposed": turn,
    }
    if subsets is not None or held_out is not None:
        known = [*own, *(out or [])]
        facts["subsets"] = hashlib.sha256(b"".join(as_bytes(rows) for rows in known)).hexdigest()[:16]
    with own_random_numbers(runs.seeds[0], first.device):
        loop = Loop(engine, task, settings.optimizer_of(engine.parameters()), facts, runs.teams, compile)
        return trained(loop, [{"seed": seed, "dual": rule, "fold": fold} for seed, rule, fold in runs.plan])


@dataclass(frozen=True)
class _Runs:
    """The models to train, seeds outermost and folds innermost."""

    plan: list[tuple[int, Rules, int | None]]
    """Seed, rule and fold of each run."""
    each: int
    """Number of runs per seed."""
    folds: int | None

    @classmethod
    def of(cls, seeds: Sequence[int], duals: Sequence[Any], folds: int | None) -> _Runs:
        """All combinations of seed, rule and fold."""
        turns = range(folds) if folds is not None else [None]
        pairs = zip(seeds, _rules_of(duals, seeds), strict=True)
        plan = [(seed, *rest) for seed, own in pairs for rest in itertools.product(own, turns)]
        if not plan:
            raise ValueError("nothing to train: seeds and duals must not be empty")
        return cls(plan, len(plan) // len(seeds), folds)

    @property
    def seeds(self) -> list[int]:
        """Seed of each run."""
        return [seed for seed, _, _ in self.plan]

    @property
    def teams(self) -> list[range]:
        """Folds of the same seed and rule, which may share their multipliers."""
        if not self.folds:
            return []
        return [range(start, start + self.folds) for start in range(0, len(self.plan), self.folds)]

    def rows(
        self, labelled: int, subsets: Sequence[Tensor] | None, held_out: Sequence[Tensor] | None
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """For each run, the labelled rows it uses and, with `held_out` or folds, the rows it is validated on.

        Args:
            labelled: number of labelled rows.
            subsets: for each seed, the rows that its runs use.
            held_out: for each seed, the rows that its runs are validated on.
        """
        seeds = self.seeds[:: self.each]
        sets = [torch.arange(labelled)] * len(seeds)
        if subsets is not None:
            sets = _check_subsets("subsets", subsets, seeds, labelled)
        own = [rows for rows in sets for _ in range(self.each)]
        if held_out is not None:
            out = _check_subsets("held_out", held_out, seeds, labelled)
            if any(not bool(torch.isin(rows, known).all()) for rows, known in zip(out, sets, strict=True)):
                raise ValueError("held_out: some rows are not in the seed's subset")
            if len(out[0]) >= len(sets[0]):
                raise ValueError(f"held_out: all {len(sets[0])} rows are held out, which leaves none to train on")
            return own, [rows for rows in out for _ in range(self.each)]
        if self.folds is None:
            return own, None
        if not 2 <= self.folds <= len(own[0]):
            raise ValueError(f"folds must be between 2 and {len(own[0])}, the number of rows, got {self.folds}")
        return own, [
            rows[fold_rows(len(rows), self.folds, fold, seed)]
            for rows, (seed, _, fold) in zip(own, self.plan, strict=True)
            if fold is not None
        ]


def fold_rows(rows: int, folds: int, fold: int, seed: int) -> Tensor:
    """Row numbers of one fold. Folds have equal size, so that runs can be stacked; fewer than K rows are left over.

    >>> [len(fold_rows(11, 3, fold, seed=0)) for fold in range(3)]
    [3, 3, 3]
    """
    size = rows // folds
    order = torch.randperm(rows, generator=epoch_generator(seed, 0, stream=98))
    return order[fold * size : (fold + 1) * size].sort().values


def _rules_of(duals: Sequence[Any], seeds: Sequence[int]) -> list[list[Rules]]:
    """The rules of every seed, the same number for each."""
    if not all(isinstance(rule, list | tuple) for rule in duals):
        return [list(duals)] * len(seeds)
    if duals and (len(duals) != len(seeds) or len({len(rules) for rules in duals}) != 1):
        raise ValueError(f"duals must have a list of rules for each of the {len(seeds)} seeds, all of the same length")
    return [list(rules) for rules in duals] or [[] for _ in seeds]


def _check_subsets(what: str, subsets: Sequence[Tensor], seeds: Sequence[int], rows: int) -> list[Tensor]:
    """Check that there is one set of distinct rows per seed, all of the same size."""
    if len(subsets) != len(seeds):
        raise ValueError(f"{what} must have a set of rows for each of the {len(seeds)} seeds, got {len(subsets)}")
    for seed, subset in zip(seeds, subsets, strict=True):
        if not isinstance(subset, Tensor) or subset.dtype != torch.int64 or subset.ndim != 1 or not len(subset):
            raise TypeError(f"{what}: expected an int64 tensor of row numbers for seed {seed}, got {describe(subset)}")
        if int(subset.min()) < 0 or int(subset.max()) >= rows:
            raise ValueError(f"{what}: a row number for seed {seed} is outside 0 to {rows - 1}")
        if len(torch.unique(subset)) != len(subset) or len(subset) != len(subsets[0]):
            raise ValueError(f"{what} must have distinct rows, the same number for each seed")
    return [subset.cpu() for subset in subsets]

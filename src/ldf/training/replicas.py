"""`fit_many`: seeds × dual rules × folds of one architecture, trained as one stacked model."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ..core.batch import Batch, Data, describe, free, pick
from ..core.constraint import Constraint, check_names
from ..core.dual import Ascent, Dual
from ..core.lagrangian import Lagrangian
from ..core.scopes import epoch_generator
from ..io.checkpoint import as_bytes
from .engine import Single, chunks, join, measure, pack, unpack
from .loop import Fit, MakeOptimizer, adam, call_on_inputs, own_random_numbers, train
from .resume import shapes
from .task import Forward, Labelled, Loss, MakeSchedule, Metric, Settings, Step, Task

Rules = Dual | Mapping[str, Dual] | None


def fit_many(
    factory: Callable[[], nn.Module],
    data: Labelled,
    *,
    loss: Loss,
    constraints: Iterable[Constraint] = (),
    dual: Rules = Ascent(),  # noqa: B008  # frozen
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
    validation: float | Labelled | None = None,
    keep: Literal["best", "last"] = "best",
    metrics: Mapping[str, Metric] | None = None,
    unlabelled: Tensor | Mapping[str, Tensor] | None = None,
    stratify: Tensor | None = None,
    update_every: int | None = None,
    ascend_on: Literal["training", "held-out"] = "training",
    forward: Forward | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    progress: bool | None = None,
) -> list[Fit]:
    """Train one model for every seed, dual rule and fold, all at once; the results are those of `fit`, one by one.

    The weights of all models are stacked, so that a step is one batched product instead of many small ones. The
    optimiser must work number by number (SGD, Adam, AdamW, RMSprop and their like do; norms over all weights do not).

    Args:
        factory: makes a model; called once per run, under the run's seed.
        data: (inputs, targets) or a mapping of columns, in memory.
        duals: several rules to try, or a list of them for each seed; `dual` where there is only one.
        seeds: of weights and batches.
        folds: K-fold cross-validation: every seed and rule is trained K times, each time without one K-th of the rows,
            on which it is validated (rows left over by the division are always trained on).
        subsets: a data set for each seed: the labelled rows that its runs see, all of the same number.
        held_out: for each seed the rows to validate on and not to train on, all of the same number.
        loss, constraints, epochs, batch_size, lr, optimizer, schedule, validation, keep, metrics, unlabelled, stratify,
            update_every, ascend_on, forward, checkpoint, checkpoint_seconds, progress: as for `fit`. Where `stratify`
            makes batches of different sizes in different folds, all are cut to the shortest. With folds and
            ascend_on="held-out" the folds of a seed and rule share their multipliers, which ascend by all rows, each
            as predicted by the one model that does not know it.

    Returns:
        One `Fit` per run, seeds outermost and folds innermost; `.label` says which, `.held_out` its fold's rows.

    >>> import ldf
    >>> inputs = torch.rand(256, 3, generator=torch.Generator().manual_seed(0))
    >>> balance = ldf.equality("balance", lambda y, batch: y.sum(1, keepdim=True) - 1)
    >>> runs = fit_many(lambda: nn.Linear(3, 3), (inputs, inputs), loss=nn.functional.mse_loss, constraints=[balance],
    ...                 duals=[None, ldf.Ascent(0.1)], seeds=range(2), epochs=3)
    >>> [(run.label["seed"], run.label["dual"]) for run in runs][:2]
    [(0, None), (0, Ascent(step=0.1, normalise=True, reduce='mean', initial=0.0))]
    """
    constraints = check_names(constraints)
    settings = Settings(
        loss=loss,
        constraints=constraints,
        epochs=epochs,
        batch_size=batch_size,
        schedule=schedule,
        keep=keep,
        patience=None,
        update_every=update_every,
        forward=forward or call_on_inputs,
        checkpoint_seconds=checkpoint_seconds,
        ascend_on=ascend_on,
        metrics=dict(metrics or {}),
    )
    seeds = list(seeds)
    rules = _rules_of(duals if duals is not None else [dual], seeds)
    turns = range(folds) if folds is not None else [None]
    plan = [(seed, *rest) for seed, own in zip(seeds, rules, strict=True) for rest in itertools.product(own, turns)]
    if not plan:
        raise ValueError("nothing to train: seeds and duals must not be empty")
    chosen = [seed for seed, _, _ in plan]
    source = Data(data, unlabelled)
    whole = torch.arange(source.labelled)
    each = len(plan) // len(seeds)
    sets = [whole] * len(seeds)
    if subsets is not None:
        sets = _check_subsets("subsets", subsets, seeds, source.labelled)
    own = [rows for rows in sets for _ in range(each)]
    if sum(given is not None for given in (folds, held_out, validation)) > 1:
        raise ValueError("folds, held_out and validation each hold rows out: give one of them")
    out: list[Tensor] | None = None
    if held_out is not None:
        out = _check_subsets("held_out", held_out, seeds, source.labelled)
        if any(not bool(torch.isin(rows, known).all()) for rows, known in zip(out, sets, strict=True)):
            raise ValueError("held_out: rows that are not among the seed's subset")
        if len(out[0]) >= len(sets[0]):
            raise ValueError(f"held_out: all {len(sets[0])} rows are held out, and none is left to train on")
        out = [rows for rows in out for _ in range(each)]
    if folds is not None:
        if not 2 <= folds <= len(own[0]):
            raise ValueError(f"folds must be between 2 and the {len(own[0])} rows, got {folds}")
        out = [
            rows[fold_rows(len(rows), folds, fold, seed)]
            for rows, (seed, _, fold) in zip(own, plan, strict=True)
            if fold is not None
        ]
    models = []
    for seed in chosen:
        with own_random_numbers(seed, torch.device("cpu")):
            models.append(factory())
    first = next(models[0].parameters(), None)
    if first is None:
        raise ValueError("the model has no parameter to train")
    task = Task(settings, source.to(first.device), validation, stratify, chosen, out, own)
    lagrangians = [
        Lagrangian(constraints, rule, rows=task.rows, updates=epochs * task.updates_per_epoch) for _, rule, _ in plan
    ]
    # One run alone has nothing to stack, and its plain step is the cheaper one.
    engine: Single | Stacked
    if len(plan) == 1:
        engine = Single(settings, models[0], lagrangians[0], task, compile=False)
    else:
        engine = Stacked(settings, models, lagrangians, task)
    make = optimizer or adam(lr)
    facts: dict[str, Any] = {
        "model": shapes(models[0]),
        "lr": lr,
        "runs": [[seed, repr(rule), fold] for seed, rule, fold in plan],
    }
    if subsets is not None or held_out is not None:
        known = [*own, *(out or [])]
        facts["subsets"] = hashlib.sha256(b"".join(as_bytes(rows) for rows in known)).hexdigest()[:16]
    with own_random_numbers(chosen[0], first.device):
        teams = [range(start, start + folds) for start in range(0, len(plan), folds)] if folds else []
        fits = train(engine, task, make(engine.parameters()), chosen, checkpoint, progress, facts, teams)
    for one, (seed, rule, fold) in zip(fits, plan, strict=True):
        one.label = {"seed": seed, "dual": rule, "fold": fold}
    return fits


def fold_rows(rows: int, folds: int, fold: int, seed: int) -> Tensor:
    """The rows of one fold: folds of equal size, so that runs can be stacked; fewer than K rows are left over.

    >>> [len(fold_rows(11, 3, fold, seed=0)) for fold in range(3)]
    [3, 3, 3]
    """
    size = rows // folds
    order = torch.randperm(rows, generator=epoch_generator(seed, 0, stream=98))
    return order[fold * size : (fold + 1) * size].sort().values


def _rules_of(duals: Sequence[Any], seeds: Sequence[int]) -> list[list[Rules]]:
    """The rules of every seed, as many for one as for the other."""
    if not all(isinstance(rule, list | tuple) for rule in duals):
        return [list(duals)] * len(seeds)
    if duals and (len(duals) != len(seeds) or len({len(rules) for rules in duals}) != 1):
        raise ValueError(f"duals must have a list of rules for each of the {len(seeds)} seeds, all of the same length")
    return [list(rules) for rules in duals] or [[] for _ in seeds]


def _check_subsets(what: str, subsets: Sequence[Tensor], seeds: Sequence[int], rows: int) -> list[Tensor]:
    """A set of different rows for each seed, as many in one as in the other."""
    if len(subsets) != len(seeds):
        raise ValueError(f"{what} must have a set of rows for each of the {len(seeds)} seeds, got {len(subsets)}")
    for seed, subset in zip(seeds, subsets, strict=True):
        if not isinstance(subset, Tensor) or subset.dtype != torch.int64 or subset.ndim != 1 or not len(subset):
            raise TypeError(f"{what}: that of seed {seed} must be a tensor of row numbers, got {describe(subset)}")
        if int(subset.min()) < 0 or int(subset.max()) >= rows:
            raise ValueError(f"{what}: that of seed {seed} has a row that is not among the {rows}, numbered from 0")
        if len(torch.unique(subset)) != len(subset) or len(subset) != len(subsets[0]):
            raise ValueError(f"{what} must have different rows, and all of them the same number")
    return [subset.cpu() for subset in subsets]


class _Caller(nn.Module):
    """Calls a model the way the user asked for, so that its weights can be swapped for stacked ones."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model, self.call = model, forward

    def forward(self, batch: Batch) -> Any:
        return self.call(self.model, batch)


class Stacked:
    """R models and R Lagrangians with their tensors stacked, [R, …], and stepped by one vmapped call.

    The Lagrangians' buffers are views into the stacked ones: what a step adds to the stacked sums, each finds in its
    own, and what `ascend` does to its own, the next step uses.
    """

    stacked = True

    def __init__(
        self, settings: Settings, models: Sequence[nn.Module], lagrangians: Sequence[Lagrangian], task: Task
    ) -> None:
        self.settings, self.models, self.lagrangians, self.task = settings, list(models), list(lagrangians), task
        for model in models:
            model.train()
        callers = [_Caller(model, settings.forward) for model in models]
        self.params, self.buffers = stack_module_state(callers)
        self.caller = copy.deepcopy(callers[0])
        self.shared: dict[str, Tensor] = {}
        self.template: Lagrangian | None = None

    def parameters(self) -> list[Tensor]:
        """The stacked weights."""
        return [parameter for parameter in self.params.values() if parameter.requires_grad]

    def backward(self, step: Step) -> None:
        """∂(L + Σ λν)/∂w of every model: the gradient of the sum."""
        columns = self.task.batch(step).columns()
        totals = vmap(self._one, randomness="different")(self.params, self.buffers, self.shared, step, columns)
        totals.sum().backward()

    def _one(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
        step: Step,
        columns: Mapping[str, Tensor],
    ) -> Tensor:
        batch = Batch(**columns)
        predictions = functional_call(self.caller, {**params, **buffers}, (batch,))
        assert self.template is not None
        total: Tensor = functional_call(self.template, dict(shared), self.task.parts(predictions, step, batch))
        return total

    def _predictions(self, data: Data, ids: Tensor) -> Any:
        """[R, rows, …] for row numbers [R, rows], in eval mode."""

        def one(params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: Tensor) -> Any:
            return functional_call(self.caller, {**params, **buffers}, (data.take(rows, targets=False),))

        self.caller.eval()
        try:
            with torch.no_grad():
                return vmap(one)(self.params, self.buffers, ids)
        finally:
            self.caller.train()

    def measure(self, step: Step) -> None:
        """Each Lagrangian on its own predictions; the first time, their buffers are then stacked."""
        if all(lagrangian.ready and lagrangian.measured for lagrangian in self.lagrangians) and self.template:
            return
        batches = [self.task.batch(_slice(step, run)) for run in range(len(self.lagrangians))]
        predictions = self._predictions(self.task.data, torch.stack([batch.ids for batch in batches]))
        for run, lagrangian in enumerate(self.lagrangians):
            if not (lagrangian.ready and lagrangian.measured):
                own = free(pick(predictions, run))
                measure(lagrangian, self.task.parts(own, _slice(step, run), batches[run]))
        if self.template is None:
            self._stack()

    def _stack(self) -> None:
        named = [dict(_step_buffers(lagrangian)) for lagrangian in self.lagrangians]
        self.shared = {name: torch.stack([buffers[name] for buffers in named]) for name in named[0]}
        for run, lagrangian in enumerate(self.lagrangians):
            for name in self.shared:
                owner, _, leaf = name.rpartition(".")
                lagrangian.get_submodule(owner)._buffers[leaf] = self.shared[name][run]
        self.template = copy.deepcopy(self.lagrangians[0])
        self.template.checks = False
        self.template.measured = True
        # Where rules differ, the stacked step does all that any of them needs; their numbers make it void elsewhere.
        self.template.cuts = any(lagrangian.cuts for lagrangian in self.lagrangians)
        for index, block in enumerate(self.template.stacks()):
            for flag in ("curved", "smoothed"):
                setattr(block, flag, any(getattr(one.stacks()[index], flag) for one in self.lagrangians))

    def predict(self, data: Data, ids: Sequence[Tensor]) -> list[Any]:
        """Every model's predictions for rows of its own, some thousand at a time."""
        rows = chunks(torch.stack(list(ids)))
        together = join([self._predictions(data, some) for some in rows], dim=1)
        return [pick(together, run) for run in range(len(self.models))]

    def weights(self, run: int) -> dict[str, Tensor]:
        """One model's slice of the stacked weights and buffers."""
        return {
            name.removeprefix("model."): value[run].detach()
            for name, value in {**self.params, **self.buffers}.items()
            if name.removeprefix("model.") in self.models[run].state_dict()
        }

    def state(self) -> dict[str, Tensor]:
        """The stacked weights and buffers, and every Lagrangian."""
        parts: dict[str, Mapping[str, Tensor]] = {"params": self.params, "buffers": self.buffers}
        parts |= {f"lagrangian.{run}": one.state_dict() for run, one in enumerate(self.lagrangians)}
        return pack(parts)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Weights in place, for the optimiser knows them; the Lagrangians anew, then stacked."""
        with torch.no_grad():
            for prefix, held in (("params", self.params), ("buffers", self.buffers)):
                for name, value in unpack(state, prefix).items():
                    held[name].copy_(value)
        device = next(iter(self.params.values())).device
        for run, lagrangian in enumerate(self.lagrangians):
            own = unpack(state, f"lagrangian.{run}")
            lagrangian.load_state_dict({name: value.to(device) for name, value in own.items()})
        self._stack()

    def finish(self, run: int, weights: Mapping[str, Tensor] | None) -> nn.Module:
        """A model of its own, with these weights or the last."""
        self.models[run].load_state_dict(weights if weights is not None else self.weights(run))
        return self.models[run]


def _slice(step: Step, run: int) -> Step:
    return {name: rows[run] for name, rows in step.items()}


def _step_buffers(lagrangian: Lagrangian) -> Iterable[tuple[str, Tensor]]:
    """The buffers that a step reads or writes; the rules' own state stays with each Lagrangian."""
    return ((n, b) for n, b in lagrangian.named_buffers() if not n.startswith("multiplier_list."))

"""Many models of one architecture trained as one, with weights and Lagrangians stacked, [R, …]."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ..core.batch import Batch, Data, free, pick
from ..core.lagrangian import Lagrangian
from .engine import chunks, join, measure, pack, unpack
from .settings import Forward, Settings
from .task import Step, Task


class _Caller(nn.Module):
    """Calls a model through `forward`, so that its weights can be replaced by stacked ones."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model, self.call = model, forward

    def forward(self, batch: Batch) -> Any:
        return self.call(self.model, batch)


class Stacked:
    """R models and R Lagrangians with their tensors stacked, [R, …], and stepped by one vmapped call.

    The Lagrangians' buffers are views of the stacked ones: a step that adds to the stacked sums updates each
    Lagrangian, and the next step uses what `ascend` changed in any of them.
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
        """∂(L + Σ λν)/∂w of every model, as the gradient of the sum."""
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
        """Predictions [R, rows, …] for row numbers [R, rows], in eval mode."""

        def one(params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: Tensor) -> Any:
            return functional_call(self.caller, {**params, **buffers}, (data.take(rows, targets=False),))

        self.caller.eval()
        try:
            with torch.no_grad():
                return vmap(one)(self.params, self.buffers, ids)
        finally:
            self.caller.train()

    def measure(self, step: Step) -> None:
        """Measure each Lagrangian at its own predictions; the first call then stacks their buffers."""
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
        # If rules differ, the stacked step computes what any of them needs; for the others it has no effect.
        self.template.cuts = any(lagrangian.cuts for lagrangian in self.lagrangians)
        for index, block in enumerate(self.template.stacks()):
            for flag in ("curved", "smoothed"):
                setattr(block, flag, any(getattr(one.stacks()[index], flag) for one in self.lagrangians))

    def predict(self, data: Data, ids: Sequence[Tensor]) -> list[Any]:
        """Predictions of every model for its own rows, a few thousand at a time."""
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
        """State of the stacked weights and buffers, and of every Lagrangian."""
        parts: dict[str, Mapping[str, Tensor]] = {"params": self.params, "buffers": self.buffers}
        parts |= {f"lagrangian.{run}": one.state_dict() for run, one in enumerate(self.lagrangians)}
        return pack(parts)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load the weights in place, since the optimiser refers to them; load the Lagrangians and stack them again."""
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
        """One model, with these weights or the latest ones."""
        self.models[run].load_state_dict(weights if weights is not None else self.weights(run))
        return self.models[run]


def _slice(step: Step, run: int) -> Step:
    return {name: rows[run] for name, rows in step.items()}


def _step_buffers(lagrangian: Lagrangian) -> Iterable[tuple[str, Tensor]]:
    """Buffers that a step reads or writes; the state of the dual rules stays with each Lagrangian."""
    return ((n, b) for n, b in lagrangian.named_buffers() if not n.startswith("multiplier_list."))

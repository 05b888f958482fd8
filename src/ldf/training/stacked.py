"""Many models of one architecture trained as one, with weights and Lagrangians stacked, [R, …]."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from ..core.batch import Batch, Data, free, join, leaves, pick, rebuilt, tree_map
from ..core.gradients import Cut
from ..core.lagrangian import Lagrangian
from ..core.scope import Side
from .engine import chunks, measure, pack, unpack
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
        self,
        settings: Settings,
        models: Sequence[nn.Module],
        lagrangians: Sequence[Lagrangian],
        task: Task,
        turn: bool = False,
    ) -> None:
        """Stack the models and their Lagrangians.

        Args:
            settings: loss, constraints and forward pass of all models.
            models: models of one architecture.
            lagrangians: one for each model.
            task: data and batches.
            turn: hold weights of linear layers transposed, as their gradients are computed, so that an update needs no
                copies; this changes the order of sums, and so the last digits.
        """
        self.settings, self.models, self.lagrangians, self.task = settings, list(models), list(lagrangians), task
        for model in models:
            model.train()
        callers = [_Caller(model, settings.forward) for model in models]
        self.params, self.buffers = stack_module_state(callers)
        self.caller = copy.deepcopy(callers[0])
        layers = [name for name, module in self.caller.named_modules() if turn and isinstance(module, nn.Linear)]
        self.turned = {f"{name}.weight" for name in layers} & self.params.keys()
        for name in self.turned:
            weight = self.params[name]
            self.params[name] = weight.detach().mT.contiguous().requires_grad_(weight.requires_grad)
        self.shared: dict[str, Tensor] = {}
        self.template: Lagrangian | None = None
        self.cuts = False
        self.pays = -(-200_000 // len(self.models))  # a stacked step already spares most of the overhead

    def parameters(self) -> list[Tensor]:
        """The stacked weights."""
        return [parameter for parameter in self.params.values() if parameter.requires_grad]

    def _weights(self) -> dict[str, Tensor]:
        """The stacked weights as the models use them."""
        turned = self.turned
        return {name: value.transpose(1, 2) if name in turned else value for name, value in self.params.items()}

    def backward(self, step: Step) -> None:
        """∂(L + Σ λν)/∂w of every model, as the gradient of the sum."""
        self._sum(step).backward()

    def gradients(self, step: Step) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Forward and backward pass of all models as one function."""
        total = self._sum(step)
        return total, torch.autograd.grad(total, self.parameters(), allow_unused=True)

    def changed(self) -> list[Tensor]:
        """Stacked buffers of the models and the Lagrangians."""
        return [*self.buffers.values(), *self.shared.values()]

    def _sum(self, step: Step) -> Tensor:
        """Σ of L + Σ λν over all models."""
        columns = self.task.batch(step).columns()
        names = [None, *(name for name in self.task.pools if f"pairs/{name}" in step)]
        seen: list[Any] = []
        mapped = vmap(partial(self._parts, columns, seen), randomness="different")
        losses, found = mapped(self._weights(), self.buffers, step, leaves(columns))
        sides = rebuilt(seen, found)
        if self.cuts:
            sides = [(tree_map(self._cut, predictions), own) for predictions, own in sides]
        total = vmap(partial(self._total, names, sides), randomness="different")
        totals: Tensor = total(self.shared, losses, leaves(sides))
        return totals.sum()

    def _parts(
        self,
        form: Mapping[str, Any],
        seen: list[Any],
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        step: Step,
        columns: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor]]:
        """One model's loss, and the tensors that its constraints see; their containers are added to `seen`.

        These are the predictions and columns of the batch and of every pairs. vmap does not take all their containers.
        """
        batch = Batch(**rebuilt(form, columns))
        predictions = functional_call(self.caller, {**params, **buffers}, (batch,))
        loss, ours, batch, sides = self.task.parts(predictions, step, batch)
        seen += [(side.predictions, side.batch.columns()) for side in (Side(ours, batch), *sides.values())]
        return loss, leaves(seen)

    def _cut(self, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        return Cut.apply(leaf, self.shared["limit"])  # type: ignore[no-any-return, no-untyped-call]

    def _total(
        self,
        names: Sequence[str | None],
        form: Sequence[tuple[Any, Mapping[str, Tensor]]],
        shared: Mapping[str, Tensor],
        loss: Tensor,
        tensors: Sequence[Tensor],
    ) -> Tensor:
        """One model's L + Σ λν."""
        assert self.template is not None
        (predictions, batch), *pairs = [Side(own, Batch(**columns)) for own, columns in rebuilt(form, tensors)]
        arguments = (loss, predictions, batch, dict(zip(names[1:], pairs, strict=True)))
        total: Tensor = functional_call(self.template, dict(shared), arguments)
        return total

    def _predictions(self, batch_of: Callable[[Tensor], Batch], ids: Tensor) -> Any:
        """Predictions [R, rows, …] for the batches of row numbers [R, rows], in eval mode."""
        form: list[Any] = []

        def one(params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: Tensor) -> list[Tensor]:
            form.append(functional_call(self.caller, {**params, **buffers}, (batch_of(rows),)))
            return leaves(form[0])

        self.caller.eval()
        try:
            with torch.no_grad():
                found = vmap(one)(self._weights(), self.buffers, ids)
        finally:
            self.caller.train()
        return rebuilt(form[0], found)

    def measure(self, step: Step) -> None:
        """Measure each Lagrangian at its own predictions; the first call then stacks their buffers."""
        if all(lagrangian.ready and lagrangian.measured for lagrangian in self.lagrangians) and self.template:
            return
        batches = [self.task.batch(_slice(step, run)) for run in range(len(self.lagrangians))]
        take = partial(self.task.data.take, targets=False)
        predictions = self._predictions(take, torch.stack([batch.ids for batch in batches]))
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
        self.template.measured, self.template.limited = True, False
        # If rules differ, the stacked step computes what any of them needs; for the others it has no effect.
        self.cuts, self.template.cuts = any(lagrangian.cuts for lagrangian in self.lagrangians), False
        for index, block in enumerate(self.template.stacks()):
            block.idle = False
            for flag in ("shaped", "signed"):
                setattr(block, flag, any(getattr(one.stacks()[index], flag) for one in self.lagrangians))

    def predict(self, data: Data, ids: Sequence[Tensor]) -> list[Any]:
        """Predictions of every model for its own rows, a few thousand at a time."""
        rows = chunks(torch.stack(list(ids)))
        take = partial(data.take, targets=False)
        together = join([self._predictions(take, some) for some in rows], dim=1)
        return [pick(together, run) for run in range(len(self.models))]

    def answer(self, batch: Batch) -> list[Any]:
        """Predictions of every model for the same rows."""
        together = self._predictions(lambda _: batch, torch.arange(len(self.models)))
        return [pick(together, run) for run in range(len(self.models))]

    def weights(self, run: int) -> dict[str, Tensor]:
        """One model's slice of the stacked weights and buffers."""
        return {
            name.removeprefix("model."): value[run].detach()
            for name, value in {**self._weights(), **self.buffers}.items()
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

"""A training step as one compiled graph: forward and backward pass, Lagrangian and Adam."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.batch import Batch, leaves
from .engine import Engine

Compile = bool | Literal["auto"]
"""Type of `compile=`: True, False, or "auto" for runs that are long enough."""
Outcome = tuple[Tensor, Sequence[Tensor | None]]
"""L + Σ λν of a step, and its gradients if the optimiser is not part of the graph."""


def worthwhile(wanted: Compile, engine: Engine, steps: int) -> bool:
    """Whether to compile a run of this many steps.

    By default the number of steps decides, not a measured time: the same call always gives the same result.
    """
    if not isinstance(wanted, bool) and wanted != "auto":
        raise ValueError(f"compile must be True, False or 'auto', got {wanted!r}")
    return steps >= engine.pays if wanted == "auto" else wanted


@contextmanager
def compiling(wanted: bool) -> Iterator[None]:
    """Settings of the compiler: the backward pass belongs to the graph, and kernels are called without Python."""
    if not wanted or not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        yield
        return
    import torch._inductor.config as inductor

    with torch._dynamo.config.patch(trace_autograd_ops=True), inductor.patch(cpp_wrapper=True):
        yield


class Graph:
    """The steps of a run as one compiled graph.

    The graph contains Adam or AdamW; any other optimiser steps outside of it. Not compiled are the very first step,
    which creates Adam's state, and steps of another shape than the first of an epoch, such as a smaller last batch.
    The first compiled step is compared with an uncompiled one.

    Args:
        engine: computes loss and gradients of a step.
        optimizer: the optimiser of the engine's parameters.
        required: raise if the step cannot be compiled; otherwise warn and train without.
    """

    def __init__(self, engine: Engine, optimizer: torch.optim.Optimizer, required: bool) -> None:
        self.engine, self.optimizer, self.required = engine, optimizer, required
        self.adam = Adam(optimizer, engine.parameters()) if Adam.takes(optimizer) else None
        self.usable = True
        self.shape: Any = None
        self.compiled: Callable[[Any], Outcome] | None = None

    def expect(self, step: Any) -> None:
        """Compile steps of the shape of this one, the first of an epoch."""
        self.shape = _shape(step)

    def advance(self, step: Any) -> bool:
        """w ← w − α ∇_w [L + Σ λν]; False if the step is left to the caller."""
        if not self.usable or (self.adam is not None and not self.adam.begin()):
            return False
        if _shape(step) != self.shape:
            total, gradients = self._step(step)
        else:
            try:
                total, gradients = (self.compiled or self._first)(step)
            except Exception as error:
                if self.required or (self.compiled is not None and not _by_compiler(error)):
                    raise
                self.close()
                self.usable = False
                reason = next(iter(str(error).splitlines()), "")
                text = f"training goes on without torch.compile: {type(error).__name__}: {reason}"
                warnings.warn(text, stacklevel=8)  # the line that called fit or fit_many
                return False
        if self.adam is not None:
            self.adam.count += 1
        else:
            for parameter, gradient in zip(self.engine.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
        if not self.engine.stacked and not math.isfinite(total.item()):
            raise ValueError(
                f"L + Σ λν is {total.item()}: check the data, or try a smaller learning rate; with compile=False the "
                "error names the constraint"
            )
        return True

    def close(self) -> None:
        """Bring the optimiser's state up to date."""
        if self.adam is not None:
            self.adam.store()

    def _step(self, step: Any) -> Outcome:
        total, gradients = self.engine.gradients(step)
        if self.adam is None:
            return total.detach(), gradients
        with torch.no_grad():
            self.adam.update(gradients)
        return total.detach(), ()

    def _first(self, step: Any) -> Outcome:
        """Compile the step, take it, and compare what it changes with a step that is not compiled."""
        options: dict[str, Any] = {"fullgraph": True, "dynamic": False, "options": {"guard_filter_fn": _guards}}
        # A cache of its own: a second fit in one process must not count as a recompilation of the first.
        compiled = torch.compile(self._step, **options, isolate_recompiles=True, recompile_limit=2)  # type: ignore[call-overload]
        changed = [self.engine.parameters(), *([buffer] for buffer in self.engine.changed())]
        changed += self.adam.moments() if self.adam is not None else []
        before, random = _copies(changed), torch.get_rng_state()
        with torch.random.fork_rng(devices={tensor.device for tensor in changed[0] if tensor.is_cuda}):
            gradients = [gradient for gradient in self._step(step)[1] if gradient is not None]
            repeats = torch.equal(random, torch.get_rng_state())
        wanted = [*_copies(changed), gradients]
        _restore(changed, before)
        outcome: Outcome = compiled(step)
        found = [*changed, [gradient for gradient in outcome[1] if gradient is not None]]
        zeros = [torch.zeros_like(gradient) for gradient in gradients]
        for index, (ours, theirs, old) in enumerate(zip(found, wanted, [*before, zeros], strict=True)):
            # Adam turns rounding errors of a gradient that is zero into steps as large as any other.
            share = 0.01 if index else 0.5
            # Random numbers, as for dropout, differ between the two steps.
            if repeats and not _agree(ours, theirs, old, share):
                _restore(changed, before)
                raise RuntimeError("a compiled step gives other values than one that is not compiled")
        self.compiled = compiled
        return outcome


class Adam:
    """torch's Adam and AdamW as a function of the gradients, on the state and the settings of the optimiser.

    v ← β₂v + (1 − β₂)g², m ← β₁m + (1 − β₁)g, w ← w − α/(1 − β₁ᵗ) · m/(√(v/(1 − β₂ᵗ)) + ε). The factors of a step are
    computed outside of the graph: inside, they would be computed for every weight.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        self.optimizer = optimizer
        self.order = {id(parameter): index for index, parameter in enumerate(parameters)}
        self.groups: list[list[tuple[int, Tensor, Tensor, Tensor]]] = []
        """For every group: index of a weight among the gradients, the weight, m and v."""
        self.decays: list[Literal["added", "apart"] | None] = []
        self.factors = torch.zeros(0)
        self.count = 0
        """t, the steps taken; the optimiser's state gets it when somebody asks for that."""
        optimizer.register_state_dict_pre_hook(lambda _: self.store())

    @staticmethod
    def takes(optimizer: torch.optim.Optimizer) -> bool:
        """Whether this is a plain Adam or AdamW."""
        return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) and not any(
            group["amsgrad"] or group["maximize"] or group["differentiable"] or parameter.is_complex()
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def begin(self) -> bool:
        """Compute the factors of the next step; False if the optimiser has no state so far."""
        if not self.optimizer.state:
            return False
        if not self.groups:
            self._read()
        rows = []
        for group in self.optimizer.param_groups:
            (first, second), rate = map(float, group["betas"]), float(group["lr"])
            root = math.sqrt(1 - second ** (self.count + 1))
            size = rate * root / (1 - first ** (self.count + 1))
            decay = float(group["weight_decay"])
            rows.append((size, float(group["eps"]) * root, 1 - first, second, 1 - second, decay, 1 - rate * decay))
        self.factors.copy_(torch.tensor(rows, dtype=self.factors.dtype))
        return True

    def _read(self) -> None:
        """Find the state of every weight; a weight that the loss does not depend on has none."""
        state = {id(weight): entries for weight, entries in self.optimizer.state.items() if entries}
        for group in self.optimizer.param_groups:
            own = [(weight, state[id(weight)]) for weight in group["params"] if id(weight) in state]
            self.groups.append([(self.order[id(w)], w, one["exp_avg"], one["exp_avg_sq"]) for w, one in own])
            apart = group.get("decoupled_weight_decay", isinstance(self.optimizer, torch.optim.AdamW))
            self.decays.append(None if not group["weight_decay"] else "apart" if apart else "added")
        self.count = max(int(entries["step"]) for entries in state.values())
        weights = [weight for group in self.groups for _, weight, _, _ in group]
        kind = functools.reduce(torch.promote_types, (weight.dtype for weight in weights), torch.float32)
        self.factors = torch.zeros(len(self.groups), 7, dtype=kind, device=weights[0].device)

    def update(self, gradients: Sequence[Tensor | None]) -> None:
        """One step of all weights, in place."""
        for group, decays, factors in zip(self.groups, self.decays, self.factors.unbind(0), strict=True):
            size, small, new, kept, new_square, decay, shrunk = factors.unbind(0)
            for index, weight, mean, square in group:
                gradient = gradients[index]
                if gradient is None:
                    continue
                if decays == "added":
                    gradient = gradient + decay * weight
                elif decays == "apart":
                    weight.mul_(shrunk)
                mean.lerp_(gradient, new)
                square.mul_(kept).addcmul_(gradient, gradient * new_square)
                weight.sub_(size * mean / (square.sqrt() + small))

    def moments(self) -> list[list[Tensor]]:
        """m of all weights, and v."""
        entries = [entry for group in self.groups for entry in group]
        return [[entry[2] for entry in entries], [entry[3] for entry in entries]]

    def store(self) -> None:
        """Write t to the optimiser's state."""
        if self.groups:
            for entries in self.optimizer.state.values():
                if entries:
                    entries["step"].fill_(self.count)


def _shape(step: Any) -> Any:
    """What a graph is compiled for: names and shapes of a step."""
    columns = step.columns() if isinstance(step, Batch) else step
    return list(columns), [leaf.shape for leaf in leaves(columns)]


def _guards(entries: Sequence[Any]) -> list[bool]:
    """Check before every step what the user's functions and the model depend on, not what this package holds."""
    own = ("self.adam", "self.engine.lagrangians", "self.engine.template", "self.engine.shared")
    return [not entry.name.startswith(own) or ".constraints" in entry.name for entry in entries]


def _copies(parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    return [[tensor.detach().clone() for tensor in part] for part in parts]


@torch.no_grad()
def _restore(parts: Sequence[Sequence[Tensor]], values: Sequence[Sequence[Tensor]]) -> None:
    for part, copies in zip(parts, values, strict=True):
        for tensor, value in zip(part, copies, strict=True):
            tensor.copy_(value)


def _agree(found: Sequence[Tensor], wanted: Sequence[Tensor], before: Sequence[Tensor], share: float) -> bool:
    """Whether tensors, taken as one vector, differ by no more than a share of their change, and rounding."""

    def joined(tensors: Sequence[Tensor]) -> Tensor:  # without infinities, which are bounds that nothing changes
        return torch.cat([torch.zeros(1), *(t.detach().double().cpu().flatten() for t in tensors)]).nan_to_num(
            0.0, 0.0, 0.0
        )

    ours, theirs, old = joined(found), joined(wanted), joined(before)
    return bool((ours - theirs).norm() <= share * (theirs - old).norm() + 1e-5 * theirs.norm())


def _by_compiler(error: Exception) -> bool:
    """Whether a step failed before it began, while it was compiled anew."""
    import torch._dynamo.exc as exc

    return isinstance(error, exc.TorchDynamoException | exc.FailOnRecompileLimitHit)

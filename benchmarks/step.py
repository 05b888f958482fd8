"""Cost of one training step under constraints, as a multiple of a plain PyTorch step.

All variants run in one process and alternate: each trains for 10 steps, then the next, round after round, so that other
load on the machine affects all of them equally. A round is one epoch of 50 steps with its shuffle and its multiplier
update. Four rounds are taken together, because the default rule measures before every fourth update. Each result is the
median of a variant's time divided by the plain step's time in the same rounds.

    python benchmarks/step.py [--json] [--rounds N] [--threads N] [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import ldf
from ldf.training.engine import Single

ROWS, BATCH, INPUTS, HIDDEN, OUTPUTS = 3200, 64, 100, 128, 50
STEPS = ROWS // BATCH
BURST = 10
LR, BETAS, EPS = 1e-3, (0.9, 0.999), 1e-8  # Adam's defaults
DUAL_STEP = 1e-2
REPLICAS = 8
TOGETHER = 4

KEYS = (
    "plain",
    "ldf_eager",
    "ldf_compiled",
    "plain_compiled",
    "ldf_auto",
    "degrees",
    "penalty",
    "cooper",
    "humancompatible",
    "ldf_fit",
    "ldf_fit_compiled",
    "ldf_fit_auto",
    "ldf_many_per_model",
    "ldf_many_per_fit",
)


class Variant(NamedTuple):
    """One way to train: a model, and an endless generator that runs one training step per item."""

    model: nn.Module
    steps: Iterator[None]
    lagrangian: ldf.Lagrangian | None = None


# -------------------------------------------------------------------- the problem, shared by all variants

_random = torch.Generator().manual_seed(0)
inputs = torch.randn(ROWS, INPUTS, generator=_random)
targets = torch.tanh(inputs @ torch.randn(INPUTS, OUTPUTS, generator=_random) / INPUTS**0.5)
line = torch.block_diag(*[torch.ones(1, 10)] * 5).t().contiguous()  # [50, 5]: which outputs a line carries
coupling = torch.randn(OUTPUTS, 10, generator=_random) / OUTPUTS**0.5
supply = torch.randn(INPUTS, 10, generator=_random) / INPUTS**0.5


def upper(y: Tensor, batch: ldf.Batch) -> Tensor:
    return y - 0.9


def lower(y: Tensor, batch: ldf.Batch) -> Tensor:
    return -0.9 - y


def capacity(y: Tensor, batch: ldf.Batch) -> Tensor:
    return y @ line - 1.5


def balance(y: Tensor, batch: ldf.Batch) -> Tensor:
    return y.sum(1, keepdim=True) - batch.inputs.mean(1, keepdim=True)


def linear(y: Tensor, batch: ldf.Batch) -> Tensor:
    return y @ coupling - batch.inputs @ supply


def product(y: Tensor, batch: ldf.Batch) -> Tensor:
    first, second, result = y[:, :30].chunk(3, 1)
    return first * second - result


INEQUALITIES = (upper, lower, capacity)
EQUALITIES = (balance, linear, product)
WIDTHS = (50, 50, 5, 1, 10, 10)

# For variants that stack all σ by hand: max(σ, floor·σ) is max(0, σ) or |σ|, and `mean` averages each group.
floor = torch.tensor([0.0] * sum(WIDTHS[:3]) + [-1.0] * sum(WIDTHS[3:]))
mean = torch.block_diag(*[torch.full((width, 1), 1 / (width * BATCH)) for width in WIDTHS])  # [126, 6]


def constraints() -> list[ldf.Constraint]:
    return [ldf.inequality(sigma.__name__, sigma) for sigma in INEQUALITIES] + [
        ldf.equality(sigma.__name__, sigma) for sigma in EQUALITIES
    ]


def violations(y: Tensor, batch: ldf.Batch) -> Tensor:
    """Mean violation of each of the six groups, [6]; stacked, which is faster than group by group."""
    sigma = torch.cat([degree(y, batch) for degree in INEQUALITIES + EQUALITIES], 1)
    return torch.maximum(sigma, sigma * floor).sum(0) @ mean


def architecture() -> nn.Module:
    return nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS)
    )


def new_model() -> nn.Module:
    torch.manual_seed(1)
    return architecture()


def new_adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=LR)


def new_epochs() -> Iterator[Iterator[ldf.Batch]]:
    """Endless epochs of shuffled batches of all rows; the same for every variant."""
    random = torch.Generator().manual_seed(2)
    while True:
        order = torch.randperm(ROWS, generator=random).split(BATCH)
        yield (ldf.Batch(inputs=inputs[ids], targets=targets[ids], ids=ids) for ids in order)


# -------------------------------------------------------------------- the variants


def plain() -> Variant:
    """No constraints."""
    model = new_model()
    adam = new_adam(model)

    def steps() -> Iterator[None]:
        for batch in itertools.chain.from_iterable(new_epochs()):
            loss = mse_loss(model(batch.inputs), batch.targets)
            adam.zero_grad()
            loss.backward()
            adam.step()
            yield

    return Variant(model, steps())


def penalty() -> Variant:
    """Hand-written penalties: the six mean violations with weight 1, without multipliers."""
    return added(lambda y, batch: violations(y, batch).sum())


def degrees() -> Variant:
    """The six functions σ and one product with a constant: the minimum cost of any way to enforce them."""
    constant = torch.full((BATCH * sum(WIDTHS),), 1e-6)
    return added(
        lambda y, batch: torch.dot(torch.cat([d(y, batch) for d in INEQUALITIES + EQUALITIES], 1).view(-1), constant)
    )


def added(term: Callable[[Tensor, ldf.Batch], Tensor]) -> Variant:
    """A plain step with a term added to its loss."""
    model = new_model()
    adam = new_adam(model)

    def steps() -> Iterator[None]:
        for batch in itertools.chain.from_iterable(new_epochs()):
            y = model(batch.inputs)
            loss = mse_loss(y, batch.targets) + term(y, batch)
            adam.zero_grad()
            loss.backward()
            adam.step()
            yield

    return Variant(model, steps())


def ldf_with(dual: ldf.Dual | str, updates: int | None = None) -> Variant:
    """The six constraints in a Lagrangian, with dual ascent at the end of each epoch."""
    model = new_model()
    adam = new_adam(model)
    lagrangian = ldf.Lagrangian(constraints(), dual, updates=updates)

    def steps() -> Iterator[None]:
        for epoch in new_epochs():
            for batch in epoch:
                y = model(batch.inputs)
                loss = lagrangian(mse_loss(y, batch.targets), y, batch)
                adam.zero_grad()
                loss.backward()
                adam.step()
                yield
            lagrangian.ascend()

    return Variant(model, steps(), lagrangian)


def compiled(constrained: bool) -> Variant:
    """Forward pass, loss, Lagrangian, backward pass and Adam as one compiled graph, with all guards enabled.

    torch.optim's step breaks the graph, so Adam is written out here; `agree` checks that both give the same weights.
    Most of the gain over eager comes from compiling the plain step: compare with `plain_compiled`.
    """
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise RuntimeError(f"torch {torch.__version__} cannot compile a backward pass into the step")
    torch._dynamo.config.trace_autograd_ops = True
    model = new_model()
    lagrangian = ldf.Lagrangian(constraints(), ldf.Ascent(DUAL_STEP))
    parameters = list(model.parameters())
    first = [torch.zeros_like(parameter) for parameter in parameters]
    second = [torch.zeros_like(parameter) for parameter in parameters]
    betas, powers = torch.tensor(BETAS), torch.ones(2)

    def adam(gradients: tuple[Tensor, ...]) -> None:
        powers.mul_(betas)
        size, root = LR / (1 - powers[0]), (1 - powers[1]).sqrt()
        for parameter, gradient, m, v in zip(parameters, gradients, first, second, strict=True):
            m.lerp_(gradient, 1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            parameter.sub_(size * m / (v.sqrt() / root + EPS))

    # Two functions: one with a flag would be compiled twice, and both sets of guards checked in every step.
    def plain_step(x: Tensor, labels: Tensor, ids: Tensor) -> None:
        gradients = torch.autograd.grad(mse_loss(model(x), labels), parameters)
        with torch.no_grad():
            adam(gradients)

    def constrained_step(x: Tensor, labels: Tensor, ids: Tensor) -> None:
        y = model(x)
        loss = lagrangian(mse_loss(y, labels), y, ldf.Batch(inputs=x, targets=labels, ids=ids))
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            adam(gradients)

    if constrained:
        batch = next(next(new_epochs()))
        y = model(batch.inputs)
        lagrangian.prepare(mse_loss(y, batch.targets), y, batch)
    step = torch.compile(
        constrained_step if constrained else plain_step, fullgraph=True, dynamic=False, options={"cpp_wrapper": True}
    )

    def steps() -> Iterator[None]:
        for epoch in new_epochs():
            for batch in epoch:
                if constrained and not lagrangian.measured:
                    y = model(batch.inputs)
                    lagrangian.prepare(mse_loss(y, batch.targets), y, batch)
                step(batch.inputs, batch.targets, batch.ids)
                yield
            if constrained:
                lagrangian.ascend()

    return Variant(model, steps(), lagrangian if constrained else None)


def cooper() -> Variant:
    """Cooper's training loop, `roll`: multipliers are updated by gradient ascent in every step.

    Configured in its favour: one Constraint with six multipliers for the stacked violations, instead of six with one
    each, and the simultaneous optimiser (the alternating ones were slower).
    """
    import cooper as library

    model = new_model()

    class Problem(library.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.six = library.Constraint(
                constraint_type=library.ConstraintType.INEQUALITY,
                formulation_type=library.formulations.Lagrangian,
                multiplier=library.multipliers.DenseMultiplier(num_constraints=len(WIDTHS)),
            )

        def compute_cmp_state(self, batch: ldf.Batch) -> library.CMPState:
            y = model(batch.inputs)
            state = library.ConstraintState(violation=violations(y, batch))
            return library.CMPState(loss=mse_loss(y, batch.targets), observed_constraints={self.six: state})

    problem = Problem()
    optimizer = library.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=new_adam(model),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=DUAL_STEP, maximize=True),
    )

    def steps() -> Iterator[None]:
        for batch in itertools.chain.from_iterable(new_epochs()):
            optimizer.roll(compute_cmp_state_kwargs={"batch": batch})
            yield

    return Variant(model, steps())


def humancompatible() -> Variant:
    """Plain dual ascent of humancompatible: `ALM` without augmentation, by its recommended entry point, in every step.

    Configured in its favour: one group with six multipliers for the stacked violations, passed as a flat tensor.
    """
    from humancompatible.train.dual_optim import ALM

    model = new_model()
    adam = new_adam(model)
    dual = ALM(m=len(WIDTHS), lr=DUAL_STEP, is_ineq=True)

    def steps() -> Iterator[None]:
        for batch in itertools.chain.from_iterable(new_epochs()):
            y = model(batch.inputs)
            loss = dual.forward_update(mse_loss(y, batch.targets), violations(y, batch))
            adam.zero_grad()
            loss.backward()
            adam.step()
            yield

    return Variant(model, steps())


def build(epochs: int) -> dict[str, Variant | None]:
    """All variants, each trained for two epochs, after which it is compiled and its multipliers have been updated."""
    makers: dict[str, Callable[[], Variant]] = {
        "plain": plain,
        "ldf_eager": lambda: ldf_with(ldf.Ascent(DUAL_STEP)),
        "ldf_compiled": lambda: compiled(True),
        "plain_compiled": lambda: compiled(False),
        "ldf_auto": lambda: ldf_with("auto", updates=epochs),
        "degrees": degrees,
        "penalty": penalty,
        "cooper": cooper,
        "humancompatible": humancompatible,
    }
    variants: dict[str, Variant | None] = {}
    for name, make in makers.items():
        try:
            variants[name] = variant = make()
            go(variant, 2 * STEPS + 1)
        except Exception as error:
            if name in ("plain", "degrees", "penalty", "ldf_eager", "ldf_auto"):
                raise
            variants[name] = None
            print(f"{name}: skipped, {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
    agree(variants, "plain", "plain_compiled")
    agree(variants, "ldf_eager", "ldf_compiled")
    return variants


def agree(variants: dict[str, Variant | None], one: str, other: str) -> None:
    """Both were trained on the same batches: weights and multipliers must be equal up to rounding."""
    first, second = variants[one], variants[other]
    if first is None or second is None:
        return
    pairs: list[tuple[Tensor, Tensor]] = list(zip(first.model.parameters(), second.model.parameters(), strict=True))
    if first.lagrangian is not None and second.lagrangian is not None:
        theirs = second.lagrangian.multipliers
        pairs += [(value, theirs[name]) for name, value in first.lagrangian.multipliers.items()]
    for a, b in pairs:
        gap = float((a - b).detach().norm() / a.detach().norm())
        if not gap < 1e-2:
            raise SystemExit(f"{one} and {other} do not train the same model: they differ by {gap:.1%}")


# -------------------------------------------------------------------- timing


def go(variant: Variant, steps: int) -> None:
    for _ in itertools.islice(variant.steps, steps):
        pass


def seconds(function: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def in_turns(variants: dict[str, Variant | None], rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every variant, mean of every four rounds: one epoch each, in bursts, in rotating order."""
    present = {name: variant for name, variant in variants.items() if variant is not None}
    order = list(present)
    times: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        gc.collect()
        bursts = dict.fromkeys(order, 0.0)
        for _ in range(STEPS // BURST):
            for name in order:
                bursts[name] += seconds(go, present[name], BURST)
        for name in order:
            times[name].append(bursts[name] / STEPS)
        order.append(order.pop(0))
    starts = range(0, rounds - TOGETHER + 1, TOGETHER)
    return {name: [statistics.mean(own[at : at + TOGETHER]) for at in starts] for name, own in times.items()}


def whole(reference: Variant, repeats: int, epochs: int) -> dict[str, list[float]]:
    """Seconds per step and model of `fit`, compiled `fit` and `fit_many`, and of the plain step before and after them.

    The time of a run is the median over its epochs from the third on, when it is compiled: `fit_many` as in a long run.
    """
    options = {"loss": mse_loss, "constraints": constraints(), "dual": ldf.Ascent(DUAL_STEP), "batch_size": BATCH}
    options |= {"epochs": epochs, "progress": False}
    data = (inputs, targets)
    ways: dict[str, Callable[[], list[ldf.Fit]]] = {
        "fit": lambda: [ldf.fit(architecture(), data, compile=False, **options)],
        "fit_compiled": lambda: [ldf.fit(architecture(), data, compile=True, **options)],
        "fit_many": lambda: ldf.fit_many(architecture, data, seeds=range(REPLICAS), compile=True, **options),
    }
    times: dict[str, list[float]] = {name: [] for name in (*ways, "plain")}
    for _ in range(repeats):
        before = seconds(go, reference, 4 * STEPS)
        for name, train in ways.items():
            fits = train()
            times[name].append(statistics.median(fits[0].history["seconds"][2:]) / (STEPS * len(fits)))
        times["plain"].append((before + seconds(go, reference, 4 * STEPS)) / (8 * STEPS))
    return times


def by_default(reference: Variant) -> tuple[list[float], list[float]]:
    """Seconds per step of `fit` without an option in the shortest run that it compiles, and of the plain step.

    Both for every epoch from the third on: a metric, evaluated after each, takes plain steps for as long.
    """
    steps = STEPS // 2
    done = ldf.fit(
        architecture(),
        (inputs, targets),
        loss=mse_loss,
        constraints=constraints(),
        dual=ldf.Ascent(DUAL_STEP),
        batch_size=BATCH,
        epochs=-(-Single.pays // STEPS),
        validation=(inputs[:BATCH], targets[:BATCH]),
        keep="last",
        metrics={"plain": lambda y, batch: seconds(go, reference, steps) / steps},
        progress=False,
    )
    return [time / STEPS for time in done.history["seconds"][2:]], done.history["val/plain"][2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print ratios to the plain step as one JSON object")
    parser.add_argument("--rounds", type=int, default=60, help="number of rounds over all variants (60)")
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch threads (1)")
    parser.add_argument("--quick", action="store_true", help="a few rounds only, to check that everything runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rounds = max(TOGETHER, min(options.rounds, 5) if options.quick else options.rounds)

    variants = build(epochs=rounds + 2)
    gc.collect()
    gc.freeze()  # torch and the variants are never garbage
    gc.disable()  # as timeit does
    times = in_turns(variants, rounds)
    ratios: dict[str, float | None] = dict.fromkeys(KEYS)
    micros: dict[str, float] = {}
    for name, own in times.items():
        ratios[name] = statistics.median(a / b for a, b in zip(own, times["plain"], strict=True))
        micros[name] = statistics.median(own) * 1e6
    assert variants["plain"] is not None
    runs = whole(variants["plain"], *((1, 4) if options.quick else (5, 10)))
    for key, own, reference in (
        ("ldf_fit", "fit", "plain"),
        ("ldf_fit_compiled", "fit_compiled", "plain"),
        ("ldf_many_per_model", "fit_many", "plain"),
        ("ldf_many_per_fit", "fit_many", "fit"),
    ):
        ratios[key] = statistics.median(a / b for a, b in zip(runs[own], runs[reference], strict=True))
        micros[key] = statistics.median(runs[own]) * 1e6
    auto, plain_steps = by_default(variants["plain"])
    ratios["ldf_fit_auto"] = statistics.median(a / b for a, b in zip(auto, plain_steps, strict=True))
    micros["ldf_fit_auto"] = statistics.median(auto) * 1e6

    if options.json:
        print(json.dumps({name: ratio and round(ratio, 4) for name, ratio in ratios.items()}))
        return
    print(
        f"One step, batch {BATCH}, MLP {INPUTS}-{HIDDEN}-{HIDDEN}-{OUTPUTS}, {len(WIDTHS)} constraints of "
        f"{sum(WIDTHS)} columns; torch {torch.__version__}, {torch.get_num_threads()} thread(s), "
        f"{os.cpu_count()} CPUs, median of {rounds} rounds"
    )
    print(f"{'':20} {'ratio':>7} {'µs':>9}")
    for name, ratio in ratios.items():
        print(f"{name:20} {ratio:7.2f} {micros[name]:9.0f}" if ratio is not None else f"{name:20} {'-':>7} {'-':>9}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

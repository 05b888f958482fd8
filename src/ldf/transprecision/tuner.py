"""Find the widths with the fewest bits within an error bound: a search guided by a monotone predictor.

All reported errors are measured by running the kernel; the predictor only chooses what to run next. Because the
predictor is a softmin of profiles, its cheapest configuration is found exactly, by dynamic programming over the sum of
bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ..io.text import Progress
from .dominance import Ints
from .kernels import LOW, Kernel, target
from .networks import Profiles
from .precision import FULL, Floats
from .tables import run
from .training import TUNED, Ranges, Sample, train

Configuration = tuple[int, ...]

MARGINS = tuple(0.005 * step for step in range(-6, 15))
"""Offsets added to the required y, to allow for prediction errors."""


@dataclass(frozen=True)
class Found:
    """A configuration within the error bound, and the number of runs it took to find it."""

    configuration: Configuration
    error: float
    runs: int
    """Number of distinct configurations that were run."""

    @property
    def bits(self) -> int:
        """Sum of the widths."""
        return sum(self.configuration)


@dataclass
class Runs:
    """Runs of a kernel under an error bound; each configuration is run once and cached."""

    kernel: Kernel
    bound: float
    low: int = LOW
    known: dict[Configuration, float] = field(default_factory=dict)

    def errors(self, wanted: Iterable[Configuration]) -> list[float]:
        """Errors of these configurations; those not in the cache are run in one batch."""
        asked = list(wanted)
        new = [each for each in dict.fromkeys(asked) if each not in self.known]
        if new:
            found = run(self.kernel, np.array(new, dtype=np.int64), progress=False)
            self.known |= dict(zip(new, found.tolist(), strict=True))
        return [self.known[each] for each in asked]

    def holds(self, configuration: Configuration) -> bool:
        """Whether its error is within the bound."""
        return self.errors([configuration])[0] <= self.bound

    def uniform(self) -> int:
        """The smallest common width of all variables within the bound, by bisection."""
        size = len(self.kernel.variables)
        if not self.holds((FULL,) * size):
            raise ValueError(
                f"the error bound {self.bound:.3g} cannot be met: with {FULL} bits in all variables the error of "
                f"{self.kernel.name} is {self.errors([(FULL,) * size])[0]:.3g}"
            )
        low, high = self.low - 1, FULL
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.holds((middle,) * size) else (middle, high)
        return high

    def cheapest(self) -> Found:
        """The cheapest configuration run so far within the bound; among ties, the one with the smallest error."""
        kept = [(sum(each), error, each) for each, error in self.known.items() if error <= self.bound]
        _, error, configuration = min(kept)
        return Found(configuration, error, len(self.known))

    def descend(self) -> None:
        """Plain greedy search: remove the bit that leaves the smallest error, until no width can be lowered."""
        current = self.cheapest().configuration
        while True:
            lower = [_moved(current, {i: -1}) for i in range(len(current)) if current[i] > self.low]
            errors = self.errors(lower)
            kept = [(error, each) for error, each in zip(errors, lower, strict=True) if error <= self.bound]
            if not kept:
                return
            current = min(kept)[1]


def greedy(kernel: Kernel, bound: float, low: int = LOW) -> Found:
    """From the smallest uniform width, remove one bit at a time, always the one that leaves the smallest error."""
    runs = Runs(kernel, bound, low)
    runs.uniform()
    runs.descend()
    return runs.cheapest()


def tune(
    kernel: Kernel,
    bound: float,
    *,
    low: int = LOW,
    seed: int = 0,
    rounds: int = 4,
    progress: bool | None = False,
) -> Found:
    """Find a cheap configuration whose measured error is at most the bound, and of which no width can be lowered.

    The search starts from the smallest uniform width, found by bisection, and runs three random configurations per
    variable around it. In each round the predictor is trained on all runs so far, and the configurations it predicts to
    be cheapest are run; then single bits are removed, and bits are exchanged between variables.

    Args:
        bound: upper bound on max_i (out_i − ref_i)²/ref_i².
        low: smallest width to use.
        seed: random seed for the first configurations and for training.
        rounds: maximum number of rounds; the search ends after a round without improvement.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise ValueError(f"the error bound must be a finite number > 0, got {bound}")
    size = len(kernel.variables)
    runs = Runs(kernel, bound, low)
    width = runs.uniform()
    if width == low:
        return runs.cheapest()
    line = Progress(rounds, "round", progress)
    least, most = max(low, width - 8), min(FULL, width + 6)
    ranges = Ranges((low,) * size, (most,) * size)
    generator = np.random.default_rng(seed)
    drawn = generator.integers(least, most + 1, (3 * size, size))
    runs.errors([tuple(row) for row in drawn.tolist()])
    for number in range(rounds):
        before = runs.cheapest().bits
        network = _predictor_led(runs, ranges, seed)
        _settle(runs, network)
        _exchange(runs, network)
        line.update(number + 1, lambda: f"{runs.cheapest().bits} bits, {len(runs.known)} runs")
        if runs.cheapest().bits == before:
            break
    line.update(rounds, lambda: f"{runs.cheapest().bits} bits, {len(runs.known)} runs")
    return runs.cheapest()


def _predictor_led(runs: Runs, ranges: Ranges, seed: int) -> Profiles:
    """Run the cheapest predicted configurations and retrain, until three times in a row none is cheaper."""
    stuck = 0
    while True:
        before = runs.cheapest().bits
        network = _train(runs, ranges, seed)
        if stuck == 3:
            return network
        asked = [_cheapest(network, ranges, float(target(runs.bound)) + margin) for margin in MARGINS]
        _climb(runs, sorted({each for each in asked if each is not None and sum(each) < before}, key=sum))
        stuck = stuck + 1 if runs.cheapest().bits == before else 0


def _climb(runs: Runs, ladder: list[Configuration]) -> None:
    """Bisect a list of configurations, ordered by bits, for the first within the bound."""
    low, high = -1, len(ladder)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if runs.holds(ladder[middle]) else (middle, high)


def _settle(runs: Runs, network: Profiles) -> None:
    """Lower widths by one bit, in the order the predictor ranks as safest, until none can be lowered."""
    current = runs.cheapest().configuration
    failed: set[int] = set()
    while True:
        free = [i for i, width in enumerate(current) if width > runs.low and i not in failed]
        if not free:
            # A failure at a configuration with more bits does not count: each width must fail here too.
            lower = [_moved(current, {i: -1}) for i, width in enumerate(current) if width > runs.low]
            kept = [each for each in lower if runs.holds(each)]
            best_known = runs.cheapest().configuration
            if not kept and best_known == current:
                return
            # Among ties in bits the result is the one with the smallest error, so it must pass this check too.
            current, failed = kept[0] if kept else best_known, set()
            continue
        lower = [_moved(current, {i: -1}) for i in free]
        best = int(np.argmax(_predict(network, lower)))
        if runs.holds(lower[best]):
            current = lower[best]
        else:
            failed.add(free[best])


def _train(runs: Runs, ranges: Ranges, seed: int) -> Profiles:
    """Train the tuned MCD network on all runs within the ranges."""
    table = np.array(list(runs.known), dtype=np.int64)
    targets = target(list(runs.known.values()))
    inside = ((table >= ranges.low) & (table <= ranges.high)).all(1)
    sample = Sample(table[inside], targets[inside])
    fit = train([sample], ranges, TUNED, ["MCD"], seeds=[seed], epochs=100, progress=False)[0]["MCD"]
    assert isinstance(fit.model, Profiles)
    return fit.model


def _cheapest(network: Profiles, ranges: Ranges, wanted: float) -> Configuration | None:
    """The configuration with the fewest bits and a predicted y ≥ wanted; among ties, the one with the largest y.

    For t between floor and ceiling, y ≥ t is equivalent to Σ_i exp(−g_i(x_i)/T) ≤ C. The smallest sum for each number
    of bits is computed variable by variable.
    """
    costs = network.costs([np.arange(low, high + 1) for low, high in zip(ranges.low, ranges.high, strict=True)])
    best = np.full((1,), 0.0)
    choices: list[Ints] = []
    for cost in costs:
        width = len(cost)
        sums = np.full((width, len(best) + width - 1), np.inf)
        for extra in range(width):
            sums[extra, extra : extra + len(best)] = best + cost[extra]
        choices.append(sums.argmin(0))
        best = sums.min(0)
    for bits in range(len(best)):
        widths = _walk(choices, bits)
        configuration = tuple(int(w) for w in np.array(ranges.low) + widths)
        if bits == len(best) - 1 or best[bits] <= _budget(network, wanted):
            return configuration if _predict(network, [configuration])[0] >= wanted else None
    return None


def _budget(network: Profiles, wanted: float) -> float:
    """Largest Σ exp(−g/T) with y ≥ wanted: exp(y/T) = exp(floor/T) + 1/(exp(−ceiling/T) + Σ)."""
    temperature = network.temperature
    with np.errstate(over="ignore", invalid="ignore"):
        least = np.exp(np.array([wanted, float(network.floor.detach())]) / temperature)
        most = np.exp(-float(network.ceiling.detach()) / temperature)
    return math.inf if least[0] <= least[1] else float(1.0 / (least[0] - least[1]) - most)


def _walk(choices: list[Ints], bits: int) -> Ints:
    """Backtrack through the choices: the bits of each variable above its smallest width."""
    widths = np.zeros(len(choices), dtype=np.int64)
    for i in reversed(range(len(choices))):
        widths[i] = choices[i][bits]
        bits -= int(widths[i])
    return widths


def _predict(network: Profiles, configurations: list[Configuration]) -> Floats:
    return network.monotone(np.array(configurations, dtype=np.int64))


def _exchange(runs: Runs, network: Profiles) -> None:
    """Remove two bits and add one elsewhere; run the best predicted exchanges, until none is cheaper."""
    size = len(runs.kernel.variables)
    while True:
        best = runs.cheapest().configuration
        tried = [
            _moved(best, moves)
            for up in range(size)
            for i in range(size)
            for j in range(i, size)
            if up not in (i, j)
            for moves in ([{i: -2, up: 1}] if i == j else [{i: -1, j: -1, up: 1}])
        ]
        tried = [each for each in tried if min(each) >= runs.low and max(each) <= FULL and each not in runs.known]
        if not tried:
            return
        order = np.argsort(-_predict(network, tried))[:size]
        runs.errors([tried[i] for i in order])
        if runs.cheapest().bits == sum(best):
            return
        _settle(runs, network)


def _moved(configuration: Configuration, moves: dict[int, int]) -> Configuration:
    return tuple(width + moves.get(i, 0) for i, width in enumerate(configuration))

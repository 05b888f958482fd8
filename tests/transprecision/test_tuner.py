"""The search for the cheapest widths."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from precisions import trained_for

from ldf.transprecision import kernels, tuner
from ldf.transprecision.kernels import KERNELS, Kernel
from ldf.transprecision.networks import Profiles
from ldf.transprecision.training import Ranges


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove kernels registered by a test."""
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))


def by_rows(table: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in table.tolist()]


@cache
def every(name: str) -> tuple[np.ndarray, np.ndarray]:
    """All configurations of a kernel from 4 bits on, and their errors."""
    size = len(KERNELS[name].variables)
    grid = np.stack(np.meshgrid(*[np.arange(4, 53)] * size, indexing="ij"), -1).reshape(-1, size)
    if size == 3:
        grid = grid[(grid <= 20).all(1)]
    return grid, KERNELS[name].errors(grid)


class Watched(Kernel):
    """Records the configurations that were run."""

    def errors(self, configurations):
        self.body.seen.extend(by_rows(np.asarray(configurations)))
        return super().errors(configurations)


def watched(name: str) -> tuple[Kernel, list[tuple[int, ...]]]:
    plain = KERNELS[name]

    def body(*assign):
        return plain.body(*assign)

    body.seen = []
    return Watched(plain.name, plain.variables, body), body.seen


def settled(kernel: Kernel, found: tuner.Found, bound: float, low: int = 4) -> None:
    """Measured again: the bound is met, and with one bit less in any width it is not."""
    (error,) = kernel.errors([found.configuration])
    assert error == found.error <= bound
    assert found.bits == sum(found.configuration)
    for i, width in enumerate(found.configuration):
        if width > low:
            lower = [*found.configuration]
            lower[i] -= 1
            assert kernel.errors([lower])[0] > bound


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("name", "bound"), [("fwt", 1e-2), ("fwt", 1e-6), ("saxpy", 1e-4), ("saxpy", 1e-6)])
def test_tuned_widths_meet_the_bound_and_none_can_be_lowered(name: str, bound: float) -> None:
    kernel, seen = watched(name)
    found = tuner.tune(kernel, bound, rounds=3)
    assert found.runs == len(seen) == len(set(seen)), "every configuration is run once"
    plain = tuner.greedy(KERNELS[name], bound)
    for one in (found, plain):
        settled(KERNELS[name], one, bound)
    table, errors = every(name)
    best = int(table[errors <= bound].sum(1).min())
    assert best <= found.bits <= plain.bits
    if (name, bound) != ("fwt", 1e-2):  # the optimum has 20 bits, and many configurations with more bits fail
        assert found.bits == best


def test_the_predictor_finds_fewer_bits_than_the_greedy_search(monkeypatch: pytest.MonkeyPatch) -> None:
    trained_for(20, monkeypatch)
    found, plain = tuner.tune(KERNELS["saxpy"], 1e-8, rounds=4), tuner.greedy(KERNELS["saxpy"], 1e-8)
    settled(KERNELS["saxpy"], found, 1e-8)
    assert found.bits < plain.bits
    table, errors = every("saxpy")
    assert found.bits <= table[errors <= 1e-8].sum(1).min() + 1


@pytest.mark.usefixtures("quick")
def test_the_smallest_width_is_respected_and_a_seed_determines_the_result() -> None:
    found = [tuner.tune(KERNELS["saxpy"], 1e-2, low=low, rounds=1, seed=1) for low in (2, 2, 6)]
    assert found[0] == found[1]
    assert found[0].bits < 18
    assert found[2].configuration == (6, 6, 6)
    settled(KERNELS["saxpy"], found[0], 1e-2, low=2)


@pytest.mark.parametrize("way", [1, -1])
def test_a_width_that_could_not_be_lowered_is_tried_again_with_fewer_bits_elsewhere(way: int) -> None:
    """Removing a bit does not always increase the error."""
    kept = {pair[::way] for pair in ((10, 10), (10, 9), (9, 9))}

    class Listed(Kernel):
        def errors(self, configurations):
            return np.array([0.0 if pair in kept else 1.0 for pair in by_rows(configurations)])

    runs = tuner.Runs(Listed("listed", ("a", "b"), KERNELS["fwt"].body), 0.5)
    runs.errors([(10, 10)])
    tuner._settle(runs, Profiles(torch.tensor([4.0, 4.0]), torch.tensor([20.0, 20.0])))
    assert runs.cheapest().configuration == (9, 9)
    assert {(8, 9), (9, 8)} < set(runs.known)


def test_greedy_search_counts_what_it_runs() -> None:
    kernel, seen = watched("saxpy")
    found = tuner.greedy(kernel, 1e-6)
    assert found.runs == len(seen) == len(set(seen))
    settled(KERNELS["saxpy"], found, 1e-6)
    assert tuner.greedy(KERNELS["saxpy"], 1.0).configuration == (4, 4, 4)


def test_the_uniform_width_is_found_by_bisection() -> None:
    for bound in (1.0, 1e-3, 1e-9, 1e-25, 1e-40):
        kernel, seen = watched("saxpy")
        width = tuner.Runs(kernel, bound).uniform()
        holds = [KERNELS["saxpy"].errors([(w,) * 3])[0] <= bound for w in range(4, 53)]
        assert holds[width - 4]
        assert width == 4 or not holds[width - 5]
        assert len(seen) <= 8


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_a_bound_is_a_number_above_zero(bound: float) -> None:
    with pytest.raises(ValueError, match=f"the error bound must be a finite number > 0, got {bound}"):
        tuner.tune(KERNELS["fwt"], bound)


def test_a_bound_that_cannot_be_met_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"error bound -1 cannot be met: with 52 bits .* the error of fwt is 0"):
        tuner.greedy(KERNELS["fwt"], -1.0)

    class Noisy(Kernel):
        def errors(self, configurations):
            return np.full(len(configurations), 0.25)

    noisy = Noisy("noisy", ("x", "y"), KERNELS["fwt"].body)
    for search in (tuner.tune, tuner.greedy):
        with pytest.raises(ValueError, match=r"the error bound 0\.1 cannot be met: .* error of noisy is 0\.25"):
            search(noisy, 0.1)


@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_predicted_configuration_is_found_exactly(seed: int) -> None:
    ranges = Ranges((4, 7, 5), (9, 12, 5 + seed))
    network = Profiles(*ranges.tensors(), 0.2)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        network.steps.copy_(torch.randn(network.steps.shape, generator=generator))
        network.level.copy_(0.3 * torch.rand(network.level.shape, generator=generator))
        network.log_temperature.fill_(-2.5)
    grid = np.array(list(itertools.product(*[range(a, b + 1) for a, b in zip(ranges.low, ranges.high, strict=True)])))
    y, bits = network.monotone(grid), grid.sum(1)
    levels = np.quantile(y, [0.03, 0.2, 0.5, 0.8, 0.97]) + 1e-6
    for wanted in (*levels, y.min() - 0.1, network.floor.item() - 1.0):
        fits = y >= wanted
        found = tuner._cheapest(network, ranges, float(wanted))
        if not fits.any():
            assert found is None
            continue
        least = bits[fits].min()
        assert found is not None
        assert sum(found) == least
        assert network.monotone(np.array([found]))[0] == pytest.approx(y[bits == least].max(), abs=1e-9)
    for wanted in (y.max() + 1e-6, 1.0, 2.0, 5.0):
        if wanted > y.max():
            assert tuner._cheapest(network, ranges, float(wanted)) is None

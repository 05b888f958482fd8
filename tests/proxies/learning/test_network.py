"""The network that replaces a solver: its closed-form base, its scaling, its bounds."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from labelled import formula, labelled
from torch import Tensor, nn

from ldf.proxies.data.dataset import Dataset, divide
from ldf.proxies.learning.network import CONSTANT, PENALTIES, Architecture, Proxy, Rows, build, components, ridge
from ldf.proxies.learning.training import RECIPES

TUNED, PAPER = RECIPES["tuned"].architecture, RECIPES["paper"].architecture
BARE = Architecture(layers=0, width=None, skip=True, bounded=False)
"""A single linear layer on top of the base."""


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    return {mode: labelled(tmp_path_factory.mktemp(mode), mode) for mode in ("independent", "shared")}


def built(data: Dataset, architecture: Architecture = TUNED, wild: float = 0.0) -> Proxy:
    """With `wild` the last layer, zero at first, has random weights of this size."""
    proxy = build(architecture, *divide(data.split()[0], 0), seed=0)
    if wild:
        nn.init.normal_(proxy.network[-1].weight, std=wild, generator=torch.Generator().manual_seed(1))
    return proxy


def learnt(data: Dataset, what: str) -> tuple[Dataset, Mapping[str, slice]]:
    """Rows with states or with prices to learn, and their parts."""
    return (data.priced(), data.problem.priced) if what == "prices" else (data, data.problem.quantities)


def outputs(proxy: Proxy, rows: Rows) -> Tensor:
    with torch.no_grad():
        return proxy(proxy.features(rows).float()).double()


# ---------------------------------------------------------------- the base

SLOPE, LEVEL = noise(6, 4, seed=1), noise(4, seed=2)


def linear(demand: Tensor) -> Tensor:
    return demand @ SLOPE + LEVEL


def test_a_linear_answer_is_found_exactly() -> None:
    seen, check, fresh = 3 + 0.2 * noise(120, 6), 3 + 0.2 * noise(40, 6, seed=3), 3 + noise(50, 6, seed=4)
    proxy = build(TUNED, formula(seen, linear), formula(check, linear), seed=0, linear=True)
    assert torch.allclose(proxy.base(Rows(fresh)), linear(fresh), rtol=0, atol=1e-7), "also beyond what was seen"
    assert torch.allclose(proxy.predict(Rows(fresh)), linear(fresh), rtol=0, atol=1e-7), "the network begins at nothing"


def test_with_a_hot_start_a_linear_answer_is_found_exactly() -> None:
    def pairs(rows: int, seed: int) -> Dataset:
        earlier = 3 + 0.2 * noise(rows, 6, seed=seed)
        return formula(earlier * (1 + 0.01 * noise(rows, 6, seed=seed + 1)), linear, earlier)

    proxy = build(TUNED, pairs(200, 10), pairs(40, 20), seed=0, linear=True)
    fresh = pairs(50, 30)
    assert proxy.hot
    assert torch.allclose(proxy.base(Rows.of(fresh)), fresh.state, rtol=0, atol=1e-6)


def test_hinges_follow_an_answer_with_a_kink() -> None:
    along = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64)

    def kinked(demand: Tensor) -> Tensor:
        u = demand[:, :1]
        return torch.cat([(u - 1.03).clamp_min(0), 2 * u - 3 * (u - 0.91).clamp_min(0)], 1)

    def line(rows: int, seed: int) -> Dataset:
        draws = torch.rand(rows, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return formula((0.8 + 0.4 * draws) * along, kinked)

    training, check, fresh = line(600, 0), line(100, 1), line(300, 2)
    error = {}
    for name in ("straight", "bent"):
        base = build(TUNED, training, check, seed=0, linear=name == "straight").base(Rows.of(fresh))
        error[name] = float((base - fresh.state).square().mean().sqrt())
    assert error["bent"] < error["straight"] / 10


def test_a_quadratic_answer_is_found_exactly_where_there_are_rows_enough() -> None:
    form = noise(6, 6, 2, seed=5)

    def bowl(demand: Tensor) -> Tensor:
        return linear(demand)[:, :2] + torch.einsum("bi,ijk,bj->bk", demand, form, demand)

    def error(rows: int) -> float:
        seen, check, fresh = (3 + 0.2 * noise(n, 6, seed=7 + n) for n in (rows, 40, 50))
        proxy = build(TUNED, formula(seen, bowl), formula(check, bowl), seed=0)
        assert proxy.sizes["curved"] == (6 if rows >= 42 else 0), "21 products of 6 inputs"
        return float((proxy.base(Rows(fresh)) - bowl(fresh)).abs().max())

    assert error(120) < 1e-6
    assert error(41) > 1e-2


def test_ridge_is_least_squares_with_a_penalty() -> None:
    seen, wanted = noise(50, 7) @ torch.diag(torch.logspace(0, -3, 7, dtype=torch.float64)), noise(50, 3, seed=1)
    n, largest = len(seen), np.linalg.svd(seen.numpy(), compute_uv=False)[0] ** 2 / len(seen)
    for penalty, found in zip((0.0, *PENALTIES), ridge(seen, wanted, (0.0, *PENALTIES)), strict=True):
        # ‖A w − y‖²/n + κ s ‖w‖² as the squared length of one long vector
        rows = np.concatenate([seen.numpy() / np.sqrt(n), np.sqrt(penalty * largest) * np.eye(7)])
        aims = np.concatenate([wanted.numpy() / np.sqrt(n), np.zeros((7, 3))])
        expected = np.linalg.lstsq(rows, aims, rcond=None)[0]
        assert np.allclose(found.numpy(), expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max()), penalty


def test_components_are_whitened_and_negligible_ones_left_out() -> None:
    base = noise(400, 3) @ noise(3, 3, seed=1) * torch.tensor([1.0, 100.0, 1e-3]) + 7
    copy = base[:, :1] + 1e-7 * noise(400, 1, seed=2)
    fixed = torch.full((400, 1), 5.0, dtype=torch.float64)
    inputs = torch.cat([base, copy, fixed], 1)
    mean, rotation = components(inputs)
    seen = (inputs - mean) @ rotation
    assert seen.shape == (400, 3), "neither the copy's own noise nor the constant is a direction"
    assert torch.allclose(seen.T @ seen / 400, torch.eye(3, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(seen.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-9)
    assert (rotation[4] == 0).all()


def test_unscaled_components_are_directions_the_widest_first() -> None:
    turned = torch.linalg.qr(noise(4, 4)).Q
    inputs = noise(3000, 4, seed=1) * torch.tensor([0.1, 3.0, 1.0, 0.0]) @ turned.T
    _, rotation = components(inputs, scaled=False)
    assert rotation.shape == (4, 3)
    assert torch.allclose(rotation.T @ rotation, torch.eye(3, dtype=torch.float64), atol=1e-9)
    for place, column in enumerate((1, 2, 0)):
        assert abs(float(rotation[:, place] @ turned[:, column])) > 0.99


# ---------------------------------------------------------------- scaling


@pytest.mark.parametrize("mode", ["independent", "shared"])
def test_outputs_that_never_change_are_pinned_whatever_the_network_says(data: dict[str, Dataset], mode: str) -> None:
    fitted, _ = divide(data[mode].split()[0], 0)
    proxy = built(data[mode], replace(TUNED, bounded=False), wild=5.0)
    pinned = (fitted.state.std(0) <= CONSTANT).nonzero()[:, 0]
    moving = (fitted.state.std(0) > CONSTANT).nonzero()[:, 0]
    assert len(pinned) >= 4, "case14: the reference's angle and three generators that give no power"
    assert torch.equal(proxy.free, moving)
    found = proxy.predict(Rows.of(data[mode]))
    assert torch.equal(found[:, pinned], fitted.state.mean(0)[pinned].expand(len(found), -1))
    assert (found[:, moving].std(0) > CONSTANT).all()


@pytest.mark.parametrize("mode", ["independent", "shared"])
@pytest.mark.parametrize("architecture", [TUNED, PAPER], ids=["tuned", "paper"])
def test_targets_and_states_undo_each_other(data: dict[str, Dataset], mode: str, architecture: Architecture) -> None:
    proxy, rows = built(data[mode], architecture), Rows.of(data[mode])
    base = proxy.base(rows)
    z = noise(len(base), len(proxy.free))
    # z times a scale of at least 1e-9 is added to a base of size one, and loses that many digits
    digits = 1e-14 / proxy.scale
    assert ((proxy.targets(proxy.states(z, base), base) - z).abs() <= 1e-12 + digits).all()
    again = proxy.states(proxy.targets(data[mode].state, base), base)
    assert torch.allclose(again[:, proxy.free], data[mode].state[:, proxy.free], rtol=0, atol=1e-12)


@pytest.mark.parametrize("what", ["states", "prices"])
def test_the_residual_of_every_part_has_size_one(data: dict[str, Dataset], what: str) -> None:
    rows, parts = learnt(data["independent"], what)
    fitted, chosen = divide(rows.split()[0], 0)
    proxy = build(TUNED, fitted, chosen, seed=0, linear=True)
    targets = proxy.targets(fitted.state, proxy.base(Rows.of(fitted)))
    for name, part in parts.items():
        members = (proxy.free >= part.start) & (proxy.free < part.stop)
        assert float(targets[:, members].square().mean().sqrt()) == pytest.approx(1, rel=1e-6), name


# ---------------------------------------------------------------- temper


@pytest.mark.parametrize("what", ["states", "prices"])
@pytest.mark.parametrize("wild", [0.01, 1.0, 30.0])
def test_tempering_never_harms(data: dict[str, Dataset], wild: float, what: str) -> None:
    rows, parts = learnt(data["independent"], what)
    _, chosen = divide(rows.split()[0], 0)
    proxy = built(rows, replace(TUNED, bounded=False), wild)
    base, before = proxy.base(Rows.of(chosen)), proxy.predict(Rows.of(chosen))
    unit = proxy.scale.clone()
    proxy.temper(chosen)
    after = proxy.predict(Rows.of(chosen))
    for name, part in parts.items():
        errors = [float((x - chosen.state)[:, part].square().mean()) for x in (after, before, base)]
        assert errors[0] <= min(errors[1:]) * (1 + 1e-9), name
        factors = (proxy.scale / unit)[(proxy.free >= part.start) & (proxy.free < part.stop)]
        assert torch.allclose(factors, factors[0], rtol=1e-9), "one for all of a part"


def test_the_factor_is_the_best_between_nothing_and_all() -> None:
    training, check = (formula(3 + noise(90, 6, seed=s), linear) for s in (0, 1))
    factors = {1.0: 1.0, 2.0: 0.5, 4.0: 0.25, 0.5: 1.0, -1.0: 0.0}
    for size, expected in factors.items():
        proxy = build(BARE, training, check, seed=0, linear=True).double()
        proxy.weights.zero_()  # all is left to the network, and what is left is linear
        rows, unit = Rows.of(training), proxy.scale.clone()
        wanted, seen = proxy.targets(training.state, proxy.base(rows)), proxy.features(rows)
        solved = torch.linalg.lstsq(torch.cat([seen, torch.ones(90, 1, dtype=torch.float64)], 1), wanted).solution
        with torch.no_grad():
            proxy.network[0].weight.copy_(size * solved[:-1].T)
            proxy.network[0].bias.copy_(size * solved[-1])
        proxy.temper(check)
        assert torch.allclose(proxy.scale / unit, torch.tensor(expected, dtype=torch.float64), atol=1e-6), size


def test_of_a_network_of_noise_and_its_opposite_one_is_silenced(data: dict[str, Dataset]) -> None:
    _, chosen = divide(data["independent"].split()[0], 0)
    factors = []
    for sign in (1, -1):
        proxy = built(data["independent"], wild=20.0)
        with torch.no_grad():
            proxy.network[-1].weight.mul_(sign)
            proxy.network[-1].bias.mul_(sign)
        unit = proxy.scale.clone()
        proxy.temper(chosen)
        factors.append(proxy.scale / unit)
    assert torch.equal(torch.minimum(*factors), torch.zeros_like(factors[0]))
    assert (torch.maximum(*factors) > 0).all(), "one of the two points the right way"


# ---------------------------------------------------------------- predictions


def test_answers_stay_within_their_bounds(data: dict[str, Dataset]) -> None:
    rows, problem = Rows.of(data["independent"]), data["independent"].problem
    low, high = torch.from_numpy(problem.lower), torch.from_numpy(problem.upper)
    wild = {bounded: built(data["independent"], replace(TUNED, bounded=bounded), 1e6) for bounded in (True, False)}
    free = wild[False].predict(rows)
    assert (free < low).any()
    assert (free > high).any()
    kept = wild[True].predict(rows)
    assert (kept >= low).all()
    assert (kept <= high).all()
    inside = (free >= low) & (free <= high)
    assert torch.equal(kept[inside], free[inside])


@pytest.mark.parametrize("mode", ["independent", "shared"])
def test_the_papers_recipe_is_five_layers_on_raw_numbers(data: dict[str, Dataset], mode: str) -> None:
    fitted, _ = divide(data[mode].split()[0], 0)
    proxy, rows = built(data[mode], PAPER), Rows.of(fitted)
    layers = [layer for layer in proxy.network if isinstance(layer, nn.Linear)]
    size = fitted.state.shape[1]
    assert [layer.out_features for layer in layers] == [2 * size] * 4 + [size]
    assert [type(layer) for layer in proxy.network] == [nn.Linear, nn.ReLU] * 4 + [nn.Linear]
    parts = [fitted.demand, fitted.earlier_demand, fitted.earlier_state]
    inputs = torch.cat([part for part in parts if part is not None], 1)
    assert torch.equal(proxy.features(rows), inputs[:, (inputs != inputs[0]).any(0)])
    assert torch.equal(proxy.base(rows), torch.zeros_like(fitted.state))
    assert torch.equal(proxy.targets(fitted.state, proxy.base(rows)), fitted.state)
    assert torch.equal(proxy.predict(rows), outputs(proxy, rows)), "unscaled and unbounded"


def test_predictions_do_not_depend_on_how_many_are_made_at_once(
    data: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows.of(data["shared"])
    proxy = built(data["shared"], wild=0.1)
    whole = proxy.predict(rows)
    for chunk in (1, 7, 60, 61):
        monkeypatch.setattr("ldf.proxies.learning.network.CHUNK", chunk)
        assert torch.allclose(proxy.predict(rows), whole, rtol=0, atol=1e-6), chunk
    assert proxy.predict(Rows.of(data["shared"].take(torch.arange(0)))).shape == (0, whole.shape[1])


def test_a_hot_start_without_an_earlier_state_is_refused(data: dict[str, Dataset]) -> None:
    with pytest.raises(ValueError, match="needs an earlier demand and its state"):
        built(data["shared"]).predict(Rows(data["shared"].demand))


def test_a_seed_gives_weights_and_leaves_the_callers_random_numbers_alone(data: dict[str, Dataset]) -> None:
    fitted, chosen = divide(data["independent"].split()[0], 0)
    before = torch.get_rng_state()
    first, second, other = (build(PAPER, fitted, chosen, seed).network[0].weight for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, second)
    assert not torch.equal(first, other)

"""Networks over widths, their constrained pairs, and their training."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from precisions import first, labels, profiles, weights
from torch import Tensor, nn
from torch.func import functional_call

from ldf import Ascent, Fixed, fit_many
from ldf.transprecision import training
from ldf.transprecision.dominance import Dominance
from ldf.transprecision.networks import KNOTS, Perceptron, Profiles, Scaled
from ldf.transprecision.predictor import Predictor, predictions
from ldf.transprecision.training import (
    DIRECTED,
    MODELS,
    PAPER,
    TUNED,
    Ranges,
    Sample,
    directed,
    recipe_named,
    train,
    training_pairs,
)

SPANS = [((4, 10, 1), (9, 52, 2)), ((1, 7), (200, 7)), ((3,), (66,)), ((-5, 0, 2, 3), (-1, 100, 66, 5))]
"""Ranges with few values, one value, as many values as knots, and more."""


def asked(low: tuple[int, ...], high: tuple[int, ...], rows: int = 40, beyond: int = 0) -> np.ndarray:
    return np.random.default_rng(1).integers(np.array(low) - beyond, np.array(high) + beyond + 1, (rows, len(low)))


def by_formula(network: Profiles, low: tuple[int, ...], high: tuple[int, ...], widths: np.ndarray) -> np.ndarray:
    level, slope, steps = (getattr(network, name).detach().numpy() for name in ("level", "slope", "steps"))
    temperature = np.exp(network.log_temperature.item())
    total = np.exp(-network.ceiling.item() / temperature)
    for i, (least, most) in enumerate(zip(low, high, strict=True)):
        knots = np.linspace(least, most, min(most - least + 1, KNOTS))
        t = (knots - least) / max(most - least, 1)
        values = level[i] + slope[i] * t + network.scale.item() * np.cumsum(steps[i, : len(knots)])
        total = total + np.exp(-np.interp(widths[:, i], knots, values) / temperature)
    return temperature * np.log(np.exp(network.floor.item() / temperature) + 1 / total)


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_profiles_match_the_formula_between_knots_and_beyond_the_ends(low: tuple, high: tuple) -> None:
    for seed in range(3):
        network = profiles(low, high, seed)
        for widths in (asked(low, high), asked(low, high, beyond=30), asked(low, high) + 0.37):
            with torch.no_grad():
                found = network(torch.from_numpy(widths).double())
            assert found.shape == (40, 1)
            np.testing.assert_allclose(found[:, 0], by_formula(network, low, high, widths), rtol=1e-9, atol=1e-9)


def test_a_new_network_is_straight_lines_and_their_softmin() -> None:
    network = Profiles(torch.tensor([4.0, 4.0]), torch.tensor([52.0, 12.0]))
    lines = network.profiles().detach().numpy()
    np.testing.assert_allclose(lines[0], np.linspace(0.1, 1.1, 49), rtol=1e-6)
    np.testing.assert_allclose(lines[1, :9], np.linspace(0.1, 1.1, 9), rtol=1e-6)
    with torch.no_grad():
        y = network(torch.tensor([[28.0, 12.0], [52.0, 4.0]]))
    assert y[:, 0].tolist() == pytest.approx([0.6, 0.1], abs=1e-2), "the least precise variable determines y"


def test_the_gradient_of_profiles_is_right() -> None:
    low, high = (4, 1), (7, 120)
    network = profiles(low, high)
    names, values = zip(*network.named_parameters(), strict=True)
    widths = torch.from_numpy(asked(low, high, 6)).double()

    def y(*parameters: Tensor) -> Tensor:
        return functional_call(network, dict(zip(names, parameters, strict=True)), (widths,))

    assert torch.autograd.gradcheck(y, tuple(value.detach().clone().requires_grad_() for value in values))


def test_profiles_accept_a_leading_dimension() -> None:
    """The stacked step passes rows with a leading dimension."""
    network = profiles((4, 4), (20, 9))
    widths = torch.from_numpy(asked((4, 4), (20, 9), 12)).double()
    torch.testing.assert_close(network(widths.view(3, 4, 2)).flatten(), network(widths).flatten())


GRID_LOW, GRID_HIGH = (2, 4, 1), (6, 6, 4)
GRID = np.array(
    list(itertools.product(*[range(a, b + 1) for a, b in zip(GRID_LOW, GRID_HIGH, strict=True)])), dtype=np.int64
)
"""All configurations of ranges of five, three and four widths."""


def values_on_the_grid(network: Profiles) -> np.ndarray:
    with torch.no_grad():
        return network(torch.from_numpy(GRID).double())[:, 0].numpy()


@settings(max_examples=40, deadline=None)
@given(
    steps=arrays(np.float64, (3, 5), elements=st.floats(-3, 3)), slopes=arrays(np.float64, 3, elements=st.floats(-2, 2))
)
def test_repaired_profiles_are_monotone_everywhere_with_the_smallest_change(
    steps: np.ndarray, slopes: np.ndarray
) -> None:
    network = profiles(GRID_LOW, GRID_HIGH)
    with torch.no_grad():
        network.steps.copy_(torch.from_numpy(steps))
        network.slope.copy_(torch.from_numpy(slopes[:, None]))
    before, lines = values_on_the_grid(network), network.profiles().detach().numpy()
    made = network.repaired()
    repaired = made.profiles().detach().numpy()
    for own, new, count in zip(lines, repaired, (5, 3, 4), strict=True):
        drops = own[:count, None] - own[None, :count]
        largest = np.triu(drops).max()
        assert (np.diff(new[:count]) >= -1e-12).all()
        assert np.abs(new - own)[:count].max() == pytest.approx(largest / 2, abs=1e-12)
        if largest == 0:
            assert (new == own).all()
        assert (new == own)[count:].all()
    assert Dominance(GRID).violations(values_on_the_grid(made)).worst <= 1e-12
    assert (values_on_the_grid(network) == before).all()
    assert not network.change.any()
    torch.testing.assert_close(made.repaired().profiles(), made.profiles(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("low", "high"), SPANS)
def test_exactly_monotone_predictions_are_those_of_the_repaired_network(low: tuple, high: tuple) -> None:
    for seed, shift in ((0, 0.0), (1, -4.0)):  # at a low temperature powers overflow; the overflow must not show
        network = profiles(low, high, seed)
        with torch.no_grad():
            network.log_temperature.add_(shift)
        widths = np.sort(asked(low, high, 120, beyond=5), axis=0)
        found = network.monotone(widths)
        assert np.isfinite(found).all()
        assert Dominance(widths).violations(found).violated == 0
        np.testing.assert_allclose(found, predictions(network.repaired(), widths), rtol=1e-9, atol=1e-9)


def test_profiles_that_fall_give_predictions_that_fall() -> None:
    assert Dominance(GRID).violations(values_on_the_grid(profiles(GRID_LOW, GRID_HIGH))).violated > 50


def test_the_papers_network_has_three_hidden_layers_of_ten() -> None:
    low, high = torch.tensor([4.0, 10.0, 7.0]), torch.tensor([52.0, 20.0, 7.0])
    network = Perceptron(low, high)
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(3, 10), (10, 10), (10, 10), (10, 1)]
    assert [type(layer) for layer in network] == [Scaled, *[nn.Linear, nn.ReLU] * 3, nn.Linear]
    assert network[0](torch.stack([low, high, (low + high) / 2])).tolist() == [[0, 0, 0], [1, 1, 0], [0.5, 0.5, 0]]
    assert network(torch.stack([low, high])).shape == (2, 1)


def test_directed_pairs_are_ordered_within_ranges_and_by_seed() -> None:
    ranges = Ranges((4, 10, 1, 6), (52, 20, 2, 6))
    found = directed(ranges, 2001, np.random.default_rng(0))
    assert found.shape == (2, 2001, 4)
    assert found.dtype == np.int64
    low, high = found
    assert (low <= high).all()
    assert (low >= ranges.low).all()
    assert (high <= ranges.high).all()
    assert (found == directed(ranges, 2001, np.random.default_rng(0))).all()
    assert (found != directed(ranges, 2001, np.random.default_rng(1))).any()


def test_half_of_the_directed_pairs_raise_one_width_by_a_few_bits_where_it_matters() -> None:
    ranges = Ranges((4, 10, 4), (52, 30, 52))
    low, high = directed(ranges, 20_000, np.random.default_rng(0))
    one, many = (high - low)[:10_000], (high - low)[10_000:]
    assert ((one > 0).sum(1) <= 1).all()
    assert set(one.max(1)) == {0, 1, 2, 3, 4}
    assert (one.max(1) > 0).mean() > 0.95
    raised = np.flatnonzero(one.max(1))
    which = one[raised].argmax(1)
    assert {*which} == {0, 1, 2}
    share = (low[:10_000] - ranges.low) / (np.array(ranges.high) - ranges.low)
    least = share[raised, which]
    assert (share[raised] >= least[:, None] - 1 / 20).all(), "the others are above it"
    assert least.mean() < share[raised].mean()
    # Resampled with probability 0.4; the new width is larger in half of the cases.
    assert (many > 0).mean() == pytest.approx(0.2, abs=0.01)
    assert many.max() > 30


def test_training_pairs_are_all_covering_some_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    table = labels("saxpy").configurations[:40]
    every = [[i, j] for i in range(40) for j in range(40) if i != j and (table[i] <= table[j]).all()]
    assert training_pairs(table, None).tolist() == every
    some = training_pairs(table, 30, seed=1)
    assert len(some) == 30
    assert all(pair in every for pair in some.tolist())
    assert some.tolist() == training_pairs(table, 30, seed=1).tolist() != training_pairs(table, 30, seed=2).tolist()
    assert training_pairs(table, 10_000).tolist() == every
    assert training_pairs(table, 0).shape == (0, 2)
    monkeypatch.setattr(training, "ALL_PAIRS", len(every))
    assert training_pairs(table, None).tolist() == every
    monkeypatch.setattr(training, "ALL_PAIRS", len(every) - 1)
    fewer = training_pairs(table, None).tolist()
    assert fewer == Dominance(table).covering().tolist()
    assert len(fewer) < len(every)


class AskedError(Exception):
    """Ends a run before training starts."""


def options_of(monkeypatch: pytest.MonkeyPatch, samples: list[Sample], *arguments, **options) -> dict:
    """Arguments that `train` passes to `fit_many`."""
    seen: dict = {}

    def watch(factory, data, **given):
        seen.update(given, data=data)
        raise AskedError

    monkeypatch.setattr(training, "fit_many", watch)
    ranges = Ranges((4,) * 3, (52,) * 3)
    with pytest.raises(AskedError):
        train(samples, ranges, *arguments, **options)
    return seen


def test_the_papers_recipe_is_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = first(labels("saxpy"), 100)
    pairs = training_pairs(sample.configurations, None)
    seen = options_of(monkeypatch, [sample], PAPER)
    assert (seen["epochs"], seen["lr"], seen["batch_size"]) == (150, 1e-3, 64)
    assert seen["loss"] is nn.functional.l1_loss
    assert seen["schedule"] is None
    assert seen["unlabelled"] is None
    assert seen["keep"] == "last"
    (law,) = seen["constraints"]
    assert (law.kind, law.degree, law.multiplier) == ("inequality", "violation", "sample")
    assert law.scope.indices.tolist() == pairs.tolist(), "a multiplier for each pair of the training set"
    share = len(pairs) / 100
    assert seen["duals"] == [[None, Fixed(share), Ascent(1e-3 * share, normalise=False)]]


def test_other_recipes_are_constrained_on_unlabelled_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = first(labels("saxpy"), 100)
    seen = options_of(monkeypatch, [sample, sample], DIRECTED, ["MCD"])
    assert (seen["epochs"], seen["lr"], seen["batch_size"], seen["duals"]) == (
        150,
        1e-3,
        64,
        [[Ascent(100 / 2**0.5, remeasure=False)]] * 2,
    )
    (law,) = seen["constraints"]
    indices = law.scope.indices
    assert indices.shape == (3000, 2)
    low, high = (torch.cat([seen["data"][0], seen["unlabelled"]])[indices[:, side]] for side in (0, 1))
    assert int(indices.min()) == 200, "unlabelled rows come after those of both sets"
    assert (low <= high).all()
    assert [TUNED.batch_size(rows) for rows in (10, 200, 1000, 100_000)] == [3, 50, 250, 1024]
    with monkeypatch.context() as patch:
        patch.setattr(training, "_choose_scales", lambda *_: [0.1, 0.1])
        seen = options_of(patch, [sample, sample], TUNED, ["MC", "MCD"])
    assert seen["duals"] == [[Fixed(1.0), Ascent(50 / 2**0.5, remeasure=False)]] * 2
    indices = seen["constraints"][0].scope.indices
    parts = [((indices >= a) & (indices < b)).all(1).sum().item() for a, b in ((0, 100), (100, 200), (200, 6200))]
    own = len(training_pairs(sample.configurations, 2000))
    assert parts == [own, own, 3000]
    assert sum(parts) == len(indices)


def test_recipes_by_name() -> None:
    assert recipe_named("paper") is PAPER
    assert recipe_named("tuned") is TUNED
    with pytest.raises(ValueError, match="recipe must be paper or tuned, got 'best'"):
        recipe_named("best")


def test_the_papers_ascent_and_weights_by_hand() -> None:
    """One epoch of one batch: ν is evaluated at the initial weights."""
    sample = first(labels("saxpy"), 50)
    pairs = training_pairs(sample.configurations, None)
    ranges = Ranges((4,) * 3, (52,) * 3)
    torch.manual_seed(1)
    start = predictions(Perceptron(*ranges.tensors()), sample.configurations)
    excess = np.maximum(0.0, start[pairs[:, 0]] - start[pairs[:, 1]])
    assert (excess > 0).any()
    fits = train([sample], ranges, PAPER, seeds=[1], epochs=1, progress=False)[0]
    share = len(pairs) / 50
    multipliers = fits["MCD"].multipliers["monotone"]
    assert multipliers.shape == (len(pairs), 1), "one for each pair"
    np.testing.assert_allclose(multipliers[:, 0], 1e-3 * share * excess, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(fits["MC"].multipliers["monotone"], share, rtol=1e-6)
    loss = np.abs(start - sample.targets).mean()
    for model, weight in (("M", 0.0), ("MC", share), ("MCD", 0.0)):
        (row,) = fits[model].history.rows
        assert row["loss"] == pytest.approx(loss, rel=1e-5)
        assert row["nu_mean/monotone"] == pytest.approx(excess.mean(), rel=1e-4)
        assert row["penalty/monotone"] == pytest.approx(weight * excess.mean(), rel=1e-4), "Σ μν/n"


def test_stacked_training_sets_give_the_same_as_separate_ones() -> None:
    sample = labels("saxpy")
    samples = [Sample(sample.configurations[rows], sample.targets[rows]) for rows in (slice(70), slice(70, 140))]
    ranges = Ranges((4,) * 3, (52,) * 3)
    both = train(samples, ranges, PAPER, seeds=[5, 9], epochs=8, progress=False)
    assert [list(models) for models in both] == [list(MODELS)] * 2
    for own, seed, models in zip(samples, (5, 9), both, strict=True):
        (alone,) = train([own], ranges, PAPER, ["M"], seeds=[seed], epochs=8, progress=False)
        torch.testing.assert_close(weights(models["M"].model), weights(alone["M"].model), rtol=1e-4, atol=1e-6)
        assert not torch.allclose(weights(models["M"].model), weights(models["MC"].model), atol=1e-4)
        assert models["M"].label["seed"] == seed


def test_penalties_of_one_set_are_weighted_by_its_own_pairs() -> None:
    sample = labels("saxpy")
    samples = [Sample(sample.configurations[rows], sample.targets[rows]) for rows in (slice(60), slice(60, 120))]
    counts = [len(training_pairs(one.configurations, None)) for one in samples]
    assert counts[0] != counts[1]
    both = train(samples, Ranges((4,) * 3, (52,) * 3), PAPER, ["MC"], epochs=1, progress=False)
    found = [float(models["MC"].multipliers["monotone"].max()) for models in both]
    assert found == pytest.approx([count / 60 for count in counts])


@pytest.mark.parametrize("model", ["M", "MC", "MCD"])
def test_a_table_without_dominated_pairs_has_no_constraint(model: str) -> None:
    table = np.array([[i, 30 - i] for i in range(4, 24)])
    made = Predictor.fit(table, np.linspace(0, 1, 20), recipe="paper", model=model, epochs=1)
    assert made.facts["doctor"] == {"advice": [], "warnings": []}


def test_the_scale_of_each_set_is_chosen_on_held_out_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = first(labels("saxpy"), 60)
    noise = Sample(sample.configurations, np.random.default_rng(0).random(60))
    seen = []

    def watch(*arguments, **options):
        seen.append((options, fit_many(*arguments, **options)))
        return seen[-1][1]

    monkeypatch.setattr(training, "fit_many", watch)
    done = train([sample, noise], Ranges((4,) * 3, (52,) * 3), TUNED, ["M", "MCD"], epochs=4, progress=False)
    (options, tried), (_, fits) = seen
    assert (options["validation"], options["seeds"], len(tried)) == (0.2, [0, 0, 0, 1, 1, 1], 6)
    assert [round(float(one.model.scale), 6) for one in tried] == [*training.SCALES] * 2
    for number, models in enumerate(done):
        losses = [one.history.rows[-1]["val_loss"] for one in tried[3 * number : 3 * number + 3]]
        best = training.SCALES[int(np.argmin(losses))]
        assert [float(fit.model.scale) for fit in models.values()] == pytest.approx([best, best])
    assert [id(models[name]) for models in done for name in ("M", "MCD")] == [id(fit) for fit in fits]

"""Networks over configurations, how they are trained, the predictor and what it has to beat."""

import itertools
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import killed_predictor
import numpy as np
import pytest
import torch
from helpers import kill_after_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn
from torch.func import functional_call

from ldf import Ascent, CheckpointError, Fixed, checkpoint, fit_many
from ldf.transprecision import peers, predictor, training
from ldf.transprecision.dominance import Dominance
from ldf.transprecision.kernels import KERNELS, target
from ldf.transprecision.networks import KNOTS, Perceptron, Profiles, Scaled
from ldf.transprecision.predictor import Predictor, predictions
from ldf.transprecision.repair import isotonic
from ldf.transprecision.tables import draw
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


@cache
def labels(name: str, rows: int = 300) -> Sample:
    kernel = KERNELS[name]
    drawn = draw(len(kernel.variables), rows, seed=0)
    return Sample(drawn, target(kernel.errors(drawn)))


def first(sample: Sample, rows: int) -> Sample:
    return Sample(sample.configurations[:rows], sample.targets[:rows])


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# ---------------------------------------------------------------- profiles


SPANS = [((4, 10, 1), (9, 52, 2)), ((1, 7), (200, 7)), ((3,), (66,)), ((-5, 0, 2, 3), (-1, 100, 66, 5))]
"""Ranges with few values, with one, with as many as there are knots and with more."""


def profiles(low: tuple[int, ...], high: tuple[int, ...], seed: int = 0) -> Profiles:
    """A network in double precision whose parameters are random."""
    network = Profiles(torch.tensor(low).double(), torch.tensor(high).double(), 0.5).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        network.log_temperature.sub_(1.0)
    return network


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
def test_profiles_are_their_formula_also_between_knots_and_beyond_the_ends(low: tuple, high: tuple) -> None:
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
    assert y[:, 0].tolist() == pytest.approx([0.6, 0.1], abs=1e-2), "the least precise variable has the say"


def test_the_gradient_of_profiles_is_right() -> None:
    low, high = (4, 1), (7, 120)
    network = profiles(low, high)
    names, values = zip(*network.named_parameters(), strict=True)
    widths = torch.from_numpy(asked(low, high, 6)).double()

    def y(*parameters: Tensor) -> Tensor:
        return functional_call(network, dict(zip(names, parameters, strict=True)), (widths,))

    assert torch.autograd.gradcheck(y, tuple(value.detach().clone().requires_grad_() for value in values))


def test_many_batches_of_profiles_are_one() -> None:
    """The stacked step hands out rows with a dimension before them."""
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
def test_repaired_profiles_are_monotone_everywhere_and_moved_the_least(steps: np.ndarray, slopes: np.ndarray) -> None:
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
def test_what_is_monotone_without_exception_is_the_repaired_network(low: tuple, high: tuple) -> None:
    for seed, shift in ((0, 0.0), (1, -4.0)):  # at a low temperature powers overflow, and none may be seen
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


# ---------------------------------------------------------------- pairs


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
    assert (share[raised] >= least[:, None] - 1 / 20).all(), "the others stand above it"
    assert least.mean() < share[raised].mean()
    # Raised with probability 0.4 to anything, which is more in half of the cases.
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


# ---------------------------------------------------------------- recipes


class AskedError(Exception):
    """Ends a run where training would begin."""


def options_of(monkeypatch: pytest.MonkeyPatch, samples: list[Sample], *arguments, **options) -> dict:
    """What `train` asks `fit_many` for."""
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
    assert seen["duals"] == [None, Fixed(share), Ascent(1e-3 * share, normalise=False)]
    assert PAPER.duals == {"M": None, "MC": Fixed(1.0), "MCD": Ascent(1e-3, normalise=False)}
    assert tuple(PAPER.duals) == MODELS
    assert [PAPER.batch_size(rows) for rows in (10, 200, 1000)] == [64, 64, 64]


def test_other_recipes_are_held_to_pairs_without_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = first(labels("saxpy"), 100)
    seen = options_of(monkeypatch, [sample, sample], DIRECTED, ["MCD"])
    assert (seen["epochs"], seen["lr"], seen["batch_size"], seen["duals"]) == (150, 1e-3, 64, [Ascent(100.0)])
    (law,) = seen["constraints"]
    indices = law.scope.indices
    assert indices.shape == (3000, 2)
    low, high = (torch.cat([seen["data"][0], seen["unlabelled"]])[indices[:, side]] for side in (0, 1))
    assert int(indices.min()) == 200, "the rows without labels come after those of both sets"
    assert (low <= high).all()
    assert [TUNED.batch_size(rows) for rows in (10, 200, 1000, 100_000)] == [3, 50, 250, 1024]
    with monkeypatch.context() as patch:
        patch.setattr(training, "_choose_scales", lambda *_: [0.1, 0.1])
        seen = options_of(patch, [sample, sample], TUNED, ["MC", "MCD"])
    assert seen["duals"] == [Fixed(1.0), Ascent(50.0)]
    indices = seen["constraints"][0].scope.indices
    parts = [((indices >= a) & (indices < b)).all(1).sum().item() for a, b in ((0, 100), (100, 200), (200, 6200))]
    own = len(training_pairs(sample.configurations, 2000))
    assert parts == [own, own, 3000]
    assert sum(parts) == len(indices)


def test_recipes_by_name() -> None:
    assert recipe_named("paper") is PAPER
    assert recipe_named("tuned") is TUNED
    with pytest.raises(ValueError, match="a recipe is paper or tuned, got 'best'"):
        recipe_named("best")


def test_the_papers_ascent_and_weights_by_hand() -> None:
    """One epoch of one batch: ν is that of the first weights."""
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


def test_training_sets_at_once_are_one_by_one() -> None:
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


@pytest.mark.xfail(strict=True, reason="all sets are weighted by their mean number of pairs")
def test_penalties_of_one_set_are_weighted_by_its_own_pairs() -> None:
    sample = labels("saxpy")
    samples = [Sample(sample.configurations[rows], sample.targets[rows]) for rows in (slice(60), slice(60, 120))]
    counts = [len(training_pairs(one.configurations, None)) for one in samples]
    assert counts[0] != counts[1]
    both = train(samples, Ranges((4,) * 3, (52,) * 3), PAPER, ["MC"], epochs=1, progress=False)
    found = [float(models["MC"].multipliers["monotone"].max()) for models in both]
    assert found == pytest.approx([count / 60 for count in counts])


@pytest.mark.parametrize(
    "model",
    ["M", "MC", pytest.param("MCD", marks=pytest.mark.xfail(strict=True, reason="a step times no pairs is 0"))],
)
def test_a_table_without_dominated_pairs_has_nothing_to_be_held_to(model: str) -> None:
    table = np.array([[i, 30 - i] for i in range(4, 24)])
    made = Predictor.fit(table, np.linspace(0, 1, 20), recipe="paper", model=model, epochs=1)
    assert made.facts["doctor"] == "There are no constraints."


def test_each_set_bends_as_far_as_suits_it_on_held_out_rows(monkeypatch: pytest.MonkeyPatch) -> None:
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


# ---------------------------------------------------------------- the predictor


@cache
def fitted(recipe: str = "tuned", increasing: bool = True, model: str = "MCD", epochs: int = 6) -> Predictor:
    sample = first(labels("saxpy"), 200)
    targets = sample.targets if increasing else 3.0 - 20.0 * sample.targets
    return Predictor.fit(
        sample.configurations, targets, recipe=recipe, increasing=increasing, model=model, epochs=epochs
    )


def mae(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).mean())


@pytest.mark.parametrize("name", ["saxpy", "correlation"])
def test_a_predictor_beats_the_mean_and_a_plane(name: str) -> None:
    sample = labels(name)
    given, test = first(sample, 200), Sample(sample.configurations[200:], sample.targets[200:])
    made = Predictor.fit(*given, variables=KERNELS[name].variables, epochs=15)
    assert made.variables == KERNELS[name].variables
    ours = mae(made.predict(test.configurations), test.targets)
    for peer in (peers.mean, peers.linear):
        assert 2 * ours < mae(peer(given)(test.configurations), test.targets)
    assert made.facts | {"doctor": ""} == {
        "model": "MCD", "recipe": "tuned", "seed": 0, "rows": 200, "epochs": 15, "doctor": "",
    }  # fmt: skip
    assert made.facts["doctor"].startswith("monotone: ")
    assert len(made.history) == 15


@pytest.mark.parametrize("increasing", [True, False], ids=["rising", "falling"])
@pytest.mark.parametrize("recipe", ["tuned", "paper"])
def test_repaired_predictions_have_no_violated_pair(recipe: str, increasing: bool) -> None:
    made = fitted(recipe, increasing, "M", 2)
    if recipe == "tuned":  # trained, its profiles rise anyway
        made = replace(made, network=profiles(made.ranges.low, made.ranges.high))
    sign = 1 if increasing else -1
    for seed in range(2):
        table = np.random.default_rng(seed).integers(2, 55, (60, 3))
        raw, repaired = made.predict(table, repair=False), made.predict(table)
        order = Dominance(table)
        before = order.violations(sign * raw)
        assert before.violated > 0
        assert order.violations(sign * repaired) == (before.pairs, 0, 0.0, 0.0)
        assert made.violations(table) == (before.pairs, 0, 0.0, 0.0)
        assert made.violations(table, repair=False) == before


def test_a_perceptron_is_repaired_with_its_training_rows_by_the_least_squares() -> None:
    made = fitted("paper", True, "M", 2)
    table = draw(3, 50, seed=5)
    both = np.concatenate([table, made.reference])
    np.testing.assert_array_equal(made.predict(table), isotonic(predictions(made.network, both), both)[:50])
    assert sorted(made.reference.tolist()) == sorted(labels("saxpy").configurations[:200].tolist())


def test_profiles_are_repaired_wherever_they_are_asked() -> None:
    made = fitted()
    made = replace(made, network=profiles(made.ranges.low, made.ranges.high))
    table = draw(3, 50, seed=5)
    together, alone = made.predict(table), np.concatenate([made.predict(row[None]) for row in table])
    np.testing.assert_allclose(together, alone, rtol=1e-12)
    np.testing.assert_allclose(together, predictions(made.network.repaired(), table), rtol=1e-12)


def test_targets_of_any_scale_are_learned() -> None:
    sample = labels("saxpy")
    test = sample.configurations[200:]
    plain = fitted()
    assert (plain.offset, plain.span) == (0.0, 1.0)
    falling = fitted(increasing=False)
    wanted = 3.0 - 20.0 * sample.targets[:200]
    assert (falling.offset, falling.span) == pytest.approx((wanted.max(), wanted.min() - wanted.max()))
    assert mae(falling.predict(test), 3.0 - 20.0 * sample.targets[200:]) < 20 * 0.03
    assert mae(plain.predict(test), sample.targets[200:]) < 0.03
    rising = Predictor.fit(sample.configurations[:200], 100 * sample.targets[:200], epochs=6)
    assert rising.span > 0
    assert mae(rising.predict(test), 100 * sample.targets[200:]) < 3
    flat = Predictor.fit(sample.configurations[:20], np.full(20, 7.0), epochs=1)
    assert np.isfinite(flat.predict(test)).all()


def test_a_seed_decides_every_bit() -> None:
    sample = first(labels("saxpy"), 40)
    made = [Predictor.fit(*sample, epochs=2, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(weights(made[0].network), weights(made[1].network))
    assert not torch.equal(weights(made[0].network), weights(made[2].network))


@pytest.mark.parametrize("recipe", ["tuned", "paper"])
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, recipe: str) -> None:
    made = fitted(recipe, False, "M", 2)
    made.save(tmp_path / "predictor")
    held = Predictor.load(tmp_path / "predictor")
    table = draw(3, 40, seed=3)
    for repair in (True, False):
        assert (held.predict(table, repair) == made.predict(table, repair)).all()
    for name in ("variables", "ranges", "offset", "span", "facts"):
        assert getattr(held, name) == getattr(made, name)
    assert held.history.rows == made.history.rows
    assert (held.reference == made.reference).all()
    assert type(held.network) is type(made.network)
    held.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "predictor").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "predictor"
    with pytest.raises(
        CheckpointError, match=f"there is no file {re.escape(str(file))}; `ldf transprecision train` ma"
    ):
        Predictor.load(file)
    fitted().save(file)
    whole = file.read_bytes()
    for broken in (whole[:-50], whole[: len(whole) // 2], b"", b"x,y\n1,2\n"):
        file.write_bytes(broken)
        with pytest.raises(CheckpointError, match=re.escape(f"{file} is damaged")):
            Predictor.load(file)
    file.write_bytes(whole)
    tensors, facts = checkpoint.load(file)
    checkpoint.save(file, tensors, facts | {"format": "ldf-run-1"})
    with pytest.raises(
        CheckpointError, match=r"is no predictor of `ldf transprecision train` \(ldf-transprecision-1\)"
    ):
        Predictor.load(file)
    checkpoint.save(file, {name: value for name, value in tensors.items() if name != "network.slope"}, facts)
    with pytest.raises(CheckpointError, match=r"does not hold the network it describes: .*slope"):
        Predictor.load(file)
    checkpoint.save(file, tensors, facts | {"low": [4, 4], "high": [52, 52]})
    with pytest.raises(CheckpointError, match=r"does not hold the network it describes: .*size mismatch"):
        Predictor.load(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"configurations": np.ones((200, 3))}, "must be a table of whole numbers .* got float64"),
        ({"configurations": np.ones(200, dtype=int)}, "must be a table of whole numbers"),
        ({"configurations": np.ones((9, 3), dtype=int), "targets": np.ones(9)}, "at least ten configurations .* got 9"),
        ({"targets": np.ones(199)}, r"a target for each are needed, got 200 and \(199,\)"),
        ({"targets": np.ones((200, 1))}, r"got 200 and \(200, 1\)"),
        ({"targets": np.where(np.arange(200) == 17, np.nan, 0.5)}, "targets must be finite numbers; row 17 is not"),
        ({"targets": np.where(np.arange(200) == 3, np.inf, 0.5)}, "targets must be finite numbers; row 3 is not"),
        ({"variables": ["a", "b"]}, "3 columns, but 2 names of variables"),
        ({"model": "MD"}, "model must be one of M, MC, MCD, got 'MD'"),
        ({"recipe": "best"}, "a recipe is paper or tuned, got 'best'"),
    ],
)
def test_bad_tables_are_refused(changes: dict, message: str) -> None:
    sample = first(labels("saxpy"), 200)
    given = {"configurations": sample.configurations, "targets": sample.targets, "epochs": 1} | changes
    with pytest.raises(ValueError, match=message):
        Predictor.fit(**given)


@pytest.mark.parametrize(
    "table", [np.ones((4, 2), dtype=int), np.ones((4, 3)), np.ones(3, dtype=int), np.ones((4, 4), dtype=int)]
)
def test_bad_configurations_are_refused(table: np.ndarray) -> None:
    for ask in (fitted().predict, fitted().outside):
        with pytest.raises(ValueError, match=r"configurations must be whole numbers for x1, x2, x3, got .* of shape"):
            ask(table)


def test_outside_is_beyond_what_was_trained_on_where_predictions_are_flat() -> None:
    sample = first(labels("saxpy"), 200)
    made = Predictor.fit(sample.configurations // 2 + 10, sample.targets, epochs=1)
    low, high = (sample.configurations // 2 + 10).min(0), (sample.configurations // 2 + 10).max(0)
    assert made.ranges == Ranges(tuple(low.tolist()), tuple(high.tolist()))
    table = np.array([low, high, low - np.eye(3, dtype=int)[1], high + np.eye(3, dtype=int)[2], (low + high) // 2])
    assert made.outside(table).tolist() == [False, False, True, True, False]
    raw = made.predict(table, repair=False)
    assert (raw[2], raw[3]) == (raw[0], raw[1])
    wide = Predictor.fit(*sample, ranges=Ranges((1,) * 3, (60,) * 3), epochs=1)
    assert wide.ranges == Ranges((1,) * 3, (60,) * 3)
    assert not wide.outside([[1, 60, 30]]).any()


def test_at_most_so_many_training_rows_are_kept_for_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "REFERENCE", 30)
    sample = first(labels("saxpy"), 60)
    made = Predictor.fit(*sample, recipe="paper", model="M", epochs=1)
    assert made.reference.shape == (30, 3)
    assert {*map(tuple, made.reference.tolist())} < {*map(tuple, sample.configurations.tolist())}


def test_killed_and_resumed_is_never_killed_bit_for_bit(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    assert kill_after_checkpoint(file, 0.02, "killed_predictor.py", str(tmp_path))
    facts = checkpoint.load(file)[1]
    assert (facts["epoch"], facts["done"]) < (killed_predictor.EPOCHS, 0), "killed before the end"
    resumed, whole = killed_predictor.run(tmp_path), killed_predictor.run(None)
    assert torch.equal(weights(resumed.network), weights(whole.network))
    assert resumed.facts == whole.facts
    table = draw(3, 40, seed=3)
    assert (resumed.predict(table) == whole.predict(table)).all()


# ---------------------------------------------------------------- peers


def test_the_mean_is_constant_and_least_squares_are_exact_on_a_plane() -> None:
    table = labels("saxpy").configurations[:50]
    plane = Sample(table, 0.3 + table @ np.array([0.01, -0.02, 0.005]))
    elsewhere = draw(3, 20, seed=8)
    np.testing.assert_allclose(peers.linear(plane)(elsewhere), 0.3 + elsewhere @ np.array([0.01, -0.02, 0.005]))
    np.testing.assert_allclose(peers.mean(plane)(elsewhere), np.full(20, plane.targets.mean()))


@pytest.mark.parametrize("peer", [peers.lightgbm, peers.scikit_learn])
def test_boosting_is_monotone_and_better_than_the_mean(peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ROUNDS", 150)
    sample = labels("correlation")
    given, test = first(sample, 150), sample.configurations[150:]
    # Labels against the order too, so that it takes more than the data to be monotone.
    noisy = given.targets + np.random.default_rng(0).normal(0.0, 0.1, 150)
    given = Sample(given.configurations, noisy)
    predict = peer(given, seed=1)
    steps = np.concatenate([test, np.minimum(test + np.random.default_rng(1).integers(0, 3, test.shape), 52)])
    found = Dominance(steps).violations(predict(steps))
    assert found.pairs > 300
    assert found.violated == 0
    better = mae(predict(test), sample.targets[150:])
    assert better < 0.9 * mae(peers.mean(given)(test), sample.targets[150:])
    assert (peer(given, seed=1)(test) == predict(test)).all()


def test_boosting_chooses_on_a_fifth_and_is_fitted_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightgbm
    from sklearn.ensemble import HistGradientBoostingRegressor

    monkeypatch.setattr(peers, "ROUNDS", 50)
    given, seen = first(labels("saxpy"), 50), []
    fit, data = HistGradientBoostingRegressor.fit, lightgbm.Dataset

    def watch(model, inputs, targets):
        seen.append(len(inputs))
        return fit(model, inputs, targets)

    def gather(inputs, *rest, **options):
        seen.append(len(inputs))
        return data(inputs, *rest, **options)

    monkeypatch.setattr(HistGradientBoostingRegressor, "fit", watch)
    monkeypatch.setattr(lightgbm, "Dataset", gather)
    peers.scikit_learn(given)
    assert seen == [40, 40, 50]
    seen.clear()
    peers.lightgbm(given)
    assert seen == [40, 10, 40, 10, 50]

"""The predictor and its baselines."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import killed_predictor
import numpy as np
import pytest
import torch
from helpers import kill_after_checkpoint
from precisions import first, labels, profiles, weights

from ldf import CheckpointError
from ldf.io import checkpoint
from ldf.transprecision import peers, predictor
from ldf.transprecision.dominance import Dominance
from ldf.transprecision.kernels import KERNELS
from ldf.transprecision.predictor import Predictor, predictions
from ldf.transprecision.repair import isotonic
from ldf.transprecision.tables import draw
from ldf.transprecision.training import Ranges, Sample


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
def test_a_predictor_beats_the_mean_and_least_squares(name: str) -> None:
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
    assert [one["constraint"] for one in made.facts["doctor"]["advice"]] == ["monotone"]
    assert len(made.history) == 15


@pytest.mark.parametrize("increasing", [True, False], ids=["rising", "falling"])
@pytest.mark.parametrize("recipe", ["tuned", "paper"])
def test_repaired_predictions_have_no_violated_pair(recipe: str, increasing: bool) -> None:
    made = fitted(recipe, increasing, "M", 2)
    if recipe == "tuned":  # trained profiles already rise
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


def test_a_perceptron_is_repaired_with_its_training_rows_by_least_squares() -> None:
    made = fitted("paper", True, "M", 2)
    table = draw(3, 50, seed=5)
    both = np.concatenate([table, made.reference])
    np.testing.assert_array_equal(made.predict(table), isotonic(predictions(made.network, both), both)[:50])
    assert sorted(made.reference.tolist()) == sorted(labels("saxpy").configurations[:200].tolist())


def test_profiles_are_repaired_everywhere() -> None:
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


def test_a_seed_determines_every_bit() -> None:
    sample = first(labels("saxpy"), 40)
    made = [Predictor.fit(*sample, epochs=2, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(weights(made[0].network), weights(made[1].network))
    assert not torch.equal(weights(made[0].network), weights(made[2].network))


@pytest.mark.parametrize("recipe", ["tuned", "paper"])
def test_saved_and_loaded_predictors_are_equal(tmp_path: Path, recipe: str) -> None:
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
    with pytest.raises(CheckpointError, match=f"there is no file {re.escape(str(file))}; create it with `ldf tr"):
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
        CheckpointError, match=r"is not a predictor written by `ldf transprecision train` \(ldf-transprecision-1\)"
    ):
        Predictor.load(file)
    checkpoint.save(file, {name: value for name, value in tensors.items() if name != "network.slope"}, facts)
    with pytest.raises(CheckpointError, match=r"the tensors do not match the metadata: .*slope"):
        Predictor.load(file)
    checkpoint.save(file, tensors, facts | {"low": [4, 4], "high": [52, 52]})
    with pytest.raises(CheckpointError, match=r"the tensors do not match the metadata: .*size mismatch"):
        Predictor.load(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"configurations": np.ones((200, 3))}, "must be a 2-D array of integers .* got float64"),
        ({"configurations": np.ones(200, dtype=int)}, "must be a 2-D array of integers"),
        ({"configurations": np.ones((9, 3), dtype=int), "targets": np.ones(9)}, "at least ten configurations .* got 9"),
        ({"targets": np.ones(199)}, r"one target for each, got 200 and shape \(199,\)"),
        ({"targets": np.ones((200, 1))}, r"got 200 and shape \(200, 1\)"),
        ({"targets": np.where(np.arange(200) == 17, np.nan, 0.5)}, "targets must be finite numbers; row 17 is not"),
        ({"targets": np.where(np.arange(200) == 3, np.inf, 0.5)}, "targets must be finite numbers; row 3 is not"),
        ({"variables": ["a", "b"]}, "variables must be 3 distinct names, one per column, got"),
        ({"variables": ["a", "b", "a"]}, "variables must be 3 distinct names, one per column, got"),
        ({"model": "MD"}, "model must be one of M, MC, MCD, got 'MD'"),
        ({"recipe": "best"}, "recipe must be paper or tuned, got 'best'"),
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
        with pytest.raises(ValueError, match=r"must be integers with columns x1, x2, x3, got .* of shape"):
            ask(table)


def test_predictions_are_flat_outside_the_training_range() -> None:
    sample = first(labels("saxpy"), 200)
    made = Predictor.fit(sample.configurations // 2 + 10, sample.targets, epochs=1)
    low, high = (sample.configurations // 2 + 10).min(0), (sample.configurations // 2 + 10).max(0)
    assert made.ranges == Ranges(tuple(low.tolist()), tuple(high.tolist()))
    table = np.array([low, high, low - np.eye(3, dtype=int)[1], high + np.eye(3, dtype=int)[2], (low + high) // 2])
    assert made.outside(table).tolist() == [False, False, True, True, False]
    raw = made.predict(table, repair=False)
    assert (raw[2], raw[3]) == (raw[0], raw[1])


def test_the_number_of_training_rows_stored_for_repair_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "REFERENCE", 30)
    sample = first(labels("saxpy"), 60)
    made = Predictor.fit(*sample, recipe="paper", model="M", epochs=1)
    assert made.reference.shape == (30, 3)
    assert {*map(tuple, made.reference.tolist())} < {*map(tuple, sample.configurations.tolist())}


def test_a_killed_and_resumed_run_gives_the_same_bits(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.safetensors"
    assert kill_after_checkpoint(file, 0.02, "killed_predictor.py", str(tmp_path))
    place = checkpoint.load(file)[1]["place"]
    assert (place["epoch"], place["done"]) < (killed_predictor.EPOCHS, 0), "killed before the end"
    resumed, whole = killed_predictor.run(tmp_path), killed_predictor.run(None)
    assert torch.equal(weights(resumed.network), weights(whole.network))
    assert resumed.facts == whole.facts
    table = draw(3, 40, seed=3)
    assert (resumed.predict(table) == whole.predict(table)).all()


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
    # Some labels contradict the order, so the data alone do not make the model monotone.
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

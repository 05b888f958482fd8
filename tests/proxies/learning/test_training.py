"""Training, keeping and scoring networks: M, MC and MCD by both recipes."""

import copy
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import kill_after_checkpoint
from killed_training import EPOCHS, run
from labelled import formula, labelled
from torch import Tensor

from ldf import CheckpointError
from ldf.io import checkpoint
from ldf.proxies.data import dataset
from ldf.proxies.data.dataset import Dataset, divide
from ldf.proxies.data.labelling import DatasetError
from ldf.proxies.learning import training
from ldf.proxies.learning.evaluation import errors, evaluate, price_errors
from ldf.proxies.learning.network import Rows
from ldf.proxies.learning.training import FILE, MODELS, PRICES, RECIPES, Trained, baselines, recipe_named, train
from ldf.proxies.source import NetworkError
from ldf.reproduce.tables import summary

TRAINED = 43
"""12 of 60 rows are test rows, and a tenth of the others are validation rows."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {mode: tmp_path_factory.mktemp(mode) for mode in ("independent", "shared")}
    for mode, folder in found.items():
        labelled(folder, mode)
    return found


@pytest.fixture(scope="module")
def data(folders: dict[str, Path]) -> dict[str, Dataset]:
    return {mode: dataset.load(folder) for mode, folder in folders.items()}


def trained(data: Dataset, model: str = "MCD", recipe: str = "tuned", **options) -> Trained:
    return train(data, model, RECIPES[recipe], **{"epochs": 2, "progress": False, **options})


@pytest.fixture(scope="module")
def runs(data: dict[str, Dataset]) -> dict[tuple[str, str], Trained]:
    return {(recipe, model): trained(data["independent"], model, recipe) for recipe in RECIPES for model in MODELS}


def weights(run: Trained) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.proxy.parameters()])


def same(first: Trained, second: Trained) -> None:
    for part in ("proxy", "range", "prices"):
        ours, theirs = (getattr(x, part) for x in (first, second))
        ours, theirs = (x.state_dict() if isinstance(x, torch.nn.Module) else x for x in (ours, theirs))
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
    for ours, theirs in ((first.memory, second.memory), (first.price_memory, second.price_memory)):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert torch.equal(ours.demand, theirs.demand)
            assert torch.equal(ours.earlier_state, theirs.earlier_state)
    assert first.facts == second.facts
    for a, b in zip(first.history.rows, second.history.rows, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


# ---------------------------------------------------------------- the three models


@pytest.mark.parametrize("recipe", RECIPES)
def test_multipliers_are_none_one_or_rising(runs: dict[tuple[str, str], Trained], recipe: str) -> None:
    for model in MODELS:
        done = runs[recipe, model]
        laws = done.history.constraints
        assert set(laws) == set(done.problem.laws)
        last = {law: done.history[f"lambda/{law}"][-1] for law in laws}
        penalty = {law: done.history[f"penalty/{law}"][-1] for law in laws}
        if model == "MCD":
            # No network meets an equality exactly; a limit may be kept to within its tolerance, and λ then stays 0.
            equalities = [law for law in laws if law.startswith(("balance", "flow"))]
            assert len(equalities) == 4
            assert all(last[law] > 0 and penalty[law] > 0 for law in equalities)
            assert all(value >= 0 for value in last.values())
        else:
            value = {"M": 0.0, "MC": 1.0}[model]
            assert set(last.values()) == {value}
            for law in laws:
                assert penalty[law] == pytest.approx(value * done.history[f"nu_mean/{law}"][-1], rel=1e-5)


def test_the_papers_ascent_adds_a_step_times_the_sum_of_violations(runs: dict[tuple[str, str], Trained]) -> None:
    history = runs["paper", "MCD"].history
    for law in history.constraints:
        total = 0.0
        for nu, multiplier in zip(history[f"nu_mean/{law}"], history[f"lambda/{law}"], strict=True):
            total += 1e-4 * TRAINED * nu
            assert multiplier == pytest.approx(total, rel=1e-5), law


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_models_differ_and_say_what_they_are(runs: dict[tuple[str, str], Trained], recipe: str) -> None:
    found = [runs[recipe, model] for model in MODELS]
    assert [run.facts["model"] for run in found] == list(MODELS)
    assert {run.facts["recipe"] for run in found} == {recipe}
    assert [run.facts["epochs"] for run in found] == [2] * 3 == [len(run.history) for run in found]
    assert not torch.equal(weights(found[0]), weights(found[1]))
    assert not torch.equal(weights(found[1]), weights(found[2]))


def test_the_papers_recipe_keeps_the_last_iterate(runs: dict[tuple[str, str], Trained]) -> None:
    assert {runs["paper", model].facts["best_epoch"] for model in MODELS} == {2}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_seed_decides_every_bit(data: dict[str, Dataset], runs: dict[tuple[str, str], Trained], recipe: str) -> None:
    same(trained(data["independent"], "MCD", recipe), runs[recipe, "MCD"])
    other = trained(data["independent"], "MCD", recipe, seed=1)
    assert not torch.equal(weights(other), weights(runs[recipe, "MCD"]))


def test_training_lowers_the_loss(data: dict[str, Dataset]) -> None:
    losses = trained(data["shared"], "M", "paper", epochs=60).history["val_loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_an_unknown_model_or_recipe_is_refused(data: dict[str, Dataset], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model must be one of M, MC, MCD, got 'MD'"):
        trained(data["independent"], "MD", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="recipe must be one of paper, tuned, got 'best'"):
        recipe_named("best")


# ---------------------------------------------------------------- which rows


@pytest.mark.parametrize("mode", ["independent", "shared"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_test_row_is_looked_at(
    data: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch, recipe: str, mode: str
) -> None:
    rows, honest = data[mode], trained(data[mode], recipe=recipe)
    hidden = rows.take(torch.arange(len(rows)))
    for name in ("demand", "state", "objective", "prices", "earlier_demand", "earlier_state", "earlier_prices"):
        if getattr(hidden, name) is not None:
            getattr(hidden, name)[-12:] = torch.nan
    seen = []
    fit = training.fit

    def watch(proxy, columns, **options):
        seen.append(columns["demand"].tolist() + options["validation"]["demand"].tolist())
        return fit(proxy, columns, **options)

    monkeypatch.setattr(training, "fit", watch)
    same(trained(hidden, recipe=recipe), honest)
    assert len(seen) == 2, "a network of states and one of prices"
    for demands in seen:
        assert sorted(demands) == sorted(rows.demand[:-12].float().tolist()), "every other row, once"


def test_no_earlier_state_is_on_both_sides(data: dict[str, Dataset]) -> None:
    training_rows, test = data["shared"].split()
    assert (len(training_rows), len(test)) == (48, 12)
    ours = {tuple(row) for row in [*training_rows.earlier_state.tolist(), *training_rows.state.tolist()]}
    theirs = {tuple(row) for row in [*test.earlier_state.tolist(), *test.state.tolist()]}
    assert len(ours) == 96
    assert len(theirs) == 24
    assert not ours & theirs


def test_rows_are_divided_by_seed_and_never_lost(data: dict[str, Dataset]) -> None:
    part = data["independent"].split()[0]
    first, again, other = (divide(part, seed) for seed in (0, 0, 1))
    assert (len(first[0]), len(first[1])) == (TRAINED, 5)
    assert torch.equal(first[1].demand, again[1].demand)
    assert not torch.equal(first[1].demand, other[1].demand)
    assert sorted([*first[0].demand.tolist(), *first[1].demand.tolist()]) == sorted(part.demand.tolist())


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_too_few_rows_are_refused(data: dict[str, Dataset], rows: int, recipe: str) -> None:
    few = data["independent"].take(torch.arange(rows))
    with pytest.raises(ValueError, match=rf"\b{rows if rows == 1 else rows - 1} (training )?rows are too few"):
        trained(few, recipe=recipe)


def test_a_handful_of_rows_is_enough(data: dict[str, Dataset]) -> None:
    done = trained(data["independent"].take(torch.arange(4)))
    assert done.predict(data["independent"].demand).isfinite().all()


# ---------------------------------------------------------------- folders


@pytest.mark.parametrize("mode", ["independent", "shared"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_saved_is_what_is_loaded(data: dict[str, Dataset], tmp_path: Path, recipe: str, mode: str) -> None:
    done = trained(data[mode], recipe=recipe, folder=tmp_path)
    held = Trained.load(tmp_path)
    same(done, held)
    assert held.problem.fingerprint == done.problem.fingerprint
    demand = data[mode].demand * 1.003
    assert torch.equal(done.predict(demand), held.predict(demand))
    assert torch.equal(done.predict_prices(demand), held.predict_prices(demand))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["case14_ieee.m", "history.csv", FILE, "run.json"]


def test_killed_and_resumed_is_never_killed_bit_for_bit(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    file = folder / "checkpoint" / "checkpoint.safetensors"
    written = []
    for delay in (0.0, 0.08):
        if kill_after_checkpoint(file, delay, "killed_training.py", str(folders["shared"]), str(folder)):
            place = checkpoint.load(file)[1]["place"]
            written.append((place["epoch"], place["done"]))
        if any(done for _, done in written):
            break
    assert written
    assert written[-1] < (EPOCHS, 0), "it must have been killed before the end"
    assert any(done for _, done in written), "and at least once within an epoch"
    (file.parent / ".checkpoint.safetensors.half").write_bytes(b"what a kill leaves while the file is written")
    same(run(folders["shared"], folder), run(folders["shared"], None))
    assert not file.parent.exists(), "nothing of it is left in the end"


def test_killed_while_prices_are_learnt_and_resumed_is_never_killed(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    file = folder / "checkpoint-prices" / "checkpoint.safetensors"
    assert kill_after_checkpoint(file, 0.0, "killed_training.py", str(folders["shared"]), str(folder))
    assert not (folder / FILE).exists()
    assert 0 < checkpoint.load(file)[1]["place"]["epoch"] < PRICES.epochs, "it must have been killed before the end"
    assert checkpoint.load(folder / "checkpoint" / file.name)[1]["place"]["epoch"] == EPOCHS, "states were learnt"
    same(run(folders["shared"], folder), run(folders["shared"], None))
    assert not list(folder.glob("checkpoint*")), "nothing of it is left in the end"


def test_a_finished_run_is_read_not_trained_again(
    data: dict[str, Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained(data["independent"], folder=tmp_path, facts={"data": "here"})
    monkeypatch.setattr(training, "fit", lambda *_, **__: pytest.fail("it was trained again"))
    for name in ("checkpoint", "checkpoint-prices"):  # as a kill between the last two steps leaves them
        (tmp_path / name).mkdir()
    same(first, trained(data["independent"], folder=tmp_path, facts={"data": "moved"}))
    assert not list(tmp_path.glob("checkpoint*"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "MC"}, "its model is 'MCD', not 'MC'"),
        ({"recipe": "paper"}, "its recipe is 'tuned', not 'paper'"),
        ({"seed": 1}, "its seed is 0, not 1"),
        ({"epochs": 3}, "its epochs is 2, not 3"),
        ({"rows": 50}, "its rows is 60, not 50"),
        ({"mode": "shared"}, "its sampling is .*'independent'.* not .*'shared'.*"),
        ({"data_seed": 4}, "its data_seed is 0, not 4"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_a_folder_with_another_run_is_refused(
    data: dict[str, Dataset], tmp_path: Path, change: dict, reason: str
) -> None:
    trained(data["independent"], folder=tmp_path)
    before = (tmp_path / FILE).read_bytes()
    options = {"mode": "independent", "rows": 60, "data_seed": 0, **change}
    rows = data[options.pop("mode")].take(torch.arange(options.pop("rows")))
    rows = replace(rows, seed=options.pop("data_seed"))
    with pytest.raises(CheckpointError, match=f"has another run: {reason}; use another folder"):
        trained(rows, folder=tmp_path, **options)
    assert (tmp_path / FILE).read_bytes() == before


def test_an_unfinished_run_of_other_settings_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(*_: object) -> None:
        raise StopError

    rows = dataset.load(folders["independent"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trained, "save", stop)  # the checkpoint is there, the run is not
        with pytest.raises(StopError):
            trained(rows, folder=tmp_path)
    with pytest.raises(CheckpointError, match="epochs: 2 there, 3 here"):
        trained(rows, folder=tmp_path, epochs=3)
    same(trained(rows, folder=tmp_path), trained(rows))


def test_damaged_and_foreign_models_are_refused(data: dict[str, Dataset], tmp_path: Path) -> None:
    trained(data["independent"], folder=tmp_path)
    file = tmp_path / FILE
    whole = file.read_bytes()
    for broken in (whole[:-100], whole[: len(whole) // 2], b""):
        file.write_bytes(broken)
        with pytest.raises(CheckpointError, match=re.escape(f"{file} is damaged")):
            Trained.load(tmp_path)
    checkpoint.save(file, {}, {"n": 1})
    with pytest.raises(CheckpointError, match="is not a run of `ldf train`"):
        Trained.load(tmp_path)
    file.write_bytes(whole)
    tensors, facts = checkpoint.load(file)
    for lost in ("proxy.offset", "prices.offset"):
        checkpoint.save(file, {name: value for name, value in tensors.items() if name != lost}, facts)
        with pytest.raises(CheckpointError, match=r"does not hold the network it describes.*offset"):
            Trained.load(tmp_path)
    file.unlink()
    with pytest.raises(CheckpointError, match="is not a finished run; `ldf train` creates one"):
        Trained.load(tmp_path)


def test_a_run_whose_network_was_edited_is_refused(data: dict[str, Dataset], tmp_path: Path) -> None:
    trained(data["independent"], folder=tmp_path)
    file = tmp_path / "case14_ieee.m"
    text = file.read_text()
    assert "94.2" in text, "the load at bus 3"
    file.write_text(text.replace("94.2", "94.3"))
    with pytest.raises(CheckpointError, match="trained on another network than case14_ieee as it is now"):
        Trained.load(tmp_path)
    file.unlink()
    with pytest.raises(NetworkError, match=r"as one \.m file, but contains 0"):
        Trained.load(tmp_path)


# ---------------------------------------------------------------- prices


@pytest.mark.parametrize("mode", ["independent", "shared"])
def test_a_problem_without_prices_trains_a_run_without_prices(
    data: dict[str, Dataset], tmp_path: Path, mode: str
) -> None:
    rows, problem = data[mode], copy.copy(data[mode].problem)
    problem.priced = {}
    done = trained(replace(rows, problem=problem, prices=None, earlier_prices=None), folder=tmp_path)
    tensors, facts = checkpoint.load(tmp_path / FILE)
    assert not [name for name in (*tensors, *facts) if "prices" in name]
    held, whole = Trained.load(tmp_path, problem), trained(rows)
    for found in (done, held):
        assert found.prices is found.price_memory is None
        with pytest.raises(ValueError, match="power case14_ieee has no prices to predict"):
            found.predict_prices(rows.demand)
    assert torch.equal(held.predict(rows.demand), whole.predict(rows.demand)), "states do not depend on prices"


def test_with_a_hot_start_prices_begin_at_the_nearest_remembered(data: dict[str, Dataset]) -> None:
    rows = data["shared"]
    done, part = trained(rows), rows.split()[0]
    demand = torch.from_numpy(rows.problem.nominal) * torch.tensor([[0.83], [1.0], [1.17]])
    nearest = torch.cdist(demand, part.earlier_demand).argmin(1)
    own = part.earlier_demand[nearest], part.earlier_prices[nearest]
    assert torch.equal(done.predict_prices(demand), done.predict_prices(demand, own))
    assert torch.equal(done.predict_prices(demand), done.prices.predict(Rows(demand, *own)))
    other = own[0], own[1] + 1
    assert not torch.equal(done.predict_prices(demand), done.predict_prices(demand, other))


def test_prices_that_never_change_are_predicted_as_they_are(data: dict[str, Dataset]) -> None:
    rows = replace(data["independent"], prices=torch.full_like(data["independent"].prices, 3.0))
    found = trained(rows).predict_prices(rows.demand)
    assert torch.allclose(found, rows.prices, rtol=0, atol=1e-7)


def test_rare_prices_are_cut_to_the_others_and_few_rows_keep_all_of_theirs(data: dict[str, Dataset]) -> None:
    few = data["independent"].priced()
    assert torch.equal(few.cut().state, few.state)
    many = few.take(torch.arange(400) % len(few))
    many.state[7], many.state[9] = 1e7, -1e7
    found = many.cut()
    ordered = many.state.sort(0).values
    for bound, cut in zip(found.bounds, (ordered[1], ordered[-2]), strict=True):
        assert torch.equal(torch.from_numpy(bound), cut)
    kept = [row for row in range(400) if row not in (7, 9)]
    assert torch.equal(found.state[kept], many.state[kept])
    assert found.state.abs().max() < 1e6


# ---------------------------------------------------------------- what was trained on


def test_a_demand_like_the_training_rows_is_not_outside(runs: dict[tuple[str, str], Trained], data) -> None:
    rows = data["independent"].split()[0].demand
    between = (rows[:10] + rows[10:20]) / 2
    assert runs["tuned", "M"].outside(torch.cat([rows, between])) == [None] * (len(rows) + 10)


def test_a_demand_beyond_the_range_is_named_with_its_bus_in_mw(runs: dict[tuple[str, str], Trained], data) -> None:
    rows = data["independent"].split()[0].demand
    demand = rows.mean(0).repeat(3, 1)
    demand[1, 2] = 1.5  # bus 3, per unit on 100 MVA
    demand[2, 14 + 3] = 0.5  # bus 4, reactive
    inside, active, reactive = runs["tuned", "M"].outside(demand)
    assert inside is None
    low, high = 100 * float(rows[:, 2].min()), 100 * float(rows[:, 2].max())
    assert active == f"active demand at bus 3 is 150 MW, trained between {low:.4g} and {high:.4g}"
    assert reactive.startswith("reactive demand at bus 4 is 50 MVAr, trained between")


def test_a_demand_off_the_line_of_shared_factors_is_told(data: dict[str, Dataset]) -> None:
    done = trained(data["shared"], "M", "paper")
    nominal = torch.from_numpy(data["shared"].problem.nominal)
    turned = nominal.clone()
    turned[2] *= 1.1
    turned[3] *= 0.9
    assert done.outside(torch.stack([nominal, turned]))[0] is None
    reason = done.outside(turned[None])[0]
    away = (turned - nominal).numpy()
    line = (nominal / nominal.norm()).numpy()
    share = 100 * float(((away - line * (away @ line)) ** 2).sum() ** 0.5) / float(turned.norm())
    found = re.fullmatch(r"load proportions differ from those of all training rows, by (.*) %", reason)
    assert float(found[1]) == pytest.approx(share, rel=0.05)


def test_with_a_hot_start_the_nearest_remembered_state_serves(data: dict[str, Dataset]) -> None:
    rows = data["shared"]
    done = trained(rows, "M", "paper")
    demand = torch.from_numpy(rows.problem.nominal) * torch.tensor([[0.5], [0.83], [1.0], [1.17], [2.0]])
    ready = done.rows(demand)
    part = rows.split()[0]
    for wanted, before, state in zip(demand, ready.earlier_demand, ready.earlier_state, strict=True):
        nearest = int((part.earlier_demand - wanted).square().sum(1).argmin())
        assert torch.equal(before, part.earlier_demand[nearest])
        assert torch.equal(state, part.earlier_state[nearest])
    assert torch.equal(done.predict(demand), done.proxy.predict(ready))
    given = rows.earlier_demand[:5], rows.earlier_state[:5]
    assert torch.equal(done.rows(rows.demand[:5], given).earlier_state, rows.earlier_state[:5])


# ---------------------------------------------------------------- scores


def test_errors_are_shares_of_the_l1_norm_in_percent(data: dict[str, Dataset]) -> None:
    problem, true = data["independent"].problem, data["independent"].state
    predicted = true + 0.01 * torch.randn(true.shape, generator=torch.Generator().manual_seed(0), dtype=true.dtype)
    found = errors(problem, predicted, true)
    for name, part in {"p": slice(0, 5), "v": slice(10, 24), "theta": slice(24, 38)}.items():
        ours, theirs = predicted[:, part].numpy(), true[:, part].numpy()
        expected = 100 * sum(abs(ours - theirs).ravel().tolist()) / sum(abs(theirs).ravel().tolist())
        assert found[name] == pytest.approx(expected, rel=1e-9), name
    assert set(found) == {"p", "v", "theta", "pf"}
    flows, shown = problem.reported(true)["pf"], problem.reported(predicted)["pf"]
    assert flows.shape == (60, 40), "both ends of twenty branches"
    losses = true[:, :5].sum(1) - data["independent"].demand[:, :14].sum(1)
    assert torch.allclose(flows.sum(1), losses, rtol=0, atol=1e-6), "what goes in and does not come out is lost"
    assert found["pf"] == pytest.approx(100 * float((shown - flows).abs().sum() / flows.abs().sum()), rel=1e-9)


def test_errors_of_prices_are_shares_of_the_l1_norm_by_part(data: dict[str, Dataset]) -> None:
    problem, true = data["independent"].problem, data["independent"].prices
    predicted = true.clone()
    predicted[:, 3] += 0.5  # $/MWh at one bus
    predicted[7, 14:] -= 0.25  # $/MVArh in one row
    assert price_errors(problem, predicted, true) == {
        "prices": pytest.approx(100 * 0.5 * 60 / float(true[:, :14].abs().sum()), rel=1e-9),
        "reactive_prices": pytest.approx(100 * 0.25 * 14 / float(true[:, 14:].abs().sum()), rel=1e-9),
    }
    scores = evaluate(data["independent"].state, data["independent"], predicted)
    assert scores.prices == price_errors(problem, predicted, true)


@pytest.mark.parametrize("mode", ["independent", "shared"])
def test_the_labels_themselves_are_perfect(data: dict[str, Dataset], mode: str) -> None:
    scores = evaluate(data[mode].state, data[mode], data[mode].prices)
    assert set(scores.errors.values()) == {0.0} == set(scores.prices.values())
    assert set(scores.violations) == set(scores.worst) == set(data[mode].problem.laws)
    assert max(scores.worst.values()) < 1e-6
    assert scores.gap < 1e-9


def test_scores_find_what_is_wrong(data: dict[str, Dataset]) -> None:
    rows = data["independent"]
    state = rows.state.clone()
    state[3, 0] += 0.5  # p.u. too much at the first generator, in one row of sixty, at one bus of fourteen
    scores, perfect = evaluate(state, rows), evaluate(rows.state, rows)
    assert scores.worst["balance_p"] == pytest.approx(0.5, abs=1e-6)
    assert scores.violations["balance_p"] == pytest.approx(0.5 / 14 / 60, abs=1e-7)
    assert scores.violations["balance_q"] == perfect.violations["balance_q"]
    c2, c1, _ = rows.problem.case.cost[0]
    dearer = c2 * (state[3, 0] ** 2 - rows.state[3, 0] ** 2) + c1 * 0.5
    assert scores.gap == pytest.approx(100 * float(dearer / rows.objective.sum()), rel=1e-6)


def test_baselines_are_a_constant_a_line_and_the_earlier_state(data: dict[str, Dataset]) -> None:
    rows = data["shared"]
    part, test = rows.split()
    found = {name: predict(test) for name, predict in baselines(rows).items()}
    assert list(found) == ["mean", "linear", "previous"]
    assert torch.allclose(found["mean"], part.state.mean(0).expand(12, -1), rtol=0, atol=1e-12)
    assert torch.equal(found["previous"], test.earlier_state)
    score = {name: evaluate(states, test).errors["p"] for name, states in found.items()}
    assert max(score["linear"], score["previous"]) < 0.2 * score["mean"]
    assert list(baselines(data["independent"])) == ["mean", "linear"]


def test_prices_have_the_same_baselines(data: dict[str, Dataset]) -> None:
    part, test = (rows.priced() for rows in data["shared"].split())
    found = {name: predict(test) for name, predict in baselines(data["shared"].priced()).items()}
    assert list(found) == ["mean", "linear", "previous"]
    assert torch.allclose(found["mean"], part.prices.mean(0).expand(12, -1), rtol=0, atol=1e-12)
    assert torch.equal(found["previous"], test.earlier_prices)
    score = {name: price_errors(test.problem, prices, test.prices) for name, prices in found.items()}
    for name in test.problem.priced:
        assert max(score["linear"][name], score["previous"][name]) < 0.2 * score["mean"][name]
    assert list(baselines(data["independent"].priced())) == ["mean", "linear"]


def test_the_linear_baseline_is_linear() -> None:
    generator = torch.Generator().manual_seed(0)
    slope = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    demand = torch.rand(100, 5, generator=generator, dtype=torch.float64)
    straight = formula(demand, lambda d: d @ slope)
    assert torch.allclose(baselines(straight)["linear"](straight), straight.state, rtol=0, atol=1e-6)
    bent = formula(demand, lambda d: (d[:, :1] - 0.5).abs() @ slope[:1])
    predict = baselines(bent)["linear"]
    middle = formula((demand[:50] + demand[50:]) / 2, lambda d: d @ slope)
    halfway = (predict(bent)[:50] + predict(bent)[50:]) / 2
    assert torch.allclose(predict(middle), halfway, rtol=0, atol=1e-9)


def test_seeds_are_summed_up_by_mean_and_spread() -> None:
    assert summary([1.0, 2.0, 6.0]) == {"mean": 3.0, "std": pytest.approx(7**0.5), "seeds": 3}
    assert summary([2.0]) == {"mean": 2.0, "std": 0.0, "seeds": 1}
    assert summary([]) == {"mean": pytest.approx(math.nan, nan_ok=True), "std": 0.0, "seeds": 0}


def test_a_data_set_that_is_too_small_cannot_be_split(data: dict[str, Dataset]) -> None:
    with pytest.raises(DatasetError, match="1 rows are too few to train and to test"):
        data["independent"].take(torch.arange(1)).split()


def test_the_data_set_of_another_network_cannot_be_scored_by_mistake(folders: dict[str, Path], data) -> None:
    other = data["independent"].problem
    assert dataset.load(folders["independent"], other).problem is other
    with pytest.raises(DatasetError, match="its labels are for another network than case"):
        dataset.load(folders["independent"], type(other).open("case5_pjm"))


def test_predictions_of_test_rows_use_their_own_earlier_state(data: dict[str, Dataset]) -> None:
    rows = data["shared"]
    done = trained(rows)
    _, test = rows.split()
    own = done.predict(test.demand, (test.earlier_demand, test.earlier_state))
    assert torch.equal(own, done.proxy.predict(Rows.of(test)))
    assert not torch.equal(own, done.predict(test.demand))

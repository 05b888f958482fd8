"""Answers of a trained network, from its folder to certificates: the same tests for power and for gas."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_laws import by_torch

from ldf.core.certificate import TOLERANCE
from ldf.io.checkpoint import CheckpointError
from ldf.proxies import open_problem
from ldf.proxies.answering import points as warm
from ldf.proxies.answering.answers import HOWS, Responder
from ldf.proxies.answering.certifier import Answer
from ldf.proxies.answering.files import write_answers
from ldf.proxies.data import dataset
from ldf.proxies.data.labelling import label
from ldf.proxies.data.sampling import Sampling
from ldf.proxies.learning.training import RECIPES, Trained, train
from ldf.proxies.problem import Floats, Problem
from ldf.proxies.registry import OWN

CASES = {"power": "case14_ieee", "gas": "24-pipe"}
ROUTES = {
    ("power", "fast"): {"interior", "interior-cold"},
    ("gas", "fast"): {"prediction", "solver"},
    **{(kind, "projection"): {"projection"} for kind in OWN},
    ("power", "optimal"): {"interior", "interior-cold"},
    ("gas", "optimal"): {"solver"},
    **{(kind, "none"): {"none"} for kind in OWN},
}


@dataclass(frozen=True)
class Run:
    """The folder of a trained network, and demands like those it was trained on."""

    folder: Path
    problem: Problem
    demands: Floats

    def open(self, how: str = "fast", **options) -> Responder:
        return Responder.open(self.folder, how, **options)


@pytest.fixture(scope="module", params=list(OWN))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    label(
        open_problem(request.param, CASES[request.param]),
        24, Sampling("shared"), folder / "data", workers=1, progress=False,
    )  # fmt: skip
    data, place = dataset.load(folder / "data"), {"data": str(folder / "data")}
    train(data, "MCD", RECIPES["tuned"], epochs=2, folder=folder / "run", facts=place, progress=False)
    Responder.open(folder / "run")
    return Run(folder / "run", data.problem, data.split()[1].demand.numpy())


@pytest.fixture
def bare(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same run without warm-start points, of which four are enough."""
    monkeypatch.setattr(warm, "COUNT", 4)
    shutil.copytree(run.folder, tmp_path / "run")
    (tmp_path / "run" / warm.FILE).unlink()
    return replace(run, folder=tmp_path / "run")


# ---------------------------------------------------------------- every repair


@pytest.mark.parametrize("how", HOWS)
def test_every_repair_answers_with_a_certificate_that_holds(run: Run, how: str) -> None:
    respond = run.open(how)
    for answers in (respond.many(run.demands), [respond(demand) for demand in run.demands]):
        assert {answer.repair for answer in answers} <= ROUTES[run.problem.kind, how]
        found = by_torch(run.problem, run.demands, np.array([answer.state for answer in answers]))
        for answer, worst in zip(answers, np.max(list(found.values()), 0), strict=True):
            assert max(answer.violations.values()) == pytest.approx(worst, abs=1e-9)
            assert answer.status == ("certified" if worst <= TOLERANCE else "uncertified")
            assert answer.tolerance == TOLERANCE
            assert answer.seconds > 0
            if how != "none":
                assert answer.status == "certified"


@pytest.mark.parametrize("how", HOWS)
def test_many_at_once_are_answered_like_each_alone(run: Run, how: str) -> None:
    respond = run.open(how)
    demands = run.demands.copy()
    demands[1, 1] = np.nan
    for demand, among in zip(demands, respond.many(demands), strict=True):
        alone = respond(demand)
        for name in ("status", "reason", "repair", "tolerance", "warning"):
            assert getattr(alone, name) == getattr(among, name)
        np.testing.assert_allclose(alone.state, among.state, rtol=0, atol=TOLERANCE)
        if alone.prices is None:
            assert among.prices is None
        else:
            np.testing.assert_allclose(alone.prices, among.prices, rtol=1e-4, atol=1e-4)
    assert respond.many(demands[:0]) == []


def test_the_prediction_itself_is_the_networks(run: Run) -> None:
    demand = run.demands[0]
    answer = run.open("none")(demand)
    predicted = Trained.load(run.folder).predict(torch.from_numpy(demand)[None])[0].numpy()
    np.testing.assert_allclose(answer.state, predicted, rtol=0, atol=1e-6)
    assert set(answer.moved.values()) == {0.0}


def test_the_optimum_is_the_solvers_and_so_are_its_prices(run: Run) -> None:
    demand = run.demands[0]
    best = run.problem.solver().solve(demand)
    answer = run.open("optimal", gap=True)(demand)
    assert answer.objective == pytest.approx(best.objective, rel=1e-5, abs=1e-6)
    wanted = run.problem.prices(best)
    np.testing.assert_allclose(answer.prices, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    assert answer.gap == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("how", ["fast", "projection", "none"])
def test_prices_of_a_repaired_prediction_are_predicted(run: Run, how: str) -> None:
    predicted = Trained.load(run.folder).predict_prices(torch.from_numpy(run.demands)).numpy()
    for answer, prices in zip(run.open(how).many(run.demands), predicted, strict=True):
        optimal = answer.repair in ("solver", "interior", "interior-cold")
        assert np.allclose(answer.prices, prices, rtol=1e-9) != optimal


def test_the_gap_is_told_where_it_is_asked_for(run: Run) -> None:
    demand = run.demands[0]
    best = run.problem.solver().solve(demand).objective
    assert run.open("projection")(demand).gap is None
    for answer in (run.open("projection", gap=True)(demand), run.open("projection", gap=True).many(demand[None])[0]):
        assert answer.gap == pytest.approx(100 * (answer.objective - best) / best, rel=1e-4, abs=1e-4)
    respond = run.open("none", gap=True, tolerance=1e-12)
    uncertified = respond(demand)
    assert (uncertified.status, uncertified.gap) == ("uncertified", None)


# ---------------------------------------------------------------- demands unlike others


def test_a_demand_outside_of_what_was_trained_on_comes_with_a_warning(run: Run) -> None:
    respond = run.open()
    assert respond(run.demands[0]).warning is None
    beyond = 0.5 * run.demands[0]
    name = run.problem.entry(int(np.flatnonzero(run.problem.loads >= 0)[0]))[0].split(" at ")[0]
    for answer in (respond(beyond), respond.many(beyond[None])[0]):
        assert name in answer.warning
        assert "trained between" in answer.warning


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("how", HOWS)
def test_a_demand_that_is_no_number_is_never_certified(run: Run, how: str, value: float, tmp_path: Path) -> None:
    respond, entry = run.open(how), int(np.flatnonzero(run.problem.loads >= 0)[2])
    demand = run.demands[0].copy()
    demand[entry] = value
    answers = [respond(demand), *respond.many(np.stack([demand, demand]))]
    for answer in answers:
        assert answer.status == "unsolvable"
        assert answer.reason == f"{run.problem.entry(entry)[0]} is {value}, not a number"
        assert answer.prices is None
    write_answers(tmp_path / "answers.csv", run.problem, answers)


def test_a_demand_beyond_all_means_is_unsolvable(run: Run) -> None:
    answer = run.open()(50 * run.demands[0])
    assert answer.status == "unsolvable"
    assert answer.reason.startswith("the solver ended with ")


def test_an_array_of_another_width_is_refused(run: Run) -> None:
    respond, width = run.open("none"), len(run.problem.nominal)
    message = f"a demand of {run.problem.name} has {width} numbers, got an array "
    for wrong in (run.demands[0, :-1], np.concatenate([run.demands[0], [0.0]]), run.demands):
        with pytest.raises(ValueError, match=message):
            respond(wrong)
    for several in (run.demands[:, :-1], run.demands[0]):
        with pytest.raises(ValueError, match=message):
            respond.many(several)


# ---------------------------------------------------------------- how it is opened


@pytest.mark.parametrize("how", HOWS)
def test_all_that_is_needed_is_built_when_it_is_opened(run: Run, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    respond, demands = run.open(how), np.concatenate([run.demands, 50 * run.demands[:1]])  # one that nothing meets

    def built(*_: object) -> None:
        raise AssertionError("built while an answer was waited for")

    monkeypatch.setattr("ldf.proxies.nlp.NLP._build", built)
    monkeypatch.setattr("casadi.Function.__init__", built)
    assert len(respond.many(demands)) == len([respond(demand) for demand in demands]) == len(demands)


def test_what_is_no_repair_or_no_tolerance_is_refused(run: Run) -> None:
    trained = Trained.load(run.folder)
    with pytest.raises(ValueError, match="repair must be one of fast, projection, optimal, none, got 'magic'"):
        run.open("magic")
    for tolerance in (0.0, -1e-4, np.nan, np.inf):
        with pytest.raises(ValueError, match=f"the tolerance must be above 0, got {tolerance}"):
            run.open("none", tolerance=tolerance)
    for how in ("fast", "optimal"):
        with pytest.raises(ValueError, match=f"repair '{how}' needs warm-start points"):
            Responder(trained, None, how)


def test_a_tolerance_decides_what_is_certified(run: Run) -> None:
    demand = run.demands[0]
    worst = max(run.open("none")(demand).violations.values())
    assert run.open("none", tolerance=1.01 * worst)(demand).status == "certified"
    assert run.open("none", tolerance=0.99 * worst)(demand).status == "uncertified"


def certified(answers: list[Answer]) -> bool:
    return {answer.status for answer in answers} == {"certified"}


def test_points_are_made_once_and_kept(bare: Run, capsys: pytest.CaptureFixture) -> None:
    capsys.readouterr()
    first = bare.open()
    assert capsys.readouterr().err.startswith(f"{bare.folder} has no warm-start points")
    held = (bare.folder / warm.FILE).read_bytes()
    second = bare.open("optimal")
    assert capsys.readouterr().err == ""
    assert (bare.folder / warm.FILE).read_bytes() == held
    assert certified([first(bare.demands[0]), second(bare.demands[0])])
    training = dataset.load(Path(first.trained.facts["data"])).split()[0].demand.numpy()
    points = warm.Points.load(bare.folder, bare.problem)
    assert len(points) == 4
    assert {row.tobytes() for row in points.demands} <= {row.tobytes() for row in training}


def test_repairs_that_need_no_points_make_none(bare: Run, capsys: pytest.CaptureFixture) -> None:
    capsys.readouterr()
    for how in ("projection", "none"):
        bare.open(how)
    assert capsys.readouterr().err == ""
    assert not (bare.folder / warm.FILE).exists()


def test_where_the_labels_are_gone_points_are_drawn_from_the_range(bare: Run) -> None:
    trained = Trained.load(bare.folder)
    trained.facts["data"] = str(bare.folder / "gone")
    trained.save(bare.folder)
    assert certified(bare.open().many(bare.demands))
    points = warm.Points.load(bare.folder, bare.problem)
    assert (points.demands >= trained.range["low"].numpy() - 1e-9).all()
    assert (points.demands <= trained.range["high"].numpy() + 1e-9).all()
    assert len(points) == 4


def test_points_that_are_damaged_are_refused_by_name(bare: Run) -> None:
    path = bare.folder / warm.FILE
    path.write_bytes(b"points")
    with pytest.raises(CheckpointError, match=f"{path} is damaged"):
        bare.open()
    assert bare.open("projection")(bare.demands[0]).status == "certified"


@pytest.mark.parametrize("how", ["fast", "projection", "optimal"])
def test_a_time_budget_ends_a_repair_that_takes_longer(run: Run, how: str) -> None:
    beyond = 50 * run.demands[:1]
    none = run.open(how, budget=1e-7)
    demands = np.concatenate([run.demands, beyond])
    for answers in (none.many(demands), [none(demand) for demand in demands]):
        solved = [answer for answer in answers if answer.repair != "prediction"]
        assert solved
        for answer in solved:
            assert answer.status == "unsolvable"
            assert answer.reason.startswith("the solver ended with 'time'")
    plenty = run.open(how, budget=60.0)
    assert {answer.status for answer in plenty.many(run.demands)} == {"certified"}
    assert plenty(beyond[0]).reason.startswith("the solver ended with 'infeasible'")
    with pytest.raises(ValueError, match=r"the time budget must be above 0 seconds, got 0\.0"):
        run.open(how, budget=0.0)


def test_a_run_without_prices_answers_without_them(run: Run, tmp_path: Path) -> None:
    trained = replace(Trained.load(run.folder), prices=None, price_memory=None)
    points = warm.Points.load(run.folder, run.problem)
    respond = Responder(trained, None, "projection")
    answers = [respond(run.demands[0]), *respond.many(run.demands[:2])]
    assert all(answer.prices is None for answer in answers)
    write_answers(tmp_path / "answers.csv", run.problem, answers)
    assert "prices" not in (tmp_path / "answers.csv").read_text()
    assert Responder(trained, points, "optimal")(run.demands[0]).prices is not None

"""Warm-start points: their demands, and the file that stores them."""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from ldf.io import checkpoint
from ldf.io.checkpoint import CheckpointError
from ldf.power.problem import Power
from ldf.proxies import open_problem
from ldf.proxies.answering import points as module
from ldf.proxies.answering.points import ATTEMPTS, COUNT, FILE, Points, build, drawn, spread
from ldf.proxies.learning.evaluation import reach
from ldf.proxies.problem import Floats

FACTORS = (0.9, 0.95, 1.0)


@pytest.fixture(scope="module")
def problem() -> Power:
    return open_problem("power", "case14_ieee")


@pytest.fixture(scope="module")
def points(problem: Power) -> Points:
    return build(problem, np.outer(FACTORS, problem.nominal))


# ---------------------------------------------------------------- what they are


def test_points_are_the_optima_of_their_demands(problem: Power, points: Points) -> None:
    assert len(points) == len(FACTORS)
    for k, demand in enumerate(points.demands):
        best = problem.solver().solve(demand)
        np.testing.assert_allclose(points.states[k], best.state, rtol=0, atol=1e-5)
        np.testing.assert_allclose(points.multipliers[k], best.multipliers, rtol=1e-3, atol=0.1)


def test_demands_without_a_solution_are_skipped(problem: Power, points: Points) -> None:
    factors = (5.0, FACTORS[0], 4.0, *FACTORS[1:], 3.0)
    found = build(problem, np.outer(factors, problem.nominal))
    np.testing.assert_array_equal(found.demands, points.demands)
    np.testing.assert_allclose(found.states, points.states, rtol=0, atol=1e-5)
    assert np.isfinite(found.states).all()


def test_an_error_if_no_demand_has_a_solution(problem: Power) -> None:
    with pytest.raises(ValueError, match="none of 2 demands in the training range could be solved"):
        build(problem, np.outer((4.0, 5.0), problem.nominal))


def test_no_more_points_are_solved_than_wanted(problem: Power, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNT", 2)
    assert build(problem, np.outer(FACTORS, problem.nominal)).demands.tolist() == (
        np.outer(FACTORS[:2], problem.nominal).tolist()
    )


def test_the_nearest_point_is_the_nearest(points: Points) -> None:
    rng = np.random.default_rng(0)
    demands = points.demands[rng.integers(len(points), size=50)] + 0.02 * rng.standard_normal((50, 28))
    apart = np.linalg.norm(demands[:, None] - points.demands, axis=2)
    assert points.nearest(demands).tolist() == apart.argmin(1).tolist()
    assert len(set(points.nearest(demands))) == len(points)


def test_a_start_has_the_prediction_and_the_multipliers_of_the_nearest_point(points: Points) -> None:
    demands, predictions = 1.001 * points.demands[[1, 1, 2]], points.states[[0, 0, 1]]
    predictions[1, 4] = np.nan
    starts = points.starts(demands, predictions)
    assert np.array_equal(starts.states, points.states[[0, 1, 1]]), "a point's own state if a prediction is no number"
    assert np.array_equal(starts.multipliers, points.multipliers[[1, 1, 2]])
    assert np.array_equal(starts.bounds, points.bounds[[1, 1, 2]])


# ---------------------------------------------------------------- the file


def test_what_is_saved_is_what_is_loaded(problem: Power, points: Points, tmp_path: Path) -> None:
    points.save(tmp_path, problem)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    again = Points.load(tmp_path, problem)
    for field in fields(Points):
        ours, theirs = getattr(points, field.name), getattr(again, field.name)
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs), field.name


def refused(folder: Path, problem: Power, reason: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(reason)) as raised:
        Points.load(folder, problem)
    assert str(folder / FILE) in str(raised.value)
    assert "delete it" in str(raised.value)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_cut_short_is_refused(problem: Power, points: Points, tmp_path: Path, kept: int) -> None:
    points.save(tmp_path, problem)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:kept])
    refused(tmp_path, problem, "is damaged or not a checkpoint")


def test_a_file_of_something_else_is_refused(problem: Power, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("points\n")
    refused(tmp_path, problem, "is damaged or not a checkpoint")
    checkpoint.save(tmp_path / FILE, {"demands": torch.zeros(2, 28)}, {"format": "ldf-run-1"})
    refused(tmp_path, problem, "does not hold warm-start points (ldf-points-1)")


def test_points_of_another_network_are_refused(problem: Power, points: Points, tmp_path: Path) -> None:
    points.save(tmp_path, problem)
    other = open_problem("power", "case14_ieee__api")
    refused(
        tmp_path, other, "holds warm-start points of another network (case14_ieee) than case14_ieee__api as it is now"
    )


@pytest.mark.parametrize("name", ["demands", "states", "multipliers", "bounds"])
def test_arrays_that_do_not_fit_are_refused(problem: Power, points: Points, tmp_path: Path, name: str) -> None:
    points.save(tmp_path, problem)
    tensors, facts = checkpoint.load(tmp_path / FILE)
    whole = tensors.pop(name)

    def save(array: torch.Tensor) -> None:
        checkpoint.save(tmp_path / FILE, {**tensors, name: array.contiguous()}, facts)

    save(whole[:-1])
    refused(tmp_path, problem, " rows, not ")
    checkpoint.save(tmp_path / FILE, tensors, facts)
    refused(tmp_path, problem, f"is damaged: {name} should have ")
    save(whole[:, 0])
    refused(tmp_path, problem, f"is damaged: {name} should have ")
    if name != "multipliers":
        save(whole[:, 1:])
        refused(tmp_path, problem, f"is damaged: {name} should have {whole.shape[1]} columns")
    save(whole)
    assert len(Points.load(tmp_path, problem)) == len(points)


# ---------------------------------------------------------------- of which demands


@pytest.mark.parametrize("rows", [1, 2, 10, COUNT, 1000, 3000])
def test_demands_on_a_line_are_taken_evenly_along_it(rows: int) -> None:
    rng = np.random.default_rng(0)
    along, way = rng.uniform(0.8, 1.2, rows), rng.uniform(0.5, 1, 7)
    chosen = spread(np.outer(along, way))
    assert chosen.shape == (min(rows, COUNT), 7)
    ranks = np.searchsorted(np.sort(along), chosen[:, 0] / way[0] - 1e-12)
    steps = np.diff(ranks)
    assert (steps > 0).all() or (steps < 0).all()
    if rows > 1:
        assert {ranks.min(), ranks.max()} == {0, rows - 1}
        assert np.ptp(np.abs(steps)) <= 1


def test_demands_that_vary_in_many_ways_are_taken_from_all_along_the_widest() -> None:
    rng = np.random.default_rng(0)
    demands = rng.standard_normal((2000, 5)) * [0.1, 0.1, 3.0, 0.1, 0.1]
    chosen = spread(demands)
    assert len(chosen) == COUNT
    assert {tuple(row) for row in chosen} <= {tuple(row) for row in demands}
    wanted = np.quantile(demands[:, 2], np.linspace(0, 1, COUNT))
    assert np.abs(np.sort(chosen[:, 2]) - wanted)[1:-1].max() < 0.3


def ranged(demands: Floats) -> dict[str, Floats]:
    return {name: value.numpy() for name, value in reach(torch.from_numpy(demands)).items()}


@pytest.mark.parametrize("ways", [1, 3, 11])
def test_drawn_demands_are_like_those_trained_on(problem: Power, ways: int) -> None:
    rng = np.random.default_rng(0)
    directions = rng.uniform(-0.05, 0.05, (ways, 28)) * (problem.nominal != 0)
    known = ranged(problem.nominal + rng.uniform(-1, 1, (200, ways)) @ directions)
    assert known["span"].shape[1] == ways
    found = drawn(**known)
    assert found.shape == (ATTEMPTS * COUNT, 28)
    assert (found >= known["low"] - 1e-9).all()
    assert (found <= known["high"] + 1e-9).all()
    away = found - known["centre"]
    np.testing.assert_allclose(away @ known["span"] @ known["span"].T, away, rtol=0, atol=1e-9)
    assert np.array_equal(found[:, problem.nominal == 0], np.zeros((len(found), int((problem.nominal == 0).sum()))))
    wide = np.ptp(found @ known["span"], axis=0) / np.ptp(known["high"] - known["low"])
    assert wide.min() > 0.1, "they differ in every way"

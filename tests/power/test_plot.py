"""Plots of networks, and the violations that they show."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import size_of

pytest.importorskip("casadi")

from ldf.power import plot
from ldf.power.acopf import ACOPF
from ldf.power.case import load
from ldf.power.constraints import PowerLaws
from ldf.proxies.plot import paths as arc_paths


@pytest.fixture(scope="module")
def solved() -> tuple:
    case = load("case30_ieee")
    model = ACOPF(case)
    return case, model, model.solve().state


def reds(axes, kind: str) -> int:
    """How many marks of this kind are red: rings and squares (edges), buses (faces), or lines."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba

    red, count = np.array(to_rgba(plot.RED)), 0
    for collection in axes.collections:
        lines = isinstance(collection, LineCollection)
        colours = collection.get_facecolor() if kind == "bus" else collection.get_edgecolor()
        if lines != (kind == "line"):
            continue
        if len(colours) == 1:  # one colour for all
            colours = np.repeat(colours, len(collection.get_paths() if lines else collection.get_offsets()), 0)
        if kind in ("bus", "line") or (len(collection.get_paths()[0]) > 6) == (kind == "ring"):
            count += int((np.abs(colours - red) < 1e-6).all(1).sum()) if len(colours) else 0
    return count


def test_an_optimum_violates_nothing_and_loads_branches_up_to_their_limits(solved: tuple) -> None:
    case, model, state = solved
    seen = plot.violations(case, state, model.nominal)
    assert seen.count == 0
    assert seen.balance.max() < 1e-6
    at = PowerLaws(case, torch.float64).states(torch.as_tensor(state)[None])
    ends = torch.hypot(at.p, at.q)[0].tolist()  # the first ends of all branches, then the second ones
    for i, loading in enumerate(seen.loading):
        assert loading == pytest.approx(100 * max(ends[i], ends[i + case.branches]) / case.limit[i])
    assert 90 < seen.loading.max() <= 100 + 1e-4
    assert seen.level.min() > -1e-6
    assert seen.level.max() < 1 + 1e-6


def test_every_violation_is_counted_and_measured(solved: tuple) -> None:
    case, model, state = solved
    bad = state.copy()
    parts = model.quantities
    bad[parts["pg"]][1] = case.p_max[1] + 0.03
    bad[parts["qg"]][2] = case.q_min[2] - 0.02
    seen = plot.violations(case, bad, model.nominal)
    assert seen.active[1] == pytest.approx(0.03)
    assert seen.reactive[2] == pytest.approx(0.02)
    assert seen.balance_p[case.at[1]] == pytest.approx(bad[parts["pg"]][1] - state[parts["pg"]][1], abs=1e-6)
    assert seen.count == 4  # two limits, and the balances at their two buses
    assert np.flatnonzero(seen.dispatch(case) > plot.TOLERANCE).tolist() == sorted(case.at[[1, 2]])

    # Demand without generation leaves a residual at its bus alone.
    demand = model.nominal.copy()
    demand[3] += 0.05
    demand[case.buses + 7] -= 0.02
    seen = plot.violations(case, state, demand)
    assert seen.count == 2
    assert np.flatnonzero(seen.balance > plot.TOLERANCE).tolist() == [3, 7]
    np.testing.assert_allclose(seen.balance[[3, 7]], [0.05, 0.02], atol=1e-6)
    np.testing.assert_allclose(seen.balance_p[[3, 7]], [0.05, 0.0], atol=1e-6)

    # Halved limits: every branch above 50 % is now above its own; without limits there is no loading.
    before = plot.violations(case, state, model.nominal)
    halved = plot.violations(dataclasses.replace(case, limit=case.limit / 2), state, model.nominal)
    assert halved.count == (before.loading > 50.01).sum() > 0
    np.testing.assert_allclose(halved.loading, 2 * before.loading)
    free = plot.violations(dataclasses.replace(case, limit=np.full(case.branches, np.inf)), state, model.nominal)
    assert free.count == 0
    assert np.isnan(free.loading).all()

    # Tighter limits of voltage and angle.
    low = plot.violations(
        dataclasses.replace(case, v_max=case.v_max - 0.2, v_min=case.v_min - 0.2), state, model.nominal
    )
    assert low.count == (state[parts["v"]] > case.v_max - 0.2).sum() == case.buses
    theta = state[parts["theta"]]
    far = np.abs(theta[case.source] - theta[case.target])
    tight = dataclasses.replace(case, angle_min=np.full(case.branches, -0.05), angle_max=np.full(case.branches, 0.05))
    assert plot.violations(tight, state, model.nominal).count == (far > 0.0501).sum() > 0


def test_shapes_and_numbers_are_checked(solved: tuple) -> None:
    case, model, state = solved
    with pytest.raises(ValueError, match=r"a state has shape \(72,\), got \(71,\)"):
        plot.violations(case, state[:-1], model.nominal)
    with pytest.raises(ValueError, match=r"a demand has shape \(60,\), got \(30,\)"):
        plot.violations(case, state, case.pd)
    bad = state.copy()
    bad[7] = np.nan
    with pytest.raises(ValueError, match="entry 7 of the state is nan"):
        plot.violations(case, bad, model.nominal)


def test_draw_shows_prediction_and_repair(solved: tuple, figures: list, tmp_path: Path) -> None:
    case, model, state = solved
    bad = state.copy()
    bad[model.quantities["pg"]][1] = case.p_max[1] + 0.03
    bad[model.quantities["v"]][[11, 20]] += 0.05
    limit = case.limit.copy()
    limit[0], limit[5] = 0.1, np.inf
    case = dataclasses.replace(case, limit=limit)
    seen = plot.violations(case, bad, model.nominal)
    plot.draw(case, bad, state, model.nominal, tmp_path / "two.png", "a <title>")
    left, right = figures[0].axes[:2]
    assert left.get_title() == f"prediction: {seen.count} violations, largest imbalance {seen.balance.max():.2g} p.u."
    assert right.get_title().startswith("repaired: 1 violation, largest imbalance ")
    assert reds(left, "ring") == (seen.balance > plot.TOLERANCE).sum() > 0
    assert reds(left, "square") == 1
    assert reds(left, "bus") == (seen.voltage > plot.TOLERANCE).sum() > 0
    assert reds(left, "line") == (seen.thermal > plot.TOLERANCE).sum() > 0
    assert [reds(right, kind) for kind in ("ring", "square", "bus", "line")] == [0, 0, 0, 1]
    plot.draw(case, bad, None, model.nominal, tmp_path / "one.png")
    two, one = size_of(tmp_path / "two.png"), size_of(tmp_path / "one.png")
    assert two[0] > 1500 > one[0] > 800
    assert two[1] == one[1] > 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.png"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["case5_pjm", "case300_ieee"])
def test_draw_takes_networks_of_all_sizes(name: str, tmp_path: Path) -> None:
    case = load(name)
    model = ACOPF(case)
    plot.draw(case, model.flat, None, model.nominal, tmp_path / "network.png")
    assert min(size_of(tmp_path / "network.png")) > 500


def test_layout_is_the_same_each_time_and_keeps_buses_apart(solved: tuple) -> None:
    case = solved[0]
    points = plot.layout(case)
    np.testing.assert_array_equal(points, plot.layout(case))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + np.eye(case.buses)
    assert distance.min() > 0.05
    assert np.ptp(points[:, 0]) >= np.ptp(points[:, 1])
    joined = distance[case.source, case.target].mean()
    assert joined < distance.mean() / 2  # neighbours lie near each other


def test_branches_between_the_same_buses_are_drawn_apart() -> None:
    case = load("case118_ieee")
    points = np.random.default_rng(0).normal(size=(case.buses, 2))
    pairs = [tuple(sorted(pair)) for pair in zip(case.source.tolist(), case.target.tolist(), strict=True)]
    paths = arc_paths(points, case.source, case.target)
    twins = [i for i, pair in enumerate(pairs) if pairs.count(pair) == 2]
    assert len(twins) == 14
    assert len({tuple(np.round(paths[i][7], 9)) for i in twins}) == len(twins)
    for first, last, path in zip(case.source, case.target, paths, strict=True):
        np.testing.assert_allclose(path[[0, -1]], points[[first, last]])

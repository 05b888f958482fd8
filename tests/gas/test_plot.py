"""Plots of gas networks, and the violations they show."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import size_of

pytest.importorskip("casadi")

from ldf.gas import plot
from ldf.gas.document import FORMAT, parse
from ldf.gas.network import BAR, Network
from ldf.gas.physics import SMOOTHING
from ldf.gas.problem import Gas
from ldf.io.data import DataError, locate
from ldf.proxies import plot as shared


@pytest.fixture(scope="module")
def solved() -> tuple:
    problem = Gas.open("24-pipe")
    solver = problem.solver()
    return problem.network, problem.quantities, solver.nominal, solver.solve().state


@pytest.fixture(scope="module")
def station() -> Network:
    """A pipe from a to b, a compressor station and two parallel pipes from b to c, and a pipe from c to d."""
    junctions = [{"id": name, "p_min": 40 * BAR, "p_max": 80 * BAR} for name in "abcd"]
    junctions[0] |= {"share": 0.75}
    junctions[1] |= {"share": 0.25}
    junctions[2] |= {"demand": 60.0}
    junctions[3] |= {"demand": 40.0}
    arcs = [
        {"id": "1", "from": "a", "to": "b", "resistance": 4e8, "flow_min": 0.0, "flow_max": 90.0},
        {"id": "2", "from": "b", "to": "c", "compressor": [1.0, 1.5], "flow_max": 50.0},
        {"id": "3", "from": "b", "to": "c", "resistance": 2e9},
        {"id": "4", "from": "c", "to": "b", "resistance": 2e9},
        {"id": "5", "from": "c", "to": "d", "resistance": 1e9},
    ]
    slack = {"junction": "a", "pressure": 50 * BAR}
    return parse({"format": FORMAT, "name": "station", "slack": slack, "junctions": junctions, "arcs": arcs})


def by_hand(network: Network, state: np.ndarray, demand: np.ndarray) -> dict[str, list[float]]:
    """All violations from Model 2 in SI units, element by element, scaled at the end."""
    c, n = network.compressors, network.junctions
    pascal, flow = network.base_pressure, network.base_flow
    ratios = {int(k): float(value) for k, value in zip(network.compressor, state[:c], strict=True)}
    p = [float(value) * pascal for value in state[c : c + n]]
    q = [float(value) * flow for value in state[c + n :]]
    wanted = [float(value) * flow for value in demand]

    def outside(value: float, low: float, high: float) -> float:
        return max(0.0, low - value, value - high)

    left = [wanted[i] - network.share[i] * sum(wanted) for i in range(n)]
    law = []
    for k in range(network.arcs):
        first, last = int(network.source[k]), int(network.target[k])
        left[first] += q[k]
        left[last] -= q[k]
        inlet, w = ratios.get(k, 1.0) * p[first], float(network.resistance[k])
        if w > 0:
            law.append(abs(inlet**2 - p[last] ** 2 - w * q[k] * abs(q[k])) / pascal**2)
        else:
            law.append(abs(inlet - p[last]) / pascal)
    held = [(network.slack_pressure, network.slack_pressure) if i == network.slack else None for i in range(n)]
    limits = [held[i] or (float(network.p_min[i]), float(network.p_max[i])) for i in range(n)]
    return {
        "balance": [abs(value) / flow for value in left],
        "pressure": [outside(p[i], *limits[i]) / pascal for i in range(n)],
        "limits": [outside(q[k], network.flow_min[k], network.flow_max[k]) / flow for k in range(network.arcs)],
        "ratio": [
            outside(ratios[int(k)], low, high)
            for k, low, high in zip(network.compressor, network.ratio_min, network.ratio_max, strict=True)
        ],
        "weymouth": law,
    }


def compare(network: Network, state: np.ndarray, demand: np.ndarray) -> plot.Violations:
    seen = plot.violations(network, state, demand)
    expected = by_hand(network, state, demand)
    assert [field.name for field in dataclasses.fields(seen)] == list(expected)
    for name, values in expected.items():
        found = getattr(seen, name)
        assert found.dtype == np.float64
        smoothed = SMOOTHING / 2 * network.scaled_resistance.max()  # |q|·√(q² + ε) is at most ε/2 above q²
        np.testing.assert_allclose(found, values, rtol=1e-9, atol=1e-10 + smoothed, err_msg=name)
    assert seen.count == sum(value > plot.TOLERANCE for values in expected.values() for value in values)
    return seen


def reds(axes) -> dict[str, int]:
    """How many marks of each kind are red."""
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import to_rgba

    red = np.array(to_rgba(shared.RED))

    def count(colours: np.ndarray, of: int) -> int:
        colours = np.broadcast_to(colours, (of, 4)) if len(colours) == 1 else colours  # one colour for all
        return int((np.abs(colours - red) < 1e-6).all(1).sum()) if len(colours) else 0

    found = dict.fromkeys(("balance", "pressure", "limits", "ratio", "weymouth"), 0)
    for collection in axes.collections:
        many = len(collection.get_paths() if isinstance(collection, LineCollection) else collection.get_offsets())
        faces, edges = count(collection.get_facecolor(), many), count(collection.get_edgecolor(), many)
        if isinstance(collection, LineCollection):
            found["weymouth"] += edges
        elif isinstance(collection, PolyCollection):
            found["ratio"] += faces
            found["limits"] += edges
        else:
            found["pressure"] += faces
            found["balance"] += edges
    return found


def sizes_of_red(axes) -> dict[str, np.ndarray]:
    """Sizes of the red marks by constraint: line widths, areas of nodes and rings, lengths of triangles."""
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.colors import to_rgba

    red, found = np.array(to_rgba(shared.RED)), {}
    for collection in axes.collections:
        edges, faces = collection.get_edgecolor(), collection.get_facecolor()
        outlined = len(edges) == 1 and np.allclose(edges, red)
        filled = np.isclose(faces, red).all(1) if len(faces) else np.zeros(0, bool)
        if isinstance(collection, LineCollection) and outlined:
            found["weymouth"] = np.array(collection.get_linewidths())
        elif isinstance(collection, PolyCollection):
            lengths = np.array([np.ptp(path.vertices, axis=0).max() for path in collection.get_paths()])
            found |= {"limits": lengths} if outlined else {"ratio": lengths[filled]} if filled.any() else {}
        elif outlined:
            found["balance"] = collection.get_sizes()
        elif filled.any():
            found["pressure"] = collection.get_sizes()[filled]
    return found


def counts(seen: plot.Violations) -> dict[str, int]:
    return {f.name: int((getattr(seen, f.name) > plot.TOLERANCE).sum()) for f in dataclasses.fields(seen)}


def triangles(axes) -> dict[float, np.ndarray]:
    """Positions and directions [k, 4] of arrows (3) and compressors (6), by zorder."""
    from matplotlib.collections import PolyCollection

    found = {}
    for collection in axes.collections:
        if isinstance(collection, PolyCollection) and len(collection.get_paths()):
            tips = np.array([path.vertices[0] - path.vertices[1:3].mean(0) for path in collection.get_paths()])
            found[collection.get_zorder()] = np.hstack([collection.get_offsets(), tips])
    return found


def available(name: str) -> Gas:
    """A GasLib network; skips the test if its data is not available."""
    try:
        return Gas.open(str(locate(name)) if name.endswith("zip") else name)
    except DataError as error:
        pytest.skip(str(error))


def test_an_optimum_violates_nothing(solved: tuple) -> None:
    network, _, demand, state = solved
    seen = compare(network, state, demand)
    assert seen.count == 0
    assert seen.balance.max() < 1e-8
    assert seen.weymouth.max() < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_violations_are_those_of_the_model_in_si_units(solved: tuple, station: Network, seed: int) -> None:
    rng = np.random.default_rng(seed)
    network, _, demand, state = solved
    seen = compare(network, state * rng.uniform(0.9, 1.1, len(state)), demand * rng.uniform(0.8, 1.2, len(demand)))
    assert min(counts(seen)[law] for law in ("balance", "pressure", "ratio", "weymouth")) > 0
    compare(station, rng.uniform(-1.5, 1.5, 10), rng.uniform(0, 1, 4))


def test_violations_of_a_small_network_by_hand(station: Network) -> None:
    """F = 100 kg/s and p0 = 50 bar: W = w F² / p0² = w · 4e-10."""
    np.testing.assert_allclose(station.scaled_resistance, [0.16, 0, 0.8, 0.8, 0.4])
    demand = np.array([0, 0, 0.6, 0.4])
    state = np.array([1.6, 1.02, 0.9, 1.7, 0.7, 0.95, 0.6, 0.2, -0.2, 0.4])
    seen = plot.violations(station, state, demand)
    np.testing.assert_allclose(seen.ratio, [0.1])  # 1.6 with a limit of 1.5
    np.testing.assert_allclose(seen.pressure, [0.02, 0, 0.1, 0.1], atol=1e-12)  # held at 1; limits 0.8 and 1.6
    np.testing.assert_allclose(seen.limits, [0.05, 0.1, 0, 0, 0], atol=1e-12)  # 95 of 90 kg/s, 60 of 50
    # a: 0.95 leaves of 0.75; b: 0.6 + 0.2 + 0.2 leave, 0.95 + 0.25 come; c: 1.0 comes, 0.4 leave, 0.6 are withdrawn.
    np.testing.assert_allclose(seen.balance, [0.2, 0.2, 0, 0], atol=1e-12)
    drops = [1.02**2 - 0.9**2 - 0.16 * 0.95**2, 1.6 * 0.9 - 1.7, 0.9**2 - 1.7**2 - 0.8 * 0.2**2]
    drops += [1.7**2 - 0.9**2 + 0.8 * 0.2**2, 1.7**2 - 0.7**2 - 0.4 * 0.4**2]
    np.testing.assert_allclose(seen.weymouth, np.abs(drops), rtol=1e-6)
    assert seen.count == 1 + 3 + 2 + 2 + 5


def test_one_wrong_value_violates_the_constraints_it_appears_in(solved: tuple) -> None:
    network, part, demand, state = solved
    bad = state.copy()
    bad[part["R"]][0] = 2.05
    seen = compare(network, bad, demand)
    assert counts(seen) == {"balance": 0, "pressure": 0, "limits": 0, "ratio": 1, "weymouth": 1}
    assert seen.ratio[0] == pytest.approx(0.05)
    assert seen.weymouth[network.compressor[0]] > plot.TOLERANCE

    bad = state.copy()
    bad[part["p"]][network.position("6")] = 0.97  # its lower limit is the slack's pressure
    seen = compare(network, bad, demand)
    assert np.flatnonzero(seen.pressure > plot.TOLERANCE).tolist() == [network.position("6")]
    assert seen.pressure.max() == pytest.approx(0.03)
    at = [k for k in range(network.arcs) if network.position("6") in (network.source[k], network.target[k])]
    assert np.flatnonzero(seen.weymouth > plot.TOLERANCE).tolist() == at

    bad = state.copy()
    bad[part["q"]][7] += 0.01
    seen = compare(network, bad, demand)
    ends = sorted([network.source[7], network.target[7]])
    assert np.flatnonzero(seen.balance > plot.TOLERANCE).tolist() == ends
    np.testing.assert_allclose(seen.balance[ends], 0.01, atol=1e-8)

    # The slack supplies all withdrawals: an additional demand unbalances the slack and its own junction.
    more = demand.copy()
    more[network.position("8")] += 0.05
    seen = compare(network, state, more)
    assert np.flatnonzero(seen.balance > plot.TOLERANCE).tolist() == [network.slack, network.position("8")]
    assert seen.count == 2


def test_shapes_and_numbers_are_checked(solved: tuple, tmp_path: Path) -> None:
    network, _, demand, state = solved
    with pytest.raises(ValueError, match=r"24-pipe: a state has shape \(54,\), got \(53,\)"):
        plot.violations(network, state[:-1], demand)
    with pytest.raises(ValueError, match=r"24-pipe: a demand has shape \(25,\), got \(1, 25\)"):
        plot.violations(network, state, demand[None])
    bad = state.copy()
    bad[7] = np.nan
    with pytest.raises(ValueError, match="entry 7 of the state is nan; every entry must be finite"):
        plot.violations(network, bad, demand)
    wanted = demand.copy()
    wanted[3] = np.inf
    with pytest.raises(ValueError, match="entry 3 of the demand is inf"):
        plot.draw(network, state, None, wanted, tmp_path / "none.png")
    with pytest.raises(ValueError, match="entry 7 of the state is nan"):
        plot.draw(network, state, bad, demand, tmp_path / "none.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("error")
def test_draw_shows_prediction_and_repair(solved: tuple, figures: list, tmp_path: Path) -> None:
    network, part, demand, state = solved
    bad = state.copy()
    bad[part["R"]][1] = 0.9
    bad[part["p"]][[5, 7]] -= 0.2
    bad[part["q"]][[3, 20]] *= 0.8
    limit = np.full(network.arcs, np.inf)
    limit[[0, 10]] = 0.9 * np.abs(state[part["q"]][[0, 10]]) * network.base_flow
    network = dataclasses.replace(network, flow_max=limit)
    seen, after = plot.violations(network, bad, demand), plot.violations(network, state, demand)
    plot.draw(network, bad, state, demand, tmp_path / "two.png", "a <title>")
    left, right = figures[0].axes[:2]
    largest = seen.balance.max() * network.base_flow
    assert left.get_title() == f"prediction: {seen.count} violations, largest imbalance {largest:.3f} kg/s"
    assert right.get_title() == "repaired: 2 violations, largest imbalance 0.000 kg/s"
    assert reds(left) == counts(seen)
    assert min(counts(seen).values()) > 0
    assert reds(right) == counts(after) == {"balance": 0, "pressure": 0, "limits": 2, "ratio": 0, "weymouth": 0}
    assert [axes.get_ylabel() for axes in figures[0].axes[2:]] == ["junction: pressure in bar", "compressor: ratio R"]
    ratios = state[part["R"]]
    texts = [text.get_text() for text in right.texts]
    assert [text for text in texts if "×" in text] == [f"×{value:.2f}" for value in ratios if value > 1.005]
    assert sorted(text for text in texts if "×" not in text) == sorted(
        ["1", "6", "8", "12", "13", "18", "19", "24", "25"]
    )
    plot.draw(network, bad, None, demand, tmp_path / "one.png")
    two, one = size_of(tmp_path / "two.png"), size_of(tmp_path / "one.png")
    assert two[0] > 1500 > one[0] > 800
    assert two[1] == one[1] > 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.png"]


def test_plots_do_not_depend_on_earlier_plots(solved: tuple, tmp_path: Path) -> None:
    network, _, demand, state = solved
    for name in ("first.png", "second.png"):
        plot.draw(network, 1.01 * state, state, demand, tmp_path / name)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()


def test_a_larger_violation_has_a_larger_mark(solved: tuple, figures: list, tmp_path: Path) -> None:
    network, part, demand, state = solved
    bad, worse = state.copy(), state.copy()
    junction, arc = network.position("6"), 5
    for shown, by in ((bad, 0.05), (worse, 0.2)):
        shown[part["p"]][junction] = 1 - by  # its lower limit is the slack's pressure
        shown[part["q"]][arc] += by / 10
        shown[part["R"]][1] = 1 - by
    limit = np.full(network.arcs, np.inf)
    limit[arc] = state[part["q"]][arc] * network.base_flow
    network = dataclasses.replace(network, flow_max=limit)
    assert counts(plot.violations(network, bad, demand)) == counts(plot.violations(network, worse, demand))
    plot.draw(network, bad, worse, demand, tmp_path / "network.png")
    left, right = (sizes_of_red(axes) for axes in figures[0].axes[:2])
    assert left.keys() == right.keys() == {"balance", "pressure", "limits", "ratio", "weymouth"}
    for law in left:
        assert (right[law] > left[law]).all(), law


def test_arrows_and_compressors_point_in_the_direction_of_flow(solved: tuple, figures: list, tmp_path: Path) -> None:
    network, part, demand, state = solved
    turned = state.copy()
    turned[part["q"]][[4, network.compressor[0]]] *= -1
    turned[part["q"]][6] = 0.0
    assert not np.isin([4, 6], network.compressor).any()
    plot.draw(network, turned, None, demand, tmp_path / "network.png")
    points = plot.layout(network)
    q = turned[part["q"]]
    drawn = triangles(figures[0].axes[0])
    pipes = [k for k in range(network.arcs) if k not in network.compressor and k != 6]
    for arcs, found in ((pipes, drawn[3]), (network.compressor.tolist(), drawn[6])):
        assert len(found) == len(arcs)
        for k, (*at, x, y) in zip(arcs, found, strict=True):
            first, last = points[network.source[k]], points[network.target[k]]
            np.testing.assert_allclose(at, (first + last) / 2, atol=1e-9)
            ahead = math.copysign(1, q[k]) * (last - first)
            assert x * ahead[0] + y * ahead[1] == pytest.approx(math.hypot(x, y) * np.linalg.norm(ahead))


def test_widths_and_areas_grow_with_flows_and_loads(solved: tuple) -> None:
    network, part, demand, state = solved
    wild = state.copy()
    wild[part["q"]] *= 20
    scale = plot._Scale.of(network, [wild, state], demand)
    assert scale.flow == pytest.approx(np.abs(state[part["q"]]).max() * network.base_flow)  # of the repair
    assert scale.width(0) < scale.width(-10) == scale.width(10) < scale.width(scale.flow) < scale.width(1e9) < 12
    assert scale.load == pytest.approx(25.153)
    assert 0 < scale.area(0) < scale.area(10) < scale.area(scale.load) == scale.dot
    p = state[part["p"]] * network.base_pressure / BAR
    np.testing.assert_allclose(scale.bar, [max(p.min(), network.p_min.min() / BAR), p.max()])
    assert [plot._round(value) for value in (0.013, 1, 4.99, 163, np.nextafter(1000, 0))] == [0.01, 1, 2, 100, 1000]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("state", [[1, 1, 1], [1, 0.9, 0], [0.2, 3.0, -9.0]])
def test_draw_accepts_the_smallest_network_and_any_state_of_it(state: list[float], tmp_path: Path) -> None:
    limits = {"p_min": 40 * BAR, "p_max": 80 * BAR}
    document = {
        "format": FORMAT,
        "name": "two",
        "slack": {"junction": "a", "pressure": 50 * BAR},
        "junctions": [{"id": "a", **limits}, {"id": "b", **limits, "demand": 10.0}],
        "arcs": [{"id": "1", "from": "a", "to": "b", "resistance": 1e9}],
    }
    for places in (None, ([0, 0], [0, 1])):
        for i, place in enumerate(places or ()):
            document["junctions"][i]["place"] = place
        network = parse(document)
        for demand in (network.demand / network.base_flow, np.zeros(2)):
            plot.draw(network, np.array(state, float), np.ones(3), demand, tmp_path / "two.png")
            assert min(size_of(tmp_path / "two.png")) > 500


@pytest.mark.filterwarnings("error")
def test_arcs_without_a_limit_and_arcs_side_by_side_are_drawn(station: Network, figures: list, tmp_path: Path) -> None:
    demand = station.demand / station.base_flow
    plot.draw(
        station, np.array([1.2, 1, 1, 1.2, 1.1, 0.7, 0.6, 0.2, -0.2, 0.4]), None, demand, tmp_path / "station.png"
    )
    drawn = triangles(figures[0].axes[0])
    assert len(drawn[3]) == 4
    assert len(drawn[6]) == 1
    middles = np.vstack([drawn[3], drawn[6]])[:, :2]
    apart = np.linalg.norm(middles[:, None] - middles[None], axis=2) + np.eye(5)
    assert apart.min() > 0.02


def test_a_map_is_preserved_and_close_junctions_are_moved_apart(station: Network) -> None:
    places = np.array([[6.0, 50.0], [9.0, 50.0], [9.0, 50.0], [9.0, 53.0]])
    points = plot.layout(dataclasses.replace(station, places=places))
    gap = 0.42 / np.sqrt(4) * 3
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)[np.triu_indices(4, 1)]
    assert distance.min() > 0.98 * gap
    narrow = np.cos(np.radians(50.75))
    np.testing.assert_allclose(points[0], [6 * narrow, 50], atol=0.05 * gap)  # far from all others, and not moved
    np.testing.assert_allclose(points[3], [9 * narrow, 53], atol=0.05 * gap)
    np.testing.assert_allclose(points[1:3].mean(0), [9 * narrow, 50], atol=0.05 * gap)
    assert points[1, 0] < points[2, 0]  # b towards a, c towards d
    assert points[2, 1] > points[1, 1]
    np.testing.assert_array_equal(points, plot.layout(dataclasses.replace(station, places=places)))

    plane = 1e4 * places  # metres, not degrees: as they are
    points = plot.layout(dataclasses.replace(station, places=plane))
    np.testing.assert_allclose(points[0], plane[0], atol=0.05 * 1e4 * gap)


def test_unknown_places_are_not_used(station: Network) -> None:
    plain = plot.layout(dataclasses.replace(station, places=None))
    for places in ([[6, 50], [0, 0], [0, 0], [7, 51]], [[6, 50]] * 4):
        found = plot.layout(dataclasses.replace(station, places=np.array(places, float)))
        np.testing.assert_array_equal(found, plain)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["gaslib-40", "gaslib-135", "gas/GasLib-135.zip"])
def test_draw_accepts_gaslib_networks(name: str, figures: list, tmp_path: Path) -> None:
    problem = available(name)
    network, solver = problem.network, problem.solver()
    start = solver.starts(solver.nominal)[0]
    compare(network, start, solver.nominal)
    plot.draw(network, start, None, solver.nominal, tmp_path / "network.png", network.name)
    assert min(size_of(tmp_path / "network.png")) > 500
    axes = figures[0].axes[0]
    assert reds(axes) == counts(plot.violations(network, start, solver.nominal))
    assert bool(axes.texts) == (network.junctions <= shared.NAMED)
    points = plot.layout(network)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + np.eye(network.junctions) * 1e9
    assert distance.min() > 0.015 * np.ptp(points, axis=0).max()
    if name != "gaslib-135":  # its file knows less than half of the places
        east, north = (np.corrcoef(points[:, i], network.places[:, i])[0, 1] for i in (0, 1))
        assert min(east, north) > 0.97  # north is up

"""Sampling and labelling demands: the same rows for any number of workers and interruptions."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import killed_labelling
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grids import TEXT, change, three
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_labelling import ROWS, SAMPLING, SEED, run

from ldf.power.problem import Power
from ldf.proxies import load_problem, open_problem
from ldf.proxies.data import dataset, labelling
from ldf.proxies.data.labelling import DatasetError, label, read_manifest
from ldf.proxies.data.sampling import Sampling
from ldf.proxies.nlp import Solution
from ldf.proxies.source import NetworkError

QUICK = settings(deadline=None, max_examples=60)
MIXED = Sampling("independent", 0.8, 1.5)
"""Some samples of case14 cannot be solved."""


@pytest.fixture(scope="module")
def problem() -> Power:
    return open_problem("power", "case14_ieee")


def table(folder: Path) -> pa.Table:
    """All rows of all shards, in order."""
    return pa.concat_tables(
        pq.read_table(path).replace_schema_metadata() for path in sorted(folder.glob("shard-*.parquet"))
    )


def first(folder: Path) -> pa.Table:
    """The rows that count: as many as the manifest says."""
    return table(folder).slice(0, read_manifest(folder)["rows"])


def column(rows: pa.Table, name: str) -> np.ndarray:
    return np.array(rows[name].to_pylist())


def make(problem: Power, folder: Path, rows: int = 30, sampling: Sampling = MIXED, **options) -> dict:
    return label(problem, rows, sampling, folder, **{"workers": 1, "progress": False, **options})


@pytest.fixture(scope="module")
def made(problem: Power, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make(problem, folder)
    return folder


# ---------------------------------------------------------------- sampling

LOADS = np.array([0, -1, 1, 2, -1, 0, -1, 1, 2, -1])
"""Ten entries of three loads; four of no load."""


@st.composite
def samplings(draw, **fixed):
    low = draw(st.floats(0.1, 2.0))
    share = st.one_of(st.just(0.0), st.floats(0.001, 0.9))
    given = {
        "mode": draw(st.sampled_from(["independent", "shared"])),
        "low": low,
        "high": low + draw(st.floats(0.01, 2.0)),
        "noise": draw(share),
        "hot_start": draw(share),
    }
    return Sampling(**{**given, **fixed})


draws = given(sampling=samplings(), seed=st.integers(0, 2**32), index=st.integers(0, 10**7))


@QUICK
@draws
def test_factors_stay_within_their_bounds(sampling: Sampling, seed: int, index: int) -> None:
    before, after = sampling.draw(seed, index, LOADS)
    factors = before[LOADS >= 0]
    assert (factors >= sampling.low * (1 - sampling.noise) - 1e-12).all()
    assert (factors <= sampling.high * (1 + sampling.noise) + 1e-12).all()
    assert (after is None) == (sampling.hot_start == 0)
    if after is not None:
        ratio = after[LOADS >= 0] / factors
        assert (np.abs(ratio - 1) <= sampling.hot_start + 1e-12).all()


@QUICK
@draws
def test_entries_of_a_load_move_together_and_others_not_at_all(sampling: Sampling, seed: int, index: int) -> None:
    for factors in sampling.draw(seed, index, LOADS):
        if factors is not None:
            assert (factors[LOADS < 0] == 1).all()
            for number in range(3):
                assert len(set(factors[number == LOADS])) == 1


@QUICK
@given(sampling=samplings(mode="shared", noise=0.0), index=st.integers(0, 10**7))
def test_shared_is_one_factor_for_all_loads(sampling: Sampling, index: int) -> None:
    for factors in sampling.draw(0, index, LOADS):
        assert factors is None or len(set(factors[LOADS >= 0])) == 1


@QUICK
@given(sampling=samplings(mode="independent"), index=st.integers(0, 10**7))
def test_independent_is_a_factor_for_each_load(sampling: Sampling, index: int) -> None:
    assert len(set(sampling.draw(0, index, LOADS)[0][LOADS >= 0])) == 3


@QUICK
@draws
def test_a_draw_depends_on_seed_and_index_alone(sampling: Sampling, seed: int, index: int) -> None:
    def drawn(seed: int, index: int) -> list:
        return [None if part is None else part.tolist() for part in sampling.draw(seed, index, LOADS)]

    ours = drawn(seed, index)
    assert drawn(seed, index + 1) != ours
    assert drawn(seed + 1, index) != ours
    assert drawn(seed, index) == ours


def test_factors_fill_their_interval_evenly() -> None:
    sampling = Sampling("independent", 0.8, 1.2)
    factors = np.stack([sampling.draw(0, index, LOADS)[0][LOADS >= 0] for index in range(3000)])
    np.testing.assert_allclose(factors.mean(0), 1.0, atol=0.01)
    np.testing.assert_allclose(factors.std(0), 0.4 / np.sqrt(12), rtol=0.05)
    assert abs(np.corrcoef(factors[:, 0], factors[:, 2])[0, 1]) < 0.06


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "random"}, "'independent' or 'shared', got 'random'"),
        ({"low": 0.0}, "0 < low < high, got 0.0 and 1.2"),
        ({"low": -1.0}, "0 < low < high"),
        ({"low": 1.3}, "0 < low < high, got 1.3 and 1.2"),
        ({"low": float("nan")}, "0 < low < high"),
        ({"high": float("inf")}, "0 < low < high"),
        ({"noise": 1.0}, r"noise must be in \[0, 1\), got 1.0"),
        ({"noise": -0.1}, "noise must be"),
        ({"hot_start": 1.5}, "hot start must be"),
        ({"hot_start": float("nan")}, "hot start must be"),
    ],
)
def test_bad_samplings_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**arguments)


# ---------------------------------------------------------------- what a data set holds


def test_shards_have_schema_and_facts(made: Path, problem: Power) -> None:
    shards = sorted(made.glob("shard-*.parquet"))
    vector = {n: pa.list_(pa.field("element", pa.float64()), n) for n in (28, 38)}
    for number, path in enumerate(shards):
        read = pq.read_table(path)
        assert {field.name: field.type for field in read.schema} == {
            "draw": pa.int64(),
            "demand": vector[28],
            "state": vector[38],
            "objective": pa.float64(),
            "prices": vector[28],
        }
        facts = json.loads(read.schema.metadata[b"ldf"])
        assert (facts["kind"], facts["case"], facts["seed"], facts["number"]) == ("power", "case14_ieee", 0, number)
        assert facts["fingerprint"] == problem.fingerprint
        assert facts["sampling"] == {"mode": "independent", "low": 0.8, "high": 1.5, "noise": 0.0, "hot_start": 0.0}
        assert read.num_rows + sum(facts["failures"].values()) == facts["shard"] == 10


def test_the_manifest_sums_up_the_shards(made: Path, problem: Power) -> None:
    manifest = read_manifest(made)
    assert manifest["complete"]
    assert (manifest["rows"], manifest["fingerprint"], manifest["seed"]) == (30, problem.fingerprint, 0)
    assert manifest["draws"] == 10 * len(list(made.glob("shard-*.parquet")))
    assert table(made).num_rows + sum(manifest["failures"].values()) == manifest["draws"]
    assert manifest["failures"]["infeasible"] > 0


def test_rows_are_the_first_draws_that_can_be_solved(made: Path, problem: Power) -> None:
    rows, solver = first(made), problem.solver()
    assert rows.num_rows == 30
    indices = column(rows, "draw")
    names = ("demand", "state", "objective", "prices")
    demands, states, objectives, prices = (column(rows, name) for name in names)
    row = 0
    for index in range(indices.max() + 1):
        demand = problem.nominal * MIXED.draw(0, index, problem.loads)[0]
        cold = solver.solve(demand)
        assert cold.solved == (index in indices)
        if cold.solved:
            np.testing.assert_array_equal(demands[row], demand)
            assert objectives[row] == pytest.approx(cold.objective, rel=1e-6)
            pg = problem.quantities["pg"]
            np.testing.assert_allclose(states[row][pg], cold.state[pg], atol=1e-3)
            np.testing.assert_allclose(prices[row], problem.prices(cold), atol=1e-3)
            row += 1
    assert row == 30


def test_the_network_lies_with_its_data(made: Path, problem: Power, tmp_path: Path) -> None:
    again = load_problem("power", made)
    assert (again.name, again.fingerprint) == (problem.name, problem.fingerprint)
    for name in ("one.m", "two.m"):
        (tmp_path / name).write_text(TEXT)
    with pytest.raises(NetworkError, match=r"one \.m file, but contains 2"):
        load_problem("power", tmp_path)
    for read in (lambda: open_problem("water", "x"), lambda: load_problem("water", made)):
        with pytest.raises(ValueError, match="unknown problem 'water'; available: power"):
            read()


def test_with_a_hot_start_each_row_has_an_earlier_optimum(problem: Power, tmp_path: Path) -> None:
    make(problem, tmp_path, 10, Sampling("independent", 0.9, 1.1, hot_start=0.03))
    rows, solver = first(tmp_path), problem.solver()
    assert rows.num_rows == 10
    names = ("earlier_demand", "earlier_state", "earlier_prices", "demand", "state", "prices")
    pg = problem.quantities["pg"]
    for before, before_state, before_prices, demand, state, prices in zip(
        *(column(rows, name) for name in names), strict=True
    ):
        varied = problem.nominal != 0
        ratio = demand[varied] / before[varied]
        assert 0 < np.abs(ratio - 1).max() <= 0.03 + 1e-12
        earlier, now = solver.solve(before), solver.solve(demand)
        np.testing.assert_allclose(before_state[pg], earlier.state[pg], atol=1e-3)
        np.testing.assert_allclose(state[pg], now.state[pg], atol=1e-3)
        np.testing.assert_allclose(before_prices, problem.prices(earlier), atol=1e-3)
        np.testing.assert_allclose(prices, problem.prices(now), atol=1e-3)


def test_a_shard_without_a_column_is_refused(made: Path, tmp_path: Path) -> None:
    copied(made, tmp_path)
    shard = max(tmp_path.glob("shard-*.parquet"))
    pq.write_table(pq.read_table(shard).drop_columns("prices"), shard)
    with pytest.raises(DatasetError, match=f"{shard} is damaged: its columns should be draw, .* prices"):
        dataset.load(tmp_path)


# ---------------------------------------------------------------- the same rows, whatever happens


def test_two_workers_and_any_number_of_stages_give_the_same_rows(made: Path, problem: Power, tmp_path: Path) -> None:
    make(problem, tmp_path, 12)
    assert first(tmp_path).equals(first(made).slice(0, 12))
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("shard-*.parquet")}
    make(problem, tmp_path, 30, workers=2)
    assert first(tmp_path).equals(first(made))
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept, "shards that were there are kept"
    assert read_manifest(tmp_path) == read_manifest(made)


def test_a_finished_data_set_is_not_solved_again(problem: Power, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object) -> None:
        raise AssertionError("nothing is left to solve")

    monkeypatch.setattr(labelling, "_work", no)
    before = table(made)
    assert make(problem, made)["complete"]
    assert table(made).equals(before)


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(folder, 1)
    return folder


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_killed_and_resumed_is_never_killed(tmp_path: Path, never_killed: Path, kills: int) -> None:
    script = Path(killed_labelling.__file__)
    for workers, delay in ((2, 0.0), (1, 0.05))[:kills]:
        before = len(list(tmp_path.glob("shard-*.parquet")))
        child = subprocess.Popen([sys.executable, str(script), str(tmp_path), str(workers)], start_new_session=True)
        limit = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < limit:
            if len(list(tmp_path.glob("shard-*.parquet"))) >= before + 2:
                time.sleep(delay)
                break
            time.sleep(0.002)
        assert child.poll() is None, "it was done before it could be killed"
        os.killpg(child.pid, signal.SIGKILL)  # and its workers
        child.wait()
    assert not read_manifest(tmp_path)["complete"]
    assert 2 * kills <= len(list(tmp_path.glob("shard-*.parquet"))) < len(list(never_killed.glob("shard-*.parquet")))
    manifest = run(tmp_path, 1)
    assert first(tmp_path).equals(first(never_killed))
    assert manifest == read_manifest(never_killed)
    assert (manifest["rows"], manifest["seed"], manifest["sampling"]["high"]) == (ROWS, SEED, SAMPLING.high)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "its seed is 0, not 1"),
        ({"sampling": Sampling("independent", 0.8, 1.4)}, "its sampling is .*1.5.*, not .*1.4"),
        ({"sampling": Sampling("shared", 0.8, 1.5)}, "its sampling is .*'independent'.*, not .*'shared'"),
        ({"case": "case30_ieee"}, "its case is 'case14_ieee', not 'case30_ieee'"),
        ({"case": "case14_ieee__api"}, "its case is 'case14_ieee', not 'case14_ieee__api'"),
    ],
)
def test_a_folder_keeps_to_its_data_set(change: dict, message: str, made: Path, problem: Power) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    case = change.pop("case", None)
    with pytest.raises(DatasetError, match=f"has another data set: {message}"):
        make(open_problem("power", case) if case else problem, made, **change)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_a_network_with_another_number_is_another_network(tmp_path: Path) -> None:
    small = Sampling("shared", 0.9, 1.0)
    make(Power(three()), tmp_path, 3, small)
    with pytest.raises(DatasetError, match="another data set: its fingerprint is"):
        make(Power(three(change("branch", 1, {3: 0.11}))), tmp_path, 3, small)


def copied(made: Path, folder: Path) -> Path:
    """The finished data set once more; its second shard."""
    for path in made.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder / "shard-00001.parquet"


@pytest.mark.parametrize("what", ["cut", "empty", "text", "bit", "foreign", "renamed", "other seed"])
def test_shards_that_cannot_be_trusted_are_refused_and_left_alone(
    what: str, made: Path, problem: Power, tmp_path: Path
) -> None:
    shard = copied(made, tmp_path)
    whole = shard.read_bytes()
    middle = len(whole) // 3  # within the numbers
    if what == "foreign":
        pq.write_table(pa.table({"x": [1, 2]}), shard)
    elif what == "other seed":
        held = pq.read_table(shard)
        facts = json.loads(held.schema.metadata[b"ldf"]) | {"seed": 5}
        pq.write_table(held.replace_schema_metadata({"ldf": json.dumps(facts)}), shard)
    else:
        shard.write_bytes(
            {
                "cut": whole[: len(whole) // 2],
                "empty": b"",
                "text": b"draw,demand,state,objective",
                "bit": whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :],
                "renamed": (tmp_path / "shard-00000.parquet").read_bytes(),
            }[what]
        )
    message = {
        "renamed": "is damaged or misnamed: it contains shard 0",
        "other seed": "belongs to another data set: its seed is 5, not 0",
    }.get(what, "is damaged or not a shard of a data set")
    broken = shard.read_bytes()
    with pytest.raises(DatasetError, match=f"{re.escape(str(shard))} {message}"):
        make(problem, tmp_path)
    assert shard.read_bytes() == broken


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no dataset.json: it is not a data set"),
        ("{", "dataset.json is damaged"),
        ("[]", "is not of the format ldf-dataset-1"),
        ('{"format": "ldf-dataset-9"}', "is not of the format ldf-dataset-1"),
        ('{"format": "ldf-dataset-1"}', "is not of the format ldf-dataset-1"),
    ],
)
def test_manifests_that_cannot_be_used_are_refused(content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(DatasetError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_written(options, message, problem: Power, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        make(problem, tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_a_network_without_loads_is_refused(tmp_path: Path) -> None:
    idle = Power(three(change("bus", 2, {2: 0, 3: 0}, change("bus", 3, {2: 0, 3: 0}))))
    with pytest.raises(ValueError, match="three has no load to vary"):
        make(idle, tmp_path)


def test_hopeless_sampling_ends_with_the_reasons(
    problem: Power, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelling, "HOPELESS", 25)
    for _ in range(2):  # the second time from the shards alone
        with pytest.raises(DatasetError, match="none of the first 30 samples could be solved: infeasible 30"):
            make(problem, tmp_path, 10, Sampling("shared", 4.0, 5.0))
    assert len(list(tmp_path.glob("shard-*.parquet"))) == 3
    assert not read_manifest(tmp_path)["complete"]


# ---------------------------------------------------------------- several local optima


class TwoValleys:
    """A solver whose demand has two optima, states 0 and 1, in 0.9 … 1.1; a cold start finds the second but once."""

    several, threads = True, 0
    dear = 0.5
    """What the first costs more than the second, times the demand − 1."""

    def __init__(self) -> None:
        self.cold = 0

    def at(self, demand: np.ndarray, valley: float, iterations: int) -> Solution:
        total = float(demand.sum())
        exists = valley == 0 or 0.9 <= total <= 1.1
        cost = total + (self.dear * (total - 1) if valley == 0 else 0)
        none = np.zeros(0)
        return Solution("optimal" if exists else "infeasible", cost, np.array([valley]), none, none, iterations, 0.0)

    def solve(self, demand: np.ndarray, start: Solution | None = None) -> Solution:
        return self.optima(demand)[0] if start is None else self.at(demand, float(start.state[0]), 3)

    def optima(self, demand: np.ndarray) -> list[Solution]:
        self.cold += 1
        found = [self.at(demand, 0.0, 30)]
        if abs(demand.sum() - 1.05) < 1e-9:
            found.append(self.at(demand, 1.0, 30))
        return sorted(found, key=lambda solution: solution.objective)


def test_an_optimum_that_was_found_once_is_followed_to_every_demand_that_has_it() -> None:
    solver = TwoValleys()
    valleys = SimpleNamespace(nominal=np.array([1.0]), solver=lambda: solver)
    labeller = labelling.Labeller(valleys, labelling.Origin("x", "x", "x", 0, 10, Sampling("shared")))
    known = [len(anchor) for anchor in labeller.anchors]
    for factor, count in zip(labeller.factors, known, strict=True):
        assert count == (2 if 0.9 - 1e-9 <= factor <= 1.1 + 1e-9 else 1), factor
    for total in np.linspace(0.8, 1.2, 101):
        found = labeller.solve(np.array([total]))
        best = 1.0 if 1.0 < total <= 1.1 else 0.0
        assert found.state[0] == best or total == pytest.approx(1.0)
    before = solver.cold
    labeller.solve(np.array([0.85]))
    assert solver.cold == before, "where one optimum is known, a warm start is enough"

"""The paper's table on transprecision computing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import refused, size_of

from ldf.reproduce import figures as drawing
from ldf.reproduce import tables
from ldf.reproduce import transprecision as paper
from ldf.reproduce.jobs import JobError
from ldf.reproduce.options import Options
from ldf.reproduce.transprecision import Cell, contradicting, make, scattered, score
from ldf.transprecision import kernels, peers
from ldf.transprecision.dominance import Dominance
from ldf.transprecision.kernels import KERNELS, target
from ldf.transprecision.tables import draw
from ldf.transprecision.training import Sample


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))


def by_rows(table: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in table.tolist()]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few configurations and trees."""
    monkeypatch.setattr(paper, "TEST", 80)
    monkeypatch.setattr(paper, "POOL", 450)
    monkeypatch.setattr(paper, "SIZES", (200,))
    monkeypatch.setattr(peers, "ROUNDS", 40)


NETWORKS = ["mean", "linear", "M", "MC", "MCD", "MCD repaired"]
PEERS = ["LightGBM", "scikit-learn"]


@pytest.mark.usefixtures("small")
def test_the_papers_table_is_made_once_and_a_damaged_cell_again(
    tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("--case", "200", "--seeds", "2", "--epochs", "3", "--workers", "1", "--out", "out")
    done = call("reproduce", "transprecision", *few, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(str(Path("out/index.html")))
    assert "cell 2/2" in done.stderr
    out = tmp_path / "out"
    rows = json.loads((out / "results.json").read_text())
    assert all(set(row) == {*tables.KEYS, "epochs"} for row in rows)
    by_key = {(row["recipe"], row["model"], row["quantity"]): row for row in rows}
    assert len(by_key) == len(rows)
    quantities = {"MAE": "10^(−y)", "VC": "pairs", "SMVC": "10^(−y)", "MAE y": "y", "SMVC y": "y"}
    models = {"paper": [*NETWORKS, "MCD directed", *PEERS], "tuned": [*NETWORKS, *PEERS]}
    assert set(by_key) == {(recipe, model, q) for recipe in models for model in models[recipe] for q in quantities}
    published = {
        "MAE": {"M": 0.1902, "MC": 0.1919, "MCD": 0.1883},
        "VC": {"M": 9.6, "MC": 35.8, "MCD": 7.4},
        "SMVC": {"M": 0.2229, "MC": 0.4748, "MCD": 0.1872},
    }
    for (recipe, model, quantity), row in by_key.items():
        assert (row["table"], row["case"], row["seeds"]) == ("transprecision", "200", 2)
        assert row["sampling"] == {"paper": "half-violated", "tuned": "random"}[recipe]
        assert row["unit"] == quantities[quantity]
        assert row["paper"] == published.get(quantity, {}).get(model)
        assert row["mean"] >= 0
        assert row["std"] >= 0
        if quantity in ("VC", "SMVC", "SMVC y") and model in ("mean", "MCD repaired", *PEERS):
            assert row["mean"] == 0, (recipe, model)
    assert by_key["tuned", "MCD", "MAE y"]["mean"] < by_key["tuned", "mean", "MAE y"]["mean"]
    page = (out / "index.html").read_text()
    pictures = {"transprecision-paper.png", "transprecision-tuned.png", "profiles-correlation.png"}
    assert {one.name for one in out.glob("*.png")} == pictures
    for name in pictures:
        assert min(size_of(out / name)) > 300
    assert page.count("data:image/png") == 3
    assert "ldf reproduce transprecision --case 200" in page
    _, given = paper.data(KERNELS["correlation"])
    for recipe, choose in (("paper", contradicting), ("tuned", scattered)):
        sets = choose(given, 2, 200)
        pairs = np.mean([Dominance(given.configurations[rows]).count() for rows in sets])
        shares = 100 * np.mean([against(given, rows) for rows in sets])
        assert f"training sets, correlation, {recipe} recipe" in page
        assert f"200 rows: {pairs:.0f} pairs, {shares:.1f} % contradicted" in page

    cells = sorted((out / "work" / "transprecision").iterdir())
    assert [one.name for one in cells] == ["correlation-paper-200-2-3.json", "correlation-tuned-200-2-3.json"]
    again, honest = [], Cell.run
    monkeypatch.setattr(Cell, "run", lambda cell, work: (again.append(cell.recipe), honest(cell, work))[1])
    options = Options("transprecision", tmp_path / "second", out / "work", ["200"], seeds=2, epochs=3, workers=1)
    options = options.of("transprecision", ["200"])
    same = make(options).rows
    assert not again, "what is there is not made again"
    assert same == rows
    scores = json.loads(cells[1].read_text())["scores"]
    cells[1].write_bytes(cells[1].read_bytes()[:-30])
    anew = make(options).rows
    assert again == ["tuned"]
    assert anew == rows
    assert json.loads(cells[1].read_text())["scores"] == scores
    cells[0].write_text(json.dumps(json.loads(cells[0].read_text()) | {"version": Cell.version + 1}))
    monkeypatch.setattr(Cell, "run", lambda cell, work: (_ for _ in ()).throw(InterruptedError("now")))
    with pytest.raises(JobError, match="correlation paper 200: now"):
        make(options)


def test_bad_requests_for_the_table_are_refused(tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "POOL", 100)
    reproduce = ("reproduce", "transprecision", "--out", "out", "--workers", "1")
    refused(call(*reproduce, "--kernel", "gemm", cwd=tmp_path), "unknown kernel 'gemm'; the kernels are saxpy, ")
    refused(call(*reproduce, "--case", "24-pipe", cwd=tmp_path), "is a training set size, such as 200; got '24-pipe'")
    many = call(*reproduce, "--kernel", "fwt", "--case", "60", "--seeds", "2", cwd=tmp_path)
    refused(many, "2 disjoint training sets of 1000 rows need more than the 100 rows of the pool")
    assert not list(tmp_path.rglob("*.json"))


def pool(rows: int = 500, noise: float = 15.0) -> Sample:
    table = draw(3, rows, seed=6)
    noise = np.random.default_rng(0).normal(0, noise, rows)
    return Sample(table, (table.sum(1) + noise) / 156)


def against(given: Sample, rows: np.ndarray) -> float:
    """The share of dominated pairs whose labels are against the order."""
    table, targets = given.configurations[rows], given.targets[rows]
    pairs = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if i != j and (table[i] <= table[j]).all()]
    return sum(targets[i] > targets[j] for i, j in pairs) / max(1, len(pairs))


def test_half_of_the_pairs_of_a_contradicting_set_are_against_the_order() -> None:
    given = pool()
    assert against(given, np.arange(200)) < 0.1, "of any set"
    found = contradicting(given, 3, 60)
    rows = np.concatenate(found)
    assert [len(one) for one in found] == [60, 60, 60]
    assert len(np.unique(rows)) == 180, "disjoint"
    assert rows.min() >= 0
    assert rows.max() < 500
    for one in found:
        for size in (30, 45, 60):
            assert against(given, one[:size]) == pytest.approx(0.5, abs=0.15)
    assert all((a == b).all() for a, b in zip(found, contradicting(given, 3, 60), strict=True))


def test_where_no_labels_contradict_sets_are_disjoint_all_the_same() -> None:
    given = pool(noise=0.0)
    found = contradicting(given, 2, 40)
    assert len(np.unique(np.concatenate(found))) == 80
    assert against(given, found[0]) == 0.0
    every = contradicting(pool(40), 2, 20)
    assert sorted(np.concatenate(every)) == list(range(40)), "the whole pool"


def test_a_pool_with_too_many_pairs_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "PAIRS", 4000)
    given = pool()
    rows = np.concatenate(contradicting(given, 2, 50))
    assert rows.max() < 211, "500 · (3/4)³"
    assert len(np.unique(rows)) == 100
    assert max(np.concatenate(contradicting(given, 2, 220))) == 439, "as many as are needed in any case"


def test_scattered_sets_are_disjoint_and_too_many_are_refused() -> None:
    found = scattered(pool(), 5, 100)
    assert sorted(np.concatenate(found)) == list(range(500))
    for choose in (scattered, contradicting):
        with pytest.raises(
            ValueError, match="5 disjoint training sets of 101 rows need more than the 500 rows of the pool"
        ):
            choose(pool(), 5, 101)


def test_test_rows_are_none_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "TEST", 50)
    monkeypatch.setattr(paper, "POOL", 100)
    test, rest = paper.data(KERNELS["fwt"])
    assert (len(test.targets), len(rest.targets)) == (50, 100)
    assert len({*by_rows(test.configurations), *by_rows(rest.configurations)}) == 150
    assert (test.targets == target(KERNELS["fwt"].errors(test.configurations))).all()


def test_scores_are_those_counted_pair_by_pair() -> None:
    test = pool(60)
    values = np.clip(test.targets + np.random.default_rng(2).normal(0, 0.1, 60), 0, 1)
    table = test.configurations
    count, total, power = 0, 0.0, 0.0
    for i in range(60):
        for j in range(60):
            if i != j and (table[i] <= table[j]).all() and values[i] > values[j]:
                count += 1
                total += values[i] - values[j]
                power += abs(10 ** -values[i] - 10 ** -values[j])
    assert count > 10
    assert score(values, test, Dominance(table)) == pytest.approx(
        {
            "MAE": np.mean([abs(10**-a - 10**-b) for a, b in zip(values, test.targets, strict=True)]),
            "VC": count,
            "SMVC": power,
            "MAE y": np.mean([abs(a - b) for a, b in zip(values, test.targets, strict=True)]),
            "SMVC y": total,
        }
    )


def curve(model: str, quantity: str, case: int, mean: float | None, theirs: float | None = None) -> dict:
    return {
        "table": "transprecision", "case": str(case), "sampling": "random", "recipe": "tuned", "model": model,
        "quantity": quantity, "mean": mean, "std": 0.01, "seeds": 2, "unit": "pairs", "paper": theirs,
    }  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_curves_have_a_panel_a_quantity_and_a_line_a_model(tmp_path: Path, figures: list) -> None:
    rows = [
        curve(model, quantity, case, 0.0 if model == "LightGBM" else case / 100, 5.0 if model == "M" else None)
        for model in ("M", "MCD", "LightGBM")
        for quantity in ("VC", "SMVC")
        for case in (200, 400, 1000)
    ]
    rows[0]["mean"] = None  # a gap
    drawing.curves_figure(rows, tmp_path / "curves.png", ("VC", "SMVC"), "training configurations")
    assert min(size_of(tmp_path / "curves.png")) > 300
    panels = figures[0].axes
    assert [axes.get_title() for axes in panels] == ["VC (pairs)", "SMVC (pairs)"]
    for axes in panels:
        assert axes.get_yscale() == "log"
        assert axes.get_xlabel() == "training configurations"
        lines = {line.get_label(): line for line in axes.get_lines() if line.get_label() in ("M", "MCD", "LightGBM")}
        assert [list(line.get_xdata()) for line in lines.values()] == [[200, 400, 1000]] * 3
        assert list(lines["MCD"].get_ydata()) == [2, 4, 10]
        (floor,) = set(lines["LightGBM"].get_ydata())
        assert 0 < floor < 2, "zeros stand below all else"
        assert "0" in [text.get_text() for text in axes.texts]
        (hollow,) = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white"]
        assert list(hollow.get_ydata()) == [5, 5, 5]
    assert math.isnan(next(line for line in panels[0].get_lines() if line.get_label() == "M").get_ydata()[0])
    words = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert words == ["M", "MCD", "LightGBM", "hollow: the paper"]
    with pytest.raises(ValueError, match="no rows to draw; at least one is needed"):
        drawing.curves_figure([], tmp_path / "none.png", ("VC",), "training configurations")
    assert not (tmp_path / "none.png").exists()

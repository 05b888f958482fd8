"""The tables on fairness: folds, kept cells, rows beside the paper's; on synthetic people in place of Adult's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from ldf.fairness import study
from ldf.fairness.datasets import Variant, synthetic
from ldf.reproduce import fairness, jobs
from ldf.reproduce.options import Options
from ldf.reproduce.tables import KEYS, Part


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True)
def people(monkeypatch):
    monkeypatch.setattr(fairness, "load", lambda name: synthetic(400, seed=3))


def small(table: str, work: Path, out: str = "", **asked: object) -> Options:
    """One variant, two folds, one epoch."""
    asked = {"cases": ["adult-sex"], "recipes": ["paper", "tuned"], "seeds": 2, "epochs": 1} | asked
    return Options(table, work / (out or table), work, workers=1, progress=False, **asked)


def make(table: str, work: Path, out: str = "") -> Part:
    return fairness.make(small(table, work, out))


def test_folds_are_disjoint_equal_and_alike():
    variant = synthetic(1003, seed=1)
    folds = study.folds_of(variant)
    assert [len(fold) for fold in folds] == [200] * 5
    assert len(np.unique(np.concatenate(folds))) == 1000
    for group in "ab":
        for label in (0, 1):
            counts = [int(((variant.groups[f] == group) & (variant.labels[f] == label)).sum()) for f in folds]
            assert max(counts) - min(counts) <= 1


def test_a_score_is_accuracy_and_the_difference_of_rates():
    groups = np.array(["x", "x", "y", "y", "y"], dtype=object)
    found = study.score(np.array([1, 0, 1, 1, 1]) == 1, np.array([1, 1, 1, 0, 1]), groups)
    assert found == {"accuracy": 0.6, "DT": 0.5, "signed DT": 0.5}


def test_each_fold_is_encoded_by_its_own_training_rows():
    variant = synthetic(300, seed=2)
    stack = study.Stack.of(variant, 2)
    for fold, test in enumerate(study.folds_of(variant)[:2]):
        train = np.setdiff1d(np.arange(300), test)
        x1 = variant.features["x1"].to_numpy()
        block = stack.data["inputs"][stack.subsets[fold]]
        expected = (x1 - x1[train].mean()) / x1[train].std()
        assert torch.allclose(block[:, 0].double(), torch.from_numpy(expected), atol=1e-5)
        assert torch.equal(stack.held_out[fold] - 300 * fold, torch.from_numpy(test))


def test_the_main_table_has_every_model_beside_the_papers_figures(tmp_path):
    part = make("fairness", tmp_path)
    rows = part.rows
    assert all(set(KEYS) <= set(row) for row in rows)
    found = {(row["recipe"], row["model"], row["quantity"]): row for row in rows}
    for model in ("M", "MC", "MCD", "MCD expected", "MCD separate", "Zafar", "mean", "linear"):
        assert found["paper", model, "DT"]["seeds"] == 2
    for base in ("", "boosting "):
        for model in ("M", "MCD", "M + plug-in", "M + thresholds (z)"):
            assert 0 < found["tuned", base + model, "accuracy"]["mean"] < 1
    assert found["paper", "MCD", "accuracy"]["paper"] == 0.8335
    assert found["tuned", "MCD", "DT"]["paper"] == 0.0545
    assert found["paper", "Zafar", "DT"]["paper"] == 0.1037
    assert found["paper", "mean", "DT"]["mean"] == 0
    assert found["paper", "mean", "DT"]["paper"] is None
    for row in rows:
        if row["quantity"] == "DT":
            assert row["mean"] >= abs(found[row["recipe"], row["model"], "signed DT"]["mean"]) - 1e-12
    assert [figure.path for figure in part.figures] == ["trade-off-adult-sex.png"]
    assert (tmp_path / "fairness" / "trade-off-adult-sex.png").is_file()


def test_the_relaxed_table_and_the_traces_follow_from_the_same_cells(tmp_path, monkeypatch):
    rows = make("relaxed-fairness", tmp_path).rows
    gap = abs(synthetic(400, seed=3).gap)
    assert {row["slack"] for row in rows} == {0.05, 0.2, 0.5}
    assert all(row["epsilon"] == pytest.approx(row["slack"] * gap) for row in rows)
    of = {(r["recipe"], r["model"], r["slack"], r["quantity"]): r for r in rows}
    assert of["paper", "MCD", 0.5, "DT"]["paper"] == 0.0812
    assert of["tuned", "MCD", 0.05, "accuracy"]["paper"] == 0.8336
    assert of["tuned", "boosting MCD", 0.2, "DT"]["seeds"] == 2
    traces = make("fairness-traces", tmp_path).rows
    assert {row["model"] for row in traces} == {"M", "MC", "MCD", "Zafar"}
    lines = (tmp_path / "fairness-traces" / "traces.csv").read_text().splitlines()
    assert len(lines) == 1 + 5 * 2  # five models, two folds, one epoch each
    for name in ("paper", "paper_separate", "paper_relaxed", "tuned", "tuned_relaxed"):
        monkeypatch.setattr(study, name, None)
    assert make("relaxed-fairness", tmp_path, "again").rows == rows
    assert make("fairness-traces", tmp_path, "more").rows == traces


def test_tables_have_the_cells_that_they_need_and_share_them(tmp_path):
    cells = {table: fairness.cells(small(table, tmp_path)) for table in fairness.TABLES}
    kinds = {table: [cell.kind for cell in own] for table, own in cells.items()}
    tuned = ["network", "network", "boosting", "boosting"]
    assert kinds["fairness"] == ["paper", "paper-separate", *tuned]
    assert kinds["relaxed-fairness"] == ["paper-relaxed", *(f"{kind}-relaxed" for kind in tuned)]
    assert kinds["fairness-traces"] == ["paper"], "whatever recipe is asked for"
    assert set(cells["fairness-traces"]) < set(cells["fairness"])
    needed = [need for cell in cells["relaxed-fairness"] for need in cell.needs]
    assert needed == cells["fairness"][2:], "where the multipliers start"
    assert "paper-separate" not in {c.kind for c in fairness.cells(small("fairness", tmp_path, cases=["adult-race"]))}
    folder = tmp_path / "fairness"
    assert [cell.path(tmp_path) for cell in cells["fairness"][1:3]] == [
        folder / "adult-sex-paper-separate-2-folds-1.json", folder / "adult-sex-network-fold-0-1.json",
    ]  # fmt: skip


def test_a_cell_that_is_there_is_not_run_again(tmp_path):
    (cell,) = fairness.cells(small("fairness-traces", tmp_path))
    first = jobs.run([cell], tmp_path, 1, False)[cell]
    before = cell.path(tmp_path).stat().st_mtime_ns
    assert jobs.run([cell], tmp_path, 1, False)[cell] == first
    assert cell.path(tmp_path).stat().st_mtime_ns == before
    cell.path(tmp_path).write_text('{"version": 0}')
    assert jobs.run([cell], tmp_path, 1, False)[cell]["scores"] == first["scores"]


def test_what_there_is_not_is_refused():
    with pytest.raises(ValueError, match="unknown variant 'adult-age'; the variants are adult-sex"):
        fairness.cells(small("fairness", Path(), cases=["adult-age"]))
    with pytest.raises(ValueError, match="the number of folds must be 1 to 5, got 6"):
        fairness.cells(small("fairness", Path(), seeds=6))


def test_a_constant_variant_has_no_gap_to_relax():
    variant = synthetic(50)
    assert Variant("even", variant.features, np.ones(50, dtype=np.int64), variant.groups, "group").gap == 0

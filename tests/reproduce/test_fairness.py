"""The tables on fairness: folds, kept cells, rows beside the paper's; on made-up people in place of Adult's."""

import json

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from ldf.fairness import study
from ldf.fairness.datasets import Reading, synthetic
from ldf.reproduce import fairness
from ldf.reproduce.tables import KEYS

SMALL = fairness.Options(readings=["adult-sex"], folds=2, epochs=1, workers=1, progress=False)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True)
def people(monkeypatch):
    monkeypatch.setattr(fairness, "load", lambda name: synthetic(400, seed=3))


def read(out):
    return json.loads((out / "results.json").read_text())


def test_folds_are_disjoint_equal_and_alike():
    reading = synthetic(1003, seed=1)
    folds = study.folds_of(reading)
    assert [len(fold) for fold in folds] == [200] * 5
    assert len(np.unique(np.concatenate(folds))) == 1000
    for group in "ab":
        for label in (0, 1):
            counts = [int(((reading.groups[f] == group) & (reading.labels[f] == label)).sum()) for f in folds]
            assert max(counts) - min(counts) <= 1


def test_a_score_is_accuracy_and_the_difference_of_rates():
    groups = np.array(["x", "x", "y", "y", "y"], dtype=object)
    found = study.score(np.array([1, 0, 1, 1, 1]) == 1, np.array([1, 1, 1, 0, 1]), groups)
    assert found == {"accuracy": 0.6, "DT": 0.5, "signed DT": 0.5}


def test_each_fold_is_encoded_by_its_own_training_rows():
    reading = synthetic(300, seed=2)
    stack = study.Stack.of(reading, 2)
    for fold, test in enumerate(study.folds_of(reading)[:2]):
        train = np.setdiff1d(np.arange(300), test)
        x1 = reading.features["x1"].to_numpy()
        block = stack.data["inputs"][stack.subsets[fold]]
        expected = (x1 - x1[train].mean()) / x1[train].std()
        assert torch.allclose(block[:, 0].double(), torch.from_numpy(expected), atol=1e-5)
        assert torch.equal(stack.held_out[fold] - 300 * fold, torch.from_numpy(test))


def test_the_main_table_has_every_model_beside_the_papers_figures(tmp_path):
    part = fairness.make_fairness(tmp_path / "out", tmp_path / "work", SMALL)
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
    assert (tmp_path / "out" / "trade-off-adult-sex.png").is_file()


def test_the_relaxed_table_and_the_traces_follow_from_the_same_cells(tmp_path, monkeypatch):
    work = tmp_path / "work"
    rows = fairness.make_relaxed(tmp_path / "relaxed", work, SMALL).rows
    gap = abs(synthetic(400, seed=3).gap)
    assert {row["slack"] for row in rows} == {0.05, 0.2, 0.5}
    assert all(row["epsilon"] == pytest.approx(row["slack"] * gap) for row in rows)
    of = {(r["recipe"], r["model"], r["slack"], r["quantity"]): r for r in rows}
    assert of["paper", "MCD", 0.5, "DT"]["paper"] == 0.0812
    assert of["tuned", "MCD", 0.05, "accuracy"]["paper"] == 0.8336
    assert of["tuned", "boosting MCD", 0.2, "DT"]["seeds"] == 2
    traces = fairness.make_traces(tmp_path / "traces", work, SMALL).rows
    assert {row["model"] for row in traces} == {"M", "MC", "MCD", "Zafar"}
    lines = (tmp_path / "traces" / "traces.csv").read_text().splitlines()
    assert len(lines) == 1 + 5 * 2  # five models, two folds, one epoch each
    for name in ("paper", "paper_separate", "paper_relaxed", "tuned", "tuned_relaxed"):
        monkeypatch.setattr(study, name, None)
    assert fairness.make_relaxed(tmp_path / "again", work, SMALL).rows == rows
    assert fairness.make_traces(tmp_path / "more", work, SMALL).rows == traces


def test_a_damaged_cell_is_run_again(tmp_path):
    only = fairness.Options(readings=["adult-sex"], recipes=["paper"], folds=2, epochs=1, workers=1, progress=False)
    (job,) = fairness.jobs_of(only, traces=True)
    first = fairness.run([job], tmp_path, only)[job]
    job.path(tmp_path).write_text('{"version": 0}')
    assert fairness.run([job], tmp_path, only)[job]["scores"] == first["scores"]
    job.path(tmp_path).write_text("{")
    assert fairness.run([job], tmp_path, only)[job]["scores"] == first["scores"]


def test_what_there_is_not_is_refused():
    with pytest.raises(ValueError, match="no reading 'adult-age'; there are adult-sex"):
        fairness.jobs_of(fairness.Options(readings=["adult-age"]))
    with pytest.raises(ValueError, match="there are 5 folds, got 6"):
        fairness.jobs_of(fairness.Options(folds=6))


def test_a_constant_reading_has_no_gap_to_relax():
    reading = synthetic(50)
    assert Reading("even", reading.features, np.ones(50, dtype=np.int64), reading.groups, "group").gap == 0

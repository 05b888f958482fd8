"""`ldf transprecision …`."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers import refused
from precisions import OWN

from ldf.io.files import write_columns
from ldf.transprecision import kernels, tuner
from ldf.transprecision.dominance import Dominance
from ldf.transprecision.kernels import KERNELS
from ldf.transprecision.predictor import Predictor
from ldf.transprecision.tables import draw, label, read_table


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove kernels registered by a test."""
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with training labels, test labels and a predictor."""
    folder = tmp_path_factory.mktemp("made")
    kernel = KERNELS["convolution"]
    label(kernel, 150, folder / "labels.csv", seed=0)
    label(kernel, 60, folder / "test.parquet", seed=1)
    data = read_table(folder / "labels.csv")
    predictor = Predictor.fit(data.configurations, data.targets, variables=data.variables, epochs=4)
    predictor.save(folder / "predictor")
    return folder


def test_the_kernels_are_listed(call) -> None:
    done = call("transprecision", "kernels")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["kernel", "variables", "computes", "names"]
    assert [line.split()[0] for line in lines[1:]] == list(KERNELS)
    assert "saxpy" in lines[1]
    assert lines[1].endswith("a, x, y")
    assert lines[-1].endswith("..."), "a list of 25 names is truncated"
    assert max(map(len, lines)) < 200


def test_labels_of_a_kernel(tmp_path: Path, call) -> None:
    done = call("transprecision", "label", "convolution", "-n", "500", "--out", "labels.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("500 configurations of convolution in labels.parquet, ")
    assert len(read_table(tmp_path / "labels.parquet")) == 500
    few = ("--rows", "500", "--low", "6", "--high", "7", "--seed", "3")
    done = call("transprecision", "label", "convolution", *few, "--out", "few.csv", cwd=tmp_path)
    assert done.stdout.startswith("16 configurations (all that exist) of convolution in few.csv, ")
    table = read_table(tmp_path / "few.csv")
    assert (table.configurations == draw(4, 500, 3, 6, 7)).all()


def test_labels_of_a_custom_kernel(tmp_path: Path, call) -> None:
    (tmp_path / "own.py").write_text(OWN)
    done = call("transprecision", "label", "own.py:dot", "-n", "60", "--out", "labels.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_table(tmp_path / "labels.csv").variables == ("x", "total")
    refused(
        call("transprecision", "label", "own.py:sum", "--out", "labels.csv", cwd=tmp_path),
        "own.py defines the kernels dot; choose one with own.py:NAME",
    )


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_training_evaluation_and_advice(made: Path, tmp_path: Path, call, suffix: str) -> None:
    data = read_table(made / "labels.csv")
    columns = dict(zip(data.variables, data.configurations.T.tolist(), strict=True))
    write_columns(tmp_path / f"labels.{suffix}", columns | {"target": data.targets.tolist()})
    out = ("--out", str(tmp_path / "predictor"))
    done = call("transprecision", "train", f"labels.{suffix}", "--epochs", "4", *out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pairs = Dominance(data.configurations).count()
    assert done.stdout.startswith(f"150 rows of image, filter, total, output; {pairs} dominated pairs\nMCD in ")
    assert "epoch 4/4" in done.stderr
    assert {one.name for one in tmp_path.iterdir()} == {f"labels.{suffix}", "predictor"}
    ours, theirs = (Predictor.load(folder / "predictor") for folder in (tmp_path, made))
    test = read_table(made / "test.parquet")
    assert (ours.predict(test.configurations) == theirs.predict(test.configurations)).all()

    found = json.loads(call("transprecision", "evaluate", "predictor", str(made / "test.parquet"), "--json").stdout)
    assert list(found) == ["predicted", "repaired"]
    for name, repair in (("predicted", False), ("repaired", True)):
        violations = ours.violations(test.configurations, repair)
        assert found[name] == {
            "MAE": pytest.approx(np.abs(ours.predict(test.configurations, repair) - test.targets).mean()),
            "VC": violations.violated,
            "SMVC": violations.total,
            "pairs": violations.pairs,
        }
    assert found["repaired"]["VC"] == 0
    shown = call("transprecision", "evaluate", "predictor", str(made / "test.parquet")).stdout.splitlines()
    assert [line.split()[0] for line in shown[1:]] == ["MAE", "VC", "SMVC", "pairs"]
    assert shown[0].split() == ["60", "rows", "predicted", "repaired"]
    lines = call("transprecision", "doctor", "predictor").stdout.splitlines()
    assert lines[0] == "MCD, tuned recipe, 150 rows"
    assert lines[1].startswith("monotone: ")


def test_training_takes_other_models_columns_and_directions(made: Path, tmp_path: Path, call) -> None:
    rows = "".join(f"{i % 7},{i % 5},{i},{9 - i % 7 - 0.5 * (i % 5)}\n" for i in range(40))
    (tmp_path / "own.csv").write_text("lanes,depth,number,cost\n" + rows)
    options = ("--target", "cost", "--variable", "lanes", "--variable", "depth", "--decreasing", "--model", "MC")
    more = ("--recipe", "paper", "--epochs", "2", "--seed", "3", "--out", "own")
    done = call("transprecision", "train", "own.csv", *options, *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    held = Predictor.load(tmp_path / "own")
    assert held.variables == ("lanes", "depth")
    assert held.span < 0
    assert held.facts["doctor"]
    wanted = {"model": "MC", "recipe": "paper", "seed": 3, "rows": 40, "epochs": 2}
    assert {name: held.facts[name] for name in wanted} == wanted
    done = call("transprecision", "evaluate", "own", "own.csv", "--target", "cost", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    table = read_table(tmp_path / "own.csv", "cost", held.variables)
    before = held.violations(table.configurations, repair=False)
    assert (found["predicted"]["VC"], found["predicted"]["SMVC"]) == (before.violated, before.total)
    assert before.violated > 0
    assert found["repaired"]["VC"] == 0


class StopError(Exception):
    """Stops a run from inside, like a kill."""


def test_stopped_training_resumes(made: Path, tmp_path: Path, call, monkeypatch: pytest.MonkeyPatch) -> None:
    train = ("transprecision", "train", str(made / "labels.csv"), "--out", "predictor", "--epochs")

    def stop(*_: object) -> None:
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "save", stop)  # the checkpoint exists, the predictor does not
        with pytest.raises(StopError):
            call(*train, "4", cwd=tmp_path)
    place = tmp_path / ".predictor.checkpoint"
    assert [one.name for one in tmp_path.iterdir()] == [place.name]
    other = call(*train, "5", cwd=tmp_path)
    assert other.returncode == 1
    assert "epochs: 4 there, 5 here" in other.stderr
    done = call(*train, "4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["predictor"]
    test = read_table(made / "test.parquet").configurations
    ours, theirs = (Predictor.load(folder / "predictor") for folder in (tmp_path, made))
    assert (ours.predict(test) == theirs.predict(test)).all()


def test_predictions_with_and_without_repair(made: Path, tmp_path: Path, call) -> None:
    data = read_table(made / "test.parquet")
    table = data.configurations.copy()
    table[3, 2], table[5, 0] = 1, 2  # fewer bits than in the training set
    columns = dict(zip(data.variables, table.T.tolist(), strict=True))
    write_columns(tmp_path / "asked.csv", {"other": [0] * 60} | columns)
    held = Predictor.load(made / "predictor")
    ask = ("transprecision", "predict", str(made / "predictor"), "--configurations", "asked.csv", "--out")
    done = call(*ask, "answers.csv", cwd=tmp_path)
    pairs = Dominance(table).count()
    assert done.stdout == f"60 predictions in answers.csv; 0 of {pairs} dominated pairs violated\n"
    assert done.stderr == "Warning: 2 of 60 configurations outside the training range\n"
    with (tmp_path / "answers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*data.variables, "predicted", "outside"]
    assert [float(row["predicted"]) for row in rows] == held.predict(table).tolist()
    assert [i for i, row in enumerate(rows) if row["outside"] == "True"] == [3, 5]
    assert [[int(row[name]) for name in data.variables] for row in rows] == table.tolist()
    write_columns(tmp_path / "asked.csv", dict(zip(data.variables, data.configurations.T.tolist(), strict=True)))
    done = call(*ask, "answers.parquet", "--no-repair", cwd=tmp_path)
    assert not done.stderr
    found = pq.read_table(tmp_path / "answers.parquet").to_pydict()
    assert found["predicted"] == held.predict(data.configurations, repair=False).tolist()
    assert not any(found["outside"])


@pytest.mark.usefixtures("quick")
def test_tuned_widths_are_printed(call) -> None:
    tune = ("transprecision", "tune", "fwt", "--max-error", "1e-4", "--seed", "2")
    done = call(*tune, "--json")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found = json.loads(done.stdout)
    assert (found["kernel"], found["max_error"]) == ("fwt", 1e-4)
    assert list(found) == ["kernel", "max_error", "seconds", "tuned", "greedy"]
    for name, wanted in (
        ("tuned", tuner.tune(KERNELS["fwt"], 1e-4, seed=2)),
        ("greedy", tuner.greedy(KERNELS["fwt"], 1e-4)),
    ):
        assert found[name] == {
            "bits": wanted.bits,
            "error": wanted.error,
            "runs": wanted.runs,
            "configuration": dict(zip(("data", "sum"), wanted.configuration, strict=True)),
        }
    done = call(*tune, "--no-greedy")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["tuned"]
    assert [line.split()[0] for line in lines[1:6]] == ["data", "sum", "bits", "error", "kernel"]
    assert f"{found['tuned']['bits']} of 104 mantissa bits: measured error " in lines[-1]


def test_errors_are_one_line(made: Path, tmp_path: Path, call) -> None:
    (tmp_path / "half.csv").write_text("a,target\n1.5,0.5\n")
    (tmp_path / "few.csv").write_text("a,target\n1,0.5\n2,0.6\n")
    damaged = tmp_path / "damaged"
    damaged.write_bytes((made / "predictor").read_bytes()[:-50])
    before = {one.name for one in tmp_path.iterdir()}

    def say(*arguments: str):
        return call("transprecision", *arguments, cwd=tmp_path)

    refused(say("label", "gemm", "--out", "labels.csv"), "there is no kernel 'gemm'; available: saxpy, ")
    refused(say("label", "none.py:dot", "--out", "labels.csv"), "there is no file none.py")
    refused(say("label", "fwt", "--out", "labels.txt"), "labels are written to .csv or .parquet files")
    refused(say("label", "fwt", "--out", "labels.csv", "--low", "9", "--high", "8"), "got low = 9 and high = 8")
    refused(say("train", "none.csv", "--out", "p"), "there is no file none.csv")
    refused(say("train", "half.csv", "--out", "p"), "half.csv: column 'a', row 1: expected an integer, got 1.5")
    few = say("train", "few.csv", "--out", "p")
    assert few.returncode == 1
    assert few.stderr.startswith("ldf: need at least ten configurations and one target for each, got 2")
    assert few.stderr.count("\n") == 1
    refused(
        say("train", "few.csv", "--target", "cost", "--out", "p"),
        "has no target column: expected cost, found a, target",
    )
    refused(say("doctor", "none"), "there is no file none; create it with `ldf transprecision train`")
    refused(say("doctor", "damaged"), "damaged is damaged or not a checkpoint")
    refused(say("doctor", "few.csv"), "few.csv is damaged or not a checkpoint")
    predictor = str(made / "predictor")
    refused(say("evaluate", predictor, "few.csv"), "few.csv has no column 'image'; it has: a, target")
    ask = ("predict", predictor, "--configurations", "few.csv", "--out")
    refused(say(*ask, "answers.csv"), "few.csv has no column 'image'")
    refused(say(*ask, "answers.txt"), "predictions are written to .csv or .parquet files")
    refused(say("tune", "fwt", "--max-error", "0"), "the error bound must be a finite number > 0, got 0.0")
    refused(say("tune", "fwt", "--max-error", "nan"), "must be a finite number > 0, got nan")
    assert {one.name for one in tmp_path.iterdir()} == before
    for arguments in (
        ("train", "few.csv", "--out", "p", "--model", "MD"),
        ("label", "fwt"),
        ("tune", "fwt"),
        ("gemm",),
    ):
        assert say(*arguments).returncode == 2

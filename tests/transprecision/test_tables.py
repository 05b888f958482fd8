"""Sampling and running configurations, and tables of them."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from precisions import OWN

from ldf.io import files
from ldf.io.files import check_writable, read_columns, write_columns
from ldf.transprecision import kernels, tables
from ldf.transprecision.kernels import KERNELS, Kernel, target
from ldf.transprecision.tables import draw, label, read_configurations, read_table, run


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove kernels registered by a test."""
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))


def by_rows(table: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in table.tolist()]


def test_samples_are_distinct_uniform_and_a_prefix_of_larger_ones() -> None:
    many = draw(2, 1500, seed=3)
    assert many.shape == (1500, 2)
    assert many.dtype == np.int64
    assert len(set(by_rows(many))) == 1500
    assert (draw(2, 400, seed=3) == many[:400]).all()
    assert (draw(2, 400, seed=4) != many[:400]).any()
    assert (many.min(), many.max()) == (4, 52)
    more = draw(3, 9000, seed=3)
    assert (draw(3, 5000, seed=3) == more[:5000]).all(), "over more than one block"
    assert np.bincount(more[:, 0], minlength=53)[4:].min() > 100
    narrow = draw(5, 200, seed=0, low=1, high=3)
    assert set(narrow.ravel()) == {1, 2, 3}


def test_all_configurations_in_random_order_if_there_are_no_more() -> None:
    every = draw(2, 1000, seed=1, low=5, high=9)
    assert sorted(by_rows(every)) == list(itertools.product(range(5, 10), repeat=2))
    assert by_rows(every) != sorted(by_rows(every))
    assert len(draw(2, 25, seed=1, low=5, high=9)) == 25
    assert len(set(by_rows(draw(2, 24, seed=1, low=5, high=9)))) == 24
    assert draw(3, 5, seed=0, low=7, high=7).tolist() == [[7, 7, 7]]


@pytest.mark.parametrize(("low", "high"), [(0, 52), (4, 53), (10, 9)])
def test_widths_are_between_1_and_52(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"widths must satisfy .* ≤ 52 bits, got low = {low} and high = {high}"):
        draw(3, 10, seed=0, low=low, high=high)


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that makes every kernel look slow."""
    ticks = itertools.count(0, 100)
    monkeypatch.setattr(tables, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))


def test_on_all_cores_errors_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    kernel = kernels.open_kernel(f"{tmp_path / 'own.py'}:dot")
    drawn = draw(2, 600, seed=0)
    alone = kernel.errors(drawn)
    asked = []

    class Watched(tables.joblib.Parallel):
        def __call__(self, jobs):
            asked.extend(jobs)
            return super().__call__(iter(asked))

    monkeypatch.setattr(tables.joblib, "Parallel", Watched)
    assert (run(kernel, drawn, workers=2) == alone).all()
    assert not asked, "a fast kernel runs in this process"
    slow(monkeypatch)
    assert (run(kernel, drawn, workers=2) == alone).all()
    assert [len(arguments[1]) for _, arguments, _ in asked] == [256, 88]
    asked.clear()
    assert (run(kernel, drawn, workers=1) == alone).all()
    assert (run(replace(kernel, source=None), drawn, workers=2) == alone).all()
    assert not asked


@pytest.mark.parametrize("suffix", ["csv", "parquet", "PARQUET"])
@pytest.mark.parametrize("name", ["fwt", "correlation"])
def test_labels_are_written_and_read_back(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / "new" / f"labels.{suffix}"
    kernel = KERNELS[name]
    made = label(kernel, 100, path, seed=2, low=3, high=40)
    assert (made.configurations == draw(len(kernel.variables), 100, 2, 3, 40)).all()
    errors = kernel.errors(made.configurations)
    assert (made.targets == target(errors)).all()
    columns = read_columns(path, "labels")
    assert list(columns) == [*kernel.variables, "error", "target"]
    assert columns["error"] == errors.tolist(), "to the last bit"
    held = read_table(path)
    assert held.variables == made.variables == kernel.variables
    assert (held.configurations == made.configurations).all()
    assert (held.targets == made.targets).all()
    assert len(held) == 100
    assert (read_configurations(path, kernel.variables[::-1]) == made.configurations[:, ::-1]).all()
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    if suffix == "parquet":
        facts = json.loads(pq.read_schema(path).metadata[b"ldf"])
        assert facts == {"kernel": name, "seed": 2, "low": 3, "high": 40}


def test_a_variable_called_y_keeps_its_column(tmp_path: Path) -> None:
    label(KERNELS["saxpy"], 20, tmp_path / "labels.csv")
    assert read_table(tmp_path / "labels.csv").configurations.shape == (20, 3)


def test_labels_with_infinite_errors_are_read_back(tmp_path: Path) -> None:
    kernel = Kernel("zero", ("x",), lambda x: np.where(x(np.full((1, 1), 1.3)) == 1.3, 1.0, np.inf))
    made = label(kernel, 100, tmp_path / "labels.csv")
    assert len(made) == 49
    assert sorted(set(made.targets)) == [0.0, 1.0]
    assert (read_table(tmp_path / "labels.csv").targets == made.targets).all(), "an error may be infinite"


def test_another_suffix_is_refused_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "run", lambda *_: pytest.fail("it was run"))
    with pytest.raises(ValueError, match=r"labels\.txt: labels are written to \.csv or \.parquet files"):
        label(KERNELS["fwt"], 10, tmp_path / "labels.txt")
    for fine in ("a.csv", "a.CSV", "a.parquet"):
        check_writable(Path(fine), "labels")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_target_is_y_else_the_error_else_the_named_column(tmp_path: Path) -> None:
    both = written(tmp_path / "both.csv", "a,b,error,target\n4,5,1e-3,0.5\n6,7,1e-6,0.75\n")
    table = read_table(both)
    assert (table.variables, table.configurations.tolist()) == (("a", "b"), [[4, 5], [6, 7]])
    assert table.targets.tolist() == [0.5, 0.75]
    errors = written(tmp_path / "errors.csv", "a,error,b\n4,1e-3,5\n6,1e-6,7.0\n8,0,9\n")
    table = read_table(errors)
    assert (table.variables, table.configurations.tolist()) == (("a", "b"), [[4, 5], [6, 7], [8, 9]])
    assert table.targets.tolist() == pytest.approx([0.1, 0.2, 1.0]), "error is converted to y"
    assert read_table(both, "error").targets.tolist() == [1e-3, 1e-6], "unchanged if named explicitly"
    cost = written(tmp_path / "cost.csv", "a,b,cost,target\n4,5,-7.5,1\n6,7,12,0\n")
    table = read_table(cost, "cost")
    assert (table.variables, table.targets.tolist()) == (("a", "b"), [-7.5, 12.0])
    table = read_table(cost, "cost", ["b"])
    assert (table.variables, table.configurations.tolist()) == (("b",), [[5], [7]])
    assert read_table(cost, None, ["b", "a"]).configurations.tolist() == [[5, 4], [7, 6]]
    assert read_table(cost, "a", ["b"]).targets.tolist() == [4, 6]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {}, "has no target column: expected target or error, found a, b"),
        ("a,target\n1,2\n", {"target_name": "cost"}, "has no target column: expected cost, found a, target"),
        ("a,target\n1,2\n", {"variables": ["b"]}, "has no column 'b'; it has: a, target"),
        ("target\n2\n", {}, "has no column of widths"),
        ("a,target\n1,2\n1.5,2\n", {}, "column 'a', row 2: expected an integer, got 1.5"),
        ("a,target\nnan,2\n", {}, "column 'a', row 1: expected a number, got None"),
        ("a,target\n1,2\ninf,3\n", {}, "column 'a', row 2: expected an integer, got inf"),
        ("a,error\n1,0.5\n2,-0.5\n", {}, "column 'error': values must be numbers ≥ 0"),
        ("a,error\n1,nan\n", {}, "column 'error', row 1: expected a number, got None"),
        ("a,target\n1,0.5\n2,nan\n", {}, "column 'target', row 2: expected a number, got None"),
        ("a,cost\n1,inf\n", {"target_name": "cost"}, "column 'cost', row 1: expected a finite number, got inf"),
        ("a,target\n1,x\n", {}, "column 'target', row 1: expected a number, got 'x'"),
        ("a,target\n1,true\n", {}, "column 'target', row 1: expected a number, got True"),
        ("a,target\n1,2\n1,\n", {}, "column 'target', row 2: expected a number, got None"),
        ("a,a,y\n1,2,3\n", {}, "there is more than one column 'a'"),
        ("a,target\n", {}, "has no row"),
        ("a,target\n1\n", {}, "is damaged or not a table"),
        ("", {}, "is damaged or not a table"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, text: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(written(tmp_path / "table.csv", text), **options)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, math.nan], "target": [0.5, 0.5]}, "column 'a', row 2: expected an integer, got nan"),
        ({"a": [1, 2], "target": [math.nan, 0.5]}, "column 'target', row 1: expected a finite number, got nan"),
        ({"a": [1, 2], "error": [0.5, math.nan]}, "column 'error': values must be numbers ≥ 0"),
        ({"a": ["1", "2"], "target": [0.5, 0.5]}, "column 'a', row 1: expected a number, got '1'"),
    ],
)
def test_invalid_numbers_are_refused(tmp_path: Path, columns: dict, message: str) -> None:
    write_columns(tmp_path / "table.parquet", columns)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "table.parquet")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none\.csv"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"configurations are read from \.csv or \.parquet files, not \.txt"):
        read_table(written(tmp_path / "table.txt", "a,target\n1,2\n"))
    with pytest.raises(ValueError, match=r"not files without a suffix"):
        read_table(written(tmp_path / "table", "a,target\n1,2\n"))
    with pytest.raises(ValueError, match=r"table\.parquet is damaged or not a table"):
        read_table(written(tmp_path / "table.parquet", "a,target\n1,2\n"))
    whole = tmp_path / "labels.parquet"
    label(KERNELS["fwt"], 50, whole)
    whole.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"labels\.parquet is damaged or not a table"):
        read_table(whole)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_are_written_and_read_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"columns.{suffix}"
    columns = {"whole": [1, -2, 2**60], "a, b": [0.1, 1e-300, math.pi], 'a "c"': [0.5, 1.0, math.inf]}
    write_columns(path, columns)
    assert read_columns(path, "rows") == columns
    write_columns(path, {"a": [1, 2], "b": [None, 0.5]})
    with pytest.raises(ValueError, match="column 'b', row 1: expected a number, got None"):
        read_columns(path, "rows")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_where_writing_fails_the_old_file_stays_and_nothing_else(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"columns.{suffix}"
    write_columns(path, {"a": [1, 2]})
    before = path.read_bytes()
    with pytest.raises((ValueError, pa.ArrowInvalid)):
        write_columns(path, {"a": [1, 2], "b": [1]})

    def full(*_: object) -> None:
        raise OSError("no space left")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"ldf.io.text.os.{name}", full)
            with pytest.raises(OSError, match="no space left"):
                write_columns(path, {"a": [3, 4]})
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
    assert files.read_columns(path, "rows") == {"a": [1, 2]}

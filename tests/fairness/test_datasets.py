"""Public data sets as fairness problems, cell by cell; the distribution of synthetic data; downloaded files."""

import csv
import functools
import hashlib
import http.server
import io
import math
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas
import pooch
import pytest

from ldf.fairness import datasets
from ldf.fairness.datasets import VARIANTS, Variant, load, synthetic
from ldf.io.data import SOURCES, DataError, Source, locate

ADULT = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
    "capital-loss,hours-per-week,native-country,income"
)
CLIENT = "job marital education default housing loan contact month poutcome"
PERSON = "workclass marital-status occupation relationship native-country"
# Rows, positive rows, rows by group; columns that are not features; string columns among the features.
KNOWN = {
    "adult-sex": (45_222, 11_208, {"Female": 14_695, "Male": 30_527}, "sex fnlwgt education", f"{PERSON} race"),
    "adult-race": (45_222, 11_208, {"White": 38_903, "other": 6_319}, "race fnlwgt education", f"{PERSON} sex"),
    "default-sex": (30_000, 6_636, {"female": 18_112, "male": 11_888}, "SEX ID", "EDUCATION MARRIAGE"),
    "bank-balanced-age": (11_162, 5_289, {"25 to 60": 10_269, "other": 893}, "age", CLIENT),
    "bank-full-age": (41_188, 4_640, {"25 to 60": 39_210, "other": 1_978}, "age", f"{CLIENT} day_of_week"),
}


def group(name: str, row: dict[str, str]) -> str:
    if name == "adult-race":
        return "White" if row["race"] == "White" else "other"
    if name == "default-sex":
        return {"1": "male", "2": "female"}[row["SEX"]]
    return row["sex"] if name == "adult-sex" else "25 to 60" if int(row["age"]) in range(25, 61) else "other"


@functools.cache
def missing(file: str) -> str:
    """Why a file is not available, or ""; cached, because an unreachable host times out slowly."""
    try:
        locate(file)
    except DataError as error:
        return str(error)
    return ""


def read(name: str) -> Variant:
    for file in VARIANTS[name][0].names:
        if missing(file):
            pytest.skip(missing(file))
    return load(name)


def plain(name: str) -> list[dict[str, str]]:
    """The rows of a variant's files, read with the csv module only."""
    if name.startswith("adult"):
        text = "".join(locate(f"fairness/adult.{part}").read_text() for part in ("data", "test"))
        lines = [line.rstrip(".") for line in text.splitlines() if line and line[0] != "|" and "?" not in line]
        return list(csv.DictReader([ADULT, *lines], skipinitialspace=True))
    file = {"d": "default-of-credit-card-clients", "bank-b": "bank-balanced", "bank-f": "bank-additional-full"}
    text = locate(f"fairness/{next(file[key] for key in file if name.startswith(key))}.csv").read_text()
    return list(csv.DictReader(text.splitlines(), delimiter=";" if name == "bank-full-age" else ","))


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_match_their_files_cell_by_cell(name: str) -> None:
    found, rows = read(name), plain(name)
    *_, apart, strings = KNOWN[name]
    *columns, label = rows[0]
    assert found.labels.tolist() == [int(row[label] in (">50K", "yes", "1")) for row in rows]
    assert found.groups.tolist() == [group(name, row) for row in rows]
    assert list(found.features) == [column for column in columns if column not in apart.split()]
    for column in found.features:
        kind = str if column in strings.split() else float
        assert found.features[column].tolist() == [kind(row[column]) for row in rows], column
        assert str(found.features[column].dtype) == {str: "category", float: "float64"}[kind]


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_have_the_known_numbers(name: str) -> None:
    found, (rows, positive, groups, *_) = read(name), KNOWN[name]
    assert (found.name, found.rows, found.attribute) == (name, rows, name.split("-")[-1])
    assert int(found.labels.sum()) == positive
    assert Counter(found.groups) == groups
    assert (found.labels.dtype, found.groups.dtype) == (np.int64, object)
    assert not found.features.isna().any().any()
    assert list(found.features.index) == list(range(rows))
    rates = [found.labels[found.groups == name].mean() for name in groups]
    assert found.gap == pytest.approx(rates[1] - rates[0], abs=1e-12)
    assert abs(found.gap) > 0.03, "positive rates differ between groups in every variant"


def test_an_unknown_name_raises_an_error_that_lists_all_names() -> None:
    with pytest.raises(
        ValueError, match=r"unknown variant 'adult'; choose one of adult-sex, adult-race, .*, bank-full-age$"
    ):
        load("adult")


# ---------------------------------------------------------------- damaged files

HEADER = "age,job,marital,education,default,balance,housing,loan,contact,day,month,duration,campaign,pdays,previous"
ROW = "59,admin.,married,secondary,no,2343,yes,no,unknown,5,may,1042,1,-1,0,unknown"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f"{HEADER},deposit\n{ROW}\n", "column 'poutcome' is missing"),
        (f"{HEADER},poutcome\n{ROW}\n", "column 'deposit' is missing"),
        (f"{HEADER},poutcome,deposit\n{ROW}\n", "column 'deposit' is missing or has empty cells"),
        (f"{HEADER},poutcome,deposit\nold{ROW},yes\n", "column 'age' must be numeric: .*'old59'"),
        (f"{HEADER},poutcome,deposit\n{ROW},yes\n{ROW},yes,yes\n", ".*Expected 17 fields in line 3, saw 18$"),
        ("", "No columns"),
    ],
)
def test_a_damaged_file_raises_an_error_with_its_name_and_the_defect(
    tmp_path: Path, monkeypatch, text: str, match: str
) -> None:
    (path := tmp_path / "bank.csv").write_text(text)
    monkeypatch.setattr(datasets, "locate", lambda name: path)
    with pytest.raises(DataError, match=f"bank\\.csv: {match}"):
        load("bank-balanced-age")


def test_a_file_without_a_header_is_checked_too(tmp_path: Path, monkeypatch) -> None:
    (path := tmp_path / "adult.data").write_text("39, State-gov, 77516, Bachelors, 13\n")
    monkeypatch.setattr(datasets, "locate", lambda name: path)
    with pytest.raises(DataError, match=r"adult\.data: column 'marital-status' is missing"):
        load("adult-sex")


# ---------------------------------------------------------------- files converted on download

NAME, LF, CRLF = "fairness/small.csv", b"a,b\n1,2\n", b"a,b\r\n1,2\r\n"


def zipped(member: str, content: bytes) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


@pytest.fixture
def url(tmp_path: Path, monkeypatch) -> Iterator[str]:
    """URL of the file `served` in tmp_path; the cache in the same folder is empty."""
    monkeypatch.delenv("LDF_DATA_DIR", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}/served"
        server.shutdown()


@pytest.mark.parametrize(
    ("served", "content", "how"),
    [
        (zipped("in/small.csv", CRLF), CRLF, {"member": "in/small.csv"}),
        (zipped("in/small.csv", CRLF), LF, {"member": "in/small.csv", "newlines": True}),
        *((content, LF, {"newlines": True}) for content in (LF, CRLF, LF.replace(b"\n", b"\r"))),
    ],
)
def test_a_part_is_fetched_once_and_then_cached(tmp_path, monkeypatch, url, served, content, how) -> None:
    monkeypatch.setitem(SOURCES, NAME, Source(url, hashlib.sha256(content).hexdigest(), "none", **how))
    (tmp_path / "served").write_bytes(served)
    path = locate(NAME)
    assert path == tmp_path / "ldf" / NAME
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "served").unlink()
    assert locate(NAME) == path, "from the cache"
    path.write_bytes(b"half of it")
    with pytest.raises(DataError, match=rf"nor, undamaged, in the cache .* could not be downloaded from {url}: 404 "):
        locate(NAME)
    (tmp_path / "served").write_bytes(served)
    assert locate(NAME).read_bytes() == content, "fetched again"


@pytest.mark.parametrize(
    ("served", "match"),
    [
        (zipped("in/small.csv", CRLF), r"the SHA-256 of in/small\.csv is [0-9a-f]{64}, expected 0{64}$"),
        (zipped("small.csv", LF), r"in/small\.csv cannot be extracted: There is no item named 'in/small\.csv'"),
        (LF, r"in/small\.csv cannot be extracted: File is not a zip file"),
    ],
)
def test_a_wrong_part_is_refused_and_not_kept(tmp_path, monkeypatch, url, served: bytes, match: str) -> None:
    monkeypatch.setitem(SOURCES, NAME, Source(url, "0" * 64, "none", member="in/small.csv"))
    (tmp_path / "served").write_bytes(served)
    with pytest.raises(DataError, match=f"could not be downloaded from {url}: {match}"):
        locate(NAME)
    assert not (tmp_path / "ldf").exists()


# ---------------------------------------------------------------- synthetic


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def test_synthetic_data_has_the_documented_distribution() -> None:
    rows = 400_000
    found = synthetic(rows, seed=3)
    # Six standard deviations of a rate of the smaller group.
    tolerance = 6 * 0.5 / math.sqrt(rows * 0.3)
    x1, x2, second = found.features["x1"].to_numpy(), found.features["x2"].to_numpy(), found.groups == "b"
    assert second.mean() == pytest.approx(0.3, abs=tolerance)
    assert (x1[second] > 0).mean() == pytest.approx(phi(-0.5), abs=tolerance)
    assert (x1[~second] > 0).mean() == pytest.approx(phi(0.5), abs=tolerance)
    assert x1[second].std() == pytest.approx(1, abs=2 * tolerance)
    own = 0.5 / math.sqrt(1.25)
    assert found.gap == pytest.approx(phi(-own) - phi(own), abs=2 * tolerance)
    near = np.abs(x1 - 0.7) < 0.1
    assert found.labels[near].mean() == pytest.approx(phi(1.4), abs=6 * 0.5 / math.sqrt(near.sum()))
    assert abs(np.corrcoef(x2, found.labels)[0, 1]) < tolerance
    assert abs(np.corrcoef(x2, second)[0, 1]) < tolerance
    assert (np.abs(x2.mean()), x2.std()) == pytest.approx((0, 1), abs=tolerance)
    for group, colour in (("a", "amber"), ("b", "blue")):
        told = (found.features["colour"] == colour)[found.groups == group].mean()
        assert told == pytest.approx(0.8, abs=tolerance), group


def test_synthetic_data_has_the_usual_format_and_depends_only_on_its_seed() -> None:
    first, same, other = synthetic(seed=1), synthetic(seed=1), synthetic(seed=2)
    assert (first.name, first.attribute, first.rows) == ("synthetic", "group", 2000)
    assert [str(kind) for kind in first.features.dtypes] == ["float64", "float64", "category"]
    assert (first.labels.dtype, first.groups.dtype) == (np.int64, object)
    pandas.testing.assert_frame_equal(first.features, same.features)
    assert (first.labels.tolist(), first.groups.tolist()) == (same.labels.tolist(), same.groups.tolist())
    assert first.features["x1"].tolist() != other.features["x1"].tolist()


def test_synthetic_data_needs_a_row() -> None:
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        synthetic(0)

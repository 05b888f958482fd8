"""Certificates and histories: values checked by hand, as a table, as JSON, as CSV."""

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ldf
from ldf.core.certificate import Tally
from ldf.io.text import table, write_whole

numbers = st.floats(-5, 5, allow_nan=False, width=32)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.floats(0, 2), st.floats(0, 2))
def test_values_match_the_definition(values, slack: float, tolerance: float) -> None:
    y = torch.tensor(values)
    upper = ldf.inequality("upper", lambda y, b: y, slack=slack)
    zero = ldf.equality("zero", lambda y, b: y, slack=slack)
    found = ldf.certify([upper, zero], y, ldf.Batch(inputs=y), tolerance=tolerance)
    for name, nu in {"upper": (y - slack).clamp_min(0), "zero": (y.abs() - slack).clamp_min(0)}.items():
        assert found[name].rows == len(y)
        assert found[name].mean == pytest.approx(float(nu.mean()), abs=1e-6)
        assert found[name].max == float(nu.max())
        assert found[name].violated == pytest.approx(float((nu.amax(1) > tolerance).double().mean()))
        assert float(nu[found[name].worst].max()) == float(nu.max())
    assert found.holds == all(finding.violated == 0 for finding in found.findings)


positive = st.floats(0.0009765625, 4, width=32)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), st.tuples(positive, positive))
def test_a_tolerance_per_column_is_one_certificate_per_column(values, tolerances) -> None:
    y, limit = torch.tensor(values), torch.tensor(tolerances)
    found = ldf.certify([ldf.equality("both", lambda y, b: y)], y, ldf.Batch(), tolerance={"both": limit})["both"]
    parts = [ldf.equality(f"{i}", lambda y, b, i=i: y[:, i : i + 1]) for i in range(2)]
    apart = ldf.certify(parts, y, ldf.Batch(), tolerance={f"{i}": tolerances[i] for i in range(2)}).findings
    assert (found.violated == 0) == all(one.violated == 0 for one in apart)
    assert found.violated == pytest.approx(float((y.abs() > limit).any(1).double().mean()))
    ratio = max(one.max / one.tolerance for one in apart)
    assert found.max / found.tolerance == pytest.approx(ratio)
    assert float((y[found.worst].abs() / limit).max()) == pytest.approx(ratio)
    same = {"both": torch.full((2,), tolerances[0])}
    one = ldf.certify([ldf.equality("both", lambda y, b: y)], y, ldf.Batch(), tolerance=tolerances[0])
    assert ldf.certify([ldf.equality("both", lambda y, b: y)], y, ldf.Batch(), tolerance=same) == one


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(numbers, numbers, st.integers(0, 2)), min_size=1, max_size=20), st.integers(1, 7))
def test_a_tally_of_batches_is_the_certificate_of_all_rows(values, size: int) -> None:
    y, group = torch.tensor([row[:2] for row in values]), torch.tensor([row[2] for row in values])
    constraints = [
        ldf.inequality("upper", lambda y, b: y, slack=0.5),
        ldf.equality("parity", lambda y, b: y, scope=ldf.Groups("group", 3), exact=lambda y, b: y.round()),
    ]
    tally = Tally(constraints)
    for rows in torch.arange(len(y)).split(size):
        tally.add(y[rows], ldf.Batch(group=group[rows]))
    whole = ldf.certify(constraints, y, ldf.Batch(group=group), tolerance=0.1)
    assert tally.certificate(0.1).to_json() == whole.to_json()
    assert Tally(constraints).certificate()["upper"].rows == 0, "no batch yet"


def test_table_and_json() -> None:
    y = torch.tensor([[0.5], [2.0]])
    found = ldf.certify([ldf.inequality("cap", lambda y, b: y - 1)], y, ldf.Batch(inputs=y))
    assert "does not hold" in str(found)
    assert str(found).splitlines()[1].split() == ["cap", "2", "0.5", "1", "50", "0.0001"]
    plain = json.loads(found.to_json())
    assert plain["holds"] is False
    assert plain["constraints"][0]["worst"] == 1
    assert ldf.certify([ldf.inequality("cap", lambda y, b: y - 3)], y, ldf.Batch(inputs=y)).holds
    with pytest.raises(KeyError, match="no constraint 'x'"):
        found["x"]


def test_a_lagrangian_certifies_with_the_slack_of_its_last_update() -> None:
    y = torch.tensor([[0.5], [2.0]], requires_grad=True)
    cap = ldf.inequality("cap", lambda y, b: y - 1, slack=lambda k: 0.6 - 0.3 * k)
    lagrangian = ldf.Lagrangian([cap], ldf.Ascent(0.1, normalise=False))
    assert lagrangian.certify(y, ldf.Batch(inputs=y))["cap"].max == pytest.approx(0.4)
    lagrangian(y.square().mean(), y, ldf.Batch(inputs=y))
    lagrangian.ascend()
    assert lagrangian.certify(y, ldf.Batch(inputs=y))["cap"].max == pytest.approx(0.7)


def test_pairs_are_looked_up_by_id_and_groups_compared_exactly() -> None:
    y = torch.tensor([[3.0], [1.0], [2.0]])
    ids = torch.tensor([7, 2, 5])
    pairs = ldf.Pairs(torch.tensor([[7, 2], [2, 7], [5, 9]]))  # row 9 is missing
    group = torch.tensor([0, 0, 0, 0, 0, 1, 0, 2])  # by id: 7 → 2, 2 → 0, 5 → 1
    constraints = [
        ldf.inequality("order", lambda y, p: y[0] - y[1], scope=pairs),
        ldf.equality("parity", lambda y, b: y, scope=ldf.Groups(group)),
        ldf.equality("partly", lambda y, b: y, scope=ldf.Groups(group, 4)),
    ]
    found = ldf.certify(constraints, y, ldf.Batch(inputs=y, ids=ids))
    assert (found["order"].rows, found["order"].max, found["order"].mean) == (2, 2.0, 1.0)
    assert (found["parity"].rows, found["parity"].max, found["parity"].mean) == (3, 2.0, pytest.approx(4 / 3))
    assert found["partly"].rows == 3, "comparisons with an empty group are omitted"


def test_certificates_of_groups_use_exact() -> None:
    y = torch.tensor([[0.1], [-9.0], [3.0], [-0.1], [2.0]])
    batch = ldf.Batch(group=torch.tensor([0, 0, 1, 1, 1]))
    scope, options = ldf.Groups("group", 3), {"slack": 0.1, "exact": lambda y, b: (y > 0).float()}
    constraints = [
        ldf.equality("parity", lambda y, b: y.sigmoid(), scope=scope, **options),
        ldf.inequality("order", lambda y, b: y.sigmoid(), scope=scope, **options),
    ]
    found = ldf.certify(constraints, y, batch)
    for name in ("parity", "order"):
        assert (found[name].rows, found[name].mean) == (1, pytest.approx(2 / 3 - 1 / 2 - 0.1))
    undefined = ldf.equality("rate", lambda y, b: y.sigmoid(), scope=scope, exact=lambda y, b: y.sqrt())
    with pytest.raises(ldf.ConstraintError, match="'rate': its function returned nan in row 1, column 0"):
        ldf.certify([undefined], y, batch)


def test_a_constraint_without_rows_does_not_hold() -> None:
    y = torch.zeros(2, 1)
    nobody = ldf.inequality("order", lambda y, p: y[0] - y[1], scope=ldf.Pairs(torch.tensor([[5, 6]])))
    found = ldf.certify([nobody], y, ldf.Batch(inputs=y))
    assert not found.holds
    assert json.loads(found.to_json())["constraints"][0]["mean"] is None


def test_bad_input_is_refused() -> None:
    y = torch.zeros(2, 1)
    root = ldf.inequality("root", lambda y, b: (y - 1).sqrt())
    with pytest.raises(ldf.ConstraintError, match="'root': its function returned nan in row 0, column 0"):
        ldf.certify([root], y, ldf.Batch(inputs=y))
    cap = ldf.inequality("cap", lambda y, b: y)
    with pytest.raises(ValueError, match="tolerance must be a number ≥ 0, got -1"):
        ldf.certify([cap], y, ldf.Batch(inputs=y), tolerance=-1)
    with pytest.raises(ValueError, match=r"unknown: \['cup'\]"):
        ldf.certify([cap], y, ldf.Batch(inputs=y), tolerance={"cup": 1.0})


def test_a_history_as_csv(tmp_path: Path) -> None:
    history = ldf.History()
    history.append({"loss": 0.5, "nu_mean/c": 0.1})
    history.append({"loss": 0.25, "nu_mean/c": 0.05, "lambda/c": 1.0})
    history.to_csv(tmp_path / "deep" / "history.csv")
    with (tmp_path / "deep" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [0.5, 0.25]
    assert math.isnan(float(rows[0]["lambda/c"]))
    with pytest.raises(KeyError, match="no column 'los'"):
        history["los"]


def test_a_file_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_whole(tmp_path / "a", "first")

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_whole(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 1


def test_tables_line_up() -> None:
    lines = table(["name", "value"], [["a", 1.5], ["long name", 10]]).splitlines()
    assert lines == ["name       value", "a            1.5", "long name     10"]

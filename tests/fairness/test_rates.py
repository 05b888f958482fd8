"""Rates, gaps, their constraint and their intervals; and feature encodings."""

import math

import numpy as np
import pandas
import pytest
import torch
from fair import CONSTRAINTS, cell_rows, gaps_of, rates_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

import ldf
from ldf.fairness.encoding import PIECES, Codes, Encoder, columns_of
from ldf.fairness.rates import NAME, Rates, canonical, covariance, newcombe, sigmoid, wilson

QUICK = settings(deadline=None, max_examples=40)


@st.composite
def rows(draw):
    """A constraint, and groups, labels and values of rows, every group with both labels."""
    count = draw(st.integers(2, 5))
    each = [(group, label) for group in range(count) for label in (0, 1)]
    more = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, 1)), max_size=25))
    found = np.array(draw(st.permutations(each + more)), dtype=np.int64)
    values = draw(st.lists(st.floats(-6, 6), min_size=len(found), max_size=len(found)))
    return draw(st.sampled_from(CONSTRAINTS)), found[:, 0], found[:, 1], np.array(values), count


def started(constraint, multipliers, rule=None):
    """A Lagrangian with these initial multipliers."""
    rule = rule or ldf.Ascent(0.1, normalise=False, reduce="mean", initial=tuple(multipliers))
    return ldf.Lagrangian([constraint], rule, updates=10)


def term(lagrangian, logits, cells):
    """The constraint's term of the Lagrangian at these logits."""
    return lagrangian(logits.sum() * 0, logits, ldf.Batch(cell=torch.from_numpy(cells)))


# ------------------------------------------------------------------------------------------------ rates and gaps


@QUICK
@given(rows())
def test_cells_are_events_times_groups(case):
    constraint, groups, labels, _, count = case
    rates = rates_of(constraint, count)
    members = cell_rows(constraint, groups, labels, count)
    cells = rates.cells(groups, labels)
    assert rates.count == len(members) == len(rates.events) * count
    for cell, member in enumerate(members):
        assert np.array_equal(cells == cell, member)
    assert np.array_equal(cells == -1, ~np.any(members, axis=0))


@QUICK
@given(rows())
def test_gaps_are_those_counted_by_hand(case):
    constraint, groups, labels, values, count = case
    rates = rates_of(constraint, count)
    cells, decisions = rates.cells(groups, labels), values > 0
    expected = gaps_of(constraint, decisions, groups, labels, count)
    assert rates.gaps(decisions, cells) == pytest.approx(expected)
    assert rates.differences @ rates.rates(decisions, cells) == pytest.approx(expected)
    assert len(rates.pairs) == len(expected)


def test_pairs_name_their_event_and_groups_in_order():
    pairs = Rates("equalised odds", ("x", "y", "z")).pairs
    each = [("x", "y"), ("x", "z"), ("y", "z")]
    assert pairs == [("y = 1", *pair) for pair in each] + [("y = 0", *pair) for pair in each]
    assert Rates("demographic parity", ("x", "y")).pairs == [("all", "x", "y")]


def test_the_rate_of_an_empty_cell_is_nan():
    rates = Rates("equal opportunity", ("a", "b"))
    cells = rates.cells(np.array([0, 0, 1]), np.array([1, 1, 0]))
    assert rates.rates(np.array([True, False, True]), cells) == pytest.approx([0.5, math.nan], nan_ok=True)
    assert np.isnan(rates.gaps(np.array([True, False, True]), cells)).all()


@QUICK
@given(rows(), st.integers(0, 100))
def test_cell_probabilities_add_up_to_their_event(case, seed):
    constraint, groups, _, values, count = case
    random = np.random.default_rng(seed)
    rates, positive = rates_of(constraint, count), sigmoid(values)
    given_negative, given_positive = (random.dirichlet(np.ones(count), len(groups)) for _ in range(2))
    whole = {"demographic parity": 1, "equal opportunity": positive, "equalised odds": 1}[constraint]
    assert rates.chances(given_positive, positive).sum(1) == pytest.approx(np.broadcast_to(whole, len(groups)))
    if constraint != "demographic parity":
        found = rates.chances(np.concatenate([given_negative, given_positive], 1), positive)
        assert found[:, :count] == pytest.approx(positive[:, None] * given_positive)
        assert found[:, count:] == pytest.approx(
            ((1 - positive)[:, None] * given_negative)[:, : found.shape[1] - count]
        )


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("demographic_parity", "demographic parity"),
        ("Demographic-Parity ", "demographic parity"),
        ("Equalized Odds", "equalised odds"),
        ("equalised_odds", "equalised odds"),
        ("true_positive_rate_parity", "equal opportunity"),
    ],
)
def test_names_of_constraints_are_normalised(written, name):
    assert canonical(written) == name
    assert Rates(written, ("a", "b")).constraint == name


@pytest.mark.parametrize("written", ["", "parity", None, 3])
def test_an_unknown_constraint_is_refused(written):
    with pytest.raises(ValueError, match="demographic parity, equal opportunity, equalised odds"):
        canonical(written)


# ------------------------------------------------------------------------------------------------ the constraint


@QUICK
@given(rows(), st.sampled_from([0.0, 0.1]), st.integers(0, 100))
def test_the_term_of_the_loss_is_multipliers_times_expected_gaps(case, slack, seed):
    constraint, groups, labels, values, count = case
    rates = rates_of(constraint, count)
    cells = rates.cells(groups, labels)
    signed = np.random.default_rng(seed).normal(size=len(rates.pairs))
    lagrangian = started(rates.law(slack), rates.initial(signed, slack))

    def by_hand(logits):
        gaps = np.array(gaps_of(constraint, sigmoid(logits), groups, labels, count))
        return signed @ gaps - slack * np.abs(signed).sum()

    logits = torch.from_numpy(values)[:, None].requires_grad_()
    total = term(lagrangian, logits, cells)
    assert total.item() == pytest.approx(by_hand(values), abs=1e-9)
    (gradient,) = torch.autograd.grad(total, logits)
    h = 1e-5
    steps = np.eye(len(values)) * h
    expected = [(by_hand(values + step) - by_hand(values - step)) / (2 * h) for step in steps]
    assert gradient[:, 0].numpy() == pytest.approx(expected, abs=1e-7)


@QUICK
@given(rows(), st.sampled_from([0.0, 0.05]))
def test_multipliers_ascend_by_gaps_of_decisions(case, slack):
    constraint, groups, labels, values, count = case
    rates = rates_of(constraint, count)
    lagrangian = started(rates.law(slack), [0.0] * len(rates.pairs) * (2 if slack else 1))
    term(lagrangian, torch.from_numpy(values)[:, None].requires_grad_(), rates.cells(groups, labels))
    lagrangian.ascend()
    gaps = np.array(gaps_of(constraint, values > 0, groups, labels, count))
    expected = 0.1 * gaps if slack == 0 else 0.1 * np.concatenate([gaps - slack, -gaps - slack]).clip(min=0)
    assert lagrangian.multipliers[NAME].numpy() == pytest.approx(expected, abs=1e-12)


@QUICK
@given(rows(), st.sampled_from([0.0, 0.05]))
def test_on_violations_multipliers_ascend_by_expected_gaps(case, slack):
    constraint, groups, labels, values, count = case
    rates = rates_of(constraint, count)
    lagrangian = started(rates.law(slack, "violation"), (), ldf.Ascent(0.1, normalise=False, reduce="mean"))
    term(lagrangian, torch.from_numpy(values)[:, None].requires_grad_(), rates.cells(groups, labels))
    lagrangian.ascend()
    gaps = np.abs(gaps_of(constraint, sigmoid(values), groups, labels, count))
    assert lagrangian.multipliers[NAME].numpy() == pytest.approx(0.1 * (gaps - slack).clip(min=0), abs=1e-12)


@QUICK
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0.001, 1))
def test_signed_multipliers_start_as_they_are_or_as_two_that_are_not_negative(signed, slack):
    rates, signed = rates_of("demographic parity", 2), np.array(signed)
    assert rates.initial(signed, 0.0) == tuple(signed)
    above, below = np.split(np.array(rates.initial(signed, slack)), 2)
    assert (above >= 0).all()
    assert (below >= 0).all()
    assert np.array_equal(above - below, signed)
    assert not (above * below).any()


def test_the_kind_of_constraint_follows_from_the_slack():
    rates = rates_of("demographic parity", 2)
    assert (rates.law().kind, rates.law().degree) == ("equality", "satisfiability")
    assert (rates.law(0.1).kind, rates.law(0.1).slack) == ("inequality", 0.1)
    assert (rates.law(0.1, "violation").kind, rates.law(0.1, "violation").degree) == ("equality", "violation")
    for slack in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="slack must be a number ≥ 0"):
            rates.law(slack)


def test_only_the_first_column_of_logits_decides():
    rates, random = rates_of("demographic parity", 2), np.random.default_rng(0)
    cells = np.array([0, 1] * 10)
    logits = torch.from_numpy(random.normal(size=(20, 2)))
    one = term(started(rates.law(), [1.0]), logits[:, :1].clone().requires_grad_(), cells)
    two = term(started(rates.law(), [1.0]), logits.clone().requires_grad_(), cells)
    assert one.item() == pytest.approx(two.item())


@QUICK
@given(st.integers(0, 100), st.floats(0, 3))
def test_covariance_is_that_of_membership_and_logits(seed, multiplier):
    random = np.random.default_rng(seed)
    z = np.concatenate([[0, 1], random.integers(0, 2, 20)])
    logits = random.normal(size=22) * 3
    lagrangian = started(covariance(("a", "b"), np.array([1 - z.mean(), z.mean()])), [multiplier])
    found = term(lagrangian, torch.from_numpy(logits)[:, None].requires_grad_(), z)
    assert found.item() == pytest.approx(multiplier * abs(np.cov(z, logits, bias=True)[0, 1]), abs=1e-9)


def test_covariance_is_of_two_groups():
    with pytest.raises(ValueError, match="exactly two groups, got 3"):
        covariance(("a", "b", "c"), np.full(3, 1 / 3))


# ------------------------------------------------------------------------------------------------ intervals


@QUICK
@given(st.data(), st.integers(1, 2000), st.floats(0.5, 0.999))
def test_wilson_solves_the_score_equation(data, count, level):
    positive = data.draw(st.integers(0, count))
    share, z = positive / count, norm.ppf(0.5 + level / 2)

    def score(p):
        return (share - p) ** 2 - z * z * p * (1 - p) / count

    low = brentq(score, 0, min(share, 1 - 1e-9), xtol=1e-14) if positive else 0.0
    high = brentq(score, max(share, 1e-9), 1, xtol=1e-14) if positive < count else 1.0
    assert wilson(positive, count, level) == pytest.approx((low, high), abs=1e-9)


def test_wilson_contains_the_proportion_itself():
    for count in range(1, 300):
        assert wilson(0, count)[0] == 0.0
        assert wilson(count, count)[1] == 1.0


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((48, 80), (56, 70), (0.0524, 0.3339)),
        ((3, 10), (9, 10), (0.1705, 0.8090)),
        ((0, 10), (10, 10), (0.6075, 1.0000)),
        ((2, 7), (6, 7), (0.0582, 0.8062)),
        ((0, 29), (5, 56), (-0.0381, 0.1926)),
        ((0, 20), (0, 10), (-0.1611, 0.2775)),
    ],
)
def test_newcombe_gives_the_intervals_he_published(first, second, expected):
    assert newcombe(first, second) == pytest.approx(expected, abs=5e-5)


@QUICK
@given(st.integers(0, 30), st.integers(0, 30), st.floats(0.5, 0.99))
def test_newcombe_turns_its_sign_with_the_groups(first, second, level):
    low, high = newcombe((first, 30), (second, 40), level)
    back = newcombe((second, 40), (first, 30), level)
    assert (-high, -low) == pytest.approx(back)
    assert low - 1e-12 <= second / 40 - first / 30 <= high + 1e-12
    assert -1 - 1e-12 <= low <= high <= 1 + 1e-12


def test_no_rows_give_no_interval():
    assert all(math.isnan(end) for end in (*wilson(0, 0), *newcombe((0, 0), (1, 2)), *newcombe((1, 2), (0, 0))))


# ------------------------------------------------------------------------------------------------ encoding


def frame(count=400, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=count) * 10
    data = {"x": x, "n": random.integers(0, 5, count), "flag": x > 3, "colour": random.choice(["red", "green"], count)}
    return pandas.DataFrame(data).astype({"colour": "category"}), (np.sin(x / 4) > 0).astype(np.int64)


def test_an_encoded_row_depends_on_training_rows_alone():
    X, y = frame()
    encoder, others = Encoder().fit(X[:300], y[:300]), frame(seed=1)[0]
    whole = encoder.transform(X[300:])
    assert whole.shape == (100, encoder.width)
    assert whole.dtype == np.float32
    for row in (300, 350, 399):
        assert np.array_equal(encoder.transform(X[row : row + 1])[0], whole[row - 300])
    encoder.transform(others)
    assert np.array_equal(encoder.transform(X[300:]), whole)
    assert not np.array_equal(Encoder().fit(X, y).transform(X[300:])[:, 0], whole[:, 0])


def test_numbers_are_standardised_by_training_rows():
    X, y = frame()
    encoder = Encoder("standard").fit(X[["x", "n"]], y)
    assert encoder.width == 2
    expected = (X[["x", "n"]] - X[["x", "n"]].mean()) / X[["x", "n"]].std(ddof=0)
    assert encoder.transform(X[["x", "n"]]) == pytest.approx(expected.to_numpy(), abs=1e-5)


@QUICK
@given(st.integers(0, 50), st.integers(2, 80))
def test_pieces_are_monotone_and_cover_the_range(seed, count):
    random = np.random.default_rng(seed)
    x, y = random.normal(size=count), random.integers(0, 2, count)
    encoder = Encoder().fit(x[:, None], y)
    pieces = encoder.parts[0][1]
    assert len(pieces) <= PIECES
    along = encoder.transform(np.linspace(x.min() - 1, x.max() + 1, 500)[:, None])[:, 1:]
    assert along.shape[1] == len(pieces)
    assert (np.diff(along, axis=0) >= 0).all()
    assert (along >= 0).all()
    assert (along <= 1).all()
    if pieces:
        edges = [low for low, _ in pieces] + [pieces[-1][1]]
        assert (edges[0], edges[-1]) == (x.min(), x.max())
        assert np.array_equal(encoder.transform(np.array(edges)[:, None])[:, 1:], np.tri(len(edges), len(pieces), -1))
        middle = np.array([(low + high) / 2 for low, high in pieces])[:, None]
        assert np.diag(encoder.transform(middle)[:, 1:]) == pytest.approx(np.full(len(pieces), 0.5), abs=1e-4)


def test_pieces_are_cut_where_the_labels_change():
    x = np.linspace(0, 1, 200)
    pieces = Encoder().fit(x[:, None], (x > 0.3).astype(int)).parts[0][1]
    assert pieces[0][1] == pytest.approx(0.3, abs=0.01)


def test_an_unknown_category_is_a_row_of_zeros():
    X, y = frame()
    encoder = Encoder().fit(X[["colour"]], y)
    found = encoder.transform(pandas.DataFrame({"colour": ["green", "red", "blue"]}))
    assert found.tolist() == [[1, 0], [0, 1], [0, 0]]


def test_frames_and_arrays_are_encoded_alike():
    X, y = frame()
    numbers = X[["x", "n"]].astype(float)
    for encoder in (Encoder(), Encoder("standard")):
        assert np.array_equal(
            encoder.fit(numbers, y).transform(numbers), encoder.fit(numbers.to_numpy(), y).transform(numbers.to_numpy())
        )
    assert np.array_equal(Codes().fit(numbers).transform(numbers), numbers.to_numpy())
    assert [column.dtype.kind for column in columns_of(X)] == ["f", "i", "b", "O"]


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        2.0,
        0.1,
    ],
)
def test_a_constant_column_is_encoded_as_zero(value):
    encoder = Encoder().fit(np.full((997, 1), value), np.arange(997) % 2)
    assert encoder.width == 1
    assert encoder.transform(np.array([[value], [value + 1]]))[:, 0] == pytest.approx([0, 1], abs=1e-6)


def test_codes_keep_numbers_and_encode_unknown_categories_as_nan():
    X, _ = frame()
    codes = Codes().fit(X)
    assert codes.categorical == [3]
    found = codes.transform(X.assign(colour=["blue", "red", "green"] + ["red"] * 397))
    assert np.array_equal(found[:, :3], X[["x", "n", "flag"]].to_numpy(float))
    assert found[:3, 3] == pytest.approx([math.nan, 1, 0], nan_ok=True)


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ValueError, match="'piecewise' or 'standard', got 'one'"):
        Encoder("one")

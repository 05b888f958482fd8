"""Repair: monotone, the smallest possible change, and no change to values in no violated pair."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import nnls
from sklearn.isotonic import IsotonicRegression

from ldf.transprecision.dominance import Dominance
from ldf.transprecision.repair import isotonic

QUICK = settings(deadline=None, max_examples=60)


@st.composite
def cases(draw, rows=20):
    """Values in sixty-fourths, and configurations with ties and equal rows."""
    shape = (draw(st.integers(1, rows)), draw(st.integers(1, 3)))
    high = draw(st.sampled_from([1, 2, 4, 20]))
    table = draw(arrays(np.int64, shape, elements=st.integers(0, high)))
    largest = draw(st.sampled_from([2, 64, 4096]))
    return draw(arrays(np.int64, shape[0], elements=st.integers(-largest, largest))) / 64.0, table


def at_most(table):
    """[n, n] whether row i ≼ row j."""
    table = np.asarray(table)
    return (table[:, None] <= table[None]).all(2)


def excess(values, table):
    """[n, n] value at i − value at j where row i ≼ row j, else 0."""
    values = np.asarray(values)
    return np.where(at_most(table), values[:, None] - values[None], 0.0)


def contradicted(values, table):
    """[n] whether the value is in a violated pair."""
    return ((excess(values, table) > 0) | (excess(values, table) > 0).T).any(1)


def is_monotone(values, table):
    """Monotone in every bit, including equal rows."""
    assert excess(values, table).max(initial=0.0) == 0
    assert Dominance(table).violations(values)[1:] == (0, 0.0, 0.0)


def by_min_max(values, table):
    """z_i = max over upper sets U ∋ i of min over lower sets L ∋ i of the mean of f on U ∩ L."""
    count = len(values)
    sets = (np.arange(1 << count)[:, None] >> np.arange(count)) % 2 == 1
    # A set is an upper set if it contains everything above its members.
    upper = sets[~(sets[:, :, None] & at_most(table) & ~sets[:, None, :]).any((1, 2))]
    lower = ~upper
    sizes = upper.astype(float) @ lower.T
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (upper * values) @ lower.T / sizes
    return [means[np.ix_(upper[:, i], lower[:, i])].min(1).max() for i in range(count)]


def by_least_squares(values, table):
    """The dual: z = f − Σ λ (e_i − e_j) over all i ≼ j, with the λ ≥ 0 that minimise its norm."""
    low, high = np.nonzero(at_most(table) & ~np.eye(len(values), dtype=bool))
    unit = np.eye(len(values))
    moves = (unit[low] - unit[high]).T
    return values - moves @ nnls(moves, values)[0] if len(low) else values


# ---------------------------------------------------------------------------------------------- the optimum


@settings(deadline=None, max_examples=100)
@given(case=cases(8))
def test_isotonic_by_the_formula_over_upper_and_lower_sets(case):
    np.testing.assert_allclose(isotonic(*case), by_min_max(*case), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("variables", [1, 2, 3])
def test_isotonic_by_the_formula_on_random_values(variables):
    random = np.random.default_rng(variables)
    for _ in range(40):
        table = random.integers(1, 9, (8, variables))
        values = random.standard_normal(8) + table.mean(1) / 2
        np.testing.assert_allclose(isotonic(values, table), by_min_max(values, table), rtol=0, atol=1e-13)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("variables", "high"), [(1, 50), (2, 4), (3, 9), (5, 52)])
def test_isotonic_by_least_squares(seed, variables, high):
    random = np.random.default_rng([seed, variables])
    table = random.integers(1, high + 1, (15 + seed, variables))
    for values in (random.standard_normal(len(table)), table.mean(1) / high + 0.2 * random.standard_normal(len(table))):
        np.testing.assert_allclose(isotonic(values, table), by_least_squares(values, table), atol=1e-11)


@QUICK
@given(data=st.data(), count=st.integers(1, 40), high=st.sampled_from([3, 10, 1000]))
def test_isotonic_on_chains(data, count, high):
    table = data.draw(arrays(np.int64, (count, 1), elements=st.integers(-high, high)))
    values = data.draw(arrays(np.int64, count, elements=st.integers(-10_000, 10_000))) / 1000
    expected = IsotonicRegression().fit_transform(table[:, 0], values)
    np.testing.assert_allclose(isotonic(values, table), expected, rtol=0, atol=1e-12)


def test_isotonic_with_equal_rows():
    table = [[2], [1], [2], [1], [1], [3]]
    # Three at 1 with the mean 4, two at 2 with the mean 2, together 16/5.
    assert isotonic([1.0, 3.0, 3.0, 4.0, 5.0, 6.0], table).tolist() == [3.2, 3.2, 3.2, 3.2, 3.2, 6.0]
    assert isotonic([1.0, 4.0], [[5, 5], [5, 5]]).tolist() == [2.5, 2.5]


@pytest.mark.parametrize("small", [1e-3, 1e-6, 1e-8])
def test_isotonic_with_violations_of_very_different_sizes(small):
    random = np.random.default_rng(0)
    for noise in ([-1.0, 6.0], *random.standard_normal((5, 20))):
        values = np.concatenate([[1.0, 0.0], 0.5 + small * np.array(noise)])
        table = np.arange(len(values))
        expected = IsotonicRegression().fit_transform(table, values)
        np.testing.assert_allclose(isotonic(values, table[:, None]), expected, rtol=0, atol=1e-14)


def test_isotonic_is_monotone_for_tiny_violations():
    random = np.random.default_rng(0)
    for small in np.logspace(-16, -1, 16).repeat(4):
        values = np.concatenate([[1.0, 0.0], 0.5 + small * random.standard_normal(20)])
        table = np.arange(len(values))[:, None]
        found = isotonic(values, table)
        is_monotone(found, table)
        assert isotonic(found, table).tolist() == found.tolist()


# ---------------------------------------------------------------------------------------------- properties


@QUICK
@given(case=cases())
def test_a_repair_is_monotone_and_idempotent_and_keeps_unviolated_values(case):
    values, table = case
    before = values.copy()
    found = isotonic(values, table)
    is_monotone(found, table)
    assert isotonic(found, table).tolist() == found.tolist()
    right = ~contradicted(values, table)
    assert found[right].tolist() == values[right].tolist()
    assert values.tolist() == before.tolist()


@QUICK
@given(data=st.data(), shape=st.tuples(st.integers(1, 20), st.integers(1, 3)))
def test_a_repair_of_any_values_is_monotone_and_idempotent(data, shape):
    table = data.draw(arrays(np.int64, shape, elements=st.integers(0, 4)))
    values = data.draw(arrays(np.float64, shape[0], elements=st.floats(-1e6, 1e6, allow_subnormal=False)))
    values[np.abs(values) < 1e-200] = 0.0
    found = isotonic(values, table)
    is_monotone(found, table)
    assert isotonic(found, table).tolist() == found.tolist()


@QUICK
@given(case=cases(), constant=st.floats(-5, 5))
def test_a_repair_is_equivariant_to_shift_scale_and_direction(case, constant):
    values, table = case
    found = isotonic(values, table)
    np.testing.assert_allclose(isotonic(values + constant, table), found + constant, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(isotonic(-values, -table), -found, rtol=1e-12, atol=1e-12)
    assert isotonic(4.0 * values, table).tolist() == (4.0 * found).tolist()


@QUICK
@given(case=cases())
def test_isotonic_keeps_the_sum_and_is_a_projection(case):
    values, table = case
    found = isotonic(values, table)
    assert found.sum() == pytest.approx(values.sum(), abs=1e-11)
    assert found @ (values - found) == pytest.approx(0, abs=1e-8)


def test_unviolated_values_keep_their_last_bit():
    random = np.random.default_rng(0)
    drawn = [random.integers(0, 3, (random.integers(3, 8), 2)) for _ in range(100)]
    for table in (np.array([[0], [1], [2], [2], [0], [0]]), *drawn):
        for base in (0.1, 0.7, 0.9):
            # Values that differ by a few units in the last place, as does the rounding of their means.
            last = [2, 2, 4, 2, 0, 2] if table.shape[1] == 1 else random.integers(0, 4, len(table))
            values = base + np.array(last) * np.spacing(base)
            found = isotonic(values, table)
            is_monotone(found, table)
            right = ~contradicted(values, table)
            assert found[right].tolist() == values[right].tolist()


def test_the_smallest_floating_point_numbers():
    least = 5e-324
    assert isotonic([least, 3 * least], [[1], [2]]).tolist() == [least, 3 * least]
    found = isotonic([least, 6 * least, 2 * least, 7 * least], [[1], [2], [3], [4]])
    assert found.tolist() == [least, 4 * least, 4 * least, 7 * least]


def test_a_thousand_configurations():
    random = np.random.default_rng(0)
    table = random.integers(4, 53, (1000, 7))
    values = table.min(1) / 52 + 0.1 * random.standard_normal(1000)
    start = time.process_time()
    found = isotonic(values, table)
    assert time.process_time() - start < 10
    is_monotone(found, table)
    right = ~contradicted(values, table)
    assert 0 < right.sum() < 1000
    assert found[right].tolist() == values[right].tolist()
    # The nearest point of a cone: f − z is orthogonal to z, and moving an upper set up gains nothing.
    assert found.sum() == pytest.approx(values.sum(), abs=1e-10)
    assert found @ (values - found) == pytest.approx(0, abs=1e-10)
    assert (at_most(table) @ (values - found)).max() < 1e-10


def test_nothing_to_repair():
    assert isotonic([], np.zeros((0, 2), dtype=int)).shape == (0,)
    assert isotonic([0.3], [[7, 7]]).tolist() == [0.3]
    assert isotonic([3.0, 2.0, 1.0], [[1, 3], [2, 2], [3, 1]]).tolist() == [3.0, 2.0, 1.0]
    assert isotonic([1, 2, 3], [[1], [2], [3]]).dtype == np.float64


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 2.0], r"values must have one entry for each of the 3 configurations, got shape \(2,\)"),
        ([[1.0], [2.0], [3.0]], r"values must have one entry for each of the 3 configurations, got shape \(3, 1\)"),
        ([1.0, np.nan, 2.0], "values must be finite; the value of configuration 1 is nan"),
        ([1.0, 2.0, -np.inf], "values must be finite; the value of configuration 2 is -inf"),
    ],
)
def test_values_that_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        isotonic(values, [[1], [2], [3]])

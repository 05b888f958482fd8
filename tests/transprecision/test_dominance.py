"""Dominated pairs, covering pairs, closures and violations, compared with brute force over all pairs."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ldf.transprecision import dominance
from ldf.transprecision.dominance import Dominance

QUICK = settings(deadline=None, max_examples=100)
RANGES = [(0, 1), (0, 2), (4, 9), (-3, 3), (4, 52), (-(2**40), 2**40), (2**60, 2**60 + 2)]
GRID = [[1, 1], [2, 1], [1, 2], [2, 2]]


@st.composite
def tables(draw, rows=40):
    """Small tables, most of them with ties and equal rows."""
    low, high = draw(st.sampled_from(RANGES))
    shape = (draw(st.integers(0, rows)), draw(st.integers(1, 5)))
    dtype = draw(st.sampled_from([np.int8, np.int32])) if -128 <= low <= high < 128 else np.int64
    return draw(arrays(dtype, shape, elements=st.integers(low, high)))


@st.composite
def tables_and_values(draw):
    table = draw(tables())
    numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6))
    return table, draw(arrays(np.float64, len(table), elements=numbers))


def at_most(table):
    """[n, n] whether row i ≼ row j."""
    table = np.asarray(table)
    return (table[:, None] <= table[None]).all(2)


def below(table):
    """[n, n] whether row i ≺ row j."""
    return at_most(table) & ~at_most(table).T


def nothing_between(order):
    """The transitive reduction of a strict order."""
    return order & ~(order.astype(int) @ order.astype(int) > 0)


def listed(member):
    return np.argwhere(member).tolist()


def check(table):
    """Everything except closures and violations."""
    order, strict = Dominance(table), below(table)
    assert order.count() == strict.sum()
    assert order.pairs().tolist() == listed(strict)
    assert order.covering().tolist() == listed(nothing_between(strict))
    assert order.pairs().shape[1] == order.covering().shape[1] == 2


def check_values(table, values):
    order, strict, loose = Dominance(table), below(table), at_most(table)
    largest, least = order.closures(values)
    assert largest.tolist() == np.where(loose.T, values, -np.inf).max(1, initial=-np.inf).tolist()
    assert least.tolist() == np.where(loose, values, np.inf).min(1, initial=np.inf).tolist()
    found = order.violations(values)
    excess = (values[:, None] - values[None])[strict]
    assert (found.pairs, found.violated) == (strict.sum(), (excess > 0).sum())
    assert found.total == pytest.approx(excess[excess > 0].sum(), rel=1e-12)
    assert found.worst == excess.max(initial=0.0)


@QUICK
@given(table=tables())
def test_pairs_by_brute_force(table):
    check(table)


@QUICK
@given(case=tables_and_values())
def test_closures_and_violations_by_brute_force(case):
    check_values(*case)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 129, 200])
@pytest.mark.parametrize(("variables", "high"), [(1, 300), (2, 8), (3, 12), (7, 52)])
def test_sets_of_several_words(count, variables, high):
    random = np.random.default_rng([count, variables])
    table = random.integers(1, high + 1, (count, variables))
    check(table)
    check_values(table, random.standard_normal(count))
    check_values(table, table.sum(1).astype(float))


@QUICK
@given(table=tables(25))
def test_all_pairs_follow_from_the_covering_ones(table):
    reached = np.zeros((len(table), len(table)), dtype=bool)
    reached[tuple(Dominance(table).covering().T)] = True
    assert not (reached & (reached.astype(int) @ reached.astype(int) > 0)).any()
    for _ in range(len(table)):
        reached |= reached.astype(int) @ reached.astype(int) > 0
    assert listed(reached) == Dominance(table).pairs().tolist()


def test_equal_rows_cover_the_same_rows():
    order = Dominance([[2, 2], [1, 1], [1, 1], [2, 2], [1, 2]])
    assert order.covering().tolist() == [[1, 4], [2, 4], [4, 0], [4, 3]]
    assert order.pairs().tolist() == [[1, 0], [1, 3], [1, 4], [2, 0], [2, 3], [2, 4], [4, 0], [4, 3]]
    assert order.count() == 8


def test_violations_of_a_grid():
    order = Dominance(GRID)
    assert order.violations([0.0, 0.25, 0.5, 1.0]) == (5, 0, 0.0, 0.0)
    assert order.violations([1.0, 0.25, 2.0, 0.5]) == (5, 3, 0.75 + 0.5 + 1.5, 1.5)
    assert Dominance([[1], [1]]).violations([3.0, 4.0]) == (0, 0, 0.0, 0.0)
    assert order.closures(np.array([1.0, 0.25, 2.0, 0.5]))[0].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert order.closures(np.array([1.0, 0.25, 2.0, 0.5]))[1].tolist() == [0.25, 0.25, 0.5, 0.5]


@QUICK
@given(case=tables_and_values(), data=st.data())
def test_the_order_of_the_rows_does_not_matter(case, data):
    table, values = case
    renamed = np.array(data.draw(st.permutations(range(len(table)))), dtype=int)
    before, after = Dominance(table), Dominance(table[renamed])

    def same(first, second):
        return first.tolist() == sorted(renamed[second].tolist())

    assert before.count() == after.count()
    assert same(before.pairs(), after.pairs())
    assert same(before.covering(), after.covering())
    for first, second in zip(before.closures(values), after.closures(values[renamed]), strict=True):
        assert first[renamed].tolist() == second.tolist()
    first, second = before.violations(values), after.violations(values[renamed])
    assert (first.pairs, first.violated, first.worst) == (second.pairs, second.violated, second.worst)


@pytest.mark.parametrize("block", [1, 100, 400, 2000, 20_000])
def test_blocks_of_a_few_rows(block, monkeypatch):
    random = np.random.default_rng(3)
    table = np.concatenate([random.integers(1, 5, (150, 2)), random.integers(1, 40, (150, 1))], 1)
    values = random.standard_normal(len(table))
    whole = Dominance(table)
    sampled = whole.pairs(sample=77, seed=5)
    assert all(sets.prepared is not None for sets in whole._sets)
    monkeypatch.setattr(dominance, "BLOCK", block)
    parts = Dominance(table)
    # Columns of four and of forty values: 96 bytes or more, and 900.
    assert [sets.prepared is not None for sets in parts._sets] == [block >= 100, block >= 100, block >= 1000]
    assert (len(list(parts._above(block))) > 1) == (block < 3000)
    check(table)
    check_values(table, values)
    assert parts.pairs(sample=77, seed=5).tolist() == sampled.tolist()
    distinct = np.unique(table, axis=0)
    assert len(distinct) < len(table)
    check(distinct)


def distinct_members(sampled, every, count):
    found = {tuple(pair) for pair in sampled.tolist()}
    assert len(found) == len(sampled) == count
    assert found <= {tuple(pair) for pair in every.tolist()}
    assert sampled.tolist() == sorted(sampled.tolist())


@QUICK
@given(table=tables(), sample=st.integers(0, 60), seed=st.integers(0, 9))
def test_a_sample_of_the_pairs(table, sample, seed):
    order = Dominance(table)
    every = order.pairs()
    sampled = order.pairs(sample=sample, seed=seed)
    distinct_members(sampled, every, min(sample, len(every)))
    assert sampled.tolist() == Dominance(table).pairs(sample=sample, seed=seed).tolist()
    assert order.pairs(sample=len(every)).tolist() == every.tolist()


def test_every_pair_is_as_likely_as_any_other():
    order = Dominance(GRID)
    drawn = np.concatenate([order.pairs(sample=2, seed=seed) for seed in range(1000)])
    pairs, times = np.unique(drawn, axis=0, return_counts=True)
    assert pairs.tolist() == order.pairs().tolist()
    # 400 ± 15.5 each; the tolerance is six standard deviations.
    assert (np.abs(times - 400) < 93).all()


def test_more_pairs_than_the_limit(monkeypatch):
    order = Dominance(np.arange(100)[:, None])
    message = "100 configurations have 4950 dominated pairs, more than 4949: sample fewer of them with `sample`, or use"
    monkeypatch.setattr(dominance, "LIMIT", 4950)
    every = order.pairs()
    assert len(every) == 4950
    monkeypatch.setattr(dominance, "LIMIT", 4949)
    with pytest.raises(ValueError, match=message):
        order.pairs()
    with pytest.raises(ValueError, match=message):
        order.pairs(sample=5000)
    distinct_members(order.pairs(sample=100), every, 100)
    assert len(order.covering()) == 99


def test_integers_of_any_size():
    top, bottom = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    large = [[top, top], [top, top - 1], [top - 1, top], [bottom, bottom], [bottom, top], [bottom + 1, bottom]]
    table = np.array([[5 * k, 5 * k] for k in range(70)] + large)
    check(table)
    check_values(table, np.random.default_rng(0).standard_normal(len(table)))
    check(np.array([[2**63 + 5], [3], [2**64 - 1]], dtype=np.uint64))


@pytest.mark.parametrize("rows", [5_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_twenty_thousand_configurations(rows):
    table = np.random.default_rng(0).integers(4, 53, (rows, 7))
    start = time.process_time()
    tracemalloc.start()
    try:
        order = Dominance(table)
        count, pairs, covering = order.count(), order.pairs(), order.covering()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 60
    assert peak < rows**2  # bytes; a pair of rows takes a fraction of one
    assert count == len(pairs) > rows**2 // 200
    assert (table[pairs[:, 0]] <= table[pairs[:, 1]]).all()
    assert len(np.unique(pairs[:, 0] * len(table) + pairs[:, 1])) == count
    for row in np.argsort(table.sum(1))[::800]:
        above = np.flatnonzero((table >= table[row]).all(1) & (table > table[row]).any(1))
        assert pairs[pairs[:, 0] == row, 1].tolist() == above.tolist()
        if len(above) < 1000:
            least = above[~below(table[above]).any(0)]
            assert covering[covering[:, 0] == row, 1].tolist() == least.tolist()


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ([[1.0, 2.0]], r"float64 of shape \(1, 2\)"),
        ([1, 2], r"int64 of shape \(2,\)"),
        (np.zeros((2, 3, 4), dtype=int), r"int64 of shape \(2, 3, 4\)"),
        (np.zeros((2, 0), dtype=int), r"int64 of shape \(2, 0\)"),
        ([[True, False]], "bool of shape"),
    ],
)
def test_tables_that_are_refused(table, kind):
    with pytest.raises(ValueError, match=f"a 2-D array of integers with one column per variable, got {kind}"):
        Dominance(table)

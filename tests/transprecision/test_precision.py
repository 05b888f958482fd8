"""Rounding to a mantissa width, bit for bit the same as MPFR."""

import math
import struct
from fractions import Fraction

import gmpy2
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ldf.transprecision.precision import FULL, Rounding, rounded

QUICK = settings(deadline=None, max_examples=150)
EVERY = range(1, FULL + 1)
LARGEST = float(np.finfo(np.float64).max)
INFINITE = 0x7FF << 52
"""The bits of ∞."""

widths = st.integers(1, FULL)
finite = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    # Uniform over the bits: every exponent is as likely as any other.
    st.tuples(st.sampled_from([1.0, -1.0]), st.integers(0, INFINITE - 1)).map(lambda x: x[0] * of_bits(x[1])),
)


def of_bits(pattern):
    return struct.unpack("<d", struct.pack("<Q", pattern))[0]


def bits(values):
    return np.asarray(values, dtype=np.float64).view(np.int64).tolist()


def mpfr(value, width):
    """Rounded by MPFR, in a format with `width` mantissa bits and the exponents and subnormals of a double."""
    # MPFR's significands are in [½, 1): the smallest number 2^(−1022−w) is ½ · 2^(−1021−w).
    limits = {"emin": -1021 - width, "emax": 1024, "subnormalize": True}
    with gmpy2.context(precision=width + 1, round=gmpy2.RoundToNearest, **limits):
        return float(gmpy2.mpfr(float(value)))


def unit(value, width):
    """One unit in the last place of a value with `width` bits."""
    exponent = max(math.frexp(value)[1] - 1, -1022) if value else -1022
    return Fraction(2) ** (exponent - width)


def agrees(values, width):
    values = np.asarray(values, dtype=np.float64)
    assert bits(rounded(values, width)) == bits([mpfr(value, width) for value in values])


@pytest.mark.parametrize("width", EVERY)
def test_as_mpfr_over_all_exponents(width):
    random = np.random.default_rng(width)
    patterns = random.integers(0, INFINITE, 300) | random.integers(-1, 1, 300) << 63
    agrees(patterns.view(np.float64), width)
    ordinary = random.standard_normal(100)
    agrees(ordinary, width)
    # Within these exponents the exponent range of the format does not matter.
    with gmpy2.context(precision=width + 1, round=gmpy2.RoundToNearest):
        assert bits(rounded(ordinary, width)) == bits([float(gmpy2.mpfr(float(value))) for value in ordinary])


@pytest.mark.parametrize("width", range(1, FULL))
def test_ties_go_to_the_even_neighbour(width):
    drop = FULL - width
    random = np.random.default_rng(width)
    for exponent in (0, 1, 2, 1023, 2045, *random.integers(0, 2046, 8).tolist()):
        for kept in {0, 1, (1 << width) - 2, (1 << width) - 1, *random.integers(0, 1 << width, 6).tolist()}:
            below = exponent << FULL | kept << drop
            tie, above = below + (1 << drop - 1), below + (1 << drop)
            even, odd = (above, below) if kept % 2 else (below, above)
            assert bits(rounded([of_bits(tie), -of_bits(tie)], width)) == bits([of_bits(even), -of_bits(even)])
            near = [of_bits(tie - 1), of_bits(tie), of_bits(tie + 1)]
            assert bits(rounded([near[0], near[2]], width)) == bits([of_bits(below), of_bits(above)])
            assert bits(rounded([of_bits(even), of_bits(odd)], width)) == [even, odd]
            agrees([*near, *(-value for value in near)], width)


@pytest.mark.parametrize("width", EVERY)
def test_numbers_too_large_become_infinite(width):
    edge = LARGEST if width == FULL else of_bits(INFINITE - (1 << FULL - width - 1))
    values = [LARGEST, edge, np.nextafter(edge, 0), of_bits(INFINITE - (1 << FULL - width))]
    agrees([*values, *(-value for value in values)], width)
    with gmpy2.context(precision=width + 1, round=gmpy2.RoundToNearest):
        assert bits(rounded(values, width)) == bits([float(gmpy2.mpfr(float(value))) for value in values])
    assert np.isinf(rounded([edge, -LARGEST], width)).tolist() == [width < FULL] * 2
    assert np.isfinite(rounded(values[2:], width)).all()


@pytest.mark.parametrize("width", EVERY)
def test_tiny_and_subnormal_numbers(width):
    random = np.random.default_rng(width)
    least, normal = of_bits(1), of_bits(1 << FULL)
    subnormal = random.integers(0, 1 << FULL, 100).view(np.float64)
    few = random.integers(0, 1 << random.integers(1, FULL, 100)).view(np.float64)
    tiny = random.integers(1 << FULL, 4 << FULL, 100).view(np.float64)
    spacing = of_bits(1 << FULL - width)
    assert spacing == 2.0 ** (-1022 - width)
    special = [least, normal, np.nextafter(normal, 0), np.nextafter(normal, 1), spacing, 1.5 * spacing]
    special += [spacing / 2, np.nextafter(spacing / 2, 1)] if width < FULL else []
    agrees(np.concatenate([subnormal, few, tiny, special, -subnormal, -few, np.negative(special)]), width)


@pytest.mark.parametrize("width", EVERY)
def test_zeros_infinities_and_nan(width):
    same = [0.0, -0.0, np.inf, -np.inf]
    assert bits(rounded(same, width)) == bits(same)
    payloads = [
        1,
        2,
        1 << 51,
        (1 << 51) - 1,
        (1 << 52) - 1,
        *np.random.default_rng(0).integers(1, 1 << 52, 20).tolist(),
    ]
    lost = [of_bits(INFINITE | payload | sign) for payload in payloads for sign in (0, 1 << 63)]
    assert np.isnan(rounded(lost, width)).all()
    mixed = rounded([1.3, *lost[:3], -np.inf, 1.7], width)
    assert np.isnan(mixed).tolist() == [False, True, True, True, False, False]
    assert bits(mixed[[0, 4, 5]]) == bits([mpfr(1.3, width), -np.inf, mpfr(1.7, width)])


@QUICK
@given(x=finite, width=widths)
def test_rounding_is_idempotent_symmetric_and_within_half_a_unit(x, width):
    found = float(rounded(x, width))
    assert bits(found) == bits(mpfr(x, width))
    assert bits(rounded(found, width)) == bits(found)
    assert bits(rounded(-x, width)) == bits(-found)
    assert bits(rounded(x, FULL)) == bits(x)
    if math.isinf(found):
        assert Fraction(abs(x)) >= 2**1024 - unit(LARGEST, width) / 2
    else:
        assert abs(Fraction(x) - Fraction(found)) <= unit(x, width) / 2
        assert Fraction(found) % unit(x, width) == 0


@QUICK
@given(x=finite, y=finite, steps=st.integers(0, 4), width=widths)
def test_rounding_keeps_the_order(x, y, steps, width):
    near = x
    for _ in range(steps):
        near = float(np.nextafter(near, LARGEST))
    low, high = sorted([x, y])
    assert rounded(low, width) <= rounded(high, width)
    assert rounded(x, width) <= rounded(near, width)


@QUICK
@given(x=finite, first=widths, second=widths)
def test_more_bits_are_never_further_away(x, first, second):
    few, many = (float(rounded(x, width)) for width in sorted([first, second]))
    assume(not math.isinf(few))
    assert abs(Fraction(x) - Fraction(many)) <= abs(Fraction(x) - Fraction(few))


@QUICK
@given(data=st.data(), chosen=st.lists(widths, min_size=1, max_size=6), lead=st.sampled_from([(), (1,), (3,), (2, 2)]))
def test_a_width_for_every_column(data, chosen, lead):
    each = data.draw(st.booleans())
    shape = (*lead, len(chosen) if each else 1)
    size = math.prod(shape)
    values = np.array(data.draw(st.lists(finite, min_size=size, max_size=size))).reshape(shape)
    before = values.copy()
    found = Rounding(np.array(chosen))(values)
    assert found.shape == (*lead, len(chosen))
    for column, width in enumerate(chosen):
        given_column = values[..., column if each else 0]
        assert bits(found[..., column]) == bits(rounded(given_column, width))
    assert bits(rounded(values, chosen)) == bits(found)
    found[...] = 7.0
    assert bits(values) == bits(before)


def test_shapes_and_kinds_of_input():
    assert Rounding([2, 52])(1.3).tolist() == [1.25, 1.3]
    assert rounded(1.3, 2).shape == ()
    assert rounded([], 3).shape == (0,)
    assert rounded([[1.3], [1.6]], [[2, 3]]).tolist() == [[1.25, 1.25], [1.5, 1.625]]
    table = np.linspace(1, 2, 12).reshape(3, 4)
    assert np.array_equal(rounded(table.T, 5), rounded(table, 5).T)
    assert np.array_equal(rounded(table[:, ::2], 5), rounded(table, 5)[:, ::2])
    for dtype in (np.uint8, np.int16, np.uint64):
        assert Rounding(np.array([2], dtype=dtype))([1.3]).tolist() == [1.25]


@pytest.mark.parametrize(
    ("given_widths", "message"),
    [
        ([8, 0], "a mantissa width must be between 1 and 52 bits, got 0"),
        ([53], "a mantissa width must be between 1 and 52 bits, got 53"),
        ([-1], "a mantissa width must be between 1 and 52 bits, got -1"),
        ([8.0], r"widths must be a 1-D array of integers, got float64 of shape \(1,\)"),
        ([[8, 9]], r"widths must be a 1-D array of integers, got int64 of shape \(1, 2\)"),
        (8, r"widths must be a 1-D array of integers, got int64 of shape \(\)"),
        ([True], "widths must be a 1-D array of integers, got bool"),
    ],
)
def test_widths_that_are_refused(given_widths, message):
    with pytest.raises(ValueError, match=message):
        Rounding(given_widths)


def test_rounded_refuses_them_too():
    for width in (0, 53, 8.0):
        with pytest.raises(ValueError, match="width"):
            rounded([1.0], width)

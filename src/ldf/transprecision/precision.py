"""Rounding to fewer mantissa bits: to nearest, ties to even, with a separate width for each configuration.

A width w is the number of stored mantissa bits, 1 to 52, without the leading one: 52 is double precision, 23 single,
10 half, 7 bfloat16. The exponent has the range of a double; subnormal numbers are spaced by 2^(−1022−w).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FULL = 52
"""Stored mantissa bits of a double."""


class Rounding:
    """x ↦ the nearest number with w mantissa bits, for widths [C] on the last axis of x: [..., C] or [..., 1].

    >>> Rounding(np.array([2, 52]))(np.array([[1.3]]))
    array([[1.25, 1.3 ]])
    """

    def __init__(self, widths: Any) -> None:
        widths = np.asarray(widths)
        if widths.ndim != 1 or not np.issubdtype(widths.dtype, np.integer):
            raise ValueError(f"widths must be a 1-D array of integers, got {widths.dtype} of shape {widths.shape}")
        outside = widths[(widths < 1) | (widths > FULL)]
        if outside.size:
            raise ValueError(f"a mantissa width must be between 1 and {FULL} bits, got {outside[0]}")
        drop = (FULL - widths).astype(np.uint64)
        one = np.uint64(1)
        rounds = drop > 0
        self.drop = drop
        self.odd = rounds.astype(np.uint64)
        # Half a unit of the last kept bit, minus one. With that bit added, a tie carries only if the bit is odd.
        self.below_half = np.where(rounds, (one << (drop - rounds)) - one, np.uint64(0))
        self.keep = ~((one << drop) - one)
        self.exact = not bool(rounds.any())

    def __call__(self, values: npt.ArrayLike) -> Floats:
        """Rounded copies, [..., C]."""
        values = np.asarray(values, dtype=np.float64)
        shape = np.broadcast_shapes(values.shape, self.drop.shape)
        if self.exact:
            return np.array(np.broadcast_to(values, shape))
        bits = np.ascontiguousarray(values).view(np.uint64)
        # Sign and magnitude: adding to the bits moves away from zero; a carry propagates into the exponent, up to ∞.
        out: npt.NDArray[np.uint64] = np.right_shift(bits, self.drop)
        out &= self.odd
        out += self.below_half
        out += bits
        out &= self.keep
        result = out.view(np.float64)
        lost = np.isnan(values)
        if lost.any():
            np.copyto(result, np.nan, where=lost)
        return result


def rounded(values: npt.ArrayLike, widths: npt.ArrayLike) -> Floats:
    """Round values to the given mantissa widths, ties to even; widths broadcast with the values.

    >>> rounded([1.3, 1.3, 1.3], [2, 3, 52])
    array([1.25, 1.25, 1.3 ])
    """
    values, widths = np.broadcast_arrays(np.asarray(values, dtype=np.float64), np.asarray(widths))
    return Rounding(widths.reshape(-1))(values.reshape(-1)).reshape(values.shape)

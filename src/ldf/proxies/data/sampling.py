"""Sampling of the demands to learn from: nominal demands with each load, or all loads together, scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mode = Literal["independent", "shared"]


@dataclass(frozen=True)
class Sampling:
    """Random demands d = f·d⁰, with nominal demand d⁰ and factors f in [low, high].

    Args:
        mode: "independent" draws a factor for each load, "shared" one factor for all loads.
        low: the smallest factor.
        high: the largest factor.
        noise: each load is also multiplied by 1 + U(−noise, noise).
        hot_start: with h > 0 a sample is a pair: an earlier demand as above, and one that differs from it by the factor
            1 + U(−h, h), for each load or for all, depending on the mode. 0: no pairs.
    """

    mode: Mode = "shared"
    low: float = 0.8
    high: float = 1.2
    noise: float = 0.0
    hot_start: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in ("independent", "shared"):
            raise ValueError(f"sampling must be 'independent' or 'shared', got {self.mode!r}")
        if not 0 < self.low < self.high < np.inf:
            raise ValueError(f"factors must satisfy 0 < low < high, got {self.low} and {self.high}")
        for name, value in (("noise", self.noise), ("hot start", self.hot_start)):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")

    def draw(self, seed: int, index: int, loads: Ints) -> tuple[Floats, Floats | None]:
        """Factors [D] of sample `index`: of the demand or, with a hot start, of the earlier demand and of the demand.

        Each sample has its own random numbers, so it does not depend on the worker or on the order.
        """
        random = np.random.default_rng([seed, index])
        count = int(loads.max(initial=-1)) + 1
        size = count if self.mode == "independent" else 1
        factors = np.ones(count) * random.uniform(self.low, self.high, size)
        if self.noise:
            factors *= 1 + random.uniform(-self.noise, self.noise, count)
        first = _spread(factors, loads)
        if not self.hot_start:
            return first, None
        factors = factors * (1 + random.uniform(-self.hot_start, self.hot_start, size))
        return first, _spread(factors, loads)


def _spread(factors: Floats, loads: Ints) -> Floats:
    """[D] factor of each entry's load; 1 for entries without a load."""
    return np.where(loads >= 0, factors[loads], 1.0)

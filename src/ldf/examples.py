"""Synthetic example data: economic dispatch of one load over four units."""

from __future__ import annotations

import torch
from torch import Tensor

COSTS = (1.0, 1.5, 2.0, 3.0)


def dispatch(rows: int = 2000, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labelled data for sharing a load between four units at minimum cost ½ Σ cᵢ yᵢ².

    Args:
        rows: number of cases.
        seed: random seed for capacities, loads and noise.

    Returns:
        inputs [rows, 5]: the capacity of each unit, then the unused capacity as a negative number, so that a row sums
        to the load; targets [rows, 4]: the share of each unit, with measurement noise of standard deviation 0.05.
    """
    generator = torch.Generator().manual_seed(seed)
    capacity = 0.5 + torch.rand(rows, 4, generator=generator)
    unused = capacity.sum(1, keepdim=True) * (0.1 + 0.5 * torch.rand(rows, 1, generator=generator))
    inputs = torch.cat([capacity, -unused], 1)
    load = inputs.sum(1, keepdim=True)
    costs = torch.tensor(COSTS)
    low, high = torch.zeros(rows, 1), torch.full((rows, 1), 10.0)
    for _ in range(60):  # bisection on the price p where Σ min(p/cᵢ, capacityᵢ) equals the load
        price = (low + high) / 2
        short = (price / costs).minimum(capacity).sum(1, keepdim=True) < load
        low, high = torch.where(short, price, low), torch.where(short, high, price)
    optimum = (price / costs).minimum(capacity)
    return inputs, optimum + 0.05 * torch.randn(optimum.shape, generator=generator)

"""Networks that predict y from a configuration: the paper's, and one with the shape of the problem."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .dominance import Ints
from .precision import Floats

KNOTS = 64
"""A profile has a knot at every value of its variable, or this many evenly spaced ones where there are more."""


class Perceptron(nn.Sequential):
    """The paper's network: three hidden layers of ten, ReLU; widths go in scaled to [0, 1]."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        layers: list[nn.Module] = [Scaled(low, high)]
        for size in (len(low), 10, 10):
            layers += [nn.Linear(size, 10), nn.ReLU()]
        super().__init__(*layers, nn.Linear(10, 1))


class Scaled(nn.Module):
    """(x − low)/(high − low), column by column."""

    low: Tensor
    span: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        self.register_buffer("low", low)
        self.register_buffer("span", (high - low).clamp_min(1))

    def forward(self, widths: Tensor) -> Tensor:
        """[rows, variables] → the same in [0, 1]."""
        return (widths - self.low) / self.span


class Profiles(nn.Module):
    """y = softmin_i g_i(x_i): the least precise variable has the say; each g_i is a learned profile over its widths.

    Rounding a variable to x bits contributes about c·2^(−x) to an output's relative error, and contributions add up, so
    that y = −log Σ_i exp(−g_i(x_i)/T) · T with straight lines g_i. A profile is such a line plus steps of its own at
    every width; floor and ceiling bound y where the error is total or none:

        g_i(x) = level_i + slope_i·t(x) + scale·Σ_{v ≤ x} step_iv,   t(x) = (x − low_i)/(high_i − low_i)
        y = T·log(exp(floor/T) + 1/(exp(−ceiling/T) + Σ_i exp(−g_i(x_i)/T)))

    Where no profile falls, y falls nowhere: `repaired` makes it so. Between knots a profile is linear, beyond its ends
    flat.

    Args:
        low, high: [variables] the ranges of the widths.
        scale: how fast steps are learned against levels and slopes: small keeps profiles straight.
    """

    low: Tensor
    high: Tensor
    spacing: Tensor
    last: Tensor
    start: Tensor
    ramp: Tensor
    scale: Tensor
    change: Tensor

    def __init__(self, low: Tensor, high: Tensor, scale: float = 0.1) -> None:
        super().__init__()
        variables = len(low)
        counts = (high - low + 1).clamp(min=2, max=KNOTS)
        knots = int(counts.max())
        self.register_buffer("low", low)
        self.register_buffer("high", high)
        self.register_buffer("last", counts - 1)
        # A variable with one value stays at its first knot whatever it is asked for.
        self.register_buffer("spacing", torch.where(high > low, (high - low) / (counts - 1), torch.inf))
        self.register_buffer("start", torch.arange(variables) * knots)
        # Beyond a variable's own last knot nothing is looked up.
        self.register_buffer("ramp", (torch.arange(knots) / (counts[:, None] - 1)).clamp(max=1))
        self.register_buffer("scale", torch.tensor(scale))
        self.register_buffer("change", torch.zeros(variables, knots))
        self.level = nn.Parameter(torch.full((variables, 1), 0.1))
        self.slope = nn.Parameter(torch.ones(variables, 1))
        self.steps = nn.Parameter(torch.zeros(variables, knots))
        self.log_temperature = nn.Parameter(torch.tensor(-3.5))
        self.floor = nn.Parameter(torch.tensor(-0.1))
        self.ceiling = nn.Parameter(torch.tensor(1.05))

    def profiles(self) -> Tensor:
        """g at every knot: [variables, knots]."""
        return self.level + self.slope * self.ramp + self.scale * self.steps.cumsum(1) + self.change

    def forward(self, widths: Tensor) -> Tensor:
        """[rows, variables] → [rows, 1]."""
        profiles = self.profiles()
        temperature = self.log_temperature.exp()
        at = ((widths - self.low) / self.spacing).clamp_min(0).minimum(self.last)
        knot = at.floor().minimum(self.last - 1)
        place = knot.long() + self.start
        flat = profiles.flatten()
        left = flat[place]
        values = left + (at - knot) * (flat[place + 1] - left)
        bounded = torch.cat([values, self.ceiling.expand(*values.shape[:-1], 1)], -1)
        least = -temperature * torch.logsumexp(-bounded / temperature, -1)
        return (temperature * torch.logaddexp(least / temperature, self.floor / temperature))[..., None]

    @torch.no_grad()
    def repaired(self) -> Profiles:
        """A copy whose profiles never fall, moved the least: ½ (running maximum + reversed running minimum)."""
        made = copy.deepcopy(self)
        profiles = self.profiles()
        # A variable's own knots only: the constant beyond its last must not reach back.
        beyond = torch.arange(profiles.shape[1], device=profiles.device) > self.last[:, None]
        high = profiles.masked_fill(beyond, -torch.inf).cummax(1).values
        low = profiles.masked_fill(beyond, torch.inf).flip(1).cummin(1).values.flip(1)
        made.change += torch.where(beyond, 0.0, 0.5 * (high + low) - profiles)
        return made

    def costs(self, widths: Sequence[Ints]) -> list[Floats]:
        """exp(−g_i(x)/T) of the repaired profiles at the widths given for each variable, ascending: never rises."""
        profiles = self.repaired().double().profiles().detach().numpy()
        ends = (self.low, self.high, torch.where(self.high > self.low, self.last, 0.0))
        found = []
        for profile, asked, low, high, last in zip(profiles, widths, *(end.tolist() for end in ends), strict=True):
            values = np.interp(asked, np.linspace(low, high, int(last) + 1), profile[: int(last) + 1])
            with np.errstate(over="ignore"):
                found.append(np.minimum.accumulate(np.exp(-np.maximum.accumulate(values) / self.temperature)))
        return found

    def monotone(self, configurations: Ints) -> Floats:
        """y of the repaired network, in double precision and monotone without exception, not only up to rounding.

        Costs that never rise are added up in a fixed order, which keeps the order of sums; a logarithm may break it in
        its last bit, so that it is taken over the sorted sums and made to fall. [n, variables] → [n]
        """
        distinct = [np.unique(column, return_inverse=True) for column in configurations.T]
        total = np.full(len(configurations), np.exp(-float(self.ceiling.detach()) / self.temperature))
        for cost, (_, which) in zip(self.costs([widths for widths, _ in distinct]), distinct, strict=True):
            total = total + cost[which.reshape(-1)]
        sums, which = np.unique(total, return_inverse=True)
        floor = float(self.floor.detach()) / self.temperature
        with np.errstate(divide="ignore"):
            falling = self.temperature * np.logaddexp(floor, -np.log(sums))
        return np.asarray(np.minimum.accumulate(falling)[which.reshape(-1)])

    @property
    def temperature(self) -> float:
        """T."""
        return math.exp(float(self.log_temperature.detach()))

"""Networks that predict y from a configuration: the paper's, and one structured like the problem."""

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
"""Maximum number of knots of a profile: one per width, or this many evenly spaced if the range is wider."""


class Perceptron(nn.Sequential):
    """The paper's network: three hidden layers of ten, ReLU; input widths are scaled to [0, 1]."""

    def __init__(self, low: Tensor, high: Tensor) -> None:
        layers: list[nn.Module] = [Scaled(low, high)]
        for size in (len(low), 10, 10):
            layers += [nn.Linear(size, 10), nn.ReLU()]
        super().__init__(*layers, nn.Linear(10, 1))


class Scaled(nn.Module):
    """(x − low)/(high − low) for each column."""

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
    """y = softmin_i g_i(x_i): the least precise variable determines y; each g_i is a learned profile over its widths.

    Rounding a variable to x bits contributes about c·2^(−x) to an output's relative error, and contributions add up.
    This gives y = −log Σ_i exp(−g_i(x_i)/T) · T with straight lines g_i. A profile is such a line plus a learned step
    at every width. The floor and ceiling bound y where the error is total or zero:

        g_i(x) = level_i + slope_i·t(x) + scale·Σ_{v ≤ x} step_iv,   t(x) = (x − low_i)/(high_i − low_i)
        y = T·log(exp(floor/T) + 1/(exp(−ceiling/T) + Σ_i exp(−g_i(x_i)/T)))

    If no profile decreases, y does not decrease; `repaired` ensures this. A profile is linear between knots and
    constant beyond its ends.

    Args:
        low, high: [variables] the ranges of the widths.
        scale: learning speed of the steps relative to levels and slopes; small values keep profiles straight.
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
        # A variable with a single value stays at its first knot for any input.
        self.register_buffer("spacing", torch.where(high > low, (high - low) / (counts - 1), torch.inf))
        self.register_buffer("start", torch.arange(variables) * knots)
        # Entries beyond a variable's last knot are never used.
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
        """g_i at every knot: [variables, knots]."""
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
        """A copy with the nearest non-decreasing profiles: ½ (running maximum + reversed running minimum)."""
        made = copy.deepcopy(self)
        profiles = self.profiles()
        # Only the variable's own knots: entries beyond the last must not affect them.
        beyond = torch.arange(profiles.shape[1], device=profiles.device) > self.last[:, None]
        high = profiles.masked_fill(beyond, -torch.inf).cummax(1).values
        low = profiles.masked_fill(beyond, torch.inf).flip(1).cummin(1).values.flip(1)
        made.change += torch.where(beyond, 0.0, 0.5 * (high + low) - profiles)
        return made

    def costs(self, widths: Sequence[Ints]) -> list[Floats]:
        """exp(−g_i(x)/T) of the repaired profiles at ascending widths of each variable; non-increasing."""
        profiles = self.repaired().double().profiles().detach().numpy()
        ends = (self.low, self.high, torch.where(self.high > self.low, self.last, 0.0))
        found = []
        for profile, asked, low, high, last in zip(profiles, widths, *(end.tolist() for end in ends), strict=True):
            values = np.interp(asked, np.linspace(low, high, int(last) + 1), profile[: int(last) + 1])
            with np.errstate(over="ignore"):
                found.append(np.minimum.accumulate(np.exp(-np.maximum.accumulate(values) / self.temperature)))
        return found

    def monotone(self, configurations: Ints) -> Floats:
        """y of the repaired network in double precision, exactly monotone despite rounding: [n, variables] → [n].

        Non-increasing costs are added in a fixed order, so their sums are ordered too. The logarithm may break this
        order in its last bit, so it is evaluated on the sorted sums and made non-increasing by a running minimum.
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
        """The softmin temperature T."""
        return math.exp(float(self.log_temperature.detach()))

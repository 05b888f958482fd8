"""The network that replaces a solver: a ridge regression, the base, and a neural network for its residual.

    state = base(d) + s ∘ z(d),  and prices likewise, by a network of their own (`Dataset.priced`)

The base is fitted in closed form and in double precision: a linear function with hinges along the direction in which
demands vary most or, if there are enough rows, a quadratic function. The network predicts only the residual z of the
base, scaled by quantity to order one. In the paper's recipe the base is zero and s is one: the network predicts the
state itself, per unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset

PENALTIES = (1e-14, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
"""Candidate ridge penalties, selected on the validation rows."""
KNOTS = (0, 32, 128, 512, 1024)
"""Candidate numbers of hinges."""
ROWS_PER_KNOT = 2
"""Minimum rows per hinge or product: with fewer the base would interpolate the training rows."""
CHUNK = 4096
"""Rows predicted at a time."""
NEGLIGIBLE = 1e-4
"""Principal components with a standard deviation below this fraction of the largest are omitted."""
CONSTANT = 1e-7
"""An output that varies by less than this, in its own unit, is pinned to its mean: the solver's tolerance."""


@dataclass(frozen=True)
class Architecture:
    """Layout of a network.

    Args:
        layers: number of hidden layers.
        width: width of a hidden layer; None: twice the number of outputs.
        skip: fit a base by ridge regression, scale by quantity, pin constant outputs; otherwise predict the raw state.
        bounded: clip answers to their bounds.
    """

    layers: int
    width: int | None
    skip: bool
    bounded: bool


class Proxy(nn.Module):
    """Demand in, state out; with a hot start also the earlier demand and its state.

    `forward` maps `features(…)` [B, F] to z [B, S'], with a column for every output that is not pinned.
    """

    mean: Tensor
    rotation: Tensor
    direction: Tensor
    centre: Tensor
    knots: Tensor
    weights: Tensor
    offset: Tensor
    free: Tensor
    scale: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(self, architecture: Architecture, hot: bool, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.architecture, self.hot, self.sizes = architecture, hot, dict(sizes)
        double = torch.float64
        n, features, states, demand = sizes["inputs"], sizes["features"], sizes["states"], sizes["demand"]
        curved = sizes["curved"]
        rows = 1 + features + sizes["knots"] + curved * (curved + 1) // 2 if architecture.skip else 0
        for name, shape in (
            ("mean", [n]),
            ("rotation", [n, features]),
            ("direction", [demand]),
            ("centre", [demand]),
            ("knots", [sizes["knots"]]),
            ("weights", [rows, states]),
            ("offset", [states]),
            ("scale", [sizes["free"]]),
            ("lower", [states]),
            ("upper", [states]),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=double))
        self.register_buffer("free", torch.zeros(sizes["free"], dtype=torch.int64))
        width = architecture.width or 2 * states
        layers: list[nn.Module] = []
        widths = [features, *[width] * architecture.layers]
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        last = nn.Linear(widths[-1], sizes["free"])
        if architecture.skip:  # start at the base: an untrained network adds nothing
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.network = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        """z, [B, S']."""
        z: Tensor = self.network(features)
        return z

    def features(self, rows: Rows) -> Tensor:
        """Inputs of the network, [B, F] in double precision: whitened principal components, or the raw inputs."""
        return (rows.inputs(self.hot) - self.mean) @ self.rotation

    def base(self, rows: Rows) -> Tensor:
        """Prediction of the closed-form base, [B, S] in double precision."""
        start = rows.earlier_state if self.hot and self.architecture.skip else None
        base = self.offset.expand(len(rows.demand), -1)
        if self.architecture.skip:
            base = base + self._design(rows) @ self.weights
        if start is not None:
            moving = torch.zeros_like(self.offset)
            moving[self.free] = 1.0
            base = base + start * moving
        return base

    def _design(self, rows: Rows) -> Tensor:
        along = (rows.demand - self.centre) @ self.direction
        return design(self.features(rows), along, self.knots, self.sizes["curved"])

    def states(self, z: Tensor, base: Tensor) -> Tensor:
        """base + s ∘ z in the columns that are not pinned: [B, S]."""
        return base.index_add(1, self.free, z.to(base.dtype) * self.scale.to(base.dtype))

    def targets(self, states: Tensor, base: Tensor) -> Tensor:
        """The z that gives these states: [B, S']."""
        return (states - base)[:, self.free] / self.scale

    @torch.no_grad()
    def temper(self, data: Dataset) -> None:
        """Shrink z by the factor in [0, 1], per quantity, that fits these rows best: z must not degrade the base."""
        rows = Rows.of(data)
        z = self(self.features(rows).to(next(self.network.parameters()).dtype)).double()
        wanted = self.targets(data.state, self.base(rows))
        for part in data.parts.values():
            members = (self.free >= part.start) & (self.free < part.stop)
            size = z[:, members].square().sum()
            if size > 0:
                self.scale[members] *= ((z * wanted)[:, members].sum() / size).clamp(0, 1)

    @torch.no_grad()
    def predict(self, rows: Rows) -> Tensor:
        """States [B, S] in double precision."""
        dtype = next(self.network.parameters()).dtype
        found = []
        for part in rows.chunks(CHUNK):
            states = self.states(self(self.features(part).to(dtype)).double(), self.base(part))
            found.append(states.clamp(self.lower, self.upper) if self.architecture.bounded else states)
        return torch.cat(found) if found else torch.zeros(0, len(self.offset), dtype=torch.float64)


@dataclass(frozen=True)
class Rows:
    """Demands [B, D], and with a hot start the earlier demands [B, D] and states [B, S], in double precision."""

    demand: Tensor
    earlier_demand: Tensor | None = None
    earlier_state: Tensor | None = None

    @classmethod
    def of(cls, data: Dataset) -> Rows:
        """The inputs of a data set."""
        return cls(data.demand, data.earlier_demand, data.earlier_state)

    @classmethod
    def near(cls, memory: Rows | None, demand: Tensor, earlier: tuple[Tensor, Tensor] | None) -> Rows:
        """Demands [B, D] with the given earlier demands and states, or the nearest in memory, if there is one."""
        if memory is None:
            return cls(demand)
        if earlier is None:
            assert memory.earlier_state is not None
            # ‖m − d‖² without ‖d‖²: on one row a product takes a fraction of the time of `cdist`.
            nearest = (memory.demand.square().sum(1) - 2 * demand @ memory.demand.T).argmin(1)
            earlier = memory.demand[nearest], memory.earlier_state[nearest]
        return cls(demand, *earlier)

    def inputs(self, hot: bool) -> Tensor:
        """All inputs concatenated, [B, n]."""
        if not hot:
            return self.demand
        if self.earlier_demand is None or self.earlier_state is None:
            raise ValueError("this network was trained with a hot start: it needs an earlier demand and its state")
        return torch.cat([self.demand, self.earlier_demand, self.earlier_state], 1)

    def chunks(self, size: int) -> list[Rows]:
        """The same rows in chunks."""
        parts = [slice(start, start + size) for start in range(0, len(self.demand), size)]
        if self.earlier_demand is None or self.earlier_state is None:
            return [Rows(self.demand[part]) for part in parts]
        return [Rows(self.demand[part], self.earlier_demand[part], self.earlier_state[part]) for part in parts]


def design(features: Tensor, along: Tensor, knots: Tensor, curved: int) -> Tensor:
    """[B, 1 + F + K + P]: a constant, the features, hinges max(0, u − k) along one direction u [B], and products.

    Products are of any two of the first `curved` features, squares included.
    """
    ones = torch.ones(len(features), 1, dtype=features.dtype)
    first, second = torch.triu_indices(curved, curved)
    return torch.cat(
        [ones, features, (along[:, None] - knots).clamp_min(0), features[:, first] * features[:, second]], 1
    )


def build(architecture: Architecture, training: Dataset, validation: Dataset, seed: int, linear: bool = False) -> Proxy:
    """A network with a fitted base and random weights; the form of the base is selected on the validation rows.

    Args:
        linear: use a linear base, without hinges or products.
    """
    inputs = Rows.of(training).inputs(training.hot)
    fitted = _fitted(training, validation, inputs, linear) if architecture.skip else _raw(training, inputs)
    curved = fitted.pop("curved").numel()
    fitted |= dict(zip(("lower", "upper"), map(torch.from_numpy, training.bounds), strict=True))
    sizes = {
        "inputs": inputs.shape[1],
        "features": fitted["rotation"].shape[1],
        "states": training.state.shape[1],
        "demand": training.demand.shape[1],
        "knots": len(fitted["knots"]),
        "curved": curved,
        "free": len(fitted["free"]),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        proxy = Proxy(architecture, training.hot, sizes)
    for name, value in fitted.items():
        getattr(proxy, name).copy_(value)
    return proxy


def _raw(training: Dataset, inputs: Tensor) -> dict[str, Tensor]:
    """The paper's recipe: the inputs that vary and all outputs, unscaled."""
    kept = torch.eye(inputs.shape[1], dtype=torch.float64)[:, inputs.std(0) > 0]
    states = training.state.shape[1]
    return {
        "mean": torch.zeros(inputs.shape[1], dtype=torch.float64),
        "rotation": kept,
        "direction": torch.zeros(training.demand.shape[1], dtype=torch.float64),
        "centre": torch.zeros(training.demand.shape[1], dtype=torch.float64),
        "knots": torch.zeros(0, dtype=torch.float64),
        "curved": torch.zeros(0),
        "weights": torch.zeros(0, states, dtype=torch.float64),
        "offset": torch.zeros(states, dtype=torch.float64),
        "free": torch.arange(states),
        "scale": torch.ones(states, dtype=torch.float64),
    }


def _fitted(training: Dataset, validation: Dataset, inputs: Tensor, linear: bool) -> dict[str, Tensor]:
    """Principal components, the ridge fit, and the scale of its residual."""
    mean, rotation = components(inputs)
    centre = training.demand.mean(0)
    direction = components(training.demand, scaled=False)[1][:, 0]
    direction = direction / ((training.demand - centre) @ direction).std()
    state_mean, spread = training.state.mean(0), training.state.std(0)
    # If all outputs are constant (prices where nothing costs), one stays free: a network needs an output.
    free = (spread >= spread.amax().clamp_max(CONSTANT)).nonzero()[:, 0]
    units = _by_quantity(training.parts, training.state[:, free] - state_mean[free], free)

    def aims(data: Dataset) -> Tensor:
        start = data.earlier_state if data.earlier_state is not None else state_mean
        return (data.state - start)[:, free] / units

    def see(data: Dataset) -> tuple[Tensor, Tensor]:
        return (Rows.of(data).inputs(data.hot) - mean) @ rotation, (data.demand - centre) @ direction

    (features, along), (check, check_along) = see(training), see(validation)
    wanted, check_wanted = aims(training), aims(validation)
    most, width = len(training) // ROWS_PER_KNOT, features.shape[1]
    shapes = [(count, 0) for count in KNOTS if count <= most]
    if width * (width + 1) // 2 <= most:
        shapes.append((0, width))
    best: tuple[float, Tensor, int, Tensor] | None = None
    for count, curved in shapes[:1] if linear else shapes:
        knots = torch.quantile(along, torch.linspace(0, 1, count + 2, dtype=torch.float64)[1:-1])
        seen, seen_check = design(features, along, knots, curved), design(check, check_along, knots, curved)
        for weights in ridge(seen, wanted, PENALTIES):
            score = float((seen_check @ weights - check_wanted).square().mean())
            if best is None or score < 0.99 * best[0]:
                best = score, knots, curved, weights
    assert best is not None
    _, knots, curved, chosen = best
    left = wanted - design(features, along, knots, curved) @ chosen
    offset = state_mean.clone()
    if training.hot:
        offset[free] = 0.0
    weights = torch.zeros(len(chosen), training.state.shape[1], dtype=torch.float64)
    weights[:, free] = chosen * units
    return {
        "mean": mean,
        "rotation": rotation,
        "direction": direction,
        "centre": centre,
        "knots": knots,
        "curved": torch.zeros(curved),
        "weights": weights,
        "offset": offset,
        "free": free,
        "scale": _by_quantity(training.parts, left * units, free),
    }


def components(inputs: Tensor, scaled: bool = True) -> tuple[Tensor, Tensor]:
    """Mean [n] and rotation [n, F] to principal components, of unit variance if scaled; negligible ones omitted."""
    mean = inputs.mean(0)
    spread = (inputs - mean).square().mean(0).sqrt()
    vary = (spread > 1e-9 * (1 + inputs.abs().amax(0))).nonzero()[:, 0]
    unit = 1 / spread[vary] if scaled else torch.ones_like(spread[vary])
    centred = (inputs - mean)[:, vary] * unit
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(inputs))
    deviation = values.clamp_min(0).sqrt()
    kept = (deviation > NEGLIGIBLE * deviation.amax(0)).nonzero()[:, 0].flip(0)
    rotation = torch.zeros(len(mean), len(kept), dtype=inputs.dtype)
    rotation[vary] = unit[:, None] * vectors[:, kept]
    return mean, rotation / deviation[kept] if scaled else rotation


def ridge(seen: Tensor, wanted: Tensor, penalties: Sequence[float]) -> list[Tensor]:
    """argmin ‖A w − y‖²/n + κ s ‖w‖² for several κ, with s the largest eigenvalue of AᵀA/n.

    One eigendecomposition serves all penalties.
    """
    n = len(seen)
    values, vectors = torch.linalg.eigh(seen.T @ seen / n)
    right = vectors.T @ (seen.T @ wanted / n)
    size = values[-1].clamp_min(1e-300)
    return [vectors @ (right / (values.clamp_min(0) + penalty * size)[:, None]) for penalty in penalties]


def _by_quantity(parts: Mapping[str, slice], values: Tensor, free: Tensor) -> Tensor:
    """One scale for all outputs of a quantity: their root mean square, [S']."""
    scale = torch.ones(len(free), dtype=torch.float64)
    for part in parts.values():
        members = (free >= part.start) & (free < part.stop)
        if members.any():
            scale[members] = values[:, members].square().mean().sqrt().clamp_min(1e-9)
    return scale

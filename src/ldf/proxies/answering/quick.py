"""A trained network for one demand at a time: the same numbers as `Proxy.predict`, in a fraction of its time.

On one row most of a tensor library's time is call overhead, and most of the base's time goes into hinges that one
lookup replaces: Σ w_k max(0, u − k) over the knots below u is u Σ w_k − Σ k w_k, and both sums are precomputed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..learning.network import Proxy, Rows
from ..problem import Floats
from .points import Nearest


class Quick:
    """Demand [D] in, state [S] out, in NumPy.

    Args:
        proxy: the network.
        memory: with a hot start, the earlier demands and states to start from; the nearest is used.
        single: multiply in single precision, which reads half the memory: enough for a state to start from.
    """

    def __init__(self, proxy: Proxy, memory: Rows | None, single: bool = False) -> None:
        precision = np.float32 if single else np.float64

        def array(tensor: torch.Tensor) -> Any:
            return tensor.detach().numpy()

        self.architecture = proxy.architecture
        if proxy.hot:
            if memory is None or memory.earlier_state is None:
                raise ValueError("this network was trained with a hot start: it needs a memory of states")
            self.demands, self.states = array(memory.demand), array(memory.earlier_state)
        self.nearest = Nearest(self.demands) if proxy.hot else None
        self.rotation = np.ascontiguousarray(array(proxy.rotation).T, precision)
        self.mean = array(proxy.mean)
        self.direction, self.along = array(proxy.direction), float(proxy.centre @ proxy.direction)
        self.knots, self.offset = array(proxy.knots), array(proxy.offset)
        self.free, self.scale = array(proxy.free), array(proxy.scale)
        self.lower, self.upper = array(proxy.lower), array(proxy.upper)
        self.moving = np.zeros_like(self.offset)
        self.moving[self.free] = 1.0
        self.layers = [
            (array(layer.weight), array(layer.bias)) for layer in proxy.network if isinstance(layer, torch.nn.Linear)
        ]
        self.first, self.second = (array(index) for index in torch.triu_indices(*[proxy.sizes["curved"]] * 2))
        features, knots = len(self.rotation), len(self.knots)
        if self.architecture.skip:
            weights = array(proxy.weights)
            self.offset = self.offset + weights[0]
            hinges = weights[1 + features : 1 + features + knots]
            self.linear = np.ascontiguousarray(weights[1 : 1 + features].T, precision)
            self.products = np.ascontiguousarray(weights[1 + features + knots :].T, precision)
            zero = np.zeros((1, len(self.offset)))
            self.slopes = np.concatenate([zero, hinges.cumsum(0)])
            self.starts = np.concatenate([zero, (self.knots[:, None] * hinges).cumsum(0)])

    def __call__(self, demand: Floats) -> Floats:
        """The state [S] for a demand [D]."""
        state: Floats = self.offset.copy()
        inputs = demand
        if self.nearest is not None:
            k = int(self.nearest(demand[None])[0])
            inputs = np.concatenate([demand, self.demands[k], self.states[k]])
            if self.architecture.skip:
                state += self.states[k] * self.moving
        features = self.rotation @ (inputs - self.mean).astype(self.rotation.dtype)
        if self.architecture.skip:
            state += self.linear @ features
            if len(self.knots):
                u = float(demand @ self.direction) - self.along
                below = np.searchsorted(self.knots, u)
                state += u * self.slopes[below] - self.starts[below]
            if len(self.first):
                state += self.products @ (features[self.first] * features[self.second])
        z = features.astype(self.layers[0][0].dtype, copy=False)
        for weight, bias in self.layers[:-1]:
            z = np.maximum(weight @ z + bias, 0)
        weight, bias = self.layers[-1]
        state[self.free] += (weight @ z + bias) * self.scale
        if self.architecture.bounded:
            np.minimum(np.maximum(state, self.lower, out=state), self.upper, out=state)
        return state

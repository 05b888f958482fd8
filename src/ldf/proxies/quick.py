"""A trained network for one demand at a time: the numbers of `Proxy.predict`, in a tenth of its time.

On one row most of a tensor library's time goes into calling it, and most of a bent base's into hinges that one lookup
replaces: Σ w_k max(0, u − k) over the knots below u is u Σ w_k − Σ k w_k, and both sums are known beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .network import Proxy, Rows
from .problem import Floats


class Quick:
    """Demand [D] in, state [S] out, by arrays."""

    def __init__(self, proxy: Proxy) -> None:
        def array(tensor: torch.Tensor) -> Any:
            return tensor.detach().numpy()

        self.hot, self.architecture = proxy.hot, proxy.architecture
        self.mean, self.rotation = array(proxy.mean), np.ascontiguousarray(array(proxy.rotation).T)
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
            self.constant, hinges = weights[0], weights[1 + features : 1 + features + knots]
            self.linear = np.ascontiguousarray(weights[1 : 1 + features].T)
            self.products = np.ascontiguousarray(weights[1 + features + knots :].T)
            zero = np.zeros((1, len(self.offset)))
            self.slopes = np.concatenate([zero, hinges.cumsum(0)])
            self.starts = np.concatenate([zero, (self.knots[:, None] * hinges).cumsum(0)])

    def __call__(self, rows: Rows) -> Floats:
        """The state [S] for a single row."""
        features = self.rotation @ (rows.inputs(self.hot)[0].numpy() - self.mean)
        state: Floats = self.offset.copy()
        if self.architecture.skip:
            state += self.constant + self.linear @ features
            if len(self.knots):
                u = float(rows.demand[0].numpy() @ self.direction) - self.along
                below = np.searchsorted(self.knots, u)
                state += u * self.slopes[below] - self.starts[below]
            if len(self.first):
                state += self.products @ (features[self.first] * features[self.second])
            if self.hot and rows.earlier_state is not None:
                state += rows.earlier_state[0].numpy() * self.moving
        z = features.astype(self.layers[0][0].dtype)
        for weight, bias in self.layers[:-1]:
            z = np.maximum(weight @ z + bias, 0)
        weight, bias = self.layers[-1]
        state[self.free] += (weight @ z + bias) * self.scale
        if self.architecture.bounded:
            np.clip(state, self.lower, self.upper, out=state)
        return state

"""Labels, networks and a kernel shared by the tests of transprecision."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from ldf.transprecision import tuner
from ldf.transprecision.kernels import KERNELS, target
from ldf.transprecision.networks import Profiles
from ldf.transprecision.tables import draw
from ldf.transprecision.training import Sample

OWN = """
import numpy as np
from ldf.transprecision.kernels import kernel

data = np.linspace(0.1, 0.9, 8)[:, None]


@kernel
def dot(x, total):
    '''Σ x·x, summed term by term.'''
    values, result = x(data), total(0.0)
    for value in values:
        result = total(result + value * value)
    return result
"""


@cache
def labels(name: str, rows: int = 300) -> Sample:
    kernel = KERNELS[name]
    drawn = draw(len(kernel.variables), rows, seed=0)
    return Sample(drawn, target(kernel.errors(drawn)))


def first(sample: Sample, rows: int) -> Sample:
    return Sample(sample.configurations[:rows], sample.targets[:rows])


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def profiles(low: tuple[int, ...], high: tuple[int, ...], seed: int = 0) -> Profiles:
    """A network in double precision with random parameters."""
    network = Profiles(torch.tensor(low).double(), torch.tensor(high).double(), 0.5).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        network.log_temperature.sub_(1.0)
    return network


def trained_for(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train = tuner.train
    monkeypatch.setattr(tuner, "train", lambda *given, **options: train(*given, **options | {"epochs": epochs}))
    monkeypatch.setattr(tuner, "TUNED", replace(tuner.TUNED, directed=200))

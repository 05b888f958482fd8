"""A network for one demand at a time: the numbers of the network that answers many."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from labelled import formula, labelled
from torch import Tensor

from ldf.proxies.answering.quick import Quick
from ldf.proxies.data.dataset import Dataset, divide
from ldf.proxies.learning.network import Proxy, Rows, build
from ldf.proxies.learning.training import RECIPES

TUNED = RECIPES["tuned"].architecture


def network(data: Dataset, recipe: str = "tuned") -> Proxy:
    """A network whose layers say something, in double precision, so that both ways to it can be told apart."""
    proxy = build(RECIPES[recipe].architecture, *divide(data, 0), seed=0).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in proxy.network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 8)
        proxy.scale.fill_(0.1)
    return proxy


def memory_of(data: Dataset) -> Rows | None:
    return Rows(data.earlier_demand, data.earlier_demand, data.earlier_state) if data.hot else None


def each(proxy: Proxy, data: Dataset) -> Tensor:
    """States [n, S], one demand at a time."""
    quick = Quick(proxy, memory_of(data))
    return torch.stack([torch.from_numpy(quick(demand)) for demand in data.demand.numpy()])


def compare(proxy: Proxy, data: Dataset) -> None:
    rows = Rows.near(memory_of(data), data.demand, None)
    alone, whole = each(proxy, data), proxy.predict(rows)
    assert alone.dtype == torch.float64
    assert (alone - whole).abs().max() <= 1e-9 * (1 + whole.abs().max())
    assert (whole - proxy.base(rows)).abs().max() > 1e-3, "the layers have their say"


def bent(x: Tensor) -> Tensor:
    return torch.cat([x.abs(), (x - 1).clamp_min(0)], 1)


def curved(x: Tensor) -> Tensor:
    return torch.stack([x[:, 0] * x[:, 1], x[:, 0] ** 2 - x[:, 2]], 1)


def normal(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("recipe", [*RECIPES])
@pytest.mark.parametrize("mode", ["independent", "shared"])
def test_one_row_is_what_it_is_among_many(recipe: str, mode: str, tmp_path: Path) -> None:
    data = labelled(tmp_path, mode)
    proxy = network(data, recipe)
    assert proxy.hot == (mode == "shared")
    compare(proxy, data)


def test_hinges_are_looked_up_rightly_below_between_and_beyond_the_knots() -> None:
    data = formula(normal(400, 1), bent)
    proxy = network(data)
    assert len(proxy.knots) >= 32
    compare(proxy, data)
    beyond = torch.tensor([[-50.0], [50.0]], dtype=torch.float64)
    on_knots = proxy.centre + proxy.knots[:, None] * proxy.direction / proxy.direction.square().sum()
    compare(proxy, formula(torch.cat([beyond, on_knots]), bent))


def test_products_of_a_quadratic_base_are_the_same() -> None:
    data = formula(normal(400, 3), curved)
    proxy = network(data)
    assert proxy.sizes["curved"] == 3
    compare(proxy, data)


def test_answers_are_cut_to_their_bounds_or_not_as_the_network_does(tmp_path: Path) -> None:
    data = labelled(tmp_path, "independent")
    proxy = network(data)
    found = each(proxy, data)
    assert (found == proxy.lower).any()
    assert (found == proxy.upper).any()
    proxy.architecture = replace(TUNED, bounded=False)
    compare(proxy, data)
    assert (each(proxy, data) < proxy.lower).any()


def test_layers_in_single_precision_stay_in_single_precision(tmp_path: Path) -> None:
    data = labelled(tmp_path, "independent")
    proxy = network(data)
    for layer in proxy.network:
        layer.float()
    off = (each(proxy, data) - proxy.predict(Rows.of(data))).abs().max() / proxy.scale.max()
    assert 1e-12 < off <= 1e-5


def test_a_hot_network_without_a_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trained with a hot start: it needs a memory of states"):
        Quick(network(labelled(tmp_path, "shared")), None)

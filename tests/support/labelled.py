"""Small labelled data sets of case14, and of a synthetic problem with answers in closed form."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from ldf.proxies import open_problem
from ldf.proxies.data import dataset
from ldf.proxies.data.dataset import Dataset
from ldf.proxies.data.labelling import label
from ldf.proxies.data.sampling import Sampling

ROWS = 60
SAMPLINGS = {"independent": Sampling("independent"), "shared": Sampling("shared", hot_start=0.01)}


def labelled(folder: Path, mode: str, rows: int = ROWS) -> Dataset:
    """Demands of case14 with their optimal states; mode "shared" adds an earlier state."""
    problem = open_problem("power", "case14_ieee")
    label(problem, rows, SAMPLINGS[mode], folder, workers=1, progress=False)
    return dataset.load(folder)


def formula(demand: Tensor, answer: Callable[[Tensor], Tensor], earlier: Tensor | None = None) -> Dataset:
    """Demands [n, D] with states answer(demand) [n, S], for a problem with one quantity and no bounds."""
    state = answer(demand)
    size = state.shape[1]
    problem = SimpleNamespace(
        quantities={"y": slice(0, size)}, lower=np.full(size, -np.inf), upper=np.full(size, np.inf)
    )
    before = {} if earlier is None else {"earlier_demand": earlier, "earlier_state": answer(earlier)}
    objective = torch.ones(len(demand), dtype=torch.float64)
    return Dataset(problem, Sampling(), 0, len(demand), {}, demand, state, objective, **before)

"""The constraints of a problem in torch, as used in training, to check certificates independently."""

from types import SimpleNamespace

import torch

from ldf.proxies.problem import Floats, Problem


def by_torch(problem: Problem, demands: Floats, states: Floats) -> dict[str, Floats]:
    """The largest ν [B] of every law at states [B, S] for demands [B, D]."""
    batch, rows = SimpleNamespace(demand=torch.from_numpy(demands)), torch.from_numpy(states)
    laws = problem.constraints(lambda y, _: y, torch.float64, labels=False)
    return {law.name: law.violation(law.sigma(rows, batch)).amax(1).numpy() for law in laws}

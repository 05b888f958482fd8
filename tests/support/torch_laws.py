"""The laws of a problem in torch, as a check of certificates by other code: that of training."""

from types import SimpleNamespace

import torch

from ldf.proxies.problem import Floats, Problem


def by_torch(problem: Problem, demands: Floats, states: Floats) -> dict[str, Floats]:
    """The largest ν of every law at states [B, S] for demands [B, D], [B] each."""
    batch, rows = SimpleNamespace(demand=torch.from_numpy(demands)), torch.from_numpy(states)
    laws = problem.constraints(lambda y, _: y, torch.float64, labels=False)
    return {law.name: law.violation(law.sigma(rows, batch)).amax(1).numpy() for law in laws}

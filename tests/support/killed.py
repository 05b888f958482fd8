"""Trains with every kind of constraint and a checkpoint per step; run and killed by training/test_resume.py.

KIND: "one" model, "many" stacked ones, or one "without labels".
"""

import sys
from pathlib import Path

import torch
from helpers import dispatch, dispatch_constraints
from torch import nn

import ldf

ROWS, FREE = 160, 40


def train(folder: Path | None, seconds: float, kind: str) -> list[ldf.Fit]:
    torch.set_num_threads(1)
    inputs, targets = dispatch(ROWS)
    free, _ = dispatch(FREE, seed=9)
    order = torch.cat([inputs, free]).sum(1).argsort()
    pairs = ldf.Pairs(torch.stack([order[:-1], order[1:]], 1))
    group = (torch.arange(ROWS + FREE) % 7 == 0).long()
    constraints = [
        *dispatch_constraints(multiplier="sample"),
        ldf.inequality("bound", lambda y, batch: y - 0.6, multiplier="column", slack=lambda k: 0.1 / (k + 1)),
        ldf.inequality("monotone", lambda y, pair: y[0] - y[1], scope=pairs, multiplier="sample"),
        ldf.equality("parity", lambda y, batch: y[:, :1], scope=ldf.Groups(group), degree="satisfiability"),
    ]
    duals = {
        "capacity": ldf.NuPI(0.1),
        "balance": ldf.Balanced(),
        "bound": ldf.Augmented(),
        "monotone": ldf.Ascent(0.1),
        "parity": ldf.Adam(0.01),
    }

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))

    options = {
        "loss": nn.functional.mse_loss,
        "constraints": constraints,
        "dual": duals,
        "epochs": 8,
        "batch_size": 32,
        "validation": 0.2,
        "unlabelled": free,
        "schedule": "cosine",
        "update_every": 3,
        "checkpoint": folder,
        "checkpoint_seconds": seconds,
        "progress": False,
    }
    if kind == "many":
        return ldf.fit_many(model, (inputs, targets), seeds=range(2), **options)
    torch.manual_seed(0)
    if kind == "without labels":
        options |= {"loss": lambda y, batch: (y - batch.inputs[:, :4]).square().mean(), "unlabelled_batch_size": 7}
        return [ldf.fit(model(), inputs, seed=0, **options)]
    return [ldf.fit(model(), (inputs, targets), seed=0, **options)]


if __name__ == "__main__":
    train(Path(sys.argv[1]), 0.0, sys.argv[2])

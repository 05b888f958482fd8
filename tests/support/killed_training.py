"""Trains with a checkpoint after each step; run and killed by proxies/learning/test_training.py."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ldf import fit
from ldf.proxies.data import dataset
from ldf.proxies.learning import training

EPOCHS = 8


def run(data: Path, folder: Path | None) -> training.Trained:
    torch.set_num_threads(1)
    recipe = replace(training.RECIPES["tuned"], batch_size=8)
    training.fit, before = partial(fit, checkpoint_seconds=0.0), training.fit
    try:
        return training.train(dataset.load(data), "MCD", recipe, seed=2, epochs=EPOCHS, folder=folder, progress=False)
    finally:
        training.fit = before


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))

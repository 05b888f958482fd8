"""Fits a predictor with a checkpoint after each step; run and killed by transprecision/test_training.py."""

import sys
from functools import partial
from pathlib import Path

import torch

from ldf import fit_many
from ldf.transprecision import training
from ldf.transprecision.kernels import KERNELS, target
from ldf.transprecision.predictor import Predictor
from ldf.transprecision.tables import draw

EPOCHS = 12


def run(folder: Path | None) -> Predictor:
    torch.set_num_threads(1)
    drawn = draw(3, 60, seed=1)
    y = target(KERNELS["saxpy"].errors(drawn))
    training.fit_many, before = partial(fit_many, checkpoint_seconds=0.0), training.fit_many
    try:
        return Predictor.fit(drawn, y, seed=2, epochs=EPOCHS, checkpoint=folder)
    finally:
        training.fit_many = before


if __name__ == "__main__":
    run(Path(sys.argv[1]))

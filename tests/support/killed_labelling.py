"""Labels a data set; run and killed by proxies/data/test_labelling.py."""

import sys
from pathlib import Path

from ldf.proxies import open_problem
from ldf.proxies.data.labelling import label
from ldf.proxies.data.sampling import Sampling

ROWS, SEED = 130, 3
SAMPLING = Sampling("independent", 0.8, 1.3)


def run(folder: Path, workers: int) -> dict:
    problem = open_problem("power", "case14_ieee")
    return label(problem, ROWS, SAMPLING, folder, seed=SEED, workers=workers, progress=False)


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))

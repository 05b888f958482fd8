"""A custom kernel in reduced precision: a FIR filter, its errors, a predictor, and the cheapest widths.

A low-pass filter of 24 taps runs over 87 samples. Each of its three variables may have 4 to 52 mantissa bits. The
script runs it at several widths, trains a predictor of the error on 300 random configurations under the constraint that
more bits never increase the error, searches for the fewest bits that keep the error within a bound, and runs them.

    pip install -c constraints.txt ".[transprecision]"
    python examples/precision.py      # half a minute on one core, mostly for the search

The mean error of the predictor should be below 0.02 in y = −log10(error)/30, with no pair of configurations in the
wrong order. The widths found should satisfy the bound with fewer bits than one width for all variables, and with no
more than a greedy search. The greedy search is much faster here, and as good if products and outputs have their own
widths too. With the filter in a separate file, the command is: ldf transprecision tune fir.py --max-error 1e-8
"""

import sys

import numpy as np
import torch

from ldf.io.text import table
from ldf.transprecision import tuner
from ldf.transprecision.kernels import kernel, target
from ldf.transprecision.precision import Floats, Rounding
from ldf.transprecision.predictor import Predictor
from ldf.transprecision.tables import draw

TAPS = np.hanning(26)[1:-1] / np.hanning(26).sum()
SIGNAL = 2 + np.sin(np.arange(87) / 5) + 0.3 * np.random.default_rng(0).standard_normal(87)
BOUND = 1e-8  # on the largest (out − ref)²/ref² over the outputs: four correct digits


@kernel
def fir(sample: Rounding, tap: Rounding, total: Rounding) -> Floats:
    """64 outputs. Calling a variable assigns to it and rounds; configurations are on the last axis."""
    samples, taps = sample(SIGNAL[:, None]), tap(TAPS[:, None])
    sums = total(np.zeros((64, 1)))
    for i in range(24):
        sums = total(sums + taps[i] * samples[i : i + 64])
    return sums


def main() -> None:
    """Run, predict, tune, and check the claims at the top of this file."""
    torch.set_num_threads(1)
    size = len(fir.variables)
    widths = (6, 10, 14, 18, 24, 52)
    errors = fir.errors([[bits] * size for bits in widths]).tolist()
    print(table(["bits of each variable", "error"], list(zip(widths, errors, strict=True))), "\n")

    drawn = draw(size, 1000, seed=0)
    y = target(fir.errors(drawn))  # clip(−log10 error, 0, 30)/30
    predictor = Predictor.fit(drawn[:300], y[:300], variables=fir.variables, epochs=50)
    off = float(np.abs(predictor.predict(drawn[300:]) - y[300:]).mean())
    constant = float(np.abs(np.median(y[:300]) - y[300:]).mean())
    order = predictor.violations(drawn[300:])
    print(table(["700 new configurations", "mean |ŷ − y|"], [["predictor", off], ["median of y", constant]]))
    print(f"ordered pairs of configurations: {order.pairs}; out of order: {order.violated}\n")

    alike = tuner.Runs(fir, BOUND)
    alike.uniform()
    searched = {
        "one width": alike.cheapest(),
        "greedy": tuner.greedy(fir, BOUND),
        "tuned": tuner.tune(fir, BOUND, rounds=1),
    }
    measured = {name: float(fir.errors([found.configuration])[0]) for name, found in searched.items()}
    lines = [[name, *one.configuration, one.bits, measured[name], one.runs] for name, one in searched.items()]
    print(table(["", *fir.variables, "bits", "error", "runs"], lines))
    tuned = searched["tuned"]
    fewer = fir.errors(np.array(tuned.configuration) - np.eye(size, dtype=np.int64))
    print(f"with one bit less in any width of the last row the error is {fewer.min():.3g} or more; bound: {BOUND:g}")

    learned = off < 0.02 and order.violated == 0
    within = all(error <= BOUND for error in measured.values()) and bool((fewer > BOUND).all())
    if not (learned and within and tuned.bits <= searched["greedy"].bits and tuned.bits < searched["one width"].bits):
        sys.exit("claim failed: ŷ within 0.02 and in order; the bound satisfied, with the fewest bits by the tuner")


if __name__ == "__main__":
    main()

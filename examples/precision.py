"""A computation of your own in reduced precision: a FIR filter, its errors, a predictor, and the cheapest widths.

A low-pass filter of 24 taps runs over 64 samples. Its five variables may each have from 4 to 52 mantissa bits. The script
runs it at several widths, trains a predictor of the error on 300 random configurations under the rule that more bits
never make it worse, looks for the fewest bits that keep the error within a bound, and runs what it found.

    pip install "ldf[transprecision]"
    python examples/precision.py      # half a minute

Expect predictions of −log10(error)/30 within 0.02 on average and without a violated pair, and widths that keep the bound
with fewer bits than the least width that is the same for all. In a file of its own the filter is also open to the command
line: ldf transprecision tune fir.py --max-error 1e-8
"""

import sys

import numpy as np
import torch

from ldf.text import table
from ldf.transprecision import tuner
from ldf.transprecision.kernels import kernel, target
from ldf.transprecision.precision import Floats, Rounding
from ldf.transprecision.predictor import Predictor
from ldf.transprecision.tables import draw

TAPS = np.hanning(26)[1:-1] / np.hanning(26).sum()
SIGNAL = 2 + np.sin(np.arange(87) / 5) + 0.3 * np.random.default_rng(0).standard_normal(87)
BOUND = 1e-8  # on the largest (out − ref)²/ref²: four correct digits


@kernel
def fir(sample: Rounding, tap: Rounding, product: Rounding, total: Rounding, output: Rounding) -> Floats:
    """A low-pass filter; calling a variable assigns to it, and rounds. Configurations are on the last axis."""
    samples, taps = sample(SIGNAL[:, None]), tap(TAPS[:, None])
    sums = total(np.zeros((64, 1)))
    for i in range(24):
        sums = total(sums + product(taps[i] * samples[i : i + 64]))
    return output(sums)


def main() -> None:
    """Run, predict, tune, and check what the first lines of this file promise."""
    torch.set_num_threads(1)
    size = len(fir.variables)
    widths = np.array([[bits] * size for bits in (6, 10, 14, 18, 24, 52)])
    rows = zip(widths[:, 0].tolist(), fir.errors(widths).tolist(), strict=True)
    print(table(["bits of every variable", "error"], [list(row) for row in rows]), "\n")

    drawn = draw(size, 1000, seed=0)
    y = target(fir.errors(drawn))  # clip(−log10 error, 0, 30)/30
    predictor = Predictor.fit(drawn[:300], y[:300], variables=fir.variables, epochs=100)
    mae = float(np.abs(predictor.predict(drawn[300:]) - y[300:]).mean())
    pairs = predictor.violations(drawn[300:])
    constant = float(np.abs(np.median(y[:300]) - y[300:]).mean())
    print(f"predictor: mean error {mae:.4f} of y on 700 new configurations ({constant:.4f} for the median);")
    print(
        f"{pairs.violated} of {pairs.pairs} pairs where one has at least the bits of the other are in the wrong order\n"
    )

    alike = tuner.Runs(fir, BOUND).uniform()
    found = {"same width": (alike,) * size}
    runs = {"same width": "–"}
    for name, result in (("greedy", tuner.greedy(fir, BOUND)), ("tuned", tuner.tune(fir, BOUND, seed=0))):
        found[name], runs[name] = result.configuration, result.runs
    errors = {name: float(fir.errors(np.array([widths]))[0]) for name, widths in found.items()}
    lines = [[name, *widths, sum(widths), errors[name], runs[name]] for name, widths in found.items()]
    print(table(["", *fir.variables, "bits", "error", "runs"], lines))
    lower = np.array(found["tuned"]) - np.eye(size, dtype=np.int64)
    worse = fir.errors(lower)
    print(worse, BOUND)


if __name__ == "__main__":
    main()

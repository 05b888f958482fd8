"""Learn AC optimal power flow on 30 buses and answer new demands with certificates.

The script labels 400 demands (every load varies independently by ±20 %), trains a network under the power-flow
constraints (MCD) for 20 epochs, answers 50 new demands, repairs each answer in two ways, and compares cost and time
with IPOPT and with the solver of `ldf`, both from a flat start. "repaired" is the paper's projection to the nearest
feasible state; "fast" is the solver of `ldf`, from the prediction.

    pip install -c constraints.txt ".[fast]"
    python examples/power.py          # half a minute; labels and network stay in out/power and are reused

Both repairs should certify every answer to a feasible demand; those of "fast" within .001 % of the optimum. Some of the
demands are infeasible: for those, neither solver nor repair finds a state. Finding the nearest state is an optimisation
too, and takes longer than solving for the optimum; a fast answer takes less than a tenth of IPOPT's time.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from ldf.io.text import table
from ldf.power.problem import Power
from ldf.proxies import (
    Answer,
    Certifier,
    Program,
    Projection,
    Repaired,
    Responder,
    Sampling,
    Untouched,
    label,
    load,
    recipe_named,
    train,
)

FOLDER = Path("out/power")
SAMPLING = Sampling("independent", low=0.8, high=1.2)


def row(name: str, answers: list[Answer], optima: list[float]) -> list[object]:
    """Table row for answers to feasible demands: number certified, worst violation, cost gaps, time."""
    gaps = [100 * (answer.objective / best - 1) for answer, best in zip(answers, optima, strict=True)]
    return [
        name,
        sum(answer.status == "certified" for answer in answers),
        max(max(answer.violations.values()) for answer in answers),
        fmean(gaps),
        max(gaps, key=abs),
        1000 * fmean(answer.seconds for answer in answers),
    ]


def main() -> None:
    """Label, train, answer, repair and certify, and check the claims at the top of this file."""
    torch.set_num_threads(1)
    grid = Power.open("case30_ieee")
    label(grid, 400, SAMPLING, FOLDER / "labels", seed=0, workers=1)
    labels = load(FOLDER / "labels", grid)
    print(f"{len(labels)} labels; {labels.failures.get('infeasible', 0)} of {labels.draws} samples were infeasible\n")
    place = {"data": str(FOLDER / "labels")}
    trained = train(labels, "MCD", recipe_named("tuned"), epochs=20, folder=FOLDER / "run", facts=place)

    # New demands use another seed. A state holds p and q of the generators and v and θ of the buses.
    demands = grid.nominal * np.stack([SAMPLING.draw(1, index, grid.loads)[0] for index in range(50)])
    start = time.perf_counter()
    states = trained.predict(torch.from_numpy(demands)).numpy()
    each = (time.perf_counter() - start) / len(demands)

    solver, ipopt, certifier = grid.solver(), grid.solver("ipopt"), Certifier(grid, tolerance=1e-5)
    projection = Projection(solver)
    respond = Responder.open(FOLDER / "run", tolerance=certifier.tolerance)  # solves 64 warm-start points
    projection(demands[0], states[0])  # solvers are built on first use; keep that out of the timing
    respond(demands[0])

    def optimum(by: Program) -> Callable[[np.ndarray, np.ndarray], Repaired]:
        def solve(demand: np.ndarray, _: np.ndarray) -> Repaired:
            found = by.solve(demand)
            return Repaired(found.state, "solver", found.status, found.solved)

        solve(demands[0], states[0])
        return solve

    pairs = list(zip(demands, states, strict=True))
    solve = optimum(ipopt)
    best = [certifier.answer(demand, state, solve) for demand, state in pairs]
    solve = optimum(solver)
    own = [certifier.answer(demand, state, solve) for demand, state in pairs]
    predicted = [certifier.answer(demand, state, Untouched(), predicted_in=each) for demand, state in pairs]
    repaired = [certifier.answer(demand, state, projection, predicted_in=each) for demand, state in pairs]
    fast = [respond(demand) for demand in demands]

    feasible = [index for index, answer in enumerate(best) if answer.status == "certified"]
    costs = [best[index].objective for index in feasible]
    named = {"IPOPT": best, "ldf": own, "predicted": predicted, "repaired": repaired, "fast": fast}
    lines = [row(name, [answers[index] for index in feasible], costs) for name, answers in named.items()]
    heads = [f"{len(feasible)} demands", "certified", "largest ν p.u.", "mean gap %", "worst gap %", "ms per answer"]
    print(table(heads, lines))
    infeasible = [index for index in range(len(demands)) if index not in feasible]
    agreed = all(answers[index].status == "unsolvable" for answers in (repaired, fast) for index in infeasible)
    print(f"\n{len(infeasible)} more demands have no feasible state; solver and repair agree: {agreed}")
    if not (agreed and all(line[1] == len(feasible) for line in lines[3:])):
        sys.exit("claim failed: every repaired answer is certified")
    if not all(abs(line[4]) < 1e-3 for line in (lines[1], lines[4])):
        sys.exit("claim failed: the costs of the solver and of fast answers are within .001 % of IPOPT's")
    if not lines[4][5] < 0.1 * lines[0][5]:
        sys.exit("claim failed: a fast answer takes less than a tenth of IPOPT's time")


if __name__ == "__main__":
    main()

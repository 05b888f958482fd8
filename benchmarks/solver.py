"""Speed and agreement of `ldf solve power --solver ldf` and `--solver ipopt`, both from a cold start.

    python benchmarks/solver.py [--json] [--quick] [--case CASE]

Draws demands as `ldf label` does, shared and independent, in the order of their numbers, none left out. Both solvers
solve each block of 20 demands, one after the other. By case, over both samplings:

    draws        number of demands
    ratio        CPU time of IPOPT over that of ldf, one demand per call, on demands that both solve
    lanes_ratio  the same with four demands side by side on one core
    all_ratio    the same as ratio on all demands, infeasible ones too
    agree        fraction of demands on which both end with the same status: optimal, or not
    gap          largest cost above IPOPT's optimum, %; below: largest cost below it, where ldf finds a cheaper one
    nu           largest violation of any constraint by ldf's optima, by the constraints in torch
    fallback     fraction of demands that ldf left to IPOPT
    solvable     fraction of demands that IPOPT solves
    ms, lanes_ms, ipopt_ms   CPU time per solved demand
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ldf
from ldf.power.problem import Power
from ldf.proxies.data.sampling import Sampling

DRAWS = {"case30_ieee": 1000, "case118_ieee": 1000, "case300_ieee": 400, "case1354_pegase": 20}
"""Demands by case, for each of the two samplings."""
BLOCK = 20
SEED = 2
"""Not the seeds on which settings were chosen."""


def clocked(solve: Callable[[], Any]) -> tuple[Any, float]:
    """A result and its CPU seconds."""
    begun = time.process_time()
    return solve(), time.process_time() - begun


def measure(name: str, draws: int) -> dict[str, float]:
    """All results of one case."""
    problem = Power.open(name)
    ours, theirs = problem.solver("ldf"), problem.solver("ipopt")
    ours.many(np.tile(problem.nominal, (8, 1)))  # compile, or load what was compiled
    ours.solve(problem.nominal)
    theirs.solve(problem.nominal)
    found, seconds, drawn = [], [], []
    for mode in ("shared", "independent"):
        sampling = Sampling(mode)
        factors = [sampling.draw(SEED, index, problem.loads)[0] for index in range(draws)]
        demands = problem.nominal * np.array(factors)
        drawn.append(demands)
        for first in range(0, draws, BLOCK):
            part = demands[first : first + BLOCK]
            for demand in part:
                slow, ipopt = clocked(lambda demand=demand: theirs.solve(demand))
                fast, single = clocked(lambda demand=demand: ours.solve(demand))
                found.append((slow, fast))
                seconds.append((ipopt, single))
            feasible = part[[slow.solved for slow, _ in found[-len(part) :]]]
            if len(feasible):
                _, together = clocked(lambda rows=feasible: ours.many(rows))
                lanes = together / len(feasible)
                seconds[-len(part) :] = [(*pair, lanes) for pair in seconds[-len(part) :]]
            else:
                seconds[-len(part) :] = [(*pair, np.nan) for pair in seconds[-len(part) :]]
    times = np.array(seconds)
    both = np.array([slow.solved and fast.solved for slow, fast in found])
    gaps = [100 * (fast.objective / slow.objective - 1) for slow, fast in found if slow.solved and fast.solved]
    given, states = np.concatenate(drawn)[both], np.array([fast.state for _, fast in found])[both]
    laws = problem.constraints(lambda states, batch: states, torch.float64, labels=False)
    batch = ldf.Batch(inputs=torch.from_numpy(given), demand=torch.from_numpy(given))
    checked = ldf.certify(laws, torch.from_numpy(states), batch, tolerance=1e-6)
    ipopt, single, together = times[both].sum(0)
    return {
        "draws": float(len(found)),
        "ratio": ipopt / single,
        "lanes_ratio": ipopt / together,
        "all_ratio": times[:, 0].sum() / times[:, 1].sum(),
        "agree": float(np.mean([slow.solved == fast.solved for slow, fast in found])),
        "gap": max(0.0, *gaps),
        "below": -min(0.0, *gaps),
        "nu": max(finding.max for finding in checked.findings),
        "fallback": float(np.mean([fast.solver == "ipopt" for _, fast in found])),
        "solvable": float(np.mean([slow.solved for slow, _ in found])),
        "ms": 1e3 * single / both.sum(),
        "lanes_ms": 1e3 * together / both.sum(),
        "ipopt_ms": 1e3 * ipopt / both.sum(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one flat JSON object")
    parser.add_argument("--quick", action="store_true", help="20 demands of each sampling: only a test run")
    parser.add_argument("--case", action="append", help="PGLib name; repeat for several")
    arguments = parser.parse_args()
    found: dict[str, float] = {}
    for name in arguments.case or DRAWS:
        draws = 20 if arguments.quick else DRAWS.get(name, 100)
        found |= {f"{name}_{key}": value for key, value in measure(name, draws).items()}
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        for key, value in found.items():
            print(f"{key:32} {value:.4g}")


if __name__ == "__main__":
    main()

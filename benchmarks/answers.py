"""Speed of certified answers: `ldf predict --repair fast` compared with a solve of each demand from a flat start.

    python benchmarks/answers.py [--json] [--quick] [--work DIR] [--case CASE]

Labels 4000 demands of each case with shared and with independent sampling (power, independent: 16,000), trains one MCD
network with the tuned recipe, and answers test demands one at a time: 20 with IPOPT, the same 20 with ldf's own
solver from its flat start, then with the network, and so on. CPU time, but for batches. DIR may be the folder of
`ldf reproduce`; its labels and networks are then reused. By case and sampling:

    ratio       mean time of a cold IPOPT solve over mean time of an answer, including network, check and certificate;
                ratio_alternating: a solve before every answer, so that ldf's data are evicted from the caches
    own_ratio   the same relative to ldf's own solver from a flat start: what the network adds
    certified   fraction of answers certified at the default tolerance without IPOPT
    fallback    fraction of answers that needed IPOPT
    warm        fraction of answers that were found from the prediction
    gap         mean of 100·(cost − optimum)/optimum over the answers without IPOPT; gap_worst: the largest
    optimal     ratio for `--repair optimal`
    batch       answers per second, 200 demands at once, on all cores; batch_ratio: relative to cold IPOPT solves
    recheck     largest ν of a certified answer by the torch constraints, which are a separate code path
    solver      largest ν of IPOPT's optima, by the same certificate
    pypower     largest voltage difference, per unit, from PYPOWER's power flow of the answered dispatch
    prices      error of the predicted prices, %; prices_linear, prices_mean, prices_previous: errors of baselines
    ms, cold_ms, own_ms   time of an answer, of a cold IPOPT solve, and of a cold solve by ldf's own solver

`--case 24-pipe` and similar names measure gas networks.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ldf
from ldf.core.certificate import TOLERANCE
from ldf.power.case import Case, tables
from ldf.proxies.answering.answers import Responder
from ldf.proxies.answering.certifier import Answer
from ldf.proxies.data.dataset import Dataset, load
from ldf.proxies.learning.evaluation import price_errors
from ldf.proxies.learning.network import Rows
from ldf.proxies.learning.training import baselines
from ldf.reproduce import jobs
from ldf.reproduce.networks import Study, Training, studies_of
from ldf.reproduce.options import Options

CASES = ("case30_ieee", "case118_ieee", "case300_ieee")
BATCH = 200
BLOCK = 20


def timed(respond: Responder, demands: np.ndarray, block: int) -> tuple[list[Answer], float, float, float]:
    """Answers one at a time, and mean CPU seconds of a cold IPOPT solve, of our own cold solve, and of an answer.

    They alternate by blocks of demands.
    """
    problem, answers = respond.problem, []
    solvers = [problem.solver(name) for name in ("ipopt", problem.solvers[0])]
    for solver in solvers:
        solver.prepare("cold")
    spent = np.zeros(3)
    for first in range(0, len(demands), block):
        part = demands[first : first + block]
        clock = [time.process_time()]
        for solver in solvers:
            for demand in part:
                solver.solve(demand)
            clock.append(time.process_time())
        answers += [respond(demand) for demand in part]
        spent += np.diff([*clock, time.process_time()])
    return answers, *(spent / len(demands)).tolist()


def batched(respond: Responder, demands: np.ndarray) -> float:
    """Answers per second for a batch of demands."""
    respond.many(demands)
    begun = time.perf_counter()
    respond.many(demands)
    return len(demands) / (time.perf_counter() - begun)


def pypower(case: Case, demand: np.ndarray, state: np.ndarray) -> float:
    """Largest difference of a complex voltage from PYPOWER's power flow of a dispatch."""
    from pypower.api import ppoption, runpf

    n, g = case.buses, case.generators
    p, _, v, theta = np.split(state, [g, 2 * g, 2 * g + n])
    network: dict[str, Any] = {
        "version": "2",
        "baseMVA": case.base,
        **{k: t.copy() for k, t in tables(case.text).items()},
    }
    bus, gen = network["bus"], network["gen"]
    here = np.isin(bus[:, 0], case.bus)
    bus[here, 2], bus[here, 3] = demand[:n] * case.base, demand[n:] * case.base
    gen[case.generator - 1, 1], gen[case.generator - 1, 5] = p * case.base, v[case.at]
    found, solved = runpf(network, ppoption(VERBOSE=0, OUT_ALL=0, PF_TOL=1e-10))
    if not solved:
        return float("inf")
    theirs = found["bus"][here, 7] * np.exp(1j * np.radians(found["bus"][here, 8]))
    return float(np.abs(theirs - v * np.exp(1j * theta)).max())


def price_results(labels: Dataset, respond: Responder) -> dict[str, float]:
    """Errors of predicted prices and of the baselines on the test rows, %."""
    priced, network = labels.priced(), respond.trained.prices
    if priced is None or network is None:
        return {}
    _, rows = priced.split()
    part = next(iter(respond.problem.priced))
    predicted = {f"prices_{name}": predict(rows) for name, predict in baselines(priced).items()}
    predicted["prices"] = network.predict(Rows.of(rows))
    return {name: price_errors(labels.problem, found, rows.state)[part] for name, found in predicted.items()}


def measure(study: Study, options: Options, rows: int, epochs: int) -> dict[str, float]:
    """All results of one case and sampling."""
    study.label(options)
    labels = load(study.labels.folder(options.work), study.problem)
    run = Training(study.labels, "tuned", "MCD", 0, epochs)
    jobs.run([run], options.work, progress=options.progress)
    folder = run.folder(options.work)
    respond = Responder.open(folder, progress=options.progress)
    _, test = labels.split()
    demands = test.demand.numpy()
    answers, cold, own, ours = timed(respond, demands[:rows], BLOCK)
    _, alternating, _, each = timed(respond, demands[: rows // 2], 1)
    _, slow, _, warm = timed(Responder.open(folder, "optimal"), demands[: rows // 4], BLOCK)
    alone = [answer.repair != "solver" for answer in answers]
    gaps = [
        answer.beside(best).gap or 0.0
        for answer, best, fast in zip(answers, test.objective.tolist(), alone, strict=False)
        if fast and answer.status == "certified"
    ]
    kept = [(d, answer.state) for d, answer in zip(demands, answers, strict=False) if answer.status == "certified"]
    given, states = (torch.from_numpy(np.array(rows)) for rows in zip(*kept, strict=True))
    laws = study.problem.constraints(lambda states, batch: states, torch.float64, labels=False)
    again = ldf.certify(laws, states, ldf.Batch(inputs=given, demand=given), tolerance=TOLERANCE)
    best = [solution.state for solution in study.problem.solver("ipopt").many(demands[:BLOCK])]
    optima = study.problem.model.violations(demands[:BLOCK], np.array(best))
    rate = batched(respond, demands[:BATCH])
    found = {
        "ratio": cold / ours,
        "ratio_alternating": alternating / each,
        "certified": float(np.mean([a.status == "certified" and fast for a, fast in zip(answers, alone, strict=True)])),
        "fallback": 1 - float(np.mean(alone)),
        "warm": float(np.mean([answer.repair == "interior" for answer in answers])),
        "own_ratio": own / ours,
        "own_ms": 1e3 * own,
        "optimal": slow / warm,
        "batch": rate,
        "batch_ratio": rate * cold,
        "recheck": max(finding.max for finding in again.findings),
        "solver": max(nu.max() for nu in optima.values()),
        "ms": 1e3 * ours,
        "cold_ms": 1e3 * cold,
        **price_results(labels, respond),
    }
    if gaps:
        found |= {"gap": float(np.mean(gaps)), "gap_worst": float(np.max(gaps))}
    if study.problem.kind == "power":
        found["pypower"] = max(pypower(study.problem.case, d, state) for d, state in kept[:10])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one flat JSON object")
    parser.add_argument("--quick", action="store_true", help="200 labels, 10 epochs, 20 demands: only a test run")
    parser.add_argument("--work", type=Path, default=Path("out/answers"), help="folder for labels and networks")
    parser.add_argument("--case", action="append", help="network name; repeat for several")
    parser.add_argument("--sampling", action="append", choices=["shared", "independent"], help="both by default")
    parser.add_argument("--rows", type=int, default=200, help="number of test demands to answer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    epochs, rows = (10, 20) if arguments.quick else (80, arguments.rows)
    found: dict[str, float] = {}
    for case in arguments.case or CASES:
        for mode in arguments.sampling or ("shared", "independent"):
            many = case.startswith("case") and mode == "independent"
            samples = 200 if arguments.quick else 16_000 if many else 4000
            options = Options(
                "violations", arguments.work, arguments.work, [case], samplings=[mode], samples=samples, progress=True
            )
            for study in studies_of(options)[0]:
                results = measure(study, options, rows, epochs)
                found |= {f"{study.problem.name}_{mode}_{name}": value for name, value in results.items()}
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        for key, value in found.items():
            print(f"{key:44} {value:.4g}")


if __name__ == "__main__":
    main()

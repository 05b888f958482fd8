"""What an operator sees of one demand: the network map, the dispatch, and the certificate."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import torch

from ..core.batch import Batch
from ..core.certificate import violations
from ..io.text import number
from ..proxies.answering.answers import Responder
from ..proxies.answering.certifier import Answer
from ..proxies.answering.repair import SOLVED, Untouched
from ..proxies.data.dataset import Dataset
from ..proxies.learning.network import Rows
from ..proxies.problem import Floats, Problem
from .tables import Figure, Shown

THINGS = {"pg": "generator", "R": "compressor"}
"""What the entries of a control belong to."""
REPEATS = 5
"""Number of answers and solves whose median time is shown."""
FIRST = 50
"""Number of test rows among which the hardest one is sought."""


def hardest(test: Dataset, predicted: torch.Tensor) -> int:
    """The test row whose prediction [B, S] violates the constraints most: the largest sum over laws of max ν."""
    batch = Batch(inputs=test.demand, demand=test.demand)
    laws = test.problem.constraints(lambda states, _: states, torch.float64, labels=False)
    return int(torch.stack([violations(law, predicted, batch).amax(1) for law in laws]).sum(0).argmax())


def answered(run: Path, data: Dataset, path: Path) -> Shown:
    """Answer the hardest of the first test demands with a trained network, and draw the network map to `path`.

    Args:
        run: folder of the trained network.
    """
    respond = Responder.open(run, progress=False)
    problem = respond.problem
    solvers = [problem.solver(name) for name in dict.fromkeys((problem.solvers[0], "ipopt"))]
    _, test = data.split()
    test = test.take(torch.arange(min(FIRST, len(test))))
    predicted = respond.trained.proxy.predict(Rows.of(test))
    row = hardest(test, predicted)
    demand: Floats = test.demand[row].numpy()
    prediction: Floats = predicted[row].numpy()
    for solver in solvers:  # the first solve and the first answer build what later ones reuse
        solver.solve(demand)
    respond(demand)
    *solves, answers = zip(
        *((*(solver.solve(demand) for solver in solvers), respond(demand)) for _ in range(REPEATS)), strict=True
    )
    best, answer = solves[0][0], answers[0].beside(float(test.objective[row]))
    before = respond.certifier.answer(demand, prediction, Untouched())
    problem.draw(prediction, answer.state, demand, path, problem.name)

    units, control = problem.units, next(iter(problem.controls.values()))
    states = {
        "min": problem.lower, "predicted": prediction, "answer": answer.state, "optimum": best.state,
        "max": problem.upper,
    }  # fmt: skip
    shown = {name: problem.present(state)[control] for name, state in states.items()}
    unit, cost = units.get(control, ""), units.get("objective", "")
    dispatch = [[THINGS.get(control, control), *(f"{name} {unit}".rstrip() for name in shown)]]
    dispatch += [[key, *(f"{values[key]:.1f}" for values in shown.values())] for key in shown["answer"]]
    certificate = [["constraint", "unit", "predicted, max ν", "answer, max ν", "tolerance", "satisfied"]]
    for law, value in answer.violations.items():
        held = "✓" if value <= answer.tolerance else "✗"
        limits = [number(before.violations[law]), number(value), number(answer.tolerance), held]
        certificate.append([f"{law} ν{problem.laws[law]}", units.get(law, ""), *limits])
    gap = "" if answer.gap is None else f", {abs(answer.gap):.3g} % {'above' if answer.gap >= 0 else 'below'} optimum"
    price = f"{answer.objective:.2f} {cost}"
    took, *times = (1e3 * median(one.seconds for one in found) for found in (answers, *solves))
    names = ["IPOPT" if found[0].solver == "ipopt" else "the solver" for found in solves]
    flat = " and ".join(f"{name} {time:.2g} ms" for name, time in zip(names, times, strict=True))
    return Shown(
        title=f"One demand on {problem.name}, answered",
        verdict=f"{answer.status.capitalize()} in {took:.2g} ms, {price}{gap}. From a flat start {flat}.",
        certified=answer.status == "certified",
        map=Figure(path.name, f"{problem.name}: the prediction (left) and the answer after repair (right)."),
        facts={
            "demand": f"{_total(problem, demand)}; the largest violations among the first {len(test)} test rows",
            "route": f"{answer.repair} ({answer.reason or 'every constraint satisfied'})",
            "cost": f"{price}; the optimum costs {best.objective:.2f} {cost}",
            **_prices(respond, answer),
        },
        tables={"Dispatch": dispatch, "Certificate": certificate},
    )


def _total(problem: Problem, demand: Floats) -> str:
    """The total demand [D] by unit, and the number of loads."""
    totals: dict[str, float] = {}
    for index in np.flatnonzero(problem.loads >= 0):
        _, unit, factor = problem.entry(int(index))
        totals[unit] = totals.get(unit, 0.0) + factor * float(demand[index])
    return f"{' and '.join(f'{total:.1f} {unit}' for unit, total in totals.items())} in {problem.loads.max() + 1} loads"


def _prices(respond: Responder, answer: Answer) -> dict[str, str]:
    """The range of each kind of nodal price."""
    if answer.prices is None:
        return {}
    found = "" if answer.repair in SOLVED else "predicted "
    named = {name: list(values.values()) for name, values in respond.problem.name_prices(answer.prices).items()}
    units = respond.problem.units
    return {
        f"{found}{name.replace('_', ' ')}": f"{min(values):.2f} to {max(values):.2f} {units.get(name, '')}".rstrip()
        for name, values in named.items()
        if values
    }

"""Answer demands with a trained network: predict, repair and certify in one call, `Responder.open(folder)(demand)`."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ...core.certificate import TOLERANCE
from ..data.dataset import load as load_labels
from ..data.labelling import DatasetError
from ..learning.evaluation import outside
from ..learning.training import Trained
from ..problem import Floats
from . import points as warm
from .certifier import Answer, Certifier
from .points import Points
from .quick import Quick
from .repair import Optimal, Projection, Repair, Repaired, Untouched, fastest

How = Literal["fast", "projection", "optimal", "none"]
HOWS: tuple[How, ...] = ("fast", "projection", "optimal", "none")


class Responder:
    """Answers demands, one at a time or in batches; everything it needs is built in advance.

    Args:
        trained: the network.
        points: warm-start points; needed by "fast" and "optimal".
        how: "fast": the fastest repair available; "projection": the nearest feasible state; "optimal": the optimum, by
            the solver from the prediction; "none": the prediction unchanged.
        tolerance: tolerance of the certificate.
        gap: also solve every certified demand, after it is answered, to report how far its cost is from the optimum.
        budget: seconds that a repair may take; a demand that takes longer is unsolvable, by "time".
    """

    def __init__(
        self,
        trained: Trained,
        points: Points | None = None,
        how: How = "fast",
        tolerance: float = TOLERANCE,
        gap: bool = False,
        budget: float | None = None,
    ) -> None:
        if budget is not None and not 0 < budget < math.inf:
            raise ValueError(f"the time budget must be above 0 seconds, got {budget}")
        if how not in HOWS:
            raise ValueError(f"repair must be one of {', '.join(HOWS)}, got {how!r}")
        if how in ("fast", "optimal") and points is None:
            raise ValueError(f"repair {how!r} needs warm-start points: `Responder.open` loads or computes them")
        problem = trained.problem
        self.trained, self.problem = trained, problem
        self.solver, self.certifier = problem.solver(), Certifier(problem, tolerance)
        self.repair: Repair
        if how == "none":
            self.repair = Untouched()
        elif how == "projection" or points is None:
            self.repair = Projection(self.solver)
        else:
            self.repair = fastest(problem, points, tolerance) if how == "fast" else Optimal(self.solver, points)
        self.repair.limit(budget)
        self.repair.prepare()
        self.repair.rehearse(lambda demands: trained.predict(torch.from_numpy(demands)).numpy())
        self.gap = gap
        self.known = {name: value.numpy() for name, value in trained.range.items()}
        self.known["span"] = self.known["span"].astype(np.float32)  # on large networks most of what a check reads
        self.state = Quick(trained.proxy, trained.memory, single=isinstance(self.repair, Optimal))
        self.price = None if trained.prices is None else Quick(trained.prices, trained.price_memory)

    @classmethod
    def open(
        cls,
        folder: Path,
        how: How = "fast",
        tolerance: float = TOLERANCE,
        gap: bool = False,
        progress: bool | None = None,
        budget: float | None = None,
    ) -> Responder:
        """Open the folder of a run; warm-start points that a repair needs are computed and saved there if missing."""
        trained, points = Trained.load(folder), None
        if how in ("fast", "optimal"):
            if not (folder / warm.FILE).exists():
                message = f"{folder} has no warm-start points, which make repairs fast: solving {warm.COUNT}"
                print(message, file=sys.stderr)
            points = points_of(trained, folder, progress)
        return cls(trained, points, how, tolerance, gap, budget)

    def __call__(self, demand: Floats) -> Answer:
        """The answer to a demand [D], in the problem's own units."""
        demands = self._checked(demand[None])
        begun = time.perf_counter()
        refused = self._refused(demands[0])
        if refused is not None:
            return refused
        prediction = self.state(demands[0])
        found = self.repair(demands[0], prediction)
        prices = None if self.price is None or found.optimal else self.price(demands[0])
        answer = self.certifier.certify(demands[0], prediction, found)
        warning = outside(self.problem, self.known, demands)[0]
        return self._complete(demands[0], answer, found, prices, warning, time.perf_counter() - begun)

    def many(self, demands: Floats) -> list[Answer]:
        """The answers to demands [B, D]; each reports an equal share of the time."""
        demands = self._checked(demands)
        begun = time.perf_counter()
        refused = [self._refused(demand) for demand in demands]
        asked = demands[[answer is None for answer in refused]]
        rows = torch.from_numpy(asked)
        predictions = self.trained.predict(rows).numpy()
        found = self.repair.many(asked, predictions) if len(asked) else []
        prices: list[Any] = [None] * len(asked)
        needed = [row for row, each in enumerate(found) if self.price is not None and not each.optimal]
        if needed:
            for row, predicted in zip(needed, self.trained.predict_prices(rows[needed]).numpy(), strict=True):
                prices[row] = predicted
        answers = self.certifier.many(asked, predictions, found)
        warnings = outside(self.problem, self.known, asked)
        each = (time.perf_counter() - begun) / max(1, len(demands))
        complete = map(self._complete, asked, answers, found, prices, warnings, [each] * len(asked))
        return [next(complete) if answer is None else answer for answer in refused]

    def _checked(self, demands: Floats) -> Floats:
        width = len(self.problem.nominal)
        if demands.ndim != 2 or demands.shape[1] != width:
            raise ValueError(f"a demand of {self.problem.name} has {width} numbers, got an array {demands.shape[1:]}")
        return np.ascontiguousarray(demands, np.float64)

    def _refused(self, demand: Floats) -> Answer | None:
        """The answer to a demand that is not finite; None if it is finite."""
        finite = np.isfinite(demand)
        if finite.all():
            return None
        bad = np.flatnonzero(~finite)
        name, _, _ = self.problem.entry(int(bad[0]))
        nothing = np.full(len(self.problem.lower), np.nan)
        found = self.certifier.certify(demand, nothing, Repaired(nothing, "none", "refused", solved=False))
        return replace(found, reason=f"{name} is {demand[bad[0]]}, not a number")

    def _complete(
        self, demand: Floats, answer: Answer, found: Repaired, prices: Any, warning: str | None, seconds: float
    ) -> Answer:
        """Add prices and, if the optimum is known or requested, the gap to it."""
        best = found.solution
        if found.optimal and best is not None:
            prices = self.problem.prices(best)
        elif answer.status == "unsolvable":
            prices = None
        answer = replace(answer, prices=prices, warning=warning, seconds=seconds)
        if best is not None and best.solver != "ipopt":  # it may have ended before its last digit
            best = None
        if best is None and self.gap and answer.status == "certified":
            best = self.solver.solve(demand)
        return answer if best is None or not best.solved else answer.beside(best.objective)


def points_of(trained: Trained, folder: Path, progress: bool | None = None) -> Points:
    """The warm-start points of a run, computed from its labels or else from its range of demands if it has none."""
    problem = trained.problem
    if (folder / warm.FILE).exists():
        return Points.load(folder, problem)
    try:
        labels = load_labels(Path(trained.facts.get("data", "")), problem)
        demands = warm.spread(labels.split()[0].demand.numpy())
    except DatasetError:
        demands = warm.drawn(**{name: value.numpy() for name, value in trained.range.items()})
    points = warm.build(problem, demands, progress)
    points.save(folder, problem)
    return points

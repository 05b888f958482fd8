"""Dual rules on thirteen problems of different nature: does the default need tuning?

    python benchmarks/problems.py [--json] [--problem NAME] [--seeds N] [--jobs N] [--work DIR] [--figure FILE]

Every method trains the same network on the same rows, with Adam and a cosine schedule; only the treatment of the
constraints differs. `ascent` and the two peers get their best of three steps, chosen by score on validation rows; the
default (`dual="auto"`) gets no argument but the constraints. All results are for fresh rows.

The score is the objective plus a price for violations. With labels, both are distances in the units of the targets, or
rates, and the price is 1. Without labels it is the exact penalty: the mean of Σ_c Λ ν_c above the optimum, with Λ the
largest multiplier of the constraint at the solver's optima, so that no infeasible answer beats the optimum.

Results of finished runs are kept in the work folder, and an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: CPU times are those of one thread

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

import ldf
from ldf import examples
from ldf.core.certificate import violations
from ldf.io.text import Progress, table, write_whole

STEPS = (0.01, 0.1, 1.0)
METHODS = ("M", "MC", "default", "balanced", "ascent", "augmented", "cooper", "humancompatible")
TITLES = {
    "M": "M (no constraints)", "MC": "Fixed(1)", "default": "default", "balanced": "Balanced()",
    "ascent": "Ascent, best of 3 steps", "augmented": "Augmented()", "cooper": "Cooper, best of 3 steps",
    "humancompatible": "humancompatible, best of 3 steps",
}  # fmt: skip

Rows = dict[str, Tensor]


@dataclass(frozen=True)
class Problem:
    """Rows, a network, a loss and constraints."""

    train: Rows
    valid: Rows
    test: Rows
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, ldf.Batch], Tensor]
    objective: Callable[[Tensor, ldf.Batch], Tensor]
    """Lower is better."""
    constraints: Callable[[Rows], list[ldf.Constraint]]
    """The constraints on these rows."""
    unlabelled: Tensor | None = None
    epochs: int = 100
    batch: int = 64
    lr: float = 3e-3
    solved: Callable[[], Solved] | None = None
    """The solver's optima of the test rows, for problems without labels."""


@dataclass(frozen=True)
class Solved:
    """Mean objective of the optima, the largest multiplier of each constraint, milliseconds per row of each solver."""

    objective: float
    multipliers: dict[str, float] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)


# -------------------------------------------------------------------- the problems


def perceptron(
    inputs: int, outputs: int, width: int, layers: int = 2, activation: type[nn.Module] = nn.ReLU
) -> nn.Module:
    sizes = [inputs, *[width] * layers]
    hidden = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), activation())]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def split(rows: Rows, *sizes: int) -> list[Rows]:
    return [
        {name: column[end - size : end] for name, column in rows.items()}
        for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)
    ]


def squares(y: Tensor, batch: ldf.Batch) -> Tensor:
    return mse_loss(y, batch.targets)


def distance(y: Tensor, batch: ldf.Batch) -> Tensor:
    """Root mean square error against the noiseless targets."""
    return (y - batch.truth).square().mean().sqrt()


def optima(y: Any, demand: Any, cost: Any, functions: Mapping[str, Any], demands: Any, starts: Any) -> Solved:
    """The optima of a problem stated in CasADi for all demands, by IPOPT; "equalities" are = 0, other functions ≤ 0."""
    import casadi

    problem = {"x": y, "p": demand, "f": cost, "g": casadi.vertcat(*functions.values())}
    quiet = {"print_time": False, "ipopt.print_level": 0, "ipopt.sb": "yes"}
    solver = casadi.nlpsol("solver", "ipopt", problem, quiet)
    widths = [function.shape[0] for function in functions.values()]
    low = np.repeat([0.0 if name == "equalities" else -np.inf for name in functions], widths)
    begun = time.process_time()
    found = [solver(x0=start, p=row, lbg=low, ubg=0) for start, row in zip(starts, demands, strict=True)]
    spent = 1e3 * (time.process_time() - begun) / len(found)
    prices = np.abs([np.asarray(one["lam_g"])[:, 0] for one in found])  # [rows, functions]
    parts = np.split(prices, np.cumsum(widths)[:-1], axis=1)
    largest = {name: float(part.max()) for name, part in zip(functions, parts, strict=True)}
    return Solved(statistics.mean(float(one["f"]) for one in found), largest, {"ipopt": spent})


def quadratic(variables: int, equalities: int, inequalities: int, rows: int, convex: bool, **options: Any) -> Problem:
    """No labels: min ½ yᵀQy + pᵀy (or pᵀ sin y) s.t. Ay = x, Gy ≤ h; with 100, 50 and 50 the problem of DC3.

    Donti, Rolnick, Kolter, "DC3: a learning method for optimization with hard constraints" (2021), with its own seed.
    """
    random = np.random.RandomState(17)
    q, p = random.random_sample(variables), random.random_sample(variables)
    a = random.normal(size=(equalities, variables))
    x = random.uniform(-1, 1, size=(rows + 1666, equalities))
    g = random.normal(size=(inequalities, variables))
    h = np.abs(g @ np.linalg.pinv(a)).sum(1)
    train, valid, test = split({"inputs": torch.tensor(x).float()}, rows, 833, 833)
    Q, P, A, G, H = (torch.tensor(value) for value in (q, p, a, g, h))

    def cost(y: Tensor, batch: ldf.Batch) -> Tensor:
        bent = y if convex else y.sin()
        return (0.5 * (Q.to(y) * y.square()).sum(1) + (P.to(y) * bent).sum(1)).mean()

    def constraints(rows: Rows) -> list[ldf.Constraint]:
        return [
            ldf.equality("equalities", lambda y, batch: y @ A.to(y).T - batch.inputs),
            ldf.inequality("inequalities", lambda y, batch: y @ G.to(y).T - H.to(y)),
        ]

    @functools.cache
    def solved() -> Solved:
        import casadi

        y, demand = casadi.SX.sym("y", variables), casadi.SX.sym("x", equalities)
        cost = casadi.dot(q, y**2) / 2 + casadi.dot(p, y if convex else casadi.sin(y))
        demands = test["inputs"].double().numpy()
        functions = {"equalities": a @ y - demand, "inequalities": g @ y - h}
        found = optima(y, demand, cost, functions, demands, demands @ np.linalg.pinv(a).T)
        if convex:  # a solver of quadratic programs is far faster
            import daqp

            hessian, matrix = np.diag(q), np.r_[a, g]
            upper = np.c_[demands, np.tile(h, (len(demands), 1))]
            lower = np.c_[demands, np.full((len(demands), inequalities), -1e30)]
            kinds = np.r_[np.full(equalities, 5), np.zeros(inequalities)].astype(np.int32)  # 5: an equality
            begun = time.process_time()
            again = [daqp.solve(hessian, p, matrix, *row, kinds) for row in zip(upper, lower, strict=True)]
            found.milliseconds["daqp"] = 1e3 * (time.process_time() - begun) / len(again)
            np.testing.assert_allclose(statistics.mean(one[1] for one in again), found.objective, atol=1e-5)
        return found

    return Problem(
        train, valid, test, lambda: perceptron(equalities, variables, 200), cost, cost, constraints, solved=solved,
        lr=1e-3, **options
    )  # fmt: skip


def knapsack() -> Problem:
    """No labels: shares in [0, 1] of twenty items, with diminishing profits, within the capacity of the row."""
    random = torch.Generator().manual_seed(17)
    weights = torch.rand(20, generator=random) + 0.5
    rows = {"inputs": torch.rand(4000, 21, generator=random)}  # profits of the items, and the capacity
    train, valid, test = split(rows, 2000, 1000, 1000)

    def cost(y: Tensor, batch: ldf.Batch) -> Tensor:
        return -(batch.inputs[:, :20] * (y - 0.3 * y.square())).sum(1).mean()

    def constraints(rows: Rows) -> list[ldf.Constraint]:
        return [
            ldf.inequality("least", lambda y, batch: -y),
            ldf.inequality("most", lambda y, batch: y - 1),
            ldf.inequality("capacity", lambda y, batch: (y @ weights.to(y) - 2 - 4 * batch.inputs[:, 20])[:, None]),
        ]

    @functools.cache
    def solved() -> Solved:
        import casadi

        y, row = casadi.SX.sym("y", 20), casadi.SX.sym("row", 21)
        profit = casadi.dot(row[:20], y - 0.3 * y**2)
        capacity = casadi.dot(weights.double().numpy(), y) - 2 - 4 * row[20]
        demands = test["inputs"].double().numpy()
        functions = {"least": -y, "most": y - 1, "capacity": capacity}
        return optima(y, row, -profit, functions, demands, np.full((len(demands), 20), 0.3))

    return Problem(
        train, valid, test, lambda: perceptron(21, 20, 64), cost, cost, constraints, solved=solved, epochs=60
    )


def capped(seed: int) -> Problem:
    """Labels that break an easy rule, y ≤ cap(x); the truth obeys it."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(3400, 3, generator=random) * 2 - 1
    free = torch.stack([torch.sin(2 * x[:, 0]) + x[:, 1], torch.cos(2 * x[:, 1]) * x[:, 2] + 0.5], 1)
    cap = torch.stack([0.3 + 0.3 * x[:, 2], 0.2 + 0.2 * x[:, 0]], 1)
    noisy = free + 0.1 * torch.randn(free.shape, generator=random)
    rows = {"inputs": x, "targets": noisy, "truth": torch.minimum(free, cap), "cap": cap}
    return Problem(
        *split(rows, 1400, 1000, 1000), lambda: perceptron(3, 2, 64), squares, distance,
        lambda rows: [ldf.inequality("cap", lambda y, batch: y - batch.cap)],
    )  # fmt: skip


def biased(seed: int) -> Problem:
    """Labels whose sum is a tenth too large, with noise; the sum of the truth is known."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(3500, 6, generator=random) + 0.2
    truth = x * x.sum(1, keepdim=True) / x.square().sum(1, keepdim=True)
    noisy = 1.1 * truth + 0.05 * torch.randn(truth.shape, generator=random)
    rows = {"inputs": x, "targets": noisy, "truth": truth, "total": truth.sum(1, keepdim=True)}
    return Problem(
        *split(rows, 1500, 1000, 1000), lambda: perceptron(6, 6, 64), squares, distance,
        lambda rows: [ldf.equality("sum", lambda y, batch: y.sum(1, keepdim=True) - batch.total)],
    )  # fmt: skip


def energy(state: Tensor) -> Tensor:
    return state[:, 1:2] ** 2 / 2 - state[:, :1].cos()


def pendulum(labels: int, seed: int) -> Problem:
    """The state of a pendulum after t seconds, from few labels and 500 unlabelled rows; energy is conserved."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(labels + 2500, 3, generator=random) * torch.tensor([4.0, 2, 2]) - torch.tensor([2.0, 1, 0])
    state, step = x[:, :2].double(), x[:, 2:].double() / 200

    def rate(state: Tensor) -> Tensor:
        return torch.stack([state[:, 1], -state[:, 0].sin()], 1)

    for _ in range(200):  # Runge and Kutta's fourth order
        a = rate(state)
        b = rate(state + step / 2 * a)
        c = rate(state + step / 2 * b)
        state = state + step / 6 * (a + 2 * b + 2 * c + rate(state + step * c))
    rows = {"inputs": x, "targets": state.float(), "truth": state.float()}
    train, free, valid, test = split(rows, labels, 500, 1000, 1000)
    del train["truth"]  # unlabelled rows have every column but the targets
    return Problem(
        train, valid, test, lambda: perceptron(3, 2, 64, activation=nn.Tanh), squares, distance,
        lambda rows: [ldf.equality("energy", lambda y, batch: energy(y) - energy(batch.inputs))],
        unlabelled=free["inputs"], epochs=400,
    )  # fmt: skip


def hierarchy(seed: int) -> Problem:
    """Forecasts of twelve series, four regions and their total, which must add up."""
    random = torch.Generator().manual_seed(seed)
    hours = torch.arange(2600.0)[:, None]
    phase = torch.rand(12, generator=random) * 2 * math.pi
    series = 1 + torch.rand(12, generator=random) + 0.5 * torch.sin(2 * math.pi * hours / 24 + phase)
    series += 0.3 * torch.sin(2 * math.pi * hours / 168 + 2 * phase)
    drift = torch.zeros(12)
    for hour, noise in enumerate(torch.randn(2600, 12, generator=random)):
        drift = 0.8 * drift + 0.15 * noise
        series[hour] += drift
    sums = torch.cat([torch.block_diag(*[torch.ones(1, 3)] * 4), torch.ones(1, 12)])  # [5, 12]
    x = torch.cat([series[24 - lag : 2600 - lag] for lag in (1, 2, 3, 24)], 1)
    y = torch.cat([series[24:], series[24:] @ sums.T], 1)
    return Problem(
        *split({"inputs": x, "targets": y, "truth": y}, 500, 1000, 1000), lambda: perceptron(48, 17, 64), squares,
        distance, lambda rows: [ldf.equality("sums", lambda y, batch: y[:, 12:] - y[:, :12] @ sums.to(y).T)],
    )  # fmt: skip


def recall(seed: int) -> Problem:
    """A classifier that finds nine of ten positives, one row in eight, with as few errors as possible."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(12_000, 6, generator=random)
    logit = -2.5 + 1.5 * x[:, 0] + x[:, 1] * x[:, 2] + torch.sin(2 * x[:, 3])
    rows = {"inputs": x, "targets": (torch.rand(len(x), generator=random) < logit.sigmoid()).long()}
    positives = ldf.Groups("targets", 2, compare=lambda means: 0.9 - means[1])
    found = ldf.inequality(
        "recall", lambda y, batch: y.sigmoid(), scope=positives, exact=lambda y, batch: (y > 0).to(y.dtype)
    )
    return Problem(
        *split(rows, 8000, 2000, 2000), lambda: perceptron(6, 1, 16),
        lambda y, batch: binary_cross_entropy_with_logits(y[:, 0], batch.targets.to(y.dtype)),
        lambda y, batch: ((y[:, 0] > 0) != (batch.targets > 0)).double().mean(), lambda rows: [found], batch=128,
    )  # fmt: skip


def monotone(seed: int) -> Problem:
    """Regression on noisy labels, monotone in all four inputs."""
    random = torch.Generator().manual_seed(seed)
    x = torch.rand(1000, 4, generator=random)
    y = torch.tanh(3 * (x[:, 0] - 0.5)) + x[:, 1] ** 2 + 0.5 * x[:, 2].sqrt() + 0.2 * x[:, 0] * x[:, 3]
    truth = y[:, None]
    rows = {"inputs": x, "targets": truth + 0.5 * torch.randn(truth.shape, generator=random), "truth": truth}

    def constraints(rows: Rows) -> list[ldf.Constraint]:
        below = (rows["inputs"][:, None] <= rows["inputs"]).all(2).fill_diagonal_(False)
        return [ldf.inequality("order", lambda y, batch: y[0] - y[1], scope=ldf.Pairs(below.nonzero()))]

    return Problem(
        *split(rows, 100, 400, 400), lambda: perceptron(4, 1, 128), squares, distance, constraints, epochs=300, lr=1e-2
    )


def simplex(seed: int) -> Problem:
    """The projection of a vector onto the simplex, from exact labels."""
    x = torch.randn(3500, 10, generator=torch.Generator().manual_seed(seed))
    largest = x.sort(1, descending=True).values
    thresholds = (largest.cumsum(1) - 1) / torch.arange(1, 11)
    count = (largest > thresholds).sum(1, keepdim=True)
    y = (x - thresholds.gather(1, count - 1)).clamp(min=0)

    def constraints(rows: Rows) -> list[ldf.Constraint]:
        return [
            ldf.equality("sum", lambda y, batch: y.sum(1, keepdim=True) - 1),
            ldf.inequality("positive", lambda y, batch: -y),
        ]

    return Problem(
        *split({"inputs": x, "targets": y, "truth": y}, 1500, 1000, 1000), lambda: perceptron(10, 10, 64), squares,
        distance, constraints,
    )  # fmt: skip


def dispatch(seed: int) -> Problem:
    """The README's example: shares of a load, from noisy labels."""
    inputs, targets = examples.dispatch(8000, seed=seed)

    def constraints(rows: Rows) -> list[ldf.Constraint]:
        return [
            ldf.inequality("capacity", lambda y, batch: y - batch.inputs[:, :4]),
            ldf.equality("balance", lambda y, batch: (y.sum(1) - batch.inputs.sum(1))[:, None]),
        ]

    return Problem(
        *split({"inputs": inputs, "targets": targets, "truth": targets}, 4000, 2000, 2000),
        lambda: perceptron(5, 4, 128, layers=1), squares, distance, constraints, epochs=80, lr=1e-2,
    )  # fmt: skip


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "dc3_qp": lambda seed: quadratic(100, 50, 50, 8334, convex=True, epochs=60, batch=200),
    "dc3_nonconvex": lambda seed: quadratic(100, 50, 50, 8334, convex=False, epochs=60, batch=200),
    "small_qp": lambda seed: quadratic(10, 4, 6, 2000, convex=True),
    "knapsack": lambda seed: knapsack(),
    "capped": capped,
    "biased": biased,
    "pendulum_20": lambda seed: pendulum(20, seed),
    "pendulum_80": lambda seed: pendulum(80, seed),
    "hierarchy": hierarchy,
    "recall": recall,
    "monotone": monotone,
    "simplex": simplex,
    "dispatch": dispatch,
}


# -------------------------------------------------------------------- the methods


def trained(problem: Problem, method: str, step: float | None, seed: int) -> nn.Module:
    """The network after training by a method, with the dual step if it has one."""
    torch.manual_seed(seed)
    model = problem.model()
    if method in PEERS:
        assert step is not None
        return PEERS[method](problem, model, step, seed)
    duals = {"M": None, "MC": ldf.Fixed(1.0), "default": "auto", "balanced": ldf.Balanced()}
    duals |= {"augmented": ldf.Augmented(), "ascent": ldf.Ascent(step or 1.0)}
    options: dict[str, Any] = {}
    constraints = problem.constraints(problem.train)
    if method in ("ascent", "augmented"):
        constraints = [replace(constraint, multiplier="column") for constraint in constraints]
        options["update_every"] = 5
    return ldf.fit(
        model, problem.train, loss=lambda y, batch: problem.loss(y, batch), constraints=constraints,
        dual=duals[method], epochs=problem.epochs, batch_size=problem.batch, lr=problem.lr, schedule="cosine",
        unlabelled=problem.unlabelled, seed=seed, compile=False, progress=False, **options,
    ).model  # fmt: skip


def steps(problem: Problem, model: nn.Module, seed: int) -> Iterator[Callable[[], tuple[Tensor, Tensor]]]:
    """For the peers: for every step a function that returns the loss and the mean ν of every column, [K]."""
    random = torch.Generator().manual_seed(seed)
    rows, free = len(problem.train["inputs"]), problem.unlabelled
    constraints = problem.constraints(problem.train)
    for _ in range(problem.epochs):
        for ids in torch.randperm(rows, generator=random).split(problem.batch):
            batch = ldf.Batch(**{name: column[ids] for name, column in problem.train.items()}, ids=ids)
            seen = batch
            if free is not None:
                extra = torch.randint(len(free), (problem.batch,), generator=random)
                seen = ldf.Batch(inputs=torch.cat([batch.inputs, free[extra]]))

            def parts(batch: ldf.Batch = batch, seen: ldf.Batch = seen) -> tuple[Tensor, Tensor]:
                y = model(seen.inputs)
                loss = problem.loss(y[: len(batch.inputs)], batch)
                means = []
                for constraint in constraints:
                    nu = violations(constraint, y, seen, exact=False)  # [rows, k], for groups [comparisons, 1]
                    if not nu.numel():  # a small batch without pairs
                        nu = y.new_zeros(1, 1)
                    means.append(nu.mean(0) if constraint.scope.rowwise else nu[:, 0])
                return loss, torch.cat(means)

            yield parts


def optimizers(problem: Problem, model: nn.Module) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.LRScheduler]:
    adam = torch.optim.Adam(model.parameters(), lr=problem.lr)
    total = problem.epochs * math.ceil(len(problem.train["inputs"]) / problem.batch)
    return adam, torch.optim.lr_scheduler.CosineAnnealingLR(adam, total)


def by_cooper(problem: Problem, model: nn.Module, step: float, seed: int) -> nn.Module:
    """Cooper's simultaneous optimiser, with one multiplier per column, updated in every step."""
    import cooper as library

    class Minimisation(library.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
        def __init__(self, columns: int) -> None:
            super().__init__()
            self.all = library.Constraint(
                constraint_type=library.ConstraintType.INEQUALITY,
                formulation_type=library.formulations.Lagrangian,
                multiplier=library.multipliers.DenseMultiplier(num_constraints=columns),
            )

        def compute_cmp_state(self, parts: Callable[[], tuple[Tensor, Tensor]]) -> library.CMPState:
            loss, nu = parts()
            return library.CMPState(loss=loss, observed_constraints={self.all: library.ConstraintState(violation=nu)})

    columns = len(next(steps(problem, model, seed))()[1])
    task = Minimisation(columns)
    adam, schedule = optimizers(problem, model)
    dual = torch.optim.SGD(task.dual_parameters(), lr=step, maximize=True)
    both = library.optim.SimultaneousOptimizer(cmp=task, primal_optimizers=adam, dual_optimizers=dual)
    for parts in steps(problem, model, seed):
        both.roll(compute_cmp_state_kwargs={"parts": parts})
        schedule.step()
    return model


def by_humancompatible(problem: Problem, model: nn.Module, step: float, seed: int) -> nn.Module:
    """The augmented Lagrangian of humancompatible-train, with one multiplier per column, updated in every step."""
    from humancompatible.train.dual_optim import ALM

    dual = ALM(m=len(next(steps(problem, model, seed))()[1]), lr=step, is_ineq=True)
    adam, schedule = optimizers(problem, model)
    for parts in steps(problem, model, seed):
        loss = dual.forward_update(*parts())
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
    return model


PEERS = {"cooper": by_cooper, "humancompatible": by_humancompatible}


# -------------------------------------------------------------------- results


def judged(problem: Problem, y: Tensor, rows: Rows, solved: Solved | None) -> dict[str, float]:
    """Objective, violations and score of predictions: means over rows of the mean and of the largest ν of a row."""
    batch = ldf.Batch(**rows, ids=torch.arange(len(y)))
    found = {"objective": float(problem.objective(y, batch))}
    score = found["objective"] - (solved.objective if solved else 0.0)
    means, largest = [], []
    for constraint in problem.constraints(rows):
        nu = violations(constraint, y, batch)
        means.append(float(nu.mean()))
        largest.append(float(nu.amax(1).mean()))
        found |= {f"{constraint.name}_mean": means[-1], f"{constraint.name}_max": largest[-1]}
        price = solved.multipliers[constraint.name] * nu.shape[1] if solved else 1.0
        score += price * means[-1]
    return found | {"mean": max(means), "max": max(largest), "score": score}


def run(name: str, method: str, step: float | None, seed: int, folder: Path) -> dict[str, float]:
    """One training, its results on validation and test rows, and on repaired test rows; kept in the folder."""
    file = folder / f"{name}-{method}-{step}-{seed}.json"
    if file.exists():
        return json.loads(file.read_text())
    torch.set_num_threads(1)
    problem = PROBLEMS[name](seed)
    solved = reference(name, folder) if problem.solved else None
    begun = time.process_time()
    model = trained(problem, method, step, seed).eval()
    found = {"seconds": time.process_time() - begun}
    with torch.no_grad():
        y, valid = model(problem.test["inputs"]), model(problem.valid["inputs"])
        found |= judged(problem, y, problem.test, solved)
        found["valid"] = judged(problem, valid, problem.valid, solved)["score"]
        begun = time.process_time()
        rows = {key: column.double() if column.is_floating_point() else column for key, column in problem.test.items()}
        batch = ldf.Batch(**rows, ids=torch.arange(len(y)))
        repaired = ldf.repair(y, batch, problem.constraints(problem.test))
        found["repair_ms"] = 1e3 * (time.process_time() - begun) / len(y)
        found["repaired_worst"] = max(finding.max for finding in repaired.certificate.findings)  # of any row
        judgement = judged(problem, repaired.predictions, rows, solved)
        found |= {f"repaired_{key}": value for key, value in judgement.items()}
    write_whole(file, json.dumps(found))
    return found


def reference(name: str, folder: Path) -> Solved:
    """The solver's optima of a problem without labels; kept in the folder."""
    file = folder / f"{name}-solver.json"
    if not file.exists():
        solve = PROBLEMS[name](0).solved
        assert solve is not None
        found = solve()
        write_whole(file, json.dumps(asdict(found)))
    return Solved(**json.loads(file.read_text()))


def summary(names: list[str], seeds: int, results: Mapping[tuple[Any, ...], dict[str, float]]) -> dict[str, float]:
    """The flat object of results: means over seeds, and the standard deviation of the score."""
    flat: dict[str, float] = {}
    for name, method in itertools.product(names, METHODS):
        best = []
        for seed in range(seeds):
            own = [found for (n, m, _, s), found in results.items() if (n, m, s) == (name, method, seed)]
            if own:
                best.append(min(own, key=lambda found: found["valid"] if math.isfinite(found["valid"]) else math.inf))
        if not best:
            continue
        for key in best[0]:
            combine = max if key == "repaired_worst" else statistics.mean
            flat[f"{name}_{method}_{key}"] = combine([found[key] for found in best])
        flat[f"{name}_{method}_score_std"] = statistics.pstdev([found["score"] for found in best])
    for name in names:
        scores = {m: flat[f"{name}_{m}_score"] for m in METHODS if f"{name}_{m}_score" in flat}
        flat[f"{name}_default_ratio"] = scores["default"] / min(scores.values())
    flat["within_a_tenth"] = sum(flat[f"{name}_default_ratio"] <= 1.1 for name in names)
    flat["problems"] = len(names)
    return flat


def show(flat: Mapping[str, float], names: list[str]) -> str:
    lines = []
    for name in names:
        best = min(flat[f"{name}_{m}_score"] for m in METHODS if f"{name}_{m}_score" in flat)
        for method in METHODS:
            if f"{name}_{method}_score" not in flat:
                continue
            keys = ("objective", "mean", "max", "score", "repaired_objective", "repaired_max", "seconds")
            values = [flat[f"{name}_{method}_{key}"] for key in keys]
            lines.append([name, TITLES[method], *values[:4], values[3] / best, *values[4:]])
    headers = ["problem", "method", "objective", "mean ν", "max ν", "score", "÷ best", "repaired", "max ν", "CPU s"]
    return table(headers, lines)


def draw(flat: Mapping[str, float], names: list[str], path: Path, text: Mapping[str, str] | None = None) -> None:
    """The score of every method as a multiple of the best, for every problem; `text` is stored in the file."""
    from matplotlib import pyplot

    from ldf.viewing.figures import save

    marks = dict(zip(METHODS, "x+oPs^vd", strict=True))
    figure, axes = pyplot.subplots(figsize=(9, 0.5 * len(names) + 1.6), layout="constrained")
    axes.axvspan(0.9, 1.1, color="0.9", zorder=0)
    for method in METHODS:
        ratios = []
        for name in names:
            best = min(flat[f"{name}_{m}_score"] for m in METHODS if f"{name}_{m}_score" in flat)
            score = flat.get(f"{name}_{method}_score", math.nan)
            ratios.append(min(score / best, 30.0) if math.isfinite(score) else math.nan)
        emphasis = {"color": "crimson", "s": 90, "zorder": 3} if method == "default" else {"s": 45, "alpha": 0.8}
        axes.scatter(ratios, range(len(names)), marker=marks[method], label=TITLES[method], **emphasis)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 30], ["1", "2", "5", "10", "≥ 30"])
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.set_xlabel("score on fresh rows (objective + price of violations) as a multiple of the best method's")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, fontsize=8, frameon=False)
    save(figure, path, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print all results as one flat JSON object")
    parser.add_argument("--problem", action="append", choices=PROBLEMS, help="only this problem; may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (2)")
    parser.add_argument("--work", type=Path, help="folder for results of single runs, to resume from")
    parser.add_argument("--figure", type=Path, help="write a picture of the scores to this file")
    parser.add_argument("--quick", action="store_true", help="one seed of the small problems, to check that all runs")
    options = parser.parse_args()
    from joblib import Parallel, delayed

    names = options.problem or [name for name in PROBLEMS if not (options.quick and name.startswith("dc3"))]
    seeds = 1 if options.quick else options.seeds
    folder = options.work or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    stepped = ("ascent", *PEERS)
    jobs = [
        (name, method, step, seed)
        for name in names
        for seed in range(seeds)
        for method in METHODS
        for step in (STEPS if method in stepped else [None])
    ]
    unlabelled = [name for name in names if PROBLEMS[name](0).solved is not None]
    for name in unlabelled:
        reference(name, folder)
    line = Progress(len(jobs), "run")
    results = {}
    work = Parallel(n_jobs=options.jobs, return_as="generator")(delayed(attempt)(*job, folder) for job in jobs)
    for number, (job, found) in enumerate(zip(jobs, work, strict=True)):
        if isinstance(found, str):
            print(f"{'-'.join(map(str, job))}: {found}", file=sys.stderr)
        else:
            results[job] = found
        line.update(number + 1, lambda job=job: " ".join(map(str, job)))
    flat = summary(names, seeds, results)
    for name in unlabelled:
        solved = reference(name, folder)
        flat[f"{name}_solver_objective"] = solved.objective
        flat |= {f"{name}_{solver}_ms": spent for solver, spent in solved.milliseconds.items()}
    if options.figure:
        draw(flat, names, options.figure)
    if options.json:
        print(json.dumps({key: float(f"{value:.6g}") for key, value in flat.items()}))
        return
    print(show(flat, names))
    print(f"the default is best, or within a tenth of the best, in {flat['within_a_tenth']} of {len(names)} problems")


def attempt(name: str, method: str, step: float | None, seed: int, folder: Path) -> dict[str, float] | str:
    """A run, or why it failed: a step may be too large for a peer, or the peer not installed."""
    try:
        return run(name, method, step, seed, folder)
    except Exception as error:
        if method not in PEERS and not isinstance(error, ldf.ConstraintError | ValueError):
            raise
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


if __name__ == "__main__":
    main()

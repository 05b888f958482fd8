"""Evidence on feasibility: whether predictions exist that satisfy all constraints, found out by repairing some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, as_batch, leaves, pick, rows_of
from .certificate import Tolerance, certify, limits
from .constraint import Constraint
from .projection import Jacobian
from .repair import Apart, Joint, flat, holding, like, repair

SUBSTANTIAL = 0.1
"""A constraint counts as infeasible if no prediction satisfies it in this share of the rows."""
BALANCED = 0.05
"""Forces cancel each other if their sum is below this multiple of their size."""
ROWS, ITERATIONS = 64, 20
"""Rows repaired and linearisations, at most."""
ENTRIES, FEWEST = 2**21, 4
"""Entries of the Jacobians of all rows, at most: a few seconds; no row is repaired if that allows fewer than four."""


@dataclass(frozen=True)
class Evidence:
    """What was found out about one constraint, by trying to satisfy all constraints together."""

    rows: int
    """Number of rows tried."""
    solved: float = 1.0
    """Share of these for which a prediction was found that satisfies all constraints."""
    failed: float = 0.0
    """Share of these in which this constraint stays violated where no small move lowers the violations any more."""
    left: float = 0.0
    """Mean ν of the predictions with the least violations that were found, in σ's units."""
    against: tuple[str, ...] = ()
    """The constraints that oppose it there, the strongest first; none if its own columns oppose each other."""
    targets: float | None = None
    """Share of rows whose targets violate it; None if there are no targets in the form of predictions."""

    @property
    def infeasible(self) -> bool:
        """Whether no prediction satisfies it in a substantial share of the rows."""
        return self.failed >= SUBSTANTIAL


def evidence(
    constraints: Sequence[Constraint], predictions: Any, batch: Any, tolerance: Tolerance, k: int = 0
) -> dict[str, Evidence]:
    """Try to satisfy all constraints together: at the targets, and by repairing predictions of up to 64 rows.

    One point that satisfies them proves that a row is feasible. Where a repair fails, steps along the sum of
    ν∇σ/‖∇σ‖², the moves that would satisfy the single functions, lead to the least Σ (ν/‖∇σ‖)². If these moves cancel
    each other there, the row is infeasible: a proof for convex constraints, an indication for others. Anything else
    proves nothing.

    Args:
        constraints: the constraints.
        predictions: predictions for all rows of the batch.
        batch: the rows; its targets are tried too if they have the form of predictions.
        tolerance: a ν up to this is not a violation, in σ's units: one number, or a mapping by name.
        k: number of dual updates so far, for a slack schedule.

    Returns:
        The evidence by constraint name; empty if the constraints cannot be repaired.

    >>> from .constraint import inequality
    >>> low, high = inequality("low", lambda y, batch: 2 - y), inequality("high", lambda y, batch: y - 1)
    >>> found = evidence([low, high], torch.zeros(8, 1), Batch(), 1e-3)["low"]
    >>> found.failed, found.against, round(found.left, 3)
    (1.0, ('high',), 0.5)
    """
    try:
        return _evidence(constraints, predictions, as_batch(batch), tolerance, k)
    except (TypeError, ValueError, RuntimeError):  # no floating predictions, decisions that cannot be repaired, …
        return {}


@torch.no_grad()
def _evidence(
    constraints: Sequence[Constraint], y: Any, batch: Batch, tolerance: Tolerance, k: int
) -> dict[str, Evidence]:
    bounds = {name: float(torch.as_tensor(bound).min()) for name, bound in limits(tolerance, constraints).items()}
    apart = all(constraint.scope.apart for constraint in constraints)
    most = _affordable(constraints, y, batch)
    device = leaves(y)[0].device
    chosen = torch.arange(0, rows_of(y), math.ceil(rows_of(y) / (most or ROWS)), device=device)
    targets = _like(getattr(batch, "targets", None), y)
    y, batch = pick(y, chosen), Batch(**pick(batch.columns(), chosen))
    solved, shares = torch.zeros(len(chosen), dtype=torch.bool, device=device), {}
    if targets is not None:
        targets = pick(targets, chosen)
        checked = certify(constraints, targets, batch, tolerance=tolerance, k=k).findings
        shares = {finding.constraint: finding.violated for finding in checked}
        solved = holding(constraints, targets, batch, bounds, k)
    stuck, forces = torch.zeros_like(solved), {}
    if most and not bool(solved.all()):
        done = repair(y, batch, constraints, tolerance=bounds, iterations=ITERATIONS, k=k)
        # A row may start from its own point; rows that are coupled are satisfied together, or not.
        y, solved = done.predictions, solved | done.holds if apart else done.holds
        smooth = [constraint for constraint in constraints if constraint.exact is None]
        if smooth and not bool(solved.all()):
            forces = _forces(smooth, y, batch, apart, k)
            for _ in range(ITERATIONS):
                if bool((solved | _cancel(forces.values())).all()):
                    break
                moves = _sum(force.moves for force in forces.values())
                bent = _sum(force.change(moves) for force in forces.values())
                step = moves.square().sum(1, keepdim=True) / bent.clamp_min(1e-300)[:, None]  # the best for linear h
                moves = (step.clamp(max=1.0) * moves).view(len(solved), -1)
                y = like(flat(y) - torch.where(solved[:, None], 0.0, moves), y)
                forces = _forces(smooth, y, batch, apart, k)
            holds = holding(constraints, y, batch, bounds, k)
            solved = solved | holds if apart else holds
            stuck = ~solved & _cancel(forces.values())
    ended = certify(constraints, y, batch, tolerance=tolerance, k=k)
    found = {}
    for constraint in constraints:
        rows = stuck & ~holding([constraint], y, batch, bounds, k)
        failed = float(rows.double().mean())
        found[constraint.name] = Evidence(
            rows=len(chosen),
            solved=float(solved.double().mean()),
            failed=failed,
            left=ended[constraint.name].mean,
            against=_against(constraint.name, forces, rows) if failed > 0 else (),
            targets=shares.get(constraint.name),
        )
    return found


def _affordable(constraints: Sequence[Constraint], predictions: Any, batch: Batch) -> int:
    """Number of rows to repair: fewer if their Jacobians are large, 0 if they are too large."""
    n = flat(pick(predictions, slice(1))).shape[1]
    m = sum(c.evaluate(*c.scope.gather(predictions, batch)).shape[1] for c in constraints)
    most = min(ROWS, ENTRIES // max(1, m * (m + n)))
    return most if most >= FEWEST else 0


def _like(targets: Any, predictions: Any) -> Any:
    """The targets if they have the form of the predictions, else None."""
    if type(targets) is not type(predictions) or rows_of(predictions) == 0:
        return None
    forms = [[(leaf.shape, leaf.is_floating_point()) for leaf in leaves(tree)] for tree in (targets, predictions)]
    return targets if forms[0] == forms[1] else None


@dataclass(frozen=True)
class Force:
    """What would satisfy each function of a constraint. Q problems of N variables: the rows, or one if coupled."""

    jacobian: Jacobian
    distance: Tensor
    """[Q or rows, m] ν/‖∇σ‖ of every function, with the sign of σ"""
    moves: Tensor
    """[Q, N] Σ ν∇σ/‖∇σ‖²: the sum of the projections on the single functions, linearised"""
    size: Tensor
    """[Q] Σ (ν/‖∇σ‖)²: the sum of their squared lengths; NaN if a violated function has no gradient"""

    def change(self, moves: Tensor) -> Tensor:
        """[Q] Σ of the squared change of these distances along some moves [Q, N]."""
        along = self.jacobian.times(moves.view(len(self.distance), -1))
        return torch.where(self.distance == 0, 0.0, along).square().view(len(moves), -1).sum(1)


def _forces(constraints: Sequence[Constraint], predictions: Any, batch: Batch, apart: bool, k: int) -> dict[str, Force]:
    """The force of every constraint, by name."""
    values, found = flat(predictions), {}
    probe = torch.rand(values.shape, generator=torch.Generator().manual_seed(0), dtype=values.dtype).to(values.device)
    for constraint in constraints:
        kind, rows = (Apart, len(values)) if constraint.scope.apart else (Joint, 1)
        functions = kind([constraint], predictions, batch, [0.0], k)
        h, jacobian = functions.linear(values.view(rows, -1), torch.arange(rows, device=values.device))
        distance = torch.where(functions.equal, h, h.clamp_min(0)) / jacobian.norm
        flatness = (distance != 0) & (jacobian.times(probe.view(rows, -1)) == 0)
        size = torch.where(flatness, torch.nan, distance.square())
        problems = len(values) if apart else 1
        moves = jacobian.transposed(distance).view(problems, -1)
        found[constraint.name] = Force(jacobian, distance, moves, size.view(problems, -1).sum(1))
    return found


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).sum(0)


def _cancel(forces: Iterable[Force]) -> Tensor:
    """[Q] whether these forces add up to nothing."""
    forces = list(forces)
    moves, size = _sum(force.moves for force in forces), _sum(force.size for force in forces)
    return (moves.square().sum(1) <= BALANCED**2 * size) & (size > 0)


def _against(name: str, forces: Mapping[str, Force], rows: Tensor) -> tuple[str, ...]:
    """The constraints whose force opposes that of this one in these rows, the strongest first."""
    if name not in forces:
        return ()
    own = forces[name].moves
    where = rows if len(own) == len(rows) else slice(None)
    if 2 * int(_cancel([forces[name]])[where].sum()) > len(own[where]):
        return ()
    along = {other: float((own * force.moves)[where].sum()) for other, force in forces.items()}
    found = sorted((value / along[name], other) for other, value in along.items() if value < -BALANCED * along[name])
    # One that balances it alone is enough.
    return (found[0][1],) if found and found[0][0] < -0.9 else tuple(other for _, other in found)

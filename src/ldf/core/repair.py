"""Repair: move predictions the least distance onto their constraints, and certify the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, Widened, as_batch, check_count, free, leaves, pick, rows_of, tree_map
from .certificate import Certificate, Tolerance, certify, limits, violations
from .constraint import Constraint, check_names
from .projection import Dense, Functions, Jacobian, Nearest, Sparse, nearest
from .samples import SAMPLES

TOLERANCE = 1e-6
"""Default tolerance of a repair, in σ's units."""
ENTRIES = 2**24
"""Entries of the Jacobians of one block of rows, at most: 128 MB."""


@dataclass(frozen=True)
class Repaired:
    """Repaired predictions with their certificate, and how far each row moved."""

    predictions: Any
    """As given, floating tensors in the dtype asked for; differentiable with respect to the given predictions."""
    certificate: Certificate
    """Violations of the repaired predictions."""
    distance: Tensor
    """[rows] ‖ŷ − repaired ŷ‖₂ of each row; exactly 0 for a row that did not move."""
    holds: Tensor
    """[rows] bool: whether every constraint that involves the row is satisfied."""
    iterations: int
    """The largest number of linearisations of a row; 1 if the constraints are linear, 0 if nothing had to move."""

    @property
    def failed(self) -> list[int]:
        """The rows that violate a constraint beyond its tolerance: usually no prediction satisfies all of theirs."""
        return [int(row) for row in (~self.holds).nonzero()[:, 0]]

    def __str__(self) -> str:
        moved = int((self.distance > 0).sum())
        lines = [
            str(self.certificate),
            f"{moved} of {len(self.distance)} rows moved; distance: mean {float(self.distance.mean()):.3g}, "
            f"largest {float(self.distance.max()):.3g}",
        ]
        if self.failed:
            first = ", ".join(map(str, self.failed[:5])) + (", …" if self.failed[5:] else "")
            lines.append(f"{len(self.failed)} of {len(self.holds)} rows violate a constraint: {first}")
        return "\n".join(lines)


def repair(
    predictions: Any,
    batch: Any,
    constraints: Iterable[Constraint],
    *,
    tolerance: Tolerance = TOLERANCE,
    iterations: int = 100,
    dtype: torch.dtype = torch.float64,
    k: int = 0,
) -> Repaired:
    """Move predictions the least distance onto their constraints: min ‖y − ŷ‖₂ s.t. σ(y) ≤ ε, or |σ(y)| ≤ ε.

    Linear constraints are satisfied by one projection, exactly. Smooth ones are linearised again and again; the result
    is a local minimum of the distance. Rows are moved on their own and all at once; constraints on pairs and groups
    couple rows, and all rows are then one problem. A row whose constraints hold does not change. A row that cannot
    satisfy its constraints gets a least violation, and is listed in `failed`.

    A constraint with `exact` (0/1 decisions, on groups) is repaired last, by decisions: the nearest rates that satisfy
    it say how many decisions each group changes, and the predictions nearest to their threshold are moved across it.

    The result is differentiable with respect to the predictions, so that a model can be trained through its repair:
    dy = P dŷ, with P the projection on the tangent space of the active constraints; for curved constraints their
    curvature enters too. It is not differentiable with respect to the batch, nor twice.

    Args:
        predictions: for all rows of the batch: a tensor, or a tuple, list or dict of tensors; integers do not move.
        batch: the rows, as for `certify`: a Batch, a mapping of columns, or (inputs, targets).
        constraints: created with `inequality` and `equality`.
        tolerance: a ν up to this is not a violation, in σ's units; one number, or a mapping by name. Of one per column
            the smallest applies to all columns.
        iterations: linearisations of curved constraints, at most.
        dtype: of the result. All is computed in float64; float32 rounds a value by up to 6e-8 of its size, which may
            be more than the tolerance. Use the model's dtype to train through the repair.
        k: number of dual updates so far, for a slack schedule.

    >>> from ldf import Batch, equality, inequality
    >>> shares = [
    ...     equality("sum", lambda y, batch: y.sum(1, keepdim=True) - 1),
    ...     inequality("most", lambda y, batch: y - 0.75),
    ... ]
    >>> done = repair(torch.tensor([[0.5, 1.0, 0.1]]), Batch(), shares)
    >>> done.predictions, done.certificate.holds, round(float(done.distance), 3)
    (tensor([[ 0.3250,  0.7500, -0.0750]], dtype=torch.float64), True, 0.352)
    """
    constraints, batch = check_names(constraints), as_batch(batch)
    check_count(iterations=iterations)
    # Of tolerances per column the smallest: a repair reaches it at no further cost.
    bounds = {name: float(torch.as_tensor(bound).min()) for name, bound in limits(tolerance, constraints).items()}
    if not all(bound > 0 for bound in bounds.values()):
        raise ValueError(f"tolerance must be > 0, got {tolerance!r}: a repair is exact up to rounding")
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating dtype, got {dtype}")
    gradients = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):  # Jacobians need gradients in any case
        given = flat(predictions)
        if not bool(torch.isfinite(given).all()):
            row = int((~torch.isfinite(given).all(1)).nonzero()[0])
            raise ValueError(f"predictions must be finite; row {row} has a value that is not")
        found, used = given, 0
        smooth = [constraint for constraint in constraints if constraint.exact is None]
        if smooth and len(given):
            apart = all(constraint.scope.apart for constraint in smooth)
            functions = (Apart if apart else Joint)(smooth, predictions, batch, [bounds[c.name] for c in smooth], k)
            wide = given if apart else given.reshape(1, -1)
            solution = nearest(functions, wide.detach(), iterations)
            found = Nearest.apply(wide, functions, solution).view_as(given)  # type: ignore[no-untyped-call]
            used = solution.iterations
        for constraint in constraints:
            if constraint.exact is not None:
                with torch.no_grad():
                    moved = constraint.scope.decided(constraint, like(found, predictions), batch, _settled, k)
                found = found + (flat(moved) - found).detach()
        result = tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, like(found, predictions))
        with torch.no_grad():
            certificate = certify(constraints, result, batch, tolerance=tolerance, k=k)
            distance = (flat(result) - given).norm(dim=1)
            holds = holding(constraints, result, batch, bounds, k)
        return Repaired(result, certificate, distance, holds, used)


def flat(predictions: Any) -> Tensor:
    """All floating values of every row, in float64: [rows, n]."""
    rows = rows_of(predictions)
    parts = [leaf.reshape(rows, -1).double() for leaf in leaves(predictions) if leaf.is_floating_point()]
    if not parts:
        raise TypeError("predictions have no floating tensor: there is nothing to move")
    return torch.cat(parts, 1)


def like(values: Tensor, predictions: Any) -> Any:
    """The inverse of `flat`: the values [rows, n], or of some of the rows, in the shape of the predictions."""
    start = 0

    def take(leaf: Tensor) -> Tensor:
        nonlocal start
        if not leaf.is_floating_point():
            return leaf
        width = leaf[:1].numel()
        start += width
        return values[:, start - width : start].reshape(len(values), *leaf.shape[1:])

    return tree_map(take, predictions)


def one_sided(constraint: Constraint, sigma: Tensor, k: int) -> tuple[Tensor, bool]:
    """σ [R, c] as functions h ≤ 0, or h = 0 if the constraint is an equality without slack; and which of both."""
    slack = constraint.slack_at(k)
    if constraint.kind == "inequality":
        return sigma - slack, False
    return (sigma, True) if slack == 0 else (torch.cat([sigma - slack, -sigma - slack], 1), False)


class Apart(Functions):
    """Constraints on samples: one problem for each row. h: [rows, m]"""

    def __init__(
        self, constraints: Sequence[Constraint], predictions: Any, batch: Batch, limit: Sequence[float], k: int
    ) -> None:
        self.constraints, self.predictions, self.batch, self.k = constraints, predictions, batch, k
        values = flat(predictions)
        parts = self._parts(values[:1].detach(), torch.zeros(1, dtype=torch.int64, device=values.device))
        widths = [part.shape[1] for part, _ in parts]
        self.equal = torch.cat([torch.full((w,), e) for w, (_, e) in zip(widths, parts, strict=True)]).to(values.device)
        self.limit = torch.cat([values.new_full((w,), x) for w, x in zip(widths, limit, strict=True)])
        self.size = max(1, ENTRIES // (sum(widths) * (sum(widths) + values.shape[1])))

    def _parts(self, y: Tensor, problems: Tensor) -> list[tuple[Tensor, bool]]:
        tree = like(y, pick(self.predictions, problems))
        batch = Batch(**pick(self.batch.columns(), problems))
        with Widened():
            found = [constraint.evaluate(tree, batch) for constraint in self.constraints]
        return [one_sided(c, sigma.double(), self.k) for c, sigma in zip(self.constraints, found, strict=True)]

    def value(self, y: Tensor, problems: Tensor) -> Tensor:
        """h of these rows."""
        return torch.cat([part for part, _ in self._parts(y, problems)], 1)

    def linear(self, y: Tensor, problems: Tensor) -> tuple[Tensor, Jacobian]:
        """h of these rows and their Jacobians; if the first row's is that of all rows, no other is computed."""
        if len(y) > 1:
            h, first = self._slopes(y[:1], problems[:1])
            h = self.value(y, problems)
            step = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(0)).to(y.device)
            change, expected = self.value(y + step, problems) - h, step @ first[0].mT
            if bool(((change - expected).abs() <= 1e-9 * (1 + h.abs() + expected.abs())).all()):
                return h, Dense(first)
        h, every = self._slopes(y, problems)
        return h, Dense(every)

    def _slopes(self, y: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            h = self.value(y, problems)
        return h.detach(), slopes(h, [y])[0].transpose(0, 1)

    def blocks(self, problems: Tensor) -> tuple[Tensor, ...]:
        """Blocks whose Jacobians have up to `ENTRIES` entries."""
        return tuple(problems.split(self.size))


class Joint(Functions):
    """Constraints that couple rows: all rows are one problem. h: [1, m]"""

    def __init__(
        self, constraints: Sequence[Constraint], predictions: Any, batch: Batch, limit: Sequence[float], k: int
    ) -> None:
        self.predictions, self.batch, self.k = predictions, batch, k
        values = flat(predictions)
        self.rows, self.width = values.shape
        numbers = torch.arange(self.rows, device=values.device)
        self.constraints, self.places, equal, bounds = [], [], [], []
        for constraint, bound in zip(constraints, limit, strict=True):
            place = constraint.scope.gather(numbers, batch).predictions
            if place.numel():
                h, same = self._part(constraint, constraint.scope.gather(like(values.detach(), predictions), batch))
                self.constraints.append(constraint)
                self.places.append(place)
                equal.append(torch.full((h.numel(),), same, device=values.device))
                bounds.append(values.new_full((h.numel(),), bound))
        self.equal = torch.cat(equal) if equal else torch.zeros(0, dtype=torch.bool, device=values.device)
        self.limit = torch.cat(bounds) if bounds else values.new_zeros(0)

    def _part(self, constraint: Constraint, side: Any) -> tuple[Tensor, bool]:
        with Widened():
            sigma = constraint.evaluate(*side)
            compared = constraint.scope.compared(sigma.double(), constraint.scope.membership(side.batch))
        return one_sided(constraint, compared, self.k)

    def value(self, y: Tensor, problems: Tensor) -> Tensor:
        """h of all rows, pairs and comparisons."""
        tree = like(y.view(self.rows, -1), self.predictions)
        parts = [self._part(c, c.scope.gather(tree, self.batch))[0].flatten() for c in self.constraints]
        return torch.cat([y.new_zeros(0), *parts])[None]

    def linear(self, y: Tensor, problems: Tensor) -> tuple[Tensor, Jacobian]:
        """h and its entries: of a sample or pair, those of its own rows; of a comparison, those of all rows."""
        tree = like(y.detach().view(self.rows, -1), self.predictions)
        values, rows, columns, entries, total = [y.new_zeros(0)], [], [], [], 0
        for constraint, place in zip(self.constraints, self.places, strict=True):
            scope = constraint.scope
            # Rows of σ do not depend on each other if they are given their partners as separate copies.
            with torch.enable_grad():
                if scope.rowwise:
                    side = scope.gather(tree, self.batch)
                    own = free(side.predictions)
                    h, _ = self._part(constraint, side._replace(predictions=own))
                else:
                    own = free(tree)
                    h = self._part(constraint, scope.gather(own, self.batch))[0].reshape(1, -1)
            values.append(h.detach().flatten())
            place, width = place.reshape(-1, len(h)) if scope.rowwise else place[None], h.shape[1]
            sources = [leaf for leaf in leaves(own) if leaf.requires_grad]
            slope = torch.cat(
                [part.reshape(width, *place.shape, -1) for part in slopes(h, sources)], 3
            )  # [c, 1|2, R, n]
            numbers = torch.arange(h.numel(), device=y.device).view(len(h), width).t()[:, None, :, None] + total
            within = torch.arange(self.width, device=y.device)
            rows.append(numbers.expand_as(slope).flatten())
            columns.append((place[:, :, None] * self.width + within).expand_as(slope).flatten())
            entries.append(slope.flatten())
            total += h.numel()
        shape = (total, y.shape[1])
        return torch.cat(values)[None], Sparse(torch.cat(rows), torch.cat(columns), torch.cat(entries), shape)

    def blocks(self, problems: Tensor) -> tuple[Tensor, ...]:
        """One block: there is one problem."""
        return (problems,)


def slopes(h: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """∂ Σ_r h[r, j]/∂ source for every column j, [c, …]: the Jacobians of all rows at once, if rows are independent."""
    if not h.requires_grad:
        return [source.new_zeros(h.shape[1], *source.shape) for source in sources]
    units = torch.eye(h.shape[1], dtype=h.dtype, device=h.device)[:, None, :].expand(-1, *h.shape)
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    found: Sequence[Tensor | None]
    try:
        found = torch.autograd.grad(h, sources, units, is_grads_batched=True, **options)
    except RuntimeError:  # an operation that torch cannot batch
        each = [torch.autograd.grad(h, sources, unit, **options) for unit in units]
        found = [None if parts[0] is None else torch.stack(parts) for parts in zip(*each, strict=True)]
    # A derivative that is not finite, such as that of a square root at 0, gives no direction.
    return [
        source.new_zeros(h.shape[1], *source.shape) if part is None else part.nan_to_num(0.0, 0.0, 0.0)
        for source, part in zip(sources, found, strict=True)
    ]


def holding(
    constraints: Sequence[Constraint], predictions: Any, batch: Batch, bounds: Mapping[str, float], k: int
) -> Tensor:
    """[rows] bool: whether each row satisfies its constraints; a comparison of groups involves all rows."""
    count = rows_of(predictions)
    holds = torch.ones(count, dtype=torch.bool, device=leaves(predictions)[0].device)
    for constraint in constraints:
        bad = violations(constraint, predictions, batch, k).to(holds.device) > bounds[constraint.name]
        if constraint.scope.rowwise:
            place = constraint.scope.gather(torch.arange(count, device=holds.device), batch).predictions
            holds[place[..., bad.any(1)].flatten()] = False
        elif bool(bad.any()):
            holds[:] = False
    return holds


def _settled(
    constraint: Constraint, compare: Callable[[Tensor], Tensor], rates: Tensor, weights: Tensor, slack: float
) -> Tensor:
    """The rates [G] nearest to these, Σ weight (change)², that satisfy a comparison: a repair of one row of rates."""
    size = weights.clamp_min(1).sqrt()
    known = ~torch.isnan(compare(torch.where(weights > 0, rates, torch.nan)[:, None]))
    compared = replace(
        constraint,
        sigma=lambda y, batch: compare((y[0] / size)[:, None])[known][None],
        scope=SAMPLES,
        multiplier="constraint",
        slack=slack,
        exact=None,
    )
    return repair((rates * size)[None], Batch(), [compared]).predictions[0] / size  # type: ignore[no-any-return]

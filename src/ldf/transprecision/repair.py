"""Repair: the smallest change, in the sum of squares, that makes predictions monotone on a set of configurations.

A value that is in no violated pair does not change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog
from scipy.sparse.csgraph import connected_components

from .dominance import Dominance, Ints
from .precision import Floats

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
"""Feasibility tolerances for HiGHS, whose default is 1e-7."""


def isotonic(values: npt.ArrayLike, configurations: npt.ArrayLike) -> Floats:
    """The monotone z that minimises Σ (z − f)²: isotonic regression on a partial order.

    Values in no violated pair stay as they are: those below them are smaller and those above larger, and so are the
    means assigned to the others. The rest is divided into the connected components of ≼. Each component is split by
    recursive partitioning: the upper set with the largest Σ (f − mean) is separated from the rest, until no upper set
    has a positive sum and the block takes its mean. A split is a linear program whose vertices are upper sets; gains
    below 1e-10 of the largest in the block may be missed.

    >>> isotonic([0.2, 0.7, 0.4, 0.4], [[1], [2], [3], [4]])
    array([0.2, 0.5, 0.5, 0.5])
    """
    values, order = _check(values, configurations)
    below, above = order.closures(values)
    result = values.copy()
    moving = np.flatnonzero((below > values) | (above < values))
    if len(moving):
        table = order.table[order.place[moving]]
        found = _partition(values[moving], table)
        # Means are exact up to rounding. The unchanged values bound them, and the closures restore the
        # order among them.
        kept = values.copy()
        kept[moving] = -np.inf
        least = order.closures(kept)[0]
        kept[moving] = np.inf
        most = order.closures(kept)[1]
        result[moving] = np.clip(found, least[moving], most[moving])
        result = _middle(*order.closures(result))
    return result


def _middle(below: Floats, above: Floats) -> Floats:
    """½ (below + above), without overflow, and exact if both are equal."""
    return np.where(below == above, below, 0.5 * below + 0.5 * above)


def _check(values: npt.ArrayLike, configurations: npt.ArrayLike) -> tuple[Floats, Dominance]:
    order = Dominance(configurations)
    found = np.asarray(values, dtype=np.float64)
    if found.shape != (order.rows,):
        raise ValueError(
            f"values must have one entry for each of the {order.rows} configurations, got shape {found.shape}"
        )
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found))[0])
        raise ValueError(f"values must be finite; the value of configuration {row} is {found[row]}")
    return found, order


def _partition(values: Floats, table: Ints) -> Floats:
    """Isotonic regression of values that are each in some violated pair."""
    order = Dominance(table)
    pairs = order.covering()
    place = order.place
    # Equal configurations get equal values: they are merged, and their weights added.
    weights = np.bincount(place).astype(np.float64)
    means = np.bincount(place, values) / weights
    links = np.unique(place[pairs], axis=0)
    count = len(weights)
    graph = sparse.coo_array((np.ones(len(links)), (links[:, 0], links[:, 1])), (count, count))
    _, component = connected_components(graph, directed=False)
    result = np.empty(count)
    by_part = np.argsort(component, kind="stable")
    todo = np.split(by_part, np.flatnonzero(np.diff(component[by_part])) + 1)
    member = np.full(count, -1)
    while todo:
        block = todo.pop()
        mean = float(np.average(means[block], weights=weights[block]))
        member[block] = np.arange(len(block))
        inside = links[(member[links] >= 0).all(1)]
        upper = _upper(weights[block] * (means[block] - mean), member[inside])
        member[block] = -1
        if upper is None:
            result[block] = mean
        else:
            todo += [block[upper], block[~upper]]
    return result[place]


def _upper(gains: Floats, links: Ints) -> npt.NDArray[np.bool_] | None:
    """The upper set with the largest Σ gains, or None if none is positive: max Σ g u, u_i ≤ u_j, 0 ≤ u ≤ 1.

    The constraint matrix is totally unimodular, so every vertex is an upper set.
    """
    scale = float(np.abs(gains).max(initial=0.0))
    if scale == 0.0:
        return None
    rows = np.repeat(np.arange(len(links)), 2)
    matrix = sparse.csr_array((np.tile([1.0, -1.0], len(links)), (rows, links.ravel())), (len(links), len(gains)))
    bounds = {"A_ub": matrix, "b_ub": np.zeros(len(links))} if len(links) else {}
    found = linprog(-gains / scale, bounds=(0, 1), method="highs-ds", options=TIGHT, **bounds)
    if not found.success:
        raise ArithmeticError(f"linear program for the upper set failed: {found.message}")
    upper: npt.NDArray[np.bool_] = found.x > 0.5
    worth = float(gains[upper].sum())
    return upper if upper.any() and not upper.all() and worth > 1e-12 * scale * len(gains) else None

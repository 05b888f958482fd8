"""Warm-start points: solved demands with their multipliers.

Stored in a file next to a trained network, and recomputed if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...io.checkpoint import CheckpointError, load, save
from ...io.text import Progress
from ..learning.evaluation import product
from ..nlp import Solution, Starts
from ..problem import Floats, Ints, Problem

FORMAT = "ldf-points-1"
FILE = "points.safetensors"
COUNT = 64
"""Number of points."""
ATTEMPTS = 4
"""Maximum number of demands to try per point: some have no solution."""


class Nearest:
    """Finds the nearest of demands [K, D].

    Where that is less work, distances are measured in the r directions that these demands span from their mean, which
    does not change the order; r = 1 if all loads share one factor. ‖a − b‖² without ‖b‖² is enough.
    """

    def __init__(self, demands: Floats) -> None:
        self.mean = demands.mean(0)
        away = demands - self.mean
        _, sizes, directions = np.linalg.svd(away, full_matrices=False)
        span = directions[sizes > 1e-9 * max(sizes.max(initial=0.0), 1e-300)].T
        self.span = np.ascontiguousarray(span) if span.size + span.shape[1] * len(away) < away.size else None
        at = away if self.span is None else away @ self.span
        self.at, self.sizes = np.ascontiguousarray(at.T), np.square(at).sum(1)

    def __call__(self, demands: Floats) -> Ints:
        """[B] index of the nearest, for demands [B, D]."""
        away = demands - self.mean
        along = away if self.span is None else product(away, self.span)
        found: Ints = (self.sizes - 2 * product(along, self.at)).argmin(1)
        return found


@dataclass(frozen=True)
class Points:
    """K warm-start points: demands [K, D], states [K, S], multipliers of constraints [K, m] and of bounds [K, S]."""

    demands: Floats
    states: Floats
    multipliers: Floats
    bounds: Floats

    def __len__(self) -> int:
        return len(self.demands)

    @cached_property
    def nearest(self) -> Nearest:
        """Demands [B, D] → index of the nearest point, [B]."""
        return Nearest(self.demands)

    def take(self, rows: Any) -> Points:
        """Some of the points."""
        return Points(self.demands[rows], self.states[rows], self.multipliers[rows], self.bounds[rows])

    def starts(self, demands: Floats, predictions: Floats) -> Starts:
        """Predicted states [B, S] with the nearest points' multipliers; if not finite, those points' states."""
        near = self.nearest(demands)
        sound = np.isfinite(predictions).all(1, keepdims=True)
        states = predictions if sound.all() else np.where(sound, predictions, self.states[near])
        return Starts(states, self.multipliers[near], self.bounds[near])

    def save(self, folder: Path, problem: Problem) -> None:
        """Write the points to the folder of a run."""
        own = ("demands", "states", "multipliers", "bounds")
        arrays = {name: getattr(self, name) for name in own}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        save(folder / FILE, tensors, {"format": FORMAT, "case": problem.name, "fingerprint": problem.fingerprint})

    @classmethod
    def load(cls, folder: Path, problem: Problem) -> Points:
        """Read what `save` wrote; raises if it is damaged or for another network."""
        path = folder / FILE
        tensors, facts = load(path)
        if facts.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} does not hold warm-start points ({FORMAT}); delete it to have them recomputed"
            )
        if facts.get("fingerprint") != problem.fingerprint:
            raise CheckpointError(
                f"{path} holds warm-start points of another network ({facts.get('case')}) than {problem.name} "
                "as it is now; delete it to have them recomputed"
            )
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        rows, size = len(arrays.get("demands", ())), len(problem.lower)
        widths = {"demands": len(problem.nominal), "states": size, "multipliers": None, "bounds": size}
        for name, width in widths.items():
            array = arrays.get(name, np.zeros(0))
            if array.ndim != 2 or width not in (None, array.shape[1]):
                wanted = "two dimensions" if width is None else f"{width} columns"
                raise CheckpointError(f"{path} is damaged: {name} should have {wanted}; delete it")
        for name, array in arrays.items():
            if len(array) != rows:
                raise CheckpointError(f"{path} is damaged: {name} should have {rows} rows, not {len(array)}; delete it")
        return cls(**{name: arrays[name] for name in widths})


def build(problem: Problem, demands: Floats, progress: bool | None = None) -> Points:
    """Solve the first `COUNT` of demands [n, D] that have a solution."""
    solver = problem.solver()
    found: list[Solution] = []
    kept: list[Floats] = []
    line = Progress(min(COUNT, len(demands)), "point", progress)
    size = COUNT if solver.threads else 1
    for first in range(0, min(len(demands), ATTEMPTS * COUNT), size):
        part = demands[first : first + size]
        # One at a time, each from the one before.
        starts = None if solver.threads or not found else Starts.of(found[-1:])
        for demand, solution in zip(part, solver.many(part, starts), strict=True):
            if solution.solved and len(found) < COUNT:
                found.append(solution)
                kept.append(demand)
        line.update(len(found), lambda: problem.name)
        if len(found) == COUNT:
            break
    if not found:
        raise ValueError(f"none of {len(demands[: ATTEMPTS * COUNT])} demands in the training range could be solved")
    return Points(
        np.array(kept),
        np.array([solution.state for solution in found]),
        np.array([solution.multipliers for solution in found]),
        np.array([solution.bounds for solution in found]),
    )


def spread(demands: Floats) -> Floats:
    """`COUNT` of demands [n, D], evenly spread along the direction of largest variance, in that order."""
    away = demands - demands.mean(0)
    _, _, directions = np.linalg.svd(away[:: max(1, len(away) // 512)], full_matrices=False)
    order = np.argsort(away @ directions[0], kind="stable")
    chosen: Floats = demands[order[np.unique(np.linspace(0, len(order) - 1, COUNT).round().astype(int))]]
    return chosen


def drawn(low: Floats, high: Floats, centre: Floats, span: Floats) -> Floats:
    """[n, D] random demands within bounds [D], in the directions [D, r] that training demands span from centre [D]."""
    rng = np.random.default_rng(0)
    ways = rng.normal(size=(ATTEMPTS * COUNT, span.shape[1])) @ span.T
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(ways > 0, (high - centre) / ways, np.where(ways < 0, (low - centre) / ways, np.inf))
    furthest = np.nanmin(room, 1, initial=1e6)
    share = rng.random(len(ways)) ** (1 / max(1, span.shape[1]))
    found: Floats = centre + (share * furthest)[:, None] * ways
    return found

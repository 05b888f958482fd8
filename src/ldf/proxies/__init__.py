"""Learn an optimisation problem: sample and label demands, train a network on them, repair and certify its answers."""

from __future__ import annotations

from pathlib import Path

from .problem import Problem

KINDS = ("power",)
"""The problems there are."""


def open_problem(kind: str, case: str) -> Problem:
    """A problem by its kind and the name or file of its network."""
    if kind == "power":
        from ..power.problem import Power

        return Power.open(case)
    raise ValueError(f"no problem {kind!r}; there are: {', '.join(KINDS)}")


def load_problem(kind: str, folder: Path) -> Problem:
    """The problem that `Problem.save` wrote to a folder."""
    if kind == "power":
        from ..power.problem import Power

        return Power.load(folder)
    raise ValueError(f"{folder}: no problem {kind!r}; there are: {', '.join(KINDS)}")

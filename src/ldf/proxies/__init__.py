"""Learn an optimisation problem: sample and label demands, train a network on them, repair and certify its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .problem import Problem

KINDS = ("power", "gas")
"""The problems there are."""


def _kind(kind: str, where: str = "") -> Any:
    """The class of a kind of problem; what it needs is imported when it is asked for."""
    if kind == "power":
        from ..power.problem import Power

        return Power
    if kind == "gas":
        from ..gas.problem import Gas

        return Gas
    raise ValueError(f"{where}no problem {kind!r}; there are: {', '.join(KINDS)}")


def open_problem(kind: str, case: str) -> Problem:
    """A problem by its kind and the name or file of its network."""
    problem: Problem = _kind(kind).open(case)
    return problem


def load_problem(kind: str, folder: Path) -> Problem:
    """The problem that `Problem.save` wrote to a folder."""
    problem: Problem = _kind(kind, f"{folder}: ").load(folder)
    return problem


def kind_of(case: str) -> str:
    """Which kind of network a name or a file is; a MATLAB file says so itself, any other name is of a power network."""
    from ..gas.catalogue import NETWORKS

    path = Path(case)
    if case in NETWORKS or path.suffix.lower() in (".net", ".zip", ".json"):
        return "gas"
    if path.suffix.lower() == ".m" and path.is_file() and "mgc." in path.read_text(errors="replace"):
        return "gas"
    return "power"

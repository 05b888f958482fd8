"""Learn an optimisation problem O(d): sample and label demands, train a network on them, repair and certify its answers.

All names of this package that a user needs are here; a module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registry import kind_of, kinds, load_problem, open_problem, problem_class, register

if TYPE_CHECKING:
    from .answering.answers import Responder
    from .answering.points import Points
    from .answering.repair import Answer, Certifier, Kept, Optimal, Projection, Repair, Repaired, Untouched
    from .data.dataset import Dataset, load
    from .data.labelling import DatasetError, label
    from .data.sampling import Sampling
    from .learning.evaluation import Scores, evaluate
    from .learning.training import Recipe, Trained, recipe_named, train
    from .nlp import Solution
    from .problem import Problem, Solver
    from .program import Expressions, Law, Program
    from .source import NetworkError, fingerprint

_LAZY = {
    "Answer": "answering.repair",
    "Certifier": "answering.repair",
    "Dataset": "data.dataset",
    "DatasetError": "data.labelling",
    "Expressions": "program",
    "Kept": "answering.repair",
    "Law": "program",
    "NetworkError": "source",
    "Optimal": "answering.repair",
    "Points": "answering.points",
    "Problem": "problem",
    "Program": "program",
    "Projection": "answering.repair",
    "Recipe": "learning.training",
    "Repair": "answering.repair",
    "Repaired": "answering.repair",
    "Responder": "answering.answers",
    "Sampling": "data.sampling",
    "Scores": "learning.evaluation",
    "Solution": "nlp",
    "Solver": "problem",
    "Trained": "learning.training",
    "Untouched": "answering.repair",
    "evaluate": "learning.evaluation",
    "fingerprint": "source",
    "label": "data.labelling",
    "load": "data.dataset",
    "recipe_named": "learning.training",
    "train": "learning.training",
}

__all__ = [  # noqa: RUF022 (those that are here, then those that are fetched)
    "kind_of",
    "kinds",
    "load_problem",
    "open_problem",
    "problem_class",
    "register",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    """A name of a module that was not needed before."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

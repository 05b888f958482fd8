"""The kinds of problems there are: those that installed packages name as entry points of the group `ldf.problems`.

A package adds a kind by two lines of its pyproject.toml,

    [project.entry-points."ldf.problems"]
    dc = "ldf_dcopf:DC"

with DC a subclass of `Problem` whose `kind` is "dc". Names are read from installed metadata; a package is imported when
its kind is asked for, so that one that is broken hinders no other.
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
"""Those of this package, which are there without installed metadata too: in a source tree on the path."""
HOW = f"a package adds a kind as an entry point of the group {GROUP!r}, a program by ldf.proxies.register"

Class = TypeVar("Class", bound="type[Problem]")

_registered: dict[str, type[Problem]] = {}


def kinds() -> tuple[str, ...]:
    """The kinds there are, by name: ours, then others in alphabetical order. Nothing is imported."""
    others = {entry.name for entry in entry_points(group=GROUP)} | _registered.keys()
    return *OWN, *sorted(others - OWN.keys())


def register(cls: Class) -> Class:
    """Add a kind in this process, without a package: for a notebook, a script or a test; a decorator of the class.

    `label` hands the class to its workers, so that they know it too; other processes do not.
    """
    _check(cls, cls.kind, f"class {cls.__qualname__}")
    known = _registered.get(cls.kind)
    # A notebook defines a class anew when its cell is run again.
    if cls.kind in kinds() and (known is None or known.__qualname__ != cls.__qualname__):
        raise ValueError(f"there is a problem {cls.kind!r} already; give {cls.__qualname__} another kind")
    _registered[cls.kind] = cls
    return cls


def problem_class(kind: str) -> type[Problem]:
    """The class of a kind; what it needs is imported now."""
    if kind in _registered:
        return _registered[kind]
    entry = _entry(kind)
    what = f"the problem {kind!r} ({entry.value}{_package(entry)})"
    try:
        cls = entry.load()
    except Exception as error:  # a package of someone else's may fail in any way
        if OWN.get(kind) == entry.value and isinstance(error, ModuleNotFoundError):
            raise  # says which extra to install
        raise ImportError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    _check(cls, kind, what)
    found: type[Problem] = cls
    return found


def open_problem(kind: str, case: str) -> Problem:
    """A problem by its kind and the name or file of its network."""
    return problem_class(kind).open(case)


def load_problem(kind: str, folder: Path) -> Problem:
    """The problem that `Problem.save` wrote to a folder."""
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
    if broken:  # it might have been one of theirs
        raise broken[0]
    raise ValueError(f"{case!r} is not a case of any kind there is: {', '.join(kinds())}")


def _entry(kind: str) -> EntryPoint:
    """The one entry point of a kind."""
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=kind)}
    if kind in OWN:
        found.setdefault(OWN[kind], EntryPoint(kind, OWN[kind], GROUP))
    if not found:
        raise ValueError(f"no problem {kind!r}; there are: {', '.join(kinds())}; {HOW}")
    if len(found) > 1:
        places = " and ".join(f"{entry.value}{_package(entry)}" for entry in found.values())
        raise ValueError(f"there are {len(found)} problems {kind!r}: {places}; uninstall all but one")
    return next(iter(found.values()))


def _package(entry: EntryPoint) -> str:
    return f" of package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""


def _check(cls: object, kind: str, what: str) -> None:
    """Refuse what is no class of a problem, or one that does not say all that it must."""
    from .problem import Problem

    if not (isinstance(cls, type) and issubclass(cls, Problem)):
        raise ImportError(f"{what} is not a subclass of ldf.proxies.Problem but {cls!r}")
    if inspect.isabstract(cls):
        raise ImportError(f"{what} lacks {', '.join(sorted(cls.__abstractmethods__))}; see ldf.proxies.Problem")
    if getattr(cls, "kind", None) != kind:
        raise ImportError(f"{what} has kind = {getattr(cls, 'kind', None)!r}, not {kind!r}")

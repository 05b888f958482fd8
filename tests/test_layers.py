"""The layers of the package: each imports only from those below it, and CONTRIBUTING.md lists the same layers."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ldf"

LAYERS = (
    ("io",),
    ("core",),
    ("viewing",),
    ("training",),
    ("proxies",),
    ("power", "gas", "transprecision", "fairness"),
    ("reproduce",),
    ("cli",),
)
"""From bottom to top; folders in the same layer do not import each other."""
SINGLE = {"extras": 0, "examples": 0, "__init__": 4, "__main__": len(LAYERS)}
"""Single files of the package, with the number of layers that they may import from."""


def modules() -> dict[str, Path]:
    """Every module of the package, by its name without the leading "ldf."."""
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in sorted(SOURCE.rglob("*.py"))}


def imports(name: str, tree: ast.AST, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and imported module of every import from the package, including imports inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "ldf":
                    yield node.lineno, alias.name.removeprefix("ldf").removeprefix(".") or "__init__"
        elif isinstance(node, ast.ImportFrom):
            base = (node.module or "").split(".") if node.module else []
            if node.level:
                base = name.split(".")[: -node.level] + base
            elif base[:1] == ["ldf"]:
                base = base[1:]
            else:
                continue
            for alias in node.names:
                deeper = ".".join([*base, alias.name])
                found = deeper if deeper in known or f"{deeper}.__init__" in known else ".".join(base)
                yield node.lineno, found or "__init__"


def layer(name: str) -> int:
    """Number of layers below a module."""
    folder = name.split(".")[0]
    for index, together in enumerate(LAYERS):
        if folder in together:
            return index
    return SINGLE[folder]


def upward(name: str, text: str, known: set[str]) -> list[str]:
    """Imports of a module from other folders of its layer, or from layers above."""
    wrong = []
    for line, other in imports(name, ast.parse(text), known):
        folder, theirs = name.split(".")[0], other.split(".")[0]
        # Files that import no layer may be used by all.
        if theirs == folder or SINGLE.get(theirs) == 0 or layer(other) < layer(name):
            continue
        wrong.append(f"ldf.{name}:{line} imports ldf.{other}")
    return wrong


def test_every_file_has_a_place() -> None:
    folders = {name.split(".")[0] for name in modules()}
    assert folders == {folder for together in LAYERS for folder in together} | set(SINGLE)


def test_no_layer_imports_from_above() -> None:
    known = modules()
    wrong = [line for name, path in known.items() for line in upward(name, path.read_text(), set(known))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("core.dual", "from ..training import loop"),
        ("core.dual", "def f():\n    from ..training.loop import Loop"),
        ("proxies.registry", "import ldf.power.problem"),
        ("power.case", "from ..gas.network import Network"),
        ("proxies.data.dataset", "from ...reproduce import plan"),
        ("core.batch", "from .. import fit"),
        ("training.loop", "from ..cli.app import app"),
    ],
)
def test_an_import_from_above_is_found(name: str, text: str) -> None:
    assert upward(name, text, set(modules()))


def test_imports_from_below_are_allowed() -> None:
    known = set(modules())
    assert not upward("gas.problem", "from ..proxies.problem import Problem\nfrom ..core import dual", known)
    assert not upward("core.dual", "from .batch import Batch\nimport torch\nfrom ..io import text", known)
    assert not upward("power.__init__", "from ..extras import require", known)


def test_there_are_no_circular_imports() -> None:
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):  # imports for type checking never run
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                node.body = []
        found = {other if other in known else f"{other}.__init__" for _, other in imports(name, tree, set(known))}
        graph[name] = found - {name}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_contributing_lists_the_layers_in_their_order_and_every_file() -> None:
    rows = re.findall(r"^\| `(\w+)/` \|(.*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert [folder for folder, _ in rows] == [folder for together in LAYERS for folder in together]
    for folder, row in rows:
        files = {str(path.relative_to(SOURCE / folder)) for path in (SOURCE / folder).rglob("*.py")}
        assert set(re.findall(r"`([\w/]+\.py)`", row)) == {name for name in files if "__init__" not in name}

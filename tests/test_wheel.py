"""The wheel as installed by a user: its contents, and its behaviour with only torch and safetensors installed."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ldf import extras
from ldf.proxies.registry import GROUP, OWN

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
APPLICATIONS = {
    "power": "from ldf.power.problem import Power",
    "gas": "from ldf.gas.problem import Gas",
    "transprecision": "from ldf.transprecision.kernels import kernel",
    "fairness": "from ldf.fairness import FairClassifier",
}

ALONE = """
import sys, sysconfig
from importlib.machinery import PathFinder

INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))

class Only(PathFinder):
    '''Finds the standard library, ldf in the folder of the wheel, and only the allowed installed packages.'''

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        if found is None or path is not None or name in ALLOWED:
            return found
        place = found.origin or next(iter(found.submodule_search_locations))
        return None if place.startswith(INSTALLED) else found

sys.meta_path = [Only if finder is PathFinder else finder for finder in sys.meta_path]
sys.path.insert(0, FOLDER)
import ldf
assert ldf.__file__.startswith(FOLDER), ldf.__file__
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def brought_by(*packages: str) -> set[str]:
    """Modules of these packages and of all their dependencies, without extras."""
    known, todo = set(), [canonicalize_name(package) for package in packages]
    while todo:
        package = todo.pop()
        if package in known:
            continue
        known.add(package)
        for line in metadata.requires(package) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(canonicalize_name(needed.name))
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if known & {canonicalize_name(owner) for owner in owners}
    }


def alone(folder: Path, code: str, *packages: str) -> subprocess.CompletedProcess:
    """Run code with only the wheel's ldf and these packages."""
    head = f"ALLOWED, FOLDER = {brought_by(*packages)!r}, {str(folder)!r}\n{ALONE}"
    script = folder / "alone.py"
    script.write_text(head + dedent(code))
    return subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, cwd=folder, timeout=120)


def packages_of(extra: str) -> list[str]:
    """Packages of an extra in pyproject.toml, without other extras of ldf."""
    return [name for line in EXTRAS[extra] if (name := Requirement(line).name) != "ldf"]


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    files = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert "ldf/py.typed" in files
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (text,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        (entry,) = [archive.read(name).decode() for name in names if name.endswith("entry_points.txt")]
    about = {name for name in names if re.match(r"ldf-[\d.]+\.dist-info/", name)}
    assert names - about == files
    assert any(name.endswith("licenses/LICENSE") for name in about)
    assert "ldf = ldf.__main__:main" in entry
    assert all(f"{kind} = {value}" in entry.partition(f"[{GROUP}]")[2] for kind, value in OWN.items())
    always = [line for line in text.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert sorted(Requirement(line.partition(":")[2].strip()).name for line in always) == ["safetensors", "torch"]


def test_with_torch_and_safetensors_alone_the_core_trains_and_saves(unpacked: Path) -> None:
    code = """
    import torch
    from ldf.examples import dispatch

    data = dispatch(64)
    law = ldf.inequality("capacity", lambda y, batch: y - batch.inputs[:, :4])
    done = ldf.fit(torch.nn.Linear(5, 4), data, loss=torch.nn.functional.mse_loss, constraints=[law], epochs=2,
                   checkpoint="run", progress=False)
    for name in ("numpy", "typer", "casadi", "pandas"):
        try:
            __import__(name)
        except ModuleNotFoundError:
            continue
        raise SystemExit(f"{name} is installed")
    certificate = done.certify(done.model(data[0]), ldf.Batch(inputs=data[0]))
    print(len(done.history), certificate["capacity"].rows)
    """
    done = alone(unpacked, code, "torch", "safetensors")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "64"]
    assert (unpacked / "run" / "checkpoint.safetensors").is_file()


def test_an_application_without_its_packages_names_its_extra(unpacked: Path) -> None:
    code = f"""
    import json

    said = {{}}
    for name, line in {APPLICATIONS!r}.items():
        try:
            exec(line)
        except ModuleNotFoundError as error:
            said[name] = str(error)
    print(json.dumps(said))
    """
    done = alone(unpacked, code, "torch", "safetensors")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    present = brought_by("torch", "safetensors")
    for name in APPLICATIONS:
        sentence = said[name]
        assert re.fullmatch(rf"ldf\.{name} needs .+, which are not installed: pip install 'ldf\[{name}\]'", sentence)
        lacking = {package for package in packages_of(name) if package not in {*present, "pooch"}}
        named = re.split(r", | and ", sentence.removeprefix(f"ldf.{name} needs ").partition(", which ")[0])
        assert set(named) == lacking


def test_the_command_line_names_its_extra(unpacked: Path) -> None:
    code = 'from ldf.__main__ import main\nsys.argv = ["ldf", "--help"]\nmain()'
    done = alone(unpacked, code, "torch", "safetensors")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == "ldf: the command line needs typer: pip install 'ldf[cli]'"


def test_a_command_without_its_packages_names_their_extra(unpacked: Path) -> None:
    """With typer and rich the command line starts, lists its commands and names what each of them needs."""
    commands = {
        "--help": None,
        "transprecision --help": None,
        "demo": "'ldf[power]'",
        "solve power case30_ieee": "'ldf[power]'",
        "label gas 24-pipe --out labels": "'ldf[gas]'",
        "evaluate run": "'ldf[power]' or 'ldf[gas]'",
        "transprecision kernels": "'ldf[transprecision]'",
        "reproduce gas-errors --out out": "'ldf[gas]'",
        "reproduce transprecision --out out": "'ldf[transprecision]'",
        "reproduce relaxed-fairness --out out": "'ldf[fairness]'",
        "reproduce all --out out": "'ldf[all]'",
    }
    code = f"""
    import contextlib, io, json
    from ldf.__main__ import main

    said = {{}}
    for line in {list(commands)!r}:
        sys.argv = ["ldf", *line.split()]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                main()
        except SystemExit as end:
            said[line] = end.code
    print(json.dumps(said))
    """
    done = alone(unpacked, code, "torch", "safetensors", "typer", "rich")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for line, extra in commands.items():
        if extra is None:
            assert said[line] == 0, said[line]
        else:
            assert re.fullmatch(r"ldf: (ldf\.\w+|this command) needs [\w, -]+, which are not installed: .+", said[line])
            assert said[line].endswith(f": pip install {extra}"), said[line]


@pytest.mark.parametrize("extra", APPLICATIONS)
def test_the_table_of_extras_matches_pyproject(extra: str) -> None:
    packages = {extras.PACKAGES.get(module, module) for module in extras.NEEDS[extra]}
    assert packages == set(packages_of(extra)) - {"pooch"}


def test_a_missing_module_of_the_user_is_reported_unchanged() -> None:
    error = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert extras.explain(error, ["transprecision", "tune", "mine.py"]) == "No module named 'mine'"
    own = ModuleNotFoundError("figures need matplotlib: pip install 'ldf[cli]'", name="matplotlib")
    assert extras.explain(own, ["demo"]) == str(own)

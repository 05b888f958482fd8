"""The command line, as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ldf


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ldf", *arguments], capture_output=True, text=True, timeout=300, check=False, **options
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == f"ldf {ldf.__version__}"
    assert "demo" in run("--help").stdout
    assert "--epochs" in run("demo", "--help").stdout


def test_demo_writes_and_shows_what_it_found_and_goes_on_where_it_was(tmp_path: Path) -> None:
    arguments = ("demo", "--out", str(tmp_path / "demo"), "--epochs", "12", "--seeds", "2")
    first = run(*arguments)
    assert first.returncode == 0, first.stderr
    assert "λ balance" in first.stdout
    assert "What the doctor says" in first.stdout
    assert "epoch 12/12" in first.stderr
    rows = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert {(row["model"], row["quantity"]) for row in rows} == {
        (model, quantity)
        for model in ("mean", "linear", "M", "MC", "MCD")
        for quantity in ("error", "capacity", "balance")
    }
    assert all(row["seeds"] == 2 for row in rows if row["model"] == "MCD")
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo" / "history-MCD.csv").read_text().count("\n") == 13
    again = run(*arguments)
    assert "epoch 12/12" not in again.stderr, "a finished run is not trained again"
    assert again.stdout == first.stdout
    other = run("demo", "--out", str(tmp_path / "demo"), "--epochs", "13", "--seeds", "2")
    assert other.returncode != 0
    assert "epochs: 12 there, 13 here" in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.parametrize(
    "arguments", [("demo", "--epochs", "0"), ("dmeo",), ("demo", "--seeds", "many")], ids=["epochs", "command", "seeds"]
)
def test_bad_arguments_are_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_its_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')\n")
    done = run("--version", env={"PYTHONPATH": str(tmp_path), "PATH": ""})
    assert done.returncode == 1
    assert done.stderr.strip() == "ldf: the command line needs typer: pip install 'ldf[cli]'"


def test_the_core_imports_with_torch_alone() -> None:
    code = "import sys, ldf; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("typer", "rich", "matplotlib", "pandas", "sklearn", "scipy", "casadi", "safetensors"):
        assert f"'{heavy}'" not in done.stdout

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Before OpenMP is loaded; for processes that tests start too. On busy cores LightGBM's threads wait for each other for
# seconds, whatever n_jobs says.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_THREAD_LIMIT", "1")

import pytest
import torch

from ldf.__main__ import main

# The networks in the tests are small: a second thread does not pay off, and the tests run in parallel.
torch.set_num_threads(1)

SLOW = ("test_pages.py", "test_dual.py", "test_app.py", "test_examples.py", "test_registry.py", "test_browser.py")
"""Slow files, which run first so that both workers finish at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """Collects every figure that is drawn."""
    from matplotlib import pyplot

    found: list = []
    close = pyplot.close
    monkeypatch.setattr(pyplot, "close", lambda figure: (found.append(figure), close(figure)))
    return found


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs the command line in this process, which avoids the start-up time of a new one."""

    def inside(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        monkeypatch.setattr(sys, "argv", ["ldf", *arguments])
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code, (out, err) = ended.value.code, capsys.readouterr()
        if isinstance(code, str):  # Python prints it and exits with 1
            code, err = 1, f"{err}{code}\n"
        return subprocess.CompletedProcess(arguments, code or 0, out, err)

    return inside


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the installed DC-OPF package of examples/."""
    from plugins import DCOPF, install

    return install(DCOPF, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def dcopf(installed: Path) -> Iterator[Path]:
    """Makes the DC-OPF package of examples/ importable in this process and its child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])]))
        yield installed


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains predictors for only a few epochs: the guarantees of a search do not depend on them."""
    from precisions import trained_for

    trained_for(3, monkeypatch)

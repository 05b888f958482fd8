"""Runs the command line and scripts in this process, which avoids the start-up time of a new one."""

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ldf.__main__ import main
from ldf.proxies import registry
from ldf.transprecision import kernels


def inside(*arguments: str, cwd: Path | None = None, merged: bool = False) -> subprocess.CompletedProcess:
    """Run `ldf` with these arguments, without problems that tests registered; merged: as with the shell's 2>&1."""
    out = io.StringIO()
    err = out if merged else io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd or "."),
        torch.random.fork_rng(devices=[]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["ldf", *arguments])
        patch.setattr(registry, "_registered", {})
        try:
            main()
            code: str | int | None = None
        except SystemExit as ended:
            code = ended.code
    if isinstance(code, str):  # Python prints it and exits with 1
        err.write(f"{code}\n")
        code = 1
    return subprocess.CompletedProcess(arguments, code or 0, out.getvalue(), err.getvalue())


def script(path: Path, cwd: Path) -> str:
    """Standard output of a script run in this process; kernels that it registers are removed."""
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(cwd),
        torch.random.fork_rng(devices=[]),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()),
    ):
        patch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))
        patch.setattr(sys, "argv", [str(path)])
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()

"""Installed packages that add problems: the DC-OPF of examples/, and broken ones."""

import subprocess
import sys
from pathlib import Path

DCOPF = Path(__file__).parent.parent.parent / "examples" / "dcopf"


def install(package: Path, folder: Path) -> Path:
    """Install a package with pip into a folder and return the folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--target", str(folder), str(package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def write(folder: Path, package: str, kind: str, value: str, **modules: str) -> Path:
    """Write the metadata and modules of an installed package with one problem, and return the folder."""
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[ldf.problems]\n{kind} = {value}\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder

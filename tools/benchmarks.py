"""Run benchmarks and keep their results, with command and machine, in results/benchmarks.json.

    python tools/benchmarks.py answers step labelling fairness -- [options of the benchmark]

Each entry of the file has the command, the date, the machine, the versions, and the flat object that the benchmark
prints with --json. An entry replaces an earlier one of the same name. The README and docs/results.md show these
values: run `python tools/results.py` afterwards.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from ldf.io.text import write_whole
from ldf.viewing.page import machine

ROOT = Path(__file__).parent.parent
FILE = ROOT / "results" / "benchmarks.json"
NAMES = ("answers", "step", "labelling", "fairness")


def main() -> None:
    """Run the benchmarks named on the command line, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=NAMES, help="benchmarks to run")
    asked, options = parser.parse_known_args()
    options = [option for option in options if option != "--"]
    for name in asked.names:
        command = ["python", f"benchmarks/{name}.py", *options, "--json"]
        done = subprocess.run(
            [sys.executable, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        folder = [i + 1 for i, word in enumerate(command) if word in ("--work", "--out")]
        shown = ["DIR" if i in folder else word for i, word in enumerate(command)]
        entry = {"command": shlex.join(shown), **machine(), "values": json.loads(done.stdout)}
        found = json.loads(FILE.read_text()) if FILE.exists() else {}
        text = json.dumps(found | {name: entry}, indent=1, ensure_ascii=False)
        write_whole(FILE, text + "\n")


if __name__ == "__main__":
    main()

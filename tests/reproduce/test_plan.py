"""Which tables are asked for, how long they take, and what happens where one of them cannot be made."""

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import refused

from ldf.fairness.datasets import READINGS
from ldf.gas import catalogue
from ldf.io.data import DataError
from ldf.proxies.learning.study import Study
from ldf.reproduce import fairness, networks, plan, report, transprecision
from ldf.reproduce.networks import TABLES, Options
from ldf.reproduce.plan import Job, Wish
from ldf.reproduce.tables import Part
from tests.reproduce.test_report import Page, rows
from tests.reproduce.test_targets import part, row

A, B, C = Path("a"), Path("b"), Path("c")


def job(name: str, left: dict[Path, float] | Exception | None = None, made: Part | Exception | None = None) -> Job:
    """A table that is made, or not, at no cost."""

    def give(found):
        if isinstance(found, Exception):
            raise found
        return found

    own = part(*rows(table=name), name=name) if made is None else made
    return Job(name, lambda: give(left or {}), lambda: give(own))


@pytest.fixture
def no_gaslib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a folder of data nor a network."""

    def nowhere(name: str) -> Path:
        raise DataError(f"{name} is nowhere")

    monkeypatch.setattr(catalogue, "locate", nowhere)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch):
    """The options that each table would be made with, by its name, for a wish."""
    monkeypatch.setattr(networks, "make", lambda name, table, out, work, options: options)
    monkeypatch.setattr(transprecision, "make", lambda out, work, options: options)
    for name in plan.FAIR:
        monkeypatch.setitem(fairness.MAKE, name, lambda out, work, options: options)

    def of(table: str, *cases: str, **wishes: object) -> dict:
        jobs = plan.plan(Wish(table, cases=list(cases) or None, **wishes), Path("out"), Path("work"))
        return {one.name: one.make() for one in jobs}

    return of


# ---------------------------------------------------------------- how long it takes


def test_durations_are_said_in_seconds_minutes_or_hours() -> None:
    assert [plan.duration(s) for s in (0.2, 89, 90, 3000, 5369, 5400, 7199, 90_000)] == [
        "0 s", "89 s", "2 min", "50 min", "89 min", "1 h 30 min", "2 h 0 min", "25 h 0 min",
    ]  # fmt: skip


def test_what_is_left_is_added_up_and_shared_among_the_cores() -> None:
    jobs = [job("one", {A: 400.0, B: 200.0}), job("two", {C: 60.0})]
    said = plan.expected(jobs, 1)
    assert said.startswith("Expected: about 11 min on 1 cores for what is not there yet (one 10 min, two 60 s).")
    assert said.endswith("the same command goes on where it was.")
    assert "about 6 min on 2 cores" in plan.expected(jobs, 2)
    assert "(one 5 min, two 30 s)" in plan.expected(jobs, 2)
    assert "about 10 min on 1 cores for what is not there yet." in plan.expected(jobs[:1], 1), "no list of one"


def test_what_several_tables_share_counts_once() -> None:
    shared = [job("one", {A: 100.0, B: 300.0}), job("two", {B: 300.0, C: 200.0}), job("three", {A: 100.0})]
    assert "about 10 min on 1 cores for what is not there yet (one 7 min, two 3 min)." in plan.expected(shared, 1)


def test_nothing_left_is_said_and_so_is_what_nobody_knows() -> None:
    assert plan.expected([job("one"), job("two")], 2) == (
        "All of it is there already: only tables and pictures are made."
    )
    unknown = plan.expected([job("one", {A: 100.0}), job("two", {B: math.nan})], 2)
    assert unknown.startswith("How long it takes is not known for these networks.")
    assert "about 50 s" in plan.expected([job("one", {A: 100.0}), job("two", DataError("nowhere"))], 2)
    with pytest.raises(DataError, match="nowhere"):
        plan.expected([job("two", DataError("nowhere"))], 2)
    with pytest.raises(RuntimeError):
        plan.expected([job("one", RuntimeError("a mistake"))], 2)


def test_left_of_a_network_is_what_is_not_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Options(cases=["24-pipe"], samplings=["shared"], recipes=["tuned"], samples=400, seeds=2, epochs=8)
    errors, moved = (networks.left(TABLES[name], tmp_path, few) for name in ("gas-errors", "violations"))
    folder = tmp_path / "gas" / "24-pipe-shared-400"
    runs = [folder / "tuned-8" / f"{model}-{seed}" for seed in (0, 1) for model in ("M", "MC", "MCD")]
    assert set(errors) == {folder / "labels", *runs}
    assert set(moved) == set(errors) | {run / "repairs-100.json" for run in runs}
    cost = networks.COSTS["24-pipe"]
    assert errors[folder / "labels"] == 400 * cost.label["shared"]
    assert errors[runs[0]] == pytest.approx(networks.BEGIN + cost.run["tuned"] / 100), (
        "a tenth of the labels and of the epochs"
    )
    assert moved[runs[0] / "repairs-100.json"] == 80 * cost.repair, "a fifth of the labels can be repaired"
    for made in (runs[0] / "scores.json", runs[1] / "repairs-100.json"):
        made.parent.mkdir(parents=True)
        made.write_text("{}")
    monkeypatch.setattr(Study, "labelled", True)
    assert set(networks.left(TABLES["gas-errors"], tmp_path, few)) == set(runs[1:])
    assert len(networks.left(TABLES["violations"], tmp_path, few)) == 5 + 5
    other = Options(cases=["case14_ieee"], samplings=["shared"], recipes=["tuned"], seeds=1)
    unknown = networks.left(TABLES["power-errors"], tmp_path, other)
    assert len(unknown) == 3
    assert all(math.isnan(seconds) for seconds in unknown.values())


def test_networks_that_take_very_long_have_fewer_labels_and_seeds(tmp_path: Path, monkeypatch) -> None:
    case = "case30_ieee"
    slow = replace(networks.PUBLISHED["power"], labels={(case, "independent"): 1000}, seeds={(case, "paper"): 2})
    monkeypatch.setitem(networks.PUBLISHED, "power", slow)
    usual = Options(cases=[case], recipes=["paper", "tuned"])
    (shared, independent), missing = usual.studies(tmp_path, ["power"])
    assert missing == {}
    assert (shared.rows, independent.rows) == (4000, 1000)
    assert (shared.sampling.hot_start, independent.sampling.hot_start) == (0.01, 0.0)
    count = [sum(run.recipe == recipe for run in usual.runs(shared)) for recipe in ("paper", "tuned")]
    assert count == [3 * 2, 3 * 5]
    assert {run.recipe for run in Options().runs(shared)} == {"paper", "tuned"}
    assert {run.recipe for run in Options().runs(independent)} == {"tuned"}, "demands that the paper does not have"
    asked = Options(cases=[case], recipes=["paper"], seeds=4, samples=50, samplings=["independent"])
    (own,), _ = asked.studies(tmp_path, ["power"])
    assert own.folder == tmp_path / "power" / f"{case}-independent-50"
    assert len(asked.runs(own)) == 3 * 4


# ---------------------------------------------------------------- which tables


def test_all_is_every_table_and_a_case_says_which(chosen) -> None:
    assert tuple(chosen("all")) == plan.TABLES
    assert list(chosen("all", "24-pipe")) == ["gas-errors", "violations"]
    assert list(chosen("all", "case30_ieee")) == ["power-errors", "violations"]
    assert list(chosen("all", "200")) == ["transprecision"]
    assert list(chosen("all", "adult-sex")) == list(plan.FAIR)
    mixed = chosen("all", "600", "bank-full-age", "24-pipe", "200", "case30_ieee")
    assert tuple(mixed) == plan.TABLES
    assert mixed["violations"].cases == ["24-pipe", "case30_ieee"]
    assert mixed["transprecision"].sizes == [600, 200]
    assert mixed["relaxed-fairness"].readings == ["bank-full-age"]
    everything = chosen("all")
    assert (everything["gas-errors"].cases, everything["gas-errors"].recipes) == (None, None)
    assert everything["transprecision"].sizes == transprecision.SIZES
    assert tuple(everything["fairness"].readings) == tuple(READINGS)
    assert everything["relaxed-fairness"].readings == fairness.PANELS
    for name, options in chosen("all", recipes=["tuned"]).items():
        assert options.recipes == ["tuned"], name
        if name not in plan.NETWORKS:
            assert everything[name].recipes == ("paper", "tuned")


@pytest.mark.parametrize("name", plan.TABLES)
def test_one_table_is_one_job(name: str, chosen) -> None:
    assert list(chosen(name)) == [name]


def test_cases_of_another_table_are_refused(chosen, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a case of transprecision is a size of training sets, such as 200; got '24-p"):
        chosen("transprecision", "24-pipe")
    with pytest.raises(ValueError, match="no network of the kind gas among the cases"):
        chosen("gas-errors", "case30_ieee")["gas-errors"].studies(tmp_path, ["gas"])
    with pytest.raises(ValueError, match="there is no reading 'case30_ieee'"):
        fairness.jobs_of(chosen("fairness", "case30_ieee")["fairness"])


def test_a_quick_run_has_less_of_everything_and_says_so(chosen) -> None:
    quick, whole = chosen("all", quick=True), chosen("all")
    assert tuple(quick) == tuple(whole) == plan.TABLES
    assert all(options.quick for options in quick.values())
    assert not any(options.quick for options in whole.values())
    one, other = quick["gas-errors"], whole["gas-errors"]
    assert (one.samplings, one.samples, one.seeds, one.epochs, one.repairs) == (("shared",), 100, 2, 6, 5)
    assert other.samplings == ("shared", "independent")
    assert (other.samples, other.seeds, other.epochs, other.repairs) == (None, None, None, 100)
    one, other = quick["transprecision"], whole["transprecision"]
    assert (one.sets, one.epochs, other.sets, other.epochs) == (2, 20, 10, None)
    one, other = quick["fairness"], whole["fairness"]
    assert (one.folds, one.epochs, other.folds, other.epochs) == (2, 2, 5, None)
    assert one.readings == fairness.PANELS
    asked = chosen("all", quick=True, samples=50, seeds=3, epochs=9, repairs=7, samplings=["independent"])
    own = asked["violations"]
    assert (own.samplings, own.samples, own.seeds, own.epochs, own.repairs) == (["independent"], 50, 3, 9, 7)
    assert (asked["transprecision"].sets, asked["transprecision"].epochs) == (3, 9)
    assert (asked["fairness"].folds, asked["fairness"].epochs) == (3, 9)


@pytest.mark.usefixtures("no_gaslib")
def test_a_quick_run_takes_ten_minutes_at_most_on_two_cores(tmp_path: Path) -> None:
    def seconds(quick: bool) -> float:
        found: dict[Path, float] = {}
        for one in plan.plan(Wish("all", quick=quick), tmp_path, tmp_path):
            found |= one.left()
        return sum(found.values())

    assert 60 < seconds(quick=True) / 2 < 600
    assert seconds(quick=False) > 20 * seconds(quick=True)


# ---------------------------------------------------------------- what cannot be had


@pytest.mark.usefixtures("no_gaslib")
def test_a_network_that_cannot_be_had_is_left_out_unless_it_is_asked_for_by_name(tmp_path: Path) -> None:
    studies, missing = Options(samplings=["shared"]).studies(tmp_path, ["gas"])
    assert [study.problem.name for study in studies] == ["24-pipe"]
    assert missing == {
        "gaslib-40": "gas/gaslib-40-E.m is nowhere",
        "gaslib-135": "gas/gaslib-135-F.m is nowhere",
    }
    with pytest.raises(DataError, match=r"gas/gaslib-40-E\.m is nowhere"):
        Options(cases=["24-pipe", "gaslib-40"]).studies(tmp_path, ["gas"])


def test_where_no_network_can_be_had_there_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(kind: str, case: str) -> None:
        raise OSError(f"no {case}")

    monkeypatch.setattr(networks, "open_problem", nothing)
    with pytest.raises(ValueError, match=r"^no 24-pipe; no gaslib-40; no gaslib-135$"):
        Options().studies(tmp_path, ["gas"])


def test_a_reading_that_cannot_be_had_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(reading: str) -> None:
        if reading.startswith("bank"):
            raise DataError(f"{reading} is nowhere")

    monkeypatch.setattr(fairness, "load", some)
    options, missing = fairness.available(fairness.Options(readings=("adult-sex", "bank-full-age")))
    assert (options.readings, missing) == (("adult-sex",), {"bank-full-age": "bank-full-age is nowhere"})
    with pytest.raises(ValueError, match=r"^bank-full-age is nowhere$"):
        fairness.available(fairness.Options(readings=("bank-full-age",)))


# ---------------------------------------------------------------- run


def test_a_table_that_cannot_be_made_does_not_keep_the_others_from_it(tmp_path: Path, capsys) -> None:
    left_out = part(*rows(table="two"), name="two", missing={"gaslib-40": "not <here>"})
    failing = [job("one", made=DataError("no data")), job("three", made=OSError("no room"))]
    parts, missing, page = plan.run([failing[0], job("two", made=left_out), failing[1], job("four")], tmp_path, "ldf x")
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
    with pytest.raises(RuntimeError, match="a mistake"):
        plan.run([job("one", made=RuntimeError("a mistake")), job("two")], tmp_path, "ldf x")


def test_one_table_alone_has_its_own_title_and_its_own_error(tmp_path: Path, capsys) -> None:
    parts, missing, page = plan.run([job("two")], tmp_path / "a", "ldf x")
    assert (len(parts), missing, capsys.readouterr().err) == (1, {}, "")
    assert "<h1>Title</h1>" in page.read_text()
    assert "is missing" not in page.read_text()
    with pytest.raises(DataError, match="no data"):
        plan.run([job("one", made=DataError("no data"))], tmp_path / "c", "ldf x")
    assert not (tmp_path / "c").exists()


def test_the_command_ends_with_one_where_a_table_is_missing(tmp_path: Path, call, monkeypatch) -> None:
    jobs = [job("power-errors"), job("gas-errors"), job("violations")]
    wished: list[Wish] = []
    monkeypatch.setattr(plan, "plan", lambda wish, out, work: wished.append(wish) or jobs)
    whole = call("reproduce", "all", "--out", "out", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.splitlines()[-1] == str(Path("out/index.html"))
    assert "✗ gas-errors, shared demands (as in the paper): MCD at or below the paper's M_C^D: 1 of 2" in whole.stdout
    assert "missing" not in whole.stderr
    jobs[1] = job("gas-errors", made=DataError("no data"))
    some = call("reproduce", "all", "--out", "out", cwd=tmp_path)
    assert some.returncode == 1
    assert "missing: gas-errors: no data\n" in some.stderr
    assert "violations · case30_ieee" in some.stdout
    assert some.stdout.splitlines()[-1] == str(Path("out/index.html"))
    assert "gas-errors is missing: no data" in (tmp_path / "out" / "index.html").read_text()
    assert "**gas-errors is missing**: no data" in (tmp_path / "out" / "table.md").read_text()
    made = row("MCD", "pg", 0.1, table="violations", samples=120, epochs=6, repairs=5)
    command = part(made, name="violations").command(made)
    call(*shlex.split(command)[1:], cwd=tmp_path)
    figures = {"samples": 120, "epochs": 6, "seeds": 5, "repairs": 5}
    own = Wish("violations", ["case30_ieee"], samplings=["shared"], recipes=["tuned"], **figures)
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

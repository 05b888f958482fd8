"""Targets, the tables at a glance, and the command and settings of a table."""

import math

import pytest

from ldf.reproduce import targets
from ldf.reproduce.glance import Entry, glance, lowest
from ldf.reproduce.tables import Part
from ldf.reproduce.targets import Check
from tests.reproduce.test_report import rows

NAN = math.nan


def row(model: str, quantity: str, mean: float | None, paper: float | None = None, **more) -> dict:
    """A row of results; others than those of power-errors say so."""
    usual = {"table": "power-errors", "case": "case30_ieee", "sampling": "shared", "recipe": "tuned"}
    figures = {"model": model, "quantity": quantity, "mean": mean, "std": 0.0, "seeds": 5, "unit": "%", "paper": paper}
    return usual | figures | more


def part(*given: dict, name: str = "power-errors", **more) -> Part:
    return Part(name, "Title", list(given), **more)


def checks(*given: dict) -> list[Check]:
    return targets.checks([part(*given)])


def outcome(*given: dict) -> dict[str, bool]:
    """Which targets are met, by quantity and model."""
    found = checks(*given)
    names = [f"{check.key[5]}: {check.model}" for check in found]
    assert len(set(names)) == len(names)
    return {name: check.met for name, check in zip(names, found, strict=True)}


def transprecision(recipe: str, **means: tuple[float, ...]) -> list[dict]:
    """Rows of one size of training sets: VC, SMVC, MAE and MAE y by model."""
    sampling = "half-violated" if recipe == "paper" else "random"
    return [
        row(
            model.replace("_", " "), quantity, mean, unit=None,
            table="transprecision", case="200", sampling=sampling, recipe=recipe,
        )
        for model, values in means.items()
        for quantity, mean in zip(("VC", "SMVC", "MAE", "MAE y"), values, strict=False)
    ]  # fmt: skip


def fairness(model: str, quantity: str, mean: float | None, paper: float | None = None, **more) -> dict:
    usual = {"table": "fairness", "case": "adult-sex", "sampling": None, "recipe": "tuned", "unit": None}
    return row(model, quantity, mean, paper, **usual | more)


# ---------------------------------------------------------------- networks


@pytest.mark.parametrize("table", ["power-errors", "gas-errors", "violations"])
def test_our_mcd_is_to_be_at_or_below_the_papers(table: str) -> None:
    given = [
        row("MCD", "p", 0.1, paper=0.1, table=table),
        row("MCD", "v", 0.11, paper=0.1, table=table),
        row("MCD", "theta", NAN, paper=0.1, table=table),
        row("MCD", "pf", None, paper=0.1, table=table),
        row("MCD", "q", 0.0, table=table),
        row("M", "p", 5.0, paper=0.1, table=table),
        row("mean", "p", 9.0, table=table),
    ]
    found = checks(*given)
    assert outcome(*given) == {"p: MCD": True, "v: MCD": False, "theta: MCD": False, "pf: MCD": False}
    words = targets.WORDS[table]
    assert {check.goal for check in found} == {
        f"{words}, shared demands (as in the paper): MCD at or below the paper's M_C^D"
    }
    assert (found[1].ours, found[1].sign, found[1].bound) == (0.11, "≤", 0.1)
    assert found[1].key == (table, "case30_ieee", "shared", "tuned", None, "v")
    assert [str(check) for check in found[:2]] == ["MCD ≤ 0.100 ✓", "MCD ≤ 0.100 ✗"]


def test_independent_demands_have_a_goal_of_their_own() -> None:
    (check,) = checks(row("MCD", "p", 0.1, paper=0.2, sampling="independent"))
    assert check.goal == (
        "Errors on power networks, independent demands (harder than the paper's): MCD at or below the paper's M_C^D"
    )


def test_the_papers_recipe_other_tables_and_other_models_have_no_target() -> None:
    assert checks(row("MCD", "p", 0.1, paper=0.2, recipe="paper")) == []
    assert checks(row("MCD", "p", 0.1, paper=0.2, table="power-laws")) == []
    assert checks(row("M", "p", 0.1, paper=0.2), row("MC", "p", 0.1, paper=0.2)) == []
    assert targets.checks([]) == []


# ---------------------------------------------------------------- transprecision


def test_after_repair_the_tuned_model_is_to_be_below_lightgbm_without_a_violated_pair() -> None:
    ours, theirs = "MAE y: MCD repaired", "VC: MCD repaired"

    def of(repaired: tuple[float, ...], boosted: float) -> dict[str, bool]:
        return outcome(*transprecision("tuned", MCD_repaired=repaired, LightGBM=(0.0, 0.0, 0.5, boosted), MCD=(3.0,)))

    assert of((0.0, 0.0, 0.9, 0.01), 0.02) == {ours: True, theirs: True}
    assert of((0.0, 0.0, 0.1, 0.02), 0.02) == {ours: False, theirs: True}, "below, not at"
    assert of((0.5, 0.0, 0.1, 0.01), 0.02) == {ours: True, theirs: False}
    assert of((NAN, 0.0, 0.1, NAN), 0.02) == {ours: False, theirs: False}
    assert of((0.0, 0.0, 0.1, 0.01), NAN) == {ours: False, theirs: True}
    assert outcome(*transprecision("tuned", MCD=(0.0, 0.0, 0.0, 0.0))) == {ours: False, theirs: False}
    found = checks(*transprecision("tuned", MCD_repaired=(1.0,)))
    assert [(check.key[5], check.sign) for check in found] == [("MAE y", "<"), ("VC", "≤")]
    assert found[1].bound == 0.0


def test_the_papers_network_is_to_violate_fewer_pairs_than_m_and_mc_at_no_cost() -> None:
    others = {"M": (9.0, 0.2, 0.19), "MC": (30.0, 0.1, 0.25)}

    def of(**models: tuple[float, ...]) -> dict[str, bool]:
        return outcome(*transprecision("paper", **others, **models))

    names = ("VC: MCD directed", "SMVC: MCD directed", "MAE: MCD directed")
    assert of(MCD_directed=(8.9, 0.09, 0.19)) == dict.fromkeys(names, True)
    assert of(MCD_directed=(9.0, 0.1, 0.1901)) == dict.fromkeys(names, False)
    assert of(MCD_directed=(8.9, 0.15, 0.19))[names[1]] is False, "below both"
    assert of(MCD_directed=(NAN, NAN, NAN)) == dict.fromkeys(names, False)
    assert of() == {}
    assert outcome(*transprecision("paper", MC=(5.0, 5.0, 5.0), MCD=(1.0, 1.0, 1.0))) == {
        "VC: MCD": False, "SMVC: MCD": False, "MAE: MCD": False,
    }, "without M there is no bound"  # fmt: skip
    both = checks(*transprecision("paper", **others, MCD=(1.0, 1.0, 1.0), MCD_directed=(1.0, 0.0, 0.0)))
    assert [(check.goal.split(" with ")[1].partition(":")[0], check.met) for check in both] == [
        ("directed pairs", True), ("directed pairs", True), ("directed pairs", True),
        ("the printed dual step", True), ("the printed dual step", False), ("the printed dual step", False),
    ]  # fmt: skip
    assert both[0].key == ("transprecision", "200", "half-violated", "paper", None, "VC")


def test_other_kernels_have_no_targets() -> None:
    given = transprecision("tuned", MCD_repaired=(0.0, 0.0, 0.1, 0.01), LightGBM=(0.0, 0.0, 0.1, 0.02))
    assert len(checks(*given)) == 2
    assert checks(*(one | {"table": "transprecision-fwt"} for one in given)) == []


# ---------------------------------------------------------------- fairness


def test_the_papers_fair_network_is_to_be_at_or_below_the_papers_gap() -> None:
    def of(mean: float, paper: float | None = 0.0545) -> list[Check]:
        return checks(fairness("MCD", "DT", mean, paper, recipe="paper"), fairness("M", "DT", 0.0, 0.2, recipe="paper"))

    (check,) = of(0.0545)
    assert (check.model, check.ours, check.sign, check.bound) == ("MCD", 0.0545, "≤", 0.0545)
    assert check.goal == "Fair classifiers, the paper's recipe: gap of MCD at or below the paper's M_C^D"
    assert check.key == ("fairness", "adult-sex", None, "paper", None, "DT")
    assert [of(mean)[0].met for mean in (0.0, 0.0545, 0.0546, NAN)] == [True, True, False, False]
    assert of(0.01, None)[0].met is False


@pytest.mark.parametrize(("variant", "bound"), [("adult-sex", 0.01), ("bank-balanced-age", 0.0225)])
def test_the_tuned_gap_is_to_be_as_good_as_none_on_either_side(variant: str, bound: float) -> None:
    def of(**means: float) -> dict[str, bool]:
        return outcome(*(fairness(model.replace("_", " "), "signed DT", x, case=variant) for model, x in means.items()))

    inside, outside = bound - 1e-6, bound + 1e-6
    assert of(MCD=inside, boosting_MCD=-inside, M=0.2) == {"signed DT: MCD": True, "signed DT: boosting MCD": True}
    assert of(MCD=-outside, boosting_MCD=outside) == {"signed DT: MCD": False, "signed DT: boosting MCD": False}
    assert of(MCD=bound) == {"signed DT: MCD": False}, "below, not at"
    assert of(MCD=NAN) == {"signed DT: MCD": False}
    assert of(boosting_MCD=0.0) == {"signed DT: boosting MCD": True}
    assert of(M=0.0) == {}


@pytest.mark.parametrize("table", ["relaxed-fairness", "fairness-traces"])
def test_of_fairness_only_the_main_table_has_targets(table: str) -> None:
    assert checks(fairness("MCD", "signed DT", 0.0, table=table)) == []


# ---------------------------------------------------------------- counts


def test_checks_are_counted_goal_by_goal_in_their_order() -> None:
    parts = [
        part(row("MCD", "p", 0.1, paper=0.2), row("MCD", "v", 0.3, paper=0.2)),
        part(fairness("MCD", "signed DT", 0.0), fairness("boosting MCD", "signed DT", -0.001), name="fairness"),
        part(row("MCD", "p", 0.1, paper=0.2, case="case118_ieee"), row("M", "p", 0.1, paper=0.2, case="case118_ieee")),
    ]
    power = "Errors on power networks, shared demands (as in the paper): MCD at or below the paper's M_C^D"
    fair = "Fair classifiers, tuned recipe: |mean signed gap| below .01, or below one standard error if larger"
    found = targets.checks(parts)
    assert targets.counts(found) == [(power, 2, 3), (fair, 2, 2)]
    assert targets.counts([found[2], found[1]]) == [(fair, 1, 1), (power, 0, 1)]
    assert targets.summary(parts) == [f"✗ {power}: 2 of 3 met", f"✓ {fair}: 2 of 2 met"]
    assert targets.summary([]) == []


# ---------------------------------------------------------------- at a glance


def test_a_line_has_all_models_the_best_baseline_the_papers_value_and_its_own_target() -> None:
    lines = glance([part(*rows(), *rows(recipe="paper", mean=0.7))])
    assert [(line.key[3], line.quantity) for line in lines] == [
        ("tuned", "p (%)"), ("tuned", "v (%)"), ("paper", "p (%)"), ("paper", "v (%)"),
    ]  # fmt: skip
    first, second, third, _ = lines
    assert first.key == ("power-errors", "case30_ieee", "shared", "tuned", None, "p")
    assert {column: entry.text for column, entry in first.entries.items()} == {
        "M": "0.456 ± 0.11", "MC": "0.0789 ± 0.020", "MCD": "0.0234 ± 0.0059", "best baseline": "0.912 previous",
    }  # fmt: skip
    assert (first.paper, first.entries["MCD"].value) == (0.0234, 0.0234)
    assert (first.target, second.target, third.target) == ("MCD ≤ 0.0234 ✓", "MCD ≤ 0.0234 ✗", "")
    assert third.entries["M"].value == 0.7
    assert glance([part(*rows(paper=None))]) == [], "neither a value of the paper nor a target"
    assert glance([part(*(one for one in rows() if one["model"] != "MCD"))]) == []


def test_a_mark_stands_on_the_line_that_it_judges_and_names_its_model() -> None:
    of = {"M": (9.0, 0.2, 0.19, 0.3), "MC": (30.0, 0.1, 0.25, 0.3)}
    given = transprecision("paper", **of, MCD=(99.0, 0.05, 0.19, 0.1), MCD_directed=(1.0, 0.3, 0.1, 0.1))
    given += transprecision("tuned", MCD=(3.0, 0.1, 0.1, 0.02), MCD_repaired=(0.0,) * 4, LightGBM=(0.0, 0.0, 0.5, 0.01))
    marks = {(line.key[3], line.key[5]): line.target for line in glance([part(*given, name="transprecision")])}
    assert marks == {
        ("paper", "VC"): "MCD directed < 9.00 ✓; MCD < 9.00 ✗",
        ("paper", "SMVC"): "MCD directed < 0.100 ✗; MCD < 0.100 ✓",
        ("paper", "MAE"): "MCD directed ≤ 0.190 ✓; MCD ≤ 0.190 ✓",
        ("tuned", "MAE y"): "MCD repaired < 0.0100 ✓",
        ("tuned", "VC"): "MCD repaired ≤ 0 ✓",
    }


def test_a_baseline_that_is_not_a_number_is_not_the_best() -> None:
    (line,) = glance([part(row("mean", "p", NAN), row("linear", "p", 2.0), row("MCD", "p", NAN, paper=1.0))])
    assert line.entries["best baseline"] == Entry(2.0, "2.00 linear")
    assert "MCD" not in line.entries
    (line,) = glance([part(row("previous", "p", None), row("MCD", "p", 0.5, paper=1.0))])
    assert set(line.entries) == {"MCD"}


def test_a_constant_is_never_the_best_baseline_of_a_gap_or_of_violations() -> None:
    given = [
        fairness(model, quantity, mean)
        for model, means in (("mean", (0.75, 0.0)), ("linear", (0.85, 0.2)), ("MCD", (0.84, 0.01)))
        for quantity, mean in zip(("accuracy", "DT"), means, strict=True)
    ]
    lines = glance([part(*(one | {"paper": 0.5} for one in given))])
    assert [(line.quantity, line.entries["best baseline"].text) for line in lines] == [
        ("accuracy", "0.850 linear"),
        ("DT", "0.200 linear"),
    ]
    pairs = transprecision("tuned", mean=(0.0, 0.0, 0.9, 0.9), linear=(4.0, 0.1, 0.5, 0.5), MCD=(2.0, 0.1, 0.1, 0.1))
    lines = glance([part(*(one | {"paper": 1.0} for one in pairs))])
    assert {line.entries["best baseline"].text.split()[-1] for line in lines} == {"linear"}


def test_each_slack_and_each_recipe_have_a_line() -> None:
    relaxed = {"table": "relaxed-fairness", "recipe": "paper"}
    given = [fairness("MCD", "DT", share / 10, 0.1, slack=share, **relaxed) for share in (0.05, 0.2)]
    lines = glance([part(*given)])
    assert [(line.case, line.entries["MCD"].value, line.key[4]) for line in lines] == [
        ("adult-sex, slack 0.05", 0.005, 0.05),
        ("adult-sex, slack 0.2", 0.02, 0.2),
    ]
    both = transprecision("paper", MCD=(6.0,)) + transprecision("tuned", MCD=(2.0,))
    lines = glance([part(*(one | {"paper": 7.4} for one in both))])
    assert [(line.key[3], line.entries["MCD"].value) for line in lines] == [("paper", 6.0), ("tuned", 2.0)]


def test_the_lowest_of_the_three_is_counted_on_networks_only() -> None:
    assert lowest([part(*rows(), fairness("M", "DT", 0.0, 0.1), fairness("MCD", "DT", 0.1, 0.1))]) == {"MCD": 2}
    tied = [row(model, "p", 0.5, paper=0.1) for model in ("MCD", "MC", "M")]
    assert lowest([part(*tied)]) == {"M": 1}


# ---------------------------------------------------------------- Part


def test_a_table_says_what_makes_it_again_and_with_what_it_was_made() -> None:
    networks = row("MCD", "p", 0.1, samples=120, epochs=6)
    others = row("mean", "p", 0.1, samples=120, epochs=6, seeds=1)
    own = part(others, networks, row("MCD", "p", 0.1, case="case118_ieee", seeds=9))
    command = "ldf reproduce power-errors --case case30_ieee --sampling shared --recipe tuned"
    assert own.command(others) == f"{command} --samples 120 --epochs 6 --seeds 5 --out DIR"
    assert own.settings(others) == "120 labels, 6 epochs, 5 seeds"
    bare = row("MCD", "p", 0.1)
    assert part(bare).command(bare) == f"{command} --seeds 5 --out DIR"
    assert part(bare).settings(bare) == "5 seeds"
    assert part(bare, quick=True).settings(bare) == "Quick run, not for comparison, 5 seeds"
    laws = row("MCD", "ohm", 0.1, table="power-laws")
    assert part(laws).command(laws) == f"{command} --seeds 5 --out DIR", "made by the table it belongs to"


def test_repairs_kernels_and_folds_are_said() -> None:
    moved = row("MCD", "pg", 0.1, table="violations", samples=4000, epochs=80, repairs=100)
    own = part(moved, name="violations", quick=True)
    assert own.command(moved).endswith(" --samples 4000 --epochs 80 --repairs 100 --seeds 5 --out DIR")
    assert own.settings(moved) == (
        "Quick run, not for comparison, 4000 labels, 80 epochs, 100 test rows repaired, 5 seeds"
    )
    for recipe in ("paper", "tuned"):
        (usual,) = transprecision(recipe, MCD=(1.0,))
        shown = part(usual, name="transprecision", repeats="training sets")
        assert shown.command(usual) == f"ldf reproduce transprecision --case 200 --recipe {recipe} --seeds 5 --out DIR"
        assert shown.settings(usual) == "5 training sets"
    other = usual | {"table": "transprecision-fwt", "epochs": 20, "seeds": 2}
    shown = part(other, name="transprecision", repeats="training sets")
    assert shown.command(other) == (
        "ldf reproduce transprecision --kernel fwt --case 200 --recipe tuned --epochs 20 --seeds 2 --out DIR"
    )
    assert shown.settings(other) == "20 epochs, 2 training sets"
    fair = fairness("MCD", "DT", 0.1)
    shown = part(fair, name="fairness", repeats="folds")
    assert shown.command(fair) == "ldf reproduce fairness --case adult-sex --recipe tuned --seeds 5 --out DIR"
    assert shown.settings(fair) == "5 folds"

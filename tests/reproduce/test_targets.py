"""Figures to reach, the paper's figures at a glance, and what a table says of its own making."""

import math

import pytest

from ldf.reproduce import targets
from ldf.reproduce.tables import Part, glance
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
    """Which figures are reached, by what they are."""
    found = checks(*given)
    assert len({check.what for check in found}) == len(found)
    return {check.what: check.reached for check in found}


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
    assert {check.goal for check in found} == {
        f"{table}, shared demands (as in the paper): MCD at or below the paper's M_C^D"
    }
    assert (found[1].ours, found[1].sign, found[1].bound) == (0.11, "≤", 0.1)
    assert found[1].key == (table, "case30_ieee", "shared", None, "v")
    assert (found[1].table, found[1].case, found[1].sampling) == (table, "case30_ieee", "shared")


def test_demands_of_their_own_are_a_goal_of_their_own() -> None:
    (check,) = checks(row("MCD", "p", 0.1, paper=0.2, sampling="independent"))
    assert check.goal == (
        "power-errors, independent demands (harder than the paper's): MCD at or below the paper's M_C^D"
    )
    assert check.sampling == "independent"


def test_nothing_is_to_be_reached_by_the_papers_recipe_other_tables_or_without_mcd() -> None:
    assert checks(row("MCD", "p", 0.1, paper=0.2, recipe="paper")) == []
    assert checks(row("MCD", "p", 0.1, paper=0.2, table="power-laws")) == []
    assert checks(row("M", "p", 0.1, paper=0.2), row("MC", "p", 0.1, paper=0.2)) == []
    assert targets.checks([]) == []


# ---------------------------------------------------------------- transprecision


def test_after_repair_the_tuned_model_is_to_be_below_lightgbm_without_a_violated_pair() -> None:
    ours, theirs = "MAE y: MCD repaired, LightGBM", "VC: MCD repaired"

    def of(repaired: tuple[float, ...], boosted: float) -> dict[str, bool]:
        return outcome(*transprecision("tuned", MCD_repaired=repaired, LightGBM=(0.0, 0.0, 0.5, boosted), MCD=(3.0,)))

    assert of((0.0, 0.0, 0.9, 0.01), 0.02) == {ours: True, theirs: True}
    assert of((0.0, 0.0, 0.1, 0.02), 0.02) == {ours: False, theirs: True}, "below, not at"
    assert of((0.5, 0.0, 0.1, 0.01), 0.02) == {ours: True, theirs: False}
    assert of((NAN, 0.0, 0.1, NAN), 0.02) == {ours: False, theirs: False}
    assert of((0.0, 0.0, 0.1, 0.01), NAN) == {ours: False, theirs: True}
    assert outcome(*transprecision("tuned", MCD=(0.0, 0.0, 0.0, 0.0))) == {ours: False, theirs: False}
    bounds = {check.what: (check.sign, check.bound) for check in checks(*transprecision("tuned", MCD_repaired=(1.0,)))}
    assert bounds[theirs] == ("≤", 0.0)
    assert bounds[ours][0] == "<"


def test_the_papers_network_is_to_violate_fewer_pairs_than_m_and_mc_at_no_cost() -> None:
    others = {"M": (9.0, 0.2, 0.19), "MC": (30.0, 0.1, 0.25)}

    def of(**models: tuple[float, ...]) -> dict[str, bool]:
        return outcome(*transprecision("paper", **others, **models))

    names = ("VC: MCD directed, M and MC", "SMVC: MCD directed, M and MC", "MAE: MCD directed, M")
    assert of(MCD_directed=(8.9, 0.09, 0.19)) == dict.fromkeys(names, True)
    assert of(MCD_directed=(9.0, 0.1, 0.1901)) == dict.fromkeys(names, False)
    assert of(MCD_directed=(8.9, 0.15, 0.19))[names[1]] is False, "below both"
    assert of(MCD_directed=(NAN, NAN, NAN)) == dict.fromkeys(names, False)
    assert of() == {}
    assert outcome(*transprecision("paper", MC=(5.0, 5.0, 5.0), MCD=(1.0, 1.0, 1.0))) == {
        "VC: MCD, M and MC": False, "SMVC: MCD, M and MC": False, "MAE: MCD, M": False,
    }, "there is no M to be below"  # fmt: skip
    both = checks(*transprecision("paper", **others, MCD=(1.0, 1.0, 1.0), MCD_directed=(1.0, 0.0, 0.0)))
    assert [(check.goal.split(", ")[2].partition(":")[0], check.reached) for check in both] == [
        ("with directed pairs", True), ("with directed pairs", True), ("with directed pairs", True),
        ("with the printed dual step", True), ("with the printed dual step", False),
        ("with the printed dual step", False),
    ]  # fmt: skip
    assert both[0].key == ("transprecision", "200", None, None, "VC"), "both kinds of training sets are of one figure"
    assert both[0].sampling is None


def test_other_kernels_have_nothing_to_reach() -> None:
    given = transprecision("tuned", MCD_repaired=(0.0, 0.0, 0.1, 0.01), LightGBM=(0.0, 0.0, 0.1, 0.02))
    assert len(checks(*given)) == 2
    assert checks(*(one | {"table": "transprecision-fwt"} for one in given)) == []


# ---------------------------------------------------------------- fairness


def test_the_papers_fair_network_is_to_be_at_or_below_the_papers_gap() -> None:
    def of(mean: float, paper: float | None = 0.0545) -> list[Check]:
        return checks(fairness("MCD", "DT", mean, paper, recipe="paper"), fairness("M", "DT", 0.0, 0.2, recipe="paper"))

    (check,) = of(0.0545)
    assert (check.what, check.ours, check.sign, check.bound) == ("DT: MCD", 0.0545, "≤", 0.0545)
    assert check.goal == "fairness, the paper's recipe: DT of MCD at or below the paper's M_C^D"
    assert check.key == ("fairness", "adult-sex", None, None, "DT")
    assert [of(mean)[0].reached for mean in (0.0, 0.0545, 0.0546, NAN)] == [True, True, False, False]
    assert of(0.01, None)[0].reached is False


@pytest.mark.parametrize(("variant", "bound"), [("adult-sex", 0.01), ("bank-balanced-age", 0.0225)])
def test_the_tuned_gap_is_to_be_as_good_as_none_on_either_side(variant: str, bound: float) -> None:
    def of(**means: float) -> dict[str, bool]:
        return outcome(*(fairness(model.replace("_", " "), "signed DT", x, case=variant) for model, x in means.items()))

    inside, outside = bound - 1e-6, bound + 1e-6
    assert of(MCD=inside, boosting_MCD=-inside, M=0.2) == {"|signed DT|: MCD": True, "|signed DT|: boosting MCD": True}
    assert of(MCD=-outside, boosting_MCD=outside) == {"|signed DT|: MCD": False, "|signed DT|: boosting MCD": False}
    assert of(MCD=bound) == {"|signed DT|: MCD": False}, "below, not at"
    assert of(MCD=NAN) == {"|signed DT|: MCD": False}
    assert of(boosting_MCD=0.0) == {"|signed DT|: boosting MCD": True}
    assert of(M=0.0) == {}


@pytest.mark.parametrize("table", ["relaxed-fairness", "fairness-traces"])
def test_of_fairness_the_main_table_alone_has_figures_to_reach(table: str) -> None:
    assert checks(fairness("MCD", "signed DT", 0.0, table=table)) == []


# ---------------------------------------------------------------- counts


def test_checks_are_counted_goal_by_goal_in_their_order() -> None:
    parts = [
        part(row("MCD", "p", 0.1, paper=0.2), row("MCD", "v", 0.3, paper=0.2)),
        part(fairness("MCD", "signed DT", 0.0), fairness("boosting MCD", "signed DT", -0.001), name="fairness"),
        part(row("MCD", "p", 0.1, paper=0.2, case="case118_ieee"), row("M", "p", 0.1, paper=0.2, case="case118_ieee")),
    ]
    power = "power-errors, shared demands (as in the paper): MCD at or below the paper's M_C^D"
    fair = "fairness, tuned: |mean signed DT| below .01, or one standard error where that is more"
    found = targets.checks(parts)
    assert targets.counts(found) == [(power, 2, 3), (fair, 2, 2)]
    assert targets.counts([found[2], found[1]]) == [(fair, 1, 1), (power, 0, 1)]
    assert targets.summary(parts) == [f"✗ {power}: 2 of 3", f"✓ {fair}: 2 of 2"]
    assert targets.summary([]) == []


# ---------------------------------------------------------------- at a glance


def test_at_a_glance_both_recipes_and_the_best_baseline_stand_beside_the_papers_figure() -> None:
    lines = glance([part(*rows(), *rows(recipe="paper", mean=0.7))])
    assert [line.quantity for line in lines] == ["p (%)", "v (%)"]
    first = lines[0]
    assert (first.table, first.case, first.sampling) == ("power-errors", "case30_ieee", "shared")
    assert first.key == ("power-errors", "case30_ieee", "shared", None, "p")
    assert first.paper == 0.0234
    assert (first.values["paper"], first.values["tuned"]) == (0.7, 0.0234)
    assert (first.figures["paper"], first.figures["tuned"]) == ("0.700 ± 0.0059", "0.0234 ± 0.0059")
    (alone, _) = glance([part(*rows())])
    assert alone.values == {"tuned": 0.0234, "baseline": 0.912}
    assert alone.figures["baseline"] == "0.912 previous"
    assert glance([part(*rows(paper=None))]) == []
    assert glance([part(*(one for one in rows() if one["model"] != "MCD"))]) == []


def test_a_baseline_that_is_not_a_number_is_not_the_best() -> None:
    (line,) = glance([part(row("mean", "p", NAN), row("linear", "p", 2.0), row("MCD", "p", NAN, paper=1.0))])
    assert line.values["baseline"] == 2.0
    assert line.figures["baseline"] == "2.00 linear"
    (line,) = glance([part(row("previous", "p", None), row("MCD", "p", 0.5, paper=1.0))])
    assert line.values == {"tuned": 0.5}


def test_of_accuracy_the_largest_baseline_is_the_best() -> None:
    given = [fairness(model, "accuracy", mean) for model, mean in (("mean", 0.75), ("linear", 0.85))]
    (line,) = glance([part(*given, fairness("MCD", "accuracy", 0.84, 0.83))])
    assert line.figures["baseline"] == "0.850 linear"
    assert (line.quantity, line.sampling) == ("accuracy", "")
    gaps = [fairness(model, "DT", mean) for model, mean in (("mean", 0.0), ("linear", 0.2))]
    (line,) = glance([part(*gaps, fairness("MCD", "DT", 0.01, 0.05))])
    assert line.figures["baseline"] == "0 mean"


def test_each_slack_has_a_line_and_both_kinds_of_training_sets_have_one() -> None:
    relaxed = {"table": "relaxed-fairness", "recipe": "paper"}
    given = [fairness("MCD", "DT", share / 10, 0.1, slack=share, **relaxed) for share in (0.05, 0.2)]
    lines = glance([part(*given)])
    assert [(line.case, line.values, line.key[3]) for line in lines] == [
        ("adult-sex, slack 0.05", {"paper": 0.005}, 0.05),
        ("adult-sex, slack 0.2", {"paper": 0.02}, 0.2),
    ]
    both = transprecision("paper", MCD=(6.0,)) + transprecision("tuned", MCD=(2.0,))
    (line,) = glance([part(*(one | {"paper": 7.4} for one in both))])
    assert line.values == {"paper": 6.0, "tuned": 2.0}
    assert line.sampling == ""


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
    assert part(bare, quick=True).settings(bare) == "Quick run, a look and no result, 5 seeds"
    laws = row("MCD", "ohm", 0.1, table="power-laws")
    assert part(laws).command(laws) == f"{command} --seeds 5 --out DIR", "made by the table it belongs to"


def test_repairs_kernels_and_folds_are_said() -> None:
    moved = row("MCD", "pg", 0.1, table="violations", samples=4000, epochs=80, repairs=100)
    own = part(moved, name="violations", quick=True)
    assert own.command(moved).endswith(" --samples 4000 --epochs 80 --repairs 100 --seeds 5 --out DIR")
    assert own.settings(moved) == (
        "Quick run, a look and no result, 4000 labels, 80 epochs, 100 test rows repaired, 5 seeds"
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

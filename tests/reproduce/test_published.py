"""The paper's figures, as they are printed there, and the one way to find them."""

import pytest

from ldf.reproduce.published import FIGURES, MODELS, SLACKS, figure


def test_every_figure_is_found_under_its_own_name() -> None:
    for table, cases in FIGURES.items():
        for case, quantities in cases.items():
            for quantity, values in quantities.items():
                if table == "relaxed-fairness":
                    assert [figure(table, case, "MCD", quantity, slack) for slack in SLACKS] == list(values)
                else:
                    assert len(values) == (4 if table.startswith("fairness") else 3)
                    assert [figure(table, case, m, quantity) for m in MODELS[: len(values)]] == list(values)


@pytest.mark.parametrize(
    "asked",
    [
        ("power-laws", "case30_ieee", "MCD", "p"),
        ("power-errors", "case14_ieee", "MCD", "p"),
        ("power-errors", "case30_ieee", "MCD", "q"),
        ("power-errors", "case30_ieee", "linear", "p"),
        ("power-errors", "case30_ieee", "Zafar", "p"),
        ("transprecision-fwt", "200", "MCD", "MAE"),
        ("transprecision", "200", "MCD directed", "MAE"),
        ("fairness", "adult-sex", "MCD", "signed DT"),
        ("relaxed-fairness", "adult-sex", "M + plug-in", "DT", 0.05),
        ("relaxed-fairness", "adult-sex", "MCD", "signed DT", 0.05),
        ("relaxed-fairness", "adult-sex", "MCD", "DT", 0.1),
    ],
    ids=lambda asked: " ".join(str(one) for one in asked),
)
def test_what_the_paper_has_not_is_none(asked: tuple) -> None:
    assert figure(*asked) is None


def test_the_figures_on_transprecision_are_the_papers() -> None:
    sizes = FIGURES["transprecision"]
    assert list(sizes) == ["200", "400", "600", "800", "1000"]
    for quantity, wanted in {
        "MAE": [0.1902, 0.1919, 0.1883, 0.1765, 0.1999, 0.1763, 0.1687, 0.2022, 0.1723, 0.1672, 0.2007, 0.1704, 0.1640,
                0.2012, 0.1642],
        "VC": [9.6, 35.8, 7.4, 4.5, 19.4, 2.6, 2.5, 9.1, 1.7, 3.0, 8.5, 0.6, 0.4, 5.7, 0.5],
        "SMVC": [0.2229, 0.4748, 0.1872, 0.0804, 0.2149, 0.0369, 0.0397, 0.0683, 0.0224, 0.0600, 0.0746, 0.0131, 0.0048,
                 0.0511, 0.0043],
    }.items():  # fmt: skip
        assert [value for figures in sizes.values() for value in figures[quantity]] == wanted


def test_tables_of_fair_classifiers_have_all_variants_and_the_slacks_that_are_run() -> None:
    from ldf.fairness import datasets, study

    for table in ("fairness", "fairness-traces", "relaxed-fairness"):
        assert tuple(FIGURES[table]) == tuple(datasets.VARIANTS)
    assert study.SLACKS == SLACKS

"""The doctor's advice on the command line: in terms of its own options."""

import re

import pytest
import typer

import ldf
from ldf.cli import networks, options, transprecision
from ldf.core.evidence import Evidence

K = range(40)
COURSES = {  # ν and λ of every epoch
    "never active": [(0.0, 0.0)] * 40,
    "satisfied": [(0.0005, 0.1)] * 39 + [(0.0004, 0.1)],
    "not enforced": [(0.5, 0.0)] * 40,
    "oscillating": [(0.3 if k % 3 else 0.01, 1.0) for k in K],
    "still falling": [(0.5 * 0.95**k, 0.05 * k) for k in K],
    "idle": [(0.5, 1e-4 * k) for k in K],
    "dominating": [(0.3, 2.2)] * 40,
    "stalled": [(0.02, 1.0)] * 40,
}


def course(verdict: str) -> ldf.History:
    rows = []
    for nu, lam in COURSES[verdict]:
        rows.append({"loss": 1.0, "nu_mean/c": nu, "nu_max/c": 4 * nu, "lambda/c": lam, "penalty/c": nu * lam})
    return ldf.History(rows)


@pytest.mark.parametrize("verdict", COURSES)
@pytest.mark.parametrize(("model", "recipe"), [("MCD", "tuned"), ("MCD", "paper"), ("MC", "tuned"), ("M", "paper")])
def test_advice_names_options_of_the_command(verdict: str, model: str, recipe: str) -> None:
    rules = {"c": ldf.Fixed(0.0) if verdict == "not enforced" else ldf.Ascent(0.1)}
    diagnosis = ldf.doctor(course(verdict), {"c": 1e-3}, rules=rules, evidence={"c": Evidence(rows=9)})
    assert diagnosis["c"].verdict == verdict
    said = options.advice({"model": model, "recipe": recipe, "epochs": 80, "doctor": diagnosis.to_dict()})
    assert said.startswith(f"c: {verdict}. {diagnosis['c'].finding}")
    change = said.partition(diagnosis["c"].finding)[2]
    assert not re.search(r"=|Augmented|dual step|slack|learning rate", change), change
    assert bool(change) == (verdict not in ("never active", "satisfied"))
    for app in (networks.app, transprecision.app):
        known = {name for part in typer.main.get_command(app).commands["train"].params for name in part.opts}
        assert set(re.findall(r"--[a-z]+", change)) <= known
    if (model, recipe) == ("MCD", "tuned") and verdict != "not enforced":  # no option is advised that was used already
        assert not re.search(r"--model MCD|--recipe", change), change


def test_advice_as_it_is_read() -> None:
    def said(verdict: str, **facts: str) -> str:
        diagnosis = ldf.doctor(course(verdict), {"c": 1e-3}, evidence={"c": Evidence(rows=9)})
        known = {"model": "MCD", "recipe": "tuned", "epochs": 80, "doctor": diagnosis.to_dict()} | facts
        return options.advice(known).partition(diagnosis["c"].finding)[2].strip()

    assert said("not enforced", model="M") == "Use --model MCD."
    assert said("still falling") == "Raise --epochs (here 80), or rely on the repaired answers of `predict`."
    assert said("still falling", model="MC").startswith("Raise --epochs (here 80), use --model MCD, or ")
    assert said("dominating", recipe="paper") == "Use --recipe tuned, or rely on the repaired answers of `predict`."
    assert said("stalled", model="MC") == "Use --model MCD, or rely on the repaired answers of `predict`."
    assert said("oscillating") == "Rely on the repaired answers of `predict`."

"""The doctor's verdicts, on synthetic histories and on real runs."""

import math

import pytest
import torch
from helpers import dispatch, dispatch_constraints, network
from torch import nn

import ldf
from ldf import History, doctor


def made(nu, lam, loss=None, name: str = "c", columns: int = 1) -> History:
    rows = []
    for epoch, (violation, multiplier) in enumerate(zip(nu, lam, strict=True)):
        before = lam[epoch - 1] if epoch else 0.0
        rows.append(
            {
                "epoch": epoch + 1,
                "loss": loss[epoch] if loss else 1.0,
                f"nu_mean/{name}": violation,
                f"nu_max/{name}": 2 * violation,
                f"lambda/{name}": multiplier,
                f"penalty/{name}": before * violation,
            }
        )
    return History(rows)


K = range(40)
HISTORIES = {
    "never active": made([0.0] * 40, [0.0] * 40),
    "satisfied": made([math.exp(-k) for k in K], [0.1 * k for k in K]),
    "idle": made([0.5] * 40, [1e-4 * k for k in K]),
    "not enforced": made([0.5] * 40, [0.0] * 40),
    "still falling": made([0.5 * 0.95**k for k in K], [0.05 * k for k in K]),
    "oscillating": made([0.3 * (1 + math.sin(1.5 * k)) + 0.01 for k in K], [1 + 0.5 * math.cos(1.5 * k) for k in K]),
    "infeasible": made([0.5] * 40, [0.2 * k for k in K]),
    "runaway": made(
        [0.02] * 40, [0.001 * 1.2**k for k in K], [1 - 0.02 * min(k, 20) + 0.03 * max(0, k - 20) for k in K]
    ),
    "counterproductive": made(
        [0.5 * 0.9**k for k in range(15)] + [0.12] * 25, [0.0] * 15 + [0.3] * 25, [0.9 ** min(k, 20) for k in K]
    ),
    "dominating": made([0.3] * 40, [2.2] * 40),
    "stalled": made([0.02] * 40, [1.0] * 40),
}


@pytest.mark.parametrize("verdict", HISTORIES)
def test_verdicts(verdict: str) -> None:
    diagnosis = doctor(HISTORIES[verdict], {"c": 1e-3})
    assert diagnosis["c"].verdict == verdict, str(diagnosis)
    assert "c: " + verdict in str(diagnosis)


def test_a_short_history_is_too_short() -> None:
    assert doctor(made([0.5] * 3, [0.1] * 3), {"c": 1e-3})["c"].verdict == "too short"


def test_a_conflicting_constraint_is_named_only_if_violated() -> None:
    first, second = made([0.5] * 40, [0.2 * k for k in K], name="a"), made([0.4] * 40, [0.2 * k for k in K], name="b")
    both = History([{**x, **y} for x, y in zip(first.rows, second.rows, strict=True)])
    opposed = doctor(both, {"a": 1e-3, "b": 1e-3}, conflicts={("a", "b"): -0.98})
    assert "conflicts with 'b'" in opposed["a"].finding
    assert "conflicts with 'a'" in opposed["b"].finding
    assert "conflicts with" not in doctor(both, {"a": 1e-3, "b": 1e-3}, conflicts={("a", "b"): 0.3})["a"].finding
    assert "conflicts with" not in doctor(both, {"a": 1e-3, "b": 1.0}, conflicts={("a", "b"): -0.98})["a"].finding


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError, match="no constraint 'x' in this diagnosis; it has: c"):
        doctor(HISTORIES["idle"], {"c": 1e-3})["x"]


def test_a_real_run_with_a_contradiction() -> None:
    constraints = [
        *dispatch_constraints(),
        ldf.inequality("absurd", lambda y, batch: batch.inputs.sum(1, True) + 1 - y.sum(1, True)),
    ]
    torch.manual_seed(0)
    done = ldf.fit(
        network(),
        dispatch(),
        loss=nn.functional.mse_loss,
        constraints=constraints,
        dual=ldf.Ascent(1.0),
        epochs=60,
        lr=3e-3,
        progress=False,
    )
    diagnosis = done.doctor()
    assert done.conflicts["balance", "absurd"] < -0.5
    assert "infeasible" in {diagnosis["absurd"].verdict, diagnosis["balance"].verdict}, str(diagnosis)


def test_an_idle_step_and_no_rule_are_told_apart() -> None:
    runs = {}
    for name, dual in {"tiny": ldf.Ascent(1e-9), "none": None}.items():
        torch.manual_seed(0)
        runs[name] = ldf.fit(
            network(),
            dispatch(),
            loss=nn.functional.mse_loss,
            constraints=dispatch_constraints(),
            dual=dual,
            epochs=30,
            lr=1e-2,
            progress=False,
        ).doctor()["capacity"]
    assert runs["none"].verdict == "not enforced"
    assert runs["tiny"].verdict in {"idle", "still falling"}

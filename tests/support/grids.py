"""A network of three buses as an editable MATPOWER file, and conversion of any network to PYPOWER."""

import numpy as np
from helpers import changed

from ldf.power.case import Case, load, parse

TEXT = """function mpc = three
% three buses in a ring, two generators
mpc.version = '2';
mpc.baseMVA = 100.0;
mpc.bus = [
    10  3    0.0   0.0  0.0   0.0  1  1.0  0.0  230.0  1  1.1   0.9;
    20  2   50.0  10.0  0.0   0.0  1  1.0  0.0  230.0  1  1.1   0.9;  % a comment
    30  1   80.0  30.0  2.0  15.0  1  1.0  0.0  230.0  1  1.05  0.95;
];
mpc.gen = [
    10  0.0  0.0  100.0  -100.0  1.0  100.0  1  200.0   0.0;
    20  0.0  0.0   60.0   -60.0  1.0  100.0  1  120.0  10.0;
];
mpc.gencost = [
    2  0.0  0.0  3  0.02  10.0  5.0;
    2  0.0  0.0  3  0.05  12.0  0.0;
];
mpc.branch = [
    10  20  0.01  0.1   0.02  90.0  90.0  90.0  0.0   0.0  1  -30.0  30.0;
    20  30  0.02  0.15  0.04  80.0  80.0  80.0  0.97  3.0  1  -30.0  30.0;
    10  30  0.01  0.12  0.0   70.0  70.0  70.0  0.0   0.0  1  -30.0  30.0;
];
"""


def change(table: str, row: int, values: dict[int, object], text: str = TEXT) -> str:
    """The text with other values in some columns, counted from 0, of a table's row, counted from 1."""
    return changed(text, f"mpc.{table}", row, values)


def add(table: str, row: str, text: str = TEXT) -> str:
    """The text with one more row in a table."""
    return text.replace(f"mpc.{table} = [\n", f"mpc.{table} = [\n    {row};\n")


def three(text: str = TEXT) -> Case:
    return parse(text, "three", "three.m")


def moved_reference() -> Case:
    """case14 with the reference at a bus without a generator."""
    return parse(change("bus", 5, {1: 3}, change("bus", 1, {1: 2}, load("case14_ieee").text)), "moved")


def doubled() -> Case:
    """case14 with two more generators: one at the slack, and one with fixed output at bus 3."""
    text = add("gen", "1  20.0  0.0  40.0  -10.0  1.0  100.0  1  60.0  5.0", load("case14_ieee").text)
    text = add("gen", "3  10.0  0.0  30.0  -20.0  1.0  100.0  1  10.0  10.0", text)
    return parse(add("gencost", "2 0 0 3 0.01 9.0 0.0;\n 2 0 0 3 0.0 0.0 1.0", text), "doubled")


def as_pypower(case: Case, demand: np.ndarray, state: np.ndarray, slack: int | None = None, given: str = "voltages"):
    """The network with this demand and dispatch, in the format of PYPOWER's power flow.

    Args:
        slack: index of the bus that balances the power; the reference by default.
        given: what is fixed at generators besides active power: "voltages" or "reactive" power.
    """
    n, g, e, base = case.buses, case.generators, case.branches, case.base
    pg, qg, v, _ = np.split(state, [g, 2 * g, 2 * g + n])
    kind = np.ones(n)
    if given == "voltages":
        kind[case.at] = 2
    kind[case.reference if slack is None else slack] = 3
    number, one, zero = np.arange(1, n + 1), np.ones, np.zeros
    bus = [number, kind, base * demand[:n], base * demand[n:], base * case.gs, base * case.bs, one(n)]
    bus += [one(n), zero(n), one(n), one(n), case.v_max, case.v_min]
    gen = [case.at + 1, base * pg, base * qg, base * case.q_max, base * case.q_min, v[case.at], base * one(g), one(g)]
    gen += [base * case.p_max, base * case.p_min, *[zero(g)] * 11]
    branch = [case.source + 1, case.target + 1, case.r, case.x, case.charging, *[zero(e)] * 3]
    branch += [case.tap, np.degrees(case.shift), one(e), -360 * one(e), 360 * one(e)]
    tables = {"bus": bus, "gen": gen, "branch": branch}
    return {"version": "2", "baseMVA": base, **{name: np.column_stack(columns) for name, columns in tables.items()}}


def flow_by_pypower(case: Case, demand: np.ndarray, state: np.ndarray, slack: int, given: str) -> np.ndarray:
    """V [N] of PYPOWER's power flow, started from the voltages of a state."""
    from pypower.api import ppoption, runpf

    network = as_pypower(case, demand, state, slack, given)
    _, v, theta = np.split(state, [2 * case.generators, 2 * case.generators + case.buses])
    network["bus"][:, 7], network["bus"][:, 8] = v, np.degrees(theta)
    found, success = runpf(network, ppoption(VERBOSE=0, OUT_ALL=0, PF_TOL=1e-10))
    assert success
    return found["bus"][:, 7] * np.exp(1j * np.radians(found["bus"][:, 8]))

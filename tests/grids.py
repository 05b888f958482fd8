"""A network of three buses as a MATPOWER file, to be changed row by row."""

from helpers import changed

from ldf.power.case import Case, parse

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

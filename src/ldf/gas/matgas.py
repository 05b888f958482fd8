"""Read MATGAS files, the format of GasModels.jl."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ..proxies.source import Floats, Ints, NetworkError, as_number, read_text, scalar, table, without_comments
from .network import Assumptions, Network, resistance

COLUMNS = {"junction": 6, "pipe": 9, "compressor": 13, "receipt": 7, "delivery": 7, "transfer": 7}
"""Tables that are read, and the minimum number of columns of each."""

OPTIONAL = ("compressor", "transfer")
"""Tables that may be missing or empty; transfers must have no nominal flow."""

UNSUPPORTED = ("short_pipe", "resistor", "loss_resistor", "regulator", "valve", "storage", "ne_pipe", "ne_compressor")
"""Tables of components that are not in the model."""

GAS_CONSTANT, AIR = 8.314, 0.02896
"""Gas constant in J/(mol K); molar mass of air in kg/mol."""


def read(path: Path) -> Network:
    """Read a network from a MATGAS file, using the file's values unchanged."""
    return parse(read_text(path), path.stem, str(path))


def parse(text: str, name: str, where: str = "the file", assumed: Assumptions | None = None) -> Network:
    """Parse a network from the text of a MATGAS file in SI units.

    The slack is the junction of type 1, or else that of the first dispatchable receipt. The other receipts keep their
    share of the total nominal injection. Pressure limits are those of junctions; limits of pipes and compressors,
    including compressor power, are not read.
    """
    plain = without_comments(text)
    assumed = assumed or Assumptions()
    _check_supported(plain, where)
    junction, pipe, compressor, receipt, delivery, transfer = (_rows(plain, of, where) for of in COLUMNS)
    if ((transfer[:, 4] != 0) & (transfer[:, 6] != 0)).any():
        raise NetworkError(f"{where}: mgc.transfer has nominal flows, which are not supported")
    on = junction[:, 5] != 0
    junction = junction[on]
    numbers = [int(number) for number in junction[:, 0]]

    def at(of: str, values: Floats) -> Ints:
        for value in values:
            if value not in numbers:
                raise NetworkError(
                    f"{where}: mgc.{of} names junction {value:g}, which is not in mgc.junction or not in service"
                )
        return np.array([numbers.index(int(value)) for value in values], np.int64)

    pipe, compressor = pipe[pipe[:, 8] != 0], compressor[compressor[:, 12] != 0]
    receipt, delivery = receipt[receipt[:, 6] != 0], delivery[delivery[:, 6] != 0]
    if not len(receipt):
        raise NetworkError(f"{where}: no receipt is in service, so there is no supply")
    entries = at("receipt", receipt[:, 1])
    slack = _slack(where, junction, receipt, entries)
    demand, share = np.zeros(len(numbers)), np.zeros(len(numbers))
    np.add.at(demand, at("delivery", delivery[:, 1]), assumed.density * delivery[:, 4])
    np.add.at(share, entries, receipt[:, 4])
    if share.sum() > 0:
        share /= share.sum()
    else:
        share[slack] = 1.0

    pressure = assumed.slack_pressure if assumed.slack_pressure is not None else float(junction[slack, 3])
    _check_pipes(pipe, where)
    speed = _sound_speed(plain, where)
    given = scalar(plain, "mgc.specific_heat_capacity_ratio")
    names = [str(number) for number in numbers]
    p_min = assumed.raised(junction[:, 1], junction[:, 2], names, where)
    return Network(
        name=name,
        junction=names,
        p_min=p_min,
        p_max=junction[:, 2],
        slack=slack,
        slack_pressure=pressure,
        demand=demand,
        share=share,
        arc=_names(pipe, compressor),
        source=np.concatenate([at("pipe", pipe[:, 1]), at("compressor", compressor[:, 1])]),
        target=np.concatenate([at("pipe", pipe[:, 2]), at("compressor", compressor[:, 2])]),
        resistance=np.concatenate([resistance(pipe[:, 4], pipe[:, 3], pipe[:, 5], speed), np.zeros(len(compressor))]),
        flow_min=np.concatenate([np.full(len(pipe), -np.inf), assumed.density * compressor[:, 6]]),
        flow_max=np.concatenate([np.full(len(pipe), np.inf), assumed.density * compressor[:, 7]]),
        compressor=len(pipe) + np.arange(len(compressor)),
        ratio_min=compressor[:, 3],
        ratio_max=compressor[:, 4],
        gamma=as_number(given, f"{where}: mgc.specific_heat_capacity_ratio") if given else assumed.gamma,
        efficiency=assumed.efficiency,
        places=_places(junction),
        assumptions=[
            *assumed.words(names[slack], pressure, int((p_min > junction[:, 1]).sum()), len(p_min)),
            f"friction as in the file, sound speed {speed:g} m/s",
        ],
    )


def _check_supported(plain: str, where: str) -> None:
    """Refuse units other than SI, and tables of components that are not in the model."""
    for unsupported in UNSUPPORTED:
        if _filled(plain, unsupported):
            raise NetworkError(f"{where}: mgc.{unsupported} is not supported; only pipes and compressors are")
    units = (scalar(plain, "mgc.units") or "'si'").strip("'\"")
    per_unit = scalar(plain, "mgc.is_per_unit") or "0"
    if units != "si" or as_number(per_unit, f"{where}: mgc.is_per_unit"):
        raise NetworkError(
            f"{where}: only SI units are supported; mgc.units is {units!r}, mgc.is_per_unit is {per_unit}"
        )


def _rows(plain: str, of: str, where: str) -> Floats:
    """Rows of a table, [rows, columns]; the ids in the first column are integers."""
    if of in OPTIONAL and not _filled(plain, of):
        return np.zeros((0, COLUMNS[of]))
    found = table(plain, f"mgc.{of}", COLUMNS[of], where, ragged=True)
    if found is None:
        raise NetworkError(f"{where}: no table mgc.{of}; a MATGAS network needs it")
    bad = np.argwhere(np.isnan(found[:, : COLUMNS[of]]))
    if len(bad):
        raise NetworkError(f"{where}: mgc.{of} row {bad[0, 0] + 1}, column {bad[0, 1] + 1} is not a number")
    for i, number in enumerate(found[:, 0], 1):
        if not number.is_integer():
            raise NetworkError(f"{where}: mgc.{of} row {i} has the id {number:g}; it must be an integer")
    return found


def _check_pipes(pipe: Floats, where: str) -> None:
    """Refuse pipes whose resistance would be meaningless."""
    for column, what in ((3, "diameter"), (4, "length"), (5, "friction factor")):
        for row in pipe:
            if not 0 < row[column] < np.inf:
                raise NetworkError(f"{where}: the {what} of pipe {row[0]:g} is {row[column]:g}; it must be > 0")


def _slack(where: str, junction: Floats, receipt: Floats, entries: Ints) -> int:
    """Position of the junction of type 1, or else of the first dispatchable receipt."""
    held = np.flatnonzero(junction[:, 4] == 1)
    if len(held) > 1:
        raise NetworkError(f"{where}: {len(held)} junctions are of type 1 (slack); only one is allowed")
    if len(held):
        return int(held[0])
    free = np.flatnonzero(receipt[:, 5] == 1)
    if not len(free):
        raise NetworkError(f"{where}: no junction is of type 1 and no receipt is dispatchable: there is no slack")
    return int(entries[free[0]])


def _sound_speed(plain: str, where: str) -> float:
    """a = √(Z R T / M) in m/s, unless the file gives it directly."""

    def given(name: str) -> float | None:
        text = scalar(plain, f"mgc.{name}")
        if text is None:
            return None
        value = as_number(text, f"{where}: mgc.{name}")
        if not 0 < value < np.inf:
            raise NetworkError(f"{where}: mgc.{name} must be a number > 0, got {value:g}")
        return value

    speed = given("sound_speed")
    if speed is not None:
        return speed
    facts = []
    for name in ("compressibility_factor", "temperature", "gas_specific_gravity"):
        value = given(name)
        if value is None:
            raise NetworkError(f"{where}: there is no mgc.sound_speed, and no mgc.{name} to compute it from")
        facts.append(value)
    z, temperature, gravity = facts
    return float(np.sqrt(z * GAS_CONSTANT * temperature / (gravity * AIR)))


def _filled(plain: str, table: str) -> bool:
    """Whether the table exists and is not empty."""
    return re.search(rf"mgc\.{table}\s*=\s*\[[\s;]*[^\s;\]]", plain) is not None


def _names(pipe: Floats, compressor: Floats) -> list[str]:
    """Arc numbers, prefixed with p or c if a pipe and a compressor have the same number."""
    numbers = [[str(int(number)) for number in rows[:, 0]] for rows in (pipe, compressor)]
    if set(numbers[0]) & set(numbers[1]):
        numbers = [[letter + number for number in some] for letter, some in zip("pc", numbers, strict=True)]
    return [*numbers[0], *numbers[1]]


def _places(junction: Floats) -> Floats | None:
    """[N, 2] longitude and latitude; None if any is missing or more than one is (0, 0), which stands for unknown."""
    if junction.shape[1] < 10:
        return None
    places = junction[:, [9, 8]]
    return places if np.isfinite(places).all() and (places == 0).all(1).sum() < 2 else None

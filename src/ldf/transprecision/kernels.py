"""Computations with a mantissa width per variable, run for all configurations at once.

A kernel is a Python function whose parameters are its variables: `x(value)` assigns a value to x, that is, rounds it
to x's width. The last axis of every array is the configuration axis; it has length 1 for values that are the same in
all configurations. A custom kernel:

    data = np.linspace(0.1, 0.9, 32)[:, None]

    @kernel
    def dot(x, y, total):
        '''Σ x·y, accumulated term by term.'''
        x_values, y_values = x(data), y(1 - data)
        result = total(0.0)
        for a, b in zip(x_values, y_values):
            result = total(result + a * b)
        return result

Expressions between assignments are evaluated in double precision.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .precision import FULL, Floats, Rounding

LOW = 4
"""Default smallest width for sampling; the largest is 52."""

SPAN = 30.0
"""y = 1 means an error of 10^−30 or less: a few units in a double's last place, squared."""

CHUNK = 256
"""Configurations per call of the kernel; small enough for its arrays to stay in cache."""

Body = Callable[..., npt.NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A computation and its variables.

    Args:
        body: receives a rounding function per variable, [..., C] or [..., 1] → [..., C], and returns outputs [..., C].
    """

    name: str
    variables: tuple[str, ...]
    body: Body
    summary: str = ""
    source: str | None = None
    """Name to pass to `open_kernel`; None for a kernel registered in a running program."""

    def outputs(self, configurations: npt.NDArray[np.int64]) -> Floats:
        """Outputs of the kernel with these widths: [C, variables] → [outputs, C]."""
        with np.errstate(all="ignore"):
            found = self.body(*(Rounding(widths) for widths in configurations.T))
        found = np.asarray(found, dtype=np.float64)
        if found.ndim == 0 or found.shape[-1] != len(configurations):
            raise ValueError(
                f"kernel {self.name!r} must return an array with the configurations on its last axis, [..., "
                f"{len(configurations)}], got shape {found.shape}"
            )
        return found.reshape(-1, len(configurations))

    @cached_property
    def reference(self) -> Floats:
        """The outputs in double precision, [outputs, 1]."""
        found = self.outputs(np.full((1, len(self.variables)), FULL))
        if not found.size or not np.isfinite(found).all():
            raise ValueError(f"kernel {self.name!r}: outputs in double precision must be finite, got {found}")
        return found

    def errors(self, configurations: npt.ArrayLike) -> Floats:
        """max_i (out_i − ref_i)²/ref_i² of each configuration, [C]; ∞ if an output is not finite."""
        configurations = check_configurations(configurations, self.variables)
        reference = self.reference
        found = np.empty(len(configurations))
        for start in range(0, len(configurations), CHUNK):
            part = slice(start, start + CHUNK)
            outputs = self.outputs(configurations[part])
            with np.errstate(all="ignore"):
                relative = (outputs - reference) / reference
            relative = np.where(outputs == reference, 0.0, relative)
            relative = np.where(np.isfinite(relative), relative, np.inf)
            with np.errstate(over="ignore"):
                found[part] = np.square(relative).max(0)
        return found


def target(errors: npt.ArrayLike) -> Floats:
    """y = clip(−log10 error, 0, 30)/30 in [0, 1]: larger with more bits, and 1 for an error of zero.

    >>> target([1.0, 1e-15, 0.0, np.inf])
    array([0. , 0.5, 1. , 0. ])
    """
    with np.errstate(divide="ignore"):
        digits = np.log10(np.asarray(errors, dtype=np.float64))
    return np.clip(digits, -SPAN, 0.0) / -SPAN + 0.0


def error(targets: npt.ArrayLike) -> Floats:
    """The error 10^(−30 y) of a target y."""
    return 10.0 ** (-SPAN * np.asarray(targets, dtype=np.float64))


def check_configurations(configurations: npt.ArrayLike, variables: Sequence[str]) -> npt.NDArray[np.int64]:
    """[n, variables] integers between 1 and 52; otherwise an error that names the first invalid one."""
    found = np.asarray(configurations)
    if found.ndim != 2 or found.shape[1] != len(variables):
        raise ValueError(
            f"configurations must be a 2-D array with columns {', '.join(variables)}, got shape {found.shape}"
        )
    if not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"widths must be integers, got {found.dtype}")
    bad = np.argwhere((found < 1) | (found > FULL))
    if len(bad):
        row, column = bad[0]
        raise ValueError(
            f"configuration {row}: {variables[column]} has {found[row, column]} bits; it must be between 1 and {FULL}"
        )
    return found.astype(np.int64)


KERNELS: dict[str, Kernel] = {}
"""Kernels by name: the seven below and all registered ones."""


@overload
def kernel(body: Body) -> Kernel: ...
@overload
def kernel(*, name: str | None = None, variables: Sequence[str] | None = None) -> Callable[[Body], Kernel]: ...


def kernel(body: Body | None = None, *, name: str | None = None, variables: Sequence[str] | None = None) -> Any:
    """Register a function as a kernel; its parameters are its variables, unless `variables` names them.

    >>> @kernel
    ... def square(x, product):
    ...     value = x(1.7)
    ...     return product(value * value)
    >>> square.variables, square.errors(np.array([[52, 52], [3, 52]])).round(6)
    (('x', 'product'), array([0.      , 0.003563]))
    """

    def register(function: Body) -> Kernel:
        called = name or function.__name__.replace("_", "-")
        names = tuple(variables) if variables is not None else tuple(inspect.signature(function).parameters)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"kernel {called!r} needs at least one variable, and distinct names; got {names}")
        source = called if function.__module__ == __name__ else None
        made = Kernel(called, names, function, (inspect.getdoc(function) or "").partition("\n")[0], source)
        KERNELS[called] = made
        return made

    return register(body) if body is not None else register


def open_kernel(name: str) -> Kernel:
    """Find a kernel by name, or load one from a file: FILE.py:NAME, or FILE.py if it defines only one."""
    if name in KERNELS:
        return KERNELS[name]
    file, wanted = (name, "") if name.endswith(".py") else (name.rpartition(":")[0], name.rpartition(":")[2])
    if not file.endswith(".py"):
        raise ValueError(f"there is no kernel {name!r}; available: {', '.join(KERNELS)}, or FILE.py:NAME")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    held = dict(KERNELS)
    try:
        spec.loader.exec_module(module)
    finally:
        # Kernels of a file must not replace registered kernels of the same name.
        KERNELS.clear()
        KERNELS.update(held)
    own = {made.name: made for made in vars(module).values() if isinstance(made, Kernel)}
    if not wanted and len(own) == 1:
        wanted = next(iter(own))
    if wanted in own:
        return replace(own[wanted], source=f"{Path(file).resolve()}:{wanted}")
    raise ValueError(f"{file} defines the kernels {', '.join(own) or '(none)'}; choose one with {file}:NAME")


def _random(seed: int) -> np.random.Generator:
    """Generator of a kernel's input data, which is always the same."""
    return np.random.default_rng([20200101, seed])


_SAXPY = _random(1).uniform(0.5, 2.0, (3, 32, 1))


@kernel
def saxpy(a: Rounding, x: Rounding, y: Rounding) -> Floats:
    """y ← a·x + y for 32 numbers."""
    return y(a(_SAXPY[0, :1]) * x(_SAXPY[1]) + y(_SAXPY[2]))


_IMAGE = _random(2).uniform(0.0, 1.0, (14, 14, 1))
_FILTER = _random(3).uniform(0.1, 1.0, (5, 5, 1))


@kernel
def convolution(image: Rounding, filter: Rounding, total: Rounding, output: Rounding) -> Floats:
    """A 5 × 5 filter over a 14 × 14 image."""
    pixels, taps = image(_IMAGE), filter(_FILTER)
    result = total(np.zeros((10, 10, 1)))
    for i in range(5):
        for j in range(5):
            result = total(result + pixels[i : i + 10, j : j + 10] * taps[i, j])
    return output(result)


_ROWS, _COLUMNS = 24, 6
_TABLE = _random(4).uniform(0.0, 4.0, (_ROWS, _COLUMNS, 1)) + _random(5).uniform(0.0, 4.0, (_ROWS, 1, 1))
_FIRST, _SECOND = np.triu_indices(_COLUMNS, 1)


@kernel
def correlation(
    data: Rounding,
    mean: Rounding,
    variance: Rounding,
    deviation: Rounding,
    centred: Rounding,
    product: Rounding,
    result: Rounding,
) -> Floats:
    """Correlation coefficients of 6 columns over 24 rows."""
    values = data(_TABLE)
    sums = mean(np.zeros((_COLUMNS, 1)))
    for row in values:
        sums = mean(sums + row)
    means = mean(sums / _ROWS)
    squares = variance(np.zeros((_COLUMNS, 1)))
    for row in values:
        squares = variance(squares + (row - means) ** 2)
    deviations = deviation(np.sqrt(variance(squares / _ROWS)))
    scores = centred((values - means) / (np.sqrt(_ROWS) * deviations))
    sums = product(np.zeros((len(_FIRST), 1)))
    for row in scores:
        sums = product(sums + row[_FIRST] * row[_SECOND])
    return result(sums)


# With this seed all details are above 0.15; near zero a relative error is meaningless.
_SIGNAL = _random(56).uniform(0.5, 4.0, (64, 1))
_DB2 = np.array([0.48296291314453414, 0.8365163037378079, 0.2241438680420134, -0.12940952255126037])[:, None]


@kernel
def dwt(
    signal: Rounding,
    low: Rounding,
    high: Rounding,
    low_sum: Rounding,
    high_sum: Rounding,
    approximation: Rounding,
    detail: Rounding,
) -> Floats:
    """Three levels of the four-tap Daubechies wavelet transform of 64 numbers."""
    scaling, wavelet = low(_DB2), high(_DB2[::-1] * np.array([[1.0], [-1.0], [1.0], [-1.0]]))
    current, details = signal(_SIGNAL), []
    for _ in range(3):
        half = len(current) // 2
        place = 2 * np.arange(half)
        smooth, rough = low_sum(np.zeros((half, 1))), high_sum(np.zeros((half, 1)))
        for tap in range(4):
            values = current[(place + tap) % len(current)]
            smooth = low_sum(smooth + scaling[tap] * values)
            rough = high_sum(rough + wavelet[tap] * values)
        current = approximation(smooth)
        details.append(detail(rough))
    return np.concatenate([current, *details])


_WALSH = _random(7).uniform(0.5, 2.0, (32, 1))


@kernel
def fwt(data: Rounding, sum: Rounding) -> Floats:
    """Fast Walsh transform of 32 numbers."""
    values = data(_WALSH)
    step = 1
    while step < len(values):
        pairs = values.reshape(-1, 2, step, values.shape[-1])
        first, second = pairs[:, 0], pairs[:, 1]
        values = data(np.stack([sum(first + second), sum(first - second)], 1).reshape(values.shape))
        step *= 2
    return values


_OPTIONS = 24
_MARKET = _random(8)
_SPOT, _STRIKE = _MARKET.uniform(10.0, 20.0, (2, _OPTIONS, 1))
_YEARS = _MARKET.uniform(1.0, 5.0, (_OPTIONS, 1))
_CND = (0.31938153, -0.356563782, 1.781477937, -1.821255978, 1.330274429)


@kernel
def black_scholes(
    spot: Rounding,
    strike: Rounding,
    years: Rounding,
    rate: Rounding,
    volatility: Rounding,
    root: Rounding,
    logarithm: Rounding,
    d1: Rounding,
    d2: Rounding,
    inverse: Rounding,
    polynomial: Rounding,
    density: Rounding,
    probability: Rounding,
    discount: Rounding,
    call: Rounding,
) -> Floats:
    """Prices of 24 European calls, with the polynomial of Abramowitz and Stegun."""

    def cumulative(d: Floats) -> Floats:
        k = inverse(1.0 / (1.0 + 0.2316419 * np.abs(d)))
        series = polynomial(np.zeros_like(k))
        for coefficient in reversed(_CND):
            series = polynomial((series + coefficient) * k)
        tail = probability(density(np.exp(-0.5 * d * d) / np.sqrt(2 * np.pi)) * series)
        return np.where(d > 0, probability(1.0 - tail), tail)

    s, x, t = spot(_SPOT), strike(_STRIKE), years(_YEARS)
    r, v = rate(np.array([0.02])), volatility(np.array([0.3]))
    root_t = root(np.sqrt(t))
    first = d1((logarithm(np.log(s / x)) + (r + 0.5 * v * v) * t) / (v * root_t))
    second = d2(first - v * root_t)
    return call(s * cumulative(first) - x * discount(np.exp(-r * t)) * cumulative(second))


_SIZE, _SYSTEMS = 4, 8
_MATRIX = _random(9).uniform(0.2, 1.0, (_SIZE, _SIZE)) + 4.0 * np.eye(_SIZE)
_RIGHT = _random(10).uniform(1.0, 4.0, (_SIZE, _SYSTEMS, 1))


@kernel(
    variables=(
        *(f"a{i}{j}" for i in range(1, _SIZE + 1) for j in range(1, _SIZE + 1)),
        *(f"b{i}" for i in range(1, _SIZE + 1)),
        *(f"x{i}" for i in range(1, _SIZE + 1)),
        "total",
    )
)
def jacobi(*assign: Rounding) -> Floats:
    """25 sweeps of Jacobi iteration on eight systems of four equations."""
    entries, right, unknowns, total = assign[:16], assign[16:20], assign[20:24], assign[24]
    matrix = [entry(np.array([value])) for entry, value in zip(entries, _MATRIX.flat, strict=True)]
    given = [b(values) for b, values in zip(right, _RIGHT, strict=True)]
    found = [x(np.zeros((_SYSTEMS, 1))) for x in unknowns]
    for _ in range(25):
        sums = list(given)
        for i in range(_SIZE):
            for j in range(_SIZE):
                if i != j:
                    sums[i] = total(sums[i] - matrix[_SIZE * i + j] * found[j])
        found = [x(part / matrix[5 * i]) for i, (x, part) in enumerate(zip(unknowns, sums, strict=True))]
    return np.stack(found)

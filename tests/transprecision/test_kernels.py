"""The kernels: what they compute, what they round, and custom kernels."""

import textwrap
import time

import gmpy2
import numpy as np
import pytest
from scipy.linalg import hadamard
from scipy.stats import norm

from ldf.transprecision import kernels
from ldf.transprecision.kernels import check_configurations, error, kernel, open_kernel, target
from ldf.transprecision.precision import FULL

VARIABLES = {"saxpy": 3, "convolution": 4, "correlation": 7, "dwt": 7, "fwt": 2, "black-scholes": 15, "jacobi": 25}


def own(name="dot"):
    """A file with the kernel of the module's docstring, under another name."""
    shown = "".join(line for line in kernels.__doc__.splitlines(True) if line.startswith("    ") or not line.strip())
    imports = "import numpy as np\nfrom ldf.transprecision.kernels import kernel\n"
    return imports + textwrap.dedent(shown).replace("def dot", f"def {name}")


def bits(values):
    return np.asarray(values, dtype=np.float64).view(np.int64).tolist()


def mpfr(value, width):
    """Rounded by MPFR to `width` mantissa bits."""
    with gmpy2.context(precision=width + 1, round=gmpy2.RoundToNearest):
        return float(gmpy2.mpfr(float(value)))


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Remove kernels registered by a test."""
    monkeypatch.setattr(kernels, "KERNELS", dict(kernels.KERNELS))


def configurations(name, count, seed=0, low=1):
    return np.random.default_rng(seed).integers(low, FULL + 1, (count, VARIABLES[name]))


def saxpy_by_hand(a, x, y):
    given_a, given_x, given_y = (part.ravel().tolist() for part in kernels._SAXPY)
    factor = mpfr(given_a[0], a)
    return [mpfr(factor * mpfr(p, x) + mpfr(q, y), y) for p, q in zip(given_x, given_y, strict=True)]


def convolution_by_hand(image, taps, total, output):
    pixels = [[mpfr(value, image) for value in row] for row in kernels._IMAGE[..., 0]]
    weights = [[mpfr(value, taps) for value in row] for row in kernels._FILTER[..., 0]]
    found = []
    for row in range(10):
        for column in range(10):
            result = 0.0
            for i in range(5):
                for j in range(5):
                    result = mpfr(result + pixels[row + i][column + j] * weights[i][j], total)
            found.append(mpfr(result, output))
    return found


def fwt_by_hand(data, total):
    values = [mpfr(value, data) for value in kernels._WALSH.ravel()]
    for step in (1, 2, 4, 8, 16):
        for i in range(32):
            if not i & step:
                a, b = values[i], values[i + step]
                values[i], values[i + step] = mpfr(mpfr(a + b, total), data), mpfr(mpfr(a - b, total), data)
    return values


@pytest.mark.parametrize(("name", "count"), VARIABLES.items())
def test_a_kernel_in_full_precision_and_all_configurations_at_once(name, count):
    made = open_kernel(name)
    assert (made.name, len(made.variables), made.source) == (name, count, name)
    table = configurations(name, 300)
    table[::50] = FULL
    found, errors = made.outputs(table), made.errors(table)
    assert (errors[::50] == 0).all()
    assert (errors[1::50] > 0).all()
    for i in (*range(8), 255, 256, 299):
        alone = made.outputs(table[i : i + 1])
        assert np.array_equal(alone[:, 0], found[:, i], equal_nan=True)
        assert bits(np.abs(alone[:, 0])) == bits(np.abs(found[:, i]))
        assert made.errors(table[i : i + 1]) == errors[i]
        worst = max(((out - ref) / ref) ** 2 for out, ref in zip(alone[:, 0], made.reference[:, 0], strict=True))
        assert errors[i] == (worst if np.isfinite(alone).all() else np.inf)


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_matters(name):
    count = VARIABLES[name]
    table = np.where(np.eye(count, dtype=bool), 3, FULL)
    errors = open_kernel(name).errors(table)
    assert (errors > 1e-9).all()
    assert (errors > open_kernel(name).errors(np.where(table == 3, 30, FULL))).all()


@pytest.mark.parametrize("by_hand", [saxpy_by_hand, convolution_by_hand, fwt_by_hand])
def test_a_kernel_assignment_by_assignment(by_hand):
    name = by_hand.__name__.removesuffix("_by_hand")
    table = np.concatenate([configurations(name, 12), configurations(name, 1, low=FULL)])
    for widths_of_one, found in zip(table.tolist(), open_kernel(name).outputs(table).T, strict=True):
        assert bits(found) == bits(by_hand(*widths_of_one))


def test_correlation_fwt_black_scholes_and_jacobi_are_correct():
    table = kernels._TABLE[..., 0]
    coefficients = np.corrcoef(table, rowvar=False)[np.triu_indices(table.shape[1], 1)]
    np.testing.assert_allclose(open_kernel("correlation").reference[:, 0], coefficients, rtol=1e-13)
    np.testing.assert_allclose(open_kernel("fwt").reference, hadamard(32) @ kernels._WALSH, rtol=1e-13)
    s, x, t, r, v = kernels._SPOT, kernels._STRIKE, kernels._YEARS, 0.02, 0.3
    d1 = (np.log(s / x) + (r + v**2 / 2) * t) / (v * np.sqrt(t))
    prices = s * norm.cdf(d1) - x * np.exp(-r * t) * norm.cdf(d1 - v * np.sqrt(t))
    np.testing.assert_allclose(open_kernel("black-scholes").reference, prices, rtol=0, atol=3e-6)
    solved = np.linalg.solve(kernels._MATRIX, kernels._RIGHT[..., 0])
    np.testing.assert_allclose(open_kernel("jacobi").reference.reshape(solved.shape), solved, rtol=1e-7)


def test_dwt_is_an_orthonormal_transform_whose_details_vanish_on_lines(monkeypatch):
    made = open_kernel("dwt")
    assert np.square(made.reference).sum() == pytest.approx(np.square(kernels._SIGNAL).sum(), rel=1e-14)
    exact = np.full((1, 7), FULL)
    columns = []
    for column in np.eye(64):
        monkeypatch.setattr(kernels, "_SIGNAL", column[:, None])
        columns.append(made.outputs(exact)[:, 0])
    matrix = np.stack(columns, 1)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(64), atol=1e-13)
    approximation, details = np.split(matrix @ np.ones(64), [8])
    np.testing.assert_allclose(approximation, 8**0.5)
    np.testing.assert_allclose(details, 0, atol=1e-13)
    finest = (matrix @ np.arange(64.0))[8 : 8 + 31]
    np.testing.assert_allclose(finest, 0, atol=1e-12)


def test_target_and_error():
    assert target([0.0, np.inf, 1.0, 1e-30, 1e-40, 7.0, 1e-15]).tolist() == [1, 0, 0, 1, 1, 0, 0.5]
    assert not np.signbit(target([1.0, np.inf, 7.0])).any()
    errors = np.logspace(-35, 5, 400)
    assert (np.diff(target(errors)) <= 0).all()
    inside = np.linspace(0, 1, 31)
    np.testing.assert_allclose(target(error(inside)), inside, atol=1e-15)
    np.testing.assert_allclose(error(target(errors)), errors.clip(1e-30, 1), rtol=1e-12)


def test_a_custom_kernel(tmp_path):
    space = {}
    exec(own(), space)
    assert (open_kernel("dot"), space["dot"].source) == (space["dot"], None)
    file = tmp_path / "own.py"
    file.write_text(own("my_dot"), encoding="utf-8")
    first = open_kernel(f"{file}:my-dot")
    assert "my-dot" not in kernels.KERNELS
    (tmp_path / "other.py").write_text(own("saxpy"), encoding="utf-8")
    before = open_kernel("saxpy")
    assert open_kernel(f"{tmp_path / 'other.py'}:saxpy").variables == ("x", "y", "total")
    assert open_kernel("saxpy") is before
    opened = [first, open_kernel(str(file)), open_kernel(first.source)]
    assert {(made.name, made.source) for made in opened} == {("my-dot", f"{file.resolve()}:my-dot")}
    data = np.linspace(0.1, 0.9, 32).tolist()
    table = np.array([[52, 52, 52], [4, 52, 52], [52, 52, 8], [3, 9, 11]])
    for made in (space["dot"], *opened):
        assert made.variables == ("x", "y", "total")
        assert made.summary == "Σ x·y, accumulated term by term."
        for (x, y, total), found in zip(table.tolist(), made.outputs(table)[0], strict=True):
            result = 0.0
            for value in data:
                result = mpfr(result + mpfr(value, x) * mpfr(1 - value, y), total)
            assert found == result
        assert made.errors(table)[0] == 0
        assert made.errors(np.zeros((0, 3), dtype=int)).shape == (0,)


def test_names_of_kernels_and_variables():
    @kernel(name="called", variables=["p", "q"])
    def function(*assign):
        return assign[0](1.3) * assign[1](1.7)

    assert (open_kernel("called"), function.variables, function.source) == (function, ("p", "q"), None)
    assert "function" not in kernels.KERNELS
    for names in ([], ["p", "p"]):
        with pytest.raises(ValueError, match="kernel 'twice' needs at least one variable, and distinct names; got"):
            kernel(name="twice", variables=names)(function.body)
    with pytest.raises(ValueError, match=r"kernel 'none-at-all' needs at least one variable.*got \(\)"):

        @kernel
        def none_at_all():
            return 1.0

    assert not {"twice", "none-at-all"} & set(kernels.KERNELS)


def test_kernels_that_are_not_found(tmp_path):
    with pytest.raises(ValueError, match=r"no kernel 'nope'; available: saxpy, .*jacobi, or FILE\.py:NAME"):
        open_kernel("nope")
    with pytest.raises(ValueError, match=r"there is no file .*missing\.py$"):
        open_kernel(str(tmp_path / "missing.py"))
    several, empty = tmp_path / "several.py", tmp_path / "empty.py"
    several.write_text(own("one") + own("two"), encoding="utf-8")
    empty.write_text("")
    assert open_kernel(f"{several}:two").name == "two"
    for name in (str(several), f"{several}:three"):
        with pytest.raises(ValueError, match=r"several\.py defines the kernels one, two; choose one with .*py:NAME"):
            open_kernel(name)
    with pytest.raises(ValueError, match=r"empty\.py defines the kernels \(none\)"):
        open_kernel(str(empty))


def test_kernels_with_invalid_outputs():
    @kernel
    def same_for_all(x):
        return np.ones((3, 1))

    @kernel
    def number(x):
        return x(1.5)[0]

    @kernel
    def endless(x):
        return x(1.0) / 0.0

    @kernel
    def nothing(x):
        return x(np.zeros((0, 1)))

    with pytest.raises(ValueError, match=r"'same-for-all' must return .* last axis, \[..., 2\], got shape \(3, 1\)"):
        same_for_all.errors([[5], [6]])
    with pytest.raises(ValueError, match=r"kernel 'number' must return .* \[..., 1\], got shape \(\)"):
        number.errors([[5]])
    for made in (endless, nothing):
        with pytest.raises(ValueError, match=f"kernel '{made.name}': outputs in double precision must be finite"):
            made.errors([[52]])


def test_errors_at_zero_and_infinity():
    @kernel
    def zeros(x, y):
        return np.stack([x(0.5) - 0.5, x(1.3) - 1.3, y(1.5)])

    @kernel
    def pole(x):
        return 1.0 / (x(1.3) - 1.25)

    @kernel
    def root(x):
        return np.sqrt(x(1.3) - 1.29)

    assert zeros.errors([[52, 52], [51, 52], [8, 52], [52, 1]]).tolist() == [0, np.inf, np.inf, 0]
    assert pole.errors([[52], [2]]).tolist() == [0, np.inf]
    assert root.errors([[52], [2]]).tolist() == [0, np.inf]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([4, 5], r"a 2-D array with columns a, b, got shape \(2,\)"),
        ([[4, 5, 6]], r"a 2-D array with columns a, b, got shape \(1, 3\)"),
        ([[4.0, 5.0]], "widths must be integers, got float64"),
        ([[4, 5], [6, 0]], "configuration 1: b has 0 bits; it must be between 1 and 52"),
        ([[4, 5], [4, 4], [53, 0]], "configuration 2: a has 53 bits; it must be between 1 and 52"),
    ],
)
def test_configurations_that_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        check_configurations(table, ("a", "b"))


def test_a_thousand_configurations_per_second():
    made, table = open_kernel("correlation"), configurations("correlation", 2000, low=4)
    start = time.process_time()
    made.errors(table)
    assert time.process_time() - start < 2

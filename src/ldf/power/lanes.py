"""Several problems side by side in the lanes of a processor's vectors: numba code with values `<W x double>`.

The number of lanes W is the length of a tuple, `lanes`, that every function takes, so that one source serves one lane
and four. Arrays are flat, with the lane running fastest: entry k of lane l is at k·W + l. Functions here are compiled
into the calling numba function; none can be called from Python.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

FLAGS = ("contract", "nsz", "arcp")
"""Products and sums may be fused. NaN and infinities keep their meaning."""


class Lanes(types.Type):
    """The type of W numbers, one for each lane."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"Lanes({width})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """An LLVM vector."""

    def __init__(self, dmm: Any, fe_type: Lanes) -> None:
        models.PrimitiveModel.__init__(self, dmm, fe_type, vector(fe_type.width))


def vector(width: int) -> ir.VectorType:
    """`<W x double>`."""
    return ir.VectorType(ir.DoubleType(), width)


def broadcast(builder: Any, value: Any, width: int) -> Any:
    """A scalar in every lane."""
    one = builder.insert_element(ir.Constant(vector(width), ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), width), None)
    return builder.shuffle_vector(one, ir.Constant(vector(width), ir.Undefined), zeros)


class Memory:
    """An array of vectors inside an intrinsic: loads and stores entry k of all lanes."""

    def __init__(self, context: Any, builder: Any, of: Any, array: Any, width: int) -> None:
        data = context.make_array(of)(context, builder, array).data
        self.builder, self.width = builder, width
        self.data = builder.bitcast(data, ir.DoubleType().as_pointer())

    def _at(self, k: Any, offset: int) -> Any:
        wide = self.builder.sext(k, ir.IntType(64)) if k.type.width < 64 else k
        first = self.builder.mul(wide, ir.Constant(ir.IntType(64), self.width))
        place = self.builder.add(first, ir.Constant(ir.IntType(64), offset * self.width))
        return self.builder.bitcast(self.builder.gep(self.data, [place]), vector(self.width).as_pointer())

    def load(self, k: Any, offset: int = 0) -> Any:
        """Entry k + offset."""
        return self.builder.load(self._at(k, offset), align=8)

    def store(self, value: Any, k: Any, offset: int = 0) -> None:
        """Replace entry k + offset."""
        self.builder.store(value, self._at(k, offset), align=8)


def builtin(builder: Any, name: str, *arguments: Any) -> Any:
    """A function that LLVM has for vectors, such as fmuladd."""
    of = arguments[0].type
    shape = ir.FunctionType(of, [of] * len(arguments))
    found = cgutils.get_or_insert_function(builder.module, shape, f"llvm.{name}.v{of.count}f64")
    return builder.call(found, arguments)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c."""
    return builtin(builder, "fmuladd", a, b, c)


@intrinsic
def load(typing: Any, lanes: Any, array: Any, k: Any) -> Any:
    """Entry k of all lanes."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return Memory(context, builder, array, arguments[1], width).load(arguments[2])

    return Lanes(width)(lanes, array, k), generate


@intrinsic
def store(typing: Any, lanes: Any, array: Any, k: Any, value: Any) -> Any:
    """Replace entry k of all lanes."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        Memory(context, builder, array, arguments[1], width).store(arguments[3], arguments[2])
        return context.get_dummy_value()

    return types.void(lanes, array, k, Lanes(width)), generate


@intrinsic
def splat(typing: Any, lanes: Any, value: Any) -> Any:
    """A number in every lane."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return broadcast(builder, arguments[1], width)

    return Lanes(width)(lanes, types.float64), generate


OPERATORS = {operator.add: "fadd", operator.sub: "fsub", operator.mul: "fmul", operator.truediv: "fdiv"}
"""Operators between lanes, or between lanes and a number, which is then taken in every lane."""


def _typed(symbol: Any) -> None:
    class Operator(AbstractTemplate):
        def generic(self, given: Any, named: Any) -> Any:
            width = next((t.width for t in given if isinstance(t, Lanes)), None)
            if width is None or len(given) != 2:
                return None
            return signature(Lanes(width), *[t if isinstance(t, Lanes) else types.float64 for t in given])

    infer_global(symbol)(Operator)


def _lowered(symbol: Any, name: str) -> None:
    def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        width = signed.return_type.width
        a, b = (
            value if isinstance(t, Lanes) else broadcast(builder, value, width)
            for value, t in zip(arguments, signed.args, strict=True)
        )
        return getattr(builder, name)(a, b, flags=FLAGS)

    for pair in ((Lanes, Lanes), (Lanes, types.Float), (types.Float, Lanes)):
        lower_builtin(symbol, *pair)(generate)


for _symbol, _name in OPERATORS.items():
    _typed(_symbol)
    _lowered(_symbol, _name)


@infer_global(operator.neg)
class _Negative(AbstractTemplate):
    def generic(self, given: Any, named: Any) -> Any:
        return signature(given[0], given[0]) if isinstance(given[0], Lanes) else None


@lower_builtin(operator.neg, Lanes)  # type: ignore[untyped-decorator]
def _negative(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
    return builder.fneg(arguments[0])


def _compared(name: str) -> Any:
    """An intrinsic that picks from two lanes, entry by entry."""

    @intrinsic
    def pick(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
            x, y = arguments
            return builder.select(builder.fcmp_ordered(name, x, y), x, y)

        return a(a, a), generate

    return pick


largest, smallest = _compared(">"), _compared("<")
"""max(a, b) and min(a, b) in every lane; b where one of them is NaN."""


@intrinsic
def below(typing: Any, a: Any, b: Any, then: Any, other: Any) -> Any:
    """`then` in lanes where a < b, else `other`."""

    def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        x, y, first, second = arguments
        return builder.select(builder.fcmp_ordered("<", x, y), first, second)

    return a(a, a, a, a), generate


@intrinsic
def rounded(typing: Any, a: Any) -> Any:
    """The nearest whole number in every lane."""

    def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        return builtin(builder, "rint", *arguments)

    return a(a), generate


class Block:
    """A 4 × 4 matrix of lanes inside an intrinsic: products and sums of its entries."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def combine(self, *terms: tuple[Any, Any, int]) -> Any:
        """Σ ± a·b over terms (a, b, sign), as a chain of fused operations."""
        found = None
        for a, b, sign in terms:
            left = a if sign > 0 else self.builder.fneg(a)
            product = found is None
            found = self.builder.fmul(left, b, flags=FLAGS) if product else multiply_add(self.builder, left, b, found)
        return found


@intrinsic
def invert(typing: Any, lanes: Any, source: Any, s: Any, target: Any, t: Any) -> Any:
    """P⁻¹ of the symmetric 4 × 4 block s, of which the lower triangle is read, into block t; the negative eigenvalues.

    By 2 × 2 minors: no division but by the determinant, and no loss when rows and columns are scaled. The number of
    negative eigenvalues is that of sign changes in 1, D₁, D₂, D₃, D₄, the leading minors (Jacobi).
    """
    width = len(lanes)

    def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        given = Memory(context, builder, source, arguments[1], width)
        found = Memory(context, builder, target, arguments[3], width)
        s, t = arguments[2], arguments[4]
        a = [[given.load(s, 4 * max(r, c) + min(r, c)) for c in range(4)] for r in range(4)]
        block = Block(builder)

        def minor(r0: int, r1: int, c0: int, c1: int) -> Any:
            return block.combine((a[r0][c0], a[r1][c1], 1), (a[r1][c0], a[r0][c1], -1))

        pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
        upper = [minor(0, 1, *pair) for pair in pairs]
        lower = [minor(2, 3, *pair) for pair in pairs]
        signs = (1, -1, 1, 1, -1, 1)
        det = block.combine(*[(upper[i], lower[5 - i], signs[i]) for i in range(6)])
        one = ir.Constant(vector(width), [1.0] * width)
        inverse = builder.fdiv(one, det, flags=FLAGS)
        u, w = upper, lower
        adjugate = {
            (0, 0): block.combine((a[1][1], w[5], 1), (a[1][2], w[4], -1), (a[1][3], w[3], 1)),
            (0, 1): block.combine((a[0][1], w[5], -1), (a[0][2], w[4], 1), (a[0][3], w[3], -1)),
            (0, 2): block.combine((a[3][1], u[5], 1), (a[3][2], u[4], -1), (a[3][3], u[3], 1)),
            (0, 3): block.combine((a[2][1], u[5], -1), (a[2][2], u[4], 1), (a[2][3], u[3], -1)),
            (1, 1): block.combine((a[0][0], w[5], 1), (a[0][2], w[2], -1), (a[0][3], w[1], 1)),
            (1, 2): block.combine((a[3][0], u[5], -1), (a[3][2], u[2], 1), (a[3][3], u[1], -1)),
            (1, 3): block.combine((a[2][0], u[5], 1), (a[2][2], u[2], -1), (a[2][3], u[1], 1)),
            (2, 2): block.combine((a[3][0], u[4], 1), (a[3][1], u[2], -1), (a[3][3], u[0], 1)),
            (2, 3): block.combine((a[2][0], u[4], -1), (a[2][1], u[2], 1), (a[2][3], u[0], -1)),
            (3, 3): block.combine((a[2][0], u[3], 1), (a[2][1], u[1], -1), (a[2][2], u[0], 1)),
        }
        for (r, c), value in adjugate.items():
            entry = builder.fmul(value, inverse, flags=FLAGS)
            found.store(entry, t, 4 * r + c)
            if r != c:
                found.store(entry, t, 4 * c + r)
        zero = ir.Constant(vector(width), [0.0] * width)
        minors = [one, a[0][0], upper[0], adjugate[3, 3], det]
        count = zero
        for before, after in itertools.pairwise(minors):
            changes = builder.fcmp_ordered("<", builder.fmul(before, after), zero)
            count = builder.fadd(count, builder.select(changes, one, zero))
        return count

    return Lanes(width)(lanes, source, s, target, t), generate


@intrinsic
def times(typing: Any, lanes: Any, left: Any, a: Any, right: Any, b: Any, target: Any, t: Any) -> Any:
    """Block t of target = block a of left · block b of right, which is symmetric."""
    width = len(lanes)

    def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        _, first, a, second, b, third, t = arguments
        x, y = Memory(context, builder, left, first, width), Memory(context, builder, right, second, width)
        found, block = Memory(context, builder, target, third, width), Block(builder)
        columns = [[y.load(b, 4 * m + c) for m in range(4)] for c in range(4)]
        for r in range(4):
            row = [x.load(a, 4 * r + m) for m in range(4)]
            for c in range(4):
                found.store(block.combine(*[(row[m], columns[c][m], 1) for m in range(4)]), t, 4 * r + c)
        return context.get_dummy_value()

    return types.void(lanes, left, a, right, b, target, t), generate


def _subtracts(triangle: bool) -> Any:
    """An intrinsic: block t of target −= block a of left · (block b of right)ᵀ, or only its lower triangle."""

    @intrinsic
    def subtract(typing: Any, lanes: Any, target: Any, t: Any, left: Any, a: Any, right: Any, b: Any) -> Any:
        width = len(lanes)

        def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
            _, third, t, first, a, second, b = arguments
            x, y = Memory(context, builder, left, first, width), Memory(context, builder, right, second, width)
            found = Memory(context, builder, target, third, width)
            rows = [[builder.fneg(x.load(a, 4 * r + m)) for m in range(4)] for r in range(4)]
            columns = [[y.load(b, 4 * c + m) for m in range(4)] for c in range(4)]
            for r in range(4):
                for c in range(r + 1 if triangle else 4):
                    value = found.load(t, 4 * r + c)
                    for m in range(4):
                        value = multiply_add(builder, rows[r][m], columns[c][m], value)
                    found.store(value, t, 4 * r + c)
            return context.get_dummy_value()

        return types.void(lanes, target, t, left, a, right, b), generate

    return subtract


subtract_product, subtract_square = _subtracts(False), _subtracts(True)


def _applies(transposed: bool) -> Any:
    """An intrinsic: y_t −= B_b x_s, or B_bᵀ x_s, for 4-vectors of lanes."""

    @intrinsic
    def apply(typing: Any, lanes: Any, target: Any, t: Any, blocks: Any, b: Any, source: Any, s: Any) -> Any:
        width = len(lanes)

        def generate(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
            _, third, t, first, b, second, s = arguments
            held, x = Memory(context, builder, blocks, first, width), Memory(context, builder, source, second, width)
            found = Memory(context, builder, target, third, width)
            given = [builder.fneg(x.load(s, m)) for m in range(4)]
            for r in range(4):
                value = found.load(t, r)
                for m in range(4):
                    entry = held.load(b, 4 * m + r if transposed else 4 * r + m)
                    value = multiply_add(builder, entry, given[m], value)
                found.store(value, t, r)
            return context.get_dummy_value()

        return types.void(lanes, target, t, blocks, b, source, s), generate

    return apply


subtract_applied, subtract_transposed = _applies(False), _applies(True)

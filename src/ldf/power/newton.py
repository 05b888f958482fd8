"""One Newton step of the interior point for Model 1, for W demands side by side: compiled by numba.

The Lagrangian of Model 1 (`acopf.py`), with a slack z > 0 and a multiplier μ > 0 for every inequality h ≤ 0, is

    L = f(p) + λᵀ g(θ, v, p, q) + μᵀ (h(θ, v, p, q) + z) − γ Σ ln z.

A step solves, with H = ∇²L + Σ w ∇h ∇hᵀ, w = μ/(z + δμ) and n = (γ + μh)/(z + δμ),

    [ H   Jᵀ ] [Δx]     [ ∇L + Σ n ∇h ]
    [ J  −εI ] [Δλ] = − [   g − ελ    ],    Δμ = n + w ∇h·Δx,    Δz = −h − z − ∇h·Δx + δΔμ.

δ is a proximal term on the inequalities; with δ = 0 this is MIPS's step. ε > 0 lets a balance g fail at the cost
g²/2ε: with costs of zero, the solution has the least squared shortage of power. p and q of a generator occur in one
balance each and are eliminated. What is left has a 4 × 4 block for every bus, (θ, v, λ_p, λ_q), and one for every pair
of joined buses.

Buses are numbered in the order of elimination, and every branch begins at the end that is eliminated later. The rows of
h are v, p and q (lower limits, then upper ones), angle differences (lower, then upper), and thermal limits
r (p² + q²) − 1 with r = 1/s² (first ends, then second ends).

numba recompiles a function when its own file has changed, not when another has: after a change here or in `lanes.py`,
`touch` the file `kernel.py`, which has the functions that Python calls.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from . import ohm
from .lanes import (
    below,
    invert,
    largest,
    load,
    rounded,
    smallest,
    splat,
    store,
    subtract_applied,
    subtract_product,
    subtract_square,
    subtract_transposed,
    times,
)

compiled = njit(cache=True, nogil=True, error_model="numpy", boundscheck=False)
flows, slopes = compiled(ohm.flows), compiled(ohm.slopes)

PROXIMAL = 1e-9
"""δ of all limits but the thermal ones."""
PINNED = 1e16
"""Curvature of a variable that must not move: a reference angle, or one whose limits are equal."""
CURVATURE = 1e-8
"""Least curvature added to every variable, in the scale of the costs."""
TWO_PI = 6.283185307179586


class Grid(NamedTuple):
    """What all lanes share: topology, the pattern of the factorisation, admittances. Whole numbers, then real ones."""

    sizes: Any
    """[3] buses N, generators G, branches E."""
    order: Any
    """[N] buses of the network in the order of elimination."""
    at: Any
    """[G] bus of each generator."""
    source: Any
    """[E] the end of a branch that is eliminated later."""
    target: Any
    flipped: Any
    """[E] 1 if `source` is the second bus of the branch in the network, else 0."""
    place: Any
    """[E] the block that joins the ends of a branch."""
    rated: Any
    """[2E] place of an arc's thermal limit among the multipliers of `acopf.py`, −1 if it has none."""
    angled: Any
    """[E] the same for the limits of angle differences."""
    columns: Any
    """[N + 1] first off-diagonal block of each bus."""
    rows: Any
    """[blocks] the later bus of each off-diagonal block; blocks are numbered from N."""
    updates: Any
    """Blocks that the elimination of a bus changes, one for each pair of its later neighbours."""
    pinned: Any
    """[N] 1 for a reference bus, else 0."""
    shunt: Any
    """[2N] g^s, then b^s."""
    admittance: Any
    """[8E] g_self, b_self, g_mutual, b_mutual of the arc from source to target, then of its reverse."""
    proximal: Any
    """[E] δ of the thermal limits."""
    unit: Any
    """[1] $/h in one unit of cost here."""


class Lane(NamedTuple):
    """Parameters of the problem in every lane."""

    demand: Any
    """[2N] p^d, q^d of each bus."""
    lower: Any
    """[N + 2G + E] lower limits of v, p, q and angle differences."""
    upper: Any
    on: Any
    """[M] 1 for each limit that exists, else 0."""
    fixed: Any
    """[2N + 2G] 1 for θ, v, p and q that must not move."""
    cost: Any
    """[2G] c₂, then c₁."""
    rate: Any
    """[E] r = 1/s²."""
    weight: Any
    """[E] what a violation of a thermal limit, (p² + q²)/s² − 1, counts."""
    status: Any
    """[E] 1 for a branch in service, else 0."""
    elastic: Any
    """[1] ε."""


class Work(NamedTuple):
    """Iterates, and what one step needs."""

    x: Any
    """[2N] θ, v of each bus."""
    y: Any
    """[2N] λ_p, λ_q of each bus."""
    s: Any
    """[2G] p, then q."""
    z: Any
    mu: Any
    h: Any
    w: Any
    n: Any
    slope: Any
    """[6E] ∇h of the thermal limits, by θ_source − θ_target, v_source, v_target."""
    grad: Any
    """[2N] ∇L by θ, v."""
    step: Any
    """[4N] right-hand side, then step."""
    size: Any
    """[2G] curvature of p, q."""
    push: Any
    """[2G] gradient of p, q, with the barrier."""
    dz: Any
    dmu: Any
    ds: Any
    blocks: Any
    """[N + blocks, 16]"""
    inverse: Any
    """[N, 16]"""
    temporary: Any
    """[16]"""
    stats: Any
    """[9] see `evaluate`, `factorise` and `advance`."""
    gamma: Any
    centre: Any
    """1 over the number of inequalities."""
    shift: Any
    """Curvature added to θ and v, more than `CURVATURE` where the inertia is wrong."""


class Arc(NamedTuple):
    """Admittances of one arc, in every lane; see `ohm.py`."""

    g_self: Any
    b_self: Any
    g_mutual: Any
    b_mutual: Any


@compiled
def _part(array, ends, k):
    """Part k of several that are stored one after the other."""
    return array[ends[k] : ends[k + 1]]


@compiled
def gridded(whole, real, ends):
    """The `Grid` that is stored in two arrays, because every array that Python passes takes time."""
    return Grid(
        _part(whole, ends, 0),
        _part(whole, ends, 1),
        _part(whole, ends, 2),
        _part(whole, ends, 3),
        _part(whole, ends, 4),
        _part(whole, ends, 5),
        _part(whole, ends, 6),
        _part(whole, ends, 7),
        _part(whole, ends, 8),
        _part(whole, ends, 9),
        _part(whole, ends, 10),
        _part(whole, ends, 11),
        _part(real, ends, 13),
        _part(real, ends, 14),
        _part(real, ends, 15),
        _part(real, ends, 16),
        _part(real, ends, 17),
    )


@compiled
def spaced(space, ends):
    """The `Lane` and the `Work` that are stored in one array."""
    lane = Lane(
        _part(space, ends, 0),
        _part(space, ends, 1),
        _part(space, ends, 2),
        _part(space, ends, 3),
        _part(space, ends, 4),
        _part(space, ends, 5),
        _part(space, ends, 6),
        _part(space, ends, 7),
        _part(space, ends, 8),
        _part(space, ends, 9),
    )
    work = Work(
        _part(space, ends, 10),
        _part(space, ends, 11),
        _part(space, ends, 12),
        _part(space, ends, 13),
        _part(space, ends, 14),
        _part(space, ends, 15),
        _part(space, ends, 16),
        _part(space, ends, 17),
        _part(space, ends, 18),
        _part(space, ends, 19),
        _part(space, ends, 20),
        _part(space, ends, 21),
        _part(space, ends, 22),
        _part(space, ends, 23),
        _part(space, ends, 24),
        _part(space, ends, 25),
        _part(space, ends, 26),
        _part(space, ends, 27),
        _part(space, ends, 28),
        _part(space, ends, 29),
        _part(space, ends, 30),
        _part(space, ends, 31),
        _part(space, ends, 32),
    )
    return lane, work


@compiled
def sine(d):
    """sin and cos of an angle, to rounding: a series at an eighth of it, then doubled three times."""
    t = (d - TWO_PI * rounded(d * (1.0 / TWO_PI))) * 0.125
    u = t * t
    s = t * (1.0 + u * (-1.0 / 6 + u * (1.0 / 120 + u * (-1.0 / 5040 + u * (1.0 / 362880 + u * (-1.0 / 39916800))))))
    # m = 1 − cos, so that small angles keep their digits
    m = u * (
        0.5 + u * (-1.0 / 24 + u * (1.0 / 720 + u * (-1.0 / 40320 + u * (1.0 / 3628800 + u * (-1.0 / 479001600)))))
    )
    for _ in range(3):
        s, m = 2.0 * s * (1.0 - m), 2.0 * s * s
    return s, 1.0 - m


@compiled
def _weigh(lanes, work, lane, row, h, gamma, delta):
    """w, n and μ of an inequality; h, w and n are stored for `advance`."""
    z, mu, on = load(lanes, work.z, row), load(lanes, work.mu, row), load(lanes, lane.on, row)
    size = on / (z + delta * mu)
    w, n = mu * size, (gamma + mu * h) * size
    store(lanes, work.h, row, h)
    store(lanes, work.w, row, w)
    store(lanes, work.n, row, n)
    return w, n, mu


@compiled
def _add(lanes, array, k, value):
    store(lanes, array, k, load(lanes, array, k) + value)


@compiled
def _absolute(a):
    return largest(a, -a)


@compiled
def _buses(lanes, grid, lane, work):
    """Demands, shunts and voltage limits; every diagonal block and right-hand side begins here."""
    buses = grid.sizes[0]
    zero = splat(lanes, 0.0)
    gamma, shift = load(lanes, work.gamma, 0), load(lanes, work.shift, 0)
    elastic = load(lanes, lane.elastic, 0)
    blocks, step = work.blocks, work.step
    for k in range(16 * (buses + len(grid.rows))):
        store(lanes, blocks, k, zero)
    for i in range(buses):
        v, lp, lq = load(lanes, work.x, 2 * i + 1), load(lanes, work.y, 2 * i), load(lanes, work.y, 2 * i + 1)
        low = load(lanes, lane.lower, i) - v
        high = v - load(lanes, lane.upper, i)
        w0, n0, m0 = _weigh(lanes, work, lane, i, low, gamma, PROXIMAL)
        w1, n1, m1 = _weigh(lanes, work, lane, buses + i, high, gamma, PROXIMAL)
        gs, bs = splat(lanes, grid.shunt[i]), splat(lanes, grid.shunt[buses + i])
        bend = 2.0 * (lp * gs - lq * bs)
        first = v * bend + m1 - m0
        store(lanes, work.grad, 2 * i, zero)
        store(lanes, work.grad, 2 * i + 1, first)
        store(lanes, step, 4 * i, zero)
        store(lanes, step, 4 * i + 1, first + n1 - n0)
        store(lanes, step, 4 * i + 2, load(lanes, lane.demand, 2 * i) + gs * v * v - elastic * lp)
        store(lanes, step, 4 * i + 3, load(lanes, lane.demand, 2 * i + 1) - bs * v * v - elastic * lq)
        b = 16 * i
        store(lanes, blocks, b, shift + PINNED * load(lanes, lane.fixed, i))
        store(lanes, blocks, b + 5, bend + w0 + w1 + shift + PINNED * load(lanes, lane.fixed, buses + i))
        store(lanes, blocks, b + 9, 2.0 * gs * v)
        store(lanes, blocks, b + 13, -2.0 * bs * v)
        store(lanes, blocks, b + 10, -elastic)
        store(lanes, blocks, b + 15, -elastic)


@compiled
def _generators(lanes, grid, lane, work):
    """Costs and limits of p and q, which are eliminated. Returns the cost and the largest |∇L| by p and q."""
    buses, generators = grid.sizes[0], grid.sizes[1]
    zero = splat(lanes, 0.0)
    gamma = load(lanes, work.gamma, 0)
    cost, stationary = zero, zero
    for kind in range(2):
        first = 2 * buses + 2 * generators * kind
        for g in range(generators):
            k, i = kind * generators + g, grid.at[g]
            s, price = load(lanes, work.s, k), load(lanes, work.y, 2 * i + kind)
            c2, c1 = zero, zero
            if kind == 0:
                c2, c1 = load(lanes, lane.cost, g), load(lanes, lane.cost, generators + g)
                cost = cost + s * (c1 + c2 * s)
            low = load(lanes, lane.lower, buses + k) - s
            high = s - load(lanes, lane.upper, buses + k)
            w0, n0, m0 = _weigh(lanes, work, lane, first + g, low, gamma, PROXIMAL)
            w1, n1, m1 = _weigh(lanes, work, lane, first + generators + g, high, gamma, PROXIMAL)
            still = load(lanes, lane.fixed, 2 * buses + k)
            slope = 2.0 * c2 * s + c1 - price + m1 - m0
            stationary = largest(stationary, _absolute(slope) * (1.0 - still))
            curve = 2.0 * c2 + w0 + w1 + CURVATURE + PINNED * still
            push = slope + n1 - n0
            store(lanes, work.size, k, curve)
            store(lanes, work.push, k, push)
            # p and q enter the balance with −1: elimination adds −1/curve to its block, push/curve to its right side
            _add(lanes, work.step, 4 * i + 2 + kind, push / curve)
            _add(lanes, work.blocks, 16 * i + 10 + 5 * kind, -1.0 / curve)
    return cost, stationary


@compiled
def _branches(lanes, grid, lane, work):
    """Flows, thermal limits and angle limits: their part of every block and right-hand side."""
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    zero = splat(lanes, 0.0)
    gamma = load(lanes, work.gamma, 0)
    x, blocks, step, grad = work.x, work.blocks, work.step, work.grad
    angles = 2 * buses + 4 * generators
    thermal = angles + 2 * branches
    for e in range(branches):
        i, j = grid.source[e], grid.target[e]
        vi, vj = load(lanes, x, 2 * i + 1), load(lanes, x, 2 * j + 1)
        d = load(lanes, x, 2 * i) - load(lanes, x, 2 * j)
        sin, cos = sine(d)
        here, r = load(lanes, lane.status, e), load(lanes, lane.rate, e)
        low = load(lanes, lane.lower, buses + 2 * generators + e) - d
        high = d - load(lanes, lane.upper, buses + 2 * generators + e)
        w0, n0, m0 = _weigh(lanes, work, lane, angles + e, low, gamma, PROXIMAL)
        w1, n1, m1 = _weigh(lanes, work, lane, angles + branches + e, high, gamma, PROXIMAL)
        # H, ∇L, and ∇L with the barrier, by d, v_i, v_j
        hdd, hdi, hdj, hii, hij, hjj = w0 + w1, zero, zero, zero, zero, zero
        gd, gi, gj = m1 - m0, zero, zero
        nd, ni, nj = gd + n1 - n0, zero, zero
        o = 16 * grid.place[e]
        for end in range(2):  # the arc from i to j, then its reverse; u is its own end, t the other one
            f = 8 * e + 4 * end
            arc = Arc(
                grid.admittance[f] * here,
                grid.admittance[f + 1] * here,
                grid.admittance[f + 2] * here,
                grid.admittance[f + 3] * here,
            )
            bus, vu, vt, turn = i, vi, vj, sin
            if end == 1:
                bus, vu, vt, turn = j, vj, vi, -sin
            p, q = flows(arc, vu, vt, cos, turn)
            (pd, pu, pt), (qd, qu, qt) = slopes(arc, p, q, vu, vt)  # by the arc's own angle difference, v_u, v_t
            h = r * (p * p + q * q) - 1.0
            w, n, mu = _weigh(lanes, work, lane, thermal + end * branches + e, h, gamma, grid.proximal[e])
            td, tu, tt = 2.0 * r * (p * pd + q * qd), 2.0 * r * (p * pu + q * qu), 2.0 * r * (p * pt + q * qt)
            lp, lq = load(lanes, work.y, 2 * bus), load(lanes, work.y, 2 * bus + 1)
            rm, rn = 2.0 * r * mu, 2.0 * r * (mu + n)
            # λ_p p + λ_q q + μh has the gradient ap ∇p + aq ∇q; its Hessian is that of p and q plus rm (∇p∇pᵀ + ∇q∇qᵀ)
            ap, aq = lp + rm * p, lq + rm * q
            turned, cross = aq * pd - ap * qd, aq * qd + ap * pd
            ou, ot = 1.0 / vu, 1.0 / vt
            sdd = rm * (pd * pd + qd * qd) + w * td * td + turned
            sdu = rm * (pd * pu + qd * qu) + w * td * tu + cross * ou
            sdt = rm * (pd * pt + qd * qt) + w * td * tt + cross * ot
            suu = rm * (pu * pu + qu * qu) + w * tu * tu + 2.0 * (ap * arc.g_self - aq * arc.b_self)
            sut = rm * (pu * pt + qu * qt) + w * tu * tt - turned * ou * ot
            stt = rm * (pt * pt + qt * qt) + w * tt * tt
            fd, fu, ft = ap * pd + aq * qd, ap * pu + aq * qu, ap * pt + aq * qt
            bp, bq = lp + rn * p, lq + rn * q
            md, mv, mt = bp * pd + bq * qd, bp * pu + bq * qu, bp * pt + bq * qt
            hdd, hij = hdd + sdd, hij + sut
            k, b = 3 * (end * branches + e), 16 * bus
            _add(lanes, step, 4 * bus + 2, p)
            _add(lanes, step, 4 * bus + 3, q)
            _add(lanes, blocks, b + 8, pd)
            _add(lanes, blocks, b + 9, pu)
            _add(lanes, blocks, b + 12, qd)
            _add(lanes, blocks, b + 13, qu)
            if end == 0:
                store(lanes, work.slope, k, td)
                store(lanes, work.slope, k + 1, tu)
                store(lanes, work.slope, k + 2, tt)
                hdi, hdj, hii, hjj = hdi + sdu, hdj + sdt, hii + suu, hjj + stt
                gd, gi, gj, nd, ni, nj = gd + fd, gi + fu, gj + ft, nd + md, ni + mv, nj + mt
                _add(lanes, blocks, o + 8, -pd)
                _add(lanes, blocks, o + 9, pt)
                _add(lanes, blocks, o + 12, -qd)
                _add(lanes, blocks, o + 13, qt)
            else:  # the arc's angle difference is −d
                store(lanes, work.slope, k, -td)
                store(lanes, work.slope, k + 1, tt)
                store(lanes, work.slope, k + 2, tu)
                hdi, hdj, hii, hjj = hdi - sdt, hdj - sdu, hii + stt, hjj + suu
                gd, gi, gj, nd, ni, nj = gd - fd, gi + ft, gj + fu, nd - md, ni + mt, nj + mv
                _add(lanes, blocks, o + 2, -pd)
                _add(lanes, blocks, o + 3, -qd)
                _add(lanes, blocks, o + 6, pt)
                _add(lanes, blocks, o + 7, qt)
        _add(lanes, grad, 2 * i, gd)
        _add(lanes, grad, 2 * j, -gd)
        _add(lanes, grad, 2 * i + 1, gi)
        _add(lanes, grad, 2 * j + 1, gj)
        _add(lanes, step, 4 * i, nd)
        _add(lanes, step, 4 * j, -nd)
        _add(lanes, step, 4 * i + 1, ni)
        _add(lanes, step, 4 * j + 1, nj)
        b, a = 16 * i, 16 * j
        _add(lanes, blocks, b, hdd)
        _add(lanes, blocks, b + 4, hdi)
        _add(lanes, blocks, b + 5, hii)
        _add(lanes, blocks, a, hdd)
        _add(lanes, blocks, a + 4, -hdj)
        _add(lanes, blocks, a + 5, hjj)
        _add(lanes, blocks, o, -hdd)
        _add(lanes, blocks, o + 1, hdj)
        _add(lanes, blocks, o + 4, -hdi)
        _add(lanes, blocks, o + 5, hij)


@compiled
def evaluate(lanes, grid, lane, work):
    """The matrix and right-hand side at the iterates.

    Into stats 0 to 5: largest |g| and weighted h; Σ zμ; largest |∇L|, relative to the largest price, and that price;
    cost. Into stats 8: Σ |λg| + Σ μ|h + z|, what the violations save.
    """
    buses, branches = grid.sizes[0], grid.sizes[2]
    _buses(lanes, grid, lane, work)
    # first the branches, because a balance is read before the elimination of p and q changes its right-hand side
    _branches(lanes, grid, lane, work)
    step, zero = work.step, splat(lanes, 0.0)
    most, size, saved = zero, splat(lanes, 1.0), zero
    for g in range(grid.sizes[1]):
        for kind in range(2):
            k = 4 * grid.at[g] + 2 + kind
            store(lanes, step, k, load(lanes, step, k) - load(lanes, work.s, kind * grid.sizes[1] + g))
    for i in range(buses):
        for c in range(2):
            off, price = _absolute(load(lanes, step, 4 * i + 2 + c)), _absolute(load(lanes, work.y, 2 * i + c))
            most, size, saved = largest(most, off), largest(size, price), saved + off * price
    cost, stationary = _generators(lanes, grid, lane, work)
    for i in range(buses):
        for c in range(2):
            free = 1.0 - load(lanes, lane.fixed, c * buses + i)
            stationary = largest(stationary, _absolute(load(lanes, work.grad, 2 * i + c)) * free)
            store(lanes, step, 4 * i + c, -load(lanes, step, 4 * i + c) * free)
            store(lanes, step, 4 * i + 2 + c, -load(lanes, step, 4 * i + 2 + c))
    slack, beyond = zero, zero
    thermal = 2 * buses + 4 * grid.sizes[1] + 2 * branches
    for row in range(thermal + 2 * branches):
        on = load(lanes, lane.on, row)
        z, mu, h = load(lanes, work.z, row), load(lanes, work.mu, row) * on, load(lanes, work.h, row) * on
        slack, saved = slack + z * mu, saved + mu * _absolute(h + z)
        if row >= thermal:
            h = h * load(lanes, lane.weight, (row - thermal) % branches)
        beyond = largest(beyond, h)
    store(lanes, work.stats, 0, most)
    store(lanes, work.stats, 1, beyond)
    store(lanes, work.stats, 2, slack)
    store(lanes, work.stats, 3, stationary / size)
    store(lanes, work.stats, 4, size)
    store(lanes, work.stats, 5, cost)
    store(lanes, work.stats, 8, saved)


@compiled
def factorise(lanes, grid, work):
    """Eliminate all buses: P⁻¹ of each, and changes to later blocks. Into stats 6: number of negative eigenvalues."""
    buses = grid.sizes[0]
    blocks, inverse, temporary = work.blocks, work.inverse, work.temporary
    negative = splat(lanes, 0.0)
    u = 0
    for k in range(buses):
        negative = negative + invert(lanes, blocks, 16 * k, inverse, 16 * k)
        first, last = grid.columns[k], grid.columns[k + 1]
        for c in range(first, last):
            times(lanes, blocks, 16 * (buses + c), inverse, 16 * k, temporary, 0)
            for d in range(first, c):
                subtract_product(lanes, blocks, 16 * grid.updates[u], temporary, 0, blocks, 16 * (buses + d))
                u += 1
            subtract_square(lanes, blocks, 16 * grid.rows[c], temporary, 0, blocks, 16 * (buses + c))
    store(lanes, work.stats, 6, negative)


@compiled
def substitute(lanes, grid, work):
    """Solve with the factorisation: `step` is the right-hand side before, the solution after."""
    buses = grid.sizes[0]
    blocks, inverse, step, temporary = work.blocks, work.inverse, work.step, work.temporary
    zero = splat(lanes, 0.0)
    for k in range(buses):
        for m in range(4):
            store(lanes, temporary, m, zero)
        subtract_applied(lanes, temporary, 0, inverse, 16 * k, step, 4 * k)  # −P⁻¹ y
        for m in range(4):
            store(lanes, temporary, m, -load(lanes, temporary, m))
        for c in range(grid.columns[k], grid.columns[k + 1]):
            subtract_applied(lanes, step, 4 * grid.rows[c], blocks, 16 * (buses + c), temporary, 0)
        for m in range(4):
            store(lanes, step, 4 * k + m, load(lanes, temporary, m))
    for k in range(buses - 1, -1, -1):
        for m in range(4):
            store(lanes, temporary, m, zero)
        for c in range(grid.columns[k], grid.columns[k + 1]):
            subtract_transposed(lanes, temporary, 0, blocks, 16 * (buses + c), step, 4 * grid.rows[c])
        for m in range(4):
            store(lanes, temporary, m, -load(lanes, temporary, m))
        subtract_applied(lanes, step, 4 * k, inverse, 16 * k, temporary, 0)


@compiled
def _ratio(lanes, work, lane, row, change, primal, dual, delta):
    """Δz and Δμ of an inequality for a change of h, and the shares of the step that keep z and μ above zero."""
    on = load(lanes, lane.on, row)
    h, z, mu = load(lanes, work.h, row), load(lanes, work.z, row), load(lanes, work.mu, row)
    dmu = (load(lanes, work.n, row) + load(lanes, work.w, row) * change) * on
    dz = (delta * dmu - h - z - change) * on
    store(lanes, work.dz, row, dz)
    store(lanes, work.dmu, row, dmu)
    zero, all_of_it = splat(lanes, 0.0), splat(lanes, 1e20)
    primal = smallest(primal, below(dz, zero, z / -dz, all_of_it))
    dual = smallest(dual, below(dmu, zero, mu / -dmu, all_of_it))
    return primal, dual


@compiled
def advance(lanes, grid, lane, work, moving, settings):
    """Take the step, shortened to keep z and μ above zero and changes of v and of angle differences small.

    Into stats 7: the share of the primal step. `moving` [W] is 1 for lanes that move, else 0; `settings` are
    `kernel.Settings`.
    """
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    step = work.step
    primal, dual = splat(lanes, 1e20), splat(lanes, 1e20)
    angles = 2 * buses + 4 * generators
    thermal = angles + 2 * branches
    most_v, most_d = splat(lanes, 1e-20), splat(lanes, 1e-20)
    for i in range(buses):
        for c in range(2):
            free = 1.0 - load(lanes, lane.fixed, c * buses + i)
            store(lanes, step, 4 * i + c, load(lanes, step, 4 * i + c) * free)
        d = load(lanes, step, 4 * i + 1)
        most_v = largest(most_v, _absolute(d))
        primal, dual = _ratio(lanes, work, lane, i, -d, primal, dual, PROXIMAL)
        primal, dual = _ratio(lanes, work, lane, buses + i, d, primal, dual, PROXIMAL)
    for kind in range(2):
        first = 2 * buses + 2 * generators * kind
        for g in range(generators):
            k = kind * generators + g
            d = load(lanes, step, 4 * grid.at[g] + 2 + kind) - load(lanes, work.push, k)
            d = d / load(lanes, work.size, k) * (1.0 - load(lanes, lane.fixed, 2 * buses + k))
            store(lanes, work.ds, k, d)
            primal, dual = _ratio(lanes, work, lane, first + g, -d, primal, dual, PROXIMAL)
            primal, dual = _ratio(lanes, work, lane, first + generators + g, d, primal, dual, PROXIMAL)
    for e in range(branches):
        i, j = grid.source[e], grid.target[e]
        d = load(lanes, step, 4 * i) - load(lanes, step, 4 * j)
        di, dj = load(lanes, step, 4 * i + 1), load(lanes, step, 4 * j + 1)
        most_d = largest(most_d, _absolute(d) * load(lanes, lane.status, e))
        primal, dual = _ratio(lanes, work, lane, angles + e, -d, primal, dual, PROXIMAL)
        primal, dual = _ratio(lanes, work, lane, angles + branches + e, d, primal, dual, PROXIMAL)
        for end in range(2):
            k, row = 3 * (end * branches + e), thermal + end * branches + e
            slope, first, second = (
                load(lanes, work.slope, k),
                load(lanes, work.slope, k + 1),
                load(lanes, work.slope, k + 2),
            )
            change = slope * d + first * di + second * dj
            primal, dual = _ratio(lanes, work, lane, row, change, primal, dual, grid.proximal[e])
    one, move = splat(lanes, 1.0), load(lanes, moving, 0)
    small = smallest(settings.voltage / most_v, settings.angle / most_d)
    primal = smallest(smallest(one, primal * settings.boundary), small) * move
    dual = smallest(one, dual * settings.boundary) * move
    store(lanes, work.stats, 7, primal)
    for i in range(buses):
        for c in range(2):
            _add(lanes, work.x, 2 * i + c, primal * load(lanes, step, 4 * i + c))
            _add(lanes, work.y, 2 * i + c, dual * load(lanes, step, 4 * i + 2 + c))
    for k in range(2 * generators):
        _add(lanes, work.s, k, primal * load(lanes, work.ds, k))
    slack = splat(lanes, 0.0)
    for row in range(thermal + 2 * branches):
        z = load(lanes, work.z, row) + primal * load(lanes, work.dz, row)
        mu = load(lanes, work.mu, row) + dual * load(lanes, work.dmu, row)
        store(lanes, work.z, row, z)
        store(lanes, work.mu, row, mu)
        slack = slack + z * mu * load(lanes, lane.on, row)
    # γ is σ times the average zμ. The further this step went, the smaller σ is for the next one.
    left = 1.0 - smallest(primal, dual)
    sigma = smallest(splat(lanes, settings.most), largest(splat(lanes, settings.least), left * left))
    # Not far below what is asked for: z and μ that vanish before ∇L does would hold the iterates where they are.
    enough = 0.1 * settings.complementary * largest(one, _absolute(load(lanes, work.stats, 5)))
    store(lanes, work.gamma, 0, largest(slack * sigma, enough) * load(lanes, work.centre, 0))

"""The interior point for many demands, W side by side, and the certificate of states: what Python calls.

Rows are in the network's own order and per unit; `newton.py` has the method, and its order of elimination.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .newton import (
    CURVATURE,
    Arc,
    advance,
    compiled,
    evaluate,
    factorise,
    flows,
    gridded,
    spaced,
    substitute,
)

COLD, STATE, SOLUTION = 0.0, 1.0, 2.0
"""Where a row begins: at θ and v of its state and the middle of its generators; at its state; with multipliers too."""
START, ROOM = 10.0, 0.3
"""zμ, and the least z, at a start without multipliers."""
NEAR, SHARE = 1e-5, 0.01
"""zμ at a start with multipliers: at least the first; the second is its ratio to the largest mismatch of a balance."""
TRUSTED = 0.1
"""At a start with multipliers a limit is active if its distance is at most this, times its multiplier."""
FIRST = 0.2
"""σ of the first step."""
OPTIMAL, EXHAUSTED, STALLED, BROKEN, DISTANT = 0, 1, 2, 3, 4
"""How a row ends: solved; too many iterations; no progress towards feasibility; values that are not finite; the start
with multipliers was too far to be of use."""
ATTEMPTS = 24
"""Maximum number of factorisations of one step, each with four times the curvature of the one before."""


class Settings(NamedTuple):
    """When a solve ends, and how far it steps. Sums are relative to the cost, ∇L to the largest price."""

    feasible: float = 1e-8
    """Largest mismatch of a balance, per unit, and violation of a limit; of a thermal limit (p² + q²)/s² − 1."""
    absolute: bool = False
    """Whether thermal limits above 1 p.u. are in p.u.², as in a certificate."""
    complementary: float = 1e-9
    """Largest Σ zμ."""
    stationary: float = 1e-5
    """Largest |∇L|. Without this test, states up to .9 % too dear would pass."""
    saved: float = 1e-7
    """Largest Σ |λg| + Σ μ|h + z|: where prices are high, small violations save much."""
    nearly: tuple[float, float, float, float] = (1e-6, 1e-7, 1e-4, 1e-5)
    """The same four tolerances, at which a solve ends that has met them for `wait` iterations."""
    furthest: float = 1.0
    """Largest mismatch of a balance, per unit, at a start with multipliers; further away a cold start is faster."""
    wait: int = 8
    most: float = 0.8
    """Largest σ, the share of the average zμ that a step aims for."""
    least: float = 0.05
    """Least σ."""
    boundary: float = 0.99995
    """ξ, the share of the way to z = 0 or μ = 0 that a step may take."""
    voltage: float = 0.1
    """Largest change of v in a step, per unit."""
    angle: float = 0.3
    """Largest change of an angle difference in a step, rad."""
    curvature: float = 1e-2
    """First curvature tried where the matrix has the wrong inertia."""
    iterations: int = 200
    patience: int = 25
    """Iterations without better feasibility, after which a solve is given up."""


class Rows(NamedTuple):
    """B problems, [B, …] each, or [1, …] where all rows share it."""

    demand: Any
    """[B, 2N] p^d, then q^d."""
    parameters: Any
    """[., P] those of `Parameters`, one after the other."""
    start: Any
    """[., 1 + 2S + m] COLD, STATE or SOLUTION; p, q, v, θ; multipliers as in `acopf.py`: of the balances, of thermal
    limits and of angle differences, then of the bounds of a state, in $/h."""


class Parameters(NamedTuple):
    """Parameters of a row, other than its demand."""

    lower: Any
    """[N + 2G + E] lower limits of v, p, q and angle differences."""
    upper: Any
    limit: Any
    """[E] thermal limits."""
    cost: Any
    """[3G] c₂, c₁, c₀ in $/h."""
    branch: Any
    """[E] 1 in service, 0 out of service."""
    generator: Any
    """[G] likewise."""
    elastic: Any
    """ε"""


class Found(NamedTuple):
    """What is found for B problems."""

    point: Any
    """[B, 2S + m] state, multipliers, and multipliers of bounds."""
    summary: Any
    """[B, 12] objective in $/h; OPTIMAL, EXHAUSTED, …; iterations; the 9 stats of the last iterate, see `newton.py`."""


@compiled
def _of(array, row):
    """The values of a row."""
    return array[row if len(array) > 1 else 0]


@compiled
def _parameters(grid, rows, row):
    """The `Parameters` of a row."""
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    all_of_them = _of(rows.parameters, row)
    bounds = buses + 2 * generators + branches
    cost = 2 * bounds + branches
    branch = cost + 3 * generators
    generator = branch + branches
    return Parameters(
        all_of_them[:bounds],
        all_of_them[bounds : 2 * bounds],
        all_of_them[2 * bounds : cost],
        all_of_them[cost:branch],
        all_of_them[branch:generator],
        all_of_them[generator : generator + generators],
        all_of_them[generator + generators],
    )


@compiled
def _settled(width, own, demand, given, grid, lane, absolute):
    """Set the parameters of one lane; returns the number of its limits."""
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    lower, upper, limit, cost, branch, generator, lane.elastic[own] = given
    count = 0.0
    for k in range(buses + 2 * generators):
        # the bounds of v, p and q: h has its lower limits at `first`, its upper ones `size` later
        if k < buses:
            low, high, first, size = lower[grid.order[k]], upper[grid.order[k]], k, buses
        else:
            kind, g = (k - buses) // generators, (k - buses) % generators
            low, high = lower[k], upper[k]
            if generator[g] == 0.0:
                low, high = 0.0, 0.0
            first, size = 2 * buses + 2 * generators * kind + g, generators
        still = 1.0 if low == high else 0.0
        below, above = math.isfinite(low), math.isfinite(high)
        lane.fixed[(buses + k) * width + own] = still
        lane.lower[k * width + own] = low if below else 0.0
        lane.upper[k * width + own] = high if above else 0.0
        lane.on[first * width + own] = 1.0 if below and still == 0.0 else 0.0
        lane.on[(first + size) * width + own] = 1.0 if above and still == 0.0 else 0.0
        count += lane.on[first * width + own] + lane.on[(first + size) * width + own]
    for i in range(buses):
        bus = grid.order[i]
        lane.fixed[i * width + own] = grid.pinned[i]
        lane.demand[2 * i * width + own], lane.demand[(2 * i + 1) * width + own] = demand[bus], demand[buses + bus]
    for k in range(2 * generators):
        lane.cost[k * width + own] = cost[k] / grid.unit[0]
    angles = 2 * buses + 4 * generators
    for e in range(branches):
        k = buses + 2 * generators + e
        low, high = lower[k], upper[k]
        if grid.flipped[e]:
            low, high = -high, -low
        here = branch[e]
        below, above, rated = math.isfinite(low), math.isfinite(high), math.isfinite(limit[e])
        lane.status[e * width + own] = here
        lane.lower[k * width + own] = low if below else 0.0
        lane.upper[k * width + own] = high if above else 0.0
        lane.rate[e * width + own] = 1.0 / (limit[e] * limit[e]) if rated else 0.0
        lane.weight[e * width + own] = max(1.0, limit[e] * limit[e]) if rated and absolute else 1.0
        lane.on[(angles + e) * width + own] = here if below else 0.0
        lane.on[(angles + branches + e) * width + own] = here if above else 0.0
        lane.on[(angles + 2 * branches + e) * width + own] = here if rated else 0.0
        lane.on[(angles + 3 * branches + e) * width + own] = here if rated else 0.0
        for k in range(4):
            count += lane.on[(angles + k * branches + e) * width + own]
    return count


@compiled
def _point(width, own, state, how, given, grid, work):
    """Set θ, v, p and q of one lane, within their bounds."""
    buses, generators = grid.sizes[0], grid.sizes[1]
    lower, upper = given.lower, given.upper
    for i in range(buses):
        bus = grid.order[i]
        theta = state[2 * generators + buses + bus]
        work.x[2 * i * width + own] = 0.0 if grid.pinned[i] else theta
        work.x[(2 * i + 1) * width + own] = min(max(state[2 * generators + bus], lower[bus]), upper[bus])
    for k in range(2 * generators):
        on = given.generator[k % generators]
        low, high = lower[buses + k], upper[buses + k]
        if how == COLD:
            value = 0.0
            if math.isfinite(low) and math.isfinite(high):
                value = 0.5 * (low + high)
            work.s[k * width + own] = min(max(value, low), high) if on else 0.0
        else:
            work.s[k * width + own] = min(max(state[k], low), high) if on else 0.0


@compiled
def _flow(width, own, grid, lane, e, end, vi, vj, cos, sin):
    """p and q of one arc in one lane."""
    f, here = 8 * e + 4 * end, lane.status[e * width + own]
    y = grid.admittance
    arc = Arc(y[f] * here, y[f + 1] * here, y[f + 2] * here, y[f + 3] * here)
    return flows(arc, vi, vj, cos, sin) if end == 0 else flows(arc, vj, vi, cos, -sin)


@compiled
def _limits(width, own, grid, lane, work):
    """h of one lane at its point; returns the largest mismatch of a balance."""
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    x, h, balance = work.x, work.h, work.step
    for i in range(buses):
        v = x[(2 * i + 1) * width + own]
        h[i * width + own] = lane.lower[i * width + own] - v
        h[(buses + i) * width + own] = v - lane.upper[i * width + own]
        balance[4 * i * width + own] = lane.demand[2 * i * width + own] + grid.shunt[i] * v * v
        balance[(4 * i + 1) * width + own] = lane.demand[(2 * i + 1) * width + own] - grid.shunt[buses + i] * v * v
    for k in range(2 * generators):
        kind, g = k // generators, k % generators
        first, s = 2 * buses + 2 * generators * kind + g, work.s[k * width + own]
        h[first * width + own] = lane.lower[(buses + k) * width + own] - s
        h[(first + generators) * width + own] = s - lane.upper[(buses + k) * width + own]
        balance[(4 * grid.at[g] + kind) * width + own] -= s
    angles = 2 * buses + 4 * generators
    for e in range(branches):
        i, j, k = grid.source[e], grid.target[e], (buses + 2 * generators + e) * width + own
        d = x[2 * i * width + own] - x[2 * j * width + own]
        h[(angles + e) * width + own] = lane.lower[k] - d
        h[(angles + branches + e) * width + own] = d - lane.upper[k]
        vi, vj, cos, sin = x[(2 * i + 1) * width + own], x[(2 * j + 1) * width + own], math.cos(d), math.sin(d)
        for end in range(2):
            p, q = _flow(width, own, grid, lane, e, end, vi, vj, cos, sin)
            bus = i if end == 0 else j
            balance[4 * bus * width + own] += p
            balance[(4 * bus + 1) * width + own] += q
            at = (angles + (2 + end) * branches + e) * width + own
            h[at] = lane.rate[e * width + own] * (p * p + q * q) - 1.0
    far = 0.0
    for i in range(buses):
        far = max(far, abs(balance[4 * i * width + own]), abs(balance[(4 * i + 1) * width + own]))
    return far


@compiled
def _multipliers(width, own, given, bounds, grid, work):
    """Set λ and μ of one lane to those of a solution."""
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    scale = 1.0 / grid.unit[0]
    mu = work.mu
    for i in range(buses):
        bus = grid.order[i]
        work.y[2 * i * width + own] = scale * given[bus]
        work.y[(2 * i + 1) * width + own] = scale * given[buses + bus]
        of_v = scale * bounds[2 * generators + bus]
        mu[i * width + own], mu[(buses + i) * width + own] = max(0.0, -of_v), max(0.0, of_v)
    for k in range(2 * generators):
        first = 2 * buses + 2 * generators * (k // generators) + k % generators
        of_s = scale * bounds[k]
        mu[first * width + own], mu[(first + generators) * width + own] = max(0.0, -of_s), max(0.0, of_s)
    angles = 2 * buses + 4 * generators
    for e in range(branches):
        turned = scale * given[grid.angled[e]] if grid.angled[e] >= 0 else 0.0
        if grid.flipped[e]:
            turned = -turned
        mu[(angles + e) * width + own], mu[(angles + branches + e) * width + own] = max(0.0, -turned), max(0.0, turned)
        for end in range(2):
            k = grid.rated[end * branches + e]
            at = angles + (2 + (1 - end if grid.flipped[e] else end)) * branches + e
            mu[at * width + own] = max(0.0, scale * given[k]) if k >= 0 else 0.0


@compiled
def _begin(width, own, row, grid, rows, lane, work, settings):
    """Set up one lane for a row: its parameters and start. Returns False if the start is too far to be of use.

    Without multipliers z = max(−h, ROOM) and μ = START/z. With multipliers zμ = max(NEAR, SHARE ‖g‖): the better the
    start satisfies its balances, the closer to its limits it may begin.
    """
    given, start = _parameters(grid, rows, row), _of(rows.start, row)
    size, how = 2 * grid.sizes[1] + 2 * grid.sizes[0], start[0]
    count = _settled(width, own, _of(rows.demand, row), given, grid, lane, settings.absolute)
    _point(width, own, start[1 : 1 + size], how, given, grid, work)
    far = _limits(width, own, grid, lane, work)
    warm = 0.0
    if how == SOLUTION:
        if not far <= settings.furthest:
            return False
        warm = max(NEAR, SHARE * far)
    if warm > 0.0:
        _multipliers(width, own, start[1 + size : -size], start[-size:], grid, work)
    else:
        for k in range(2 * grid.sizes[0]):
            work.y[k * width + own] = 0.0
    z, mu, h, slack = work.z, work.mu, work.h, 0.0
    for k in range(len(h) // width):
        at = k * width + own
        if lane.on[at] == 0.0:
            z[at], mu[at] = 1.0, 0.0
        elif warm == 0.0:
            z[at] = max(-h[at], ROOM)
            mu[at] = START / z[at]
        elif TRUSTED * mu[at] > -h[at] and mu[at] > math.sqrt(warm):  # active, unless the state denies it
            z[at] = warm / mu[at]
        else:
            z[at] = max(-h[at], math.sqrt(warm))
            mu[at] = warm / z[at]
        slack += lane.on[at] * z[at] * mu[at]
    work.centre[own] = 1.0 / max(count, 1.0)
    work.gamma[own] = FIRST * work.centre[own] * slack
    work.shift[own] = CURVATURE
    return True


@compiled
def _finish(width, own, row, grid, rows, lane, work, found):
    """Store what one lane found, with multipliers as `acopf.py` has them; those of fixed variables follow from ∇L."""
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    size, point = 2 * generators + 2 * buses, found.point[row]
    state, multipliers, bounds = point[:size], point[size:-size], point[-size:]
    unit, mu, grad = grid.unit[0], work.mu, work.grad
    for i in range(buses):
        bus = grid.order[i]
        theta, v = 2 * generators + buses + bus, 2 * generators + bus
        state[theta], state[v] = work.x[2 * i * width + own], work.x[(2 * i + 1) * width + own]
        multipliers[bus] = unit * work.y[2 * i * width + own]
        multipliers[buses + bus] = unit * work.y[(2 * i + 1) * width + own]
        bounds[theta] = -unit * grad[2 * i * width + own] * grid.pinned[i]
        bounds[v] = unit * (mu[(buses + i) * width + own] - mu[i * width + own])
        if lane.fixed[(buses + i) * width + own] > 0.0:
            bounds[v] = -unit * grad[(2 * i + 1) * width + own]
    given, objective = _parameters(grid, rows, row), 0.0
    cost, generator = given.cost, given.generator
    for k in range(2 * generators):
        kind, g = k // generators, k % generators
        first, s = 2 * buses + 2 * generators * kind + g, work.s[k * width + own]
        marginal = 0.0
        if kind == 0:
            marginal = 2.0 * cost[g] * s + cost[generators + g]
            objective += generator[g] * (s * (cost[g] * s + cost[generators + g]) + cost[2 * generators + g])
        state[k] = s
        bounds[k] = unit * (mu[(first + generators) * width + own] - mu[first * width + own])
        if lane.fixed[(2 * buses + k) * width + own] > 0.0:
            bounds[k] = unit * work.y[(2 * grid.at[g] + kind) * width + own] - marginal
    angles = 2 * buses + 4 * generators
    for e in range(branches):
        turned = mu[(angles + branches + e) * width + own] - mu[(angles + e) * width + own]
        if grid.angled[e] >= 0:
            multipliers[grid.angled[e]] = -unit * turned if grid.flipped[e] else unit * turned
        for end in range(2):
            k = grid.rated[end * branches + e]
            at = angles + (2 + (1 - end if grid.flipped[e] else end)) * branches + e
            if k >= 0:
                multipliers[k] = unit * mu[at * width + own]
    found.summary[row, 0] = objective
    for k in range(9):
        found.summary[row, 3 + k] = work.stats[k * width + own]


@compiled
def solve(lanes, stored, space, ends, rows, found, settings):
    """Solve all rows, W side by side; a lane that is done takes the next row.

    `lanes` is a tuple of length W, `stored` has the arguments of `gridded`, `space` is room for `Lane` and `Work`,
    whose parts end at `ends`, and `settings` are `Settings`.
    """
    grid = gridded(*stored)
    lane, work = spaced(space, ends)
    width, total = len(lanes), len(found.point)
    held = np.full(width, -1)
    count, since, waited = np.zeros(width, np.int64), np.zeros(width, np.int64), np.zeros(width, np.int64)
    best, moving = np.zeros(width), np.zeros(width)
    following = 0
    while True:
        busy = False
        for own in range(width):
            while held[own] < 0 and following < total:
                if _begin(width, own, following, grid, rows, lane, work, settings):
                    held[own], moving[own], best[own] = following, 1.0, np.inf
                    count[own] = since[own] = waited[own] = 0
                else:
                    found.summary[following, 1], found.summary[following, 2] = DISTANT, 0
                following += 1
            busy = busy or held[own] >= 0
        if not busy:
            return
        evaluate(lanes, grid, lane, work)
        busy = False
        for own in range(width):
            if held[own] < 0:
                continue
            far = max(work.stats[own], work.stats[width + own])
            cost = max(abs(work.stats[5 * width + own]), 1.0)
            gap, saved = work.stats[2 * width + own] / cost, work.stats[8 * width + own] / cost
            slope = work.stats[3 * width + own]
            near = far <= settings.nearly[0] and gap <= settings.nearly[1] and slope <= settings.nearly[2]
            near = near and saved <= settings.nearly[3]
            if near:
                waited[own] += 1
            done = far <= settings.feasible and gap <= settings.complementary and slope <= settings.stationary
            done = done and saved <= settings.saved
            code = -1
            if not (math.isfinite(far) and math.isfinite(gap) and math.isfinite(slope)):
                code = BROKEN
            elif done or (near and waited[own] > settings.wait):
                code = OPTIMAL
            elif count[own] >= settings.iterations:
                code = EXHAUSTED
            elif far < 0.9 * best[own] or far <= settings.feasible:
                best[own], since[own] = far, count[own]
            elif count[own] - since[own] >= settings.patience:
                code = STALLED
            if code >= 0:
                _finish(width, own, held[own], grid, rows, lane, work, found)
                found.summary[held[own], 1], found.summary[held[own], 2] = code, count[own]
                held[own], moving[own] = -1, 0.0
            else:
                count[own] += 1
                busy = True
        if not busy:
            continue
        factorise(lanes, grid, work)
        for _ in range(ATTEMPTS):
            again = False
            for own in range(width):
                if held[own] >= 0 and work.stats[6 * width + own] != 2.0 * grid.sizes[0]:
                    work.shift[own] = max(settings.curvature, 4.0 * work.shift[own])
                    again = True
            if not again:
                break
            evaluate(lanes, grid, lane, work)
            factorise(lanes, grid, work)
        substitute(lanes, grid, work)
        advance(lanes, grid, lane, work, moving, settings)
        for own in range(width):
            work.shift[own] = 0.25 * work.shift[own] if work.shift[own] > settings.curvature else CURVATURE


@compiled
def check(stored, rows, states, found):
    """The certificate of states [B, 2G + 2N] for rows [B]: largest ν of every law, cost, and the sum of all values.

    Into found [B, 9]: voltage, angle, active, reactive, thermal, balance_p, balance_q; cost; sum, not finite if a value
    is not.
    """
    grid = gridded(*stored)
    buses, generators, branches = grid.sizes[0], grid.sizes[1], grid.sizes[2]
    balance = np.empty(2 * buses)
    for row in range(len(states)):
        state, worst, total, cost = states[row], found[row], 0.0, 0.0
        demand = _of(rows.demand, row)
        lower, upper, limit, prices, branch, generator, _ = _parameters(grid, rows, row)
        worst[:] = 0.0
        for i in range(buses):
            bus = grid.order[i]
            v = state[2 * generators + bus]
            worst[0] = max(worst[0], lower[bus] - v, v - upper[bus])
            balance[2 * i] = demand[bus] + grid.shunt[i] * v * v
            balance[2 * i + 1] = demand[buses + bus] - grid.shunt[buses + i] * v * v
        for k in range(2 * generators):
            kind, g, s = k // generators, k % generators, state[k]
            low, high = lower[buses + k], upper[buses + k]
            if generator[g] == 0.0:
                low, high = 0.0, 0.0
            worst[2 + kind] = max(worst[2 + kind], low - s, s - high)
            balance[2 * grid.at[g] + kind] -= s
            if kind == 0:
                cost += generator[g] * (s * (prices[g] * s + prices[generators + g]) + prices[2 * generators + g])
        for e in range(branches):
            if branch[e] == 0.0:
                continue
            i, j = grid.source[e], grid.target[e]
            one, two = 2 * generators + grid.order[i], 2 * generators + grid.order[j]
            d, vi, vj = state[buses + one] - state[buses + two], state[one], state[two]
            k, turned = buses + 2 * generators + e, -d if grid.flipped[e] else d
            worst[1] = max(worst[1], lower[k] - turned, turned - upper[k])
            cos, sin = math.cos(d), math.sin(d)
            y, f = grid.admittance, 8 * e
            p, q = flows(Arc(y[f], y[f + 1], y[f + 2], y[f + 3]), vi, vj, cos, sin)
            back_p, back_q = flows(Arc(y[f + 4], y[f + 5], y[f + 6], y[f + 7]), vj, vi, cos, -sin)
            balance[2 * i] += p
            balance[2 * i + 1] += q
            balance[2 * j] += back_p
            balance[2 * j + 1] += back_q
            most = max(p * p + q * q, back_p * back_p + back_q * back_q)
            worst[4] = max(worst[4], most - limit[e] * limit[e])
            total += most + turned
        for i in range(buses):
            worst[5] = max(worst[5], abs(balance[2 * i]))
            worst[6] = max(worst[6], abs(balance[2 * i + 1]))
            total += balance[2 * i] + balance[2 * i + 1]
        for k in range(len(state)):
            total += state[k]
        worst[7], worst[8] = cost, total

"""The doctor: reports from a history which constraints are violated, why, and what to change."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..io.text import number
from .dual import Dual
from .history import History

# Thresholds, tuned on the histories of many dual rules on many problems. A share is Σλν divided by the loss.
IDLE, DOMINATING, INFEASIBLE = 0.005, 0.5, 1.0
FLAT = 0.95
"""ν now divided by ν halfway: above this, ν counts as not falling."""
RUNAWAY = 5.0
COUNTERPRODUCTIVE = 1.5
OPPOSED = -0.5
"""Two constraints conflict if the cosine between their gradients is below this."""


@dataclass(frozen=True)
class Advice:
    """The doctor's advice on one constraint."""

    constraint: str
    verdict: str
    """never active, satisfied, idle, not enforced, still falling, oscillating, infeasible, runaway, counterproductive,
    dominating, stalled or too short"""
    finding: str
    change: str

    def __str__(self) -> str:
        return f"{self.constraint}: {self.verdict}. {self.finding} {self.change}".rstrip()


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's advice on all constraints, and warnings about the whole run."""

    advice: tuple[Advice, ...]
    warnings: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Advice:
        for advice in self.advice:
            if advice.constraint == name:
                return advice
        known = ", ".join(advice.constraint for advice in self.advice)
        raise KeyError(f"no constraint {name!r} in this diagnosis; it has: {known}")

    def __str__(self) -> str:
        lines = [str(advice) for advice in self.advice] + [f"Warning: {warning}" for warning in self.warnings]
        return "\n".join(lines) or "There are no constraints."


def doctor(
    history: History,
    tolerances: Mapping[str, float],
    *,
    rules: Mapping[str, Dual] | None = None,
    conflicts: Mapping[tuple[str, str], float] | None = None,
) -> Diagnosis:
    """Report for every constraint whether it is satisfied and, if not, why and what to change.

    Args:
        history: the history of `fit`, or one collected in your own loop with `history.append(lagrangian.ascend())`.
        tolerances: `lagrangian.tolerances`; a constraint counts as satisfied if its mean ν is at most its tolerance.
        rules: the dual rule of each constraint, if known.
        conflicts: cosines between the constraints' gradients, from `lagrangian.conflicts(…)`.

    >>> rows = [{"loss": 1.0, "nu_mean/cap": 0.0, "nu_max/cap": 0.0, "lambda/cap": 0.0, "penalty/cap": 0.0}] * 10
    >>> print(doctor(History(rows), {"cap": 1e-3}))
    cap: never active. No batch violated it. Remove it, or keep it as a safeguard.
    """
    rules = rules or {}
    advice = [
        _examine(name, history, tolerances.get(name, 0.0), tolerances, rules.get(name), conflicts or {})
        for name in history.constraints
    ]
    adaptive = [name for name, rule in rules.items() if rule.adaptive]
    warnings = []
    if adaptive:
        warnings.append(
            f"an adaptive optimiser updates the multipliers of {', '.join(adaptive)}: its steps do not shrink with the "
            "violation, so the multipliers cannot converge to their optimum. Use Ascent, NuPI or plain SGD."
        )
    return Diagnosis(tuple(advice), tuple(warnings))


def _examine(
    name: str,
    history: History,
    tolerance: float,
    tolerances: Mapping[str, float],
    rule: Dual | None,
    conflicts: Mapping[tuple[str, str], float],
) -> Advice:
    nu, multiplier = history[f"nu_mean/{name}"], [abs(value) for value in history[f"lambda/{name}"]]
    penalty, loss = history[f"penalty/{name}"], [abs(value) for value in history["loss"]]
    tail = max(2, len(nu) // 5)
    now, limit = _mean(nu[-tail:]), f"tolerance {number(tolerance)}"

    if max(history[f"nu_max/{name}"]) <= tolerance:
        return Advice(name, "never active", "No batch violated it.", "Remove it, or keep it as a safeguard.")
    if now <= tolerance:
        return Advice(name, "satisfied", f"Mean ν is {number(now)} ({limit}), with λ = {number(multiplier[-1])}.", "")
    if len(nu) < 5:
        return Advice(name, "too short", f"{len(nu)} epochs are too few to judge.", "Train for at least 5.")
    if max(multiplier) == 0:
        if rule is not None and rule.warm_up:
            return Advice(name, "too short", "The warm-up has not finished.", "Train for more epochs.")
        why = "its dual rule is Fixed(0) or None" if rule is None or not rule.enforces else "σ does not depend on ŷ"
        return Advice(name, "not enforced", f"Mean ν is {number(now)}; λ stayed at 0: {why}.", "Give it a dual rule.")

    begin = next(index for index, value in enumerate(multiplier) if value > 0)
    middle = (begin + len(nu)) // 2
    half = _mean(nu[max(begin, middle - tail // 2 - 1) : middle + tail // 2 + 1])
    share = abs(_mean(penalty[-tail:])) / max(_mean(loss[-tail:]), 1e-30)
    fall = now / half if half > 0 else 1.0
    values = f"Mean ν is {number(now)} ({limit}), λν is {number(100 * share)} % of the loss"

    partner = _partner(name, history, tail, tolerances, conflicts)
    # A penalty many times the loss that leaves a violation indicates infeasibility, even if ν still falls.
    overwhelming = share > 10 * INFEASIBLE and (fall > 0.5 or partner is not None)
    if overwhelming or (fall > FLAT and (share > INFEASIBLE or (partner and share > DOMINATING))):
        grown = f"λ has grown to {number(multiplier[-1])}, and ν was {number(half)} halfway"
        if partner:
            return Advice(
                name,
                "infeasible",
                f"{values}; {grown}. It conflicts with {partner!r}: the two appear jointly infeasible.",
                f"Relax one of them with slack= (about {number(now)} here), or cap its multiplier.",
            )
        return Advice(
            name,
            "infeasible",
            f"{values}; {grown}. It appears infeasible for this model or this data.",
            "Evaluate σ at the targets, relax it with slack=, or give the model more capacity.",
        )
    if fall > 0.7 and _oscillates(nu[begin:]):
        return Advice(
            name,
            "oscillating",
            f"{values}; ν swings between {number(min(nu[-2 * tail :]))} and {number(max(nu[-2 * tail :]))}.",
            "The dual step is too large: halve it, use NuPI, or lower the learning rate.",
        )
    if multiplier[middle] > 0 and multiplier[-1] / multiplier[middle] > RUNAWAY and loss[-1] > 1.1 * min(loss):
        return Advice(
            name,
            "runaway",
            f"{values}; λ has grown {number(multiplier[-1] / multiplier[middle])}-fold since halfway, and the loss "
            "is rising.",
            "Lower the dual step, or cap the multiplier with cap=.",
        )
    expected = _expected(nu, loss, begin)
    if expected is not None and now > COUNTERPRODUCTIVE * expected:
        return Advice(
            name,
            "counterproductive",
            f"{values}; while λ was 0, ν fell with the loss; at that rate it would now be {number(expected)}.",
            "The labels alone nearly satisfy this constraint: drop the penalty, build the constraint into the model, "
            "or repair the predictions.",
        )
    if fall < FLAT:
        longer = (rule or Dual).longer
        return Advice(name, "still falling", f"{values}; ν was {number(half)} halfway.", longer)
    if share < IDLE:
        return Advice(name, "idle", f"{values}, too small to have an effect.", "Raise the dual step.")
    if share > DOMINATING:
        return Advice(
            name,
            "dominating",
            f"{values}, and ν does not fall.",
            "Give the model more capacity, decay the learning rate, or relax the constraint with slack=.",
        )
    stronger = (rule or Dual).stronger
    change = f"{stronger}, use Augmented, or repair the predictions."
    return Advice(name, "stalled", f"{values}, and ν does not fall.", change)


def _partner(
    name: str,
    history: History,
    tail: int,
    tolerances: Mapping[str, float],
    conflicts: Mapping[tuple[str, str], float],
) -> str | None:
    """The violated constraint whose gradient opposes this one's most, if any."""
    worst, found = OPPOSED, None
    for (first, second), cosine in conflicts.items():
        other = second if first == name else first
        if name in (first, second) and cosine < worst:
            nu = _mean(history[f"nu_mean/{other}"][-tail:])
            if nu > tolerances.get(other, 0.0):
                worst, found = cosine, other
    return found


def _oscillates(nu: Sequence[float]) -> bool:
    """Whether ν rises and falls by more than its mean over the last two fifths of the epochs."""
    late = nu[-max(6, 2 * len(nu) // 5) :]
    if len(late) < 6:
        return False
    steps = [b - a for a, b in itertools.pairwise(late)]
    turns = sum(a * b < 0 for a, b in itertools.pairwise(steps))
    return max(late) - min(late) > _mean(late) and turns >= 2


def _expected(nu: Sequence[float], loss: Sequence[float], begin: int) -> float | None:
    """ν extrapolated from the epochs before λ > 0: log ν fitted linearly to log L, at the lowest loss since."""
    pairs = [(math.log(a), math.log(b)) for a, b in zip(loss[:begin], nu[:begin], strict=True) if a > 0 and b > 0]
    if len(pairs) < 5:
        return None
    x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    mx, my = _mean(x), _mean(y)
    spread = sum((a - mx) ** 2 for a in x)
    if spread < 1e-6:
        return None
    slope = sum((a - mx) * (b - my) for a, b in pairs) / spread
    if slope <= 0:
        return None
    reached = math.log(max(min(loss[begin:]), 1e-300))
    return math.exp(my + slope * (reached - mx))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

"""The doctor: reports from a history which constraints are violated, why, and what to change."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean as mean
from typing import Any

from ..io.text import number
from .dual import Dual
from .evidence import Evidence
from .history import History

# Thresholds, tuned on the histories of many dual rules on many problems. A share is Σλν divided by the loss.
IDLE, DOMINATING = 0.005, 0.5
FLAT = 0.95
"""ν now divided by ν halfway: above this, ν counts as not falling."""
RUNAWAY = 5.0
COUNTERPRODUCTIVE = 1.5
OPPOSED = -0.5
"""Two constraints conflict if the cosine between their gradients is below this."""
STEPS, EPOCHS, UPDATES = 50, 3, 5
"""A run is too short to judge with fewer optimiser steps or epochs or, if steps are not known, fewer updates."""
OFFSET = 0.3
"""Rows offset each other if the mean of σ, which λ multiplies, is below this multiple of the mean of ν."""
CONCENTRATED = 0.6
"""ν counts as sitting in one column if this share of it does."""

Words = Mapping[str, Sequence[str]]
"""What to say for each remedy: alternatives, none if a remedy is not at hand."""
PYTHON: Words = {
    "remove": ("remove it", "keep it as a safeguard"),
    "longer": ("train longer",),
    "enforce": ("give it a dual rule",),
    "connect": ("let σ use the predictions, not a rounded or detached copy of them",),
    "relax": ("relax it with slack=",),
    "relax one": ("relax one of them with slack=",),
    "cap": ("cap its multiplier with cap=",),
    "rows": ("use degree='violation'", "use multiplier='sample'"),
    "test": ("test whether it can be satisfied, by evidence=lagrangian.evidence(…) or σ at the targets",),
    "capacity": ("give the model more capacity",),
    "decay": ("decay the learning rate",),
    "drop": ("drop the penalty, because the labels alone nearly satisfy the constraint",),
    "build": ("build the constraint into the model",),
    "repair": ("repair the predictions",),
}
"""Remedies as arguments of this library; the dual rule adds "stronger" and "calmer"."""


@dataclass(frozen=True)
class Advice:
    """The doctor's advice on one constraint."""

    constraint: str
    verdict: str
    """never active, satisfied, too short, not enforced, infeasible, offset, oscillating, runaway, counterproductive,
    still falling, idle, dominating or stalled"""
    finding: str
    change: str
    """What to change: the remedies in words."""
    remedies: tuple[str, ...] = ()

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

    @property
    def open(self) -> bool:
        """Whether a constraint is violated although it was enforced: evidence then says whether it is feasible."""
        closed = ("never active", "satisfied", "too short", "not enforced")
        return any(advice.verdict not in closed for advice in self.advice)

    def worded(self, words: Words) -> Diagnosis:
        """The same diagnosis with its remedies in other words, such as options of the command line."""
        return replace(self, advice=tuple(replace(one, change=_sentence(one.remedies, words)) for one in self.advice))

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as a dict, as JSON has it."""
        advice = [{**asdict(one), "remedies": list(one.remedies)} for one in self.advice]
        return {"advice": advice, "warnings": list(self.warnings)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Diagnosis:
        """What `to_dict` made."""
        advice = (Advice(**{**one, "remedies": tuple(one["remedies"])}) for one in given["advice"])
        return cls(tuple(advice), tuple(given["warnings"]))


def doctor(
    history: History,
    tolerances: Mapping[str, float],
    *,
    rules: Mapping[str, Dual] | None = None,
    conflicts: Mapping[tuple[str, str], float] | None = None,
    evidence: Mapping[str, Evidence] | None = None,
) -> Diagnosis:
    """Report for every constraint whether it is satisfied and, if not, why and what to change.

    Args:
        history: the history of `fit`, or one collected in your own loop with `history.append(lagrangian.ascend())`. A
            column `steps`, the number of optimiser steps so far, tells how long the run was.
        tolerances: `lagrangian.tolerances`; a constraint counts as satisfied if its mean ν is at most its tolerance,
            in every column if its columns have multipliers of their own.
        rules: the dual rule of each constraint, if known.
        conflicts: cosines between the constraints' gradients, from `lagrangian.conflicts(…)`.
        evidence: whether the constraints can be satisfied, from `lagrangian.evidence(…)`. Without it no constraint is
            called infeasible.

    >>> rows = [{"loss": 1.0, "nu_mean/cap": 0.0, "nu_max/cap": 0.0, "lambda/cap": 0.0, "penalty/cap": 0.0}] * 10
    >>> print(doctor(History(rows), {"cap": 1e-3}))
    cap: never active. No batch violated it. Remove it, or keep it as a safeguard.
    """
    rules = rules or {}
    courses = {name: Course(name, history, tolerances.get(name, 0.0)) for name in history.constraints}
    advice = [
        _examine(course, rules.get(name), _partner(name, courses, conflicts or {}), (evidence or {}).get(name))
        for name, course in courses.items()
    ]
    adaptive = [name for name, rule in rules.items() if rule.adaptive]
    warnings = []
    if adaptive:
        warnings.append(
            f"an adaptive optimiser updates the multipliers of {', '.join(adaptive)}: its steps do not shrink with the "
            "violation, so the multipliers cannot converge to their optimum. Use Ascent, NuPI or plain SGD."
        )
    return Diagnosis(tuple(advice), tuple(warnings))


class Course:
    """ν, λ and the penalty of one constraint over the epochs of a run."""

    def __init__(self, name: str, history: History, tolerance: float) -> None:
        known = set(history.columns)
        self.name, self.tolerance = name, tolerance
        self.nu, self.largest = history[f"nu_mean/{name}"], history[f"nu_max/{name}"]
        self.several = f"lambda_max/{name}" in known
        self.multiplier = [abs(value) for value in history[f"{'lambda_max' if self.several else 'lambda'}/{name}"]]
        self.penalty, self.loss = history[f"penalty/{name}"], [abs(value) for value in history["loss"]]
        self.steps = history["steps"][-1] if "steps" in known else None
        # Mean ν as a multiple of its tolerance, in the worst column.
        self.excess = [value / max(tolerance, 1e-300) for value in self.nu]
        if f"excess/{name}" in known:
            self.excess = history[f"excess/{name}"]
        # Columns may differ in their units: their course is that of the one furthest from its tolerance.
        self.trend = self.excess if f"column/{name}" in known else self.nu
        self.tail = max(2, len(self.nu) // 5)
        self.now, self.beyond = mean(self.nu[-self.tail :]), mean(self.excess[-self.tail :])
        self.remark = ""
        if f"column/{name}" in known and self.beyond > 1:
            late = list(zip(history[f"column/{name}"], history[f"share/{name}"], strict=True))[-self.tail :]
            column, _ = Counter(column for column, _ in late).most_common(1)[0]
            share = mean([share for own, share in late if own == column])
            if share > CONCENTRATED:
                self.remark = f"; {100 * share:.0f} % of it is in column {column:.0f}, counted from 0"
            if self.now <= tolerance:  # the mean over columns hides it
                self.remark += f"; {number(self.beyond)} times the tolerance in its worst column"

    @property
    def mean(self) -> float:
        """Size of the mean of what one multiplier has multiplied of late, σ or ν; NaN if there are several."""
        # The penalty of an epoch has multipliers between the last epoch's and its own.
        late = list(zip(self.penalty[1:], map(min, itertools.pairwise(self.multiplier)), strict=True))[-self.tail :]
        return math.nan if self.several else mean([abs(cost) / max(value, 1e-300) for cost, value in late])

    @property
    def level(self) -> str:
        """Mean ν now, with its tolerance."""
        return f"Mean ν is {number(self.now)} (tolerance {number(self.tolerance)}{self.remark})"

    @property
    def short(self) -> str:
        """Why the run is too short to judge, or nothing."""
        rows = len(self.nu)
        if self.steps is None:
            return f"{rows} updates are too few to judge, at least {UPDATES} are needed." if rows < UPDATES else ""
        if self.steps < STEPS:
            return f"{self.steps:.0f} steps are too few to judge, at least {STEPS} are needed."
        return f"{rows} epochs are too few to see a trend, at least {EPOCHS} are needed." if rows < EPOCHS else ""


def _examine(course: Course, rule: Dual | None, opposed: str | None, evidence: Evidence | None) -> Advice:
    """Test the verdicts in order; the first that applies is reported."""
    nu, multiplier, loss, tail, now = course.nu, course.multiplier, course.loss, course.tail, course.now
    words = {**PYTHON, "stronger": (rule or Dual).stronger, "calmer": (rule or Dual).calmer}

    def say(verdict: str, finding: str, *remedies: str) -> Advice:
        return Advice(course.name, verdict, finding, _sentence(remedies, words), remedies)

    if max(course.largest) <= course.tolerance and max(course.excess) <= 1:
        return say("never active", "No batch violated it.", "remove")
    if course.beyond <= 1:
        return say("satisfied", f"{course.level}, with λ {'≤' if course.several else '='} {number(multiplier[-1])}.")
    if course.short:
        return say("too short", course.short, "longer")
    if max(multiplier) == 0:
        if rule is not None and rule.warm_up:
            return say("too short", "The warm-up has not finished.", "longer")
        ruled = rule is not None and rule.enforces
        why, remedy = ("σ does not depend on ŷ", "connect") if ruled else ("it has no dual rule", "enforce")
        return say("not enforced", f"{course.level}; λ stayed at 0: {why}.", remedy)

    begin = next(index for index, value in enumerate(multiplier) if value > 0)
    middle = (begin + len(nu)) // 2
    around = slice(max(begin, middle - tail // 2 - 1), middle + tail // 2 + 1)
    half, before = mean(nu[around]), mean(course.trend[around])
    share = abs(mean(course.penalty[-tail:])) / max(mean(loss[-tail:]), 1e-30)
    fall = mean(course.trend[-tail:]) / before if before > 0 else 1.0
    values = f"{course.level}, λν is {number(100 * share)} % of the loss"
    flat = f"{values}, and ν does not fall{_feasible(evidence)}." + _hint(opposed, evidence)

    if evidence is not None and evidence.infeasible:
        return say(
            "infeasible",
            f"{values}; λ has grown to {number(multiplier[-1])}, and ν was {number(half)} halfway. "
            f"{_conflict(evidence)}",
            "relax one" if evidence.against else "relax",
            "cap",
        )
    if course.mean < OFFSET * now:
        return say(
            "offset",
            f"{course.level}, but the mean of σ, which plain σ enforces, is {number(course.mean)}: rows on one side of "
            "the limit offset those on the other.",
            "rows",
            "repair",
        )
    if fall > 0.7 and _oscillates(course.trend[begin:]):
        swing = course.trend[-2 * tail :]
        low, high = number(min(swing)), number(max(swing))
        worst = " times its tolerance in its worst column" if course.trend is course.excess else ""
        return say("oscillating", f"{values}; ν swings between {low} and {high}{worst}.", "calmer")
    if multiplier[middle] > 0 and multiplier[-1] / multiplier[middle] > RUNAWAY and loss[-1] > 1.1 * min(loss):
        return say(
            "runaway",
            f"{values}; λ has grown {number(multiplier[-1] / multiplier[middle])}-fold since halfway, and the loss "
            "is rising.",
            "calmer",
            "cap",
        )
    expected = _expected(nu, loss, begin)
    if expected is not None and now > COUNTERPRODUCTIVE * expected:
        return say(
            "counterproductive",
            f"{values}; while λ was 0, ν fell with the loss; at that rate it would now be {number(expected)}.",
            "drop",
            "build",
            "repair",
        )
    if fall < FLAT:
        return say("still falling", f"{values}; ν was {number(half)} halfway.", "longer", "stronger", "repair")
    if share < IDLE:
        return say("idle", f"{values}, too small to have an effect.", "stronger")
    untested = ("test",) if evidence is None else ()
    if share > DOMINATING:
        kept = ("stronger",) if multiplier[-1] < 1.1 * multiplier[middle] else ()  # λ is at its limit
        return say("dominating", flat, *untested, *kept, "capacity", "decay", "repair" if evidence else "relax")
    return say("stalled", flat, *untested, "stronger", "repair")


def _feasible(evidence: Evidence | None) -> str:
    """Says that the constraint can be satisfied, if that was found out."""
    if evidence is None or evidence.solved == 0:
        return ""
    where = f" in {100 * evidence.solved:.0f} % of {evidence.rows} rows" if evidence.solved < 1 else ""
    return f", although predictions exist that satisfy all constraints{where}"


def _hint(opposed: str | None, evidence: Evidence | None) -> str:
    """Says what it is at odds with: the targets, or another constraint."""
    said = ""
    if evidence is not None and evidence.targets:
        said += f" The targets violate it in {number(100 * evidence.targets)} % of the rows."
    if opposed is not None:
        said += f" It conflicts with {opposed!r}, whose gradient opposes its own."
    return said


def _conflict(evidence: Evidence) -> str:
    """Says with which constraints it is jointly infeasible."""
    share = f"{100 * evidence.failed:.0f} % of {evidence.rows} rows"
    least = f"the least mean ν found is {number(evidence.left)}"
    if not evidence.against:
        return f"In {share} no prediction satisfies it, because its own columns conflict; {least}."
    names = ", ".join(map(repr, evidence.against))
    return f"It conflicts with {names}: in {share} no prediction satisfies all constraints; {least}."


def _partner(name: str, courses: Mapping[str, Course], conflicts: Mapping[tuple[str, str], float]) -> str | None:
    """The violated constraint whose gradient opposes this one's most, if any."""
    worst, found = OPPOSED, None
    for (first, second), cosine in conflicts.items():
        other = second if first == name else first
        if name in (first, second) and cosine < worst and courses[other].beyond > 1:
            worst, found = cosine, other
    return found


def _sentence(remedies: Iterable[str], words: Words) -> str:
    """The remedies as one sentence: "A, b, or c."; those without words are left out."""
    parts = list(dict.fromkeys(part for remedy in remedies for part in words.get(remedy, ())))
    said = ", or ".join([*([", ".join(parts[:-1])] if parts[1:] else []), *parts[-1:]])
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _oscillates(nu: Sequence[float]) -> bool:
    """Whether ν rises and falls by more than its mean over the last two fifths of the epochs."""
    late = nu[-max(6, 2 * len(nu) // 5) :]
    if len(late) < 6:
        return False
    steps = [b - a for a, b in itertools.pairwise(late)]
    turns = sum(a * b < 0 for a, b in itertools.pairwise(steps))
    return max(late) - min(late) > mean(late) and turns >= 2


def _expected(nu: Sequence[float], loss: Sequence[float], begin: int) -> float | None:
    """ν extrapolated from the epochs before λ > 0: log ν fitted linearly to log L, at the lowest loss since."""
    pairs = [(math.log(a), math.log(b)) for a, b in zip(loss[:begin], nu[:begin], strict=True) if a > 0 and b > 0]
    if len(pairs) < 5:
        return None
    x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    mx, my = mean(x), mean(y)
    spread = sum((a - mx) ** 2 for a in x)
    if spread < 1e-6:
        return None
    slope = sum((a - mx) * (b - my) for a, b in pairs) / spread
    if slope <= 0:
        return None
    reached = math.log(max(min(loss[begin:]), 1e-300))
    return math.exp(my + slope * (reached - mx))

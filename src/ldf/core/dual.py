"""Dual rules, which update the multipliers: the paper's dual ascent and later methods, behind one interface.

A rule handles one constraint at a time, in normalised units: `violation` is ν (or σ) divided by its scale S, and the
multiplier m is a multiple of the constraint's unit u, so that λ = m·u. With `normalise=False`, S = u = 1 and λ = m: the
paper's literal mode. With `normalise=True`, S is the sensitivity of σ to the predictions and u is the ratio of the
loss's gradient norm to the constraint's (`gradients.py`), measured now and then. Multiplying a constraint, one of its
columns or the loss by 1000 then changes nothing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .constraint import Constraint

State = dict[str, Tensor]


class Moment(NamedTuple):
    """The position of a dual update in the run."""

    k: int
    """The number of updates before this one."""
    horizon: int | None
    """Number of updates in the whole run, if known."""
    tolerance: float | Tensor
    """A violation up to this counts as zero, in the units of the violation."""
    conflict: float = -math.inf
    """κ in [−1, 1]: whether a descent on the loss lowers (−1) or raises (1) violations; −∞ if it was not measured."""
    labelled: bool = True
    """Whether the loss compares predictions with labels."""


class Dual(ABC):
    """A dual rule: the initial state of a multiplier, and its update, in place.

    Every tensor of the state has the multiplier's shape: [] per constraint, [k] per column, [N, k] per sample. A custom
    rule only has to implement `update`; the attributes below request anything else from the Lagrangian.
    """

    normalise: bool = False
    """Use ν/S, with λ a multiple of the unit u; otherwise use ν unscaled."""
    reduce: Literal["mean", "sum"] = "mean"
    """Update with the mean of ν over the rows, or with the sum."""
    multiplier: ClassVar[Literal["constraint", "column"]] = "constraint"
    """How many multipliers a constraint has if it does not say so."""
    degree: ClassVar[Literal["violation", "satisfiability"]] = "violation"
    """What λ multiplies if the constraint does not say so."""
    warm_up: ClassVar[float] = 0.0
    """Fraction of the run during which λ stays 0; if > 0, the length of the run must be known."""
    updates: ClassVar[int] = 0
    """Number of updates that `fit` makes at least, several an epoch if there are fewer epochs; 0: one an epoch."""
    tracks: ClassVar[bool] = False
    """Whether λ = m·u follows its unit throughout the run; by default it is then measured before every update."""
    keeps_scale: ClassVar[bool] = False
    """Keep the scale S of the first batch."""
    prices: ClassVar[bool] = False
    """Measure the conflict between loss and constraint, and the multipliers that their gradients call for."""
    knee: ClassVar[float] = 0.0
    """ν is smoothed near zero (Huber) up to this multiple of the mean violation; 0: it is not."""
    moves: ClassVar[bool] = True
    """Whether λ is ever updated."""
    adaptive: ClassVar[bool] = False
    """Whether the step size is independent of the size of the violation."""
    stronger: ClassVar[tuple[str, ...]] = ("use Augmented",)
    """The doctor's advice if a constraint needs a larger multiplier."""
    calmer: ClassVar[tuple[str, ...]] = ("lower the learning rate",)
    """The doctor's advice if ν or λ overshoots; a rule without a step must not be told to change it."""

    @property
    def enforces(self) -> bool:
        """Whether λ can differ from 0."""
        return True

    cuts: ClassVar[bool] = False
    """Whether the gradient norm of all penalties together at ŷ is limited (`cut`)."""

    def cut(self, state: State) -> float:
        """Limit on that norm, as a multiple of the loss's gradient norm."""
        return math.inf

    def curves(self, degree: str) -> bool:
        """Whether ½ρν² is added to the penalty, with ρ = state["penalty"], for a constraint of this degree."""
        return False

    def measures(self, k: int) -> bool:
        """Whether units are measured before update k: of the normalised rules' updates 0, 1, 2, 4, 8, 16, …"""
        return self.tracks or (self.normalise and k & (k - 1) == 0)

    def unit(self, state: State, balance: Tensor, price: Tensor) -> Tensor:
        """u: by default the one at which the gradients of loss and constraint balance.

        Args:
            state: the state of the rule.
            balance: ratio of the loss's gradient norm to the constraint's.
            price: the largest least-squares multiplier of any row (0 unless `prices`).
        """
        return balance

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0."""
        return {"multiplier": torch.zeros_like(like)}

    @abstractmethod
    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """Update state["multiplier"] once, in place. The caller then projects to λ ≥ 0 and to the cap."""

    def times(self, factor: float) -> Dual:
        """The same rule with λ, or its step, multiplied by a factor; unchanged if there is no step to scale."""
        return self

    def settled(self, k: int, horizon: int | None) -> bool:
        """Whether the model after k updates may be selected as the best: from halfway on.

        An untrained model may violate little because it predicts little, and would win a selection by feasibility.
        """
        return horizon is None or 2 * k >= horizon


@dataclass(frozen=True)
class Fixed(Dual):
    """λ = value, constant, in the constraint's own units: the paper's M_C with value 1."""

    value: float = 1.0

    moves: ClassVar[bool] = False
    stronger: ClassVar[tuple[str, ...]] = ("raise Fixed(value)", "use a rule that updates λ")
    calmer: ClassVar[tuple[str, ...]] = ("lower Fixed(value)", "lower the learning rate")

    def __post_init__(self) -> None:
        if not (isinstance(self.value, int | float) and math.isfinite(self.value) and self.value >= 0):
            raise ValueError(f"Fixed: value must be a number ≥ 0, got {self.value!r}")

    @property
    def enforces(self) -> bool:
        """Whether the value is not 0."""
        return self.value != 0

    def start(self, like: Tensor) -> State:
        """λ⁰ = value."""
        return {"multiplier": torch.full_like(like, self.value)}

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """Leave λ unchanged."""

    def times(self, factor: float) -> Fixed:
        """λ = factor · value."""
        return replace(self, value=factor * self.value)


@dataclass(frozen=True)
class Ascent(Dual):
    """λ ← λ + s_k Σ_l ν(g(ŷ_l)): the paper's dual ascent, with the predictions made during the epoch.

    On constraints of degree="satisfiability" this is the classical signed ascent λ ← [λ + s σ]₊; normalised, with
    ½sσ² in the loss (the method of multipliers), without which large steps and nonconvex problems diverge.

    Args:
        step: s_k > 0, a number or a function of k. For a rule without a step to tune, see `Automatic`, dual="auto".
        normalise: True uses ν/S, so that the step does not depend on units; False is the paper's literal mode.
        reduce: "mean" or "sum" over the samples; by default the mean if normalised, otherwise the paper's sum.
        initial: λ⁰, one number or one per column. Requires normalise=False, because the unit of a normalised λ is known
            only after the first batch.
        remeasure: False keeps the units of the first batch, for models that say enough about them untrained.

    >>> Ascent(1e-2)
    Ascent(step=0.01, normalise=True, reduce='mean', initial=0.0, remeasure=True)
    >>> Ascent(1e-4, normalise=False)
    Ascent(step=0.0001, normalise=False, reduce='sum', initial=0.0, remeasure=True)
    """

    step: float | Callable[[int], float]
    normalise: bool = True
    reduce: Literal["mean", "sum", "default"] = "default"  # type: ignore[assignment]  # settled in __post_init__
    initial: float | tuple[float, ...] = 0.0
    remeasure: bool = True

    stronger: ClassVar[tuple[str, ...]] = ("raise the dual step", "use Augmented")
    calmer: ClassVar[tuple[str, ...]] = ("halve the dual step", "use NuPI", "lower the learning rate")

    def __post_init__(self) -> None:
        if isinstance(self.step, str):
            raise ValueError(
                f"Ascent: step must be a number > 0 or a function of k, got {self.step!r}; dual='auto' needs no step"
            )
        if self.reduce == "default":
            object.__setattr__(self, "reduce", "mean" if self.normalise else "sum")
        if self.reduce not in ("mean", "sum"):
            raise ValueError(f"Ascent: reduce must be 'mean' or 'sum', got {self.reduce!r}")
        if not callable(self.step):
            step_at("Ascent", self.step, 0)
        values = self.initial if isinstance(self.initial, tuple) else (self.initial,)
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in values) or not values:
            raise ValueError(f"Ascent: initial must be a finite number or a tuple of them, got {self.initial!r}")
        if self.normalise and any(values):
            raise ValueError(f"Ascent: initial = {self.initial!r} is in the units of λ and requires normalise=False")

    def start(self, like: Tensor) -> State:
        """λ⁰ = initial."""
        if isinstance(self.initial, tuple) and like.shape[-1:] != (len(self.initial),):
            given, shape = len(self.initial), list(like.shape)
            raise ValueError(f"Ascent: {given} initial multipliers for a multiplier of shape {shape}")
        return {
            "multiplier": torch.zeros_like(like) + like.new_tensor(self.initial),
            "penalty": torch.full_like(like, step_at("Ascent", self.step, 0)),
        }

    def measures(self, k: int) -> bool:
        """Before updates 0, 1, 2, 4, 8, …, or only before the first."""
        return super().measures(k) and (self.remeasure or k == 0)

    def curves(self, degree: str) -> bool:
        """Whether ½sσ² is added: for plain σ in normalised units."""
        return self.normalise and degree == "satisfiability"

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """m ← m + s_k ν."""
        step = step_at("Ascent", self.step, moment.k)
        state["multiplier"].add_(violation, alpha=step)
        state["penalty"].fill_(step)

    def times(self, factor: float) -> Ascent:
        """The same rule with step factor · s_k."""
        step = self.step
        return replace(self, step=(lambda k: factor * step(k)) if callable(step) else factor * step)


@dataclass(frozen=True)
class Balanced(Dual):
    """Gradient-balanced ascent: no step to tune, independent of units.

    λ = m·u, where the unit u is measured every epoch, so that at m = 1 a constraint's gradient norm equals the loss's.
    m is 0 for the first 30 % of the run. It then rises to `strength` within the next 30 % while ν is above its
    tolerance, and falls by a tenth per update otherwise. The penalty is smoothed around zero, and its gradient norm at
    the predictions is limited to `strength` times the loss's.

    If labels and constraints agree, it lowers violations at little cost in loss; it does not drive them to zero. For
    that, use `Ascent(step)`, `NuPI` or `Augmented`, or repair the predictions.

    Args:
        strength: limit on the gradient norm of all constraints together, as a multiple of the loss's.
    """

    strength: float = 1.0

    normalise = True
    tracks: ClassVar[bool] = True
    keeps_scale: ClassVar[bool] = True
    knee: ClassVar[float] = 1.0
    cuts: ClassVar[bool] = True
    warm_up: ClassVar[float] = 0.3
    ramp: ClassVar[float] = 0.3
    decay: ClassVar[float] = 0.9
    stronger: ClassVar[tuple[str, ...]] = ("raise Balanced(strength=…)", "use Augmented")
    calmer: ClassVar[tuple[str, ...]] = ("lower Balanced(strength=…)", "lower the learning rate")

    def __post_init__(self) -> None:
        if not (isinstance(self.strength, int | float) and math.isfinite(self.strength) and self.strength > 0):
            raise ValueError(f"Balanced: strength must be a number > 0, got {self.strength!r}")

    def cut(self, state: State) -> float:
        """`strength`."""
        return self.strength

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """m ← min(m + strength/(0.3·K), strength) if ν > tolerance, else 0.9·m; no update during the warm-up."""
        assert moment.horizon is not None
        if moment.k + 1 < self.warm_up * moment.horizon:
            return
        m = state["multiplier"]
        size = violation.abs()
        rise = self.strength / max(1.0, self.ramp * moment.horizon)
        # The sign only matters for an equality with plain σ, whose multiplier is signed.
        risen = (m + rise * violation.sign()).clamp(-self.strength, self.strength)
        m.copy_(torch.where(size > moment.tolerance, risen, m * self.decay))

    def settled(self, k: int, horizon: int | None) -> bool:
        """Whether warm-up and ramp are over, or the run has ended."""
        return horizon is None or k >= min((self.warm_up + self.ramp) * horizon, horizon)


@dataclass(frozen=True)
class Automatic(Dual):
    """The default, dual="auto": no step to tune, independent of units, one multiplier per column.

    It begins like `Balanced`: λ is 0 for the first 30 % of the run and then rises while ν is above its tolerance, until
    the penalty's gradient norm equals the loss's. If labels and constraint agree, this lowers ν at little cost in loss.

    Where loss and constraint disagree it prices the constraint instead. They disagree if, after a twentieth of the run,
    a descent on the loss raises the violations (κ > 0.3, `gradients.py`), and always if there are no labels. The unit u
    is then 1.3 times the largest multiplier that the gradients of any row call for, and the limit of the gradient is
    gone: an L1 penalty is exact once λ exceeds the multiplier of every row. m rises from 0 to 1 within a fifth of the
    run, and on to 4 while ν is above its tolerance and does not fall. ½ρν² with ρ = λ/10ν̄ helps rows that are far off.
    """

    normalise = True
    multiplier: ClassVar[Literal["constraint", "column"]] = "column"
    updates: ClassVar[int] = 100
    tracks: ClassVar[bool] = True
    prices: ClassVar[bool] = True
    knee: ClassVar[float] = 0.5
    cuts: ClassVar[bool] = True
    warm_up: ClassVar[float] = 0.3
    ramp: ClassVar[float] = 0.3
    decay: ClassVar[float] = 0.9
    trial: ClassVar[float] = 0.05
    rise: ClassVar[float] = 0.2
    growth: ClassVar[float] = 1.03
    most: ClassVar[float] = 4.0
    curve: ClassVar[float] = 0.1
    margin: ClassVar[float] = 1.3

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0, no dispute."""
        names = ("multiplier", "penalty", "disputed", "previous")
        return {name: torch.zeros_like(like) for name in names}

    def curves(self, degree: str) -> bool:
        """Always; ρ is 0 unless the constraint is disputed."""
        return True

    def measures(self, k: int) -> bool:
        """Before the first eight updates, then before every fourth."""
        return k < 8 or k % 4 == 0

    def cut(self, state: State) -> float:
        """1, or none once a constraint is disputed."""
        return math.inf if bool(state["disputed"].any()) else max(1.0, float(state["multiplier"].max()))

    def unit(self, state: State, balance: Tensor, price: Tensor) -> Tensor:
        """1.3 · price once a constraint is disputed."""
        disputed = state["disputed"] > 0
        while disputed.ndim > balance.ndim:
            disputed = disputed.any(0)
        return torch.where(disputed & (price > 0), self.margin * price, balance)

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """Begin a dispute if there is reason to; then update m, of a disputed constraint with ρ."""
        assert moment.horizon is not None
        m, size = state["multiplier"], violation.abs()
        over = size > moment.tolerance
        apart = moment.k + 1 >= self.trial * moment.horizon and moment.conflict > 0.3
        if (apart or (not moment.labelled and moment.conflict >= -1)) and bool(over.any()):
            state["disputed"].fill_(1.0)
        if bool(state["disputed"].any()):
            stuck = over & (size > 0.9 * state["previous"])
            risen = m.abs() + 1.0 / max(1.0, self.rise * moment.horizon)
            later = (torch.where(stuck, self.growth, 0.95) * m.abs()).clamp(1.0, self.most)
            m.copy_(torch.where(m.abs() < 1, risen.clamp(max=1.0), later) * torch.where(violation < 0, -1.0, 1.0))
            state["penalty"].copy_(self.curve * m.abs() / torch.maximum(size, torch.as_tensor(moment.tolerance)))
        elif moment.k + 1 >= self.warm_up * moment.horizon:
            # Columns share the limit of one: together, m = 1/√k in each has the gradient norm of the loss.
            most = 1.0 / math.sqrt(m.shape[-1] if m.ndim else 1)
            if moment.conflict < -1:  # not comparable, as for pairs: no reason to stop at the balance
                most *= 1.0 / self.ramp
            rise = most / max(1.0, self.ramp * moment.horizon)
            risen = (m + rise * violation.sign()).clamp(-most, most)
            m.copy_(torch.where(over, risen, m * self.decay))
        state["previous"].copy_(size)

    def settled(self, k: int, horizon: int | None) -> bool:
        """Whether warm-up and ramp are over, or the run has ended."""
        return horizon is None or k >= min((self.warm_up + self.ramp) * horizon, horizon)


@dataclass(frozen=True)
class Levelling(Dual):
    """The default for groups: signed ascent on plain σ, whose steps shrink to zero over the run.

    m ← m + (40/K)(1 − k/K) σ/σ₀ for update k of K, with σ₀ the largest |σ| so far. One comparison of group means is one
    number, so that nothing offsets a violation elsewhere, and λ approaches its optimum from both sides. Without
    shrinking steps it would end in a limit cycle with the weights.
    """

    normalise = True
    multiplier: ClassVar[Literal["constraint", "column"]] = "column"
    degree: ClassVar[Literal["violation", "satisfiability"]] = "satisfiability"
    updates: ClassVar[int] = 100
    warm_up: ClassVar[float] = 0.05
    stronger: ClassVar[tuple[str, ...]] = ("use Ascent(step)",)

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0, σ₀ = 0."""
        return {name: torch.zeros_like(like) for name in ("multiplier", "largest")}

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """One step."""
        assert moment.horizon is not None
        if moment.k + 1 < self.warm_up * moment.horizon:
            return
        step = 40.0 / moment.horizon * (1 - moment.k / moment.horizon)
        largest = state["largest"]
        largest.copy_(torch.maximum(largest, violation.abs()))
        state["multiplier"].add_(torch.where(largest > 0, violation / largest, 0.0), alpha=step)


@dataclass(frozen=True)
class NuPI(Dual):
    """λ ← [λ + s ν + κ (ξ − ξ₋)]₊ with ξ ← β ξ₋ + (1 − β) ν: ascent with a proportional term that damps oscillation.

    After Sohrabi et al., "On PI controllers for updating Lagrange multipliers in constrained optimization" (2024).

    Args:
        step: s > 0, the integral gain.
        proportional: κ ≥ 0; ten times the step by default.
        smoothing: β in [0, 1), the decay of the moving average.
        normalise: use ν/S instead of ν.
    """

    step: float = 1e-2
    proportional: float | None = None
    smoothing: float = 0.0
    normalise: bool = True

    stronger: ClassVar[tuple[str, ...]] = ("raise the dual step", "use Augmented")
    calmer: ClassVar[tuple[str, ...]] = ("halve the dual step", "lower the learning rate")

    def __post_init__(self) -> None:
        step_at("NuPI", self.step, 0)
        if self.proportional is not None and not self.proportional >= 0:
            raise ValueError(f"NuPI: proportional must be ≥ 0, got {self.proportional}")
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"NuPI: smoothing must be in [0, 1), got {self.smoothing}")

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0, ξ₋ = 0."""
        return {"multiplier": torch.zeros_like(like), "average": torch.zeros_like(like)}

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """One step of the controller."""
        gain = 10 * self.step if self.proportional is None else self.proportional
        average = self.smoothing * state["average"] + (1 - self.smoothing) * violation
        state["multiplier"].add_(self.step * violation + gain * (average - state["average"]))
        state["average"].copy_(average)


@dataclass(frozen=True)
class Augmented(Dual):
    """L + Σ λν + ½ρν², λ ← λ + ρν: the augmented Lagrangian (Hestenes), where ρ grows while ν does not fall.

    Of all rules it reaches the lowest violations, at the highest cost in loss. For an inequality with plain σ the term
    is (max(0, λ + ρσ)² − λ²)/2ρ.

    Args:
        penalty: initial ρ.
        growth: factor applied to ρ if ν has not fallen by a quarter since the last update.
        limit: upper bound for ρ.
        normalise: use ν/S instead of ν.
    """

    penalty: float = 0.1
    growth: float = 1.2
    limit: float = 1.0
    normalise: bool = True
    # Gradient steps overshoot the kink of λ|σ| in both directions, and ρν would accumulate that: the kink is smoothed.
    knee: ClassVar[float] = 1.0
    stronger: ClassVar[tuple[str, ...]] = ("raise Augmented(limit=…)",)
    calmer: ClassVar[tuple[str, ...]] = ("lower Augmented(penalty=…)", "lower the learning rate")

    def __post_init__(self) -> None:
        step_at("Augmented: penalty", self.penalty, 0)
        if not self.growth >= 1 or not self.limit >= self.penalty:
            raise ValueError(f"Augmented: needs growth ≥ 1 and limit ≥ penalty, got {self.growth} and {self.limit}")

    def curves(self, degree: str) -> bool:
        """Always."""
        return True

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0, ρ⁰ = penalty."""
        return {
            "multiplier": torch.zeros_like(like),
            "penalty": torch.full_like(like, self.penalty),
            "previous": torch.full_like(like, math.inf),
        }

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """λ ← λ + ρν; then update ρ."""
        state["multiplier"].add_(state["penalty"] * violation)
        size = violation.abs()
        stuck = (size > 0.75 * state["previous"]) & (size > moment.tolerance)
        state["penalty"].mul_(torch.where(stuck, self.growth, 1.0)).clamp_(max=self.limit)
        state["previous"].copy_(size)


@dataclass(frozen=True)
class Adam(Dual):
    """Adam on the multipliers, as in some other libraries: for comparison only, and the doctor warns about it.

    Its steps are of size `step` however small the violation, so the multipliers do not converge on ν ≥ 0.
    """

    step: float = 1e-2
    normalise: bool = True
    adaptive: ClassVar[bool] = True
    stronger: ClassVar[tuple[str, ...]] = ("raise the dual step", "use Augmented")
    calmer: ClassVar[tuple[str, ...]] = ("halve the dual step", "use NuPI", "lower the learning rate")

    def __post_init__(self) -> None:
        step_at("Adam", self.step, 0)

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0 and both moments 0."""
        return {name: torch.zeros_like(like) for name in ("multiplier", "first", "second")}

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """λ ← λ + s m̂/√v̂ with the usual constants .9 and .999."""
        state["first"].lerp_(violation, 0.1)
        state["second"].lerp_(violation.square(), 0.001)
        first = state["first"] / (1 - 0.9 ** (moment.k + 1))
        second = state["second"] / (1 - 0.999 ** (moment.k + 1))
        state["multiplier"].add_(self.step * first / (second.sqrt() + 1e-8))


def step_at(what: str, step: Any, k: int) -> float:
    """The step size of update k, from a number or a schedule; raises unless it is > 0."""
    value = step(k) if callable(step) else step
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{what}: step must be a finite number > 0, got {value!r}" + (f" at k = {k}" if k else ""))
    return float(value)


Rules = Dual | Literal["auto"] | Mapping[str, "Dual | Literal['auto']"] | None
"""Type of `dual=`: one rule for all constraints, "auto" for the default, a mapping by name, or None for no rule."""


def rules_for(constraints: Sequence[Constraint], dual: Rules) -> tuple[Dual, ...]:
    """The rule of each constraint; None means λ = 0, the paper's M.

    "auto" is `Automatic` for constraints on rows, and `Levelling` for those on groups.
    """
    names = [constraint.name for constraint in constraints]
    if isinstance(dual, Mapping):
        unknown, missing = sorted(set(dual) - set(names)), [name for name in names if name not in dual]
        if unknown or missing:
            raise ValueError(f"dual must have a rule for each of {list(names)}; unknown: {unknown}, missing: {missing}")
        return tuple(_rule(dual[c.name], c, f"dual: the rule for {c.name!r}") for c in constraints)
    if dual is None:
        return (Fixed(0.0),) * len(names)
    return tuple(_rule(dual, c, "dual", ", a mapping of them by name, or None") for c in constraints)


def _rule(given: Any, constraint: Constraint, what: str, others: str = "") -> Dual:
    if given == "auto":
        return Automatic() if constraint.scope.rowwise else Levelling()
    if not isinstance(given, Dual):
        raise TypeError(f"{what} must be 'auto' or a rule such as ldf.Ascent(1e-2){others}, got {given!r}")
    return given

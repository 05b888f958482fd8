"""How multipliers move: the paper's dual ascent and what the field has found since, behind one small interface.

A rule sees one constraint at a time, in units of its own: `violation` is ν (or σ) over its scale S, and the multiplier
m is a multiple of the constraint's unit u, so that λ = m·u. With `normalise=False`, S = u = 1 and λ = m: the paper's
literal mode. With `normalise=True`, S is how far σ moves with the predictions and u is the loss's pull over the
constraint's, both measured on the first batch (`Lagrangian.measure`): multiply a constraint or the loss by 1000, and
nothing changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

State = dict[str, Tensor]


class Moment(NamedTuple):
    """Which dual update this is."""

    k: int
    """The number of updates before this one."""
    horizon: int | None
    """How many updates the whole run makes, where that is known."""
    tolerance: float | Tensor
    """A violation up to this counts as none, in the same unit as the violation."""


class Dual(ABC):
    """A dual rule: the multiplier's state at the start, and one update of it, in place.

    Every tensor of the state has the multiplier's shape: [] for one a constraint, [k] a column, [N, k] a sample. A rule
    of your own needs `update` alone; what else it wants of the Lagrangian, it says by the attributes below.
    """

    normalise: bool = False
    """Work on ν over its scale S, with λ a multiple of the unit u; else on ν as it is."""
    reduce: Literal["mean", "sum"] = "mean"
    """Ascend by the mean of ν over the rows, or by its sum."""
    warm_up: ClassVar[float] = 0.0
    """The share of the run during which λ stays 0; where there is one, the length of the run must be known."""
    tracks: ClassVar[bool] = False
    """Measure the unit u anew before every update, rather than once."""
    smooths: ClassVar[bool] = False
    """Round off ν near zero (Huber), with the mean violation as knee."""
    curved: ClassVar[bool] = False
    """Add ½ρν² to the penalty, with ρ = state["penalty"]."""
    moves: ClassVar[bool] = True
    """Whether λ moves at all."""
    adaptive: ClassVar[bool] = False
    """Steps whose size does not follow the violation's."""
    stronger: ClassVar[str] = "Raise the dual step"
    """What the doctor says where a constraint should pull harder."""
    longer: ClassVar[str] = "Train longer."
    """What the doctor says where ν is still falling."""

    @property
    def enforces(self) -> bool:
        """Whether λ can be anything but 0."""
        return True

    @property
    def cut(self) -> float | None:
        """How hard all penalties together may pull at the predictions, as a multiple of the loss; None: no limit."""
        return None

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0."""
        return {"multiplier": torch.zeros_like(like)}

    @abstractmethod
    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """Move state["multiplier"] by one update. The caller then projects to λ ≥ 0 and to the cap."""

    def times(self, factor: float) -> Dual:
        """The same rule with λ, or its steps, so many times as large; one that has no step to scale stays as it is."""
        return self

    def settled(self, k: int, horizon: int | None) -> bool:
        """Whether the model after k updates may be chosen: from half-way on.

        An untrained model can violate little by saying little; chosen by feasibility, it would win.
        """
        return horizon is None or 2 * k >= horizon


@dataclass(frozen=True)
class Fixed(Dual):
    """λ = value, in the constraint's own units, for ever: the paper's M_C with value 1."""

    value: float = 1.0

    moves: ClassVar[bool] = False

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
        """Nothing moves."""

    def times(self, factor: float) -> Fixed:
        """λ = factor · value."""
        return replace(self, value=factor * self.value)


@dataclass(frozen=True)
class Ascent(Dual):
    """λ ← λ + s_k Σ_l ν(g(ŷ_l)): the paper's dual ascent, from the predictions made during the epoch.

    On constraints of degree="satisfiability" this is the classical signed ascent λ ← [λ + s σ]₊.

    Args:
        step: s_k > 0, a number or a function of k. The rule without a step to tune is `Balanced`, dual="auto".
        normalise: True works on ν over its scale, so that a step suits any units; False is the paper's literal mode.
        reduce: "mean" or "sum" over the samples; by default the mean if normalised, and the paper's sum if not.
        initial: λ⁰, where something better than 0 is known; a number, or one for each column; not if normalised, where
            λ's unit is known only after the first batch.

    >>> Ascent(1e-2)
    Ascent(step=0.01, normalise=True, reduce='mean', initial=0.0)
    >>> Ascent(1e-4, normalise=False)
    Ascent(step=0.0001, normalise=False, reduce='sum', initial=0.0)
    """

    step: float | Callable[[int], float]
    normalise: bool = True
    reduce: Literal["mean", "sum", "default"] = "default"  # type: ignore[assignment]  # settled in __post_init__
    initial: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.step, str):
            raise ValueError(
                f"Ascent: step must be a number > 0 or a function of k, got {self.step!r}; without a step: dual='auto'"
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
            raise ValueError(f"Ascent: initial = {self.initial!r} is a λ in units of its own: say normalise=False")

    def start(self, like: Tensor) -> State:
        """λ⁰ = initial."""
        if isinstance(self.initial, tuple) and like.shape[-1:] != (len(self.initial),):
            raise ValueError(f"Ascent: {len(self.initial)} initial multipliers for a multiplier of {list(like.shape)}")
        return {"multiplier": torch.zeros_like(like) + like.new_tensor(self.initial)}

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """m ← m + s_k ν."""
        state["multiplier"].add_(violation, alpha=step_at("Ascent", self.step, moment.k))

    def times(self, factor: float) -> Ascent:
        """Steps factor · s_k."""
        step = self.step
        return replace(self, step=(lambda k: factor * step(k)) if callable(step) else factor * step)


@dataclass(frozen=True)
class Balanced(Dual):
    """Gradient-balanced ascent, dual="auto": no step to tune, no unit that matters.

    λ = m·u, where the unit u is measured anew every epoch, so that m = 1 lets a constraint pull as hard as the loss
    does. m is 0 for the first 30 % of the run, then rises to `strength` within the next 30 % while ν is above its
    tolerance, and falls by a tenth an update when it is not. The penalty is rounded off around zero, and its gradient
    at the predictions is cut to `strength` times the loss's.

    Where labels and constraints agree it lowers violations at little cost in loss; it does not drive them to zero.
    Where they must vanish, take `Ascent(step)`, `NuPI` or `Augmented`, or repair the predictions.

    Args:
        strength: how hard all constraints together may pull, as a multiple of the loss.
    """

    strength: float = 1.0

    normalise = True
    tracks: ClassVar[bool] = True
    smooths: ClassVar[bool] = True
    warm_up: ClassVar[float] = 0.3
    ramp: ClassVar[float] = 0.3
    decay: ClassVar[float] = 0.9
    stronger: ClassVar[str] = "Raise Balanced(strength=…)"
    longer: ClassVar[str] = "Train longer, or raise Balanced(strength=…)."

    def __post_init__(self) -> None:
        if not (isinstance(self.strength, int | float) and math.isfinite(self.strength) and self.strength > 0):
            raise ValueError(f"Balanced: strength must be a number > 0, got {self.strength!r}")

    @property
    def cut(self) -> float:
        """`strength`."""
        return self.strength

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """m ← min(m + strength/(0.3·K), strength) where ν > tolerance, else 0.9·m; nothing during the warm-up."""
        assert moment.horizon is not None
        if moment.k + 1 < self.warm_up * moment.horizon:
            return
        m = state["multiplier"]
        size = violation.abs()
        rise = self.strength / max(1.0, self.ramp * moment.horizon)
        # The sign matters only for an equality on plain σ, whose multiplier is signed.
        risen = (m + rise * violation.sign()).clamp(-self.strength, self.strength)
        m.copy_(torch.where(size > moment.tolerance, risen, m * self.decay))

    def settled(self, k: int, horizon: int | None) -> bool:
        """After warm-up and ramp, or at the very end of a run too short to have them."""
        return horizon is None or k >= min((self.warm_up + self.ramp) * horizon, horizon)


@dataclass(frozen=True)
class NuPI(Dual):
    """λ ← [λ + s ν + κ (ξ − ξ₋)]₊ with ξ ← β ξ₋ + (1 − β) ν: ascent with a proportional term that damps oscillation.

    After Sohrabi et al., "On PI controllers for updating Lagrange multipliers in constrained optimization" (2024).

    Args:
        step: s > 0, the integral gain.
        proportional: κ ≥ 0; ten times the step by default.
        smoothing: β in [0, 1), of the moving average.
        normalise: work on ν over its scale.
    """

    step: float = 1e-2
    proportional: float | None = None
    smoothing: float = 0.0
    normalise: bool = True

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
    """L + Σ λν + ½ρν², λ ← λ + ρν: the augmented Lagrangian (Hestenes), with a ρ that grows while ν does not fall.

    It drives violations lowest, at the highest cost in loss. On plain σ of an inequality the term is
    (max(0, λ + ρσ)² − λ²)/2ρ.

    Args:
        penalty: ρ at the start.
        growth: by which ρ is multiplied when ν has not fallen by a quarter since the last update.
        limit: ρ at most.
        normalise: work on ν over its scale.
    """

    penalty: float = 0.1
    growth: float = 1.2
    limit: float = 1.0
    normalise: bool = True
    curved: ClassVar[bool] = True
    # λ|σ| has a kink that gradient steps jump over and back, and ρν would feed on: it is rounded off.
    smooths: ClassVar[bool] = True

    def __post_init__(self) -> None:
        step_at("Augmented: penalty", self.penalty, 0)
        if not self.growth >= 1 or not self.limit >= self.penalty:
            raise ValueError(f"Augmented: growth ≥ 1 and limit ≥ penalty, got {self.growth} and {self.limit}")

    def start(self, like: Tensor) -> State:
        """λ⁰ = 0, ρ⁰ = penalty."""
        return {
            "multiplier": torch.zeros_like(like),
            "penalty": torch.full_like(like, self.penalty),
            "previous": torch.full_like(like, math.inf),
        }

    def update(self, state: State, violation: Tensor, moment: Moment) -> None:
        """λ ← λ + ρν, then ρ."""
        state["multiplier"].add_(state["penalty"] * violation)
        size = violation.abs()
        stuck = (size > 0.75 * state["previous"]) & (size > moment.tolerance)
        state["penalty"].mul_(torch.where(stuck, self.growth, 1.0)).clamp_(max=self.limit)
        state["previous"].copy_(size)


@dataclass(frozen=True)
class Adam(Dual):
    """Adam on the multipliers, as other libraries drive them: here for comparison, and the doctor warns of it.

    Its steps have the size of `step` however small the violation, so that on ν ≥ 0 the multipliers never come to rest.
    """

    step: float = 1e-2
    normalise: bool = True
    adaptive: ClassVar[bool] = True

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
    """The step of update k: a number > 0, from a number or a schedule."""
    value = step(k) if callable(step) else step
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{what}: step must be a finite number > 0, got {value!r}" + (f" at k = {k}" if k else ""))
    return float(value)


Rules = Dual | Literal["auto"] | Mapping[str, "Dual | Literal['auto']"] | None
"""What `dual=` takes: a rule for all constraints, "auto" for `Balanced()`, a rule for each name, or None: no rule."""


def rules_for(names: Sequence[str], dual: Rules) -> tuple[Dual, ...]:
    """The rule of each constraint; None is λ = 0, the paper's M.

    >>> rules_for(["capacity", "balance"], {"capacity": Ascent(0.1), "balance": "auto"})[1]
    Balanced(strength=1.0)
    """
    if isinstance(dual, Mapping):
        unknown, missing = sorted(set(dual) - set(names)), [name for name in names if name not in dual]
        if unknown or missing:
            raise ValueError(f"dual must have a rule for each of {list(names)}; unknown: {unknown}, missing: {missing}")
        return tuple(_rule(dual[name], f"dual: the rule for {name!r}") for name in names)
    rule = Fixed(0.0) if dual is None else _rule(dual, "dual", ", a mapping of them by name, or None")
    return (rule,) * len(names)


def _rule(given: Any, what: str, others: str = "") -> Dual:
    if given == "auto":
        return Balanced()
    if not isinstance(given, Dual):
        raise TypeError(f"{what} must be 'auto' or a rule such as ldf.Ascent(1e-2){others}, got {given!r}")
    return given

"""The multiplier λ of one constraint, updated by a dual rule."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .constraint import Constraint
from .dual import Dual, Moment, State

TOLERANCE = 1e-3
"""Default tolerance for the mean violation, as a fraction of the scale S of σ."""


class Multiplier(nn.Module):
    """λ of one constraint under one dual rule: [] per constraint, [k] per column, [N, k] per sample.

    λ = multiplier · unit: the rule's normalised multiplier times the measured unit (1 in literal mode).
    """

    multiplier: Tensor
    unit: Tensor
    pull: Tensor
    gradient: Tensor
    scale: Tensor

    def __init__(self, constraint: Constraint, rule: Dual, columns: int, rows: int | None, like: Tensor) -> None:
        super().__init__()
        self.constraint, self.rule, self.columns = constraint, rule, columns
        shape = {"constraint": (), "column": (columns,), "sample": (rows or 0, columns)}[constraint.multiplier]
        self.state_names: list[str] = []
        for name, value in rule.start(like.new_zeros(shape)).items():
            self.register_buffer(name, value)
            self.state_names.append(name)
        if not self.signed:
            self.multiplier.clamp_(min=0)
        if constraint.cap is not None and not rule.normalise:
            self.multiplier.clamp_(min=-constraint.cap, max=constraint.cap)
        self.register_buffer("unit", like.new_tensor(0.0 if rule.normalise else 1.0))
        self.register_buffer("pull", like.new_zeros(()))  # ‖∂L/∂ŷ‖₂ + h·ν/g, see gradients.py
        self.register_buffer("gradient", like.new_zeros(()))  # ‖∂ mean(±σ)/∂ŷ‖₂, a moving average if tracked
        self.register_buffer("scale", like.new_zeros(()))  # S = ‖∂ mean(±σ)/∂ŷ‖₁, measured once; 0 while unknown

    @property
    def value(self) -> Tensor:
        """λ, in units of loss per σ."""
        return self.multiplier * self.unit

    @property
    def curvature(self) -> Tensor:
        """ρ of a rule that adds ½ρν², in units of loss per σ²."""
        penalty = self.state()["penalty"] * self.unit
        if self.rule.normalise:
            penalty = penalty / self.scale.clamp_min(torch.finfo(penalty.dtype).tiny)
        return penalty

    def state(self) -> State:
        """The state tensors of the rule, by name."""
        return {name: getattr(self, name) for name in self.state_names}

    @property
    def signed(self) -> bool:
        """Whether λ may be negative: only for an equality with plain σ."""
        return self.constraint.kind == "equality" and self.constraint.degree == "satisfiability"

    @property
    def tolerance(self) -> float:
        """A mean ν up to this counts as satisfied, in σ's units."""
        if self.constraint.tolerance is not None:
            return self.constraint.tolerance
        return TOLERANCE * (float(self.scale) or 1.0)

    def learn(self, pull: Tensor, gradient: Tensor, scale: Tensor) -> None:
        """Store a measurement: S once, and u = pull/‖∂σ/∂ŷ‖ once or, if the rule tracks it, as moving averages."""
        first = float(self.scale) == 0.0
        if not float(gradient) > 0 or not (first or self.rule.tracks):
            return
        if first:
            self.scale.copy_(scale)
        self.pull.copy_(pull if first else 0.5 * self.pull + 0.5 * pull)
        self.gradient.copy_(gradient if first else 0.5 * self.gradient + 0.5 * gradient)
        if self.rule.normalise:
            self.unit.copy_(self.pull / self.gradient)

    def ascend(
        self, sums: Tensor, counts: Tensor, k: int, horizon: int | None, nu: Tensor, largest: Tensor
    ) -> dict[str, float]:
        """One dual update from Σ_l of the degree and the number of rows, each [k] or [N, k].

        Returns:
            This constraint's entries of a history row: Σ λν as it entered the loss, mean and maximum ν, and the new λ.
        """
        if self.constraint.multiplier == "constraint":
            sums = sums.mean(-1)
        penalty = float((self.value * sums).sum() / counts.sum().clamp_min(1))
        self._move(sums, counts, k, horizon)
        found = {
            "penalty": penalty, "nu_mean": float(nu.mean()), "nu_max": float(largest.max()),
            "lambda": float(self.value.mean()),
        }  # fmt: skip
        if self.multiplier.ndim:
            found["lambda_max"] = float(self.value.abs().max())
        return {f"{part}/{self.constraint.name}": value for part, value in found.items()}

    def _move(self, sums: Tensor, counts: Tensor, k: int, horizon: int | None) -> None:
        """Update by the rule, then project to λ ≥ 0 and to the cap."""
        violation = sums / counts.clamp_min(1) if self.rule.reduce == "mean" else sums
        divisor = 1.0
        if self.rule.normalise:
            divisor = float(self.scale)
            if divisor == 0.0:  # σ has not depended on the predictions so far: no unit yet
                return
        self.rule.update(self.state(), violation / divisor, Moment(k, horizon, self.tolerance / divisor))
        if not self.signed:
            self.multiplier.clamp_(min=0)
        if self.constraint.cap is not None and float(self.unit) > 0:
            bound = self.constraint.cap / float(self.unit)
            self.multiplier.clamp_(min=-bound, max=bound)

"""The multiplier λ of one constraint, updated by a dual rule."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .constraint import Constraint
from .dual import Dual, Moment, State
from .gradients import UNKNOWN, Measured

TOLERANCE = 1e-3
"""Default tolerance for the mean violation, as a fraction of the scale S of σ."""
LARGEST = 1e4
"""Largest normalised multiplier: the gradient norm of the penalty is then ten thousand times the loss's."""


class Multiplier(nn.Module):
    """λ of one constraint under one dual rule: [] per constraint, [k] per column, [N, k] per sample.

    λ = multiplier · unit: the rule's normalised multiplier times the measured unit (1 in literal mode). Units, scale
    and tolerance are [] if the constraint has one multiplier, [k] otherwise.
    """

    multiplier: Tensor
    unit: Tensor
    pull: Tensor
    gradient: Tensor
    scale: Tensor
    conflict: Tensor
    price: Tensor

    def __init__(
        self, constraint: Constraint, rule: Dual, columns: int, rows: int | None, like: Tensor, labelled: bool = True
    ) -> None:
        super().__init__()
        self.constraint, self.rule, self.columns, self.labelled = constraint, rule, columns, labelled
        self.kind = constraint.multiplier or rule.multiplier
        self.degree = constraint.degree or rule.degree
        self.curved = rule.curves(self.degree)
        shape = {"constraint": (), "column": (columns,), "sample": (rows or 0, columns)}[self.kind]
        self.state_names: list[str] = []
        for name, value in rule.start(like.new_zeros(shape)).items():
            self.register_buffer(name, value)
            self.state_names.append(name)
        if not self.signed:
            self.multiplier.clamp_(min=0)
        if constraint.cap is not None and not rule.normalise:
            self.multiplier.clamp_(min=-constraint.cap, max=constraint.cap)
        own = () if self.kind == "constraint" else (columns,)
        self.register_buffer("unit", like.new_full(own, 0.0 if rule.normalise else 1.0))
        self.register_buffer("pull", like.new_zeros(own))  # ‖∂L/∂ŷ‖₂ + h·ν/g, see gradients.py
        self.register_buffer("gradient", like.new_zeros(own))  # g = ‖∂ mean(±σ)/∂ŷ‖₂
        self.register_buffer("scale", like.new_zeros(own))  # S = ‖∂ mean(±σ)/∂ŷ‖₁; 0 while unknown
        self.register_buffer("conflict", like.new_full((), UNKNOWN))  # κ, a moving average
        self.register_buffer("price", like.new_zeros(own))  # the largest least-squares multiplier of late

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
        return self.constraint.kind == "equality" and self.degree == "satisfiability"

    @property
    def tolerance(self) -> Tensor:
        """A mean ν up to this counts as satisfied, in σ's units: [] or [k]."""
        if self.constraint.tolerance is not None:
            return torch.full_like(self.scale, self.constraint.tolerance)
        return TOLERANCE * torch.where(self.scale > 0, self.scale, 1.0)

    def learn(self, measured: Measured, k: int, horizon: int | None) -> None:
        """Take in a measurement [k] before update k.

        S, g and pull are moving averages over measurements. During the first tenth of the run λ = m·u follows its
        unit, because an untrained model says little about it; later a rule that sums up violations keeps its λ, and
        only its steps change.
        """
        if not self.unit.ndim:
            measured = Measured(*(part[0] for part in measured))
        known = measured.gradient > 0
        if not bool(known.any()):
            return
        first = self.scale == 0
        mix = (torch.where(first, 1.0, 0.5) * known).to(self.scale)
        self.pull.lerp_(measured.pull, mix)
        self.gradient.lerp_(measured.gradient, mix)
        self.scale.lerp_(measured.scale, mix * first if self.rule.keeps_scale else mix)
        conflict = measured.conflict if not measured.conflict.ndim else measured.conflict[0]
        if bool(torch.isfinite(conflict)):
            self.conflict.copy_(conflict if float(self.conflict) == UNKNOWN else 0.8 * self.conflict + 0.2 * conflict)
        self.price.copy_(torch.maximum(0.9 * self.price, measured.price))
        if self.rule.normalise:
            before = self.unit.clone()
            self._set_unit()
            late = k >= 0.1 * horizon if horizon else k > 4
            if late and not self.rule.tracks:
                known = (before > 0) & (self.unit > 0)
                # A unit that grows fast late does so because of violations of steps that overshoot.
                self.unit.copy_(torch.where(known, torch.minimum(2 * before, self.unit), self.unit))
                self.multiplier.mul_(torch.where(known, before / self.unit, 1.0))

    def _set_unit(self) -> None:
        """u = pull/g, or what the rule takes instead."""
        known = self.gradient > 0
        unit = torch.where(known, self.pull / torch.where(known, self.gradient, 1.0), 0.0)
        self.unit.copy_(self.rule.unit(self.state(), unit, self.price))

    def ascend(
        self, sums: Tensor, counts: Tensor, k: int, horizon: int | None, nu: Tensor, largest: Tensor
    ) -> dict[str, float]:
        """One dual update from Σ_l of the degree and the number of rows, each [k] or [N, k].

        Returns:
            This constraint's entries of a history row: Σ λν as it entered the loss, mean and maximum ν, and the new λ;
            `excess`, the largest mean ν of a column as a multiple of its tolerance; and, of several columns, which
            `column` that is and its `share` of the sum over all columns.
        """
        if self.kind == "constraint":
            sums = sums.mean(-1)
        penalty = float((self.value * sums).sum() / counts.sum().clamp_min(1))
        self._move(sums, counts, k, horizon)
        relative = nu / self.tolerance  # [k]
        found = {
            "penalty": penalty, "nu_mean": float(nu.mean()), "nu_max": float(largest.max()),
            "lambda": float(self.value.mean()),
            "excess": float(relative.mean() if self.kind == "constraint" else relative.max()),
        }  # fmt: skip
        if self.multiplier.numel() > 1:
            found["lambda_max"] = float(self.value.abs().max())
        if len(nu) > 1:
            found |= {
                "column": float(relative.argmax()),
                "share": float(relative.max() / relative.sum()) if float(relative.sum()) > 0 else 0.0,
            }
        return {f"{part}/{self.constraint.name}": value for part, value in found.items()}

    def _move(self, sums: Tensor, counts: Tensor, k: int, horizon: int | None) -> None:
        """Update by the rule, then project to λ ≥ 0 and to the cap."""
        violation = sums / counts.clamp_min(1) if self.rule.reduce == "mean" else sums
        divisor = torch.ones_like(self.scale)
        if self.rule.normalise:
            if not bool((self.scale > 0).any()):  # σ has not depended on the predictions so far: no unit yet
                return
            # A column that no prediction can change has no unit, and no multiplier.
            divisor = torch.where(self.scale > 0, self.scale, torch.inf)
        tolerance = torch.where(torch.isfinite(divisor), self.tolerance / divisor, torch.inf)
        moment = Moment(k, horizon, tolerance, float(self.conflict), self.labelled)
        self.rule.update(self.state(), violation / divisor, moment)
        if self.rule.prices:
            self._set_unit()
        if not self.signed:
            self.multiplier.clamp_(min=0)
        # Large multipliers make gradient steps overshoot, which raises ν, and so the multipliers, without end.
        bound = torch.full_like(self.unit, LARGEST if self.rule.normalise else torch.inf)
        if self.constraint.cap is not None:
            bound = torch.where(self.unit > 0, torch.minimum(self.constraint.cap / self.unit, bound), bound)
        self.multiplier.copy_(torch.maximum(torch.minimum(self.multiplier, bound), -bound))

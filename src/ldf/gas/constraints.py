"""Constraints of optimal gas flow in torch: satisfiability degrees σ10 … σ14 of the paper's appendix B.3.

A violation degree ν is the mean of max(0, σ) or |σ| over junctions, arcs or compressors; one column covers both sides
of an interval (see `ldf.power.constraints`). With labels, flows are the paper's indirect flows q^f, computed by
Weymouth's law from the predicted pressures and ratios. Without labels, the constraints are those of Model 2 on the
state itself, including its own flows q; certificates use this form.

Indirect flows are ill-conditioned, ∂q^f/∂p ≈ 1/(W|q|). Therefore σ14 is weighted by min(1, √W) on each arc, and where
W|q| is below `CONDITION`, q^f is the predicted flow itself: pressures barely determine the flow there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.constraint import Constraint, equality, inequality
from ..proxies.laws import Last, Laws, outside, summed
from .network import Network
from .physics import flow, loss

LAWS = {"balance": "10", "pressure": "11a", "limits": "11b", "ratio": "12", "flow": "14", "weymouth": "14, 15"}
"""Numbers of the constraints in the paper: ν14 compares flows with labels; (14) and (15) are equations of the model."""

CONDITION = 1e-3
"""Threshold on W|q|, in units of base pressure and flow."""


class States(NamedTuple):
    """States split by quantity, in units of base pressure and base flow."""

    ratio: Tensor
    """[B, C] compressor ratios R."""
    p: Tensor
    """[B, N] pressures."""
    q: Tensor
    """[B, E] predicted flows."""
    inlet: Tensor
    """[B, E] pressures at the arc inlets, after the compressors."""
    outlet: Tensor
    """[B, E] pressures at the arc outlets."""
    indirect: Tensor
    """[B, E] indirect flows q^f."""


class GasLaws(Laws):
    """σ10 … σ14 on states [B, S], by indexed gathers and sums without loops over junctions or arcs."""

    def __init__(self, network: Network, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype)
        self.junctions, self.arcs = network.junctions, network.arcs
        self.sizes = [network.compressors, network.junctions, network.arcs]
        self.source, self.target = self.index(network.source), self.index(network.target)
        self.compressor = self.index(network.compressor)
        self.share = self.number(network.share)
        w = network.scaled_resistance
        self.resistance = self.number(w)
        self.pipes = self.number(w > 0).bool()
        self.safe = self.number(np.where(w > 0, w, 1.0))  # safe divisor
        self.weight = self.number(np.where(w > 0, np.minimum(1, np.sqrt(w)), 1.0))
        p_min, p_max = network.p_min / network.base_pressure, network.p_max / network.base_pressure
        p_min[network.slack] = p_max[network.slack] = 1.0
        self.pressures = self.interval(p_min, p_max)
        self.flows = self.interval(network.flow_min / network.base_flow, network.flow_max / network.base_flow)
        self.ratios = self.interval(network.ratio_min, network.ratio_max)

    def states(self, states: Tensor) -> States:
        """Split states [B, S] by quantity and compute indirect flows from pressures and ratios."""
        ratio, p, q = states.split(self.sizes, 1)
        boost = p.new_ones(len(p), self.arcs).index_copy(1, self.compressor, ratio)
        inlet, outlet = boost * p.index_select(1, self.source), p.index_select(1, self.target)
        determined = self.pipes & (self.resistance * q.detach().abs() > CONDITION)
        indirect = flow(inlet * inlet - outlet * outlet, self.safe)
        return States(ratio, p, q, inlet, outlet, torch.where(determined, indirect, q))

    def balance(self, q: Tensor, demands: Tensor) -> Tensor:
        """σ10 = Σ_j q_ij − Σ_j q_ji − q_i with q_i = share_i Σ d − d_i: [B, N]."""
        entering = self.share * demands.sum(1, keepdim=True) - demands
        return summed(q, self.source, self.junctions) - summed(q, self.target, self.junctions) - entering

    def pressure(self, at: States) -> Tensor:
        """σ11a, σ11b = max(p^l − p, p − p^u): [B, N]; at the slack both limits are p^T."""
        return outside(at.p, *self.pressures)

    def limits(self, q: Tensor) -> Tensor:
        """σ11c, σ11d = max(q^l − q, q − q^u): [B, arcs with a limit]."""
        return outside(q, *self.flows)

    def ratio(self, at: States) -> Tensor:
        """σ12 = max(R^l − R, R − R^u): [B, C]."""
        return outside(at.ratio, *self.ratios)

    def flow(self, at: States, truth: States) -> Tensor:
        """σ14 = min(1, √W)·(q^f − q) against the flows of the labels: [B, E]."""
        return self.weight * (at.indirect - truth.q)

    def weymouth(self, at: States) -> Tensor:
        """(14), (15): R² p_i² − p_j² − W q|q|, or R p_i − p_j on arcs without resistance: [B, E]."""
        squared = at.inlet * at.inlet - at.outlet * at.outlet - loss(at.q, self.resistance)
        return torch.where(self.pipes, squared, at.inlet - at.outlet)

    def constraints(self, read: Callable[[Any, Any], Tensor], labels: bool = True) -> list[Constraint]:
        """The constraints on predictions.

        Args:
            read: (predictions, batch) → states [B, S].
            labels: if True, ν10 … ν14 with indirect flows, where ν14 compares with the labels batch.states [B, S];
                otherwise the constraints of Model 2 on the state itself.

        Each batch provides its demands [B, N] as batch.demand.
        """
        at = Last(lambda predictions, batch: self.states(read(predictions, batch)))
        truth = Last(lambda _, batch: self.states(batch.states))

        def flows(y: Any, batch: Any) -> Tensor:
            found: States = at(y, batch)
            return found.indirect if labels else found.q

        laws = [
            equality("balance", lambda y, batch: self.balance(flows(y, batch), batch.demand)),
            inequality("pressure", lambda y, batch: self.pressure(at(y, batch))),
        ]
        if len(self.flows[0]):
            laws.append(inequality("limits", lambda y, batch: self.limits(flows(y, batch))))
        if len(self.ratios[0]):
            laws.append(inequality("ratio", lambda y, batch: self.ratio(at(y, batch))))
        if labels:
            laws.append(equality("flow", lambda y, batch: self.flow(at(y, batch), truth(y, batch))))
        else:
            laws.append(equality("weymouth", lambda y, batch: self.weymouth(at(y, batch))))
        return laws

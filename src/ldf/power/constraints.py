"""The constraints of AC optimal power flow in torch: satisfiability degrees σ3 … σ8 of the paper's appendix B.2.

A violation degree ν is the mean of max(0, σ) or |σ| over buses, branches, generators or arcs. Where the paper has two
one-sided degrees, σ_a and σ_b, one column here holds max(σ_a, σ_b): at most one of them is positive, hence
max(0, σ) = max(0, σ_a) + max(0, σ_b). Three errors of the paper are corrected: σ5c uses the lower bound q^gl, σ6
compares the squared flow with the squared limit, and ν7 is a mean over buses.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.constraint import Constraint, equality, inequality
from ..proxies.laws import Last, Laws, outside, summed
from .case import Case
from .ohm import flows

LAWS = {
    "voltage": "3",
    "angle": "4",
    "active": "5a",
    "reactive": "5b",
    "thermal": "6",
    "balance_p": "7a",
    "balance_q": "7b",
    "flow_p": "8a",
    "flow_q": "8b",
}
"""Constraint names, and their numbers in the paper."""
LIMITS = tuple(LAWS)[:7]
"""The constraints of the optimal power flow itself; flows follow from Ohm's law."""


class States(NamedTuple):
    """States split by quantity, with the flows given by Ohm's law."""

    pg: Tensor
    """[B, G]"""
    qg: Tensor
    v: Tensor
    """[B, N]"""
    theta: Tensor
    difference: Tensor
    """θ_i − θ_j, [B, 2E]"""
    p: Tensor
    """[B, 2E]"""
    q: Tensor


class PowerLaws(Laws):
    """σ3 … σ8 on states [B, S], per unit and radians; all tensors have the same dtype.

    There is no loop over buses or branches: quantities are gathered to arcs and summed back to buses by index.
    """

    def __init__(self, case: Case, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        number, index, interval = self.number, self.index, self.interval
        arcs = case.arcs
        self.buses, self.sizes = case.buses, [case.generators, case.generators, case.buses, case.buses]
        self.source, self.target = index(arcs.source), index(arcs.target)
        self.at = index(case.at)
        self.admittance = SimpleNamespace(
            g_self=number(arcs.g_self),
            b_self=number(arcs.b_self),
            g_mutual=number(arcs.g_mutual),
            b_mutual=number(arcs.b_mutual),
        )
        self.gs, self.bs = number(case.gs), number(case.bs)

        self.v, self.pg, self.qg = (
            interval(low, high)
            for low, high in ((case.v_min, case.v_max), (case.p_min, case.p_max), (case.q_min, case.q_max))
        )
        self.angle = interval(case.angle_min, case.angle_max)
        rated = np.flatnonzero(np.isfinite(np.tile(case.limit, 2)))
        self.rated = index(rated)
        self.limit = number(np.tile(case.limit, 2)[rated])

    def states(self, states: Tensor) -> States:
        """Split states [B, S] by quantity and compute their flows."""
        pg, qg, v, theta = states.split(self.sizes, 1)
        difference = theta.index_select(1, self.source) - theta.index_select(1, self.target)
        p, q = flows(
            self.admittance,
            v.index_select(1, self.source),
            v.index_select(1, self.target),
            difference.cos(),
            difference.sin(),
        )
        return States(pg, qg, v, theta, difference, p, q)

    def voltage(self, at: States) -> Tensor:
        """σ3 = max(v^l − v, v − v^u): [B, N]."""
        return outside(at.v, *self.v)

    def angles(self, at: States) -> Tensor:
        """σ4 = max(θ^l_ij − (θ_i − θ_j), (θ_i − θ_j) − θ^u_ij): [B, branches with a limit]."""
        return outside(at.difference, *self.angle)

    def active(self, at: States) -> Tensor:
        """σ5a, σ5b = max(p^gl − p^g, p^g − p^gu): [B, generators with a limit]."""
        return outside(at.pg, *self.pg)

    def reactive(self, at: States) -> Tensor:
        """σ5c, σ5d = max(q^gl − q^g, q^g − q^gu): [B, generators with a limit]."""
        return outside(at.qg, *self.qg)

    def thermal(self, at: States) -> Tensor:
        """σ6 = p_ij² + q_ij² − (s^u_ij)²: [B, arcs with a limit]."""
        p, q = at.p.index_select(1, self.rated), at.q.index_select(1, self.rated)
        return p * p + q * q - self.limit * self.limit

    def balance_p(self, at: States, demands: Tensor) -> Tensor:
        """σ7a = Σ_j p_ij + g^s v² − (p^g − p^d): [B, N]."""
        return self._leaving(at.p) + self.gs * at.v * at.v - self._placed(at.pg) + demands[:, : self.buses]

    def balance_q(self, at: States, demands: Tensor) -> Tensor:
        """σ7b = Σ_j q_ij − b^s v² − (q^g − q^d): [B, N]."""
        return self._leaving(at.q) - self.bs * at.v * at.v - self._placed(at.qg) + demands[:, self.buses :]

    def _leaving(self, flow: Tensor) -> Tensor:
        return summed(flow, self.source, self.buses)

    def _placed(self, generation: Tensor) -> Tensor:
        return summed(generation, self.at, self.buses)

    def constraints(self, read: Callable[[Any, Any], Tensor], labels: bool = True) -> list[Constraint]:
        """All constraints on predictions.

        Args:
            read: (predictions, batch) → states [B, S].
            labels: include ν8, the distance from the flows of the labels, batch.states [B, S].

        Every batch must hold its demands [B, 2N] as batch.demand.
        """
        at = Last(lambda predictions, batch: self.states(read(predictions, batch)))
        truth = Last(lambda _, batch: self.states(batch.states))
        laws = [inequality("voltage", lambda y, batch: self.voltage(at(y, batch)))]
        if len(self.angle[0]):
            laws.append(inequality("angle", lambda y, batch: self.angles(at(y, batch))))
        if len(self.pg[0]):
            laws.append(inequality("active", lambda y, batch: self.active(at(y, batch))))
        if len(self.qg[0]):
            laws.append(inequality("reactive", lambda y, batch: self.reactive(at(y, batch))))
        if len(self.rated):
            laws.append(inequality("thermal", lambda y, batch: self.thermal(at(y, batch))))
        laws += [
            equality("balance_p", lambda y, batch: self.balance_p(at(y, batch), batch.demand)),
            equality("balance_q", lambda y, batch: self.balance_q(at(y, batch), batch.demand)),
        ]
        if labels:
            laws += [
                equality("flow_p", lambda y, batch: at(y, batch).p - truth(y, batch).p),
                equality("flow_q", lambda y, batch: at(y, batch).q - truth(y, batch).q),
            ]
        return laws

"""The price of a block: value and slope of λν, smoothed and curved, against the formulas written out."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ldf
from ldf.core.blocks import Block
from ldf.core.scope import Side

ROWS, WIDTH = 5, 3
KINDS = [(kind, degree) for kind in ("inequality", "equality") for degree in ("violation", "satisfiability")]
positive = st.sampled_from([0.0, 1e-3, 0.3, 2.0, 50.0])


def block(per_row: bool, slack: float) -> Block:
    """All four kinds of constraints, three columns each, under a rule that smooths and curves."""
    constraints = [
        (ldf.inequality if kind == "inequality" else ldf.equality)(
            f"{kind} {degree}", lambda y, b: y, degree=degree, slack=slack, multiplier="sample" if per_row else "column"
        )
        for kind, degree in KINDS
    ]
    lagrangian = ldf.Lagrangian(constraints, ldf.Augmented(normalise=False), rows=ROWS)
    y = torch.zeros(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    lagrangian(y.sum(), y, ldf.Batch(inputs=y, ids=torch.arange(ROWS)))
    (found,) = lagrangian.stacks()
    return found


def written_out(sigma: Tensor, kind: str, degree: str, weight: Tensor, curvature: Tensor, knee: float) -> Tensor:
    """Σ of λν, Huber with knee δ, + ½ρν²; of λσ + ½ρσ² with plain σ; of (max(0, λ + ρσ)² − λ²)/2ρ for plain σ ≤ 0."""
    if degree == "satisfiability":
        if kind == "equality":
            return (weight * sigma + 0.5 * curvature * sigma**2).sum()
        term = ((weight + curvature * sigma).clamp_min(0) ** 2 - weight**2) / (2 * curvature.clamp_min(1e-300))
        return torch.where(curvature > 0, term, 0.0).sum()
    nu = sigma.abs() if kind == "equality" else sigma.clamp_min(0)
    huber = torch.where(nu < knee, nu**2 / (2 * knee), nu - knee / 2) if knee else nu
    return (weight * huber + 0.5 * curvature * nu**2).sum()


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    weight=positive,
    curvature=positive,
    knee=st.sampled_from([0.0, 1e-2, 1.0]),
    slack=st.sampled_from([0.0, 0.2]),
    per_row=st.booleans(),
)
def test_the_price_and_its_slope_are_those_of_the_formulas(
    seed: int, size: float, weight: float, curvature: float, knee: float, slack: float, per_row: bool
) -> None:
    made, random = block(per_row, slack), torch.Generator().manual_seed(seed)
    y = (size * torch.randn(ROWS, WIDTH, generator=random, dtype=torch.float64)).requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for (kind, degree), part in zip(KINDS, made.slices, strict=True):
        shape = made.weight[..., part].shape
        scales = torch.rand(shape, generator=random, dtype=torch.float64)
        # Without curvature, plain σ ≤ 0 has no bounded term: its multiplier and ρ begin together.
        bounded = (kind, degree) == ("inequality", "satisfiability")
        own = 0.0 if bounded and not curvature else weight
        made.weight[..., part], made.curvature[..., part] = own * scales, curvature
        if bounded:
            made.offset[..., part] = -own * scales / curvature if curvature else 0.0
        if degree == "violation":
            made.knee[part] = knee
        relaxed = y - y.clamp(-slack if kind == "equality" else slack, slack)
        lam, rho = (torch.as_tensor(table[..., part]).clone() for table in (made.weight, made.curvature))
        expected = expected + written_out(relaxed, kind, degree, lam, rho, knee) / ROWS
    made.arrange()
    price = made(torch.zeros((), dtype=torch.float64), Side(y, ldf.Batch(inputs=y, ids=torch.arange(ROWS))), True)
    torch.testing.assert_close(price, expected, rtol=1e-9, atol=1e-9)
    found, wanted = (torch.autograd.grad(value, y, retain_graph=True)[0] for value in (price, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_step_remembers_violations_without_smoothing() -> None:
    made = block(False, 0.0)
    made.reset()
    made.knee.fill_(1.0)
    made.arrange()
    y = torch.tensor([[-2.0, 0.5, 0.0], [1.0, -0.5, 0.1]], dtype=torch.float64)
    made(torch.zeros((), dtype=torch.float64), Side(y, None), True)
    for (kind, _), part in zip(KINDS, made.slices, strict=True):
        nu = y.abs() if kind == "equality" else y.clamp_min(0)
        torch.testing.assert_close(made.violations[part], nu.sum(0))
        torch.testing.assert_close(made.maxima[part], nu.amax(0))
    assert float(made.count) == 2
    assert math.isfinite(float(made.sums.sum()))

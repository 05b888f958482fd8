"""The constraints in torch: zero at the solver's optima, and of the right size elsewhere."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ldf
from ldf.power.acopf import ACOPF
from ldf.power.case import Case, load
from ldf.power.constraints import LAWS, PowerLaws

F64 = torch.float64
FACTORS = (0.85, 0.95, 1.0)


def itself(predictions: Tensor, batch: object) -> Tensor:
    return predictions


@dataclasses.dataclass
class Solved:
    """A network with the optima of a few demands."""

    case: Case
    solver: ACOPF
    demand: Tensor
    states: Tensor

    def batch(self, dtype: torch.dtype = F64) -> ldf.Batch:
        return ldf.Batch(demand=self.demand.to(dtype), states=self.states.to(dtype))

    def sigma(self, states: Tensor, batch: ldf.Batch | None = None) -> dict[str, Tensor]:
        """σ of every constraint."""
        batch = batch or self.batch(states.dtype)
        return {law.name: law.sigma(states, batch) for law in PowerLaws(self.case, states.dtype).constraints(itself)}

    def nu(self, states: Tensor, batch: ldf.Batch | None = None) -> dict[str, Tensor]:
        """ν of every constraint."""
        batch = batch or self.batch(states.dtype)
        laws = PowerLaws(self.case, states.dtype).constraints(itself)
        return {law.name: law.violation(law.sigma(states, batch)) for law in laws}

    def moved(self, quantity: str, entry: int, value: float, row: int = 1) -> Tensor:
        """The optima with one number replaced."""
        states = self.states.clone()
        states[row, self.solver.quantities[quantity].start + entry] = value
        return states


@pytest.fixture(scope="module")
def solved() -> dict[str, Solved]:
    found = {}
    for name in ("case14_ieee", "case30_ieee", "case118_ieee"):
        solver = ACOPF(load(name))
        solutions = [solver.solve(solver.nominal * factor) for factor in FACTORS]
        assert all(solution.solved for solution in solutions)
        demand = np.outer(FACTORS, solver.nominal)
        states = np.stack([solution.state for solution in solutions])
        found[name] = Solved(solver.case, solver, torch.tensor(demand), torch.tensor(states))
    return found


@pytest.fixture(scope="module")
def small(solved: dict[str, Solved]) -> Solved:
    return solved["case14_ieee"]


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-6), (torch.float32, 2e-4)])
@pytest.mark.parametrize("name", ["case30_ieee", "case118_ieee"])
def test_optima_satisfy_all_constraints(
    name: str, dtype: torch.dtype, tolerance: float, solved: dict[str, Solved]
) -> None:
    nu = solved[name].nu(solved[name].states.to(dtype))
    assert nu.keys() == LAWS.keys()
    for law, violation in nu.items():
        assert violation.dtype == dtype
        assert float(violation.max()) <= tolerance, law


def test_shapes_are_those_of_the_network(small: Solved) -> None:
    n, g, e = small.case.buses, small.case.generators, small.case.branches
    widths = {"voltage": n, "angle": e, "active": g, "reactive": g, "thermal": 2 * e, "balance_p": n, "balance_q": n}
    widths |= {"flow_p": 2 * e, "flow_q": 2 * e}
    assert {law: tuple(sigma.shape) for law, sigma in small.sigma(small.states).items()} == {
        law: (len(FACTORS), width) for law, width in widths.items()
    }


# ---------------------------------------------------------------- each constraint measures its own quantity


@pytest.mark.parametrize(
    ("law", "quantity", "low", "high"),
    [
        ("voltage", "v", "v_min", "v_max"),
        ("active", "pg", "p_min", "p_max"),
        ("reactive", "qg", "q_min", "q_max"),
    ],
)
@pytest.mark.parametrize("side", [-1, 1])
def test_a_bound_is_violated_by_how_far_it_is_passed(law, quantity, low, high, side, small: Solved) -> None:
    bound = getattr(small.case, high if side > 0 else low)[1]
    nu = small.nu(small.moved(quantity, 1, bound + side * 0.07))[law]
    wanted = torch.zeros_like(nu)
    wanted[1, 1] = 0.07
    torch.testing.assert_close(nu, wanted, rtol=0, atol=1e-7)
    # The paper's ν is the mean over buses or generators.
    finding = ldf.certify(
        [c for c in PowerLaws(small.case, F64).constraints(itself) if c.name == law],
        small.moved(quantity, 1, bound + side * 0.07)[1:2],
        ldf.Batch(demand=small.demand[1:2], states=small.states[1:2]),
    )[law]
    assert finding.mean == pytest.approx(0.07 / nu.shape[1], abs=1e-7)


@pytest.mark.parametrize("side", [-1, 1])
def test_an_angle_is_violated_by_how_far_its_limit_is_passed(side: int, small: Solved) -> None:
    branch, case = 3, small.case
    bound = (case.angle_max if side > 0 else case.angle_min)[branch]
    theta = small.solver.quantities["theta"].start
    start = float(small.states[1, theta + case.source[branch]])
    states = small.moved("theta", case.target[branch], start - bound - side * 0.05)
    sigma = small.sigma(states)["angle"]
    assert float(sigma[1, branch]) == pytest.approx(0.05)
    untouched = (case.source != case.target[branch]) & (case.target != case.target[branch])
    assert torch.equal(sigma[:, untouched], small.sigma(small.states)["angle"][:, untouched])


def apparent(small: Solved, states: Tensor) -> np.ndarray:
    """V_i I_ij* of every arc, [B, 2E], in complex arithmetic."""
    arcs, parts = small.case.arcs, small.solver.quantities
    voltage = states.numpy()[:, parts["v"]] * np.exp(1j * states.numpy()[:, parts["theta"]])
    own, mutual = arcs.g_self + 1j * arcs.b_self, arcs.g_mutual + 1j * arcs.b_mutual
    current = own * voltage[:, arcs.source] + mutual * voltage[:, arcs.target]
    return voltage[:, arcs.source] * current.conj()


def test_the_thermal_law_compares_squares(small: Solved) -> None:
    case = small.case
    tight = dataclasses.replace(case, limit=case.limit / 10)
    laws = PowerLaws(tight, F64)
    sigma = laws.thermal(laws.states(small.states)).numpy()
    size = np.abs(apparent(small, small.states))
    np.testing.assert_allclose(sigma, size**2 - np.tile(case.limit / 10, 2) ** 2, atol=1e-12)
    assert (sigma > 0).any()
    assert (sigma < 0).any()


@pytest.mark.parametrize(
    ("quantity", "law", "other"), [("pg", "balance_p", "balance_q"), ("qg", "balance_q", "balance_p")]
)
def test_more_generation_unbalances_its_own_bus(quantity: str, law: str, other: str, small: Solved) -> None:
    generator = 1
    now = float(small.states[1, small.solver.quantities[quantity].start + generator])
    sigma = small.sigma(small.moved(quantity, generator, now + 0.2))
    wanted = torch.zeros_like(sigma[law])
    wanted[1, small.case.at[generator]] = -0.2
    torch.testing.assert_close(sigma[law], wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(sigma[other], torch.zeros_like(wanted), rtol=0, atol=1e-6)
    assert float(sigma["flow_p"].abs().max()) == 0


def test_more_demand_unbalances_its_own_bus(small: Solved) -> None:
    n = small.case.buses
    demand = small.demand.clone()
    demand[0, 5] += 0.1
    demand[2, n + 7] += 0.3
    nu = small.nu(small.states, ldf.Batch(demand=demand, states=small.states))
    for law, row, bus, size in (("balance_p", 0, 5, 0.1), ("balance_q", 2, 7, 0.3)):
        wanted = torch.zeros(len(FACTORS), n, dtype=F64)
        wanted[row, bus] = size
        torch.testing.assert_close(nu[law], wanted, rtol=0, atol=1e-6)


def test_shunts_are_part_of_the_balance(small: Solved) -> None:
    case = dataclasses.replace(small.case, gs=small.case.gs + 0.1, bs=small.case.bs + 0.2)
    laws = PowerLaws(case, F64)
    at = laws.states(small.states)
    torch.testing.assert_close(laws.balance_p(at, small.demand), 0.1 * at.v**2, rtol=0, atol=1e-6)
    torch.testing.assert_close(laws.balance_q(at, small.demand), -0.2 * at.v**2, rtol=0, atol=1e-6)


def test_flows_differ_only_at_the_bus_whose_voltage_differs(small: Solved) -> None:
    bus = 8
    moved = small.moved("v", bus, 1.2)
    nu, arcs = small.nu(moved), small.case.arcs
    difference = apparent(small, moved) - apparent(small, small.states)
    np.testing.assert_allclose(nu["flow_p"], np.abs(difference.real), atol=1e-12)
    np.testing.assert_allclose(nu["flow_q"], np.abs(difference.imag), atol=1e-12)
    near = torch.tensor((arcs.source == bus) | (arcs.target == bus))
    for law in ("flow_p", "flow_q"):
        assert (nu[law][1, near] > 1e-4).all()
        assert float(nu[law][:, ~near].max()) == 0
        assert float(nu[law][[0, 2]].max()) == 0


def test_turning_all_angles_changes_nothing(small: Solved) -> None:
    turned = small.states.clone()
    turned[:, small.solver.quantities["theta"]] += 0.7
    for law, nu in small.nu(turned).items():
        assert float(nu.max()) < 1e-6, law


def test_without_labels_there_is_no_distance_from_them(small: Solved) -> None:
    laws = PowerLaws(small.case, F64).constraints(itself, labels=False)
    assert [law.name for law in laws] == [name for name in LAWS if not name.startswith("flow")]
    batch = ldf.Batch(demand=small.demand)
    assert ldf.certify(laws, small.states, batch, tolerance=1e-6).holds


def test_without_limits_there_is_no_constraint(small: Solved) -> None:
    case, inf = small.case, np.inf
    e, g = case.branches, case.generators
    q_max = np.full(g, inf)
    q_max[2] = 0.1
    free = dataclasses.replace(case, limit=np.full(e, inf), q_min=np.full(g, -inf), q_max=q_max)
    free = dataclasses.replace(free, angle_min=np.full(e, -inf), angle_max=np.full(e, inf))
    laws = {law.name: law for law in PowerLaws(free, F64).constraints(itself)}
    assert laws.keys() == LAWS.keys() - {"angle", "thermal"}
    sigma = laws["reactive"].sigma(small.moved("qg", 2, 0.4), small.batch())
    assert sigma.shape == (len(FACTORS), 1)
    assert float(sigma[1, 0]) == pytest.approx(0.3)


# ---------------------------------------------------------------- derivatives, batches, memory


@pytest.mark.parametrize("law", LAWS)
def test_gradients_are_those_of_finite_differences(law: str, small: Solved) -> None:
    generator = torch.Generator().manual_seed(0)
    states = small.states[:2] + 0.1 * torch.randn(2, small.solver.size, generator=generator, dtype=F64)
    batch = ldf.Batch(demand=small.demand[:2], states=small.states[:2])
    (chosen,) = (c for c in PowerLaws(small.case, F64).constraints(itself) if c.name == law)
    # y * 1: gradcheck changes its argument in place, which autograd does not record.
    assert torch.autograd.gradcheck(lambda y: chosen.sigma(y * 1, batch), states.requires_grad_())


def test_a_batch_is_its_rows_one_by_one(small: Solved) -> None:
    states = small.states + 0.05 * torch.sin(torch.arange(small.states.numel(), dtype=F64)).view_as(small.states)
    together = small.sigma(states)
    for row in range(len(states)):
        one = slice(row, row + 1)
        alone = small.sigma(states[one], ldf.Batch(demand=small.demand[one], states=small.states[one]))
        for law, sigma in alone.items():
            torch.testing.assert_close(together[law][one], sigma, rtol=1e-12, atol=1e-12)


def test_vmapped_is_one_by_one(small: Solved) -> None:
    laws, batch = PowerLaws(small.case, F64).constraints(itself), small.batch()
    stack = torch.stack([small.states, 1.05 * small.states])

    def every(states: Tensor) -> Tensor:
        return torch.cat([law.sigma(states, batch) for law in laws], 1)

    torch.testing.assert_close(torch.func.vmap(every)(stack), torch.stack([every(states) for states in stack]))


@pytest.mark.parametrize("law", ["balance_p", "flow_p", "thermal"])
def test_cached_flows_are_never_of_other_predictions_or_rows(law: str, small: Solved) -> None:
    """Flows are computed once for all constraints, and again whenever predictions or batch change."""

    def fresh(states: Tensor, batch: ldf.Batch) -> Tensor:
        return small.sigma(states.detach().clone(), batch)[law]

    (chosen,) = (c for c in PowerLaws(small.case, F64).constraints(itself) if c.name == law)
    first, second = small.batch(), ldf.Batch(demand=small.demand * 1.1, states=small.states * 1.02)
    y = small.states * 1.01
    for batch in (first, second, first):
        assert torch.equal(chosen.sigma(y, batch), fresh(y, batch))
    other = y * 1.01
    assert torch.equal(chosen.sigma(other, first), fresh(other, first))
    other.mul_(1.01)  # changed in place: same object, different values
    assert torch.equal(chosen.sigma(other, first), fresh(other, first))


def test_values_without_gradients_are_not_taken_for_values_with(small: Solved) -> None:
    (law,) = (c for c in PowerLaws(small.case, F64).constraints(itself) if c.name == "balance_p")
    y, batch = small.states.clone().requires_grad_(), small.batch()
    with torch.no_grad():
        assert not law.sigma(y, batch).requires_grad
    assert law.sigma(y, batch).requires_grad
    with torch.inference_mode():
        law.sigma(small.states * 1.01, batch)


def test_predictions_themselves_may_be_optimised(small: Solved) -> None:
    """One tensor, changed in place by the optimiser: each step sees its new flows."""
    ours, theirs = (
        ldf.Lagrangian(PowerLaws(small.case, F64).constraints(itself), dual=ldf.Fixed(1.0)) for _ in range(2)
    )
    batch, loss = small.batch(), torch.zeros((), dtype=F64)
    y = nn.Parameter(small.states + 0.02)
    optimiser = torch.optim.Adam([y], lr=1e-3)
    totals = []
    for _ in range(10):
        optimiser.zero_grad()
        total = ours(loss, y, batch)
        assert torch.equal(total, theirs(loss, y.detach().clone(), batch))
        total.backward()
        optimiser.step()
        totals.append(float(total.detach()))
    assert totals[-1] < totals[0]


# ---------------------------------------------------------------- with the rest of ldf


def test_the_lagrangian_adds_the_mean_violation_of_each_constraint(small: Solved) -> None:
    states = (small.states + 0.03).float()
    batch = small.batch(torch.float32)
    lagrangian = ldf.Lagrangian(PowerLaws(small.case).constraints(itself), dual=ldf.Fixed(2.0))
    total = lagrangian(torch.tensor(5.0), states.requires_grad_(), batch)
    by_hand = 5.0 + 2.0 * sum(float(nu.mean()) for nu in small.nu(states.detach()).values())
    assert float(total.detach()) == pytest.approx(by_hand, rel=1e-4)


@pytest.fixture(scope="module")
def lesson(small: Solved) -> dict[str, Tensor]:
    """Twenty-four demands and their optima, in single precision."""
    factors = np.random.default_rng(0).uniform(0.8, 1.0, (24, 2 * small.case.buses))
    demand = small.solver.nominal * factors
    states = np.stack([small.solver.solve(d).state for d in demand])
    demand, states = torch.tensor(demand).float(), torch.tensor(states).float()
    return {"inputs": demand, "targets": states, "demand": demand, "states": states}


def options(small: Solved, **changes: object) -> dict:
    return {
        "loss": nn.functional.mse_loss,
        "constraints": PowerLaws(small.case).constraints(itself),
        "epochs": 30,
        "batch_size": 8,
        "progress": False,
        **changes,
    }


def model(small: Solved) -> nn.Module:
    return nn.Linear(2 * small.case.buses, small.solver.size)


def test_training_under_constraints_reduces_violations(small: Solved, lesson: dict[str, Tensor]) -> None:
    batch = ldf.Batch(demand=lesson["demand"], states=lesson["states"])
    mean = {}
    for dual in (None, ldf.Balanced()):
        torch.manual_seed(0)
        done = ldf.fit(model(small), lesson, dual=dual, **options(small))
        assert done.multipliers.keys() == LAWS.keys()
        found = ldf.certify(PowerLaws(small.case).constraints(itself), done.model(lesson["inputs"]), batch)
        mean[dual is None] = found["balance_p"].mean + found["balance_q"].mean
    assert mean[False] < 0.8 * mean[True]


def test_many_at_once_are_one_by_one(small: Solved, lesson: dict[str, Tensor]) -> None:
    settings = options(small, epochs=3, dual=ldf.Ascent(0.1))
    for seed, run in enumerate(ldf.fit_many(lambda: model(small), lesson, seeds=[0, 1], **settings)):
        torch.manual_seed(seed)
        alone = ldf.fit(model(small), lesson, seed=seed, **settings)
        for ours, theirs in zip(run.model.parameters(), alone.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        for name, value in alone.multipliers.items():
            torch.testing.assert_close(run.multipliers[name], value, rtol=1e-3, atol=1e-4)

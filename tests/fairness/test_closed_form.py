"""The closed-form decision rule compared with brute force, linear programs and the loss itself; and the report."""

import json
import math
import sys

import numpy as np
import pytest
from fair import CONSTRAINTS, FREE_GAP, Known, chances_of, gaps_of, known, population, rates_of, several
from helpers import size_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from threadpoolctl import threadpool_limits

from ldf.fairness.closed_form import Rule, solve
from ldf.fairness.rates import Rates, newcombe, wilson
from ldf.fairness.report import POINTS, curve, report

QUICK = settings(deadline=None, max_examples=25)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


def solved(constraint: str, case: Known, slack: float = 0.0, groups: int = 2):
    """The rule, the gaps of its decisions, and their expected accuracy."""
    rates = rates_of(constraint, groups)
    chances = chances_of(rates, case)
    rule = solve(rates, case.positive, chances, rates.cells(case.groups, case.labels), slack)
    decisions = rule.decide(case.positive, chances)
    gaps = np.array(gaps_of(constraint, decisions, case.groups, case.labels, groups))
    return rule, gaps, expected(case, decisions)


def expected(case: Known, decisions) -> float:
    """P(ŷ = y) for decisions in [0, 1]."""
    return float(np.mean(decisions * case.positive + (1 - decisions) * (1 - case.positive)))


def least(constraint: str, case: Known, count: int) -> int:
    """The smallest number of rows of any rate."""
    cells = rates_of(constraint, count).cells(case.groups, case.labels)
    return int(np.bincount(cells[cells >= 0]).min())


# ------------------------------------------------------------------------------------------------ the rule


def best_of_grid(case: Known, slack: float) -> float:
    """Best accuracy with a gap of at most the slack, by grid search over the multiplier."""
    pull = case.of_groups / case.of_groups.mean(0)
    best = 0.0
    for m in np.linspace(-1, 0.2, 2401):
        decisions = case.positive > 0.5 + 0.5 * m * (pull[:, 1] - pull[:, 0])
        (gap,) = gaps_of("demographic parity", decisions, case.groups, case.labels, 2)
        if abs(gap) <= slack + 4e-3:
            best = max(best, expected(case, decisions))
    return best


@pytest.mark.parametrize("slack", [0.0, 0.05, 0.2])
def test_no_multiplier_of_a_grid_is_better(slack):
    case = known(4000)
    _, gaps, accuracy = solved("demographic parity", case, slack)
    assert np.abs(gaps).max() <= slack + 2e-3
    assert accuracy == pytest.approx(best_of_grid(case, slack), abs=3e-3)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("slack", [0.0, 0.05])
@pytest.mark.parametrize("centres", [(0.5, -0.5), (0.6, 0.0, -0.6)])
def test_not_even_a_random_rule_is_better(constraint, slack, centres):
    case, count = population(centres=centres), len(centres)
    rates = rates_of(constraint, count)
    rule, gaps, accuracy = solved(constraint, case, slack, count)
    assert rule.multipliers.shape == (len(rates.pairs),)
    assert np.abs(gaps).max() <= slack + 0.02
    # Copies of a row share one variable: the probability of a positive decision.
    chances = chances_of(rates, case)
    alike = np.round(np.column_stack([case.positive, chances]), 12)
    _, first, copies = np.unique(alike, axis=0, return_index=True, return_counts=True)
    of_cells = chances[first] * copies[:, None]
    differences = rates.differences @ (of_cells / of_cells.sum(0)).T
    found = linprog(
        copies / copies.sum() * (1 - 2 * case.positive[first]),
        A_ub=np.concatenate([differences, -differences]),
        b_ub=np.full(2 * len(differences), max(slack, np.abs(gaps).max())),
        bounds=(0, 1),
    )
    bound = 1 - case.positive.mean() - found.fun
    assert bound - 6e-3 <= accuracy <= bound + 1e-9


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_slack_that_nothing_exceeds_leaves_every_threshold_at_a_half(constraint):
    case, rates = known(), rates_of(constraint, 2)
    free = np.abs(gaps_of(constraint, case.positive > 0.5, case.groups, case.labels, 2)).max()
    rule, gaps, _ = solved(constraint, case, free + 0.05)
    assert rule.multipliers == pytest.approx(np.zeros(len(rates.pairs)), abs=1e-6)
    assert rule.threshold(chances_of(rates, case)) == pytest.approx(np.full(2000, 0.5), abs=1e-5)
    assert np.abs(gaps).max() == pytest.approx(free)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_with_groups_that_are_known_the_rule_is_a_threshold_for_each(constraint):
    case, rates = several(2000), rates_of(constraint, 3)
    case = case._replace(of_groups=np.eye(3)[case.groups])
    rule, gaps, _ = solved(constraint, case, 0.0, 3)
    decisions = rule.decide(case.positive, rates.chances(case.of_groups, case.positive))
    ends = []
    for group in range(3):
        own = case.groups == group
        yes, no = case.positive[own & decisions], case.positive[own & ~decisions]
        assert no.max() < yes.min()
        ends.append((no.max(), yes.min()))
    assert ends[0][0] > ends[2][1]
    if constraint == "demographic parity":
        assert np.abs(gaps).max() <= 2 / least(constraint, case, 3)


def test_the_observed_gap_is_within_the_slack_for_inaccurate_group_probabilities():
    case = known(4000)
    blunt = case._replace(of_groups=0.8 * case.of_groups + 0.1)
    sharp = case._replace(of_groups=case.of_groups**2 / (case.of_groups**2).sum(1, keepdims=True))
    for slack in (0.0, 0.1):
        assert np.abs(solved("demographic parity", blunt, slack)[1]).max() <= slack + 0.01
        assert np.abs(solved("demographic parity", sharp, slack)[1]).max() <= slack + 0.01


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_more_rounds_of_correction_never_widen_the_gap(monkeypatch, share):
    case = known(1500)
    blunt = case._replace(of_groups=(1 - share) * case.of_groups + share / 2)
    found = []
    for rounds in range(1, 7):
        monkeypatch.setattr("ldf.fairness.closed_form.ROUNDS", rounds)
        found.append(np.abs(solved("demographic parity", blunt)[1]).max())
    assert found == sorted(found, reverse=True)


def test_the_multiplier_has_the_sign_of_the_gap_and_falls_with_the_slack():
    case = known(4000)
    found = [solved("demographic parity", case, slack)[0].multipliers[0] for slack in (0.0, 0.1, 0.2, 0.3)]
    assert all(m < 0 for m in found)
    assert found == sorted(found)


def test_a_group_without_rows_has_no_threshold():
    rates, cells = rates_of("demographic parity", 3), np.array([0, 1, 0, 1])
    with pytest.raises(ValueError, match="every group must have rows"):
        solve(rates, np.full(4, 0.5), np.full((4, 3), 1 / 3), cells)


@QUICK
@given(st.integers(0, 10_000), st.sampled_from(CONSTRAINTS), st.integers(2, 3))
def test_cross_entropy_with_twice_the_multiplier_has_the_same_boundary(seed, constraint, count):
    random = np.random.default_rng(seed)
    rates = rates_of(constraint, count)
    weights, positive = random.dirichlet(np.full(6, 5.0)), random.uniform(0.05, 0.95, 6)
    chances = rates.chances(random.dirichlet(np.ones(count), 12).reshape(6, -1), positive)
    if constraint == "demographic parity":
        chances = chances[:, :count] / chances[:, :count].sum(1, keepdims=True)
    m = random.normal(size=len(rates.pairs)) * 0.2
    shares = weights @ chances

    def lagrangian(p):
        entropy = -(positive * np.log(p) + (1 - positive) * np.log(1 - p))
        gaps = rates.differences @ ((weights * p) @ chances / shares)
        slope = weights * ((p - positive) / (p * (1 - p)) + chances / shares @ rates.differences.T @ (2 * m))
        return weights @ entropy + 2 * m @ gaps, slope

    found = minimize(lagrangian, np.full(6, 0.5), jac=True, bounds=[(1e-6, 1 - 1e-6)] * 6, tol=1e-10).x
    rule = Rule(m, rates.differences.T @ m / shares)
    clear = np.abs(positive - rule.threshold(chances)) > 1e-3
    assert np.array_equal((found > 0.5)[clear], rule.decide(positive, chances)[clear])


@QUICK
@given(st.integers(0, 10_000), st.sampled_from(CONSTRAINTS))
def test_a_rule_decides_best_for_its_own_multipliers(seed, constraint):
    random = np.random.default_rng(seed)
    case, rates = population(3), rates_of(constraint, 2)
    chances, m = chances_of(rates, case), random.normal(size=len(rates.pairs)) * 0.3
    rule = Rule(m, rates.differences.T @ m / chances.mean(0))

    def price(decisions):
        gaps = gaps_of(constraint, decisions, case.groups, case.labels, 2)
        return 1 - expected(case, decisions) + float(m @ gaps)

    _, number = np.unique(np.round(case.positive, 12), return_inverse=True)
    every = (np.array([which >> place & 1 for place in range(6)])[number] for which in range(64))
    assert price(rule.decide(case.positive, chances)) <= min(price(decisions) for decisions in every) + 1e-9


# ------------------------------------------------------------------------------------------------ the trade-off


@pytest.fixture(scope="module", params=["demographic parity", "equal opportunity"])
def traded(request):
    case, rates = known(1500), rates_of(request.param, 2)
    chances = rates.chances(case.of_groups, case.positive)
    return request.param, case, curve(rates, case.positive, chances, rates.cells(case.groups, case.labels), case.labels)


def test_the_curve_satisfies_every_slack(traded):
    constraint, case, points = traded
    assert len(points) == POINTS
    free = abs(gaps_of(constraint, case.positive > 0.5, case.groups, case.labels, 2)[0])
    assert [slack for slack, _, _ in points] == pytest.approx(np.linspace(0, free, POINTS))
    assert all(gap <= slack + 2 / least(constraint, case, 2) for slack, _, gap in points)


def test_the_curve_ends_where_nothing_is_constrained_and_rises_towards_it(traded):
    constraint, case, points = traded
    accuracies = [accuracy for _, accuracy, _ in points]
    free = np.mean((case.positive > 0.5) == (case.labels == 1))
    assert accuracies[-1] == pytest.approx(free, abs=2e-3)
    assert accuracies[0] < free
    assert np.polyfit(range(POINTS), accuracies, 1)[0] > 0
    if constraint == "demographic parity":
        assert points[-1][0] == pytest.approx(-FREE_GAP, abs=0.09)
        assert accuracies[0] < free - 0.05


# ------------------------------------------------------------------------------------------------ the report


def seen(constraint="demographic parity", groups=2, slack=0.0, level=0.95, trade=(), rows=600, source="the rows given"):
    """A report on decisions 1[η > ½], and its inputs."""
    case = several(rows) if groups == 3 else known(rows)
    decisions = case.positive > 0.5
    rates = rates_of(constraint, groups)
    return report(rates, decisions, case.labels, case.groups, level, source, trade, slack), case, decisions


def test_a_report_counts_rows_accuracy_and_rates():
    found, case, decisions = seen("equalised odds")
    right = decisions == case.labels
    assert (found.rows, found.accuracy) == (600, right.mean())
    assert found.accuracy_interval == wilson(right.sum(), 600)
    for number, group in enumerate(found.groups):
        own = case.groups == number
        assert (group.name, group.rows, group.accuracy) == ("ab"[number], own.sum(), right[own].mean())
        for event, label in (("y = 1", 1), ("y = 0", 0)):
            cell = own & (case.labels == label)
            assert group.rates[event] == decisions[cell].mean()
            assert group.intervals[event] == wilson(decisions[cell].sum(), int(cell.sum()))


@pytest.mark.parametrize(
    ("constraint", "groups", "gaps"), [(CONSTRAINTS[0], 2, 1), (CONSTRAINTS[0], 3, 3), (CONSTRAINTS[2], 3, 6)]
)
def test_several_gaps_share_the_level(constraint, groups, gaps):
    found, case, decisions = seen(constraint, groups, level=0.9)
    assert [gap.gap for gap in found.gaps] == pytest.approx(
        gaps_of(constraint, decisions, case.groups, case.labels, groups)
    )
    cells = rates_of(constraint, groups).cells(case.groups, case.labels)
    for gap in found.gaps:
        event, first, second = (["y = 1", "y = 0"].index(gap.event) if gap.event != "all" else 0, gap.first, gap.second)
        a, b = (cells == event * groups + "abc".index(group) for group in (first, second))
        ends = newcombe((decisions[a].sum(), a.sum()), (decisions[b].sum(), b.sum()), 1 - 0.1 / gaps)
        assert (gap.low, gap.high) == pytest.approx(ends)
    assert len(found.gaps) == gaps
    assert found.gap.gap == max((gap.gap for gap in found.gaps), key=abs)


@pytest.mark.parametrize("level", [0.0, 1.0, -1, math.nan])
def test_an_invalid_level_is_refused(level):
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        seen(level=level)


def test_it_holds_unless_a_gap_exceeds_the_slack_significantly():
    gap = seen()[0].gap
    assert gap.gap < gap.low + 0.1 < gap.high + 0.1
    assert not seen(slack=0.0)[0].holds
    assert not seen(slack=-gap.high - 1e-6)[0].holds
    assert seen(slack=-gap.high + 1e-6)[0].holds
    rates = rates_of("demographic parity", 2)
    same = report(
        rates, np.array([True, False] * 4), np.array([1, 0] * 4), np.array([0, 0, 1, 1] * 2), 0.95, "", (), 0.0
    )
    assert same.holds
    assert same.accuracy == 1
    above = report(rates, np.arange(200) > 99, np.zeros(200, int), np.arange(200) // 100, 0.95, "", (), 0.0)
    assert not above.holds


def half_empty():
    """One group has no row with y = 1."""
    rates = Rates("equalised odds", ("men", "women"))
    decisions, labels = np.array([True, False, True, False]), np.array([1, 0, 0, 0])
    return report(rates, decisions, labels, np.array([0, 0, 1, 1]), 0.95, "some rows", ((0.0, 0.75, 0.5),), 0.1)


def test_json_has_null_where_there_are_no_rows():
    found = half_empty()
    plain = json.loads(found.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert plain["groups"][1]["rates"] == {"y = 1": None, "y = 0": 0.5}
    assert plain["gaps"][0]["gap"] is None
    assert plain["gaps"][1]["gap"] == 0.5
    assert plain["gaps"][1]["second"] == "women"
    assert (plain["slack"], plain["holds"], plain["source"]) == (0.1, found.holds, "some rows")
    assert plain["curve"] == [[0.0, 0.75, 0.5]]
    assert "rows_seen" not in plain


def test_the_largest_gap_is_one_that_is_known():
    assert half_empty().gap.event == "y = 0"
    assert half_empty().holds


def test_the_text_has_the_numbers():
    found, _, _ = seen(slack=0.05, trade=((0.0, 0.71234, 0.01234),), source="held-out training rows")
    text = str(found)
    gap = found.gap
    for piece in (
        "demographic parity on 600 rows (held-out training rows), intervals at 95 %",
        f"accuracy {found.accuracy:.4f} [{found.accuracy_interval[0]:.4f}, {found.accuracy_interval[1]:.4f}]",
        f"{found.groups[1].rates['all']:.4f} [{found.groups[1].intervals['all'][0]:.4f}",
        f"b − a  {gap.gap:+.4f}         [{gap.low:+.4f}, {gap.high:+.4f}]",
        "|gap| ≤ 0.05: missed (significant at 95 %)\n",
        "0.0000  0.7123    0.0123",
    ):
        assert piece in text
    assert "women − men, y = 0" in str(half_empty())
    assert "|gap| ≤ 0.1: exceeded, but not significantly at 95 %\n" in str(half_empty())


def test_the_verdict_names_the_slack_and_the_significance():
    def last_line(positive, slack=0.0, rows=50):
        decisions = np.arange(2 * rows) % rows < np.repeat([rows // 2, positive], rows)
        groups, labels = np.repeat([0, 1], rows), np.zeros(2 * rows, int)
        rates = rates_of("demographic parity", 2)
        return str(report(rates, decisions, labels, groups, 0.9, "", (), slack)).splitlines()[-1]

    assert last_line(25) == "|gap| ≤ 0: met"
    assert last_line(27, slack=0.05) == "|gap| ≤ 0.05: met"
    assert last_line(27) == "|gap| ≤ 0: not significantly different from 0 at 90 %"
    assert last_line(29, slack=0.05) == "|gap| ≤ 0.05: exceeded, but not significantly at 90 %"
    assert last_line(45) == "|gap| ≤ 0: missed (significant at 90 %)"
    empty = report(
        rates_of("equal opportunity", 2), np.array([True, False]), np.array([1, 0]), np.array([0, 1]), 0.95, "", (), 0.0
    )
    assert str(empty).splitlines()[-1] == "|gap| ≤ 0: not measured (a group has no rows)"


def test_a_plot_shows_the_rates_and_the_curve(tmp_path, figures):
    found, _, _ = seen("equalised odds", trade=((0.0, 0.7, 0.0), (0.4, 0.85, 0.4)))
    found.plot(tmp_path / "new" / "report.png")
    width, height = size_of(tmp_path / "new" / "report.png")
    assert width > height > 300
    left, right = figures[-1].axes
    assert [text.get_text() for text in left.get_xticklabels()] == [f"{g.name}\n{g.rows} rows" for g in found.groups]
    bars = [container[0].get_ydata() for container in left.containers]
    assert [list(heights) for heights in bars] == [[g.rates[e] for g in found.groups] for e in ("y = 1", "y = 0")]
    assert [list(line.get_xdata()) for line in right.lines] == [[0.0, 0.4], [abs(found.gap.gap)]]
    half_empty().plot(tmp_path / "other.png")
    seen()[0].plot(str(tmp_path / "one.png"))
    assert len(figures[-1].axes) == 1


def test_rates_of_zero_and_one_can_be_plotted(tmp_path):
    rates, groups = rates_of("demographic parity", 2), np.repeat([0, 1], [10, 13])
    found = report(rates, groups == 1, groups, groups, 0.95, "", (), 0.0)
    assert [group.rates["all"] for group in found.groups] == [0.0, 1.0]
    found.plot(tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_metric_frame_is_fairlearns():
    pytest.importorskip("fairlearn")
    found, _, _ = seen(groups=3)
    frame = found.metric_frame()
    for group in found.groups:
        assert frame.by_group.loc[group.name, "selection_rate"] == pytest.approx(group.rates["all"])
        assert frame.by_group.loc[group.name, "accuracy"] == pytest.approx(group.accuracy)
    assert frame.difference()["selection_rate"] == pytest.approx(abs(found.gap.gap))


def test_without_fairlearn_metric_frame_names_it(monkeypatch):
    for name in ("fairlearn", "fairlearn.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="pip install fairlearn"):
        seen()[0].metric_frame()


def test_one_group_has_no_gap():
    found = report(
        Rates("demographic parity", ("all",)), np.array([True]), np.array([1]), np.array([0]), 0.95, "", (), 0.0
    )
    assert "accuracy 1.0000" in str(found)
    assert found.gap is None

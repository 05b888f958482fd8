"""Both fair classifiers: gaps on new data, repairs, and the rows that reports use."""

import copy
import math

import numpy as np
import pytest
from fair import BOTH, CONSTRAINTS, FEW, FREE_GAP, FRESH, TRAIN, few, fitted, gaps_of, make, quick, several
from sklearn.exceptions import NotFittedError
from threadpoolctl import threadpool_limits

import ldf
from ldf.fairness.closed_form import solve
from ldf.fairness.estimator import held_out

NOISE = 3 * math.sqrt(0.25 / 450 + 0.25 / 1050)
"""Three standard errors of a gap measured on the training rows."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


def fresh(model):
    """Report on new rows."""
    return model.report(FRESH.features, FRESH.labels, FRESH.groups, curve=False)


def worst(model) -> float:
    return abs(fresh(model).gap.gap)


# ------------------------------------------------------------------------------------------------ gaps on new rows


@BOTH
def test_without_a_constraint_the_gap_is_that_of_the_best_classifier(kind):
    found = fresh(fitted(kind, dual=None))
    assert found.gap.gap == pytest.approx(FREE_GAP, abs=0.06)
    assert found.accuracy > 0.85
    assert not found.holds
    assert fitted(kind, dual=None).multipliers_.size == 0


@BOTH
def test_the_gap_closes_on_new_rows(kind):
    model = fitted(kind)
    found = fresh(model)
    assert abs(found.gap.gap) < NOISE
    assert 0.72 < found.accuracy < fresh(fitted(kind, dual=None)).accuracy
    assert model.report(curve=False).holds
    assert model.multipliers_ == pytest.approx([-0.75], abs=0.25)


@BOTH
def test_a_slack_is_satisfied_and_used(kind):
    model = fitted(kind, slack=0.15)
    assert NOISE / 2 < worst(model) < 0.15 + NOISE
    assert fresh(model).accuracy > fresh(fitted(kind)).accuracy
    assert model.multipliers_.shape == (1,)
    assert fitted(kind).multipliers_[0] < model.multipliers_[0] < 0
    assert model.report(curve=False).slack == 0.15


@BOTH
@pytest.mark.parametrize("constraint", CONSTRAINTS[1:])
def test_gaps_given_the_label_shrink_on_new_rows(kind, constraint):
    free, held = fitted(kind, constraint=constraint, dual=None), fitted(kind, constraint=constraint)
    assert worst(free) > 0.09
    assert worst(held) < 0.6 * worst(free)
    assert held.multipliers_.shape == (len(held.rates_.pairs),)
    assert fresh(held).accuracy > 0.8


@BOTH
def test_three_groups_come_together(kind):
    def arrays(seed, rows):
        case = several(rows, seed=seed)
        x = np.arctanh((2 * case.positive - 1) * 0.9999)[:, None]
        return np.column_stack([x, case.of_groups]), case.labels, np.array(["u", "v", "w"])[case.groups]

    X, y, z = arrays(0, 1500)
    new = arrays(1, 10_000)
    free, held = make(kind, dual=None).fit(X, y), make(kind).fit(X, y, z)
    assert held.groups_.tolist() == ["u", "v", "w"]
    assert held.multipliers_.shape == (3,)
    assert abs(free.report(*new, curve=False).gap.gap) > 0.35
    assert abs(held.report(*new, curve=False).gap.gap) < 0.15


@BOTH
def test_a_seed_decides_everything(kind):
    X = FEW.features
    one, same, other = few(kind), few(kind), few(kind, random_state=1)
    assert np.array_equal(one.predict_proba(X), same.predict_proba(X))
    assert np.array_equal(one.multipliers_, same.multipliers_)
    assert not np.array_equal(one.predict_proba(X), other.predict_proba(X))


@BOTH
def test_predictions_need_no_groups_and_ignore_them(kind):
    model = fitted(kind)
    chances = model.predict_proba(FRESH.features)
    assert chances.shape == (FRESH.rows, 2)
    assert chances.sum(1) == pytest.approx(np.ones(FRESH.rows))
    assert np.array_equal(model.predict(FRESH.features), (chances[:, 1] > 0.5).astype(int))
    assert np.array_equal(model.predict_proba(FRESH.features, FRESH.groups[::-1]), chances)
    right = model.predict(FRESH.features) == FRESH.labels
    assert model.score(FRESH.features, FRESH.labels) == right.mean() == fresh(model).accuracy
    weights = np.arange(FRESH.rows)
    assert model.score(FRESH.features, FRESH.labels, weights) == pytest.approx(np.average(right, weights=weights))


@BOTH
@pytest.mark.parametrize("dual", [ldf.Fixed(1.0), ldf.Ascent(0.1, normalise=False)])
def test_other_rules_narrow_the_gap(kind, dual):
    model = fitted(kind, dual=dual)
    assert worst(model) < worst(fitted(kind, dual=None))
    if isinstance(dual, ldf.Fixed):
        assert model.multipliers_ == pytest.approx([1.0])
        assert worst(model) < 0.25
    else:
        assert model.multipliers_[0] < -0.05


@BOTH
def test_the_scouted_rule_can_be_used_again(kind):
    model = fitted(kind)
    rule = model.dual_rule()
    assert isinstance(rule, ldf.Ascent)
    again = make(kind, dual=rule).fit(TRAIN.features, TRAIN.labels, TRAIN.groups)
    assert np.array_equal(again.multipliers_, model.multipliers_)
    assert np.array_equal(again.predict_proba(FRESH.features), model.predict_proba(FRESH.features))
    above, below = model.dual_rule(0.15).initial
    assert above == 0 < below < -rule.initial[0]
    wide = fitted(kind, slack=0.15)
    assert wide.dual_rule(0.0).initial == pytest.approx(rule.initial, abs=0.1)
    assert wide.dual_rule() == wide.dual_rule(0.15)
    assert wide.dual_rule().initial == pytest.approx([above, below], abs=0.1)
    assert fitted(kind, dual=None, repair="plug-in").dual_rule().initial == pytest.approx(rule.initial, abs=0.1)
    with pytest.raises(ValueError, match="dual_rule needs a model fitted with dual='auto'"):
        again.dual_rule()


# ------------------------------------------------------------------------------------------------ repairs, estimators


@BOTH
@pytest.mark.parametrize("repair", ["plug-in", "thresholds"])
def test_a_repair_alone_closes_the_gap(kind, repair):
    model = fitted(kind, dual=None, repair="plug-in").with_repair(repair)
    z = FRESH.groups if repair == "thresholds" else None
    assert model.repair == repair
    assert worst(model) < NOISE
    assert fresh(model).accuracy > (0.77 if repair == "thresholds" else 0.72)
    chances = model.predict_proba(FRESH.features, z)[:, 1]
    assert ((chances >= 0) & (chances <= 1)).all()
    assert np.array_equal(model.predict(FRESH.features, z), (chances > 0.5).astype(int))
    held = model.report(curve=False)
    assert abs(held.gap.gap) < 0.02
    assert model.score(FRESH.features, FRESH.labels, sensitive_features=z) == fresh(model).accuracy


@BOTH
def test_thresholds_are_one_for_each_group_and_need_it(kind):
    model, free = fitted(kind, dual=None, repair="plug-in"), fitted(kind, dual=None)
    model = model.with_repair("thresholds")
    with pytest.raises(ValueError, match="needs the group to predict: pass sensitive_features to predict"):
        model.predict(FRESH.features)
    moved = model.predict_proba(FRESH.features, FRESH.groups)[:, 1] - free.predict_proba(FRESH.features)[:, 1]
    inside = (moved != 0) & (np.abs(model.predict_proba(FRESH.features, FRESH.groups)[:, 1] - 0.5) < 0.5)
    for group, sign in (("a", -1), ("b", 1)):
        own = moved[inside & (FRESH.groups == group)]
        assert own == pytest.approx(np.full(len(own), own[0]))
        assert sign * own[0] > 0


@BOTH
def test_with_repair_is_what_fit_would_have_done(kind):
    X, z = FEW.features, FEW.groups
    plug, none = few(kind, dual=None, repair="plug-in"), few(kind, dual=None)
    by_fit = few(kind, dual=None, repair="thresholds")
    assert np.array_equal(plug.with_repair("thresholds").predict_proba(X, z), by_fit.predict_proba(X, z))
    assert np.array_equal(plug.with_repair(None).predict_proba(X), none.predict_proba(X))
    assert np.array_equal(by_fit.with_repair(None).predict_proba(X), none.predict_proba(X))
    assert not np.array_equal(plug.predict_proba(X), none.predict_proba(X))
    assert plug.repair == "plug-in"
    other = few(kind, dual=None, repair="plug-in", slack=0.1)
    assert np.array_equal(plug.with_repair("plug-in", slack=0.1).predict_proba(X), other.predict_proba(X))
    assert (plug.slack, plug.with_repair("plug-in", slack=0.1).slack) == (0.0, 0.1)
    auto = few(kind)
    assert np.array_equal(auto.with_repair("plug-in").predict_proba(X), few(kind, repair="plug-in").predict_proba(X))
    with pytest.raises(ValueError, match="repair='plug-in' needs a model fitted with dual='auto'"):
        none.with_repair("plug-in")
    with pytest.raises(ValueError, match="fitted with sensitive_features"):
        few(kind, z=None, dual=None).with_repair("thresholds")
    with pytest.raises(ValueError, match="repair must be None, 'plug-in' or 'thresholds', got 'glue'"):
        none.with_repair("glue")
    with pytest.raises(NotFittedError):
        make(kind).with_repair(None)


@pytest.mark.parametrize("estimators", ["heads", "separate"])
def test_estimators_of_each_group_use_it(estimators):
    free, held = (fitted("network", estimators=estimators, dual=dual) for dual in (None, "auto"))
    assert worst(free) > 0.3
    assert worst(held) < 0.6 * worst(free)
    with pytest.raises(ValueError, match="pass sensitive_features to predict"):
        held.predict(FRESH.features)
    swapped = np.where(FRESH.groups == "a", "b", "a")
    assert not np.array_equal(
        free.predict_proba(FRESH.features, FRESH.groups), free.predict_proba(FRESH.features, swapped)
    )
    assert held.predict_proba(FRESH.features[:5], FRESH.groups[:5]) == pytest.approx(
        held.predict_proba(FRESH.features, FRESH.groups)[:5], abs=1e-6
    )


def test_separate_networks_each_learn_their_own_group():
    random = np.random.default_rng(0)
    X, z = random.normal(size=(1000, 1)), random.integers(0, 2, 1000)
    y = (np.where(z == 1, 1, -1) * X[:, 0] > 0).astype(int)
    for estimators in ("heads", "separate"):
        model = make("network", estimators=estimators, dual=None, folds=None).fit(X, y, z)
        assert model.score(X, y, sensitive_features=z) > 0.95
        assert model.score(X, y, sensitive_features=1 - z) < 0.05
    assert make("network", dual=None, folds=None).fit(X, y, z).score(X, y) < 0.6


# ------------------------------------------------------------------------------------------------ folds, reports


@BOTH
def test_training_rows_are_predicted_by_the_model_that_held_them_out(kind):
    model = few(kind, folds=7, random_state=4)
    seed = int(np.random.RandomState(4).randint(2**31 - 1))
    found = np.full(300, np.nan)
    for fold, rows in enumerate(held_out(300, 7, seed)):
        one = copy.copy(model)
        if kind == "network":
            one.fits_ = one.fits_[fold : fold + 1]
        else:
            one.models_ = one.models_[fold : fold + 1]
        found[rows.numpy()] = one.predict_proba(FEW.features.iloc[rows.numpy()])[:, 1]
    seen = ~np.isnan(found)
    assert seen.sum() == 294
    assert model.rows_.forecast.positive == pytest.approx(found[seen], abs=1e-5)
    decided, labels = found[seen] > 0.5, FEW.labels[seen]
    (gap,) = gaps_of("demographic parity", decided, (FEW.groups[seen] == "b").astype(int), labels, 2)
    report = model.report(curve=False)
    assert report.gap.gap == pytest.approx(gap)
    assert report.accuracy == (decided == labels).mean()
    assert report.source == "held-out training rows"
    assert len(model.with_repair("plug-in").report().curve) > 1


@BOTH
def test_a_fold_learns_nothing_from_its_held_out_rows(kind):
    options = {"dual": None, "folds": 3} | ({"encoding": "standard"} if kind == "network" else {})
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    out = held_out(300, 3, seed)[0].numpy()
    other = FEW.labels.copy()
    other[out] = 1 - other[out]
    one, two = (few(kind, y=y, **options) for y in (FEW.labels, other))
    assert np.array_equal(one.rows_.forecast.positive[out], two.rows_.forecast.positive[out])
    assert not np.array_equal(one.rows_.forecast.positive, two.rows_.forecast.positive)


@BOTH
@pytest.mark.parametrize("slack", [0.0, 0.05])
def test_multipliers_ascend_by_decisions_on_rows_held_out_of_every_fold(kind, slack):
    rule = ldf.Ascent(1.0, normalise=False, reduce="mean")
    once = {"epochs": 1, "batch_size": 16} if kind == "network" else {"trees": 5}
    model = few(kind, dual=rule, slack=slack, folds=3, **once)
    gap = model.report(curve=False).gap.gap
    assert abs(gap) > 0.1
    assert model.multipliers_ == pytest.approx([np.sign(gap) * (abs(gap) - slack)], abs=1e-6)


def test_trees_grow_before_the_first_update_of_the_multipliers():
    rule = ldf.Ascent(1.0, normalise=False, reduce="mean")
    updates = [int(few("boosting", dual=rule, trees=trees).models_[0].lagrangian.updates) for trees in (5, 20, 40, 41)]
    assert updates == [1, 4, 7, 7]


@BOTH
def test_group_probabilities_are_learned_for_each_label(kind):
    random = np.random.default_rng(0)
    X, y = random.normal(size=(600, 2)), random.integers(0, 2, 600)
    z = np.where(random.random(600) < 0.9, y, 1 - y)
    for constraint in CONSTRAINTS[1:]:
        model = quick(kind, constraint=constraint, dual=None, repair="plug-in").set_params(
            **{"epochs": 20} if kind == "network" else {"trees": 15, "learning_rate": 0.3}
        )
        found = model.fit(X, y, z).rows_.forecast.of_groups
        assert found.shape == (600, 4)
        assert found.mean(0) == pytest.approx([0.9, 0.1, 0.1, 0.9], abs=0.1)
        assert found[:, :2].sum(1) == pytest.approx(np.ones(600))


@pytest.mark.parametrize("estimators", ["shared", "heads", "separate"])
def test_multipliers_start_at_their_closed_form_values(estimators):
    model = few("network", estimators=estimators, epochs=5)
    free, groups = model.rows_.forecast.free, (FEW.groups == "b").astype(int)
    chances = model.rows_.forecast.of_groups if estimators == "shared" else np.eye(2)[groups]
    m = solve(model.rates_, free, chances, groups).multipliers
    assert model.fits_[0].lagrangian.rules[0].initial == pytest.approx(2 * m)
    assert m[0] < -0.01


@BOTH
def test_without_folds_training_rows_are_predicted_by_the_model_itself(kind):
    model = few(kind, folds=None)
    report = model.report(curve=False)
    assert report.source == "training rows"
    assert report.accuracy == model.score(FEW.features, FEW.labels)
    assert len(model.fits_ if kind == "network" else model.boosters_) == 1
    assert len(few(kind, folds=3).fits_ if kind == "network" else few(kind, folds=3).boosters_) == 3


@BOTH
def test_a_report_has_the_trade_off_if_group_probabilities_were_learned(kind):
    points = few(kind).report().curve
    assert points[0][0] == 0
    assert points[0][2] < points[-1][2] + 0.01
    assert few(kind, dual=None, repair="thresholds").report().curve
    for other in (few(kind, dual=None), few(kind, z=None, dual=None), few(kind, dual=ldf.Fixed(1.0))):
        assert other.report().curve == ()
    assert few(kind).report(curve=False).curve == ()


@BOTH
def test_a_report_is_of_the_rows_given(kind):
    model = few(kind)
    part = slice(0, 100)
    found = model.report(FEW.features[part], FEW.labels[part], FEW.groups[part], level=0.8, curve=False)
    assert (found.rows, found.level, found.source) == (100, 0.8, "the rows given")
    decided = model.predict(FEW.features[part])
    for group in found.groups:
        assert group.rates["all"] == pytest.approx(decided[FEW.groups[part] == group.name].mean())
    free = few(kind, z=None, dual=None)
    assert free.report(curve=False).gaps == ()
    assert [g.name for g in free.report(FEW.features, FEW.labels, FEW.groups, curve=False).groups] == ["a", "b"]


@BOTH
def test_a_group_unseen_in_training_is_reported_with_a_warning_and_refused_if_needed_to_predict(kind):
    z = np.where(np.arange(300) < 50, "c", FEW.groups)
    with pytest.warns(UserWarning, match="'c'.* was not seen in training: its rate is not constrained"):
        found = few(kind).report(FEW.features, FEW.labels, z, curve=False)
    assert [group.name for group in found.groups] == ["a", "b", "c"]
    assert found.groups[2].rows == 50
    model = few(kind, dual=None, repair="thresholds")
    with pytest.raises(ValueError, match=r"'c'.* was not seen in training; known groups: a, b"):
        model.predict(FEW.features, z)
    numbers = few(kind, z=(FEW.groups == "b").astype(int), dual=None, repair="thresholds")
    with pytest.raises(ValueError, match="was not seen in training; known groups: 0, 1"):
        numbers.predict(FEW.features, FEW.groups)
    with pytest.raises(ValueError, match="was not seen in training"):
        numbers.predict(FEW.features, np.full(300, 2))

"""Inputs that both fair classifiers accept and refuse, and their compatibility with scikit-learn."""

import copy
import io
import math
import pickle

import numpy as np
import pandas
import pytest
import torch
from fair import BOTH, FEW, few, make, quick
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import ldf
from ldf.fairness import FairBoostingClassifier, FairClassifier
from ldf.fairness.estimator import FairEstimator


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with threadpool_limits(1):
        yield


# ------------------------------------------------------------------------------------------------ accepted inputs


@BOTH
def test_groups_may_be_of_any_kind(kind):
    z = FEW.groups
    expected = few(kind, dual=None, repair="thresholds").predict_proba(FEW.features, z)
    second = z == "b"
    for same in (
        z.astype(str),
        z.tolist(),
        second,
        second.astype(int),
        second.astype(float),
        second.astype(object),
        second[:, None].astype(np.int8),
        pandas.Series(z, index=np.arange(300) + 7),
        pandas.Series(z, dtype="category"),
        pandas.Series(second, dtype="boolean"),
        pandas.DataFrame({"group": z}),
    ):
        model = few(kind, z=same, dual=None, repair="thresholds")
        assert len(model.groups_) == 2
        assert np.array_equal(model.predict_proba(FEW.features, same), expected)


@BOTH
def test_several_attributes_make_a_group_of_each_combination(kind):
    older = np.where(np.arange(300) % 2, "old", "young")
    both = pandas.DataFrame({"group": FEW.groups, "age": older})
    model = few(kind, z=both, dual=None, repair="thresholds")
    assert model.groups_.tolist() == ["a, old", "a, young", "b, old", "b, young"]
    assert len(model.report(FEW.features, FEW.labels, both, curve=False).gaps) == 6
    joined = [f"{group}, {age}" for group, age in zip(FEW.groups, older, strict=True)]
    assert np.array_equal(model.predict_proba(FEW.features, joined), model.predict_proba(FEW.features, both))


@BOTH
def test_frames_and_arrays_of_numbers_are_alike(kind):
    numbers = FEW.features[["x1", "x2"]]
    frame, array = few(kind, X=numbers), few(kind, X=numbers.to_numpy())
    assert np.array_equal(frame.predict_proba(numbers), array.predict_proba(numbers.to_numpy()))
    assert frame.feature_names_in_.tolist() == ["x1", "x2"]
    assert frame.n_features_in_ == array.n_features_in_ == 2


@BOTH
def test_labels_may_be_words_and_the_second_is_positive(kind):
    words = np.where(FEW.labels == 1, "yes", "no")
    model, numbers = few(kind, y=words), few(kind)
    assert model.classes_.tolist() == ["no", "yes"]
    assert np.array_equal(model.predict(FEW.features) == "yes", numbers.predict(FEW.features) == 1)
    assert model.report(FEW.features, words, FEW.groups, curve=False).gaps == numbers.report(
        FEW.features, FEW.labels, FEW.groups, curve=False
    ).gaps  # fmt: skip


@BOTH
def test_weights_count_in_the_loss(kind):
    plain = few(kind, dual=None).predict_proba(FEW.features)
    heavy = few(kind, dual=None, weight=np.where(FEW.labels == 1, 20.0, 1.0)).predict_proba(FEW.features)
    assert heavy[:, 1].mean() > plain[:, 1].mean() + 0.05
    assert few(kind, dual=None, weight=np.full(300, 7.0)).predict_proba(FEW.features) == pytest.approx(plain, abs=1e-6)
    options = {"dual": None, "weight": (np.arange(300) >= 100) * 1.0} | (
        {"encoding": "standard"} if kind == "network" else {}
    )
    other = np.where(np.arange(300) < 100, 1 - FEW.labels, FEW.labels)
    one, two = (few(kind, y=y, **options).predict_proba(FEW.features) for y in (FEW.labels, other))
    assert np.array_equal(one, two)


@BOTH
def test_rates_count_each_row_once_whatever_its_weight(kind):
    weight = np.where(FEW.groups == "b", 50.0, 1.0)
    model = few(kind, weight=weight, repair="thresholds")
    assert abs(model.report(curve=False).gap.gap) < 0.05


@BOTH
def test_folds_follow_from_the_rows(kind, monkeypatch):
    def models(**options):
        model = few(kind, **options)
        return len(model.fits_ if kind == "network" else model.boosters_)

    assert models(folds="auto") == 5
    with pytest.warns(UserWarning, match="based on only 4 rows"):
        assert models(folds="auto", z=np.where(np.arange(300) < 4, "c", FEW.groups)) == 4
    monkeypatch.setattr("ldf.fairness.estimator.MANY", 300)
    assert models(folds="auto") == 1


def test_a_network_may_have_dropout_no_hidden_layer_and_plain_numbers():
    model = few("network", dropout=0.5, hidden=(8, 8))
    assert np.array_equal(model.predict_proba(FEW.features), model.predict_proba(FEW.features))
    assert few("network", hidden=(), encoding="standard").encoder_.width == 4


def test_a_finished_checkpoint_gives_the_same_model_at_once(tmp_path):
    first = few("network", checkpoint=tmp_path)
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    assert {file.parent.name for file in written} == {"scout", "decider"}
    again = few("network", checkpoint=tmp_path)
    assert np.array_equal(again.predict_proba(FEW.features), first.predict_proba(FEW.features))
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")} == written
    assert np.array_equal(few("network").predict_proba(FEW.features), first.predict_proba(FEW.features))
    with pytest.raises(ldf.CheckpointError, match="the checkpoint of another problem"):
        few("network", checkpoint=tmp_path, y=1 - FEW.labels)


# ------------------------------------------------------------------------------------------------ refused inputs


def without(values, row, nothing):
    found = np.array(values, dtype=object)
    found[row] = nothing
    return found


@BOTH
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"z": None}, r"needs sensitive_features \(the group of each row\) unless dual=None and repair=None"),
        ({"z": np.full(300, "a")}, "only one group, 'a'; at least two are needed"),
        ({"z": without(FEW.groups, 17, None)}, "sensitive_features contains NaN or None: 1 .* first in row 17"),
        ({"z": without(FEW.groups, 17, math.nan)}, "sensitive_features contains NaN or None"),
        ({"z": pandas.Series(without(FEW.groups, 3, None), dtype="string")}, "sensitive_features contains .* row 3"),
        ({"z": np.where(np.arange(300) == 9, np.nan, 1.0)}, "sensitive_features contains NaN or None: .* row 9"),
        ({"z": np.linspace(20, 60, 300)}, "looks continuous: 300 distinct values from 20 to 60; bin it"),
        ({"z": np.arange(300) % 21}, "looks continuous: 21 distinct"),
        ({"z": np.tile([0.5, 1.0, 1.5], 100)}, "looks continuous: 3 distinct"),
        ({"z": FEW.groups[:-1]}, r"one group per row \(300 rows\), got shape \[299\]"),
        ({"z": without(FEW.groups, 0, "c")}, "group 'c' has 1 training rows; at least 2 are needed"),
        ({"y": np.where(np.arange(300) == 5, np.nan, FEW.labels)}, "Input y contains NaN or None: 1 .* row 5"),
        ({"y": without(FEW.labels, 6, None)}, "Input y contains NaN or None: 1 missing values, first in row 6"),
        ({"y": None}, "requires y to be passed"),
        ({"y": np.zeros(300, int)}, "y has only one class"),
        ({"y": np.arange(300) % 3}, "Only binary classification is supported.* 3 classes"),
        ({"y": FEW.labels[:-2]}, "X has 300 rows and y has 298"),
        ({"X": FEW.features.assign(x2=without(np.zeros(300), 40, math.nan).astype(float))}, "column 'x2' .* row 40"),
        ({"X": FEW.features.assign(x1=np.full(300, np.inf))}, "column 'x1' has NaN or infinity, first in row 0"),
        ({"X": FEW.features[:0]}, "0 sample"),
        ({"X": np.full((300, 2), np.nan)}, "Input X contains NaN"),
        ({"weight": np.zeros(300)}, "zero"),
        ({"weight": np.full(300, -1.0)}, "[Nn]egative"),
        ({"constraint": "justice"}, "constraint must be one of demographic parity, .* got 'justice'"),
        ({"repair": "glue"}, "repair must be None, 'plug-in' or 'thresholds', got 'glue'"),
        ({"dual": "manual"}, r"dual must be 'auto', None or a rule such as ldf.Ascent\(0.1\), got 'manual'"),
        ({"dual": 1.0}, "dual must be 'auto'"),
        ({"folds": 1}, "folds must be 'auto', None or an integer from 2 to 300 rows, got 1"),
        ({"folds": 301}, "folds must be"),
        ({"folds": "many"}, "folds must be"),
        ({"slack": -0.1}, "slack must be a number ≥ 0, got -0.1"),
        ({"slack": math.nan}, "slack must be a number"),
        ({"slack": "little"}, "slack must be a number"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        few(kind, **changes)


def test_bad_settings_of_one_kind_are_refused():
    with pytest.raises(ValueError, match="estimators must be 'shared', 'heads' or 'separate', got 'two'"):
        few("network", estimators="two")
    with pytest.raises(ValueError, match="estimators='heads' needs sensitive_features"):
        few("network", z=np.full(300, "a"), dual=None, estimators="heads")
    with pytest.raises(ValueError, match="encoding must be"):
        few("network", encoding="one")
    for trees in (0, 2.5):
        with pytest.raises(ValueError, match="trees must be an integer ≥ 1"):
            few("boosting", trees=trees)


@BOTH
def test_arguments_of_report_and_predict_are_checked(kind):
    model = few(kind)
    X, y, z = FEW.features, FEW.labels, FEW.groups
    for given in ((X,), (X, y), (X, None, z)):
        with pytest.raises(ValueError, match="report needs all of X, y and sensitive_features, or none of them"):
            model.report(*given, curve=False)
    with pytest.raises(ValueError, match=r"one group per row \(300 rows\)"):
        model.report(X, y, z[:-1], curve=False)
    with pytest.raises(ValueError, match=r"y has the unknown class 2; expected \[0, 1\]"):
        model.report(X, y + 1, z, curve=False)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        model.report(X, without(y, 0, None), z, curve=False)
    with pytest.raises(ValueError, match="level must be between 0 and 1"):
        model.report(level=95, curve=False)
    with pytest.raises(ValueError, match="column 'x1' has NaN"):
        model.predict(X.assign(x1=np.nan))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X[["x2", "x1", "colour"]])
    with pytest.raises(ValueError, match="now missing"):
        model.predict(X[["x1"]])
    for ask in (lambda: make(kind).predict(X), lambda: make(kind).report(), lambda: make(kind).dual_rule()):
        with pytest.raises(NotFittedError):
            ask()


@BOTH
def test_a_rate_of_few_rows_raises_a_warning(kind):
    z = np.where(np.arange(300) < 20, "rare", FEW.groups)
    with pytest.warns(UserWarning, match="the rate of group 'rare' is based on only 20 rows"):
        few(kind, z=z)
    with pytest.warns(UserWarning, match="the rate of group 'rare' with y = 1 is based on only"):
        few(kind, z=z, constraint="equal opportunity")


# ------------------------------------------------------------------------------------------------ scikit-learn


@BOTH
@pytest.mark.parametrize("dual", [None, "auto"])
def test_a_model_survives_pickle(kind, dual):
    model = few(kind, dual=dual, repair="plug-in")
    again = pickle.loads(pickle.dumps(model))
    X, y, z = FEW.features, FEW.labels, FEW.groups
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(again.multipliers_, model.multipliers_)
    assert str(again.report(X, y, z)) == str(model.report(X, y, z, curve=False))
    for repair in (None, "plug-in"):
        assert np.array_equal(again.with_repair(repair).predict(X), model.with_repair(repair).predict(X))
    if dual == "auto":
        assert again.dual_rule() == model.dual_rule()
    assert str(copy.deepcopy(model).report()) == str(copy.copy(model).report()) == str(model.report())


@BOTH
def test_methods_that_need_the_training_rows_raise_after_unpickling(kind):
    model = pickle.loads(pickle.dumps(few(kind, repair="plug-in")))
    for ask, message in (
        (
            lambda: model.report(),
            r"report\(\) without rows needs the training rows, .* pass X, y and sensitive_feat",
        ),
        (lambda: model.with_repair("thresholds"), "another repair needs the training rows, .* before pickling"),
        (lambda: model.with_repair("plug-in", slack=0.1), "another repair needs the training rows"),
        (lambda: model.dual_rule(0.1), "the dual rule for slack=0.1 needs the training rows"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


class Watched(pickle.Pickler):
    """Records the length of every pickled array, tensor (with its whole storage) and list."""

    def __init__(self):
        self.file, self.lengths = io.BytesIO(), set()
        super().__init__(self.file)

    def persistent_id(self, thing):
        if isinstance(thing, torch.Tensor):
            self.lengths |= {len(thing) if thing.ndim else 1, thing.untyped_storage().nbytes() // thing.element_size()}
        elif isinstance(thing, np.ndarray | pandas.Series | pandas.DataFrame):
            self.lengths |= {thing.size, *thing.shape}
        elif isinstance(thing, list | tuple | dict | set):
            self.lengths.add(len(thing))


def lengths_and_size(thing):
    watched = Watched()
    watched.dump(thing)
    return watched.lengths, len(watched.file.getvalue())


@BOTH
@pytest.mark.parametrize("options", [{}, {"slack": 0.1, "folds": None}, {"constraint": "equalised odds"}])
def test_a_pickle_has_no_label_and_no_group_of_a_training_row(kind, options):
    """No array has as many entries as the training rows or a fold."""
    sizes = []
    for copies in (1, 4):
        rows = 307 * copies  # a prime, which is not the width of any layer
        X = pandas.concat([FEW.features, FEW.features[:7]] * copies)
        y, z = (np.tile(np.r_[column, column[:7]], copies) for column in (FEW.labels, FEW.groups))
        model = few(kind, X=X, y=y, z=z, repair="plug-in", **options)
        fold = rows // 2
        assert lengths_and_size(vars(model.rows_))[0] & {rows, 2 * fold}
        lengths, size = lengths_and_size(model)
        assert len(lengths) > 5
        assert not lengths & {rows, fold, 2 * fold, rows - fold}
        sizes.append(size)
    # One more column would add 7 kB. Trees have more leaves with more rows.
    assert sizes[1] - sizes[0] < (2_000 if kind == "network" else sizes[0])


def test_an_estimator_must_implement_train_and_forecast():
    class Half(FairEstimator):
        def _train(self, given, folds, seed): ...

    with pytest.raises(TypeError, match=r"abstract method '?_forecast"):
        Half()


@BOTH
def test_parameters_are_kept_as_given(kind):
    model = make(kind, slack=0.1, dual=ldf.Fixed(2.0), folds=3)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(slack=0.2).slack == 0.2
    assert "slack=0.2" in repr(model)
    few_rows = few(kind)
    assert few_rows.get_params() == quick(kind).get_params()


@BOTH
def test_groups_go_through_pipelines_and_searches(kind):
    X, y, z = FEW.features[["x1", "x2"]], FEW.labels, FEW.groups
    pipe = make_pipeline(StandardScaler(), quick(kind))
    name = type(quick(kind)).__name__.lower()
    pipe.fit(X, y, **{f"{name}__sensitive_features": z})
    assert pipe.predict(X).shape == (300,)
    found = cross_validate(quick(kind), X, y, cv=2, params={"sensitive_features": z}, error_score="raise")
    assert (found["test_score"] > 0.3).all()
    search = GridSearchCV(quick(kind, dual=None), {"repair": ["plug-in", None]}, cv=2, error_score="raise")
    assert search.fit(X, y, sensitive_features=z).best_params_ == {"repair": None}


class Grouped:
    """Groups the rows by the median of the first feature."""

    def fit(self, X, y, sensitive_features=None, sample_weight=None):
        try:
            first = np.asarray(X)[:, 0].astype(float)
            sensitive_features = first > np.median(first)
        except (TypeError, ValueError, IndexError):
            pass  # the error raised by fit is what is checked
        return super().fit(X, y, sensitive_features, sample_weight)


class GroupedClassifier(Grouped, FairClassifier):
    pass


class GroupedBoostingClassifier(Grouped, FairBoostingClassifier):
    pass


def expected_to_fail(model):
    found = {"check_sample_weight_equivalence_on_dense_data": "rates, folds and batches count rows, not weights"}
    if model.dual is not None:
        found["check_classifiers_train"] = "the groups coincide with the classes: parity lowers the accuracy"
    return found


SMALL = {"epochs": 15, "hidden": (16,), "folds": None, "batch_size": 16, "lr": 2e-2}
SMALL_TREES = {"trees": 30, "folds": None, "min_rows": 1, "n_jobs": 1, "learning_rate": 0.2}


@parametrize_with_checks(
    [
        FairClassifier(dual=None, **SMALL),
        FairBoostingClassifier(dual=None, **SMALL_TREES),
        GroupedClassifier(**SMALL | {"epochs": 3}),
        GroupedBoostingClassifier(**SMALL_TREES | {"trees": 10}),
    ],
    expected_failed_checks=expected_to_fail,
)
@pytest.mark.filterwarnings("ignore:the rate of group")
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


# ------------------------------------------------------------------------------------------------ edge cases


def test_a_group_of_two_rows_can_be_boosted():
    model = few("boosting", z=np.where(np.arange(300) < 2, "c", FEW.groups), random_state=1)
    assert model.groups_.tolist() == ["a", "b", "c"]
    assert np.isfinite(model.predict_proba(FEW.features)).all()
    assert model.multipliers_.shape == (3,)


@BOTH
def test_a_report_of_more_rows_than_labels_is_refused(kind):
    with pytest.raises(ValueError, match=r"300 rows .* 299"):
        few(kind).report(FEW.features, FEW.labels[1:], FEW.groups[1:], curve=False)


@BOTH
@pytest.mark.parametrize("options", [{"folds": np.int64(2)}, {"slack": np.float32(0.1)}, {"slack": np.int64(1)}])
def test_settings_may_be_numbers_of_numpy(kind, options):
    plain = {name: value.item() for name, value in options.items()}
    ours, theirs = few(kind, **options), few(kind, **plain)
    assert np.array_equal(ours.predict_proba(FEW.features), theirs.predict_proba(FEW.features))
    assert np.array_equal(ours.multipliers_, theirs.multipliers_)


@BOTH
def test_a_missing_group_in_a_list_is_refused(kind):
    with pytest.raises(ValueError, match="sensitive_features contains NaN or None"):
        few(kind, z=[math.nan if row % 2 else group for row, group in enumerate(FEW.groups)])


@BOTH
def test_a_missing_category_is_refused(kind):
    with pytest.raises(ValueError, match="column 'colour'"):
        few(kind, X=FEW.features.assign(colour=pandas.Categorical(without(FEW.features["colour"], 3, None))))


def test_a_category_may_be_a_whole_number():
    X = pandas.DataFrame({"code": pandas.Categorical(np.arange(300) % 3)})
    assert few("boosting", X=X).codes_.categorical == [0]


@BOTH
def test_groups_may_be_what_pandas_cut_makes(kind):
    z = pandas.cut(FEW.features["x2"], 2)
    model, same = (few(kind, z=some, dual=None, repair="thresholds") for some in (z, z.astype(str)))
    assert model.groups_.tolist() == sorted(map(str, z.cat.categories))
    assert np.array_equal(model.predict_proba(FEW.features, z), same.predict_proba(FEW.features, z.astype(str)))


@BOTH
def test_a_slack_of_another_repair_is_checked(kind):
    with pytest.raises(ValueError, match="slack must be a number"):
        few(kind).with_repair("plug-in", slack=-1.0)


def test_the_scouted_rule_of_heads_can_be_used_again():
    model = few("network", estimators="heads")
    assert model.dual_rule() == model.fits_[0].lagrangian.rules[0]


@pytest.mark.parametrize("options", [{"lr": 1e-3}, {"weight_decay": 0.5}])
def test_a_checkpoint_of_other_settings_is_refused(tmp_path, options):
    few("network", checkpoint=tmp_path)
    with pytest.raises(ldf.CheckpointError):
        few("network", checkpoint=tmp_path, **options)


@BOTH
def test_messages_name_groups_as_they_are_written(kind):
    with pytest.raises(ValueError, match="only one group, 'a'"):
        few(kind, z=np.full(300, "a"))

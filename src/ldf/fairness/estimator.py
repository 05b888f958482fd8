"""Base class of the fair classifiers: input validation, repair, prediction and report."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from ..core.constraint import Constraint
from ..core.dual import Ascent, Dual
from ..training.replicas import fold_rows
from .closed_form import Rule, solve
from .encoding import columns_of
from .rates import Floats, Ints, Rates, canonical
from .report import Report, curve, report

MANY = 100_000
"""From this many rows on, multipliers are updated by the rates of training rows; below, by out-of-fold rates."""
FOLDS = 5
CONTINUOUS = 20
"""A numeric attribute with more distinct values than this counts as continuous."""
FEW = 30
"""A rate estimated from fewer rows than this triggers a warning."""

SPEED = 0.7
"""Step size of dual="auto", as a fraction of the change in the multipliers that would close the observed gap according
to the closed form."""

Repair = Literal["plug-in", "thresholds"]


class Given(NamedTuple):
    """Validated arguments of `fit`."""

    X: Any
    labels: Ints
    groups: Ints
    """Index of each row's group; all 0 if no groups were passed."""
    cells: Ints
    weights: Floats


class Forecast(NamedTuple):
    """Predictions of a fitted model: P(y = 1) and, if the repair needs them, the group probabilities."""

    positive: Floats
    of_groups: Floats | None
    free: Floats | None = None
    """P(y = 1) of an unconstrained model, if one was trained."""


@dataclass(frozen=True)
class TrainingRows:
    """Out-of-fold predictions for the training rows, with labels and groups: for reports, repairs and dual rules.

    They are kept in memory only. Labels and groups are personal data, so a pickle omits them: after unpickling they are
    None. A copy of the classifier shares them.
    """

    forecast: Forecast
    labels: Ints
    groups: Ints
    cells: Ints

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def __deepcopy__(self, memo: Any) -> TrainingRows:
        return self


class FairEstimator(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]  # sklearn has no types
    """Base class of `FairClassifier` and `FairBoostingClassifier`."""

    constraint: str
    slack: float
    dual: Any
    repair: Repair | None
    folds: int | Literal["auto"] | None
    random_state: Any

    classes_: NDArray[Any]
    groups_: NDArray[Any]
    rates_: Rates
    rule_: Rule | None
    scouts_: list[Any]
    """Models of the group probabilities; empty if they are not needed."""
    held_out_: bool
    rows_: TrainingRows | None
    """None after unpickling."""
    ascent_: tuple[float, Ascent] | None
    """With dual="auto": the slack used in training, and the dual rule for it."""

    # ------------------------------------------------------------- implemented by subclasses

    @abstractmethod
    def _train(self, given: Given, folds: int | None, seed: int) -> tuple[Forecast, Ints]:
        """Train, and return the predictions for the held-out rows and the indices of these rows."""

    @abstractmethod
    def _forecast(self, X: Any, groups: Ints | None, chances: bool) -> Forecast:
        """Predictions for new rows; group probabilities only if `chances`."""

    @property
    def _attribute_needed(self) -> bool:
        """Whether prediction requires the group."""
        return self.repair == "thresholds"

    @property
    def _told_groups(self) -> bool:
        """Whether the group is an input of the model, which can then shift the decision boundary of each group."""
        return False

    # ------------------------------------------------------------- fit

    def fit(self, X: Any, y: Any, sensitive_features: Any = None, sample_weight: Any = None) -> FairEstimator:
        """Train on rows X with labels y so that the groups in `sensitive_features` have equal rates.

        Args:
            X: [n, d], a DataFrame (numbers and categories) or an array of numbers.
            y: [n], two classes; the second in sorted order is the positive class.
            sensitive_features: [n], the group of each row, strings or integers; with several columns, each combination
                is a group. Required unless dual=None and repair=None.
            sample_weight: [n], weights of the rows in the loss; rates count each row once.
        """
        given = self._read(X, y, sensitive_features, sample_weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = len(given.labels)
        folds: int | None
        if self.folds == "auto":
            folds = FOLDS if rows < MANY else None
        elif self.folds is None or (isinstance(self.folds, int | np.integer) and 2 <= self.folds <= rows):
            folds = int(self.folds) if self.folds is not None else None
        else:
            raise ValueError(f"folds must be 'auto', None or an integer from 2 to {rows} rows, got {self.folds!r}")
        if folds is not None:
            # Reduced if a label or a rate has fewer rows than folds.
            cells = given.cells[given.cells >= 0] if self._forced else given.labels
            folds = max(2, min(folds, int(np.bincount(given.labels).min()), int(np.bincount(cells).min())))
        self.ascent_ = None
        forecast, held = self._train(given, folds, seed)
        self.rows_ = TrainingRows(forecast, given.labels[held], given.groups[held], given.cells[held])
        self.rule_ = self._repaired(self.rows_) if self.repair is not None else None
        return self

    def _repaired(self, rows: TrainingRows) -> Rule:
        """Thresholds for which the gaps on the held-out rows are within the slack."""
        chances = self._chances(rows.forecast, rows.groups)
        return solve(self.rates_, rows.forecast.positive, chances, rows.cells, self.slack)

    def _training_rows(self, what: str, remedy: str) -> TrainingRows:
        """The training rows; raises ValueError if they were lost in pickling."""
        if self.rows_ is None:
            raise ValueError(
                f"{what} needs the training rows, which a pickled {type(self).__name__} does not contain: {remedy}"
            )
        return self.rows_

    def with_repair(self, repair: Repair | None, slack: float | None = None) -> Self:
        """A copy of the fitted model with another repair (or None) and slack, without retraining.

        "plug-in" needs a model of the group probabilities (fitted with dual="auto" or repair="plug-in"); "thresholds"
        needs a model fitted with groups. Both need the training rows, which an unpickled model does not have.
        """
        check_is_fitted(self)
        if repair not in (None, "plug-in", "thresholds"):
            raise ValueError(f"repair must be None, 'plug-in' or 'thresholds', got {repair!r}")
        if repair is not None and len(self.groups_) < 2:
            raise ValueError(f"repair={repair!r} needs a model fitted with sensitive_features")
        if repair == "plug-in" and not self.scouts_:
            raise ValueError("repair='plug-in' needs a model fitted with dual='auto' or repair='plug-in'")
        other = copy.copy(self)
        other.repair = repair
        other.slack = self.slack if slack is None else slack
        other._check_slack()
        same = (repair, other.slack) == (self.repair, self.slack)
        if repair is None:
            other.rule_ = None
        elif self.rows_ is not None or not same:
            rows = self._training_rows("another repair", "set it before pickling, or fit again")
            other.rule_ = other._repaired(rows)
        return other

    @property
    def _forced(self) -> bool:
        """Whether any constraint or repair is applied."""
        return self.dual is not None or self.repair is not None

    def _check_slack(self) -> None:
        if not (isinstance(self.slack, int | float | np.number) and np.isfinite(self.slack) and self.slack >= 0):
            raise ValueError(f"slack must be a number ≥ 0, got {self.slack!r}")

    def _rule(self, given: Given, held: Ints, free: Floats | None, of_groups: Floats | None) -> Dual | None:
        """Dual rule for training: the user's, or the closed-form rule from unconstrained held-out predictions."""
        if self.dual != "auto":
            rule: Dual | None = self.dual
            return rule
        assert free is not None
        assert of_groups is not None
        self.ascent_ = (
            float(self.slack),
            self._automatic(free, of_groups, given.groups[held], given.cells[held], self.slack),
        )
        return self.ascent_[1]

    def _automatic(self, free: Floats, of_groups: Floats, groups: Ints, cells: Ints, slack: float) -> Ascent:
        """The rule of `automatic`; group probabilities are exact if the model receives the group as input."""
        told = np.eye(len(self.groups_))[groups] if self._told_groups else of_groups
        return automatic(self.rates_, free, told, cells, float(slack), self._speed(len(cells)))

    def _law(self, rule: Dual | None) -> list[Constraint]:
        """The constraint on the rates; on ν = |σ| if the multipliers are fixed, as in the paper's M_C."""
        if rule is None:
            return []
        return [self.rates_.law(float(self.slack), "satisfiability" if rule.moves else "violation")]

    def _speed(self, rows: int) -> float:
        """Fraction of a gap that one update of the multipliers should close."""
        return SPEED

    def _read(self, X: Any, y: Any, sensitive_features: Any, sample_weight: Any) -> Given:
        if self.repair not in (None, "plug-in", "thresholds"):
            raise ValueError(f"repair must be None, 'plug-in' or 'thresholds', got {self.repair!r}")
        if self.dual is not None and self.dual != "auto" and not isinstance(self.dual, Dual):
            raise ValueError(f"dual must be 'auto', None or a rule such as ldf.Ascent(0.1), got {self.dual!r}")
        self._check_slack()
        constraint = canonical(self.constraint)
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        _refuse_missing("y", y)
        X = self._check_rows(X, reset=True)
        self.classes_, labels = _two_classes(y, len(X))
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weights.sum() > 0:
            raise ValueError("sample_weight must not be zero for all rows")
        self.groups_, groups = self._read_members(sensitive_features, len(labels))
        self.rates_ = Rates(constraint, tuple(str(group) for group in self.groups_))
        cells = self.rates_.cells(groups, labels)
        if self._forced:
            self._check_cells(cells)
        return Given(X, labels, groups, cells, weights)

    def _read_members(self, sensitive_features: Any, rows: int) -> tuple[NDArray[Any], Ints]:
        """The sorted groups, and the index of each row's group; one group "all" if no groups are passed."""
        if sensitive_features is None:
            if self._forced or self._attribute_needed:
                raise ValueError(
                    f"{type(self).__name__}.fit needs sensitive_features (the group of each row) unless dual=None and "
                    "repair=None"
                )
            return np.array(["all"]), np.zeros(rows, dtype=np.int64)
        names, groups = np.unique(read_groups(sensitive_features, rows), return_inverse=True)
        if len(names) < 2 and self._forced:
            raise ValueError(f"sensitive_features has only one group, {str(names[0])!r}; at least two are needed")
        return names, groups.astype(np.int64)

    def _check_cells(self, cells: Ints) -> None:
        """Raise if a rate has fewer than 2 rows, and warn if it has fewer than `FEW`."""
        counts = np.bincount(cells[cells >= 0], minlength=self.rates_.count)
        for name, count in zip(self._cell_names(), counts, strict=True):
            if count < 2:
                raise ValueError(f"group {name} has {count} training rows; at least 2 are needed for its rate")
            if count < FEW:
                warnings.warn(f"the rate of group {name} is based on only {count} rows", UserWarning, stacklevel=4)

    def _cell_names(self) -> list[str]:
        rates = self.rates_
        return [f"{group!r}" + (f" with {e}" if e != "all" else "") for e in rates.events for group in rates.groups]

    def _check_rows(self, X: Any, reset: bool) -> Any:
        """Validate X: a DataFrame column by column, anything else as a numeric array."""
        if hasattr(X, "columns") and hasattr(X, "iloc"):
            _check_feature_names(self, X, reset=reset)
            _check_n_features(self, X, reset=reset)
            if len(X) == 0:
                raise ValueError("Found array with 0 sample(s): X has no rows")
            for name, column in zip(X.columns, columns_of(X), strict=True):
                numbers = column.dtype.kind in "fc"
                bad = ~np.isfinite(column) if numbers else _missing_in(column)
                if bad.any():
                    what = "NaN or infinity" if numbers else "a missing value"
                    raise ValueError(
                        f"X: column {name!r} has {what}, first in row {int(bad.argmax())}; impute it, for example with "
                        "sklearn.impute.SimpleImputer"
                    )
            return X
        return validate_data(self, X, reset=reset, dtype="numeric")

    # ------------------------------------------------------------- predict

    def _chances(self, forecast: Forecast, groups: Ints | None) -> Floats:
        """q of the rows: from the groups themselves if they are available, else from the predicted probabilities."""
        if self._attribute_needed:
            assert groups is not None
            of_groups = np.eye(len(self.groups_))[groups]
        else:
            assert forecast.of_groups is not None
            of_groups = forecast.of_groups
        return self.rates_.chances(of_groups, forecast.positive)

    def predict_proba(self, X: Any, sensitive_features: Any = None) -> Floats:
        """Probabilities of both classes, [n, 2].

        With a repair, p is shifted like the row's threshold, p ← clip(p − (threshold − ½), 0, 1), so that the decision
        is still p > ½.

        Args:
            X: rows as in `fit`.
            sensitive_features: the groups; required with repair="thresholds" and with estimators="heads" or "separate".
        """
        check_is_fitted(self)
        X = self._check_rows(X, reset=False)
        groups = self._known(sensitive_features, len(X)) if self._attribute_needed else None
        forecast = self._forecast(X, groups, chances=self.rule_ is not None and self.repair == "plug-in")
        return _two(self._decide(forecast, groups))

    def _decide(self, forecast: Forecast, groups: Ints | None) -> Floats:
        """P(y = 1), shifted by the repair."""
        if self.rule_ is None:
            return forecast.positive
        moved = forecast.positive - (self.rule_.threshold(self._chances(forecast, groups)) - 0.5)
        return np.asarray(np.clip(moved, 0, 1))

    def _known(self, sensitive_features: Any, rows: int) -> Ints:
        if sensitive_features is None:
            raise ValueError(
                f"this {type(self).__name__} needs the group to predict: pass sensitive_features to predict"
            )
        names = read_groups(sensitive_features, rows, fitting=False)
        numbers, unseen = self._numbers(names)
        if unseen.size:
            raise ValueError(
                f"group {str(unseen[0])!r} was not seen in training; known groups: {', '.join(map(str, self.groups_))}"
            )
        return numbers

    def _numbers(self, names: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
        """The index of each group name, and the unknown names."""
        known = self.groups_
        if known.dtype.kind in "US":
            names = names.astype(str)
        elif names.dtype.kind not in "iufb":
            return np.zeros(len(names), dtype=np.int64), np.unique(names)
        place = np.searchsorted(known, names).clip(max=len(known) - 1)
        return place.astype(np.int64), np.unique(names[known[place] != names])

    def predict(self, X: Any, sensitive_features: Any = None) -> NDArray[Any]:
        """Predicted classes, [n]."""
        decided = self.predict_proba(X, sensitive_features)[:, 1] > 0.5
        return np.asarray(self.classes_[decided.astype(int)])

    def score(self, X: Any, y: Any, sample_weight: Any = None, sensitive_features: Any = None) -> float:
        """Accuracy on the given rows."""
        right = self.predict(X, sensitive_features) == column_or_1d(y)
        return float(np.average(right, weights=sample_weight))

    # ------------------------------------------------------------- the report

    def report(
        self, X: Any = None, y: Any = None, sensitive_features: Any = None, *, level: float = 0.95, curve: bool = True
    ) -> Report:
        """Accuracy and rate gaps by group, with confidence intervals, and the trade-off between accuracy and slack ε.

        Args:
            X, y, sensitive_features: rows to evaluate on, preferably held out. By default the training rows, each
                predicted by the model of the fold that held it out (with folds=None, by the model itself); an
                unpickled model does not have them.
            level: confidence level of the intervals.
            curve: also compute the trade-off curve. It needs a model of the group probabilities and the training rows.
        """
        check_is_fitted(self)
        trade = self._curve() if curve else ()
        if X is None and y is None and sensitive_features is None:
            rows = self._training_rows("report() without rows", "pass X, y and sensitive_features")
            decided = self._decide(rows.forecast, rows.groups) > 0.5
            source = "held-out training rows" if self.held_out_ else "training rows"
            return report(self.rates_, decided, rows.labels, rows.groups, level, source, trade, self.slack)
        if X is None or y is None or sensitive_features is None:
            raise ValueError("report needs all of X, y and sensitive_features, or none of them")
        _refuse_missing("y", y)
        names = read_groups(sensitive_features, len(column_or_1d(y)), fitting=False)
        if len(X) != len(names):
            raise ValueError(f"X has {len(X)} rows and y has {len(names)}: inconsistent numbers of samples")
        decided = self.predict(X, sensitive_features if self._attribute_needed else None) == self.classes_[1]
        labels = np.asarray(column_or_1d(y) == self.classes_[1]).astype(np.int64)
        strange = set(np.unique(column_or_1d(y)).tolist()) - set(self.classes_.tolist())
        if strange:
            raise ValueError(f"y has the unknown class {min(strange, key=str)!r}; expected {self.classes_.tolist()}")
        rates = self.rates_
        groups, unseen = self._numbers(names)
        if unseen.size or len(self.groups_) < 2:
            if len(self.groups_) > 1:
                warnings.warn(
                    f"group {str(unseen[0])!r} was not seen in training: its rate is not constrained",
                    UserWarning,
                    stacklevel=2,
                )
            everyone = np.unique(names.astype(str))
            groups = np.searchsorted(everyone, names.astype(str)).astype(np.int64)
            rates = Rates(rates.constraint, tuple(everyone.tolist()))
        return report(rates, decided, labels, groups, level, "the rows given", trade, self.slack)

    def _curve(self) -> tuple[tuple[float, float, float], ...]:
        rows = self.rows_
        if rows is None or len(self.groups_) < 2:
            return ()
        free = self._unconstrained(rows.forecast)
        if free is None or not (self.repair == "thresholds" or free.of_groups is not None):
            return ()
        return curve(self.rates_, free.positive, self._chances(free, rows.groups), rows.cells, rows.labels)

    def _unconstrained(self, forecast: Forecast) -> Forecast | None:
        """Unconstrained predictions for the held-out rows, if there are any."""
        if self.dual is None:
            return forecast
        return forecast._replace(positive=forecast.free) if forecast.free is not None else None

    def dual_rule(self, slack: float | None = None) -> Ascent:
        """The closed-form dual rule for a slack (default: the model's), to pass as `dual` to another fit.

        A fit with this rule skips the unconstrained fit of dual="auto". Needs a model fitted with dual="auto", or with
        dual=None and repair="plug-in". An unpickled model has only the rule that it was trained with.
        """
        check_is_fitted(self)
        slack = self.slack if slack is None else slack
        if self.ascent_ is not None and slack == self.ascent_[0]:
            return self.ascent_[1]
        if not self.scouts_ or self.dual not in (None, "auto"):
            raise ValueError("dual_rule needs a model fitted with dual='auto', or with dual=None and repair='plug-in'")
        rows = self._training_rows(f"the dual rule for slack={slack:g}", "get it before pickling, or fit again")
        free = self._unconstrained(rows.forecast)
        assert free is not None
        assert free.of_groups is not None
        return self._automatic(free.positive, free.of_groups, rows.groups, rows.cells, slack)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def automatic(
    rates: Rates, positive: Floats, of_groups: Floats, cells: Ints, slack: float, speed: float = SPEED
) -> Ascent:
    """Dual ascent from the closed-form multipliers, with a step size scaled to their effect on the gaps.

    Args:
        positive, of_groups: [n] P(y = 1 | x) and [n, G or 2G] group probabilities, predicted for held-out rows.
        cells: [n] the cell of each of these rows.
        speed: fraction of a gap that one update should close.
    """
    chances = rates.chances(of_groups, positive)
    initial = 2 * solve(rates, positive, chances, cells, slack).multipliers
    whole = 2 * solve(rates, positive, chances, cells, 0.0).multipliers if slack else initial
    worth = float(np.linalg.norm(whole)) / max(float(np.linalg.norm(rates.gaps(positive > 0.5, cells))), 1e-6)
    step = speed * min(max(worth, 0.1), 100.0)
    return Ascent(step, normalise=False, reduce="mean", initial=rates.initial(initial, slack))


def _two_classes(y: Any, rows: int) -> tuple[NDArray[Any], Ints]:
    """Both classes in sorted order, and the class index of each row."""
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    if len(y) != rows:
        raise ValueError(f"X has {rows} rows and y has {len(y)}: inconsistent numbers of samples")
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) > 2:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is multiclass: y has {len(classes)} "
            "classes"
        )
    if len(classes) < 2:
        raise ValueError(f"y has only one class, {str(classes[0])!r}; two are needed")
    return classes, labels.astype(np.int64)


def held_out(rows: int, folds: int | None, seed: int) -> list[Tensor]:
    """The rows that each model predicts: its held-out fold, or all rows without folds."""
    if folds is None:
        return [torch.arange(rows)]
    return [fold_rows(rows, folds, fold, seed) for fold in range(folds)]


def read_groups(sensitive_features: Any, rows: int, fitting: bool = True) -> NDArray[Any]:
    """[n] group names, strings or integers; several columns are joined into one name."""
    _refuse_missing("sensitive_features", sensitive_features)
    values = _as_array(sensitive_features)
    if values.ndim == 2 and values.shape[1] > 1:
        values = np.array([", ".join(map(str, row)) for row in values])
    elif values.ndim == 2:
        values = values[:, 0]
    if values.ndim != 1 or len(values) != rows:
        raise ValueError(
            f"sensitive_features must have one group per row ({rows} rows), got shape {list(values.shape)}"
        )
    if values.dtype.kind == "O":
        numbers = all(isinstance(value, int | float | np.number | np.bool_) for value in values)
        values = np.array(values.tolist()) if numbers else values.astype(str)
    if values.dtype.kind == "b":
        return values.astype(np.int64)
    if fitting and values.dtype.kind in "fiu":
        different = np.unique(values)
        fractional = values.dtype.kind == "f" and not np.array_equal(different, np.round(different))
        if len(different) > CONTINUOUS or (fractional and len(different) > 2):
            raise ValueError(
                f"sensitive_features looks continuous: {len(different)} distinct values from {different[0]:g} to "
                f"{different[-1]:g}; bin it into groups first, for example with pandas.cut"
            )
    return values


def _refuse_missing(what: str, values: Any) -> None:
    """Raise if values are missing, naming the first such row."""
    missing = _missing_in(_as_array(values))
    if missing.any():
        row = int(np.argwhere(missing)[0][0])
        raise ValueError(f"Input {what} contains NaN or None: {int(missing.sum())} missing values, first in row {row}")


def _as_array(values: Any) -> NDArray[Any]:
    """As an array; lists become object arrays, because numpy would turn None and NaN among strings into strings."""
    return np.array(values, dtype=object) if isinstance(values, list | tuple) else np.asarray(values)


def _missing_in(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Mask of the missing values of an array."""
    if array.dtype.kind == "f":
        return np.asarray(np.isnan(array))
    if array.dtype.kind == "O" and array.size:
        return np.asarray(np.vectorize(_missing, otypes=[bool])(array))
    return np.zeros(array.shape, dtype=bool)


def _missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _two(positive: Floats) -> Floats:
    return np.stack([1 - positive, positive], axis=1)

"""Public data sets as fairness problems, and synthetic data with a known distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from ..io.data import DataError, locate


@dataclass(frozen=True, eq=False)
class Variant:
    """A data set as a fairness problem: features without the protected attribute, labels, groups.

    Args:
        name: name of the variant.
        features: [n rows]; numbers as float64, strings as pandas' "category".
        labels: [n]; 1 is the positive outcome.
        groups: [n] strings, the group of each row.
        attribute: the protected attribute, for example "sex".
    """

    name: str
    features: pandas.DataFrame
    labels: NDArray[np.int64]
    groups: NDArray[np.object_]
    attribute: str

    @property
    def rows(self) -> int:
        """Number of rows, n."""
        return len(self.labels)

    @property
    def gap(self) -> float:
        """P(y = 1 | second group) − P(y = 1 | first group), the two groups in sorted order."""
        first, second = (float(self.labels[self.groups == group].mean()) for group in sorted(set(self.groups)))
        return second - first


@dataclass(frozen=True)
class _Files:
    """File format of a data set; the rows of several files are concatenated.

    Args:
        columns: all columns, in order.
        label, positive: the label column, and its positive value.
        categories: string columns; all others except the label are numbers.
        drop: columns that are not features.
        header: whether the file starts with a header line.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    label: str
    positive: str
    categories: tuple[str, ...]
    drop: tuple[str, ...] = ()
    separator: str = ","
    header: bool = True


@dataclass(frozen=True)
class _Groups:
    """Groups defined by the values of a column."""

    attribute: str
    column: str
    of: Callable[[Any], str] = str


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ADULT = _Files(
    ("fairness/adult.data", "fairness/adult.test"),
    _words(
        "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
        "capital-loss hours-per-week native-country income"
    ),
    "income",
    ">50K",
    _words("workclass education marital-status occupation relationship race sex native-country"),
    # The census weight of a row, and a duplicate of education-num.
    drop=("fnlwgt", "education"),
    header=False,
)
_DEFAULT = _Files(
    ("fairness/default-of-credit-card-clients.csv",),
    _words(
        "ID LIMIT_BAL SEX EDUCATION MARRIAGE AGE PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6 BILL_AMT1 BILL_AMT2 BILL_AMT3 "
        "BILL_AMT4 BILL_AMT5 BILL_AMT6 PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6 default.payment.next.month"
    ),
    "default.payment.next.month",
    "1",
    _words("SEX EDUCATION MARRIAGE"),
    drop=("ID",),
)
_BALANCED = _Files(
    ("fairness/bank-balanced.csv",),
    _words(
        "age job marital education default balance housing loan contact day month duration campaign pdays previous "
        "poutcome deposit"
    ),
    "deposit",
    "yes",
    _words("job marital education default housing loan contact month poutcome"),
)
_FULL = _Files(
    ("fairness/bank-additional-full.csv",),
    _words(
        "age job marital education default housing loan contact month day_of_week duration campaign pdays previous "
        "poutcome emp.var.rate cons.price.idx cons.conf.idx euribor3m nr.employed y"
    ),
    "y",
    "yes",
    _words("job marital education default housing loan contact month day_of_week poutcome"),
    separator=";",
)
_AGE = _Groups("age", "age", lambda age: "25 to 60" if 25 <= age <= 60 else "other")

VARIANTS = {
    "adult-sex": (_ADULT, _Groups("sex", "sex")),
    "adult-race": (_ADULT, _Groups("race", "race", lambda race: "White" if race == "White" else "other")),
    "default-sex": (_DEFAULT, _Groups("sex", "SEX", lambda code: "male" if code == "1" else "female")),
    "bank-balanced-age": (_BALANCED, _AGE),
    "bank-full-age": (_FULL, _AGE),
}
"""All variants by name."""


def load(name: str) -> Variant:
    """Load a variant of `VARIANTS` from files that `ldf.io.data.locate` finds or downloads.

    Rows with a missing value are dropped; Adult has some. Bank keeps `duration`, which is known only after the call.
    """
    if name not in VARIANTS:
        raise ValueError(f"unknown variant {name!r}; choose one of {', '.join(VARIANTS)}")
    files, groups = VARIANTS[name]
    frame = pandas.concat([_read(file, files) for file in files.names], ignore_index=True)
    features = frame.drop(columns=[files.label, groups.column, *files.drop])
    return Variant(
        name,
        features.astype({column: "category" for column in features if column in files.categories}),
        # Labels in adult.test, unlike those in adult.data, end with a dot.
        (frame[files.label].str.rstrip(".") == files.positive).to_numpy(dtype=np.int64),
        frame[groups.column].map(groups.of).to_numpy(dtype=object),
        groups.attribute,
    )


def _read(name: str, files: _Files) -> Any:
    """The rows of one file without missing values, as a DataFrame of strings and numbers."""
    path = locate(name)
    try:
        frame = pandas.read_csv(
            path,
            sep=files.separator,
            names=None if files.header else files.columns,
            header=0 if files.header else None,
            index_col=False,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            comment="|",  # the first line of adult.test
        )
    except ValueError as error:  # not text, or rows of different lengths
        raise DataError(f"{path}: {' '.join(str(error).split())}") from error
    for column in files.columns:
        if column not in frame or frame[column].fillna("").eq("").any():
            raise DataError(f"{path}: column {column!r} is missing or has empty cells")
    frame = frame[list(files.columns)]
    frame = frame[(frame != "?").all(axis=1)].copy()
    for column in files.columns:
        if column not in (files.label, *files.categories):
            try:
                frame[column] = frame[column].astype(np.float64)
            except ValueError as error:
                raise DataError(f"{path}: column {column!r} must be numeric: {error}") from error
    return frame


def synthetic(rows: int = 2000, *, seed: int = 0) -> Variant:
    """Rows from a known distribution, to compare a classifier with the optimal one.

    A row belongs to group "b" with probability 0.3, else to "a". Its features: x1 ~ N(½, 1) in "a" and N(−½, 1) in "b";
    x2 ~ N(0, 1), uninformative noise; and `colour`, which matches the group ("amber" for "a", "blue" for "b") with
    probability 0.8. P(y = 1 | x1) = Φ(2 x1), so that

    * the most accurate classifier is 1[x1 > 0], whose positive rate in "b" minus that in "a" is Φ(−½) − Φ(½);
    * the gap of the labels is Φ(−½ / √1.25) − Φ(½ / √1.25).

    Args:
        rows: n ≥ 1.
        seed: seed of numpy's `default_rng`.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    random = np.random.default_rng(seed)
    second = random.random(rows) < 0.3
    x1 = random.standard_normal(rows) + np.where(second, -0.5, 0.5)
    labels = x1 + 0.5 * random.standard_normal(rows) > 0  # with probability Φ(2 x1)
    x2 = random.standard_normal(rows)
    honest = random.random(rows) < 0.8
    colour = np.where(second == honest, "blue", "amber")
    features = pandas.DataFrame({"x1": x1, "x2": x2, "colour": pandas.Categorical(colour, ["amber", "blue"])})
    groups = np.where(second, "b", "a").astype(object)
    return Variant("synthetic", features, labels.astype(np.int64), groups, "group")

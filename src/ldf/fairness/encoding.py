"""Feature encodings: one-hot and piecewise-linear columns for networks, integer codes for trees."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier

PIECES = 16
"""Maximum number of pieces per numeric column."""
LEAST = 0.005
"""Minimum fraction of the rows in every piece."""

Encoding = Literal["piecewise", "standard"]


class Encoder:
    """Rows → [n, width] float32, fitted on training rows only.

    Categories are one-hot encoded; a value not seen in training becomes zeros. A number x is standardised; "piecewise"
    adds a column clip((x − a)/(b − a), 0, 1) for each piece [a, b]. A decision tree on the labels splits the range of x
    into pieces.

    Args:
        encoding: "piecewise" or "standard".
    """

    def __init__(self, encoding: Encoding = "piecewise") -> None:
        if encoding not in ("piecewise", "standard"):
            raise ValueError(f"encoding must be 'piecewise' or 'standard', got {encoding!r}")
        self.encoding = encoding

    def fit(self, X: Any, y: NDArray[Any]) -> Encoder:
        """Learn categories, means, standard deviations and pieces."""
        self.parts = [self._learn(column, y) for column in columns_of(X)]
        self.width = sum(len(part[1]) + 1 if part[0] == "number" else len(part[1]) for part in self.parts)
        return self

    def _learn(self, column: NDArray[Any], y: NDArray[Any]) -> tuple[Any, ...]:
        if column.dtype.kind not in "fiub":
            return "category", np.unique(column.astype(str))
        values = column.astype(np.float64)
        spread = float(values.std())
        if spread <= 1e-12 * float(np.abs(values).max()):  # constant up to rounding
            spread = 1.0
        pieces: list[tuple[float, float]] = []
        if self.encoding == "piecewise" and len(values) > 1:
            tree = DecisionTreeClassifier(max_leaf_nodes=PIECES, min_samples_leaf=LEAST, random_state=0)
            cuts = tree.fit(values[:, None], y).tree_
            inner = np.sort(cuts.threshold[cuts.feature >= 0])
            edges = np.unique([values.min(), *inner, values.max()])
            pieces = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)) if len(edges) > 2 else []
        return "number", pieces, float(values.mean()), spread

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Encode rows, [n, width]."""
        blocks: list[NDArray[Any]] = []
        for part, column in zip(self.parts, columns_of(X), strict=True):
            if part[0] == "category":
                blocks.append(column.astype(str)[:, None] == part[1][None])
                continue
            _, pieces, mean, spread = part
            values = column.astype(np.float64)
            blocks.append(((values - mean) / spread)[:, None])
            blocks += [np.clip((values - low) / (high - low), 0, 1)[:, None] for low, high in pieces]
        return np.concatenate(blocks, axis=1).astype(np.float32)


class Codes:
    """Rows → [n, d] float64 for trees: numbers unchanged, categories as integer codes, unknown categories as NaN."""

    def fit(self, X: Any) -> Codes:
        """Learn the categories."""
        known = [None if c.dtype.kind in "fiub" else np.unique(c.astype(str)) for c in columns_of(X)]
        self.categories = known
        return self

    @property
    def categorical(self) -> list[int]:
        """Indices of the categorical columns."""
        return [index for index, known in enumerate(self.categories) if known is not None]

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Encode rows, [n, d]."""
        blocks = []
        for known, column in zip(self.categories, columns_of(X), strict=True):
            if known is None:
                blocks.append(column.astype(np.float64))
                continue
            names = column.astype(str)
            place = np.searchsorted(known, names).clip(max=len(known) - 1)
            blocks.append(np.where(known[place] == names, place, np.nan))
        return np.stack(blocks, axis=1)


def columns_of(X: Any) -> list[NDArray[Any]]:
    """The columns of a DataFrame or of an array [n, d]; categorical columns have dtype object."""
    if not hasattr(X, "columns"):
        return list(np.asarray(X).T)
    columns = [X.iloc[:, index] for index in range(X.shape[1])]
    # Categories may be numbers; they are not treated as numeric.
    return [np.asarray(c, dtype=object) if str(c.dtype) == "category" else np.asarray(c) for c in columns]

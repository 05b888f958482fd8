"""Columns as a network likes them: categories one by one, numbers standardised and cut into pieces."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier

PIECES = 16
"""A number is cut into at most so many pieces."""
LEAST = 0.005
"""Of the rows, in every piece."""

Encoding = Literal["piecewise", "standard"]


class Encoder:
    """Rows → [n, width] float32, fitted on training rows alone.

    A category is a column for each value seen in training; one that was not is a row of zeros. A number x is
    standardised; "piecewise" adds, for each piece [a, b] that a decision tree on the labels cuts its range into, how
    far x has come through it, clip((x − a)/(b − a), 0, 1).

    Args:
        encoding: "piecewise" or "standard".
    """

    def __init__(self, encoding: Encoding = "piecewise") -> None:
        if encoding not in ("piecewise", "standard"):
            raise ValueError(f"encoding must be 'piecewise' or 'standard', got {encoding!r}")
        self.encoding = encoding

    def fit(self, X: Any, y: NDArray[Any]) -> Encoder:
        """Learn categories, means, spreads and pieces."""
        self.parts = [self._learn(column, y) for column in columns_of(X)]
        self.width = sum(len(part[1]) + 1 if part[0] == "number" else len(part[1]) for part in self.parts)
        return self

    def _learn(self, column: NDArray[Any], y: NDArray[Any]) -> tuple[Any, ...]:
        if column.dtype.kind not in "fiub":
            return "category", np.unique(column.astype(str))
        values = column.astype(np.float64)
        spread = float(values.std())
        if spread <= 1e-12 * float(np.abs(values).max()):  # a constant, but for rounding
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
        """[n, width]."""
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
    """Rows → [n, d] float64 for trees: numbers as they are, categories as whole numbers, an unknown one as missing."""

    def fit(self, X: Any) -> Codes:
        """Learn the categories."""
        known = [None if c.dtype.kind in "fiub" else np.unique(c.astype(str)) for c in columns_of(X)]
        self.categories = known
        return self

    @property
    def categorical(self) -> list[int]:
        """The columns that are categories."""
        return [index for index, known in enumerate(self.categories) if known is not None]

    def transform(self, X: Any) -> NDArray[np.float64]:
        """[n, d]."""
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
    """The columns of a DataFrame or of an array [n, d], numbers as numbers and everything else as objects."""
    if not hasattr(X, "columns"):
        return list(np.asarray(X).T)
    columns = [X.iloc[:, index] for index in range(X.shape[1])]
    # A category may be written as a number: it is none.
    return [np.asarray(c, dtype=object) if str(c.dtype) == "category" else np.asarray(c) for c in columns]

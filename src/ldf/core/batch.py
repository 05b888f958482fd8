"""Batches of rows, as passed to constraint functions, and the in-memory data set they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class Batch:
    """Rows of a data set, with columns as attributes: `batch.inputs`, `batch.targets`, `batch.ids` and your own.

    >>> batch = Batch(inputs=torch.zeros(3, 2), ids=torch.arange(3), sex=torch.tensor([0, 1, 1]))
    >>> batch.sex.tolist(), batch.rows
    ([0, 1, 1], 3)
    """

    inputs: Tensor
    targets: Tensor
    ids: Tensor

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)

    def __getattr__(self, name: str) -> Any:
        held = ", ".join(sorted(self.__dict__))
        hint = "; rows without labels have no targets" if name == "targets" else ""
        raise AttributeError(f"this batch has no column {name!r}; it has: {held}{hint}")

    def __repr__(self) -> str:
        return f"Batch({', '.join(f'{name}={list(getattr(self, name).shape)}' for name in self.__dict__)})"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.__dict__.values())))

    def columns(self) -> dict[str, Tensor]:
        """All columns by name."""
        return dict(self.__dict__)

    def to(self, device: torch.device | str) -> Batch:
        """The same rows on another device."""
        return Batch(**{name: column.to(device) for name, column in self.__dict__.items()})


def tree_map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to predictions: a tensor, or a tuple, list or dict of them."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, value) for value in tree)
    raise TypeError(f"predictions must be a tensor, or a tuple, list or dict of tensors, got {type(tree).__name__}")


def leaves(tree: Any) -> list[Tensor]:
    """All tensors in a predictions tree, as a list."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        tree = tree.values()
    return [leaf for part in tree for leaf in leaves(part)]


def pick(tree: Any, index: Any) -> Any:
    """Index every tensor in a predictions tree with the same rows or slice."""
    return tree_map(lambda leaf: leaf[index], tree)


def free(predictions: Any) -> Any:
    """The same values, detached, as leaves of a new autograd graph."""
    return tree_map(lambda leaf: leaf.detach().requires_grad_(leaf.is_floating_point()), predictions)


def rows_of(predictions: Any, dim: int = 0) -> int:
    """The number of rows of predictions."""
    return int(leaves(predictions)[0].shape[dim])


def as_batch(item: Any) -> Batch:
    """A batch from an item of a DataLoader: (inputs, targets), (inputs, targets, ids), a mapping or a Batch.

    >>> as_batch((torch.zeros(2, 1), torch.ones(2))).targets
    tensor([1., 1.])
    """
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        return Batch(**item)
    if isinstance(item, tuple | list) and len(item) in (2, 3):
        return Batch(**dict(zip(("inputs", "targets", "ids"), item, strict=False)))
    raise TypeError(
        f"a batch must be (inputs, targets), (inputs, targets, ids) or a mapping with those names, got {describe(item)}"
    )


class Data:
    """A data set in memory: n labelled rows, then any number of rows without targets. The ids are the row numbers.

    Args:
        labelled: (inputs, targets) or a mapping with these and any further columns, all with n rows.
        unlabelled: inputs, or a mapping with every column except the targets.
    """

    def __init__(
        self,
        labelled: tuple[Tensor, Tensor] | list[Tensor] | Mapping[str, Tensor],
        unlabelled: Tensor | Mapping[str, Tensor] | None = None,
    ) -> None:
        if not isinstance(labelled, Mapping):
            if len(labelled) != 2:
                raise ValueError(f"data must be (inputs, targets) or a mapping of columns, got {len(labelled)} items")
            labelled = {"inputs": labelled[0], "targets": labelled[1]}
        self.labelled = _count("data", labelled, required=("inputs", "targets"))
        if "ids" in labelled:
            raise ValueError("data must not have a column 'ids': the row numbers are the ids")
        self.targets = labelled["targets"]
        self.columns = {name: column for name, column in labelled.items() if name != "targets"}
        self.rows = self.labelled
        if unlabelled is not None:
            extra = unlabelled if isinstance(unlabelled, Mapping) else {"inputs": unlabelled}
            if extra.keys() != self.columns.keys():
                raise ValueError(f"unlabelled must have the columns {sorted(self.columns)}, got {sorted(extra)}")
            self.rows += _count("unlabelled", extra)
            for name, column in self.columns.items():
                if column.shape[1:] != extra[name].shape[1:] or column.dtype != extra[name].dtype:
                    raise ValueError(
                        f"column {name!r}: labelled {describe(column)}, unlabelled {describe(extra[name])}"
                    )
            self.columns = {name: torch.cat([column, extra[name]]) for name, column in self.columns.items()}

    def to(self, device: torch.device) -> Data:
        """Move all columns to a device."""
        self.columns = {name: column.to(device) for name, column in self.columns.items()}
        self.targets = self.targets.to(device)
        return self

    def take(self, ids: Tensor, *, targets: bool = True) -> Batch:
        """The rows with these ids, of shape [batch] or any other; targets=False omits the targets."""
        ids = ids.to(self.targets.device)
        names = {**self.columns, "targets": self.targets} if targets else self.columns
        flat = ids.reshape(-1)  # index_select copies whole rows; column[ids] does not
        columns = {
            name: column.index_select(0, flat).view(ids.shape + column.shape[1:]) for name, column in names.items()
        }
        return Batch(**columns, ids=ids)


def _count(what: str, columns: Mapping[str, Tensor], required: tuple[str, ...] = ("inputs",)) -> int:
    for name in required:
        if name not in columns:
            raise ValueError(f"{what} has no column {name!r}; it has: {', '.join(sorted(columns))}")
    for name, column in columns.items():
        if not isinstance(column, Tensor) or column.ndim == 0:
            raise TypeError(f"{what}: column {name!r} must be a tensor with one entry per row, got {describe(column)}")
        if column.is_floating_point() and not bool(torch.isfinite(column).all()):
            row = int((~torch.isfinite(column.reshape(len(column), -1)).all(1)).nonzero()[0])
            raise ValueError(f"{what}: column {name!r} has a value that is not finite, first in row {row}")
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"{what}: all columns must have the same number of rows, got {sizes}")
    rows = next(iter(sizes.values()))
    if rows == 0:
        raise ValueError(f"{what} is empty: at least one row is needed")
    return rows


def describe(thing: Any) -> str:
    """Type, or shape and dtype, of an object, for error messages."""
    if isinstance(thing, Tensor):
        return f"{list(thing.shape)} {thing.dtype}"
    return f"{type(thing).__name__} of {len(thing)}" if isinstance(thing, tuple | list) else type(thing).__name__


def check_count(**counts: int | None) -> None:
    """Raise unless every argument is None or a whole number ≥ 1.

    >>> check_count(epochs=80, patience=None)
    """
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")

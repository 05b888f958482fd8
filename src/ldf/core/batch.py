"""Batches of rows, as passed to constraint functions, and the in-memory data set they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Rows = Tensor | tuple[Any, Any] | list[Tensor] | Mapping[str, Any]
"""Rows in memory: inputs, (inputs, targets), or a mapping with these and any further columns."""


class Batch:
    """Rows of a data set, with columns as attributes: `batch.inputs`, `batch.targets`, `batch.ids` and your own.

    A column is a tensor with one entry per row, or a mapping, tuple or list of such tensors.

    >>> batch = Batch(inputs=torch.zeros(3, 2), ids=torch.arange(3), sex=torch.tensor([0, 1, 1]))
    >>> batch.sex.tolist(), batch.rows
    ([0, 1, 1], 3)
    """

    inputs: Any
    targets: Any
    ids: Tensor

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)

    def __getattr__(self, name: str) -> Any:
        held = ", ".join(sorted(self.__dict__))
        hint = "; rows without labels have no targets" if "targets" not in self.__dict__ else ""
        raise AttributeError(f"this batch has no column {name!r}; it has: {held}{hint}")

    def __repr__(self) -> str:
        shapes = {name: tree_map(lambda leaf: list(leaf.shape), column) for name, column in self.__dict__.items()}
        return f"Batch({', '.join(f'{name}={found}' for name, found in shapes.items())})"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return rows_of(self.__dict__)

    def columns(self) -> dict[str, Any]:
        """All columns by name."""
        return dict(self.__dict__)

    def to(self, device: torch.device | str) -> Batch:
        """The same rows on another device."""
        return Batch(**tree_map(lambda leaf: leaf.to(device), self.__dict__))


# ---------------------------------------------------------------- trees: tensors, alone or in containers


_UNUSABLE = "expected a tensor, or a tuple, list or mapping of tensors and None, got {}"


def tree_map(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply a function to every tensor of a tree, which is a tensor, None, or a tuple, list or mapping of trees.

    Containers keep their type: also named tuples, and mappings whose type can be called with the keys as arguments,
    such as the outputs of transformer libraries. Other mappings become a dict.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        entries = {key: tree_map(function, value) for key, value in tree.items()}
        if type(tree) is dict:
            return entries
        try:
            return type(tree)(**entries)
        except TypeError:
            return entries
    if isinstance(tree, tuple | list):
        values = [tree_map(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    raise TypeError(_UNUSABLE.format(type(tree).__name__))


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        raise TypeError(_UNUSABLE.format(type(tree).__name__))
    return [leaf for part in tree for leaf in leaves(part)]


def rebuilt(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """A tree of the same form with these tensors, in the order of `leaves`."""
    each = iter(tensors)
    return tree_map(lambda _: next(each), tree)


def pick(tree: Any, index: Any) -> Any:
    """Index every tensor of a tree with the same rows or slice."""
    return tree_map(lambda leaf: leaf[index], tree)


def join(trees: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate trees of the same form, tensor by tensor."""
    if len(trees) == 1:
        return trees[0]
    return rebuilt(trees[0], [torch.cat(group, dim) for group in zip(*map(leaves, trees), strict=True)])


def free(predictions: Any) -> Any:
    """The same values, detached, as leaves of a new autograd graph."""
    return tree_map(lambda leaf: leaf.detach().requires_grad_(leaf.is_floating_point()), predictions)


def rows_of(predictions: Any, dim: int = 0) -> int:
    """The number of rows of predictions."""
    return int(leaves(predictions)[0].shape[dim])


class Widened(TorchFunctionMode):
    """Inside this block, an operation that refuses float32 next to float64, such as a matrix product, runs in float64.

    >>> y, weights = torch.ones(1, 2, dtype=torch.float64), torch.ones(2, 1)
    >>> with Widened():
    ...     y @ weights
    tensor([[2.]], dtype=torch.float64)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function; if that fails, once more with every floating tensor in float64."""
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            dtypes: set[torch.dtype] = set()
            args, kwargs = _widen(args, dtypes), _widen(kwargs or {}, dtypes)
            if len(dtypes) < 2:
                raise
            return func(*args, **kwargs)


def _widen(thing: Any, dtypes: set[torch.dtype]) -> Any:
    """Arguments with every floating tensor in float64; collects their dtypes."""
    if isinstance(thing, Tensor) and thing.is_floating_point():
        dtypes.add(thing.dtype)
        return thing.double()
    if isinstance(thing, tuple | list):
        return type(thing)(_widen(part, dtypes) for part in thing)
    return {key: _widen(part, dtypes) for key, part in thing.items()} if isinstance(thing, dict) else thing


# ---------------------------------------------------------------- data


def as_batch(item: Any) -> Batch:
    """A batch from an item of a DataLoader: inputs, (inputs, targets), (inputs, targets, ids), a mapping or a Batch.

    >>> as_batch((torch.zeros(2, 1), torch.ones(2))).targets
    tensor([1., 1.])
    """
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        return Batch(**item)
    if isinstance(item, Tensor):
        return Batch(inputs=item)
    if isinstance(item, tuple | list) and len(item) in (1, 2, 3):
        return Batch(**dict(zip(("inputs", "targets", "ids"), item, strict=False)))
    raise TypeError(
        "a batch must be inputs, (inputs, targets), (inputs, targets, ids) or a mapping with those names, "
        f"got {describe(item)}"
    )


def in_memory(data: Any) -> bool:
    """Whether data are columns, as `Data` takes them, rather than a DataLoader or a list of batches."""
    return isinstance(data, Tensor | Mapping | tuple) or (
        isinstance(data, list) and all(isinstance(part, Tensor) for part in data)
    )


class Data:
    """A data set in memory: n rows that the loss is computed on, with or without targets, then any number of
    unlabelled rows. The ids are the row numbers.

    Args:
        labelled: inputs, (inputs, targets), or a mapping with these and any further columns, all with n rows.
        unlabelled: inputs, or a mapping with every column except the targets.
    """

    def __init__(self, labelled: Rows, unlabelled: Any = None) -> None:
        if not in_memory(labelled):
            raise TypeError(f"data must be inputs, (inputs, targets) or a mapping of columns, got {describe(labelled)}")
        if isinstance(labelled, tuple | list):
            if len(labelled) != 2:
                raise ValueError(f"data must be (inputs, targets) or a mapping of columns, got {len(labelled)} items")
            labelled = {"inputs": labelled[0], "targets": labelled[1]}
        elif isinstance(labelled, Tensor):
            labelled = {"inputs": labelled}
        self.labelled = _count("data", labelled)
        if "ids" in labelled:
            raise ValueError("data must not have a column 'ids': the row numbers are the ids")
        self.targets = labelled.get("targets")
        self.columns = {name: column for name, column in labelled.items() if name != "targets"}
        self.rows = self.labelled
        if unlabelled is not None:
            extra = unlabelled if isinstance(unlabelled, Mapping) else {"inputs": unlabelled}
            if extra.keys() != self.columns.keys():
                raise ValueError(f"unlabelled must have the columns {sorted(self.columns)}, got {sorted(extra)}")
            self.rows += _count("unlabelled", extra)
            for name, column in self.columns.items():
                ours, theirs = ([(leaf.shape[1:], leaf.dtype) for leaf in leaves(c)] for c in (column, extra[name]))
                if ours != theirs:
                    raise ValueError(
                        f"column {name!r}: labelled {describe(column)}, unlabelled {describe(extra[name])}"
                    )
            self.columns = {name: join([column, extra[name]]) for name, column in self.columns.items()}

    @property
    def device(self) -> torch.device:
        """Device of the columns."""
        return leaves(self.columns)[0].device

    def to(self, device: torch.device) -> Data:
        """Move all columns to a device."""
        self.columns, self.targets = tree_map(lambda leaf: leaf.to(device), (self.columns, self.targets))
        return self

    def take(self, ids: Tensor, *, targets: bool = True) -> Batch:
        """The rows with these ids, of shape [batch] or any other; targets=False omits the targets."""
        ids = ids.to(self.device)
        chosen = {**self.columns, "targets": self.targets} if targets and self.targets is not None else self.columns
        flat = ids.reshape(-1)  # index_select copies whole rows; column[ids] does not
        columns = tree_map(lambda leaf: leaf.index_select(0, flat).view(ids.shape + leaf.shape[1:]), chosen)
        return Batch(**columns, ids=ids)


def _count(what: str, columns: Mapping[str, Any]) -> int:
    """Check the columns and return their number of rows."""
    if "inputs" not in columns:
        raise ValueError(f"{what} has no column 'inputs'; it has: {', '.join(sorted(columns))}")
    sizes = {}
    for name, column in columns.items():
        try:
            found = leaves(column)
        except TypeError:
            found = []
        if not found or any(leaf.ndim == 0 for leaf in found):
            raise TypeError(
                f"{what}: column {name!r} must be a tensor with one entry per row, or a tuple, list or mapping of such "
                f"tensors, got {describe(column)}"
            )
        for leaf in found:
            if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
                row = int((~torch.isfinite(leaf.reshape(len(leaf), -1)).all(1)).nonzero()[0])
                raise ValueError(f"{what}: column {name!r} has a value that is not finite, first in row {row}")
        lengths = sorted({len(leaf) for leaf in found})
        sizes[name] = lengths[0] if len(lengths) == 1 else lengths
    rows = next(iter(sizes.values()))
    if isinstance(rows, list) or any(size != rows for size in sizes.values()):
        raise ValueError(f"{what}: all columns must have the same number of rows, got {sizes}")
    if rows == 0:
        raise ValueError(f"{what} is empty: at least one row is needed")
    return rows


def describe(thing: Any) -> str:
    """Type, or shape and dtype, of an object, for error messages."""
    if isinstance(thing, Tensor):
        return f"{list(thing.shape)} {thing.dtype}"
    if isinstance(thing, Mapping):
        return f"{type(thing).__name__} with {', '.join(map(str, thing))}"
    return f"{type(thing).__name__} of {len(thing)}" if isinstance(thing, tuple | list) else type(thing).__name__


def check_count(**counts: int | None) -> None:
    """Raise unless every argument is None or a whole number ≥ 1.

    >>> check_count(epochs=80, patience=None)
    """
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number ≥ 1, got {value!r}")

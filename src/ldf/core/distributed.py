"""Distributed training: the rank of this process, and reductions over all processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def together() -> bool:
    """Whether a process group is initialised."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def world() -> int:
    """The number of processes."""
    return torch.distributed.get_world_size() if together() else 1


def rank() -> int:
    """The rank of this process; −1 if no process group is initialised."""
    return torch.distributed.get_rank() if together() else -1


def all_reduce(added: Sequence[Tensor], largest: Sequence[Tensor]) -> None:
    """Replace tensors by their sums, or by their maxima, over all processes, in two collectives."""
    for tensors, operation in (
        (added, torch.distributed.ReduceOp.SUM),
        (largest, torch.distributed.ReduceOp.MAX),
    ):
        if not tensors:
            continue
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        torch.distributed.all_reduce(flat, op=operation)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

"""Checkpoints: one safetensors file with other data as JSON in its header, written atomically."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .text import write_whole

FORMAT = "ldf-checkpoint-1"

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class CheckpointError(ValueError):
    """A checkpoint is damaged, from another program or from another problem."""


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (plain JSON values) to one file.

    The safetensors format is the length of the header (8 bytes, little-endian), the header as JSON, and the tensor
    data. The library's own writer for torch is not used because it needs numpy, on which the core does not depend.
    """
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT, "facts": json.dumps(facts)}}
    parts, end = [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{name!r} is {tensor.dtype}, which cannot be stored in a checkpoint")
        parts.append(as_bytes(tensor))
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # align the tensor data to 8 bytes
    write_whole(path, b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def as_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor in memory."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save` wrote; nothing in the file is executed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of ldf ({FORMAT})")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(metadata["facts"])  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError, KeyError, EOFError) as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({error}); delete it to start over") from error


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as tensors and facts."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            elif value is None or isinstance(value, bool | int | float | str):
                numbers.setdefault(str(index), {})[name] = value
            else:
                raise CheckpointError(
                    f"{type(optimizer).__name__} stores {name!r} as {type(value).__name__}, which cannot be saved in a "
                    "checkpoint; train without checkpoint=, or with another optimiser"
                )
    groups = [
        {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items()}
        for group in state["param_groups"]
    ]
    return tensors, {"state": numbers, "param_groups": groups}


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Load the state returned by `pack_optimizer` into an optimiser."""
    state: dict[int, dict[str, Any]] = {int(index): dict(entries) for index, entries in facts["state"].items()}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    groups = [
        {
            **group,
            **{key: tuple(value) for key, value in group.items() if isinstance(value, list) and key != "params"},
        }
        for group in facts["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def random_state() -> tuple[dict[str, Tensor], list[Any]]:
    """The random states of torch and Python."""
    tensors = {"random.torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tensors |= {f"random.cuda.{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    version, internal, gauss = random.getstate()
    return tensors, [version, list(internal), gauss]


def restore_random(tensors: Mapping[str, Tensor], python: list[Any]) -> None:
    """Restore the random states returned by `random_state`."""
    torch.set_rng_state(tensors["random.torch"])
    cuda = [tensors[name] for name in sorted(tensors) if name.startswith("random.cuda.")]
    if cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(cuda)
    random.setstate((python[0], tuple(python[1]), python[2]))

"""safetensors: eight bytes of length, a JSON header, then the tensors' bytes.

Read here and not by the ``safetensors`` package, so that none is needed. The format is documented
at https://huggingface.co/docs/safetensors: little-endian header length, a JSON object of
``{name: {dtype, shape, data_offsets}}`` and ``__metadata__``, offsets relative to the header's end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from forensics.errors import InputError
from forensics.replay.saved_states import roles
from forensics.replay.saved_states.mapped_file import MOST_DIMENSIONS, MappedFile
from forensics.replay.saved_states.resume_parts import missing_parts
from forensics.replay.saved_states.saved_state import SavedState, StateValue
from forensics.replay.saved_states.stored_tensor import Storage, StoredTensor

LARGEST_HEADER = 32 << 20
"""Bytes: 250,000 tensors. The reference implementation stops at 100 MB."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_FEW_BITS = ("F4", "F6_E2M3", "F6_E3M2")
"""Formats without NaN and Inf, packed: taken as bytes."""


def open_safetensors_state(path: Path, root: Path | None = None) -> SavedState:
    """Open one safetensors file.

    Raises:
        InputError: it is none, or damaged.
    """
    file = MappedFile(path, root)
    tensors, metadata = read_safetensors(file)
    if not tensors:
        raise InputError("holds no tensors", where=path)
    kinds = {roles.kind_of((name,), bare=_bare(name)) for name in tensors}
    steps = [metadata.get(key, "") for key in ("step", "global_step")]
    step = next(
        (int(s) for s in steps if isinstance(s, str) and s.isdecimal() and s.isascii()), None
    )
    return SavedState(
        path=path,
        format="safetensors",
        step=step if step is None or step < 1 << 62 else None,
        size=file.size,
        values=lambda: safetensors_values(tensors),
        missing=missing_parts(kinds | {roles.PARAM}),
    )


def safetensors_values(tensors: dict[str, StoredTensor]) -> Iterator[StateValue]:
    """The values of the tensors of a file."""
    for name, tensor in tensors.items():
        kind = roles.kind_of(name.split("."), bare=_bare(name))
        owner = name if kind == roles.PARAM else ""
        yield StateValue(name, kind, owner, tensor.open())


def read_safetensors(file: MappedFile) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """The tensors by name, and the header's ``__metadata__``.

    Raises:
        InputError: it is no safetensors file, or damaged.
    """
    if file.size < 8:
        raise InputError("is no safetensors file, or cut off", where=file.path)
    length = int.from_bytes(file.read(0, 8), "little")
    if length > LARGEST_HEADER:
        raise InputError(
            f"is no safetensors file: its header would have {length:,} bytes", where=file.path
        )
    text = file.read(8, length)
    try:
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError("no object")
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(file, 8 + length, entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"has a damaged safetensors header ({str(error)[:80]})", where=file.path
        ) from error
    return tensors, metadata if isinstance(metadata, dict) else {}


def _tensor(file: MappedFile, base: int, entry: dict[str, Any]) -> StoredTensor:
    dtype = _DTYPES.get(entry["dtype"])
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    if entry["dtype"] in _FEW_BITS:
        dtype, shape = torch.uint8, [end - start]
    if dtype is None:
        raise ValueError(f"dtype {str(entry['dtype'])[:20]!r} is unknown")
    numbers = [*shape, start, end]
    if len(shape) > MOST_DIMENSIONS or any(number > 1 << 62 for number in numbers):
        raise ValueError("a tensor's shape is absurd")
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a size or an offset is no natural number")
    count = math.prod(shape)
    if count * dtype.itemsize != end - start:
        raise ValueError(f"a tensor of {count:,} elements has {end - start:,} bytes")
    stride = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    storage = Storage(file, dtype, count, base + start)
    tensor = StoredTensor(storage, dtype, 0, tuple(shape), tuple(stride))
    tensor.check()
    return tensor


def _bare(name: str) -> bool:
    """Is this a name in a plain model, rather than ``optimizer.…`` of a whole training?"""
    return roles.role_of(name.partition(".")[0]) not in (
        roles.OPTIMIZER,
        roles.EMA,
        roles.SCALER,
        roles.RNG,
    )

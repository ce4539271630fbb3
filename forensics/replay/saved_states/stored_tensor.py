"""Tensors as a saved state stores them: where they lie and what they look like, not yet read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forensics.replay.saved_states.mapped_file import MappedFile, check_shape, shaped

_STORAGE = re.compile(r"torch\.(?:cuda\.|xpu\.|storage\.)?(\w+)Storage\Z")
_DTYPE_OF_STORAGE = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "Untyped": torch.uint8,
    "QUInt8": torch.uint8,
    "QInt8": torch.int8,
    "QInt32": torch.int32,
    "QUInt4x2": torch.uint8,
    "QUInt2x4": torch.uint8,
}


@dataclass(slots=True)
class Storage:
    """Bytes of a file that tensors lie on.

    Attributes:
        file: the mapped file.
        dtype: of the elements.
        count: elements.
        start: first byte in the file; -1 until it is known.
    """

    file: MappedFile
    dtype: torch.dtype
    count: int
    start: int = -1


@dataclass(slots=True, eq=False)
class StoredTensor:
    """A tensor on a storage, opened only where it is looked at.

    Attributes:
        storage: where its elements are; None for a meta tensor, which has none.
        dtype: of the elements.
        offset: of the first, in elements.
        size: per dimension.
        stride: per dimension, in elements.
    """

    storage: Storage | None
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def check(self) -> int:
        """Bytes of the storage that it takes.

        Raises:
            ValueError: it does not lie on its storage.
            InputError: the storage does not lie in the file.
        """
        if self.storage is None:
            return 0
        held = self._held()
        self.storage.file.check(self.storage.start, held * self.dtype.itemsize, "a tensor")
        return check_shape(held, self.size, self.stride, self.offset) * self.dtype.itemsize

    def open(self) -> Tensor:
        """The tensor: memory-mapped, read-only, on the CPU (a meta tensor stays one).

        Raises:
            ValueError: it does not lie on its storage.
            InputError: the storage does not lie in the file.
        """
        if self.storage is None:
            return torch.empty(self.size, dtype=self.dtype, device="meta")
        flat = self.storage.file.flat(self.dtype, self.storage.start, self._held())
        return shaped(flat, self.size, self.stride, self.offset)

    def _held(self) -> int:
        """Elements of this dtype that the storage has."""
        assert self.storage is not None
        return self.storage.count * self.storage.dtype.itemsize // self.dtype.itemsize


def dtype_named(name: Any) -> torch.dtype:
    """``torch.float32`` by its name; ValueError where it is none."""
    found = getattr(torch, str(name).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{str(name)[:60]} is no dtype")
    return found


def dtype_of_storage(name: str) -> torch.dtype:
    """The dtype of a storage class's elements, such as ``torch.FloatStorage``."""
    match = _STORAGE.match(name)
    dtype = _DTYPE_OF_STORAGE.get(match[1]) if match else None
    if dtype is None:
        raise ValueError(f"{name[:60]} is no storage")
    return dtype

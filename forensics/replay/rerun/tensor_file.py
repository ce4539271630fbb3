"""Large tensors kept in a file without a name, so that a copy of a state costs no memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

LARGE_STATE = 128 << 20
"""Bytes of tensors from which a state is kept in a file; a smaller one is quicker in memory."""
_LARGE = 1 << 16
"""Bytes of a tensor from which it is worth a place in the file."""
_CHUNK = 64 << 20


@dataclass(frozen=True)
class FiledTensor:
    """The bits of a dense, contiguous tensor in a ``TensorFile``.

    Attributes:
        file: where they are; it lives as long as one of its tensors.
        offset: of the first byte.
        shape, dtype, device: of the tensor.
    """

    file: TensorFile
    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def clone(self) -> Tensor:
        """A new tensor with these bits, on the device of the old one."""
        made = torch.empty(self.shape, dtype=self.dtype)
        self.file.read(made, self.offset)
        return made.to(self.device)

    def copy_to(self, target: Tensor) -> None:
        """Write the bits into a tensor of the same shape and dtype."""
        if target.device.type == "cpu" and target.is_contiguous():
            self.file.read(target, self.offset)
        else:
            target.copy_(self.clone())


class TensorFile:
    """A temporary file that holds tensors and is gone with the last of them.

    Args:
        fd: open for reading and writing; nobody else's.
    """

    def __init__(self, fd: int) -> None:
        self._fd, self._end = fd, 0
        weakref.finalize(self, os.close, fd)

    def keep(self, tensor: Tensor) -> Tensor | FiledTensor:
        """The tensor's bits in the file; a copy in memory where it is small, odd, or disk is out.

        Raises nothing: a full disk costs memory, not the answer.
        """
        plain = tensor.detach()
        odd = plain.layout is not torch.strided or plain.is_complex() or plain.is_quantized
        if odd or not plain.is_contiguous() or plain.numel() * plain.element_size() < _LARGE:
            return plain.clone()
        offset = self._end
        try:
            self._write(_bytes_of(plain.cpu()))
        except OSError:
            self._end = offset
            return plain.clone()
        return FiledTensor(self, offset, plain.shape, plain.dtype, plain.device)

    def _write(self, data: memoryview) -> None:
        while data:
            written = os.pwrite(self._fd, data[:_CHUNK], self._end)
            self._end += written
            data = data[written:]

    def read(self, target: Tensor, offset: int) -> None:
        """Fill a contiguous tensor on the CPU from a place in the file."""
        data = _bytes_of(target.detach())
        while data:
            read = os.preadv(self._fd, [data[:_CHUNK]], offset)
            if not read:
                raise EOFError("a state kept in a temporary file is not whole")
            offset += read
            data = data[read:]


def tensor_file(size: int) -> TensorFile | None:
    """A file for so many bytes of tensors; None where memory does as well, or disk has no room."""
    if size < LARGE_STATE or not hasattr(os, "preadv"):
        return None
    try:
        if shutil.disk_usage(tempfile.gettempdir()).free < 2 * size:
            return None
        fd, path = tempfile.mkstemp(prefix="forensics-state-")
        os.unlink(path)
    except OSError:
        return None
    return TensorFile(fd)


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    bits: memoryview = tensor.reshape(-1).view(torch.uint8).numpy().data
    return bits

"""A file mapped into memory: its bytes as tensors, each within bounds, none read before its use."""

from __future__ import annotations

import math
import mmap
import os
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from forensics.errors import InputError

MOST_DIMENSIONS = 64
"""torch's own limit."""


class MappedFile:
    """A regular file, mapped read-only: a state larger than memory costs none.

    The tensors made of it must not be written to.

    Args:
        path: the file.
        root: the folder it must lie in, links followed; None where the user named the file.

    Raises:
        InputError: it is missing, empty, no regular file, or a link out of ``root``.
    """

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self.path = path
        if root is not None:
            refuse_outside(path, root)
        try:
            # Without O_NONBLOCK a pipe of that name would be waited for forever.
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"cannot be opened ({reason})", where=path) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InputError("is no regular file", where=path)
            if not status.st_size:
                raise InputError("is empty", where=path)
            self.size = status.st_size
            self._bytes = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be mapped ({error})", where=path) from error
        finally:
            os.close(descriptor)

    def read(self, start: int, length: int) -> bytes:
        """Bytes ``start`` to ``start + length``; InputError where the file has not so many."""
        self.check(start, length, "a part of it")
        return self._bytes[start : start + length]

    def check(self, start: int, length: int, what: str) -> None:
        """Refuse a range that is not within the file."""
        if start < 0 or length < 0 or start + length > self.size:
            raise InputError(
                f"is cut off or damaged: {what} would end at byte {start + length:,} of "
                f"{self.size:,}",
                where=self.path,
            )

    def find_last(self, needle: bytes, start: int) -> int:
        """Where the last occurrence begins that is not before ``start``; -1 for none."""
        return self._bytes.rfind(needle, max(start, 0))

    def flat(self, dtype: torch.dtype, start: int, count: int) -> Tensor:
        """``count`` elements from byte ``start`` on, shape (count,), still on the disk."""
        self.check(start, count * dtype.itemsize, "a tensor")
        if not count:
            return torch.empty(0, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the memory is read-only
            return torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=start)


def shaped(flat: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """A tensor of a size and stride on a storage's elements; ValueError as of ``check_shape``."""
    check_shape(len(flat), size, stride, offset)
    if 0 in size:
        return flat[:0].reshape([min(s, 1) for s in size])
    return flat.as_strided(list(size), list(stride), offset)


def check_shape(held: int, size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """How many of a storage's elements a tensor takes; those that ``expand`` repeats count once.

    Raises:
        ValueError: it would reach beyond the storage, or take more elements than that has.
    """
    if len(size) != len(stride) or len(size) > MOST_DIMENSIONS:
        raise ValueError(f"a tensor has {len(size)} sizes and {len(stride)} strides")
    if any(type(number) is not int or number < 0 for number in (*size, *stride, offset)):
        raise ValueError("a tensor's size or stride is no natural number")
    total = math.prod(size)
    if total >= 1 << 62:
        raise ValueError("a tensor's size is absurd")
    if not total:
        return 0
    last = offset + sum((s - 1) * step for s, step in zip(size, stride, strict=True))
    taken = math.prod(s for s, step in zip(size, stride, strict=True) if step)
    if last >= held or taken > held:
        raise ValueError(f"a tensor of {total:,} elements lies on {held:,}")
    return taken


def refuse_outside(path: Path, root: Path) -> None:
    """Refuse a path that leads out of a folder, but for the link farm of the Hugging Face cache.

    There ``snapshots/REVISION/FILE`` is a link to ``blobs/HASH`` two levels up.

    Raises:
        InputError: it leads elsewhere, or nowhere.
    """
    try:
        home, target = root.resolve(strict=True), path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError("cannot be found, or leads nowhere", where=path) from error
    if target.is_relative_to(home):
        return
    cache = home.parents[1] if len(home.parents) > 1 else home
    if home.parent.name == "snapshots" and target.is_relative_to(cache / "blobs"):
        return
    raise InputError(
        "leads out of its folder", where=path, hint="name the file it leads to, if you trust it"
    )

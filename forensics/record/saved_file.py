"""Opening what ``torch.save`` wrote, or somebody who means harm: nothing runs, nothing blows up."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forensics.errors import InputError

MOST_EXPANDED = 64
"""Times the file's size that its tensors may claim: an expanded buffer repeats what it has."""
_SLACK = 1 << 20


def load_saved(path: Path, *, mmap: bool = False) -> Any:
    """What a file of ``torch.save`` holds, on the CPU; nothing in it can run code.

    Args:
        path: the file.
        mmap: map the tensors instead of reading them.

    Raises:
        InputError: it is cut off, compressed (``torch.save`` never does that: a small file could
            become any size), or its tensors claim far more than the file has.
        Exception: whatever ``torch.load`` raises; ``why_unreadable`` tells it.
    """
    size = path.stat().st_size
    _refuse_compressed(path, size)
    found = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(found, set()))
    if claimed > MOST_EXPANDED * size + _SLACK:
        raise InputError(f"claims {claimed:,} bytes of tensors and has {size:,}", where=path)
    return found


def load_plain(data: bytes) -> Any:
    """What ``torch.save`` wrote to memory, on the CPU; None where a safe load does not take it."""
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError):
        return None


def _refuse_compressed(path: Path, size: int) -> None:
    """InputError unless it is a zip archive of stored records that do not overlap."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
        raise InputError("is cut off or no file of torch.save", where=path) from error
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise InputError("holds a compressed record, which torch.save never writes", where=path)
    if sum(record.file_size for record in records) > size:
        raise InputError("claims more bytes than it has", where=path)


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor in nested containers; one that holds itself is gone through once."""
    pending = [value]
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, Mapping | list | tuple | set | frozenset):
            seen.add(id(item))
            pending += item.values() if isinstance(item, Mapping) else item

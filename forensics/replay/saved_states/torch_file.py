"""Files of ``torch.save``, in the zip format and in the one before torch 1.6, mapped, never run."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forensics.errors import InputError
from forensics.replay.saved_states.inert_pickle import InertPickleError, Named, read_pickle
from forensics.replay.saved_states.mapped_file import MappedFile
from forensics.replay.saved_states.stored_tensor import Storage, StoredTensor, dtype_of_storage
from forensics.replay.saved_states.torch_objects import TorchObjects
from forensics.replay.saved_states.zip_records import Record, Window, records

LARGEST_PICKLE = 256 << 20
"""Bytes of the part without tensors."""
LONGEST_LINE = 1 << 16
"""Bytes of a line of text in a pickle: a number, or the name of a global."""
MOST_CLAIMED = 16
"""Bytes that all tensors may claim for each byte of the file: shared weights are counted twice."""
_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001


@dataclass(frozen=True)
class TorchFile:
    """What a file holds: ``tree`` of plain values, ``Built`` objects and stored tensors."""

    tree: Any
    tensors: Sequence[StoredTensor]
    format: str


def read_torch_file(window: Window) -> TorchFile:
    """Read a file of ``torch.save``, or a part of a file that is one.

    Raises:
        InputError: it is none, is damaged or cut off, claims what it has not, or would run code.
    """
    file = window.file
    try:
        if window.read(0, min(4, window.length)) == b"PK\x03\x04":
            found = _read_zip(window)
        else:
            found = _read_old(window)
        _check(found.tensors, window)
    except InertPickleError as error:
        raise InputError(str(error), where=file.path) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, struct.error) as error:
        raise InputError("is damaged: its pickle makes no sense", where=file.path) from error
    return found


def _check(tensors: Sequence[StoredTensor], window: Window) -> None:
    """Refuse tensors that do not lie on their storages, or claim far more than the file has."""
    claims: dict[tuple[int, int], int] = {}
    for tensor in tensors:
        try:
            taken = tensor.check()
        except ValueError as error:
            raise InputError(f"is damaged: {error}", where=window.file.path) from error
        if tensor.storage is not None:
            place = (tensor.storage.start, tensor.offset)
            claims[place] = max(taken, claims.get(place, 0))
    claimed = sum(claims.values())
    if claimed > MOST_CLAIMED * window.length:
        raise InputError(
            f"claims {claimed:,} bytes of tensors and has {window.length:,}", where=window.file.path
        )


def _read_zip(window: Window) -> TorchFile:
    found = records(window)
    order = found.get("byteorder")
    if order and window.file.read(order.start, min(order.length, 8)) != b"little":
        raise InputError("is in big-endian order", where=window.file.path)
    main = found.get("data.pkl")
    if main is None:
        raise InputError("is a zip archive without a saved state", where=window.file.path)
    if main.length > LARGEST_PICKLE:
        raise InputError(f"has a pickle of {main.length:,} bytes", where=window.file.path)
    objects = TorchObjects()
    stream = io.BytesIO(window.file.read(main.start, main.length))
    tree = read_pickle(
        stream,
        persistent=lambda key: _storage(window.file, found, key),
        reducers=objects.reducers,
    )
    return TorchFile(tree, objects.tensors, "torch")


def _storage(file: MappedFile, found: dict[str, Record], key: Any) -> Storage:
    """The storage of a persistent id ``("storage", class, key, location, elements)``."""
    kind, name, count = key[1], key[2], key[4]
    if key[0] != "storage" or not isinstance(kind, Named) or type(count) is not int:
        raise ValueError("an unknown persistent id")
    dtype = dtype_of_storage(kind.name)
    record = found.get(f"data/{name}")
    held = record.length if record else 0
    if count and (record is None or not 0 <= count * dtype.itemsize <= held):
        raise InertPickleError(
            f"declares a storage of {count * dtype.itemsize:,} bytes, of which it has {held:,}"
        )
    return Storage(file, dtype, count, record.start if record else 0)


def _read_old(window: Window) -> TorchFile:
    """The format before torch 1.6: five pickles, then the storages one after the other."""
    stream = _Bounded(window)
    try:
        magic = read_pickle(stream)
    except InertPickleError:
        magic = None
    if magic != _MAGIC or read_pickle(stream) != _PROTOCOL:
        raise InputError("is no file of torch.save", where=window.file.path)
    if read_pickle(stream).get("little_endian") is not True:
        raise InputError("is in big-endian order", where=window.file.path)
    objects, storages = TorchObjects(), dict[str, Storage]()

    def storage(key: Any) -> Any:
        if key[0] == "module":
            return key[1]
        kind, name, count = key[1], key[2], key[4]
        if type(count) is not int or count < 0:
            raise ValueError("a storage without a size")
        whole = storages.setdefault(name, Storage(window.file, dtype_of_storage(kind.name), count))
        if key[5] is not None:
            raise InertPickleError("holds views of storages, as torch before 0.4 saved them")
        return whole

    tree = read_pickle(stream, persistent=storage, reducers=objects.reducers)
    at = window.start
    keys = read_pickle(stream)
    at += stream.tell()
    for name in keys:
        whole = storages[name]
        (count,) = struct.unpack("<q", window.file.read(at, 8))
        if count != whole.count:
            raise InertPickleError(f"declares a storage of {whole.count:,} elements, has {count:,}")
        whole.start = at + 8
        at = whole.start + count * whole.dtype.itemsize
        window.file.check(whole.start, at - whole.start, "a storage")
    return TorchFile(tree, objects.tensors, "torch before 1.6")


class _Bounded:
    """The pickles at the start of a file, and no more of it than a pickle may have."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._at = 0

    def read(self, size: int, /) -> bytes:
        size = min(max(size, 0), self._window.length - self._at)
        if self._at + size > LARGEST_PICKLE:
            raise InertPickleError(f"has a pickle of more than {LARGEST_PICKLE:,} bytes")
        found = self._window.read(self._at, size)
        self._at += len(found)
        return found

    def readline(self) -> bytes:
        """Up to the next newline, where there is one within what any line of a pickle takes."""
        most = min(LONGEST_LINE, self._window.length - self._at)
        text = self._window.read(self._at, most)
        return self.read(text.find(b"\n") + 1 or most)

    def tell(self) -> int:
        return self._at

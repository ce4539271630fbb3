"""One object of a store, read in ranges: never more of it than somebody asks for."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from typing import Any

from forensics.errors import StoreError
from forensics.runlog.stores.patience import PATIENCE
from forensics.runlog.stores.refusals import as_store_error
from forensics.runlog.stores.store import Store
from forensics.runlog.stores.traffic import TRAFFIC

FIRST = 256 << 10
"""Bytes of the first request for a log: enough to tell most formats, and all of a small one."""
_MOST = 16 << 20
"""Bytes a request at most; a log that is read on is asked for in fourfold parts up to that."""
_KEPT = 1 << 20
"""Bytes that a part at a log's beginning or end may have to be kept: both are looked at again."""
_WHOLE = 4 << 20
"""Bytes up to which a file of columns is fetched whole, once a column of it is asked for: as many
come in the time that another request takes."""
_MARK = 8
"""Bytes of the mark at the end of a part that is still to come."""
_ALL_KEPT = 128 << 20
"""Bytes of all kept parts of all objects."""


class RemoteObject:
    """An object; opened when it is first read.

    Args:
        store: where it lies.
        key: its key.
        uri: as the user would name it.

    Attributes:
        kept: parts that were read, by where they begin; the cache takes them away again.
    """

    def __init__(self, store: Store, key: str, uri: str) -> None:
        self._store, self._key, self._uri = store, key, uri
        self._file: Any = None
        self._tag: object = None
        self._parts = 0
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.kept: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        """Bytes, as they were when it was opened.

        Raises:
            FileNotFoundError: it is gone.
            StoreError: the store does not answer, or refuses.
        """
        with self._lock:
            if self._file is None:
                self._file = self._store.opened(self._key)
                self._tag = _tag_of(self._file)
        return int(self._file.size())

    def read(self, start: int, stop: int) -> bytes:
        """Some bytes of a log, fewer at its end; raises as ``size``, and StoreError if it changed.

        Its beginning and end are kept.
        """
        stop = min(stop, self.size)
        data = self._have(start, stop)
        if data is None:
            data = self._get(start, stop)
            if len(data) <= _KEPT and (start == 0 or stop == self.size):
                _CACHE.keep(self, start, data)
        return data

    def read_columns(self, start: int, stop: int) -> bytes:
        """Some bytes of a file of columns: of one that is not small these alone; they are kept."""
        stop = min(stop, self.size)
        data = self._have(start, stop)
        if data is None and stop < self.size <= _WHOLE:
            _CACHE.keep(self, 0, self._get(0, self.size))
            data = self._have(start, stop)
        if data is None:
            data = self._get(start, stop)
            _CACHE.keep(self, start, data)
        return data

    def _have(self, start: int, stop: int) -> bytes | None:
        """The bytes, where they are in one kept part."""
        if start >= stop:
            return b""
        for first, part in list(self.kept.items()):
            if first <= start and stop <= first + len(part):
                _CACHE.used(self, first)
                return part[start - first : stop - first]
        return None

    def verify(self) -> None:
        """See whether it is still the object that was opened, where it was read in parts.

        Raises:
            StoreError: it has changed meanwhile, so what was read is of two states.
        """
        if self._parts > 1:
            self._parts = 0
            if self._has_changed():
                raise self._changed()

    def _get(self, start: int, stop: int) -> bytes:
        try:
            with PATIENCE.asked(self._uri):
                data = self._filled(start, stop)
        except StoreError:
            raise
        except Exception as error:
            # The answer to a part says not why there is none; a look at the object does.
            if self._has_changed():
                raise self._changed() from error
            raise as_store_error(error, self._uri.partition("://")[0], self._uri) from error
        TRAFFIC.count(len(data))
        self._parts += 1
        if len(data) != stop - start:
            raise self._changed()
        return data

    def _filled(self, start: int, stop: int) -> bytes:
        """The bytes of a part.

        Where a server gives fewer than it is asked for Arrow says nothing, and leaves what was in
        memory before. So the end of the part holds a mark that no object holds by chance.
        """
        part = bytearray(stop - start)
        mark = os.urandom(_MARK)
        part[-_MARK:] = mark[: len(part)]
        with self._reading:  # it goes by the file's place
            self._file.seek(start)
            count = self._file.readinto(part)
        if len(part) >= _MARK and part.endswith(mark):
            if self._has_changed():
                raise self._changed()
            what = "gives less of an object than it is asked for"
            raise StoreError(what, where=self._uri, hint="is there a proxy between?")
        return bytes(memoryview(part)[:count])

    def _has_changed(self) -> bool:
        """Is it another object now than the one that was opened? Asks the store."""
        return _tag_of(self._store.opened(self._key)) != self._tag

    def _changed(self) -> StoreError:
        return StoreError("changed while it was read", where=self._uri, hint="read it again")


def _tag_of(file: Any) -> object:
    """What tells one state of an object from another: its size, and what the store says of it."""
    said = file.metadata() or {}
    return file.size(), said.get("ETag"), said.get("Last-Modified")


class _Cache:
    """Which parts of objects are kept: the ones used last."""

    def __init__(self) -> None:
        self._parts: OrderedDict[tuple[int, int], RemoteObject] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def used(self, owner: RemoteObject, start: int) -> None:
        """A part was of use; it goes later than the others."""
        with self._lock:
            if (id(owner), start) in self._parts:
                self._parts.move_to_end((id(owner), start))

    def keep(self, owner: RemoteObject, start: int, data: bytes) -> None:
        """Keep a part, and let the ones go that were not used for longest."""
        with self._lock:
            self._bytes += len(data) - len(owner.kept.get(start, b""))
            owner.kept[start] = data
            self._parts[id(owner), start] = owner
            self._parts.move_to_end((id(owner), start))
            while self._bytes > _ALL_KEPT:
                (_, first), oldest = self._parts.popitem(last=False)
                self._bytes -= len(oldest.kept.pop(first, b""))


_CACHE = _Cache()


class RemoteFile(io.RawIOBase):
    """An object as a file.

    Args:
        source: the object.
        ahead: is it read from its beginning to its end? Then in few large parts; else each
            request is exactly what is asked for.
    """

    def __init__(self, source: RemoteObject, *, ahead: bool) -> None:
        self._source, self._ahead = source, ahead
        self._at, self._span = 0, FIRST
        self._start, self._buffer = 0, b""

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where it is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go elsewhere."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: 0}[whence]
        self._at = base + offset + (self._source.size if whence == io.SEEK_END else 0)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes (ahead) or exactly (else); none at the end."""
        if size < 0:
            data = self._source.read(self._at, self._source.size)
        elif self._ahead:
            data = self._ahead_of(size)
        else:
            data = self._source.read_columns(self._at, self._at + size)
        self._at += len(data)
        if not data and size:
            self._source.verify()
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as ``read`` gives."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _ahead_of(self, size: int) -> bytes:
        at = self._at - self._start
        if not 0 <= at < len(self._buffer):
            self._buffer = self._source.read(self._at, self._at + self._span)
            self._start, at = self._at, 0
            self._span = min(4 * self._span, _MOST)
        return self._buffer[at : at + size]

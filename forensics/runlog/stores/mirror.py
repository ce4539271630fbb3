"""A folder of this machine that stands for a place elsewhere.

Every object is a file there, of its name, size and time and without contents (it takes no room).
What is read is read from the store, part by part; checkpoints stay where they are. So each reader
of runs and logs works as on files, and a run of this machine pays nothing.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from forensics.errors import ForensicsError
from forensics.runlog.csv_reader.spans import forget_elsewhere, lies_elsewhere
from forensics.runlog.stores import disk
from forensics.runlog.stores.objects import RemoteFile, RemoteObject
from forensics.runlog.stores.store import Entry, Store
from forensics.runlog.stores.uri import Uri

T = TypeVar("T")
_LONGEST_NAME = 255
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_AT_ONCE = 16
"""Requests at a time: a store answers many as fast as one."""


class Mirror:
    """The folder; it is removed when nobody holds the mirror any more.

    Args:
        base: the place that the folder stands for.
        store: its file system.
        key: its key there.

    Attributes:
        path: what stands for the URI that was asked for.
        notes: what else the reader of it must know, a clause each.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, base: Uri, store: Store | None, key: str) -> None:
        root = disk.folder()
        name = base.name if _is_name(base.name) else "store"
        self.path = self.home = root / name
        self._base, self._store, self._key = base, store, key
        self._files: list[Path] = []
        weakref.finalize(self, _removed, root, self._files)

    def uri_of(self, path: Path) -> str | None:
        """The URI that a path stands for; None where it is of somewhere else."""
        if self._base.on_the_web:
            return self._base.text if path == self.path else None
        if not path.is_relative_to(self.home):
            return None
        return self._base.below(path.relative_to(self.home).as_posix())

    def told(self, error: ForensicsError) -> ForensicsError:
        """The error, of the place itself."""
        texts = [error.where, error.what, error.hint]
        where, what, hint = (self._retold(text) for text in texts)
        return type(error)(what or "", where=where, hint=hint)

    def _retold(self, text: str | None) -> str | None:
        if text is None:
            return None
        exact = self.uri_of(Path(text))
        if exact is not None:
            return exact
        base = self._base.text if self._base.on_the_web else self._base.address
        return text.replace(str(self.home), base)

    def place(self, entries: Iterable[Entry], folder: str = "") -> list[str]:
        """Give each object its file; return the keys that can be no file's name here.

        Args:
            entries: what there is.
            folder: relative to the base, that their names are relative to.
        """
        left: list[str] = []
        # Of an object and a folder of one name it is the object that a run has.
        for entry in sorted(entries, key=lambda entry: entry.size is None):
            name = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if all(map(_is_name, name.split("/"))):
                    self._place(entry, name)
                    continue
            except ValueError:  # in no encoding of file names
                pass
            except OSError as error:  # too long, or both an object and a folder
                if error.errno in _NO_ROOM:
                    raise disk.full(error) from error
            left.append(name)
        return left

    def _place(self, entry: Entry, name: str) -> None:
        path = self.home / name
        if entry.size is None:
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.truncate(entry.size)
        if entry.mtime_ns:
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
        source = self._object(name)
        self._files.append(path)
        lies_elsewhere(path, _opener(source))

    def _object(self, name: str) -> RemoteObject:
        assert self._store is not None
        return RemoteObject(self._store, joined(self._key, name), self._base.below(name))

    def bring(self, names: Sequence[str]) -> None:
        """Fetch small files whole; one that has gone meanwhile is no more here either."""
        for _ in at_once(self._bring, names):
            pass

    def _bring(self, name: str) -> None:
        path = self.home / name
        source = self._object(name)
        forget_elsewhere(path)
        try:
            data = source.read(0, source.size)
        except FileNotFoundError:
            path.unlink()
            return
        with disk.keeping(path) as keep:
            keep(data)


def joined(key: str, name: str) -> str:
    """The key of what is in a folder."""
    return f"{key.rstrip('/')}/{name}" if key else name


def _is_name(part: str) -> bool:
    """Can it be the name of a file here?"""
    short = len(part.encode("utf-8", "replace")) <= _LONGEST_NAME
    return part not in ("", ".", "..") and "\0" not in part and os.sep not in part and short


def _opener(source: RemoteObject) -> Callable[[bool], BinaryIO]:
    return lambda ahead: cast(BinaryIO, RemoteFile(source, ahead=ahead))


def at_once(work: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
    """What some work gives for each name, in order; several are done at a time."""
    if len(names) < 2:
        yield from map(work, names)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        yield from pool.map(work, names)


def _removed(root: Path, files: list[Path]) -> None:
    for path in files:
        forget_elsewhere(path)
    disk.remove(root)

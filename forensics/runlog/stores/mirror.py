"""A folder of this machine that stands for a place elsewhere.

Every object is a file there, of its name, size and time and without contents (it takes no room).
What is read is read from the store, part by part; checkpoints stay where they are. So each reader
of runs and logs works as on files, and a run of this machine pays nothing.
"""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from forensics.errors import ForensicsError, InputError
from forensics.runlog.csv_reader.spans import forget_elsewhere, lies_elsewhere
from forensics.runlog.lock import LOCK_NAME
from forensics.runlog.stores import disk
from forensics.runlog.stores.objects import RemoteFile, RemoteObject
from forensics.runlog.stores.store import Entry, Store, open_store
from forensics.runlog.stores.uri import Uri
from forensics.runlog.stores.web import NO_LENGTH, Progress, fetch

T = TypeVar("T")
RUN_FILES = ("steps.csv", "steps.csv.gz", "run.json")
_OWN = frozenset((*RUN_FILES, "params"))
_PARTS = ("params", "activations", "checkpoints", "ranks")
_SMALL = ("run.json", "bisect.json", LOCK_NAME)
_LARGEST_SMALL = 64 << 20
_AT_ONCE = 16
"""Requests at a time: a store answers many as fast as one."""
_MOST_FOLDERS = 200
"""Folders below one without a run that are looked into for logs."""


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

    def place(self, entries: Iterable[Entry], folder: str = "") -> None:
        """Give each object its file; a key that can be no file's name is left out.

        Args:
            entries: what there is.
            folder: relative to the base, that their names are relative to.
        """
        # Of an object and a folder of one name it is the object that a run has.
        for entry in sorted(entries, key=lambda entry: entry.size is None):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if not all(map(_is_name, name.split("/"))):
                continue
            with suppress(OSError, ValueError):  # too long, or both an object and a folder
                self._place(entry, name)

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
        for _ in _at_once(self._bring, names):
            pass

    def _bring(self, name: str) -> None:
        path = self.home / name
        source = self._object(name)
        forget_elsewhere(path)
        try:
            path.write_bytes(source.read(0, source.size))
        except FileNotFoundError:
            path.unlink()


M = TypeVar("M", bound=Mirror)


def mirror_of(text: str, progress: Progress | None = None) -> Mirror:
    """The mirror of a run, log, or folder of logs, as ``load_run`` takes it.

    Args:
        text: the URI.
        progress: told the bytes read so far, and of how many, of a file that is fetched whole.

    Raises:
        StoreError: the store does not answer, or refuses.
        InputError: there is nothing of that name.
        MissingExtraError: an extra is needed that is not installed.
    """
    uri = Uri.parsed(text)
    if uri.on_the_web:
        return of_the_web(uri, Mirror, progress)
    store, key = open_store(uri)
    try:
        return _of_folder(uri, store, key, store.listed(key))
    except (FileNotFoundError, NotADirectoryError):
        entry = the_object(uri, store, key)
    return _of_object(uri, store, key, entry)


def of_the_web(uri: Uri, kind: type[M], progress: Progress | None = None) -> M:
    """The mirror of one file behind a web server, which is fetched whole."""
    mirror = kind(uri, None, "")
    if not fetch(uri, mirror.path, progress):
        mirror.notes = (NO_LENGTH,)
    return mirror


def the_object(uri: Uri, store: Store, key: str) -> Entry:
    """The object of a URI that names no folder.

    Raises:
        InputError: there is none.
    """
    entry = store.find(key) if uri.name else None
    if entry is None:
        raise InputError("no such object or folder", where=uri.text) from None
    return entry


def _of_object(uri: Uri, store: Store, key: str, entry: Entry) -> Mirror:
    """A log; one of a run's own names stands for the run that it is in, as on a disk."""
    home, parent = key.rpartition("/")[0], uri.parent
    if entry.name in RUN_FILES:
        mirror = _of_folder(parent, store, home, store.listed(home))
    else:
        mirror = Mirror(parent, store, home)
        mirror.place([entry])
    mirror.path = mirror.home / entry.name
    return mirror


def _of_folder(uri: Uri, store: Store, key: str, entries: list[Entry]) -> Mirror:
    mirror = Mirror(uri, store, key)
    mirror.home.mkdir()
    mirror.place(entries)
    names = {entry.name for entry in entries}
    folders = [entry.name for entry in entries if entry.size is None]
    own = not _OWN.isdisjoint(names)
    inside = [name for name in folders if not own or name in _PARTS][:_MOST_FOLDERS]
    small = [entry.name for entry in entries if own and _is_small(entry)]

    def listed(folder: str, *, recursive: bool = False) -> tuple[str, list[Entry]]:
        try:
            return folder, store.listed(joined(key, folder), recursive=recursive)
        except (FileNotFoundError, NotADirectoryError):  # gone meanwhile
            return folder, []

    found = list(_at_once(listed, inside))
    if own and "superseded" in folders:
        found.append(listed("superseded", recursive=True))
    for folder, there in found:
        mirror.place(there, folder)
        if own:
            small += [f"{folder}/{entry.name}" for entry in there if _is_small(entry)]
    mirror.bring(small)
    return mirror


def joined(key: str, name: str) -> str:
    """The key of what is in a folder."""
    return f"{key.rstrip('/')}/{name}" if key else name


def _is_small(entry: Entry) -> bool:
    """Is it a file of our own that is read whole, by its name?"""
    known = entry.name in _SMALL or entry.name.endswith((".health.json", ".now"))
    return known and entry.size is not None and entry.size <= _LARGEST_SMALL


def _is_name(part: str) -> bool:
    """Can it be the name of a file here?"""
    return part not in ("", ".", "..") and "\0" not in part and os.sep not in part


def _opener(source: RemoteObject) -> Callable[[bool], BinaryIO]:
    return lambda ahead: cast(BinaryIO, RemoteFile(source, ahead=ahead))


def _at_once(work: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
    if len(names) < 2:
        yield from map(work, names)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as pool:
        yield from pool.map(work, names)


def _removed(root: Path, files: list[Path]) -> None:
    for path in files:
        forget_elsewhere(path)
    shutil.rmtree(root, ignore_errors=True)

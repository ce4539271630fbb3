"""A whole folder of a store, searched for runs by one listing and the beginnings of logs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from hashlib import blake2b
from pathlib import Path

from forensics.runlog.directory_logs import is_log_name
from forensics.runlog.lock import LOCK_NAME
from forensics.runlog.stores.mirror import Mirror
from forensics.runlog.stores.mirroring import RUN_FILES, of_the_web, the_object
from forensics.runlog.stores.store import Entry, open_store
from forensics.runlog.stores.uri import Uri


class SearchMirror(Mirror):
    """A mirror in which a recorded run is the file that makes it one, and nothing else.

    What is in a run is listed again when it is judged, maybe by another machine.

    Attributes:
        apart: the runs whose keys no tree of files can hold: an empty part, ``..``, a name too
            long, or one that is both an object's and a folder's.
        passed: URIs of what is called as logs are and has such a key.
    """

    apart: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    _parts: dict[str, list[Entry]]
    _names: list[str]

    def fill(self, entries: Iterable[Entry]) -> None:
        """Place what is listed, and remember what belongs to which run or log."""
        files = [entry for entry in entries if entry.size is not None]
        runs = {_folder(entry.name) for entry in files if _last(entry.name) in RUN_FILES}
        self._parts, shown = {}, []
        for entry in files:
            run = _run_of(entry.name, runs)
            self._parts.setdefault(entry.name if run is None else run, []).append(entry)
            mark = _last(entry.name) in RUN_FILES and _folder(entry.name) == run
            if run is None or mark:
                shown.append(entry)
        self._names = sorted(self._parts)
        left = self.place(shown)
        self.apart = tuple(dict.fromkeys(_folder(n) for n in left if _last(n) in RUN_FILES))
        logs = [n for n in left if _last(n) not in RUN_FILES and is_log_name(_last(n))]
        self.passed = tuple(map(self._base.below, logs))

    def uri_apart(self, name: str) -> str:
        """The URI of one of ``apart``."""
        return self._base.below(name)

    def fingerprint(self, path: Path | str) -> str:
        """A digest of names, sizes and times of change of a run's or log's objects.

        Args:
            path: of it here; or one of ``apart``.

        Returns:
            The digest. Empty where it holds for nothing: of a file on the web, or while a process
            holds the run.
        """
        if self._base.on_the_web:
            return ""
        name = path if isinstance(path, str) else path.relative_to(self.home).as_posix()
        digest = blake2b(digest_size=16)
        for entry in sorted(self._of(name), key=lambda entry: entry.name):
            if _last(entry.name) == LOCK_NAME:
                return ""
            line = f"{entry.name}\0{entry.size}\0{entry.mtime_ns}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _of(self, name: str) -> list[Entry]:
        """The entries of a run, a log, or of all logs in and below a folder."""
        if name in self._parts:
            return self._parts[name]
        names = self._names
        if name != ".":  # "0" is what comes after "/"
            names = names[bisect_left(names, f"{name}/") : bisect_left(names, f"{name}0")]
        return [entry for there in names for entry in self._parts[there]]


def search_mirror_of(text: str) -> SearchMirror:
    """The mirror of a folder in a store that may hold many runs, or of one log.

    Raises:
        StoreError: the store does not answer, or refuses.
        InputError: there is nothing of that name.
        MissingExtraError: an extra is needed that is not installed.
    """
    uri = Uri.parsed(text)
    if uri.on_the_web:
        return of_the_web(uri, SearchMirror)
    store, key = open_store(uri)
    try:
        entries = store.listed(key, recursive=True)
    except (FileNotFoundError, NotADirectoryError):
        entry = the_object(uri, store, key)
        mirror = SearchMirror(uri.parent, store, key.rpartition("/")[0])
        mirror.fill([entry])
        mirror.path = mirror.home / entry.name
        return mirror
    mirror = SearchMirror(uri, store, key)
    mirror.home.mkdir()
    mirror.fill(entries)
    return mirror


def _run_of(name: str, runs: Collection[str]) -> str | None:
    """The outermost folder of an object that is a run."""
    if "." in runs:
        return "."
    at = name.find("/")
    while at >= 0:
        if name[:at] in runs:
            return name[:at]
        at = name.find("/", at + 1)
    return None


def _folder(name: str) -> str:
    return name.rpartition("/")[0] or "."


def _last(name: str) -> str:
    return name.rpartition("/")[2]

"""A run or log in a store that somebody replaces by a longer one again and again."""

from __future__ import annotations

from dataclasses import replace

from forensics.errors import StoreError
from forensics.runlog.reading import Reading
from forensics.runlog.run import Run, load_run
from forensics.runlog.stores.mirroring import RUN_FILES
from forensics.runlog.stores.store import Entry, open_store
from forensics.runlog.stores.uri import Uri

_UNFINISHED = frozenset(("torn-gzip",))
_MOST = 2000


class GrowingPlace:
    """What ``GrowingLog`` is for a file of this machine.

    Objects are replaced whole, so a log is read whole whenever it has changed; a look costs one
    request.

    Args:
        uri: of a run, a log, or a folder with logs in it.
        reading: what the user says of it.

    Attributes:
        path: the URI.
        restarted: has the log become shorter since the last look?
        gone: was it there, and is no more?

    Raises:
        StoreError: the web tells no sizes, so nothing could be followed there.
        MissingExtraError: an extra is needed that is not installed.
    """

    def __init__(self, uri: str, reading: Reading) -> None:
        self.path = uri
        self.restarted = self.gone = False
        self._uri = Uri.parsed(uri)
        if self._uri.on_the_web:
            hint = "fetch it again and again, and watch the copy"
            raise StoreError("a file on the web cannot be followed", where=uri, hint=hint)
        self._store, self._key = open_store(self._uri)
        self._reading = reading
        self._seen: tuple[Entry, ...] = ()

    def is_there(self) -> bool:
        """Is there anything to read? Raises StoreError where the store does not say."""
        return bool(self._entries())

    def changed(self) -> bool:
        """Has anything been written since the last call?

        Where the store does not answer it may have been: ``load`` will say why it cannot be read.
        """
        try:
            now = self._entries()
        except StoreError:
            return True
        self.gone = bool(self._seen) and not now
        if not now or now == self._seen:
            return False
        before, self._seen = self._seen, now
        one = len(before) == len(now) == 1
        self.restarted = one and (now[0].size or 0) < (before[0].size or 0)
        return True

    @property
    def exists(self) -> bool:
        """Was there anything to read at the last look?"""
        return bool(self._seen)

    def load(self, *, ended: bool = False) -> Run:
        """The run as far as it is written; raises as ``load_run``.

        Args:
            ended: nobody writes any more.
        """
        run = load_run(self.path, self._reading)
        if ended:
            return run
        repairs = tuple(r for r in run.steps.repairs if r.kind not in _UNFINISHED)
        return replace(run, steps=replace(run.steps, repairs=repairs))

    def _entries(self) -> tuple[Entry, ...]:
        try:
            found = self._store.listed(self._key)
            if not any(entry.name in RUN_FILES for entry in found):
                found = self._store.listed(self._key, recursive=True)
        except (FileNotFoundError, NotADirectoryError):
            entry = self._store.find(self._key)
            found = [] if entry is None else [entry]
        files = sorted((e for e in found if e.size is not None), key=lambda entry: entry.name)
        return tuple(files[:_MOST])

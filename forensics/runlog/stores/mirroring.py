"""Which mirror stands for a URI: of a run, a log, metrics of MLflow, or a file on the web."""

from __future__ import annotations

from typing import TypeVar

from forensics.errors import InputError, StoreError
from forensics.runlog.lock import LOCK_NAME
from forensics.runlog.scanner import metric_files as metrics
from forensics.runlog.stores.mirror import Mirror, at_once, joined
from forensics.runlog.stores.refusals import DeniedError
from forensics.runlog.stores.store import Entry, Store, open_store
from forensics.runlog.stores.uri import Uri
from forensics.runlog.stores.web import NO_LENGTH, Progress, fetch

RUN_FILES = ("steps.csv", "steps.csv.gz", "run.json")
_OWN = frozenset((*RUN_FILES, "params"))
_PARTS = ("params", "activations", "checkpoints", "ranks")
_SMALL = ("run.json", "bisect.json", LOCK_NAME)
_LARGEST_SMALL = 64 << 20
_MOST_FOLDERS = 200
"""Folders below one without a run that are looked into for logs."""

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
    if metrics.FOLDER in key.split("/") and (folder := _metrics_above(uri, store, key)):
        return _of_metrics(uri, store, *folder)
    try:
        return _of_folder(uri, store, key, store.listed(key))
    except (FileNotFoundError, NotADirectoryError):
        entry = the_object(uri, store, key)
    except DeniedError as denied:
        return _unlisted(uri, store, key, denied)
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


def _unlisted(uri: Uri, store: Store, key: str, denied: DeniedError) -> Mirror:
    """A log by itself, where its folder may not be listed; else the refusal."""
    try:
        entry = store.find(key)
    except StoreError:
        entry = None
    if entry is None:
        raise denied
    mirror = Mirror(uri.parent, store, key.rpartition("/")[0])
    mirror.place([entry])
    mirror.path = mirror.home / entry.name
    if entry.name in RUN_FILES:
        mirror.notes = ("the run may not be listed: only this file of it was read",)
    return mirror


def _metrics_above(uri: Uri, store: Store, key: str) -> tuple[Uri, str] | None:
    """The folder of all metrics of an MLflow run that a place is in, or is; None where it is not.

    Whoever reads one of them reads those beside it, too.
    """
    while uri.name and uri.name != metrics.FOLDER:
        uri, key = uri.parent, key.rpartition("/")[0]
    mark = joined(key.rpartition("/")[0], metrics.MARK)
    return (uri, key) if uri.name and store.find(mark) is not None else None


def _of_metrics(uri: Uri, store: Store, folder: Uri, key: str) -> Mirror:
    mirror = Mirror(folder, store, key)
    mirror.home.mkdir()
    mirror.place(store.listed(key, recursive=True))
    (mirror.home.parent / metrics.MARK).touch()
    mirror.path = mirror.home / uri.key.removeprefix(folder.key).lstrip("/")
    if not mirror.path.exists():
        raise InputError("no such object or folder", where=uri.text)
    return mirror


def _of_folder(uri: Uri, store: Store, key: str, entries: list[Entry]) -> Mirror:
    mirror = Mirror(uri, store, key)
    mirror.home.mkdir()
    mirror.place(entries)
    names = {entry.name for entry in entries}
    folders = [entry.name for entry in entries if entry.size is None]
    of_mlflow = {metrics.MARK, metrics.FOLDER} <= names and names.isdisjoint(RUN_FILES)
    own = not of_mlflow and not _OWN.isdisjoint(names)
    inside = [name for name in folders if not own or name in _PARTS][:_MOST_FOLDERS]
    small = [entry.name for entry in entries if own and _is_small(entry)]

    def listed(folder: str, *, recursive: bool = False) -> tuple[str, list[Entry]]:
        try:
            return folder, store.listed(joined(key, folder), recursive=recursive)
        except (FileNotFoundError, NotADirectoryError):  # gone meanwhile
            return folder, []

    if of_mlflow:
        inside.remove(metrics.FOLDER)
    found = list(at_once(listed, inside))
    if of_mlflow:
        found.append(listed(metrics.FOLDER, recursive=True))
    if own and "superseded" in folders:
        found.append(listed("superseded", recursive=True))
    for folder, there in found:
        mirror.place(there, folder)
        if own:
            small += [f"{folder}/{entry.name}" for entry in there if _is_small(entry)]
    mirror.bring(small)
    return mirror


def _is_small(entry: Entry) -> bool:
    """Is it a file of our own that is read whole, by its name?"""
    known = entry.name in _SMALL or entry.name.endswith((".health.json", ".now"))
    return known and entry.size is not None and entry.size <= _LARGEST_SMALL

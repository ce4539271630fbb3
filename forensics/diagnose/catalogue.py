"""Rows of earlier scans in a Parquet file: a run that has not changed is not judged again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forensics
from forensics.diagnose.finding import Severity
from forensics.diagnose.survey import Choice, SurveyRow
from forensics.errors import InputError, OutputError, without_secrets
from forensics.runlog.atomic import replacing
from forensics.runlog.fingerprint import fingerprint
from forensics.runlog.stores.scheme import is_uri

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "path",
    "status",
    "severity",
    "root",
    "step",
    "wasted",
    "steps",
    "summary",
    "judged",
    "version",
    "settings",
    "fingerprint",
)
"""``path`` is absolute, or a URI; ``severity`` empty where there is no finding; ``judged`` UTC,
ISO 8601; ``settings`` a digest of rules and thresholds; ``fingerprint`` of the files, as they were
judged."""
_EVERY_S = 30.0
Entry = Mapping[str, Any]


class Catalogue:
    """The file, and what one scan adds to it. Runs that a scan does not meet stay in it.

    Args:
        path: the file; it may not exist yet.
        choice: the scan's rules and thresholds: a row that others gave is not taken.

    Raises:
        InputError: the file is there and is no catalogue.
        OutputError: its directory does not exist.
    """

    def __init__(self, path: Path, choice: Choice) -> None:
        if not path.absolute().parent.is_dir():  # said before an hour of judging, not after it
            hint = "make it, or choose another --catalogue"
            raise OutputError("its directory does not exist", where=path, hint=hint)
        if not os.access(path.absolute().parent, os.W_OK):
            raise OutputError(
                "its directory cannot be written", where=path, hint="choose another --catalogue"
            )
        self.path = path
        self._settings = _digest(choice)
        self._marks: dict[str, str] = {}
        self._new: dict[str, Entry] = {}
        self._old = _read(path)
        self._saved = time.monotonic()

    def known(
        self, paths: Iterable[str], marks: Mapping[str, str] | None = None
    ) -> list[SurveyRow]:
        """The rows of those runs that are as they were; fingerprints of all are taken now.

        Args:
            paths: the runs.
            marks: fingerprints of those in stores.
        """
        rows = []
        for path in paths:
            self._marks[path] = (marks or {}).get(path, "") if is_uri(path) else fingerprint(path)
            entry = self._old.get(_key(path))
            if entry is not None and self._holds(entry, self._marks[path]):
                rows.append(_row(entry, path))
        return rows

    def _holds(self, entry: Entry, mark: str) -> bool:
        row_of_now = (entry["version"], entry["settings"], entry["fingerprint"])
        # What could not be read may be readable now, though no file has changed.
        readable = entry["status"] != "unreadable"
        return bool(mark) and readable and row_of_now == (_version(), self._settings, mark)

    def add(self, row: SurveyRow) -> None:
        """Take a row that was judged now; every half minute all are saved."""
        self._new[_key(row.path)] = {
            "path": _key(row.path),
            "status": row.status,
            "severity": row.severity.name.lower() if row.severity is not None else "",
            "root": row.root,
            "step": row.step,
            "wasted": row.wasted,
            "steps": row.steps,
            "summary": _text(row.summary),
            "judged": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": _version(),
            "settings": self._settings,
            "fingerprint": self._marks.get(row.path, ""),
        }
        if time.monotonic() - self._saved > _EVERY_S:
            self._saved = time.monotonic()
            with suppress(OutputError):  # said at the end, if it still cannot be written then
                self.save()

    def save(self) -> None:
        """Replace the file whole, with what another scan has put into it meanwhile.

        Raises:
            OutputError: it cannot be written; the old one is as it was.
        """
        import pyarrow.parquet as pq

        try:
            with _alone(self.path):
                entries = {**_read(self.path), **self._new}
                table = _table([entries[key] for key in sorted(entries)])
                with replacing(self.path) as temporary:
                    pq.write_table(table, temporary)
            self._saved = time.monotonic()
        except OSError as error:
            hint = "choose another --catalogue"
            what = error.strerror or str(error)
            raise OutputError(what, where=self.path, hint=hint) from error


def _version() -> str:
    return str(forensics.__version__)


def _digest(choice: Choice) -> str:
    """What a verdict depends on besides the run and the program."""
    thresholds = {rule: dict(values) for rule, values in (choice.thresholds or {}).items()}
    said = [sorted(choice.select), sorted(choice.ignore), thresholds]
    return blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).hexdigest()


def _key(path: str) -> str:
    return _text(without_secrets(path) if is_uri(path) else os.path.realpath(path))


def _text(text: str) -> str:
    """As Parquet can hold it: names of files may be any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _row(entry: Entry, path: str) -> SurveyRow:
    severity = entry["severity"]
    return SurveyRow(
        path=path,
        status=entry["status"],
        severity=Severity[severity.upper()] if severity else None,
        root=entry["root"],
        step=entry["step"],
        wasted=entry["wasted"],
        steps=entry["steps"],
        summary=entry["summary"],
    )


def _schema() -> pa.Schema:
    import pyarrow as pa

    kinds = {"step": pa.int64(), "steps": pa.int64(), "wasted": pa.float64()}
    return pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])


def _table(entries: Sequence[Entry]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist(list(entries), schema=_schema())


def _read(path: Path) -> dict[str, Entry]:
    """The file's rows by path; none where there is no file.

    Raises:
        InputError: it is no catalogue.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    hint = "--catalogue takes a file that an earlier scan wrote, or a new name"
    if not os.path.lexists(path):
        return {}
    try:
        with pq.ParquetFile(path) as file:
            if not _is_catalogue(file.schema_arrow):
                raise InputError("is no catalogue of a scan", where=path, hint=hint)
            entries = file.read(columns=list(COLUMNS)).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError("cannot be read as Parquet", where=path, hint=hint) from error
    if not all(map(_is_row, entries)):
        raise InputError("has rows that no scan writes", where=path, hint=hint)
    return {entry["path"]: entry for entry in entries}


def _is_catalogue(schema: pa.Schema) -> bool:
    """Has it our columns, of our types? Further ones are lost at the next save."""
    return all(
        name in schema.names and schema.field(name).type == _schema().field(name).type
        for name in COLUMNS
    )


def _is_row(entry: Entry) -> bool:
    whole = all(value is not None for name, value in entry.items() if name != "step")
    return whole and (not entry["severity"] or entry["severity"].upper() in Severity.__members__)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two scans that end at once write one after the other, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(path.with_name(f".{path.name}.lock"), "a") as file:
        with suppress(OSError):  # some network drives have none
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

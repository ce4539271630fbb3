"""A history in one JSON document: Keras' ``History``, a pandas frame, what people's loops save.

Lists of numbers by name, or a list of records, at the top or under a name. Rows are numbered by the
steps or epochs among them; where neither is there they are counted, and are epochs where each has a
validation. Objects that follow each other, each over several lines, are records too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from forensics.errors import InputError
from forensics.runlog.importers.hf_records import hf_table
from forensics.runlog.importers.importer import LIKELY, POSSIBLE, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.documents import History, Record, history_in, salvaged
from forensics.runlog.scanner.epochs import by_epoch, refuse_settings
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.records import RecordRows, flat_objects, json_object
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.scanner.summaries import is_our_own
from forensics.runlog.steps import StepTable

_LARGEST = 16 << 20
"""Bytes up to which the document is parsed whole; of a larger one the records are read."""
_ENOUGH = 64 << 10
"""Bytes by which a larger document is judged."""
_LOOKED_AT = 20
_FEWEST = 2
_TRAINERS = frozenset(("loss", "learning_rate", "epoch", "step"))
_TOLD = POSSIBLE + 0.05


def _sniff(head: Head) -> Match | None:
    start = head.raw.lstrip()[:1]
    if start not in (b"{", b"[") or is_our_own(head) or _is_lines(head):
        return None
    history = _of_text(head.raw if head.complete else head.raw[:_ENOUGH])
    if history is None or len(history.records) < _FEWEST:
        return None
    if not history.known:
        return Match(0.05, "a JSON document with lists or records")
    known = ", ".join(sorted(history.known))
    sure = LIKELY if "loss" in history.known else _TOLD
    return Match(sure, f"a JSON document with lists or records of {known}")


def _is_lines(head: Head) -> bool:
    """Is it one object a line?"""
    found = [line for line in head.lines[:_LOOKED_AT] if json_object(line) is not None]
    return len(found) > 1 or (len(found) == 1 < len(head.lines) and found[0] == head.first_line)


def _read(source: LogSource, reading: Reading) -> StepTable:
    history = _history(source, tuple(reading.mapping.values()))
    if history is None:
        raise InputError(
            "holds no list of numbers and no list of records",
            where=source.path,
            hint="such as {'loss': […], 'val_loss': […]} or [{'step': 1, 'loss': 2.5}, …]",
        )
    if _are_trainers(history.records):
        return hf_table(json_history.name, history.records, source, reading)
    mapping = {**history.mapping, **reading.mapping}
    rows = RecordRows(source.log, replace(reading, mapping=mapping))
    rows.add_all(history.records)
    table = rows.table(json_history.name, LogFacts(notes=history.notes), source.path)
    refuse_settings(table, source.path)
    return by_epoch(table) if "step" not in reading.mapping else table


def _are_trainers(records: Sequence[Record]) -> bool:
    """Are they records of the Hugging Face Trainer, kept under a name of somebody's own?"""
    return any(record.keys() >= _TRAINERS for record in records)


def _history(source: LogSource, mapped: tuple[str, ...]) -> History | None:
    """What the document tells; a list of bare numbers is its loss."""
    try:
        text = source.whole(_LARGEST)
    except InputError:
        return History(list(_records(source)), {})
    document = _parsed(text)
    if document is None and not _follows(text):
        source.log.note("torn-document")
    if isinstance(document, list) and document and not isinstance(document[0], dict):
        return History([{"loss": number} for number in document], {})
    return _of(document, text, mapped)


def _of_text(text: bytes) -> History | None:
    return _of(_parsed(text), text)


def _of(document: Any, text: bytes, mapped: tuple[str, ...] = ()) -> History | None:
    """The history of a document, or of its text where it is none or is cut."""
    if document is not None:
        return history_in(document, mapped)
    return history_in([*flat_objects(text, b'"')], mapped) or salvaged(text, mapped)


def _records(source: LogSource) -> Iterator[Record]:
    for block in source.blocks(before=b"{"):
        yield from flat_objects(block, b'"')


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _follows(text: bytes) -> bool:
    """Does it begin with a whole object that another one follows?"""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Extra data")
    except (ValueError, RecursionError):
        pass
    return False


json_history = Importer(
    name="json-history",
    description="a history in one JSON document: Keras' History, lists or records by name",
    sniff=_sniff,
    read=_read,
    columns=True,
)

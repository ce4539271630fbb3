"""Lines of a program that end in a JSON object: ``12:03:05 INFO {"step": 10, "loss": 2.1}``.

Or in a dict as Python prints it: ``step 10: {'train/loss': 2.1, 'train/step': 10}``. What stands in
front of the object is passed over, but for a step that it lacks, and so are lines without one, and
objects that hold nothing of a training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.importers.importer import POSSIBLE, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epochs import by_epoch
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.names import canonical_name, name_columns
from forensics.runlog.scanner.records import RecordRows, flattened, json_object
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_STEP = re.compile(rb"(?i)\b(?:global[ _])?step[ \t:=]{1,3}(\d{1,12})\b[^\d]{0,20}$")
"""At the end of what stands in front of an object."""
_PYTHON = re.compile(rb"'([^'\"\\\n]*)'|\b(?:nan|inf|None|True|False)\b|np\.float\d\d\(([^()]*)\)")
_DOCUMENT = re.compile(rb"\s*(?:\{|\[\s*[\[{])")
"""A file that is JSON as a whole, and no line with a time in brackets."""
_AS_JSON = {b"nan": b"NaN", b"inf": b"Infinity", b"None": b"null"}
_LOOKED_AT = 5_000
_FEWEST = 3
"""Objects with a loss or norm and a step or epoch, from which on they are taken for the log."""
_DATED = frozenset(("step", "epoch"))
_TOLD = USABLE - {"lr"}


def _sniff(head: Head) -> Match | None:
    if _DOCUMENT.match(head.raw):
        return None
    found: list[str] = []
    records = 0
    for record in _objects(head.lines[:_LOOKED_AT]):
        known = set(name_columns(record).values())
        if _DATED.isdisjoint(known) or _TOLD.isdisjoint(known):
            continue
        records += 1
        found += sorted(known & USABLE)
    if records < _FEWEST:
        return None
    return Match(POSSIBLE, f"lines that end in JSON with {', '.join(dict.fromkeys(found))}")


def _objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects that lines end in, with what lies within them."""
    for line in lines:
        if not line.rstrip().endswith(b"}"):
            continue
        at = max(line.find(b'{"'), 0) or line.find(b"{'")
        if at > 0:
            text = line[at:] if line[at + 1 : at + 2] == b'"' else _PYTHON.sub(_as_json, line[at:])
            record = json_object(text)
            if record is not None:
                yield _dated(dict(flattened(record)), line[:at])


def _as_json(match: re.Match[bytes]) -> bytes:
    """A word of Python's as JSON has it."""
    if match.group(1) is not None:
        return b'"%b"' % match.group(1)
    if match.group(2) is not None:
        return match.group(2)
    word = match.group()
    return _AS_JSON.get(word, word.lower())


def _dated(record: dict[str, Any], before: bytes) -> dict[str, Any]:
    """A record with the step in front of it, where it tells none itself."""
    match = _STEP.search(before[-80:])
    if match is None or any(canonical_name(name) in _DATED for name in record):
        return record
    return {"step": int(match.group(1)), **record}


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = RecordRows(source.log, reading, size=source.size)
    wanted = set(reading.mapping.values())
    for block in source.blocks():
        for record in _objects(block.split(b"\n")):
            names = {canonical_name(name) for name in record}
            if not (USABLE.isdisjoint(names) and wanted.isdisjoint(record)):
                rows.add(record)
    table = rows.table(json_in_lines.name, LogFacts(), source.path)
    return by_epoch(table) if "step" not in reading.mapping else table


json_in_lines = Importer(
    name="json-in-lines",
    description="lines that end in a JSON object, or a Python dict, with keys of a training log",
    sniff=_sniff,
    read=_read,
    columns=True,
)

"""Lines of a program that end in a JSON object: ``12:03:05 INFO {"step": 10, "loss": 2.1}``.

What stands in front of the object is passed over, and so are lines without one, and objects that
hold nothing of a training.
"""

from __future__ import annotations

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

_LOOKED_AT = 5_000
_FEWEST = 3
"""Objects with a loss or norm and a step or epoch, from which on they are taken for the log."""
_DATED = frozenset(("step", "epoch"))
_TOLD = USABLE - {"lr"}


def _sniff(head: Head) -> Match | None:
    if head.raw.lstrip()[:1] in (b"[", b"{"):
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
        at = line.find(b'{"')
        if at > 0 and line.rstrip().endswith(b"}"):
            record = json_object(line[at:])
            if record is not None:
                yield dict(flattened(record))


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
    description="lines that end in a JSON object with keys of a training log",
    sniff=_sniff,
    read=_read,
    columns=True,
)

"""Tables of a console: a line of names, and lines of numbers below, as fastai and skorch print.

``epoch  train_loss  valid_loss  accuracy  time`` and ``0  2.345678  1.234567  0.500000  00:12``.
A name without a blank in it, as blanks part the columns; ``#na#`` and times are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.importers.importer import LIKELY, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epochs import by_epoch
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.records import RecordRows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_HEADER = re.compile(
    rb"(?i)[ \t]*(?:epoch|step|iter(?:ation)?)(?:[ \t]{2,20}[a-z][\w/%]{0,40}){1,30}[ \t]*"
)
_ROW = re.compile(rb"[ \t]*\d{1,12}(?:[ \t]{1,40}[-+#\w.:%]{1,30}){1,30}[ \t]*")
_NO_NUMBER = frozenset((b"#na#", b"None", b"-"))


class _Columns:
    """The names of the table that lines lie in, from its header to the next one."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()

    def records(self, block: bytes) -> Iterator[dict[str, str]]:
        """The rows of a block of whole lines."""
        for line in block.split(b"\n"):
            if _HEADER.fullmatch(line):
                self._names = tuple(line.decode("ascii", "replace").split())
            elif self._names and _ROW.fullmatch(line):
                cells = line.split()
                if len(cells) == len(self._names):
                    yield {
                        name: "" if cell in _NO_NUMBER else cell.decode("ascii", "replace")
                        for name, cell in zip(self._names, cells, strict=True)
                    }


def _sniff(head: Head) -> Match | None:
    record = next(_Columns().records(head.text), None)
    if record is None or USABLE.isdisjoint(name_columns(record).values()):
        return None
    return Match(LIKELY, "a table of a console: names, and numbers below")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows, columns = RecordRows(source.log, reading, size=source.size), _Columns()
    for block in source.blocks():
        for record in columns.records(block):
            rows.add(record)
    facts = LogFacts(meanings={"loss": Meaning.SMOOTHED})
    return by_epoch(rows.table(console_table.name, facts, source.path))


console_table = Importer(
    name="console-table",
    description="fastai and skorch: a console's table, a line of names and lines of numbers",
    sniff=_sniff,
    read=_read,
    columns=True,
)

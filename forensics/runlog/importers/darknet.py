"""Darknet's lines, ``12: 731.2, 745.9 avg loss, 0.001000 rate, 5.1 seconds, 768 images``.

The first number is the loss of the batch, the second a running average of it. Older versions say
``avg`` alone.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_NUMBER = NUMBER.replace(rb"[\d.,]", rb"[\d.]")
"""Without separators for thousands: a comma ends it here."""
_RECORD = re.compile(
    rb"(?m)^[ \t(]*(?P<step>\d{1,12}): (?P<loss>-?%b), -?%b (?:avg|avg loss), "
    rb"(?P<lr>%b) rate, " % ((_NUMBER,) * 3)
)


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as 12: 731.2, 745.9 avg loss, 0.001 rate")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        rows.match(_RECORD, block)
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.LAST, "lr": Meaning.LAST},
        unknown=("gradient norms", "the loss scale"),
    )
    return rows.table(darknet.name, facts, where=source.path)


darknet = Importer(
    name="darknet",
    description="Darknet (YOLO v2 to v4): lines with avg loss and rate",
    sniff=_sniff,
    read=_read,
)

"""Apex' overflow notes, in whatever else was printed around them."""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import LIKELY, Importer, Match
from forensics.runlog.importers.overflow_only import read_notes
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_NOTE = re.compile(rb"Gradient overflow\.  ?Skipping step,")


def _sniff(head: Head) -> Match | None:
    if not _NOTE.search(head.text):
        return None
    return Match(LIKELY, "Apex' notes of a gradient overflow")


def _read(source: LogSource, reading: Reading) -> StepTable:
    return read_notes(source, apex.name)


apex = Importer(
    name="apex",
    description="Apex: notes of skipped steps, dated by a progress bar where there is one",
    sniff=_sniff,
    read=_read,
)

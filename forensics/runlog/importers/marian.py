"""Marian's reports, ``Ep. 1 : Up. 500 : Sen. 61,392 : Cost 9.31 * 1,203,333 after 2,406,666 : …``.

The cost is a mean over the updates since the report before. Older versions print no word count
behind it; ``L.r.`` and ``gNorm`` are there where they were asked for.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.numbers import COUNT
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_COLUMNS = {"Cost": "loss", "L.r.": "lr", "gNorm": "grad_l2_pre_clip"}
_LAYOUT = Layout(
    start=rb"Ep\. (?P<epoch>\d{1,9})(?:[.:]\d{1,9})? : Up\. (?P<step>"
    + COUNT
    + rb") : (?=Sen\. [\d,]{1,20} : Cost )",
    gap=rb"(?: : )?",
    key=rb"[A-Z][a-z]{1,5}\.?|L\.r\.|gNorm",
    equals=rb" ",
    value=rb"[^:\n]*?(?: : [\d.,]{1,20} words/s|)(?= : |\n|$)",
    column=_COLUMNS.get,
    mark=b" : Up. ",
)
_RECORD = re.compile(_LAYOUT.start)


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as Ep. … : Up. … : Sen. … : Cost …")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    records = LabelledRecords(_LAYOUT, rows)
    for block in source.blocks():
        records.read(block)
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.MEAN, "lr": Meaning.LAST},
        unknown=("the loss scale",),
    )
    return rows.table(marian.name, facts, where=source.path)


marian = Importer(
    name="marian",
    description="Marian: Ep. … : Up. … : Cost … lines",
    sniff=_sniff,
    read=_read,
)

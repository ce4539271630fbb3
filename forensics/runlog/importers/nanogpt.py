"""Lines of nanoGPT: ``iter 10: loss 9.87, time 120.5ms, mfu -100.00%``, and its evaluations.

Iterations count from 0. ``mfu -100%`` means that it is not known yet.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import COUNT, NUMBER
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"\b(?:iter|step) (?P<step>"
    + COUNT
    + rb"): (?:train loss "
    + NUMBER
    + rb", val loss (?P<val_loss>"
    + NUMBER
    + rb")|loss (?P<loss>"
    + NUMBER
    + rb")(?:, lr (?P<lr>"
    + NUMBER
    + rb"))?)"
)


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as iter 10: loss 9.87")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        rows.match(_RECORD, block)
    facts = LogFacts(
        step_base=0,
        meanings={"loss": Meaning.LAST},
        unknown=("gradient norms", "the loss scale"),
    )
    return rows.table(nanogpt.name, facts, where=source.path)


nanogpt = Importer(name="nanogpt", description="nanoGPT: iter N: loss X", sniff=_sniff, read=_read)

"""Logs of modded-nanogpt: ``step:1/6000 train_loss:11.0091 train_time:24179ms step_avg:nanms``.

The whole source code stands before the first record, a file may hold several runs, and
``step_avg:nanms`` only means that nothing has been averaged yet.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import COUNT, NUMBER, count
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"\bstep:(?P<step>"
    + COUNT
    + rb")/\d+ (?:val_loss:(?P<val_loss>"
    + NUMBER
    + rb")|(?:train_)?loss:(?P<loss>"
    + NUMBER
    + rb"))"
)
_TOTAL = re.compile(rb"\bstep:\d+/(\d{1,15}) ")


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as step:1/6000 train_loss:11.0")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    total: bytes | None = None
    for block in source.blocks():
        rows.match(_RECORD, block)
        if total is None and (match := _TOTAL.search(block)):
            total = match.group(1)
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.LAST},
        planned_steps=count(total) if total else None,
        unknown=("gradient norms", "the learning rate"),
    )
    return rows.table(modded_nanogpt.name, facts, where=source.path)


modded_nanogpt = Importer(
    name="modded-nanogpt",
    description="modded-nanogpt: step:N/TOTAL train_loss:X",
    sniff=_sniff,
    read=_read,
)

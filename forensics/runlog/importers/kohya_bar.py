"""The progress bar of kohya's trainers: ``steps: 1%|… | 10/744 [00:30<36:53, avr_loss=0.12]``.

``avr_loss`` is a running average over the last epoch's steps: one NaN keeps it NaN for an epoch.
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
    rb"steps:[^\n|]{0,80}\|[^\n|]{0,1000}\|\s{0,80}(?P<step>"
    + COUNT
    + rb")/\d{1,15}\s{0,80}\[[^\n\]]{0,400}?\bav(?:e?r|g)_loss=(?P<loss>"
    + NUMBER
    + rb")"
)
_TOTAL = re.compile(rb"steps:[^\n|]{0,80}\|[^\n|]{0,1000}\|\s{0,80}\d+/(\d{1,15})\s*\[")


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "a progress bar of steps with avr_loss")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log)
    for block in source.blocks():
        rows.match(_RECORD, block)
    total = _TOTAL.search(source.head().text)
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.SMOOTHED},
        planned_steps=count(total.group(1)) if total else None,
        unknown=("gradient norms", "the loss of a single step", "the loss scale"),
    )
    return rows.table(kohya_bar.name, facts, where=source.path)


kohya_bar = Importer(
    name="kohya",
    description="kohya's trainers: progress bar with avr_loss",
    sniff=_sniff,
    read=_read,
)

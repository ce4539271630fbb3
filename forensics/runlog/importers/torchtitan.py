"""Console lines of torchtitan: ``step:  4  loss:  7.62585  grad_norm: 26.6250  memory: …``.

Every rank may write them. Steps count from 1, ``grad_norm`` is taken before clipping.
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
    rb"\bstep:\s*(?P<step>"
    + COUNT
    + rb"),?\s+loss:\s*(?P<loss>"
    + NUMBER
    + rb"),?(?:\s+grad_norm:\s*(?P<grad_l2_pre_clip>"
    + NUMBER
    + rb"))?(?:[^\n]{0,200}?\btps:\s*(?P<tokens_per_s>"
    + NUMBER
    + rb"))?"
)
_OURS = re.compile(rb"\bstep:[^\n]*\bloss:[^\n]*\b(?:memory|tps|mfu):")
_PLAIN = 0.7
"""Confidence in ``step: 4 loss: 7.6`` alone: others write that too, and mean the same."""


def _sniff(head: Head) -> Match | None:
    if _OURS.search(head.text):
        return Match(CERTAIN, "lines such as step: 4 loss: 7.6 grad_norm: 26.6 memory: …")
    if _RECORD.search(head.text):
        return Match(_PLAIN, "lines such as step: 4 loss: 7.6")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        rows.match(_RECORD, block)
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST},
        unknown=("the learning rate",),
    )
    return rows.table(torchtitan.name, facts, where=source.path)


torchtitan = Importer(
    name="torchtitan",
    description="torchtitan: console lines, and any of step: N loss: X",
    sniff=_sniff,
    read=_read,
)

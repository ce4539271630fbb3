"""Lines that list a step's numbers between bars: llm.c's console and its relatives.

``step    1/19560 | loss 11.009 (+nanz)| norm 15.37 (+nanz)| lr 8.57e-07 | 3056.36 ms``, or
``step     0 | loss: 10.95 | lr 8.39e-07 | norm: 15.4 | dt: 27651ms``. ``(+nanz)`` is a statistic
that is not known yet.
"""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import LIKELY, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import COUNT, NUMBER
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"\bstep\s+(?P<step>"
    + COUNT
    + rb")(?:/\d+)?\s*\|\s*(?:train )?loss:?\s+(?P<loss>"
    + NUMBER
    + rb")(?:(?=[^\n]{0,300}?\|\s*(?:grad )?norm:?\s+(?P<grad_l2_pre_clip>"
    + NUMBER
    + rb"))|)(?:(?=[^\n]{0,300}?\|\s*lr:?\s+(?P<lr>"
    + NUMBER
    + rb"))|)"
)


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(LIKELY, "lines such as step 1/100 | loss 11.0 | norm 15.4 | lr 8.6e-07")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        rows.match(_RECORD, block)
    facts = LogFacts(meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST})
    return rows.table(gpt2_lines.name, facts, where=source.path)


gpt2_lines = Importer(
    name="gpt2-lines",
    description="llm.c's console and relatives: step N | loss X | norm Y | lr Z",
    sniff=_sniff,
    read=_read,
)

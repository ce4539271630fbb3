"""nanoGPT's prints: ``iter 10: loss 4.2, time 12.3ms, mfu -100.00%`` and ``step 0: … val loss …``.

Steps are 0-based; a row is the last batch's loss. An mfu of -100 % says that it is not known yet.
"""

from __future__ import annotations

import re
from dataclasses import replace

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import COUNT, NUMBER
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_RECORD = re.compile(
    rb"(?:iter|step) (?<!\w.{5})(?P<step>%(count)b): "
    rb"(?:train loss (?P<estimate>%(number)b), val loss (?P<val_loss>%(number)b)"
    rb"|loss (?P<loss>%(number)b)(?:, lr (?P<lr>%(number)b)|)"
    rb"(?:, (?:grad_?|)norm (?P<grad_l2_pre_clip>%(number)b)|))"
    % {b"count": COUNT, b"number": NUMBER}
)
_MARK = re.compile(
    rb"\biter \d{1,12}: loss [^\n,]{1,30}, time |\bstep \d{1,12}: train loss [^\n,]{1,30}, val loss"
)


def _sniff(head: Head) -> Match | None:
    if not _MARK.search(head.text):
        return None
    return Match(CERTAIN, "lines such as iter …: loss …, time …, mfu …")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        rows.match(_RECORD, block)
    facts = LogFacts(
        step_base=0,
        meanings={"loss": Meaning.LAST},
        unknown=("gradient norms", "the loss scale"),
    )
    return _with_estimates(rows.table(nanogpt.name, facts, where=source.path))


def _with_estimates(table: StepTable) -> StepTable:
    """Without records of steps, the estimates at evaluations are the training's losses."""
    if table.has("loss") or not table.has("estimate"):
        return table
    columns = {"loss" if n == "estimate" else n: c for n, c in table.columns.items() if n != "loss"}
    note = "losses are estimates over many batches, made at each evaluation"
    facts = replace(table.facts or LogFacts(), notes=(note,), meanings={"loss": Meaning.MEAN})
    return replace(table, columns=columns, facts=facts)


nanogpt = Importer(
    name="nanogpt",
    description="nanoGPT: iter …: loss … lines",
    sniff=_sniff,
    read=_read,
)

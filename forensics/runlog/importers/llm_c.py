"""llm.c's ``main.log``: ``s:0 trl:11.0091 lr:0.000001 norm:15.37``, ``s:250 tel:…``, ``eval:…``."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import Column, StepTable

_RECORD = re.compile(
    rb"s:(?<!\ws:)(?P<step>\d{1,15})[ \t]+(?:trl:(?P<loss>%(number)b)(?:[ \t]+lr:(?P<lr>%(number)b"
    rb")|)(?:[ \t]+norm:(?P<grad_l2_pre_clip>%(number)b)|)|tel:(?P<val_loss>%(number)b))"
    % {b"number": NUMBER}
)


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as s:… trl:… lr:… norm:…")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    for block in source.blocks():
        rows.match(_RECORD, block)
    facts = LogFacts(
        step_base=0,
        meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST},
        unknown=("the loss scale",),
    )
    return _without_rounded_rates(rows.table(llm_c.name, facts, where=source.path))


def _without_rounded_rates(table: StepTable) -> StepTable:
    """The table without rates of 0.000000, which are rounded."""
    if "lr" not in table or not (table["lr"] == 0).any():
        return table
    rate = table["lr"] if table["lr"].flags.writeable else table["lr"].copy()
    there = table.present("lr") & (rate != 0)
    rate[~there] = np.nan  # in place: the table is nobody else's, and may be all of memory
    column = Column(rate, there)
    facts = replace(table.facts or LogFacts(), notes=("rates that print as 0.000000 left out",))
    return replace(table, columns={**table.columns, "lr": column}, facts=facts)


llm_c = Importer(name="llm-c", description="llm.c: main.log", sniff=_sniff, read=_read)

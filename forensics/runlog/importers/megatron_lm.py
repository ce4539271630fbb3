"""Megatron-LM's log: ``iteration 10/ 1000 | … | lm loss: … | loss scale: … | grad norm: … |``."""

from __future__ import annotations

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.importers.megatron_records import RECORD, read_megatron
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable


def _sniff(head: Head) -> Match | None:
    if not RECORD.search(head.text):
        return None
    return Match(CERTAIN - 0.005, "lines such as iteration …/ … | … | lm loss: … |")


def _read(source: LogSource, reading: Reading) -> StepTable:
    return read_megatron(source, megatron_lm.name, LogFacts())


megatron_lm = Importer(
    name="megatron-lm",
    description="Megatron-LM and GPT-NeoX: iteration records",
    sniff=_sniff,
    read=_read,
)

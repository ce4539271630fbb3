"""Megatron-DeepSpeed's log: Megatron's records, DeepSpeed's overflow notes between them."""

from __future__ import annotations

import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.importers.megatron_records import RECORD, read_megatron
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_DEEPSPEED = re.compile(
    rb"\[deepspeed\]|:log_dist\]|deepspeed_config|DeepSpeed info:|\| consumed tokens:|\| TFLOPs:"
    rb"|\| samples per second:|\| lm-loss:|\| loss scale: -1\.0 \|"
)


def _sniff(head: Head) -> Match | None:
    if not (RECORD.search(head.text) and _DEEPSPEED.search(head.text)):
        return None
    return Match(CERTAIN, "Megatron's iteration records beside DeepSpeed's lines")


def _read(source: LogSource, reading: Reading) -> StepTable:
    return read_megatron(source, megatron_deepspeed.name, LogFacts())


megatron_deepspeed = Importer(
    name="megatron-deepspeed",
    description="Megatron-DeepSpeed: iteration records and DeepSpeed's overflow notes",
    sniff=_sniff,
    read=_read,
)

"""``logging.jsonl`` of ms-swift: the Hugging Face Trainer's records, a JSON line each.

The step is the first half of ``"global_step/max_steps": "5/400"``, in evaluations too. Newer
versions print the same lines between others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forensics.runlog.importers.hf_records import hf_table
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.records import json_object
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

STEP_OF_MOST = "global_step/max_steps"
"""The key of the step and of how many there are to be."""
_NEEDLE = b'"global_step/max_steps"'
_LOOKED_AT = 2000
"""Lines of a head: what is printed before the first record."""
_TIMES = frozenset(("percentage", "elapsed_time", "remaining_time"))


def _sniff(head: Head) -> Match | None:
    if not any(_record(line) for line in head.lines[:_LOOKED_AT]):
        return None
    return Match(CERTAIN, f"JSON lines with {STEP_OF_MOST}")


def _read(source: LogSource, reading: Reading) -> StepTable:
    most: list[int] = []
    return hf_table(
        ms_swift.name,
        _records(source, most),
        source,
        reading,
        planned=lambda: most[-1] if most else None,
    )


def _records(source: LogSource, most: list[int]) -> Iterator[dict[str, Any]]:
    """The records with their step; what is planned is put into ``most``."""
    for block in source.blocks():
        for record in filter(None, map(_record, block.split(b"\n"))):
            done, planned = step_of_most(record.get(STEP_OF_MOST))
            if planned is not None:
                most[:] = [planned]
            bare = {k: v for k, v in record.items() if k != STEP_OF_MOST and k not in _TIMES}
            yield bare if done is None else {**bare, "step": done}


def _record(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None where it has none."""
    return json_object(line[line.find(b"{") :]) if _NEEDLE in line else None


def step_of_most(text: object) -> tuple[int | None, int | None]:
    """``5/400`` as its two numbers; None for each that is not there."""
    done, slash, planned = str(text).partition("/")
    if not slash or not done.strip().isdecimal() or len(done) > 18:
        return None, None
    known = planned.strip().isdecimal() and len(planned) <= 18
    return int(done), int(planned) if known and int(planned) > 0 else None


ms_swift = Importer(
    name="ms-swift",
    description="ms-swift: logging.jsonl",
    sniff=_sniff,
    read=_read,
    columns=True,
)

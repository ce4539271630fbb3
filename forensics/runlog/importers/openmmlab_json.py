"""JSON lines of mmcv 1.x (``.log.json``) and mmengine (``scalars.json``).

The first line of mmcv tells the environment and is no record; its ``iter`` restarts in every epoch,
whose length is not in the file and is taken to be the largest ``iter`` seen. mmengine numbers
training by iterations, and validation by epochs or iterations as it pleases: a validation belongs
to the record before it. Losses and gradient norms are means over the logging interval.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from forensics.runlog.importers.importer import CERTAIN, LIKELY, Importer, Match
from forensics.runlog.importers.openmmlab_text import MEANINGS
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.records import (
    RecordRows,
    json_lines,
    json_object,
    records_in,
    whole,
)
from forensics.runlog.scanner.rows import nothing_found
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_LOOKED_AT = 20
_MODE = b'"mode"'
_ITERATION = re.compile(
    rb'(?m)^\{"mode": ?"(train|val)", ?"epoch": ?\d{1,9}, ?"iter": ?(\d{1,15})[,}]'
)
_STEP = "(step)"
"""Key of the step that is found out for a record."""
_LEAVE_OUT = frozenset(("mode", "iter", "step", "seed", "eta"))


def _sniff(head: Head) -> Match | None:
    if not head.first_line.startswith(b"{"):
        return None
    records = [json_object(line) for line in head.lines[:_LOOKED_AT]]
    for record in records:
        if record is None:
            continue
        if record.get("mode") in ("train", "val") and {"iter", "epoch"} <= record.keys():
            return Match(CERTAIN, "JSON lines with mode, epoch and iter")
        if {"data_time", "time", "lr", "loss"} <= record.keys():
            return Match(LIKELY, "JSON lines with lr, loss, time and data_time")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    length = _epoch_length(source)
    by_step = replace(reading, mapping={**reading.mapping, "step": _STEP})
    rows = RecordRows(source.log, by_step, leave_out=_LEAVE_OUT, size=source.size)
    step = 0
    for records in json_lines(source):
        dated: list[dict[str, Any]] = []
        for record in records:
            if "loss" in record and record.get("mode", "train") == "train":
                step = _step(record, length) or step
                dated.append({**record, _STEP: step})
            elif step:
                others = {k: v for k, v in record.items() if k not in ("lr", "epoch")}
                dated.append({**others, _STEP: step})
        rows.add_all(dated)
    if not step:
        raise nothing_found(openmmlab_json.name, source.path)
    note = (f"an epoch is taken to have {length:,} iterations, the most seen in one",)
    facts = LogFacts(step_base=1, meanings=MEANINGS, notes=note if length else ())
    return rows.table(openmmlab_json.name, facts, source.path)


def _iterations(source: LogSource) -> Iterator[int]:
    """The iteration of each training record that tells its mode, in order."""
    for block in source.blocks():
        if _MODE not in block:
            continue
        plain = _ITERATION.findall(block)
        if len(plain) == block.count(_MODE):  # as mmcv writes them: no need to parse the rest
            yield from (int(digits) for mode, digits in plain if mode == b"train")
            continue
        for record in records_in(block, source.log):
            done = _count(record.get("iter")) if record.get("mode") == "train" else None
            if done is not None:
                yield done


def _epoch_length(source: LogSource) -> int:
    """The largest iteration of a training epoch, where iterations restart; else 0."""
    longest = last = 0
    restarts = False
    for done in _iterations(LogSource(source.paths)):
        restarts = restarts or done < last
        longest, last = max(longest, done), done
    return longest if restarts else 0


def _step(record: dict[str, Any], length: int) -> int | None:
    """The step of a training record: its own, or by its epoch."""
    own, done = _count(record.get("step")), _count(record.get("iter"))
    if own is not None or done is None:
        return own
    epoch = _count(record.get("epoch")) or 1
    return (epoch - 1) * length + done if length else done


def _count(cell: Any) -> int | None:
    return cell if type(cell) is int and abs(cell) < 2**63 else whole(cell)


openmmlab_json = Importer(
    name="openmmlab-json",
    description="mmcv 1.x and mmengine: JSON lines",
    sniff=_sniff,
    read=_read,
    columns=True,
)

"""``trainer_log.jsonl`` of LLaMA-Factory: one JSON line a record, ``current_steps`` from 1.

There is no gradient norm. Evaluation rows repeat the step, resumed and parallel processes append
to the same file, and a prediction run has no loss at all.
"""

from __future__ import annotations

from dataclasses import replace

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.lr_skips import with_lr_skips
from forensics.runlog.scanner.records import RecordRows, json_object, records_in, whole
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_LEAVE_OUT = frozenset(("total_steps", "percentage", "elapsed_time", "remaining_time"))


def _sniff(head: Head) -> Match | None:
    record = json_object(head.first_line)
    if record is None or "current_steps" not in record or "total_steps" not in record:
        return None
    return Match(CERTAIN, "JSON lines with current_steps and total_steps")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = RecordRows(source.log, reading, leave_out=_LEAVE_OUT, size=source.size)
    planned = None
    for block in source.blocks():
        if rows.add_columns(block):
            ours = [json_object(block.rstrip(b"\n").rpartition(b"\n")[2]) or {}]
        else:
            records = records_in(block, source.log)
            ours = [record for record in records if "current_steps" in record]
            rows.add_all(ours)
        planned = whole(ours[-1].get("total_steps")) if ours else planned
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.MEAN, "lr": Meaning.LAST},
        planned_steps=planned,
        unknown=("gradient norms", "the loss scale"),
    )
    if not rows.tells:
        facts = replace(facts, unknown=("any loss: it is of a prediction, not of a training",))
    table = rows.table(llama_factory.name, facts, source.path, must_tell=False)
    table, rate = with_lr_skips(table, planned=planned)
    return replace(table, facts=replace(facts, notes=(rate,) if rate else ()))


llama_factory = Importer(
    name="llama-factory",
    description="LLaMA-Factory: trainer_log.jsonl",
    sniff=_sniff,
    read=_read,
    columns=True,
)

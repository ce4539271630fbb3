"""What the records of the Hugging Face Trainer mean, in whichever file they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.lr_skips import with_lr_skips
from forensics.runlog.scanner.masked import restore_filtered_nan
from forensics.runlog.scanner.records import RecordRows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

SUMMARY = frozenset(("train_runtime", "train_loss", "total_flos"))
"""Keys of the record that ends a run: means over all of it, no step of it."""
_COSTS = frozenset(
    f"{part}_{what}"
    for part in ("eval", "train")
    for what in ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")
)
MEANINGS = {
    "loss": Meaning.MEAN,
    "grad_l2_pre_clip": Meaning.LAST,
    "lr": Meaning.LAST,
}


def hf_table(
    name: str,
    records: Iterable[Mapping[str, Any]],
    source: LogSource,
    reading: Reading,
    *,
    planned: Callable[[], int | None] = lambda: None,
    may_lag: bool | None = None,
    steps_known: bool = True,
) -> StepTable:
    """The table of the Trainer's records.

    Args:
        name: of the importer.
        records: in the order they were written.
        source: where they come from.
        reading: what the user maps.
        planned: gives the steps that the run was to have, once all records are read.
        may_lag: can the rate be one step behind (transformers from 4.51.3 on)? None: unknown.
        steps_known: False where records were counted because none of them bears a step.
    """
    rows = RecordRows(source.log, reading, leave_out=SUMMARY | _COSTS)
    with_norm = False
    for record in records:
        if "train_runtime" not in record and "train_loss" not in record:
            with_norm = with_norm or "grad_norm" in record
            rows.add(record)
    facts = LogFacts(
        step_base=1, meanings=MEANINGS, planned_steps=planned(), unknown=("the loss scale",)
    )
    table = rows.table(name, facts, source.path)
    table, restored = restore_filtered_nan(table)
    rate = ""
    if steps_known and "skipped_steps" not in table:  # else overflow notes tell them
        lags = may_lag if may_lag is None or with_norm else False
        table, rate = with_lr_skips(table, planned=planned(), may_lag=lags)
    notes = tuple(note for note in (restored, rate) if note)
    return replace(table, facts=replace(facts, notes=notes))

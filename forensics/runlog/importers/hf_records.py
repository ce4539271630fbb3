"""What the records of the Hugging Face Trainer mean, in whichever file they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
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
BESIDE = SUMMARY | _COSTS
"""Keys of records that are no column of training or validation."""
_BATCH = 4096
"""Records that are taken together."""
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
    rows = RecordRows(source.log, reading, leave_out=BESIDE)
    with_norm = False
    ours = (r for r in records if "train_runtime" not in r and "train_loss" not in r)
    while batch := list(islice(ours, _BATCH)):
        with_norm = with_norm or any("grad_norm" in record for record in batch)
        rows.add_all(batch)
    table = rows.table(name, facts_of(planned()), source.path)
    if not steps_known:
        return _restored(table)
    return told(table, planned(), may_lag=may_lag, with_norm=with_norm)


def facts_of(planned: int | None) -> LogFacts:
    """What is known of all records of the Trainer, and how many steps this run was to have."""
    return LogFacts(
        step_base=1,
        meanings=MEANINGS,
        loss_filtered=True,
        planned_steps=planned,
        unknown=("the loss scale",),
    )


def told(
    table: StepTable, planned: int | None, *, may_lag: bool | None, with_norm: bool
) -> StepTable:
    """The table with what its values tell beyond themselves: filtered NaN, skipped steps.

    Args:
        table: of the Trainer's records.
        planned: steps that the run was to have, where known.
        may_lag: as for ``hf_table``.
        with_norm: are there gradient norms? Versions without do not lag.
    """
    table = _restored(table)
    if "skipped_steps" in table:  # overflow notes tell them
        return table
    lags = may_lag if may_lag is None or with_norm else False
    table, rate = with_lr_skips(table, planned=planned, may_lag=lags)
    return _noted(table, rate)


def _restored(table: StepTable) -> StepTable:
    return _noted(*restore_filtered_nan(table))


def _noted(table: StepTable, note: str) -> StepTable:
    facts = table.facts or LogFacts()
    return replace(table, facts=replace(facts, notes=(*facts.notes, note))) if note else table

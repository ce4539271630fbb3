"""``trainer_state.json`` of the Hugging Face Trainer: ``log_history``, or a list of such records.

``step`` counts attempted steps from 1. ``loss`` is the mean since the record before; ``grad_norm``
is taken before clipping, of the last step alone; the loss scale is never there. Steps that fp16
skipped show only in the learning rate (``scanner.lr_skips``). A loss of 0.0 beside a NaN gradient
norm is a filtered NaN.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from forensics.errors import InputError
from forensics.runlog.importers.hf_records import hf_table
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.records import flat_objects
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_LARGEST = 16 << 20
"""Bytes up to which the document is parsed whole; a larger one is read record by record."""
_RECORD = re.compile(rb'\{[^{}]*"(?:loss|eval_loss|grad_norm)"\s*:[^{}]*\}')
_STEP = re.compile(rb'"step"\s*:')
_OURS = re.compile(
    rb'"(?:learning_rate|eval_runtime)"\s*:[^{}]*"epoch"|"epoch"\s*:[^{}]*"learning_rate"'
)
"""What its records hold beside a loss and a step, in either order: older states do not sort."""
_MAX_STEPS = re.compile(rb'"max_steps"\s*:\s*(\d+)')
_NEWER = b'"best_global_step"'
"""A key of the state since transformers 4.50, one minor version before the rate's lag."""


def _sniff(head: Head) -> Match | None:
    start = head.text.lstrip()[:1]
    if start not in (b"{", b"["):
        return None
    if b'"log_history"' in head.text:
        return Match(CERTAIN, "a JSON document with log_history")
    record = _RECORD.search(head.text)
    if start == b"[" and record is not None and _STEP.search(record.group()):
        if _OURS.search(head.text):
            return Match(0.9, "a JSON list of records with step, loss and learning_rate")
        return None
    if record is not None and b'"best_model_checkpoint"' in head.text:
        return Match(0.95, "the state of a trainer with its records")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    state, records = _state(source)

    def planned() -> int | None:
        steps = state.get("max_steps")
        return steps if isinstance(steps, int) and steps > 0 else None

    return hf_table(
        hf_trainer_state.name,
        records,
        source,
        reading,
        planned=planned,
        may_lag="best_global_step" in state if state else None,
    )


def _state(source: LogSource) -> tuple[dict[str, Any], Iterable[Mapping[str, Any]]]:
    """The document without its records, and its records; of a damaged one what is whole.

    Of a large document what is beside the records is known once they are read.
    """
    document = _parsed(source) if len(source.paths) == 1 else None
    if isinstance(document, dict) and isinstance(document.get("log_history"), list):
        history = [record for record in document["log_history"] if isinstance(record, dict)]
        if not history:
            raise InputError(
                "has an empty log_history: nothing was logged before this state was saved",
                where=source.path,
                hint="a later checkpoint's state has it, or the job's output; logging_steps says "
                "how often the trainer logs",
            )
        return {k: v for k, v in document.items() if k != "log_history"}, history
    if isinstance(document, list):
        return {}, [record for record in document if isinstance(record, dict)]
    state: dict[str, Any] = {"best_global_step": None} if _NEWER in source.head().text else {}
    return state, _streamed(source, state)


def _streamed(source: LogSource, state: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    for block in source.blocks(before=b"{"):
        if planned := _MAX_STEPS.search(block):
            state["max_steps"] = int(planned.group(1))
        yield from flat_objects(block, b'"step"')


def _parsed(source: LogSource) -> Any:
    """The whole document, or None where it is too large, cut or damaged."""
    try:
        return json.loads(source.whole(_LARGEST))
    except InputError:
        return None
    except (ValueError, RecursionError):
        source.log.note("torn-document")
        return None


hf_trainer_state = Importer(
    name="hf-trainer-state",
    description="Hugging Face Trainer: trainer_state.json",
    sniff=_sniff,
    read=_read,
    columns=True,
)

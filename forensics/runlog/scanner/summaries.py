"""JSON that is about a run and is no log of it: its last values, a configuration, bare numbers."""

from __future__ import annotations

import json
import re
from typing import Any

from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.records import flattened, json_object, value

_CLOSING = (
    "train_runtime",
    "eval_runtime",
    "test_runtime",
    "predict_runtime",
    "total_flos",
    "_wandb",
)
"""Keys of what trainers write once, when all is over."""
_OUR_OWN = re.compile(rb'\s*\{\s*"format_version": *\d+,\s*"(kind|tool)": *"forensics')
"""How a capsule's facts (``kind``) and what ``--format json`` prints (``tool``) begin."""
_FEW = 4
"""Numbers that are no series yet."""


def is_our_own(head: Head) -> bool:
    """Did this program write it about a run? It quotes rows of the run, and is no log of one."""
    return _OUR_OWN.match(head.raw) is not None


def is_summary(head: Head) -> bool:
    """Is the whole file one object of single values that no training step can be dated by?

    One that has a step or epoch and a loss is the first line of a log that goes on.
    """
    if not head.complete or not head.raw.lstrip().startswith(b"{"):
        return False
    record = json_object(head.raw)
    if record is None:
        return False
    flat = flattened(record)
    if any(isinstance(cell, list) and cell for cell in flat.values()):
        return False
    numbers = [name for name, cell in flat.items() if value(cell) is not None]
    known = set(name_columns(numbers).values())
    dated = not known.isdisjoint(("step", "epoch")) and not known.isdisjoint(USABLE - {"lr"})
    return not dated or any(name in record for name in _CLOSING)


def what_it_is(head: Head) -> tuple[str, str] | None:
    """What a JSON file is that is no log, and what to do; None for any other file."""
    if (own := _OUR_OWN.match(head.raw)) is not None:
        if own[1] == b"kind":
            return (
                "belongs to a capsule, which is no run",
                "`forensics capsule run` takes its folder",
            )
        return "is what forensics said of runs, not the log of one", "name the run itself"
    if not head.complete or not head.raw.lstrip().startswith((b"[", b"{")):
        return None
    document = _parsed(head.raw)
    empty = document == [] or (isinstance(document, dict) and [] in document.values())
    if empty:
        return (
            "is JSON with an empty list: nothing was logged before it was written",
            "a run that went on has a fuller one; the job's output may tell why this one did not",
        )
    if is_summary(head):
        return (
            "is one JSON object of single values, the summary of a run or a configuration, "
            "not the log of one",
            "the values step by step are in another file: trainer_state.json, trainer_log.jsonl, "
            "an exported history",
        )
    if isinstance(document, list) and len(document) > _FEW and all(map(_is_bare, document)):
        return (
            "is a list of numbers without a name",
            "--format-in json-history reads it as the losses, one after the other",
        )
    return None


def _is_bare(item: Any) -> bool:
    return not isinstance(item, list | dict) and value(item) is not None


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

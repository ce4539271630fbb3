"""TensorBoard event files, by the ``tensorboard`` package's own reader (an extra).

Scalars by tag, each with its step; values are float32. A run may have several files, one a
restart; what a restart writes anew replaces what the file before had from that step on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forensics.errors import InputError, MissingExtraError
from forensics.runlog.csv_reader.spans import on_disk
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.lr_skips import with_lr_skips
from forensics.runlog.scanner.masked import restore_filtered_nan
from forensics.runlog.scanner.records import RecordRows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_VERSION = b"brain.Event:"
_HF_TAGS = frozenset(("train/loss", "train/learning_rate", "train/epoch"))
_SUMMARY = re.compile(r"train/(?:train_|total_flos)")
"""Tags of the record that ends a run of the Hugging Face Trainer: means over all of it."""

Scalar = tuple[int, str, float]
"""Step, tag and value."""


def _sniff(head: Head) -> Match | None:
    if _VERSION in head.raw[:256]:
        return Match(CERTAIN, "the version record of an event file")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = RecordRows(source.log, reading)
    tags: set[str] = set()
    for segment in _segments(source.paths):
        by_step: dict[int, dict[str, float]] = {}
        for step, tag, value in segment:
            by_step.setdefault(step, {})[tag] = value
            tags.add(tag)
        for step in sorted(by_step):
            rows.add(by_step[step], step)
    ours = tags >= _HF_TAGS
    facts = LogFacts(
        step_base=1 if ours else None,
        loss_filtered=ours,
        notes=("values are rounded to float32",),
    )
    table = rows.table(tensorboard_events.name, facts, source.path)
    if not ours:
        return table
    table, masked = restore_filtered_nan(table)
    table, rate = with_lr_skips(table)
    return replace(table, facts=replace(facts, notes=(*facts.notes, *filter(None, [masked, rate]))))


def _segments(paths: Sequence[Path]) -> Iterator[list[Scalar]]:
    """The scalars up to each restart: where a tag goes back, a new stretch begins."""
    segment: list[Scalar] = []
    last: dict[str, int] = {}
    for path in paths:
        for step, tag, value in _scalars(path):
            if step < last.get(tag, step):
                yield segment
                segment, last = [], {}
            last[tag] = step
            segment.append((step, tag, value))
    yield segment


def _scalars(path: Path) -> Iterator[Scalar]:
    for event in _events(path):
        for entry in event.summary.value:
            value = _scalar(entry)
            if value is not None and not _SUMMARY.match(entry.tag):
                yield int(event.step), str(entry.tag), value


def _scalar(entry: Any) -> float | None:
    """A scalar as TensorFlow 1 and PyTorch write it, or as TensorFlow 2 does; else None."""
    if entry.HasField("simple_value"):
        return float(entry.simple_value)
    if not entry.HasField("tensor") or entry.tensor.tensor_shape.dim:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        return float(make_ndarray(entry.tensor))
    except (TypeError, ValueError):  # a text, or a type that is no number
        return None


def _events(path: Path) -> Iterator[Any]:
    """The events of a file, as far as it is whole."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise MissingExtraError(
            "reading event files needs the tensorboard package",
            where=path,
            hint="pip install tensorboard",
        ) from error
    from google.protobuf.message import DecodeError

    try:
        yield from LegacyEventFileLoader(str(on_disk(path))).Load()
    except (DecodeError, OSError, ValueError) as error:
        raise InputError(f"is no whole event file ({error})", where=path) from error


tensorboard_events = Importer(
    name="tensorboard",
    description="TensorBoard event files (needs the tensorboard extra)",
    sniff=_sniff,
    read=_read,
    columns=True,
    binary=True,
)

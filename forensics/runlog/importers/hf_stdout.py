r"""What the Hugging Face Trainer prints: ``{'loss': 0.3, 'grad_norm': nan, 'epoch': 1.7}``.

The records bear no step. It is taken from the progress bars around the record, whose redraws the
terminal's ``\\r`` joins into one line; without bars records are counted, by the logging interval
where the log gives it. Newer versions print all values as strings.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from forensics.runlog.importers.hf_bar_steps import Found, dated
from forensics.runlog.importers.hf_records import hf_table
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.near import matches_near
from forensics.runlog.scanner.numbers import COUNT, count, number
from forensics.runlog.scanner.overflow_notes import NEEDLES, NOTE, OverflowNotes
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_TRAINING = re.compile(rb"\{'(?:loss|grad_norm|learning_rate)': [^{}]{1,4000}\}")
_EVALUATION = re.compile(rb"\{'eval_[\w/]+': [^{}]{1,4000}\}")
_RECORD = re.compile(rb"\{'\w[^{}]{1,4000}\}")
_BAR = re.compile(rb"(" + COUNT + rb")/(" + COUNT + rb")\s*\[\d+:")
_PAIR = re.compile(rb"'([^']+)':\s*(?:'([^']*)'|([^,{}]+))")
_INTERVAL = re.compile(rb"[\"']?logging_steps[\"']?\s*[=:]\s*(\d+)")
_KEYS = frozenset(("loss", "grad_norm", "learning_rate", "epoch"))
_NOTES = re.compile(NOTE)
_OWN = re.compile(rb"'global_step/max_steps': '(\d{1,18})/(\d{1,18})'")
"""The step of a record that bears one, as ms-swift's do, and how many there are to be."""
_LOOKED_AT = 500
"""Records by which it is judged whether there are bars, and how far apart records are."""


def _sniff(head: Head) -> Match | None:
    if _TRAINING.search(head.text):
        return Match(CERTAIN - 0.01, "lines such as {'loss': …, 'learning_rate': …, 'epoch': …}")
    if _EVALUATION.search(head.text):
        return Match(0.7, "lines such as {'eval_loss': …}")
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    bars = _Bars()
    records = _records(source, bars)
    first = list(islice(records, _LOOKED_AT))
    match = _INTERVAL.search(source.head().text)
    interval = int(match.group(1)) if match else 0
    with_bars = bool(first) and first[-1].done is not None
    if with_bars:
        steps = dated(chain(first, records), first, interval)
    else:
        source.log.note("missing-step-column", detail="no progress bar around the records")
        steps = _counted(chain(first, records), interval or 1)
    return hf_table(
        hf_stdout.name,
        steps,
        source,
        reading,
        planned=lambda: bars.total or None,
        steps_known=with_bars,
    )


def _records(source: LogSource, bars: _Bars) -> Iterator[Found]:
    """The records, each between the states of the training's bar before and after it."""
    before: tuple[int | None, dict[str, Any]] | None = None
    for done, record in _over_bars(source, bars):
        if before is not None:
            yield Found(before[0], bars.after, before[1])
        bars.after = None
        before = done, record
    if before is not None:
        yield Found(before[0], bars.after, before[1])


def _over_bars(source: LogSource, bars: _Bars) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """The records, each with the last state of the training's bar before it.

    Overflow notes of DeepSpeed or Apex between them belong to the record of training that follows.
    """
    notes = OverflowNotes()
    last: int | None = None
    for block in source.blocks():
        at = 0
        waiting = deque(matches_near(_NOTES, block, NEEDLES))
        for match in _RECORD.finditer(block):
            record = _parsed(match.group())
            if record is not None:
                bars.see(block[at : match.start()], training="loss" in record)
                if (own := _OWN.search(match.group())) is not None:
                    record["step"] = bars.done = int(own.group(1))
                    bars.total = int(own.group(2))
                    record.pop("global_step/max_steps", None)
                at = match.end()
                while waiting and waiting[0].start() < match.start():
                    notes.take(waiting.popleft())
                if "loss" in record:
                    record.update(notes.cells())
                    last = bars.done
                yield bars.done, record
        for note in waiting:
            notes.take(note)
        bars.see(block[at:], training=False)
    if notes.count:
        # No record follows: the last of them is in the step after the bar's.
        yield last and max(bars.done or 0, last + notes.count), notes.cells()


class _Bars:
    """The training's progress bar among those of evaluations.

    It is the one over which the first record of training was printed: an evaluation's bar has
    another total, and may well be the longer one.

    Attributes:
        done: steps done as last seen; None before the first bar.
        total: the steps that the bar counts to.
        after: steps done as first seen after the last record; None until then.
    """

    def __init__(self) -> None:
        self.done: int | None = None
        self.total = 0
        self.after: int | None = None

    def see(self, text: bytes, *, training: bool) -> None:
        """Look through the text up to a record; ``training``: one that the bar is known by."""
        if self.total:
            mark = b"/%d [" % self.total
            if self.after is None:
                self.after = _done(text, text.find(mark), 0)
            done = _done(text, text.rfind(mark), -1)
            if done is not None:
                self.done = done
                return
        if training:
            found = _BAR.findall(text)
            if found:
                self.done, self.total = count(found[-1][0]), count(found[-1][1])


def _done(text: bytes, at: int, which: int) -> int | None:
    """Steps done by the first or last of the bars about a place; None where there is none."""
    if at < 0:
        return None
    digits = text[max(at - 20, 0) : at].rpartition(b" ")[2]
    if digits.isdigit():  # as nearly all are, and cheaper than the pattern
        return int(digits)
    bars = _BAR.findall(text[max(at - 20, 0) : at + 64])
    return count(bars[which][0]) if bars else None


def _parsed(text: bytes) -> dict[str, Any] | None:
    """A printed dict; None where it is not one of the trainer's."""
    record: dict[str, Any] = {}
    for key, quoted, bare in _PAIR.findall(text):
        try:
            value: float | None = float(quoted or bare)
        except ValueError:
            value = number(quoted or bare)
        if value is not None:
            record[key.decode("utf-8", "replace")] = value
    ours = not _KEYS.isdisjoint(record) or any(key.startswith("eval_") for key in record)
    return record if ours else None


def _counted(found: Iterable[Found], interval: int) -> Iterator[Mapping[str, Any]]:
    """The records with steps by their number; an evaluation belongs to the record before it."""
    step = 0
    for _, _, record in found:
        step += interval * ("loss" in record or "skipped_steps" in record)
        yield {**record, "step": step}


hf_stdout = Importer(
    name="hf-stdout",
    description="Hugging Face Trainer: printed records between progress bars",
    sniff=_sniff,
    read=_read,
    columns=True,
)

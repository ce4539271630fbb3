"""fairseq's logs: the simple and the tqdm text, JSON, and the bars of 2019.

Values are means over the interval, as text. ``num_updates`` stands still on an overflow, which has
a line of its own, so that the skipped attempts of a row come on top of its steps. A loss scale has
four decimals, or three in 2019: one that has collapsed prints as 0. It may well be below 1, as the
loss is a sum over tokens; the run ends below ``--min-loss-scale``.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning, ScalerHints
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import LONG_HEAD, Head
from forensics.runlog.scanner.interleaved import Dated, Interleaved
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.numbers import NUMBER, count, number
from forensics.runlog.scanner.rounded import restore_rounded_scale
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import Column, StepTable

_ROUNDED = {3: 2.0**-11, 4: 2.0**-15}
"""The largest power of two that prints as 0, by the decimals: of 2^-10 there is 0.001 left."""
_DECIMALS = re.compile(rb"\bloss_scale(?:=|\"?:? ?\"?)\d{1,9}\.(\d{3,4})\b")
_FLOOR = re.compile(rb"'?min_loss_scale'?[:=] ?(\d[\d.e-]{0,12})")
_USUAL_FLOOR = 1e-4
_COLUMNS = {
    "loss": "loss",
    "lr": "lr",
    "gnorm": "grad_l2_pre_clip",
    "loss_scale": "scaler_scale",
    "train_loss": "loss",
    "train_lr": "lr",
    "train_gnorm": "grad_l2_pre_clip",
    "train_loss_scale": "scaler_scale",
}


def _column(name: str) -> str | None:
    return _COLUMNS.get(name.strip('"'))


_INNER = rb"epoch (?<!\wepoch )(?P<epoch>\d{1,9}):[^\n=]{1,200}[ \t](?=[\w.]{1,40}=)"
_TEXT = Layout(
    start=_INNER + rb"(?=[^\n]{0,4000}\bnum_updates=(?P<step>\d{1,15}))",
    gap=rb",?[ \t]*",
    key=rb"[A-Za-z_][\w.]*",
    equals=rb"=",
    value=rb"[^,\s]*",
    column=_column,
    mark=b"num_updates=",
)
_LOGGER = rb"(?: \| |\]\[INFO\] - )"
"""After the logger's name: fairseq's own form, and Hydra's."""
_OBJECT = Layout(
    start=rb"train_inner(?<!\wtrain_inner)"
    + _LOGGER
    + rb'\{(?=[^\n]{0,4000}"num_updates": "?(?P<step>\d{1,15}))',
    gap=rb",?[ \t]*",
    key=rb'"[A-Za-z_][\w.]*"',
    equals=rb':[ \t]*"?',
    value=rb"[^,}\n]*",
    column=_column,
    mark=b'num_updates"',
)
_EPOCH_OBJECT = replace(
    _OBJECT,
    start=rb"train(?<!\wtrain)"
    + _LOGGER
    + rb'\{(?=[^\n]{0,4000}"train_num_updates": "?(?P<step>\d{1,15}))',
)
_EPOCH = Layout(
    start=rb"epoch (?<!\wepoch )(?P<epoch>\d{1,9})(?=[ \t]*\|[ \t]*loss )"
    rb"(?=[^\n]{0,4000}\bnum_updates (?P<step>\d{1,15}))",
    gap=rb"[ \t]*\|[ \t]*",
    key=rb"[A-Za-z_][\w.]*",
    equals=rb"[ \t]+",
    value=rb"[^|\n]*",
    column=_column,
    mark=b"num_updates ",
)
_LAYOUTS = (_TEXT, _OBJECT, _EPOCH, _EPOCH_OBJECT)
"""In this order: summaries of epochs are read only where nothing else is logged."""
_NOTE = rb"overflow detected,(?: ignoring gradient,)? setting loss scale to: (?P<now>" + (
    NUMBER + rb")"
)
_VALID = (
    rb"valid on '[^'\n]{0,200}' subset[^\n=]{0,40}\|[^\n]{0,2000}?\b(?:valid_)?loss (?P<text_loss>"
    + (NUMBER + rb")[^\n]{0,2000}?\bnum_updates (?P<text_at>\d{1,15})")
)
_VALID_OBJECT = (
    rb'"valid\w*_loss": "?(?P<json_loss>' + NUMBER + rb')"?[^\n]{0,2000}?"valid\w*_num_updates": "?'
    rb"(?P<json_at>\d{1,15})"
)
_BETWEEN = re.compile(rb"|".join((_NOTE, _VALID, _VALID_OBJECT)))
_NEEDLES = (b"overflow detected", b"valid on '", b'"valid')
_NOTED = re.compile(_NOTE)
_CLIP = re.compile(rb"clip_norm'?[:=] ?(\d{1,9}(?:\.\d{1,9})?)")


def _layout_of(text: bytes) -> Layout | None:
    for layout in _LAYOUTS:
        if re.search(layout.start, text):
            return layout
    return None


def _sniff(head: Head) -> Match | None:
    layout = _layout_of(head.text)
    if layout is None:
        if not _NOTED.search(head.text):
            return None
        return Match(CERTAIN - 0.05, "fairseq's overflow notes")
    return Match(CERTAIN, "fairseq's records with num_updates")


def _read(source: LogSource, reading: Reading) -> StepTable:
    head = source.head(LONG_HEAD).text
    rows = Rows(source.log, size=source.size)
    records = LabelledRecords(_layout_of(head) or _TEXT, rows)
    between = _Between(rows)
    log = Interleaved(
        records,
        rows,
        between=_BETWEEN,
        needles=_NEEDLES,
        take=between.take,
        cells=between.cells,
    )
    for block in source.blocks():
        log.read(block)
    between.finish(records.last_step)
    clip = _CLIP.search(head)
    limit = number(clip.group(1)) if clip else None
    facts = LogFacts(
        step_base=1,
        meanings={
            "loss": Meaning.MEAN,
            "grad_l2_pre_clip": Meaning.MEAN,
            "scaler_scale": Meaning.LAST,
        },
        precision="fp16" if between.total or b"loss_scale" in head else "",
        clip_threshold=limit or None,
        scaler=ScalerHints(floor=_floor(head), factor=0.5),
        notes=between.told(),
    )
    table = rows.table(fairseq.name, facts, where=source.path)
    decimals = max((len(places) for places in _DECIMALS.findall(head)), default=4)
    largest = _ROUNDED[decimals]
    table = replace(table, earlier=tuple(_settled(old, largest) for old in table.earlier))
    return _settled(table, largest)


def _floor(head: bytes) -> float:
    """The loss scale below which fairseq ends the run."""
    told = _FLOOR.search(head)
    return (number(told.group(1)) if told else None) or _USUAL_FLOOR


class _Between:
    """Overflow notes and validations between the records."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._noted: list[float | None] = []
        self._recorded = False
        self._last = 0
        self.total = 0

    def take(self, match: re.Match[bytes]) -> Dated | None:
        """A note of an overflow, or a validation."""
        if match["now"] is not None:
            self.total += 1
            self._noted.append(number(match["now"]))
            return None
        at, loss = match["text_at"] or match["json_at"], match["text_loss"] or match["json_loss"]
        self._last = max(self._last, count(at))
        return count(at), {"val_loss": number(loss)}

    def cells(self) -> dict[str, Cell]:
        """What the notes say of the record that follows them."""
        skipped, self._noted = len(self._noted), []
        return {"skipped_steps": skipped} if skipped else {}

    def finish(self, last: int) -> None:
        """Overflows that no record follows: attempts at the next update, a row each."""
        self._recorded = max(self._last, last) > 0
        for attempt, after in enumerate(self._noted, max(self._last, last) + 1):
            cells: dict[str, Cell] = {"skipped_steps": 1}
            if after is not None:
                cells["scaler_scale"] = 2 * after
            self._rows.add(attempt, cells)

    def told(self) -> tuple[str, ...]:
        """Notes for the reader of the report."""
        if not self.total:
            return ()
        count = f"{self.total:,} overflow{'s' * (self.total != 1)}"
        notes = [f"{count} noted, at which num_updates stands still"]
        if self._noted and self._noted[-1] is not None:
            last = f"{len(self._noted):,} of them after the last record"
            after = last if self._recorded else "no record tells a step"
            notes.append(f"{after}, down to a loss scale of {self._noted[-1]:g}")
        return tuple(notes)


def _settled(table: StepTable, largest: float) -> StepTable:
    """The table with what is left out set right; ``largest``: the scale that prints as 0."""
    table, note = restore_rounded_scale(table, largest)
    table = _with_attempts(table)
    facts = table.facts or LogFacts()
    lacks = {
        "loss": "losses",
        "grad_l2_pre_clip": "gradient norms",
        "scaler_scale": "the loss scale",
    }
    facts = replace(
        facts,
        notes=(*facts.notes, note) if note else facts.notes,
        unknown=tuple(what for column, what in lacks.items() if not table.has(column)),
    )
    return replace(table, facts=facts)


def _with_attempts(table: StepTable) -> StepTable:
    """The skipped attempts of a row that took steps are counted beside these."""
    if "skipped_steps" not in table:
        return table
    ones = np.ones(len(table), dtype=np.int64)
    covered = np.maximum(table["covered_steps"], 1) if "covered_steps" in table else ones
    took = table.present("loss")
    covered = covered + np.where(took, table["skipped_steps"], 0)
    columns = {**table.columns, "covered_steps": Column(covered, table.present("step"))}
    return replace(table, columns=columns)


fairseq = Importer(
    name="fairseq",
    description="fairseq: simple, tqdm and JSON logs, overflow notes",
    sniff=_sniff,
    read=_read,
)

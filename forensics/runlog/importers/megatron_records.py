"""The record that Megatron-LM and all that grew from it print: ``iteration 10/ 1000 | …``.

A loss is printed only where it is above zero, so that a NaN loss vanishes from the line, as it does
where every iteration of the interval was skipped. The loss scale is read after its update. The
counters are per interval, but under DeepSpeed they stay 0 on a skip, the gradient norm is then the
one of the step before, and what is not known is printed as -1.0 and 0.000.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from forensics.runlog.log_facts import LogFacts, Meaning, ScalerHints
from forensics.runlog.scanner.interleaved import Dated, Interleaved
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.numbers import COUNT, NUMBER, count, number
from forensics.runlog.scanner.overflow_notes import (
    NEEDLES,
    NOTE,
    TOTALS,
    OverflowNotes,
    hints_of,
)
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.skip_totals import with_skip_totals
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import BoolArray, Column, StepTable

START = (
    rb"iteration(?<!\witeration):?[ \t]+(?P<step>" + COUNT + rb")[ \t]*/[ \t]*\d{1,15}[ \t]*(?=\|)"
)
RECORD = re.compile(START)
_TOTAL = re.compile(rb"\biteration:?[ \t]+\d{1,15}[ \t]*/[ \t]*(\d{1,15})[ \t]*\|")
_VALIDATION = (
    rb"validation loss at (?:iteration|the end of training for val data)[ \t]*(?P<at>\d{1,15})?"
    rb"[^|\n]*\|[ \t]*[^|:\n]*value:[ \t]*(?P<val_loss>" + NUMBER + rb")"
)
_BETWEEN = re.compile(_VALIDATION + rb"|" + TOTALS + rb"|" + NOTE)
_NEEDLES = (*NEEDLES, b"validation loss at", b"skipped=")
_COLUMNS = {
    "learning rate": "lr",
    "lr": "lr",
    "loss scale": "scaler_scale",
    "grad norm": "grad_l2_pre_clip",
    "gradient norm": "grad_l2_pre_clip",
    "params norm": "param_l2",
    "number of skipped iterations": "skipped_steps",
    "number of nan iterations": "nan_iterations",
}
_LOSSES = frozenset(
    [
        "lm loss",
        "lm-loss",
        "lm_loss",
        "total loss",
        "loss",
        "mlm loss",
        "cross entropy loss",
        "sft loss",
    ]
)
_OPTION = rb"(?m)^[^\n]{0,40}\b%b[ \t]*[.=:]+[ \t]*(" + NUMBER + rb"|True|False|None)[ \t]*$"


def column_of(name: str) -> str | None:
    """The column that a cell of a record is; losses beside the main one keep their names."""
    bare = name.strip().lower()
    if bare in _LOSSES:
        return "loss"
    if bare in _COLUMNS:
        return _COLUMNS[bare]
    plain = re.sub(r"\W+", "_", bare)
    return plain if plain.endswith("loss") and plain.isidentifier() else None


_LAYOUT = Layout(
    start=START,
    gap=rb"\|[ \t]*",
    key=rb"(?!iteration\b)[A-Za-z][^|:\n]{0,60}?",
    equals=rb"(?::[ \t]*|[ \t]+(?=" + NUMBER + rb"[ \t]*\|))",
    value=rb"[^|\n]*",
    column=column_of,
    mark=b"iteration",
)


def read_megatron(source: LogSource, name: str, facts: LogFacts) -> StepTable:
    """Read a log of Megatron's records, DeepSpeed's overflow notes between them included."""
    rows = Rows(source.log, size=source.size)
    records, notes = LabelledRecords(_LAYOUT, rows), OverflowNotes()

    def take(match: re.Match[bytes]) -> Dated | None:
        if match["val_loss"] is not None:
            step = int(match["at"] or records.last_step)
            return step, {"val_loss": number(match["val_loss"])}
        if match["total"] is not None:
            notes.total_so_far = int(match["total"])
        else:
            notes.take(match)
        return None

    log = Interleaved(
        records, rows, between=_BETWEEN, needles=_NEEDLES, take=take, cells=notes.cells
    )
    for block in source.blocks():
        log.read(block)
    head = source.head().text
    table = rows.table(name, _with_options(facts, head), where=source.path)
    table = replace(table, earlier=tuple(_settled(old, notes.total > 0) for old in table.earlier))
    return _settled(table, notes.total > 0)


# -- what the lines do not say ------------------------------------------------------------------


def _settled(table: StepTable, noted: bool) -> StepTable:
    """The table with what a record leaves out or puts wrongly set right, and notes of it."""
    notes: list[str] = []
    table = with_skip_totals(table)
    for mend in (_main_loss, _placeholders, _vanished_loss, _stale_norm, _scale_in_force):
        table, note = mend(table)
        if note:
            notes.append(note)
    if not table.has("loss") and not _skipped_wholly(table).all():
        notes.append("no record has a loss, which Megatron leaves out where it is NaN or 0")
    if noted:
        notes.append("skipped steps are counted by the overflow notes between the records")
    facts = table.facts or LogFacts()
    scales = table["scaler_scale"][table.present("scaler_scale")] if "scaler_scale" in table else ()
    if len(scales) and max(scales) > 1 and not facts.precision:
        facts = replace(facts, precision="fp16")
    unknown = [what for column, what in _MAY_LACK.items() if not table.has(column)]
    facts = replace(facts, notes=(*facts.notes, *notes), unknown=(*facts.unknown, *unknown))
    return replace(table, facts=facts)


_MAY_LACK = {
    "loss": "losses",
    "grad_l2_pre_clip": "gradient norms",
    "scaler_scale": "the loss scale",
}

Mended = tuple[StepTable, str]


def _with_column(table: StepTable, name: str, column: Column) -> StepTable:
    return replace(table, columns={**table.columns, name: column})


def _main_loss(table: StepTable) -> Mended:
    """A log without a loss of a known name: the first one that there is."""
    others = [name for name in table if name.endswith("loss") and name != "val_loss"]
    if "loss" in table or not others:
        return table, ""
    columns = {"loss" if n == others[0] else n: c for n, c in table.columns.items()}
    return replace(table, columns=columns), f"{others[0].replace('_', ' ')} is read as the loss"


def _absent(column: Column, where: BoolArray) -> Column:
    return Column(np.where(where, np.nan, column.values), column.present & ~where)


def _placeholders(table: StepTable) -> Mended:
    """Loss scale -1.0 and gradient norm 0.000 beside it: nothing was known there."""
    if "scaler_scale" not in table:
        return table, ""
    scale = table.columns["scaler_scale"]
    unknown = scale.present & (scale.values < 0)
    if not unknown.any():
        return table, ""
    table = _with_column(table, "scaler_scale", _absent(scale, unknown))
    if "grad_l2_pre_clip" in table:
        norm = table.columns["grad_l2_pre_clip"]
        zero = unknown & (norm.values == 0)
        table = _with_column(table, "grad_l2_pre_clip", _absent(norm, zero))
    return table, "loss scale -1.0 and gradient norm 0.000 are placeholders, left out"


def _skipped_wholly(table: StepTable) -> BoolArray:
    """Rows of which no step was taken."""
    if "skipped_steps" not in table:
        return np.zeros(len(table), dtype=bool)
    covered = np.ones(len(table), dtype=np.int64)
    if "covered_steps" in table:
        covered = np.maximum(table["covered_steps"], 1)
    return np.asarray((table["skipped_steps"] > 0) & (table["skipped_steps"] >= covered))


def _vanished_loss(table: StepTable) -> Mended:
    """A record without a loss of which some step was taken: it was NaN."""
    told = table.present("lr") | table.present("scaler_scale")
    missing = told & ~table.present("loss") & ~_skipped_wholly(table)
    norm_bad = np.zeros(len(table), dtype=bool)
    if "grad_l2_pre_clip" in table:
        norm = table.columns["grad_l2_pre_clip"]
        norm_bad = norm.present & ~np.isfinite(norm.values)
    if not table.has("loss"):
        missing &= norm_bad
    if "nan_iterations" in table:  # counted among the skipped ones alone
        missing |= told & ~table.present("loss") & (table["nan_iterations"] > 0)
    if not missing.any():
        return table, ""
    before = table.columns.get("loss")
    values = before.values if before is not None else np.full(len(table), np.nan)
    present = table.present("loss") | missing
    column = Column(np.where(missing, np.nan, values), present)
    rows = int(missing.sum())
    note = (
        f"{rows:,} record{'s' * (rows != 1)} without a loss read as NaN: "
        "Megatron prints a loss only where it is above zero"
    )
    return _with_column(table, "loss", column), note


def _stale_norm(table: StepTable) -> Mended:
    """On a skipped step the gradient norm is the one of the step before."""
    wholly = _skipped_wholly(table)
    stale = wholly & table.present("grad_l2_pre_clip")
    if not stale.any():
        return table, ""
    norm = table.columns["grad_l2_pre_clip"]
    stale &= np.isfinite(norm.values)
    if not stale.any():
        return table, ""
    table = _with_column(table, "grad_l2_pre_clip", _absent(norm, stale))
    return table, "gradient norms of skipped steps, which are those of the step before, left out"


def _scale_in_force(table: StepTable) -> Mended:
    """Where every step is logged, the scale in force was the one printed a record before."""
    if table.interval > 1 or "scaler_scale" not in table or len(table) < 2:
        return table, ""
    scale = table.columns["scaler_scale"]
    if not scale.present.all() or (scale.values == scale.values[0]).all():
        return table, ""
    follows = np.diff(table.step, prepend=table.step[0] - 2) == 1
    values = np.where(follows, np.roll(scale.values, 1), scale.values)
    if _skipped_wholly(table)[0] and scale.values[0] > 1:
        values[0] = 2 * scale.values[0]
    return _with_column(table, "scaler_scale", Column(values, scale.present)), ""


# -- what the arguments say, which are printed before the first record --------------------------


def _with_options(facts: LogFacts, head: bytes) -> LogFacts:
    total = _TOTAL.search(head)
    option = _reader_of(head)
    window, least = option(b"loss_scale_window"), option(b"min_loss_scale")
    seen = hints_of(head)
    held, first = option(b"hysteresis"), option(b"initial_loss_scale")
    scaler = None
    if window or held or seen:
        scaler = ScalerHints(
            initial_scale=first or (seen.initial_scale if seen else None),
            growth_interval=int(window) if window and 0 < window < 2**31 else None,
            hysteresis=int(held) if held and 0 < held < 2**31 else None,
            factor=0.5,
            floor=least,
        )
    clip = option(b"clip_grad")
    return replace(
        facts,
        planned_steps=count(total.group(1)) if total else None,
        clip_threshold=clip if clip and 0 < clip < np.inf else None,
        precision=_precision(head),
        scaler=scaler,
        step_base=1,
        meanings={"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.LAST},
    )


def _reader_of(head: bytes) -> Callable[[bytes], float | None]:
    def option(name: bytes) -> float | None:
        match = re.search(_OPTION % name, head)
        return number(match.group(1)) if match else None

    return option


def _precision(head: bytes) -> str:
    for name in ("bf16", "fp16"):
        match = re.search(_OPTION % name.encode(), head)
        if match and match.group(1) == b"True":
            return name
    return ""

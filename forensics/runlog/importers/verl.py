"""verl's console: ``step:7 - actor/pg_loss:-0.01 - actor/grad_norm:0.2 - critic/rewards/mean:0.4``.

One line a step of the trainer, of which each holds several of the optimizer's. Older versions round
to three digits, so that a learning rate is 0.000; newer ones print ``np.float64(0.25)``. What the
critic tells keeps its name: it is another model's. It trains in bf16 and without a loss scaler,
unless its configuration, which it prints first, says float16: then a gradient that is not finite
may be the scaler's work.
"""

from __future__ import annotations

import re
from dataclasses import replace

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.numbers import COUNT
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import Column, StepTable

_COLUMNS = {
    "actor/pg_loss": "loss",
    "actor/policy_loss": "loss",
    "train/loss": "loss",
    "val/loss": "val_loss",
    "actor/grad_norm": "grad_l2_pre_clip",
    "train/grad_norm": "grad_l2_pre_clip",
    "actor/lr": "lr",
    "train/lr": "lr",
    "train/lr(1e-3)": "lr_thousandths",
}
_KEPT = frozenset(
    (
        *("critic/rewards/mean", "critic/score/mean", "critic/vf_loss", "critic/grad_norm"),
        *("actor/entropy", "actor/entropy_loss", "actor/kl_loss", "actor/ppo_kl"),
    )
)


def _column(name: str) -> str | None:
    return _COLUMNS.get(name, name if name in _KEPT else None)


_LAYOUT = Layout(
    start=rb"step:(?<!\wstep:)(?P<step>" + COUNT + rb")(?= - [\w/.@-]{1,80}(?:\([\w-]{1,9}\))?:)",
    gap=rb" - ",
    key=rb"[A-Za-z][\w/.@%-]{0,80}(?:\([\w-]{1,9}\))?",
    equals=rb":(?:np\.float\d\d\(|tensor\(|)",
    value=rb"\S*",
    column=_column,
    mark=b"step:",
)
_RECORD = re.compile(
    _LAYOUT.start
    + rb"(?=[^\n]{0,1500} - (?:actor/|critic/|train/loss:|val-|training/|timing_s/|perf/))"
)


_HALF = re.compile(rb"(?i)dtype['\"]?[ :=]{1,3}['\"]?(?:torch\.)?(?:float16|fp16|half)\b")


def _sniff(head: Head) -> Match | None:
    if not _RECORD.search(head.text):
        return None
    return Match(CERTAIN, "lines such as step:… - actor/…:… - critic/…:…")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log, size=source.size)
    records = LabelledRecords(_LAYOUT, rows)
    for block in source.blocks():
        records.read(block)
    head = source.head().text
    facts = LogFacts(
        precision="" if _HALF.search(head) else "bf16",
        meanings={"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.MEAN},
        notes=("a row is a step of the trainer: the optimizer takes several in each",)
        if b"actor/" in head
        else (),
        unknown=("the loss scale",),
    )
    return _with_plain_rate(rows.table(verl.name, facts, where=source.path))


def _with_plain_rate(table: StepTable) -> StepTable:
    """The table with the rate that was printed in thousandths as it is."""
    if "lr_thousandths" not in table:
        return table
    columns = dict(table.columns)
    printed = columns.pop("lr_thousandths")
    columns.setdefault("lr", Column(printed.values / 1000, printed.present))
    return replace(table, columns=columns)


verl = Importer(
    name="verl",
    description="verl: step:… - actor/…:… lines",
    sniff=_sniff,
    read=_read,
)

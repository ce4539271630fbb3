"""``log_history`` of the Hugging Face Trainer saved as CSV, as pandas writes it.

The sparse union of the records' keys, whichever order they came in: training, evaluation and the
summary at the end. The values mean what they mean in ``trainer_state.json``.
"""

from __future__ import annotations

from collections.abc import Sequence

from forensics.runlog.importers.hf_records import BESIDE, facts_of, told
from forensics.runlog.importers.importer import Importer, Match
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.named_csv import header_of, read_named
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_OURS = frozenset(("loss", "learning_rate", "epoch", "step"))


def _sniff(head: Head) -> Match | None:
    names = set(header_of(head))
    if not names >= _OURS or BESIDE.isdisjoint(names):
        return None
    return Match(0.95, "a CSV of loss, learning_rate, epoch, step and a trainer's running times")


def _naming(names: Sequence[str]) -> dict[str, str]:
    return name_columns(name for name in names if name not in BESIDE)


def _read(source: LogSource, reading: Reading) -> StepTable:
    table = read_named(source, reading, hf_history_csv.name, _naming, facts_of(None))
    return told(table, None, may_lag=None, with_norm=table.has("grad_l2_pre_clip"))


hf_history_csv = Importer(
    name="hf-history-csv",
    description="Hugging Face Trainer: log_history saved as CSV",
    sniff=_sniff,
    read=_read,
    columns=True,
)

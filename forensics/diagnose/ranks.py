"""The logs of all ranks side by side, row by row of rank 0's log."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray, StepTable

SAME = 1e-6
"""Relative difference up to which two norms of the same tensors are the same: fp32 sums in another
order stay within it, and a rank that did not take part in the reduction does not."""
MOSTLY = 0.5
"""Share of rows that agree with rank 0 from which a rank's norm must be the reduced one."""


@dataclass(frozen=True, eq=False)
class RankColumn:
    """One column of every rank ≥ 1 at the rows of rank 0's log.

    Attributes:
        values: shape (R, rows); NaN where not written.
        present: where a rank wrote it, shape (R, rows).
    """

    values: FloatArray
    present: BoolArray

    @property
    def bad(self) -> BoolArray:
        """Written, and NaN or Inf; shape (R, rows)."""
        return self.present & ~np.isfinite(self.values)


def rank_column(signals: Signals, name: str) -> RankColumn:
    """A float column of all ranks but rank 0."""
    tables = signals.run.ranks
    values = np.full((len(tables), len(signals)), np.nan)
    present = np.zeros((len(tables), len(signals)), dtype=bool)
    for rank, table in enumerate(tables):
        if name in table and len(table):
            mine, theirs = _common_rows(signals, table)
            values[rank, mine] = np.asarray(table[name], dtype=np.float64)[theirs]
            present[rank, mine] = table.present(name)[theirs]
    return RankColumn(values, present)


def rank_texts(signals: Signals, name: str) -> list[tuple[IntArray, BoolArray]]:
    """Per rank the rows at which it and rank 0 both wrote a text, and where the two are equal."""
    found = []
    own = signals.table.columns.get(name)
    for table in signals.run.ranks:
        column = table.columns.get(name)
        if own is None or column is None or not (own.categories and column.categories):
            found.append((np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)))
            continue
        mine, theirs = _common_rows(signals, table)
        both = own.present[mine] & column.present[theirs]
        mine, theirs = mine[both], theirs[both]
        code = {text: number for number, text in enumerate(own.categories)}
        to_own = np.array([code.get(text, -1) for text in column.categories], dtype=np.int64)
        found.append((mine, np.asarray(to_own[column.values[theirs]] == own.values[mine])))
    return found


def local_norms(signals: Signals) -> RankColumn:
    """Each rank's gradient norm before the reduction (``grad_l2_local``, else the plain one).

    A plain norm that mostly equals rank 0's is the reduced one and is left out.
    """
    if any("grad_l2_local" in table for table in signals.run.ranks):
        return rank_column(signals, "grad_l2_local")
    plain = rank_column(signals, "grad_l2_pre_clip")
    hidden = _is_reduced(signals, plain)[:, None]
    return RankColumn(np.where(hidden, np.nan, plain.values), plain.present & ~hidden)


def own_local_norm(signals: Signals) -> RankColumn:
    """Rank 0's gradient norm before the reduction, as its own rank file says; R is 1."""
    values = np.full((1, len(signals)), np.nan)
    present = np.zeros((1, len(signals)), dtype=bool)
    table = signals.run.rank_zero
    if table is not None and "grad_l2_local" in table and len(table):
        mine, theirs = _common_rows(signals, table)
        values[0, mine] = np.asarray(table["grad_l2_local"], dtype=np.float64)[theirs]
        present[0, mine] = table.present("grad_l2_local")[theirs]
    return RankColumn(values, present)


def all_bad_at_once(signals: Signals, row: int) -> int:
    """The number of ranks, where all went bad by themselves in one row; else 0.

    In the row before none was bad: what one rank alone makes is in the weights of all a step later.
    """
    losses, norms = rank_column(signals, "loss"), local_norms(signals)
    own_bad = signals.loss_bad | own_local_norm(signals).bad[0]
    bad = np.vstack((own_bad, losses.bad | norms.bad))
    known = rank_count(signals)
    first = bool(bad[:, row].all()) and not (row and bad[:, row - 1].any())
    return len(bad) if first and known == len(bad) > 1 else 0


def rank_count(signals: Signals) -> int:
    """How many ranks trained, as run.json and their logs say."""
    manifest = signals.run.manifest
    return max(1 + len(signals.run.ranks), 1 if manifest is None else manifest.world_size)


def finite_on_all(signals: Signals, row: int) -> bool:
    """Is the loss of a row finite on every rank? False where one rank's is not known."""
    losses = signals.derived(rank_column, "loss").values[:, row]
    known = 1 + len(losses) == rank_count(signals)
    return known and bool(np.isfinite(signals.loss[row]) and np.isfinite(losses).all())


def unheard_ranks(signals: Signals, row: int) -> str:
    """What cannot be told of a bad row because rank 0 alone has a log; empty where others do."""
    count = rank_count(signals)
    if count == 1 or any(len(table) for table in signals.run.ranks):
        return ""
    own, step = own_local_norm(signals), signals.step_at(row)
    ask = "Make the Recorder on every rank: it then names the rank, and says where in its data."
    if signals.loss_bad[row] or own.bad[0, row]:
        told = f"rank 0's own values are bad at step {step:,}; the others' are not known"
    elif own.present[0, row] and signals.norm_bad[row]:
        told = f"its own gradient is finite at step {step:,}, so another rank's was bad, and which"
        told += " one cannot be told"
    else:
        told = "which rank was bad cannot be told"
    return f"Of {count:,} ranks only rank 0 has a log: {told}. {ask}"


def everyone(ranks: int) -> str:
    """``both ranks`` or ``all 8 ranks``."""
    return "both ranks" if ranks == 2 else f"all {ranks:,} ranks"


def shared_by_all(ranks: int) -> str:
    """A sentence after a cause, that no single rank is to blame; empty for none or one."""
    if ranks < 2:
        return ""
    return (
        f" {everyone(ranks).capitalize()} went bad in the same step, each by itself before the "
        "reduction: it is not one rank's data or device, but what they share: the model, its "
        "weights, or data of a kind that all of them had."
    )


def data_position(signals: Signals, rank: int, step: int) -> int | None:
    """Where a rank was in its data, as its own log says; None where it does not."""
    logs = (signals.run.rank_zero, *signals.run.ranks)
    table = logs[rank] if rank < len(logs) else None
    if table is None or "data_position" not in table:
        return None
    row = np.flatnonzero((table.step == step) & table.present("data_position"))
    return int(table["data_position"][row[0]]) if len(row) else None


def reduced_norms(signals: Signals) -> RankColumn:
    """Each rank's gradient norm after the reduction, which all ranks should agree on."""
    plain = rank_column(signals, "grad_l2_pre_clip")
    stated = np.array(["grad_l2_local" in table for table in signals.run.ranks], dtype=bool)
    shown = (_is_reduced(signals, plain) | stated)[:, None]
    return RankColumn(np.where(shown, plain.values, np.nan), plain.present & shown)


def apart(values: FloatArray, reference: FloatArray) -> FloatArray:
    """Relative difference; NaN where either is not finite; shape as broadcast."""
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(values), np.abs(reference))
        difference = np.abs(values - reference) / np.where(size > 0, size, 1.0)
    finite = np.isfinite(values) & np.isfinite(reference)
    return np.where(finite, difference, np.nan)


def _is_reduced(signals: Signals, norms: RankColumn) -> BoolArray:
    difference = apart(norms.values, signals.norm)
    known = np.isfinite(difference).sum(axis=1)
    return np.asarray((difference <= SAME).sum(axis=1) > MOSTLY * known, dtype=bool)


def _common_rows(signals: Signals, table: StepTable) -> tuple[IntArray, IntArray]:
    """Rows of rank 0's log and of this one that have the same step."""
    _, mine, theirs = np.intersect1d(
        signals.step, table.step, assume_unique=True, return_indices=True
    )
    return np.asarray(mine, dtype=np.int64), np.asarray(theirs, dtype=np.int64)

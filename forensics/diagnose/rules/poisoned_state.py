"""The weights are finite, but state beside them is not.

What it detects
    The first snapshot or checkpoint in which the EMA, an optimizer's moments or BatchNorm's running
    statistics hold NaN or Inf while no parameter does.

Why it matters
    Loss and weights look healthy. Evaluation uses the running statistics or the EMA and is dead; a
    moment of NaN poisons the weights in the next step, and a second moment of Inf stops its weight
    for good.

Evidence
    How many elements are non-finite, over the snapshots around the first bad one.

Silent when
    A parameter is bad as well (the rule nonfinite-parameter tells that); no such state was looked
    at; or a buffer holds as many as at the start: masks are infinite by nature.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.bad_parameters import (
    Culprit,
    bad_cells,
    bad_in_checkpoint,
    elements,
    nonfinite_evidence,
    steps_with_bad,
)
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import earliest_start
from forensics.frozen import dataclass
from forensics.runlog.params import ParamMatrix
from forensics.runlog.steps import BoolArray, IntArray

_EFFECTS = {
    "ema": "evaluation uses the averaged weights",
    "buffer": "evaluation uses these statistics",
    "optimizer": "the next update uses it",
}


@dataclass(frozen=True)
class Thresholds:
    """From how many elements on a state is bad."""

    elements: int = threshold(1, "one NaN spreads to everything computed from it")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    del thresholds
    kept = any(signals.param_matrix("value_nonfinite", kind) is not None for kind in _EFFECTS)
    return "" if kept or signals.run.checkpoints else "no state beside the weights was recorded"


@rule(
    thresholds=Thresholds,
    parts=("params.value_nonfinite|checkpoints",),
    too_little=_too_little,
)
def poisoned_state(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding a kind of state, at the first place where it is bad alone."""
    weights = steps_with_bad(signals, "value_nonfinite")
    told = set()
    for kind in _EFFECTS:
        matrix = signals.param_matrix("value_nonfinite", kind)
        if matrix is None:
            continue
        bad = bad_cells(matrix) & (matrix.values >= thresholds.elements)
        if kind != "optimizer":
            bad &= ~_by_nature(signals, matrix)
        alone = np.flatnonzero(bad.any(axis=1) & ~np.isin(matrix.steps, weights))
        if len(alone):
            told.add(kind)
            yield _in_snapshot(signals, kind, matrix, bad, int(alone[0]))
    yield from _in_checkpoints(signals, told)


def _by_nature(signals: Signals, matrix: ParamMatrix) -> BoolArray:
    """Where as many elements are non-finite as before the first step; shape (snapshots, names).

    A causal mask kept as a buffer is half -Inf from the start. NaN that is there from the start is
    told by the checkpoints, which know NaN from Inf.
    """
    first = np.argmax(matrix.present, axis=0)
    start = matrix.values[first, np.arange(len(matrix.names))]
    early = matrix.steps[first] <= (signals.step_at(0) if len(signals) else 0)
    return np.asarray(matrix.present & (matrix.values == start) & early, dtype=bool)


def _in_snapshot(
    signals: Signals, kind: str, matrix: ParamMatrix, bad: np.ndarray, at: int
) -> Finding:
    names = tuple(matrix.names[column] for column in np.flatnonzero(bad[at]))
    step = int(matrix.steps[at])
    column = matrix.names.index(names[0])
    culprit = Culprit(names[0], "state", names, len(matrix.names), int(matrix.values[at, column]))
    still = bool(bad[-1].any())
    taken = matrix.steps[matrix.present.any(axis=1)]
    before = int(np.searchsorted(taken, step))
    last = int(matrix.steps[np.flatnonzero(bad.any(axis=1))[-1]])
    return Finding(
        rule="poisoned-state",
        severity=Severity.CRITICAL if kind == "optimizer" else Severity.ERROR,
        message=f"{_subject(kind, names[0])}{_more(names)} is non-finite at step {step:,} "
        f"({elements(culprit.elements)}{_still_finite(taken, before)}) while all weights are "
        f"finite; {_EFFECTS[kind]}",
        first_step=step,
        earliest_step=earliest_start(taken, before, in_update=kind != "buffer"),
        last_step=max(last, signals.last_step) if still else last,
        subject=_subject(kind, names[0]),
        evidence=nonfinite_evidence(signals, culprit, step, kind),
        cause=_cause(kind),
        remedy=_remedy(kind),
    )


def _still_finite(taken: IntArray, at: int) -> str:
    """``, finite at step 30``, where another step than the last one before is the last known."""
    apart = at > 0 and taken[at] - taken[at - 1] > 1
    return f", still finite at step {int(taken[at - 1]):,}" if apart else ""


def _in_checkpoints(signals: Signals, told: set[str]) -> Iterator[Finding]:
    """The first checkpoint with bad state and finite weights, for the kinds not yet told."""
    sound: int | None = None
    for checkpoint in signals.run.checkpoints:
        if bad_in_checkpoint(checkpoint, ("param",)):
            return
        for kind in [kind for kind in _EFFECTS if kind not in told]:
            names = bad_in_checkpoint(checkpoint, (kind,))
            if names:
                told.add(kind)
                yield Finding(
                    rule="poisoned-state",
                    severity=Severity.CRITICAL if kind == "optimizer" else Severity.ERROR,
                    message=f"{_subject(kind, names[0])}{_more(names)} is non-finite in the "
                    f"checkpoint before step {checkpoint.step:,} while all weights are finite; "
                    f"{_EFFECTS[kind]}",
                    first_step=min(checkpoint.step, signals.last_step),
                    last_step=signals.last_step,
                    earliest_step=sound,
                    subject=_subject(kind, names[0]),
                    cause=_cause(kind),
                    remedy=_remedy(kind),
                )
        sound = checkpoint.step if checkpoint.healthy else sound


def _subject(kind: str, name: str) -> str:
    return f"EMA of {name}" if kind == "ema" and "ema" not in name.lower() else name


def _more(names: tuple[str, ...]) -> str:
    return f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""


def _cause(kind: str) -> str:
    if kind == "ema":
        return (
            "The average took weights in that were non-finite for a step, and never forgets them."
        )
    if kind == "buffer":
        return (
            "One batch with a huge or non-finite activation went into the running statistics; "
            "they are updated in forward, so a skipped step does not protect them."
        )
    return "A gradient so large that its square overflows, or a non-finite one, was taken in."


def _remedy(kind: str) -> str:
    if kind == "ema":
        return "Start the average again from the weights, and update it on finite steps only."
    if kind == "buffer":
        return (
            "Reset the running statistics and let some batches go through in train mode, or "
            "resume from before; then find the batch with the huge activation."
        )
    return (
        "Resume from before, or reset this optimizer state; skip steps whose gradients are not "
        "finite, and clip so that their squares stay far below 3e38."
    )

"""Is a replay the recorded training at all, or one of other data, another order, seed or code?

A function that makes a trainer builds its data anew. Where these are not the ones that were
recorded, what goes bad in the replay says nothing of the record, not even in the same step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from forensics.diagnose.bisection_result import Departure, Origin
from forensics.replay.bad import BadPredicate
from forensics.replay.session import Session
from forensics.replay.trainers.trainer_session import PROBED, TrainerSession

FAR = 0.05
"""Relative difference that rounding does not reach in the first row that it shows in: a GPU that
adds in another order drifts past 1e-3 in hundreds of steps, each row a little further."""


def is_another(session: Session, gone: Departure | None, first: int) -> bool:
    """Is the replay of a trainer from a row on not the recorded training?

    Args:
        session: that replays.
        gone: the first row that is not the recorded one, or None.
        first: the first step that was replayed; what differs right after a resume is no drift.
    """
    if gone is None or not isinstance(session, TrainerSession):
        return False
    return gone.step < first + PROBED or _distance(gone.recorded, gone.replayed) > FAR


def contradicts(
    predicate: BadPredicate, recorded: Mapping[str, Any] | None, replayed: Mapping[str, Any]
) -> bool:
    """Is a replayed row bad in a number that is not bad in the recorded row of that step?"""
    if recorded is None or predicate.holds(recorded):
        return False
    if predicate.column:
        return recorded.get(predicate.column) is not None and predicate.holds(replayed)
    both = [(recorded.get(name), value) for name, value in replayed.items()]
    numbers = [(a, b) for a, b in both if isinstance(a, int | float) and isinstance(b, int | float)]
    return any(math.isfinite(a) and not math.isfinite(b) for a, b in numbers)


def own_way(
    gone: Departure, step: int | None, recorded: int | None, origin: Origin | None = None
) -> str:
    """How a replay went its own way, and that it proves nothing of the record.

    Args:
        gone: the first row that is not the recorded one.
        step: that goes bad in the replay, or None.
        recorded: that does in the record, or None.
        origin: of what goes bad in the replay in the same step, for who looks further.
    """
    if step is None:
        went = "stays sound" + (f" at {recorded:,}, where the record goes bad" if recorded else "")
    elif recorded is None and gone.step == step:
        return (
            f"the replay is the record up to step {step:,}, and goes bad in it, where the record "
            "is sound: the batch or the code is another now, and no operator is claimed"
        )
    elif recorded is None:
        went = f"goes bad at {step:,}, where the record is sound"
    elif step != recorded:
        went = f"goes bad at {step:,}, where the record does at {recorded:,}"
    else:
        line = f", {origin.source_line}" if origin is not None and origin.source_line else ""
        by = f" ({origin.operator}{line})" if origin is not None else ""
        went = f"goes bad at {step:,}, as the record does, but not as it was recorded{by}"
    claim = "" if step is None else ": no operator is claimed"
    return f"the replay leaves the record at step {gone.step:,} and {went}{claim}"


def another(gone: Departure) -> str:
    """What a replay is that is not the recorded training, and what to do about it."""
    apart = _distance(gone.recorded, gone.replayed)
    return (
        "this replay is another training than the recorded one: other data, another order, seed "
        "or code. Have the function build what was recorded"
        + (f"; --tolerance {_above(apart):g} takes such rows for alike" if apart <= FAR else "")
    )


def _above(distance: float) -> float:
    """The next round number."""
    size = 10.0 ** math.floor(math.log10(distance)) if distance > 0 else 1.0
    return float(f"{math.ceil(distance / size) * size:g}")


def _distance(recorded: float | str | None, replayed: float | str | None) -> float:
    """Relative; infinite where one is no finite number."""
    if isinstance(recorded, int | float) and isinstance(replayed, int | float):
        largest = max(abs(recorded), abs(replayed))
        if math.isfinite(largest):
            return abs(recorded - replayed) / largest if largest else 0.0
    return math.inf

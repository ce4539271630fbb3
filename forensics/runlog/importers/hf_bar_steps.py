r"""The step of a record that was printed over a progress bar, where the record bears none.

The bar is redrawn ten times a second at most, so what is seen before a record may be behind it:
``9/80`` before the record of step 10. What is drawn after it is never behind it, and in a terminal
it is the state at the record itself. So the step lies between the two. As the Trainer logs every
``logging_steps`` steps, it is the multiple of that interval which does, and the interval is the one
that has such a multiple for nearly every record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

_SNAP = 3
"""Steps that a bar may be behind the record where nothing tells more."""
_FITTING = 0.8
"""Share of records that an interval must date a whole interval after the one before."""


class Found(NamedTuple):
    """A record between two states of the training's bar.

    Attributes:
        done: steps done as last drawn before it; None before the first bar.
        after: steps done as first drawn after it; None where no bar follows before the next record.
        record: what was printed.
    """

    done: int | None
    after: int | None
    record: dict[str, Any]


def dated(
    found: Iterable[Found], first: Sequence[Found], interval: int = 0
) -> Iterator[Mapping[str, Any]]:
    """The records with their steps, put into them; a record that bears one keeps it.

    Args:
        found: all records, in the order they were printed.
        first: those by which the interval is found.
        interval: steps between records, where the log says it; 0: unknown.
    """
    trained = [f for f in first if f.done is not None and "loss" in f.record]
    every = _interval(trained, interval)
    usual = interval or _usual([f.done for f in trained if f.done is not None])
    last: int | None = None
    for one in found:
        done, _, record = one
        if "step" in record:
            yield record
        elif done is not None and "loss" in record:
            last = _step(one, every, last)
            if last is None:
                last = _snapped(done, usual) if done else one.after or 1
            record["step"] = last
            yield record
        elif done is not None:
            # An evaluation comes after the record of its step, and its bar may be behind, too.
            behind = last is not None and done < last <= done + max(every, _SNAP)
            record["step"] = last if behind else done
            yield record


def _interval(trained: Sequence[Found], said: int) -> int:
    """Steps between records that fit nearly all bars; 0 where none does.

    Of several the one that the most records fit is taken: the one that the log says, or one near
    the distance of the bars before the records or after them.
    """
    if len(trained) < 2:
        return said
    before = [f.done for f in trained if f.done is not None]
    after = [f.after for f in trained if f.after is not None]
    slope = round((before[-1] - before[0]) / (len(before) - 1))
    candidates = [said, *_common(after), *_common(before), slope, slope + 1, slope - 1]
    fits = {every: _fitting(trained, every) for every in candidates if every > 0}
    best = max(fits, key=lambda every: fits[every], default=0)
    return best if best and fits[best] >= _FITTING * (len(trained) - 1) else 0


def _common(states: Sequence[int]) -> list[int]:
    """The commonest distances of a bar's states."""
    distances = Counter(b - a for a, b in pairwise(states) if b > a)
    return [distance for distance, _ in distances.most_common(2)]


def _fitting(trained: Sequence[Found], every: int) -> int:
    """How many records the bars allow to be ``every`` steps after the one before."""
    steps: list[int | None] = []
    last: int | None = None
    for one in trained:
        steps.append(_step(one, every, last))
        last = steps[-1]
    return sum(a is not None and b == a + every for a, b in pairwise(steps))


def _step(one: Found, every: int, last: int | None) -> int | None:
    """The first multiple between the bars that is not dated yet; None where there is none."""
    done, after, _ = one
    if every <= 0 or done is None:
        return None
    least = max(done, 1)  # what is logged is a mean over steps that were made
    if last is not None and 0 <= last - least < max(every, _SNAP + 1):
        least = last + 1
    step = least + -least % every
    furthest = done + _SNAP if after is None else max(after, done)
    return step if step <= furthest else None


def _usual(steps: Sequence[int]) -> int:
    """The distance of most records, or 1 where they do not lie at its multiples."""
    common = _common(steps)
    usual = common[0] if common else 1
    return usual if sum(step % usual == 0 for step in steps) * 2 > len(steps) else 1


def _snapped(step: int, usual: int) -> int:
    behind = -step % usual
    return step + behind if behind <= min(_SNAP, usual // 2) else step

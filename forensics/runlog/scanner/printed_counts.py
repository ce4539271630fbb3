"""Steps of printed lines, whose counters may begin anew each epoch, or be missing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from forensics.runlog.log_facts import EpochCount
from forensics.runlog.scanner.epoch_steps import EpochSteps

_FEWEST = 3
"""Lines of which a count can be said to stand at its end."""
_OF_SAMPLES = re.compile(rb"\[ {0,9}(\d{1,12})/(\d{2,12}) \( {0,3}\d{1,3}(?:\.\d{1,4})?%\)\]")
_BATCH = 8
"""Counts that have a smaller divisor in common are no samples of whole batches, in tens of them."""
UNNUMBERED = "no line tells a step: the rows are numbered as they come"
ANEW = (
    "the count begins anew each epoch and no line tells its length: epochs are taken to end at the "
    "last line that was printed"
)


def may_be_samples(text: bytes) -> str:
    """That counts like ``[640/60000 (1%)]`` may be of samples, as a clause; empty where not.

    So PyTorch's examples print them, and many loops after them; others count batches so.
    """
    found = _OF_SAMPLES.findall(text)
    if len(found) < _FEWEST or math.gcd(*(int(at) for at, _ in found[:-1])) < _BATCH:
        return ""
    at, of = (number.decode() for number in found[1])
    return f"[{at}/{of} …] may count samples and not steps, as in PyTorch's examples"


class Count(NamedTuple):
    """The counters of one line; None where it has none.

    Attributes:
        epoch: the epoch.
        at: the step, iteration or batch.
        of: how many there are of those.
    """

    epoch: int | None
    at: int | None
    of: int | None


class Numbering(NamedTuple):
    """What the rows are called: their steps, whether those are epochs, and what was inferred.

    Where they are numbered through ``own`` says how the lines count.
    """

    steps: list[int]
    epochs: bool
    note: str
    own: EpochCount | None = None


def numbered(counts: Sequence[Count]) -> Numbering:
    """The step of each line.

    A count that stands at its end, as of bars that are printed there alone, counts nothing. One
    that falls where the epoch rises is one within the epoch: it is numbered through by the
    epoch's length, or by how far each epoch was seen to go. So is that of a bar which starts again,
    by its length. Any other fall is a restart, and stays.
    """
    places = {(count.at, count.of) for count in counts}
    if len(counts) >= _FEWEST and len(places) == 1 and counts[0].at == counts[0].of:
        counts = [count._replace(at=None, of=None) for count in counts]
    at = [count.at for count in counts if count.at is not None]
    epochs = [count.epoch for count in counts if count.epoch is not None]
    if len(at) < len(counts):
        if len(epochs) == len(counts) and all(b > a for a, b in pairwise(epochs)):
            return Numbering(epochs, True, "")
        return Numbering(list(range(1, len(counts) + 1)), False, UNNUMBERED)
    by_epoch = len(epochs) == len(counts)
    anew = [by_epoch and b > a for a, b in pairwise(epochs)]
    if anew and all(anew) and any(b <= a for a, b in pairwise(at)):
        return Numbering(epochs, True, "")  # a line at the end of each epoch
    falls = [i for i, (a, b) in enumerate(pairwise(at), start=1) if b < a]
    within = by_epoch and any(epochs[i] > epochs[i - 1] for i in falls)
    totals = {count.of for count in counts}
    total = totals.pop() if len(totals) == 1 else None
    if not falls or (by_epoch and not within) or (not by_epoch and total is None):
        return Numbering(at, False, "")
    if total is None:
        return Numbering(_seen(counts, at, epochs), False, ANEW)
    if by_epoch:
        # Where both 0 and the length are printed, one step has two names.
        own = EpochCount(epochs[0], total, 0 in at) if not {0, total} <= set(at) else None
        return Numbering(_through(at, epochs, total), False, _length(total), own)
    return Numbering(_through(at, _rounds(at), total), False, _length(total))


def _seen(counts: Sequence[Count], at: Sequence[int], epochs: Sequence[int]) -> list[int]:
    """Steps where epochs are taken to be as long as they were seen to be.

    Counts begin at 0 where a 0 is among them, but for bars, which go on to their end.
    """
    to_the_end = any(count.at == count.of for count in counts)
    numbers = EpochSteps(first=0 if min(at) == 0 and not to_the_end else 1)
    return [numbers.step(epoch, n) for epoch, n in zip(epochs, at, strict=True)]


def _through(at: Sequence[int], rounds: Sequence[int], total: int) -> list[int]:
    return [(one - rounds[0]) * total + n for one, n in zip(rounds, at, strict=True)]


def _rounds(at: Sequence[int]) -> list[int]:
    """How often the count has begun anew, for each line."""
    rounds = [0]
    for before, now in pairwise(at):
        rounds.append(rounds[-1] + (now < before))
    return rounds


def _length(total: int) -> str:
    return f"the count begins anew after {total:,}: steps are numbered through"

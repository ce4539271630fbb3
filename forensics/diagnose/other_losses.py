"""Losses beside the one that is judged: a critic's, a discriminator's, a term of a sum."""

from __future__ import annotations

import re

import numpy as np

from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number
from forensics.runlog.schema import spec_of

_TRAINED = re.compile(r"(?:^|[/_. ])(?:loss|grad_norm)$")
_ELSEWHERE = re.compile(r"(?:^|[/_. ])(?:eval|val|valid|validation|test|best)(?:$|[/_. ])")
_FEWEST = 3
"""Bad values in a row, to the end: fewer may be a batch that had nothing for that part."""


def bad_to_the_end(signals: Signals) -> str:
    """Which of the log's further losses and gradient norms end non-finite; empty where none does.

    A model trained beside the judged one (the critic of a policy) may be lost while that goes on.
    """
    told = []
    for name in signals.table:
        lower = name.lower()
        if spec_of(name) is not None or not _TRAINED.search(lower) or _ELSEWHERE.search(lower):
            continue
        rows = np.flatnonzero(signals.table.present(name))
        bad = ~np.isfinite(np.asarray(signals.table[name], dtype=np.float64)[rows])
        sound = np.flatnonzero(~bad)
        first = int(sound[-1]) + 1 if len(sound) else 0
        if len(bad) - first >= _FEWEST:
            row = int(rows[first])
            value = number(float(signals.table[name][row]))
            told.append(f"{name} is {value} from step {signals.step_at(row):,} on")
    return "; ".join(told)

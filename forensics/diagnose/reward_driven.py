"""A loss that measures no learning: reinforcement learning's, beside the reward that does.

The loss of a policy gradient has the right gradient and no meaning as a number: GRPO's is 0 at
first and grows with the distance from the reference, REINFORCE's has the sign of the advantages.
That of a value function is an error against targets that move.
"""

from __future__ import annotations

import re

import numpy as np

from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals

WHY = "the loss of reinforcement learning measures no progress; the reward does"
_REWARD = re.compile(r"(?:^|[/_. ])(?:rewards?|returns?|rew|rlhf_reward)(?:$|[/_. ])")
_PREFERENCE = re.compile(r"chosen|rejected")
"""DPO and its kin log rewards of both answers, and minimise a loss as anybody does."""
_ELSEWHERE = re.compile(r"(?:^|[/_. ])(?:eval|val|valid|validation|test)(?:$|[/_. ])")
_BLOWN_UP = 100.0
"""Times the early losses (and 1) that no surrogate reaches whose policy still works."""
_EDGE = 20
"""Rows at each end that are compared."""


def learns_from_rewards(signals: Signals) -> bool:
    """Does the log hold rewards of what was trained on, and a loss that did not blow up?"""
    return signals.derived(_learns_from_rewards)


def _learns_from_rewards(signals: Signals) -> bool:
    names = [name.lower() for name in signals.table if signals.has(name)]
    if any(_PREFERENCE.search(name) for name in names):
        return False
    if not any(_REWARD.search(name) and not _ELSEWHERE.search(name) for name in names):
        return False
    loss = np.abs(signals.finite_loss.values)
    early = median(loss[:_EDGE]) if len(loss) else 0.0
    return not len(loss) or median(loss[-_EDGE:]) <= _BLOWN_UP * max(early, 1.0)

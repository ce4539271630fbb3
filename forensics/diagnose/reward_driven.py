"""A loss that measures no learning: reinforcement learning's, or that of one of several players.

The loss of a policy gradient has the right gradient and no meaning as a number: GRPO's is 0 at
first and grows with the distance from the reference, REINFORCE's has the sign of the advantages.
That of a value function is an error against targets that move. Where optimizers step in turn on
losses of their own, as in a GAN, what one player learns makes the other's loss rise.
"""

from __future__ import annotations

import re

import numpy as np

from forensics.diagnose.series import median
from forensics.diagnose.signals import Signals

WHY = "the loss of reinforcement learning measures no progress; the reward does"
WHY_IN_TURN = "optimizers step in turn on losses of their own, as in a GAN: none measures progress"
_REWARD = re.compile(r"(?:^|[/_. ])(?:rewards?|returns?|rew|rlhf_reward)(?:$|[/_. ])")
_PREFERENCE = re.compile(r"chosen|rejected")
"""DPO and its kin log rewards of both answers, and minimise a loss as anybody does."""
_ELSEWHERE = re.compile(r"(?:^|[/_. ])(?:eval|val|valid|validation|test)(?:$|[/_. ])")
_BLOWN_UP = 100.0
"""Times the early losses (and 1) that no surrogate reaches whose policy still works."""
_EDGE = 20
"""Rows at each end that are compared."""


_IN_TURN = 0.1
"""Share of the steps; a critic that steps ten times as often is one loop with it."""


def no_measure(signals: Signals) -> str:
    """Why the course of this loss tells nothing of learning; empty where it does, or blew up."""
    return signals.derived(_no_measure)


def one_of_several(signals: Signals) -> bool:
    """Did backward run several times for a step whose row has the one loss that was given?"""
    manifest = signals.run.manifest
    return manifest is not None and manifest.loop.get("one_loss_steps", 0) > 0


def _no_measure(signals: Signals) -> str:
    if learns_from_rewards(signals):
        return WHY
    manifest = signals.run.manifest
    in_turn = 0 if manifest is None else manifest.loop.get("in_turn_steps", 0)
    if in_turn and in_turn >= _IN_TURN * len(signals) and not _blew_up(signals):
        return WHY_IN_TURN
    return ""


def learns_from_rewards(signals: Signals) -> bool:
    """Does the log hold rewards of what was trained on, and a loss that did not blow up?"""
    return signals.derived(_learns_from_rewards)


def _learns_from_rewards(signals: Signals) -> bool:
    names = [name.lower() for name in signals.table if signals.has(name)]
    if any(_PREFERENCE.search(name) for name in names):
        return False
    if not any(_REWARD.search(name) and not _ELSEWHERE.search(name) for name in names):
        return False
    return not _blew_up(signals)


def _blew_up(signals: Signals) -> bool:
    loss = np.abs(signals.finite_loss.values)
    return bool(len(loss)) and median(loss[-_EDGE:]) > _BLOWN_UP * max(median(loss[:_EDGE]), 1.0)

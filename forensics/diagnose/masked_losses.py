"""Losses that the logger leaves out: what is logged may be finite though a loss was NaN."""

from __future__ import annotations

from forensics.diagnose.signals import Signals


def loss_is_filtered(signals: Signals) -> bool:
    """Is the logged loss a mean that leaves NaN and Inf out, so that finite does not mean sound?"""
    facts = signals.table.facts
    return facts is not None and facts.loss_filtered


def what_shows_it(signals: Signals) -> str:
    """The question of a filtered loss beside a bad norm, with what would decide it."""
    every = " or logging every step" if signals.interval > 1 else ""
    return (
        "Whether the loss was NaN before the gradient: the trainer leaves NaN losses out of its "
        f"mean. `logging_nan_inf_filter=False`{every} shows it, and so does a replay of the step."
    )

"""What a log says of itself beyond its rows: what a row stands for, and what it cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from forensics.frozen import dataclass

PER_EPOCH = "epoch"
PER_STEP = "step"
INTERRUPT = "KeyboardInterrupt"
"""How ``LogFacts.ended`` begins where somebody stopped the training: an end, but no fault."""


class Meaning(StrEnum):
    """What one value of a column says of the steps that its row covers."""

    LAST = "of the last step"
    MEAN = "a mean over the steps of the row"
    MEDIAN = "a median over a window of steps"
    SMOOTHED = "a running average"
    SUM = "a sum over the steps of the row"


@dataclass(frozen=True, kw_only=True)
class ScalerHints:
    """What the lines of a log tell of the loss scaler's policy; None where they do not.

    Attributes:
        initial_scale: the loss scale at the first step.
        growth_interval: clean steps after which the scale grows (the window).
        hysteresis: overflows that one reduction takes.
        factor: by which the scale shrinks, at most 1.
        floor: the least scale.
    """

    initial_scale: float | None = None
    growth_interval: int | None = None
    hysteresis: int | None = None
    factor: float | None = None
    floor: float | None = None


@dataclass(frozen=True)
class EpochCount:
    """How the lines of a log count where steps are numbered through over its epochs.

    Attributes:
        first: the epoch of the first line.
        length: what an epoch counts to.
        from_zero: does it count from 0, or from 1?
    """

    first: int
    length: int
    from_zero: bool

    def told(self, step: int) -> str:
        """A step as the log counts it: ``epoch 2, 32,000 of 60,000``."""
        epochs, at = divmod(step - (not self.from_zero), self.length)
        at += not self.from_zero
        return f"epoch {self.first + epochs:,}, {at:,} of {self.length:,}"


@dataclass(frozen=True, kw_only=True)
class LogFacts:
    """What an importer learned of a log.

    Attributes:
        confidence: of 1, that the format is the one it was read as.
        reason: what it was recognised by.
        interval: steps that a row stands for; None where the distance of the rows tells.
        unit: what the numbers of the rows count: ``step``, or ``epoch`` where each row is one.
        epoch_count: how its lines count, where the steps are numbered through over the epochs.
        step_base: 0 or 1, the number of the first step in this log; None where unknown.
        meanings: by column, what its values say of the steps that a row covers.
        loss_filtered: does the writer leave NaN and Inf out of the mean that it logs as the loss,
            as the Hugging Face Trainer does by default (``logging_nan_inf_filter``)? A finite loss
            then does not say that every loss was finite.
        scaler: what the lines tell of the loss scaler's policy.
        precision: ``fp16``, ``bf16``, ``fp32`` or empty.
        clip_threshold: norm that gradients are clipped to, where the log says it.
        planned_steps: how many steps the run was to have, where the log says it.
        ended: the line of death that follows the last record, such as
            ``RuntimeError: CUDA error: …``; empty where the log just ends.
        ended_line: the line of the (last) file that says so, from 1; None where unknown.
        notes: what was inferred or put right, a clause each.
        unknown: what this log cannot tell, a clause each.
    """

    confidence: float = 1.0
    reason: str = ""
    interval: int | None = None
    unit: str = PER_STEP
    epoch_count: EpochCount | None = None
    step_base: int | None = None
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    loss_filtered: bool = False
    scaler: ScalerHints | None = None
    precision: str = ""
    clip_threshold: float | None = None
    planned_steps: int | None = None
    ended: str = ""
    ended_line: int | None = None
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SkipBracket:
    """Skipped steps that the log dates only to the stretch that a row covers.

    Attributes:
        first_step: first step of the stretch.
        last_step: its last step.
        count: how many of its steps the optimizer did not take.
    """

    first_step: int
    last_step: int
    count: int

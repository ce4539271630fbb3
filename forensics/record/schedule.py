"""The learning-rate schedule: linear warm-up, then constant or a cosine."""

from __future__ import annotations

import math
from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from forensics.record.config import ScheduleConfig


def lr_factor(step: int, config: ScheduleConfig, total_steps: int) -> float:
    """What the base learning rate is multiplied by at one step.

    The warm-up rises linearly and reaches 1 at its last step; it never starts at 0, a step that
    would teach nothing. The cosine then falls to ``min_lr_ratio`` at the last step of the run and
    stays there.

    Args:
        step: optimizer steps taken so far.
        config: the schedule.
        total_steps: length of the run, warm-up included.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.name == "constant":
        return 1.0
    left = max(1, total_steps - 1 - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / left)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine


def build_scheduler(
    optimizer: Optimizer, config: ScheduleConfig, total_steps: int
) -> LambdaLR | None:
    """The schedule as a torch scheduler; None where the rate never changes."""
    if config.name == "constant" and config.warmup_steps == 0:
        return None
    factor = partial(lr_factor, config=config, total_steps=total_steps)
    return LambdaLR(optimizer, factor)

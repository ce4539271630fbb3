"""What the faults with a loop of their own share."""

from __future__ import annotations

from contextlib import AbstractContextManager

from forensics.record.config import Config
from forensics.record.precision import choose_precision
from forensics.record.recipe import Training


def autocast(config: Config, training: Training) -> AbstractContextManager[object]:
    """Autocast of the configured precision on the model's device."""
    device = next(training.model.parameters()).device
    return choose_precision(config.precision, device, lambda _: None).autocast()

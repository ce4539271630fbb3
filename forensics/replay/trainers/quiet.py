"""What trainers say of themselves, kept out of a bisection: the recording heard it already."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = (
    "lightning.pytorch",
    "lightning.fabric",
    "pytorch_lightning",
    "transformers",
    "accelerate",
)
_TRACKERS = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""For scripts that begin a tracker's run by themselves."""


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, no log lines but errors, no experiment trackers, while the context lasts."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    kept = {name: os.environ.get(name) for name in _TRACKERS}
    os.environ.update(_TRACKERS)
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})

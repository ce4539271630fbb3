"""What trainers say of themselves, kept out of a bisection: the recording heard it already."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_TRACKERS = {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""For scripts that begin a tracker's run by themselves."""
_SAVES = "should_save"
"""What Hugging Face's Trainer asks before it makes or writes its folder."""


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, no log lines but errors, no trackers, no saves, while the context lasts."""
    disabled = logging.root.manager.disable
    kept = {name: os.environ.get(name) for name in _TRACKERS}
    os.environ.update(_TRACKERS)
    logging.disable(logging.WARNING)
    arguments = getattr(sys.modules.get("transformers"), "TrainingArguments", None)
    saves = None if arguments is None else vars(arguments)[_SAVES]
    if arguments is not None:
        setattr(arguments, _SAVES, property(lambda _: False))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if arguments is not None:
            setattr(arguments, _SAVES, saves)
        logging.disable(disabled)
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})

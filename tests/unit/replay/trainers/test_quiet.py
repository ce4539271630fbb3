"""What a trainer says of itself is kept out of a bisection, and heard again after it."""

from __future__ import annotations

import logging
import os
import warnings

import pytest

from forensics.replay.trainers.entered_precision import entered_as
from forensics.replay.trainers.quiet import quiet


def test_nothing_is_said_within_and_all_is_as_before_after_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("COMET_MODE", raising=False)
    logger = logging.getLogger("lightning.pytorch")
    with quiet():
        logger.warning("no GPU")
        warnings.warn("few workers", stacklevel=1)
        assert (os.environ["WANDB_MODE"], os.environ["COMET_MODE"]) == ("disabled", "disabled")
        logger.error("it failed")
    logger.warning("again")
    assert caplog.messages == ["it failed", "again"]
    assert os.environ["WANDB_MODE"] == "offline"
    assert "COMET_MODE" not in os.environ
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16", "torch.bfloat16"), ("fp32", "torch.float32"), (None, "torch.bfloat16")],
)
def test_an_autocast_that_was_made_before_is_entered_otherwise(
    precision: str | None, dtype: str
) -> None:
    import torch

    made = torch.autocast("cpu", torch.bfloat16)
    with entered_as(precision), made:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert str(product.dtype) == dtype
    with made:
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16

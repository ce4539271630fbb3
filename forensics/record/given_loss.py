"""The loss as a loop gives it: one that is no number costs its cell, not the gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor


def given_loss(
    loss: Any, shield: Callable[[str], AbstractContextManager[None]]
) -> Tensor | float | None:
    """A tensor with one element, a float, or None where nothing is given or none can be read.

    Nothing is read off a device here.

    Args:
        loss: whatever the loop has called its loss.
        shield: notes what is wrong with it, and goes on.
    """
    if loss is None or (type(loss) is Tensor and loss.numel() == 1 and not loss.is_complex()):
        return loss
    with shield("the loss"):
        return _one_number(loss)
    return None


def _one_number(loss: Any) -> Tensor | float | None:
    if loss is None:
        return None
    if not isinstance(loss, Tensor):
        return float(loss)
    if loss.numel() != 1:
        raise ValueError(f"its shape is {tuple(loss.shape)}, not that of one number: give the mean")
    if loss.is_complex():
        raise TypeError("it is complex: give its real part")
    return loss

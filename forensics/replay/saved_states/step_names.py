"""The step that a name tells: ``step-00000040.pt``, ``checkpoint-500``, ``epoch=3.ckpt``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_STEP = re.compile(
    r"(?:^|[^a-z])(?:global[_-]?steps?|steps?|iterations?|iter|checkpoint|ckpt|updates?|it)"
    r"[=_\-.]?(\d{1,18})(?!\d)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"(?:^|[^a-z])(?:epochs?|ep)[=_\-.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<![\d.])(\d{1,18})(?=\D*\Z)")
_SHARD = re.compile(r"-\d{5}-of-\d{5}")
_SUFFIX = re.compile(r"(\.nonfinite|\.safetensors|\.ckpt|\.pth|\.pt|\.bin|\.tar|\.th)+\Z")


class Unit(StrEnum):
    """What a state's number counts; numbers of different units cannot be ordered."""

    STEP = "step"
    EPOCH = "epoch"
    NUMBER = "number"


@dataclass(frozen=True, order=True)
class Position:
    """Where in a training a state was saved."""

    unit: Unit
    number: int


def position_in_name(name: str) -> Position | None:
    """The position in a file's or folder's name; None where it tells none.

    Where several numbers stand, the one after ``step`` (``epoch=3-step=1200.ckpt``) counts.
    """
    stem = _SUFFIX.sub("", _SHARD.sub("", name))
    for pattern, unit in ((_STEP, Unit.STEP), (_EPOCH, Unit.EPOCH), (_LAST_NUMBER, Unit.NUMBER)):
        match = pattern.search(stem)
        if match:
            return Position(unit, int(match[1]))
    return None

"""The step that a name tells: ``step-00000040.pt``, ``checkpoint-500``, ``epoch=3.ckpt``."""

from __future__ import annotations

import re

_NUMBERED = re.compile(
    r"(?:^|[^a-z])(?:global[_-]?step|step|iteration|iter|checkpoint|ckpt|update|it)s?[=_\-.]?(\d{1,18})"
    r"(?!\d)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"(?:^|[^a-z])(?:epoch|ep)[=_\-.]?(\d{1,18})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,18})(?=\D*\Z)")
_SHARD = re.compile(r"-\d{5}-of-\d{5}")


def step_in_name(name: str) -> int | None:
    """The step in a file's or folder's name; the epoch where it tells no step; None for neither.

    Where several numbers stand, the one after ``step`` (``epoch=3-step=1200.ckpt``) counts.
    """
    stem = _SHARD.sub("", name)
    for suffix in (".nonfinite", ".safetensors", ".ckpt", ".pth", ".pt", ".bin", ".tar"):
        stem = stem.removesuffix(suffix) if suffix != ".nonfinite" else stem.replace(suffix, "")
    for pattern in (_NUMBERED, _EPOCH):
        match = pattern.search(stem)
        if match:
            return int(match[1])
    match = _LAST_NUMBER.search(stem)
    return int(match[1]) if match else None

"""A training loss in columns of which none is called so."""

from __future__ import annotations

import re
from collections.abc import Sequence

from forensics.runlog.scanner.names import bare_name, canonical_name, split_humps

_ELSEWHERE = ("val", "eval", "test", "dev", "valid", "best", "min", "max", "scale", "lr", "prev")
_WHOLE = ("tot", "mean", "train", "sum", "overall")

_TWINS = ("val", "valid", "validation", "eval", "test", "dev")


def loss_like(names: Sequence[str]) -> dict[str, str]:
    """The column that is most likely the training loss, as ``{its name: "loss"}``, or nothing.

    Its name ends in ``loss``, is of no validation, and of several one says that it is the whole;
    of parts alone none is taken. Where it says ``train`` and another is called the same but for
    ``val``, that one is the validation loss.
    """
    found = [name for name in names if _is_loss(_words(name))]
    if len(found) > 1:
        found = [name for name in found if any(word in bare_name(name) for word in _WHOLE)][:1]
    if not found:
        return {}
    twin = next((name for name in names if _is_twin(_words(found[0]), _words(name))), None)
    known = any(canonical_name(name) == "val_loss" for name in names)
    return {found[0]: "loss"} | ({twin: "val_loss"} if twin is not None and not known else {})


def _words(name: str) -> list[str]:
    return re.split(r"[/._\s-]+", bare_name(split_humps(name)))


def _is_loss(words: list[str]) -> bool:
    ends = any(word.endswith("loss") for word in words[-2:])
    return ends and not any(word in _ELSEWHERE for word in words)


def _is_twin(train: list[str], other: list[str]) -> bool:
    """Is the other name this one with a validation's word for ``train``?"""
    pairs = [pair for pair in zip(train, other, strict=False) if pair[0] != pair[1]]
    return (
        len(train) == len(other)
        and len(pairs) == 1
        and pairs[0][0] in ("train", "training")
        and pairs[0][1] in _TWINS
    )

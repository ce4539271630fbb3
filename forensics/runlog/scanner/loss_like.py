"""A training loss in columns of which none is called so."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.runlog.scanner.names import bare_name

_ELSEWHERE = ("val", "eval", "test", "dev", "valid", "best", "min", "max", "scale", "lr", "prev")
_WHOLE = ("total", "mean", "train", "sum", "overall")


def loss_like(names: Sequence[str]) -> dict[str, str]:
    """The column that is most likely the training loss, as ``{its name: "loss"}``, or nothing.

    Its name ends in ``loss``, is of no validation, and of several one says that it is the whole;
    of parts alone none is taken.
    """
    found = [name for name in names if _is_loss(bare_name(name))]
    if len(found) > 1:
        found = [name for name in found if any(word in bare_name(name) for word in _WHOLE)][:1]
    return {found[0]: "loss"} if found else {}


def _is_loss(bare: str) -> bool:
    words = bare.replace("/", "_").replace(".", "_").replace("-", "_").replace(" ", "_").split("_")
    ends = any(word.endswith("loss") for word in words[-2:])
    return ends and not any(word in _ELSEWHERE for word in words)

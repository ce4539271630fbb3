"""A training loss in columns of which none is called so."""

from __future__ import annotations

import re
from collections.abc import Sequence

from forensics.runlog.scanner.names import bare_name, canonical_name, split_humps

_ELSEWHERE = ("val", "eval", "test", "dev", "valid", "best", "min", "max", "scale", "lr", "prev")
_WHOLE = ("tot", "mean", "train", "sum", "overall")

_CRITERIA = frozenset(
    (
        *("ce", "xent", "xentropy", "crossentropy", "nll", "bce", "bcewithlogits"),
        *("cross_entropy", "cross_ent"),
    )
)
"""What a loss is called by its formula; each of these is minimised, whoever logs it."""
_PLAIN = frozenset((*_WHOLE, "training", "avg", "total", "step", "batch", "metrics", "smoothed"))
"""Words beside a criterion that leave it the loss of the training: not ``aux_ce``."""
_LOSSY = ("loss", "cost", "objective", "elbo", "criterion")
"""Parts of a word that may be a loss's."""

_TWINS = ("val", "valid", "validation", "eval", "test", "dev")


def loss_like(names: Sequence[str], *, criteria: bool = True) -> dict[str, str]:
    """The column that is most likely the training loss, as ``{its name: "loss"}``, or nothing.

    Its name ends in ``loss``, is of no validation, and of several one says that it is the whole;
    of parts alone none is taken. Where none ends so, one that is called by its criterion is
    (``ce``, ``train_nll``), if it is the only one. Where it says ``train`` and another is called
    the same but for ``val``, that one is the validation loss.

    Args:
        names: of the columns.
        criteria: may a criterion's name alone tell?
    """
    found = [name for name in names if _is_loss(_words(name))]
    if len(found) > 1:
        found = [name for name in found if any(word in bare_name(name) for word in _WHOLE)][:1]
    elif not found and criteria:
        found = _criteria(names)
    if not found:
        return {}
    twin = next((name for name in names if _is_twin(_words(found[0]), _words(name))), None)
    known = any(canonical_name(name) == "val_loss" for name in names)
    return {found[0]: "loss"} | ({twin: "val_loss"} if twin is not None and not known else {})


def suggested_loss(names: Sequence[str]) -> str | None:
    """The one column that looks like a loss, though not surely enough to be taken for it.

    None where no name does, or several do.
    """
    found = [
        name
        for name in names
        if any(part in word for part in _LOSSY for word in _words(name))
        or not (_CRITERIA | {"mse"}).isdisjoint(_words(name))
    ]
    found = [name for name in found if not any(word in _ELSEWHERE for word in _words(name))]
    return found[0] if len(found) == 1 else None


def _criteria(names: Sequence[str]) -> list[str]:
    """The only column that a criterion of the training names, or nothing."""
    found = [name for name in names if _is_criterion(_words(name))]
    if len(found) > 1:
        found = [name for name in found if "train" in bare_name(name)]
    return found if len(found) == 1 else []


def _is_criterion(words: list[str]) -> bool:
    """``ce``, ``train/nll``, ``cross_entropy_mean``: a criterion, and nothing that narrows it."""
    told = [word for word in words if word not in _PLAIN]
    return "_".join(told) in _CRITERIA


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

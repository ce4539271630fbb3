"""Which columns the step log of a recording has."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.errors import UsageError
from forensics.record.options import FREE_EXTRAS
from forensics.runlog.schema import CANONICAL_NAMES, spec_of


def columns_of(groups: int, extras: Sequence[str] = ()) -> tuple[str, ...]:
    """All columns of a step log.

    Args:
        groups: parameter groups over all optimizers; each beyond the first gets its ``lr_N``.
        extras: optional columns; UsageError for one without a fixed meaning.
    """
    if unknown := [name for name in extras if spec_of(name) is None]:
        raise UsageError(f"no extra column is called {unknown[0]!r}", where="extras")
    further = [f"lr_{i}" for i in range(1, groups)]
    names = (*CANONICAL_NAMES, *FREE_EXTRAS, *further, *extras)
    return tuple(dict.fromkeys(names))

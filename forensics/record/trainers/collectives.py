"""Where a trainer itself waits for the other ranks, beside the reduction of gradients.

A rank whose loader hangs keeps the others waiting in whatever collective comes first. Unless that
is marked as a wait, all of them seem to be at their own part of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from forensics.record.ranks.world import current_world
from forensics.record.recorder import Recorder


def mark_waits(owner: Any, names: Iterable[str], recorder: Recorder) -> Callable[[], None]:
    """Mark each call of these methods of this one object as a wait of this rank.

    Args:
        owner: of the collectives.
        names: of its methods; those that it does not have are left out.
        recorder: of this rank.

    Returns:
        What leaves the object as it was.
    """
    if current_world().size == 1:
        return lambda: None
    before = dict(vars(owner))
    marked = [name for name in names if callable(getattr(owner, name, None))]
    for name in marked:
        setattr(owner, name, _marked(getattr(owner, name), recorder))

    def leave() -> None:
        for name in marked:
            vars(owner).pop(name, None)
            if name in before:
                setattr(owner, name, before[name])

    return leave


def _marked(collective: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @wraps(collective)
    def waits(*args: Any, **kwargs: Any) -> Any:
        with recorder.reducing():
            return collective(*args, **kwargs)

    return waits

"""A fork of a process that records, such as a data loader's worker, has all that its parent has.

Files and the sockets to other ranks are open in both. What the fork goes on calling must not reach
them: the run is its parent's.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

_told: list[weakref.WeakMethod[Callable[[], Any]]] = []


def tell_in_forks(method: Callable[[], Any]) -> None:
    """Have a bound method called in every fork of this process, while its object is there."""
    _told[:] = [known for known in _told if known() is not None]
    _told.append(weakref.WeakMethod(method))


def _in_fork() -> None:
    for known in _told:
        method = known()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):  # no such thing on Windows
    os.register_at_fork(after_in_child=_in_fork)

"""The progress bar of a bisection: on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]


@contextmanager
def bisection_progress() -> Iterator[Progress | None]:
    """A bar with the time left on standard error while the context lasts; None without terminal.

    Yields:
        What to call with what is under way, how much of it is done, and how much there is in all
        (0 where that is not known).
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from forensics.render.safe_text import visible

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the log", total=None)
        shown = [""]

        def on_progress(text: str, done: int, total: int) -> None:
            if text != shown[0]:
                shown[0] = text
                bar.reset(task, description=visible(text), total=total or None)
            bar.update(task, completed=done)

        yield on_progress

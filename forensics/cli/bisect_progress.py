"""What a bisection says while it works: a bar on a terminal, else what the what-ifs will cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forensics.cli.streams import say

Progress = Callable[[str, int, int], None]


@contextmanager
def bisection_progress() -> Iterator[Progress]:
    """A bar with the time left on standard error while the context lasts, where that is a terminal.

    Elsewhere a line says what the what-ifs will cost, before the first of them.

    Yields:
        What to call with what is under way, how much of it is done, and how much there is in all
        (0 where that is not known).
    """
    if not sys.stderr.isatty():
        yield _say_costs()
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


def _say_costs() -> Progress:
    told: set[str] = set()

    def on_progress(text: str, done: int, total: int) -> None:
        if text.startswith("what if: ") and text not in told:
            told.add(text)
            say(text)

    return on_progress

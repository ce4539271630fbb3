"""The progress bar of a recording: on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forensics.cli.streams import printed, say

OnStep = Callable[[int, int], None]
Say = Callable[[str], None]


@contextmanager
def recording_progress(name: str) -> Iterator[tuple[OnStep | None, Say]]:
    """A bar on standard error while the context lasts; nothing at all where that is no terminal.

    Yields:
        What to call after each step with the steps done and the steps in all (None where there
        is no bar), and what tells a line without tearing the bar.
    """
    if not sys.stderr.isatty():
        yield None, say
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"recording {printed(name)}", total=None)

        def on_step(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield on_step, say

"""``--format-in`` and ``--map`` of the verbs that read logs of other programs, and the progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from forensics.errors import UsageError
from forensics.runlog.reading import Reading

F = TypeVar("F", bound=Callable[..., Any])
Progress = Callable[[int, int], None]
_PATIENCE = 1.0
"""Seconds after which a reader at a terminal is told how far it is."""
_PAUSE = 0.2
"""Seconds between two redraws."""


def reading_options(command: F) -> F:
    """Add ``--format-in`` (as ``format_in``) and ``--map`` (as ``mapping``)."""
    add_map = click.option(
        "--map",
        "mapping",
        multiple=True,
        metavar="COLUMN=NAME",
        help="What a column is called in the log, such as loss=train/loss. Repeatable.",
    )
    add_format = click.option(
        "--format-in",
        metavar="FORMAT",
        default="",
        help="Who wrote the log. Default: as its first part tells; `forensics convert --formats` "
        "lists them.",
    )
    return add_format(add_map(command))


def reading_of(format_in: str, mapping: Iterable[str]) -> Reading:
    """What the two options say.

    Raises:
        UsageError: a mapping is not ``COLUMN=NAME``.
    """
    pairs: dict[str, str] = {}
    for text in mapping:
        target, equals, source = text.partition("=")
        if not (target.strip() and equals and source.strip()):
            raise UsageError(
                f"{text!r} is not COLUMN=NAME", where="--map", hint="as in --map loss=train/loss"
            )
        pairs[target.strip()] = source.strip()
    return Reading(format_in=format_in, mapping=pairs, progress=_progress(_read))


def judging_progress() -> Progress | None:
    """What ``diagnose`` tells its rules to; None where nobody watches."""
    return _progress(_judged)


def _progress(words: Callable[[int, int], str]) -> Progress | None:
    watched = sys.stderr is not None and sys.stderr.isatty()
    return _Progress(words).tell if watched else None


class _Progress:
    """One line on standard error that is redrawn, and wiped at the end.

    Args:
        words: what is done, of how much.
    """

    def __init__(self, words: Callable[[int, int], str]) -> None:
        self._words = words
        self._start = time.monotonic()
        self._told = 0.0

    def tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total:
            if self._told:
                click.echo("\r\x1b[K", nl=False, err=True)
            self._start, self._told = now, 0.0
        elif now - self._start > _PATIENCE and now - self._told > _PAUSE:
            self._told = now
            told = self._words(done, total) + _left(done, total, now - self._start)
            click.echo(f"\r\x1b[K{told}", nl=False, err=True)


def _read(done: int, total: int) -> str:
    """``reading: 12 of 40 MiB (30 %)``."""
    return f"reading: {done >> 20:,} of {total >> 20:,} MiB ({100 * done // max(total, 1)} %)"


def _judged(done: int, total: int) -> str:
    """``judging: 12 of 48 rules``."""
    return f"judging: {done} of {total} rules"


def _left(done: int, total: int, seconds: float) -> str:
    """``, 0:07 left``; empty where nothing is done yet."""
    if not done:
        return ""
    left = round(seconds * (total - done) / done)
    return f", {left // 60}:{left % 60:02} left"

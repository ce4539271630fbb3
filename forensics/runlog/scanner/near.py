"""Matches of a slow pattern, looked for only in lines that hold one of some texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

REACH = 64


def matches_near(
    pattern: re.Pattern[bytes], text: bytes, needles: Sequence[bytes] | Mapping[bytes, int]
) -> Iterator[re.Match[bytes]]:
    """The matches of a pattern in the lines that hold a needle, in order.

    A pattern that may begin in several ways is tried at each byte, ten times as slowly as the
    needles are found.

    Args:
        pattern: matches nothing that goes beyond a line, and begins at most ``REACH`` bytes before
            a needle.
        text: whole lines.
        needles: texts of which one is in each match; or how far before each a match begins at
            most. At those with which one begins nothing else is tried.
    """
    reach = needles if isinstance(needles, Mapping) else dict.fromkeys(needles, REACH)
    done = 0
    for at, most in sorted(
        (at, most) for needle, most in reach.items() for at in _all(text, needle)
    ):
        if at < done:
            continue  # within the match before, or in a line that has no more
        end = text.find(b"\n", at)
        end = end if end >= 0 else len(text)
        if most == 0:
            if match := pattern.match(text, at, end):
                yield match
                done = max(match.end(), at + 1)
            continue
        start = max(text.rfind(b"\n", done, at) + 1, at - most, done)
        while start <= at:
            match = pattern.search(text, start, end)
            if match is None:
                done = end
                break
            yield match
            start = done = max(match.end(), start + 1)


def in_turn(
    *found: Iterable[re.Match[bytes]],
) -> Iterator[re.Match[bytes]]:
    """Matches of several patterns as they begin, without those within the one before."""
    lists = [matches for matches in map(list, found) if matches]
    if len(lists) < 2:
        yield from chain(*lists)
        return
    done = 0
    for match in sorted(chain(*lists), key=_start):
        if match.start() >= done:
            yield match
            done = match.end()


def _start(match: re.Match[bytes]) -> int:
    return match.start()


def _all(text: bytes, needle: bytes) -> Iterator[int]:
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, at + len(needle))

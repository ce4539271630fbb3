"""The first part of a log, by which its format is told."""

from __future__ import annotations

import re
from functools import cached_property

from forensics.frozen import dataclass

HEAD = 512 << 10
"""Bytes looked at: several hundred lines of configuration or source code may come first."""
LONG_HEAD = 8 << 20
"""Bytes looked at where nothing is recognised in the first."""
_PAGE = (b"<!doctype html", b"<html")
_MOST_BLANK = 4096


@dataclass(frozen=True)
class Head:
    """The beginning of a log.

    Attributes:
        name: name of the file; ``-`` for standard input.
        raw: its first bytes, decompressed and in UTF-8, whole lines unless ``complete``.
        text: the same, cleaned (``scanner.cleaning``).
        complete: is that the whole file?
    """

    name: str
    raw: bytes
    text: bytes
    complete: bool

    @cached_property
    def lines(self) -> list[bytes]:
        """The cleaned lines that are not blank."""
        return [line for line in self.text.split(b"\n") if line.strip()]

    @cached_property
    def first_line(self) -> bytes:
        """The first line that is neither blank nor a comment; empty where there is none."""
        return next((line for line in self.lines if not line.lstrip().startswith(b"#")), b"")

    def hits(self, pattern: re.Pattern[bytes], most: int = 50) -> int:
        """How many lines of the head a pattern is found in, up to ``most``."""
        found, at = 0, 0
        while found < most and (match := pattern.search(self.text, at)) is not None:
            found += 1
            at = self.text.find(b"\n", match.end() - (match.end() > match.start()))
            if at < 0:
                break
        return found


def is_web_page(raw: bytes) -> bool:
    """Is a file HTML, by its first bytes?"""
    return raw[:_MOST_BLANK].lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_PAGE)

"""Text from logs is a stranger's: what it may do to a terminal, a width or a Markdown page.

A parameter name or an exception message can hold terminal escapes, line breaks, right-to-left
overrides or a pipe that breaks a table. Nothing of it is ever printed as it came.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any, TypeVar

_T = TypeVar("_T")

LONGEST = 1_000
"""Characters of one text that are shown; a megabyte in one cell must not bury the verdict."""

_PLAIN = str.maketrans(
    {
        "×": "x",
        "→": "->",
        "←": "<-",
        "·": "|",
        "…": "...",
        "–": "-",
        "—": "-",
        "−": "-",
        "≥": ">=",
        "≤": "<=",
        "≈": "~",
        "±": "+-",
        "√": "sqrt",
        "σ": "sigma",
        "Δ": "delta ",
        "²": "^2",
        "’": "'",
        "“": '"',
        "”": '"',
    }
)


def visible(text: str) -> str:
    """The text on one line, with everything a terminal could act on written out."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def _written_out(char: str) -> str:
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is no UTF-8, as Python keeps it
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def plain_ascii(text: str) -> str:
    """The text for a terminal that knows ASCII alone: our own signs spelled, the rest written out.

    Works on text that is already ``visible``.
    """
    if text.isascii():
        return text
    return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def display_width(text: str) -> int:
    """Columns that printable text takes on a terminal (wide characters two, combining none)."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


_MARKDOWN = re.compile(r"([\\`*\[\]|~$])")
# Within a word (grad_l2_pre_clip) an underscore is only an underscore; at its edge it can open
# an emphasis.
_EDGE_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What opens a list, a heading or a rule at the start of a line.
_BLOCK_START = re.compile(r"^(\s*\d*)([#+=.)-])")


def markdown(text: str) -> str:
    """The text as inline Markdown that renders as itself, in a paragraph or a table cell."""
    text = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _EDGE_UNDERSCORE.sub(r"\\_", _MARKDOWN.sub(r"\\\1", text))
    return _BLOCK_START.sub(r"\1\\\2", text)


def map_texts(value: _T, change: Callable[[str], str]) -> _T:
    """A copy of a dataclass with every text in it changed, however deep; enums stay.

    So do fields that take no part in comparisons: what a value came from is not told.
    """
    changed: Any = value
    if isinstance(value, str) and not isinstance(value, Enum):
        changed = change(value)
    elif isinstance(value, tuple):
        changed = tuple(map_texts(item, change) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        changed = replace(
            value,
            **{
                f.name: map_texts(getattr(value, f.name), change)
                for f in fields(value)
                if f.compare
            },
        )
    return changed  # type: ignore[no-any-return]

"""What is said of a log that cannot be read, or of a format that is not there: what to do next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from forensics.errors import InputError, UsageError
from forensics.runlog.csv_reader.cells import is_absent, parse_number
from forensics.runlog.csv_reader.header import split_cells
from forensics.runlog.csv_reader.repair_log import shown
from forensics.runlog.importers.importer import Importer
from forensics.runlog.scanner.head import Head, is_web_page
from forensics.runlog.scanner.summaries import what_it_is

_LIKE = 0.65
"""Likeness, as difflib measures it, from which a name may be meant."""
_MOST_LIKE = 3
_LOOKED_AT = 4096
_BINARY = 0.12
"""Share of characters that no text holds, from which a file is none; random bytes have 0.4."""
_SHOWN = 30
_DELIMITERS = (",", ";", "\t")
_LIST = "`forensics convert --formats` lists"


def no_such_format(name: str, importers: Sequence[Importer]) -> UsageError:
    """The error for a ``--format-in`` that names no importer: those that may be meant."""
    close = _meant(name.strip().lower(), importers)
    question = f"did you mean {' or '.join(close)}? " if close else ""
    return UsageError(
        f"no format is called {name!r}",
        where="--format-in",
        hint=f"{question}{_LIST} all {len(importers)}",
    )


def _meant(name: str, importers: Sequence[Importer]) -> list[str]:
    """The formats with a name in their own or in their description, then those spelled alike."""
    from difflib import get_close_matches

    names = [importer.name for importer in importers]
    bare = _bare(name)
    parts = [n for n in names if len(bare) > 2 and (bare in _bare(n) or _bare(n) in bare)]
    whose = [i.name for i in importers if len(bare) > 2 and bare in _bare(i.description)]
    spelled = get_close_matches(name, names, n=_MOST_LIKE, cutoff=_LIKE)
    return list(dict.fromkeys([*parts, *whose, *spelled]))[:_MOST_LIKE]


def _bare(text: str) -> str:
    """Letters and digits alone: ``huggingface`` is ``Hugging Face``."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def unknown(path: Path, head: Head) -> InputError:
    """The error for a file that no importer knows: what was looked for, and what may help."""
    if is_binary(head.raw):
        return InputError(
            "is binary, not a log",
            where=path,
            hint="logs are text, event files or gzip and zstd of those; "
            "`forensics inspect` looks into saved states",
        )
    if is_web_page(head.raw):
        hint = "download the file itself: its raw view, its link, not the page about it"
        return InputError("is a web page, not a log", where=path, hint=hint)
    if (known := what_it_is(head)) is not None:
        return InputError(known[0], where=path, hint=known[1])
    lines = head.lines
    if _are_numbers_alone(lines):
        return InputError(
            f"has no header line; it begins with {shown(lines[0].decode('utf-8', 'replace'))}",
            where=path,
            hint="put the names of the columns on the first line, such as step,loss",
        )
    first = (
        f"; it begins {shown(lines[0].decode('utf-8', 'replace').strip()[:_SHOWN])}"
        if lines
        else ""
    )
    return InputError(
        "is no training log of a known kind: no line like `step 10 loss 2.1`, no column or key "
        f"loss, lr or grad_norm{first}",
        where=path,
        hint=f"--format-in FORMAT says whose it is ({_LIST} them), --map loss=NAME what is the "
        "loss",
    )


def _are_numbers_alone(lines: Sequence[bytes]) -> bool:
    """Are the first lines a table's, of numbers and empty cells, as if its header were cut off?"""
    if len(lines) < 2:
        return False
    for line in lines[:3]:
        text = line.decode("utf-8", errors="replace")
        cells = split_cells(text, max(_DELIMITERS, key=text.count))
        told = [cell for cell in cells if not is_absent(cell)]
        if len(told) < 2 or any(parse_number(cell) is None for cell in told):
            return False
    return True


def is_binary(raw: bytes) -> bool:
    """Is it no text, by its first bytes?"""
    text = raw[:_LOOKED_AT].decode("utf-8", errors="replace")
    odd = sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\x1b\b\0") for char in text)
    return odd > _BINARY * len(text) + 1

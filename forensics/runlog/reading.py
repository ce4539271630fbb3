"""How a log is to be read, where the user says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from forensics.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the user says about a log.

    Attributes:
        format_in: name of the importer to use; empty to find out.
        mapping: column of the step table → name of it in the log (``--map loss=train/loss``).
        progress: told the bytes read so far, and of how many.
        most_rows: a log of another program that has more rows is read as if it had logged every
            k-th step, and each that stands out (``scanner.thinning``); None keeps every row.
    """

    format_in: str = ""
    mapping: Mapping[str, str] = field(default_factory=dict)
    progress: Callable[[int, int], None] | None = None
    most_rows: int | None = 2_000_000

    @property
    def plain(self) -> bool:
        """Did the user say nothing about format or columns?"""
        return not self.format_in and not self.mapping

"""The shape of an importer: a name, a look at the head, and one reading function."""

from __future__ import annotations

from collections.abc import Callable

from forensics.frozen import dataclass
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

CERTAIN = 0.99
"""Confidence where the head holds what only this format writes."""
LIKELY = 0.8
"""Confidence where the shape fits and little else writes it."""
POSSIBLE = 0.4
"""Confidence of the general readers: any CSV, any JSON lines."""


@dataclass(frozen=True)
class Match:
    """How sure an importer is of a log, and by what it knows it."""

    confidence: float
    reason: str


Sniff = Callable[[Head], Match | None]
Read = Callable[[LogSource, Reading], StepTable]


@dataclass(frozen=True, kw_only=True)
class Importer:
    """One foreign format.

    Attributes:
        name: in kebab-case, as ``--format-in`` takes it and the report tells it.
        description: one line for ``--help``: whose format it is.
        sniff: tells by the head of a file whether it is this format; None if not. Never raises.
        read: reads the whole log into a step table with ``facts``; raises InputError.
        columns: does ``--map`` mean anything to it: are its columns named in the log?
        binary: is the file no text? Then ``Head.raw`` alone is of use.
        last_resort: is it never surer than the general readers, and its look at a head as dear as
            reading? Then it is asked where no other knows the log.
    """

    name: str
    description: str
    sniff: Sniff
    read: Read
    columns: bool = False
    binary: bool = False
    last_resort: bool = False

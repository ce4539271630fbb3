"""Which importer reads a log: by the first part of the file, or as the user says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from forensics.errors import UsageError
from forensics.frozen import dataclass
from forensics.runlog.csv_reader.spans import size_of
from forensics.runlog.importers import IMPORTERS
from forensics.runlog.importers.importer import POSSIBLE, Importer, Match
from forensics.runlog.importers.refusals import no_such_format
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.ending import Crash, crash_after, line_of, lines_of_end
from forensics.runlog.scanner.head import LONG_HEAD, Head
from forensics.runlog.scanner.last_words import with_fatal_loss
from forensics.runlog.scanner.rounded import without_rounded_rates
from forensics.runlog.scanner.source import LogSource, head_of, newlines_in
from forensics.runlog.steps import Repair, StepTable

_ROW = re.compile(
    rb'(?m)^(?:[-+.\deEnaifNAIF" ]*[,;\t])+[-+.\deEnaifNAIF" ]*\d[-+.\deE" ]*$|^\{".*\}$'
)
"""A row of numbers, or a JSON line: what a log of named columns goes on with."""
_NO_ROWS = frozenset(("stray-lines", "short-rows", "overlong-rows", "torn-rows", "torn-last-line"))


@dataclass(frozen=True)
class Choice:
    """The importer that fits a log best, how well, and which others fit."""

    importer: Importer
    match: Match
    others: tuple[str, ...] = ()


def detect(head: Head, reading: Reading | None = None) -> Choice | None:
    """The importer that is surest of a log; of equals the one listed first.

    Args:
        head: the first part of the log.
        reading: with ``mapping``, only importers whose columns have names are asked.
    """
    named = reading is not None and bool(reading.mapping)
    found: list[tuple[Importer, Match]] = []
    for importer in IMPORTERS:
        asked = importer.columns or not named
        if importer.last_resort and any(match.confidence >= POSSIBLE for _, match in found):
            asked = False
        if asked and (match := importer.sniff(head)) is not None:
            found.append((importer, match))
    if not found:
        return None
    best, match = max(found, key=lambda pair: pair[1].confidence)
    others = tuple(other.name for other, _ in found if other is not best)
    return Choice(best, match, others)


def import_logs(paths: Sequence[Path], reading: Reading) -> StepTable | None:
    """Read the files of one run, oldest first, as whatever they are; None if nothing knows them.

    Raises:
        InputError: a file cannot be read, or holds no record of its format.
        UsageError: ``format_in`` names no importer, or ``mapping`` says nothing to it.
    """
    choice = choice_of(paths[0], reading)
    return None if choice is None else read_as(choice, paths, reading)


def choice_of(path: Path, reading: Reading) -> Choice | None:
    """How a file is to be read: as the user says, else as its first part tells; None if unknown."""
    if reading.format_in:
        return _named(reading.format_in)
    choice = detect(head_of(path), reading)
    if choice is None and size_of(path) > 0:
        choice = detect(head_of(path, LONG_HEAD), reading)
    return choice


def read_as(choice: Choice, paths: Sequence[Path], reading: Reading) -> StepTable:
    """Read the files of one run that are of one format, oldest first.

    Raises:
        InputError: a file cannot be read, or none holds a record of the format.
        UsageError: ``mapping`` says nothing to it.
    """
    if reading.mapping and not choice.importer.columns:
        raise UsageError(
            f"--map says nothing to {choice.importer.name}, whose columns have no names",
            hint="--format-in csv or jsonl reads named columns",
        )
    source = LogSource(paths, reading.progress, reading.most_rows)
    try:
        table = choice.importer.read(source, reading)
    finally:
        source.finish()
    if not choice.importer.binary:
        source.read_tail()

    def is_record(text: bytes) -> bool:
        return _has_record(choice.importer, text)

    if not choice.importer.binary:
        table = without_rounded_rates(table, _ends(source))
    table = with_fatal_loss(table, source.tail, is_record)
    crash = crash_after(source.tail, is_record)
    facts = replace(
        table.facts or LogFacts(),
        confidence=choice.match.confidence,
        reason=choice.match.reason,
        ended=crash.text if crash else "",
        ended_line=_place(crash, source) if crash else None,
    )
    repairs = table.repairs if crash is None else _but_its_end(table.repairs, crash, source)
    return replace(table, facts=facts, repairs=repairs)


def _but_its_end(
    repairs: tuple[Repair, ...], crash: Crash, source: LogSource
) -> tuple[Repair, ...]:
    """The repairs without lines that are no rows because they tell how the program ended."""
    most = lines_of_end(crash, source.raw_tail)
    return tuple(r for r in repairs if r.kind not in _NO_ROWS or r.count > most)


def _has_record(importer: Importer, text: bytes) -> bool:
    if importer.columns and _ROW.search(text):
        return True
    return importer.sniff(Head("", text, text, True)) is not None


def _ends(source: LogSource) -> Iterator[bytes]:
    """The first and the last part of the clean text."""
    yield source.head().text
    yield source.tail


def _place(crash: Crash, source: LogSource) -> int | None:
    return line_of(crash, source.raw_tail, newlines_in(source.paths[-1]))


def _named(name: str) -> Choice:
    """The importer of a name that the user gave."""
    for importer in IMPORTERS:
        if importer.name == name:
            return Choice(importer, Match(1.0, "named by --format-in"))
    raise no_such_format(name, IMPORTERS)

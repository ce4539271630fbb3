"""Several files of one run: each read as what it is, in the order of their steps, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

from forensics.errors import InputError
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.csv_reader.spans import reading_only, size_of
from forensics.runlog.importers.detect import Choice, choice_of, read_as
from forensics.runlog.importers.refusals import is_binary
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.ending import crash_after
from forensics.runlog.scanner.joining import joined_columns
from forensics.runlog.scanner.rows import finished
from forensics.runlog.scanner.source import LogSource, head_of
from forensics.runlog.steps import StepTable

_GLANCE = 1 << 20
"""Bytes by which the first step of a file is known."""

Part = tuple[Path, Choice]


def import_several(paths: Sequence[Path], reading: Reading) -> StepTable | None:
    """Read the files of one run, oldest first, each as what it is; None where the first is unknown.

    Raises:
        InputError: a file cannot be read, is no log, or counts epochs where others count steps.
        UsageError: ``format_in`` names no importer, or ``mapping`` says nothing to it.
    """
    first = choice_of(paths[0], reading)
    if first is None:
        return None
    parts = [(path, _choice(path, first, reading)) for path in paths]
    ordered = _by_time(parts, reading)
    groups = [list(group) for _, group in groupby(ordered, lambda part: part[1].importer.name)]
    tables = [read_as(group[0][1], [path for path, _ in group], reading) for group in groups]
    table = tables[0] if len(tables) == 1 else _joined(tables, groups)
    if ordered == parts:
        return table
    names = ", ".join(path.name for path, _ in ordered)
    return _with_note(table, f"put in the order of their steps and times: {names}")


def _choice(path: Path, first: Choice, reading: Reading) -> Choice:
    """How a file is read: as the first one where it can be, else as what it is."""
    if reading.format_in:
        return first
    head = head_of(path)
    if first.importer.sniff(head) is not None:
        return first
    own = choice_of(path, reading)
    if own is not None:
        return own
    # The last words of a program may be in a file of their own.
    if not is_binary(head.raw) and crash_after(head.text, lambda text: False) is not None:
        return first
    raise InputError(
        f"has no record of training as {first.importer.name} writes it, nor of another kind",
        where=path,
        hint="leave it out of --join",
    )


def _by_time(parts: list[Part], reading: Reading) -> list[Part]:
    """The parts in order of their first steps, where that is the order of their files' times, too.

    A run that was begun anew has its first steps last, and stays where it is.
    """
    steps = [_first_step(path, choice, reading) for path, choice in parts]
    known = [step for step in steps if step is not None]
    if len(known) < len(parts) or all(a <= b for a, b in pairwise(known)):
        return parts
    order = sorted(range(len(parts)), key=lambda i: known[i])
    times = [parts[i][0].stat().st_mtime for i in order]
    return [parts[i] for i in order] if all(a < b for a, b in pairwise(times)) else parts


def _first_step(path: Path, choice: Choice, reading: Reading) -> int | None:
    """The first step in a file by its beginning; None where that does not tell it."""
    if choice.importer.binary:
        return None
    glance = replace(reading, progress=None)
    try:
        with reading_only(path, [(0, min(_GLANCE, size_of(path)))]):
            table = choice.importer.read(LogSource((path,)), glance)
    except InputError:
        return None
    tables = [*table.earlier, table]
    return min((int(t.step[0]) for t in tables if len(t)), default=None)


def _joined(tables: Sequence[StepTable], groups: Sequence[Sequence[Part]]) -> StepTable:
    """Tables of several formats as one."""
    facts = [table.facts or LogFacts() for table in tables]
    for one, group in zip(facts, groups, strict=True):
        if one.unit != facts[0].unit:
            raise InputError(
                f"counts {one.unit}s, and {groups[0][0][0]} counts {facts[0].unit}s",
                where=group[0][0],
                hint="report on each of them",
            )
    log = RepairLog()
    for table in tables:
        for repair in table.repairs:
            log.take(repair)
    whose = ", ".join(
        f"{path.name} as {choice.importer.name}" for group in groups for path, choice in group
    )
    table = finished(
        joined_columns(tables), tables[0].source_format, _merged(facts, f"read {whose}"), log
    )
    earlier = tuple(old for part in tables for old in part.earlier)
    return replace(table, earlier=(*earlier, *table.earlier))


def _merged(facts: Sequence[LogFacts], note: str) -> LogFacts:
    """What is known of all files together; how it ended is in the last one."""
    doubtful = min(facts, key=lambda one: one.confidence)
    notes = dict.fromkeys((note, *(clause for one in facts for clause in one.notes)))
    return replace(
        facts[-1],
        confidence=doubtful.confidence,
        reason=doubtful.reason,
        interval=facts[0].interval if len({one.interval for one in facts}) == 1 else None,
        epoch_count=None,  # each file counts from its own first epoch
        step_base=facts[0].step_base,
        meanings={name: meaning for one in facts for name, meaning in one.meanings.items()},
        loss_filtered=any(one.loss_filtered for one in facts),
        notes=tuple(notes),
        unknown=tuple(dict.fromkeys(clause for one in facts for clause in one.unknown)),
    )


def _with_note(table: StepTable, note: str) -> StepTable:
    facts = table.facts or LogFacts()
    return replace(table, facts=replace(facts, notes=(note, *facts.notes)))

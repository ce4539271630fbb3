"""Records of named values (JSON objects, Python dicts) as rows of the step table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from forensics.errors import InputError, UsageError
from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.csv_reader.repair_log import RepairLog, shown
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.json_columns import json_columns
from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.names import canonical_name, mapped_names, step_rank
from forensics.runlog.scanner.numbers import number
from forensics.runlog.scanner.rows import TELLING, Cell, Rows
from forensics.runlog.scanner.source import BLOCK, LogSource
from forensics.runlog.schema import Kind, spec_of
from forensics.runlog.steps import StepTable, canonical_order

MOST_METRICS = 512
"""Further numbers that are kept beside the known columns."""
_MOST_KEYS = 4096
_WORTHWHILE = 8
"""Records alike from which on it pays to take them together."""
_MOST_WAITING = 10_000
"""Records without a step after which none is expected to come: then they are counted."""
_DEEPEST = 3
"""Levels of objects within a record that are looked into."""
_TRAINED = frozenset(("loss", "grad_l2_pre_clip", "grad_l2_post_clip", "scaler_scale"))
"""Columns that a training step tells of; what else comes after it may be its validation."""
_SHOWN = 6
"""Keys that an error names."""
_WORDS = frozenset(("step", "covered_steps", "skipped_steps"))


def value(cell: Any) -> float | None:
    """A value of a record as a number: numbers, flags, numbers written as text; None otherwise."""
    if isinstance(cell, bool):
        return float(cell)
    if isinstance(cell, int | float):
        try:
            return float(cell)
        except OverflowError:
            return math.inf if cell > 0 else -math.inf
    return number(cell) if isinstance(cell, str) else None


def whole(cell: Any) -> int | None:
    """A value of a record as a step; None where it is no whole number of 64 bits."""
    found = value(cell)
    if found is None or not math.isfinite(found) or found != int(found) or abs(found) >= 2**63:
        return None
    return int(cell) if isinstance(cell, int) and not isinstance(cell, bool) else int(found)


def flattened(record: Mapping[str, Any], depth: int = _DEEPEST) -> Mapping[str, Any]:
    """A record with the values of objects within it under ``outer/inner``.

    ``{"step": 3, "train": {"loss": 2.5}}`` has ``train/loss``. A logger's own objects (a histogram,
    an image: they have ``_type``) hold no metric and are left out.
    """
    if dict not in map(type, record.values()):
        return record
    flat: dict[str, Any] = {}
    for name, cell in record.items():
        if not isinstance(cell, dict):
            flat[name] = cell
        elif depth and "_type" not in cell:
            inner = flattened(cell, depth - 1)
            flat |= {f"{name}/{key}": value for key, value in inner.items()}
    return flat


class RecordRows:
    """Turns records into rows, naming each column when it is first met.

    A value that is None, a text or a list is absent; numbers written as text are numbers. In a log
    with steps, a record without one tells of the step before it, and is none before the first; in
    a log without any, records are counted.

    Args:
        log: where it is noted what had to be mended.
        reading: what the user maps; those names go before all others.
        leave_out: names that are no column whatever they are called like.
        size: bytes of the whole log.
    """

    def __init__(
        self,
        log: RepairLog,
        reading: Reading,
        leave_out: frozenset[str] = frozenset(),
        size: int = 0,
    ) -> None:
        self.rows = Rows(log)
        self._size = size
        self._mapped = {source.strip(): target for target, source in reading.mapping.items()}
        mapped_names(self._mapped, reading.mapping)  # refuses what is no column of the table
        self._leave_out = leave_out
        self._targets: dict[str, str | None] = dict.fromkeys(leave_out)
        self._taken: set[str] = set(self._mapped.values())
        self._seen_mapped: set[str] = set()
        self._renamed: list[str] = []
        self._log = log
        self._last: int | None = None
        self._counts = False
        self._waiting: list[dict[str, Cell]] = []

    def add(self, record: Mapping[str, Any], step: int | None = None) -> None:
        """Append a record as a row."""
        record = flattened(record)
        new = [key for key in record if key not in self._targets]
        if new:
            self._name(new)
        cells: dict[str, Cell] = {}
        for key, cell in record.items():
            target = self._targets.get(key)
            if target is None:
                continue
            found = value(cell)
            if found is None:
                continue
            if target == "step":
                step = whole(cell) if step is None else step
            elif (spec := spec_of(target)) is not None and spec.kind is Kind.TEXT:
                continue
            elif spec is not None and spec.kind is not Kind.FLOAT:
                cells[target] = int(found) if math.isfinite(found) and abs(found) < 2**62 else None
            else:
                cells[target] = found
        if step is not None:
            self._dated(step)
            self.rows.add(step, cells)
        elif cells or any(self._targets.get(k) for k, cell in record.items() if cell is None):
            self._add_undated(cells)

    def _dated(self, last: int) -> None:
        """A record with a step has come: those without one before it are no rows."""
        self._last = last
        if self._waiting:
            self._log.note("undated-records", count=len(self._waiting))
            self._waiting = []

    def _add_undated(self, cells: dict[str, Cell]) -> None:
        """Take a record without a step, whatever it turns out to be."""
        if self._counts:
            self.rows.add(len(self.rows), cells)
        elif self._last is None:
            self._waiting.append(cells)
            if len(self._waiting) > _MOST_WAITING:
                self._count()
        elif _TRAINED.isdisjoint(cells):
            self.rows.add(self._last, cells)
        else:  # a step's own values are in the record before: this one sums up
            self._log.note("undated-records")

    def _count(self) -> None:
        """No record has had a step: number them."""
        self._counts = True
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._log.note("missing-step-column", detail="records have no step")
        for cells in waiting:
            self.rows.add(len(self.rows), cells)

    def add_all(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append many records: those alike one after the other at once, five times as fast.

        The first ones are taken to be a block of the log, by which room is made for all.
        """
        if not len(self.rows) and self._size > BLOCK:
            self.rows.expect(int(1.05 * len(records) * self._size / BLOCK))
        for keys, alike in groupby(records, key=tuple):
            run = list(alike)
            if dict in map(type, run[0].values()):
                self.add_all(list(map(flattened, run)))
            elif len(run) < _WORTHWHILE or not self._add_alike(keys, run):
                for record in run:
                    self.add(record)

    def add_lines(self, block: bytes) -> None:
        """Append the records of a block of JSON lines."""
        if not self.add_columns(block):
            self.add_all(records_in(block, self._log))

    def add_columns(self, block: bytes, names: Mapping[str, str] | None = None) -> bool:
        """Append the records of a block of JSON lines at once, four times as fast.

        Args:
            block: whole lines.
            names: other names for some keys.

        Returns:
            False, and nothing is appended, where a record needs a closer look: the first ones,
            by which columns are named, and those without a step or with a new key.
        """
        if self._last is None or self._waiting or self._counts:
            return False
        found = json_columns(block)
        if found is None:
            return False
        named = {(names or {}).get(key, key): piece for key, piece in found.items()}
        if any(key not in self._targets for key in named):
            return False
        columns: dict[str, Any] = {}
        for key, piece in named.items():
            target = self._targets[key]
            if target is not None and piece is not None and not _is_text(target):
                columns[target] = (piece.values, piece.present)
        step, gaps = columns.get("step", (None, None))
        if step is None or gaps is not None or step.dtype != np.int64:
            return False
        self._dated(int(step[-1]))
        self.rows.extend(columns)
        return True

    def _add_alike(self, keys: tuple[str, ...], run: list[Mapping[str, Any]]) -> bool:
        """Append records with the same keys; False where a cell needs a closer look."""
        new = [key for key in keys if key not in self._targets]
        if new:
            self._name(new)
        columns: dict[str, Any] = {}
        for key, cells in zip(keys, zip(*map(dict.values, run), strict=True), strict=True):  # type: ignore[arg-type]
            target = self._targets.get(key)
            if target is None:
                continue
            if (spec := spec_of(target)) is not None and spec.kind is Kind.TEXT:
                continue
            kinds = set(map(type, cells))
            if not kinds <= {int, float} or (target == "step" and kinds != {int}):
                return False
            try:
                columns[target] = np.array(cells, dtype=np.int64 if kinds == {int} else np.float64)
            except OverflowError:
                return False
        if "step" not in columns:
            return False
        self._dated(int(columns["step"][-1]))
        self.rows.extend(columns)
        return True

    @property
    def tells(self) -> bool:
        """Has any record held something that training can be judged by?"""
        return not USABLE.isdisjoint(self._taken)

    def table(
        self, name: str, facts: LogFacts, where: object, *, must_tell: bool = True
    ) -> StepTable:
        """The rows as a table.

        Args:
            name: of the importer.
            facts: what it learned.
            where: the file, for errors.
            must_tell: refuse a log by which no training can be judged.

        Raises:
            InputError: there is no row, or ``must_tell`` and nothing to judge.
            UsageError: a mapped name was never met.
        """
        missing = set(self._mapped) - self._seen_mapped
        if missing:
            there = ", ".join(list(self._targets)[:12])
            raise UsageError(
                f"the log has no {min(missing)!r}", where="--map", hint=f"it has {there}"
            )
        if self._last is None:
            self._count()
        if must_tell and len(self._targets) > len(self._leave_out) and not len(self.rows):
            raise self._nothing(where)
        table = self.rows.table(name, facts, where=where, must_tell=False)
        if "loss" not in table:
            table = self._with_likely_loss(table)
        if must_tell and not any(map(table.has, TELLING)):
            raise self._nothing(where)
        if self._renamed:
            count, names = len(self._renamed), ", ".join(self._renamed)
            self._log.note("renamed-columns", count=count, detail=names)
        return replace(table, repairs=self._log.repairs())

    def _nothing(self, where: object) -> InputError:
        """The error for records of which no key is known: which keys they have."""
        names = [name for name in self._targets if name not in self._leave_out]
        some = ", ".join(map(shown, names[:_SHOWN])) + " …" * (len(names) > _SHOWN)
        return InputError(
            f"has no key of a training log: it has {some}",
            where=where,
            hint="--map loss=NAME says which is the loss, and so on for step, lr, grad_l2_pre_clip",
        )

    def _with_likely_loss(self, table: StepTable) -> StepTable:
        """The table with the column that is most likely the loss under that name."""
        likely = loss_like(list(table))
        self._renamed += [f"{shown(name)} as {target}" for name, target in likely.items()]
        columns = {likely.get(name, name): column for name, column in table.columns.items()}
        return replace(table, columns={n: columns[n] for n in canonical_order(columns)})

    def _name(self, keys: list[str]) -> None:
        exact = [key for key in keys if spec_of(key) is not None]
        steps = sorted((key for key in keys if canonical_name(key) == "step"), key=step_rank)
        for key in dict.fromkeys((*steps, *exact, *keys)):
            if len(self._targets) < _MOST_KEYS:
                self._targets[key] = self._target(key)

    def _target(self, key: str) -> str | None:
        if key.strip() in self._mapped:
            self._seen_mapped.add(key.strip())
            return self._mapped[key.strip()]
        target = canonical_name(key)
        if target is not None and target not in self._taken:
            self._taken.add(target)
            if target != key:
                self._renamed.append(f"{shown(key)} as {target}")
            return target
        free = key not in self._taken and key not in _WORDS and len(self._targets) < MOST_METRICS
        if not free or spec_of(key) is not None:
            return None
        self._taken.add(key)
        return key


def _is_text(column: str) -> bool:
    spec = spec_of(column)
    return spec is not None and spec.kind is Kind.TEXT


_FLAT_OBJECT = re.compile(rb"\{[^{}]*\}")


def json_lines(source: LogSource) -> Iterator[list[dict[str, Any]]]:
    """The objects of a file of JSON lines, by the block.

    A line that is none is noted and passed over.
    """
    for block in source.blocks():
        yield records_in(block, source.log)


def records_in(block: bytes, log: RepairLog) -> list[dict[str, Any]]:
    """The objects of a block of JSON lines; a line that is none is noted."""
    lines = [line for line in block.split(b"\n") if line and not line.isspace()]
    try:
        records = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        records = None
    # A block that parses only because lines complete each other is none of whole records.
    if records is None or len(records) != len(lines) or set(map(type, records)) - {dict}:
        return list(_one_by_one(lines, log, whole=block.endswith(b"\n")))
    return list(records)


def _one_by_one(lines: Sequence[bytes], log: RepairLog, *, whole: bool) -> Iterator[dict[str, Any]]:
    """The objects of lines, of which the last one may be cut if they are not ``whole``."""
    for i, line in enumerate(lines):
        record = json_object(line)
        if record is not None:
            yield record
        elif i == len(lines) - 1 and not whole and line.lstrip().startswith(b"{"):
            log.note("torn-last-line")
        else:
            log.note("stray-lines", detail=shown(line.decode("utf-8", "replace")))


def json_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, NaN and Infinity as Python writes them included; None where it is none."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def flat_objects(block: bytes, needle: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects without objects in them that hold a text, wherever they are in a block.

    What a damaged or cut JSON document still gives.
    """
    texts = [text for text in _FLAT_OBJECT.findall(block) if needle in text]
    try:
        records = json.loads(b"[" + b",".join(texts) + b"]")
    except (ValueError, RecursionError):
        records = []
    if len(records) == len(texts) and all(isinstance(record, dict) for record in records):
        yield from records
        return
    for text in texts:
        if (record := json_object(text)) is not None:
            yield record

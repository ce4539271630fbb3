"""The header of a log: which column is which, whoever named them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from forensics.errors import InputError
from forensics.frozen import dataclass
from forensics.runlog.csv_reader.cells import WRAPPED, is_absent, parse_number, parse_step
from forensics.runlog.csv_reader.repair_log import RepairLog, shown
from forensics.runlog.schema import CANONICAL_NAMES, Kind, spec_of

Naming = Callable[[Sequence[str]], Mapping[str, str]]
"""``(names as written) → their canonical names``, for those columns that a format knows better."""
MOST_COLUMNS = 4096
SAMPLE = 200
"""Rows looked at to tell what columns hold that the schema does not know."""
_FEW = 20
"""Rows, spread over these, that tell whether steps are steps."""
_LONGEST_HEADER = 1 << 20
_DELIMITERS = (",", ";", "\t")
_ALIASES = {
    "step": ("global_step", "_step", "trainer/global_step", "iteration", "iter", "steps"),
    "lr": ("learning_rate", "train/learning_rate", "train/lr"),
    "grad_l2_pre_clip": (
        "grad_norm",
        "train/grad_norm",
        "gradient_norm",
        "train/gradient_norm",
        "grad_l2",
        "global_grad_norm",
        "train/global_grad_norm",
    ),
    "loss": ("train/loss", "train_loss", "training_loss", "loss/train", "train_loss_step"),
    "scaler_scale": ("loss_scale", "train/loss_scale", "grad_scale", "scaler/scale"),
    "val_loss": ("eval_loss", "eval/loss", "val/loss", "validation_loss", "valid_loss", "loss/val"),
    "epoch": ("train/epoch", "epoche", "epoca", "época", "époque"),
}
"""Names that mean one thing in every logger that writes them."""
CANONICAL_OF = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
USABLE = frozenset(
    (*CANONICAL_NAMES[1:6], "scaler_scale", "val_loss", "update_l2", "param_l2", "ema_l2_distance")
)
"""Columns that something can be told from."""
_MOST_BAD_STEPS = 0.75
"""Share of cells of a step column that may be no steps; beyond that it is some other axis."""
_FEWEST_ODD = 3
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_FLOAT_STEP = re.compile(r"\s*[+-]?\d+[.,]0*\s*", re.ASCII)
_SEPARATOR_LINE = re.compile(r"sep=.", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """How the lines of a log are read.

    Attributes:
        names: name of each column in file order, unique.
        kinds: kind of each column.
        header: the header's cells as written, to know a repeated one by.
        delimiter: between cells.
        decimal: ``.`` or ``,``.
        float_steps: are steps written as ``12.0``?
        wrapped: are numbers written as ``tensor(0.5)``?
        naming: what a format says of its columns, before any other name is looked up.
    """

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    header: tuple[str, ...]
    delimiter: str = ","
    decimal: str = "."
    float_steps: bool = False
    wrapped: bool = False
    naming: Naming | None = None

    @property
    def step_index(self) -> int | None:
        """Which column is the step; None where there is none."""
        return self.names.index("step") if "step" in self.names else None

    @property
    def ours(self) -> bool:
        """Was it written by this program?"""
        return self.header[: len(CANONICAL_NAMES)] == CANONICAL_NAMES and self.delimiter == ","


def split_cells(line: str, delimiter: str) -> list[str]:
    """The cells of one line; quotes as in RFC 4180."""
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except (csv.Error, StopIteration):
        return line.split(delimiter)


def is_preamble(line: str) -> bool:
    """A line before the header that is none: blank, a comment, or Excel's ``sep=;``."""
    bare = line.strip()
    return not bare or bare.startswith("#") or bool(_SEPARATOR_LINE.fullmatch(bare))


def read_header(line: str, path: Path, log: RepairLog, naming: Naming | None = None) -> Layout:
    """The layout that a header line tells.

    Raises:
        InputError: the line is no header of a training log.
    """
    if len(line) > _LONGEST_HEADER:
        raise InputError("has a first line too long for a header", where=path, hint=_wanted())
    text = line.removesuffix("\r")
    if text != line:
        log.note("crlf")
    delimiter = max(_DELIMITERS, key=text.count)
    if delimiter != ",":
        log.note("delimiter", detail="tabs" if delimiter == "\t" else "semicolons")
    cells = split_cells(text, delimiter)
    if len(cells) > MOST_COLUMNS:
        raise InputError(f"has {len(cells):,} columns; {MOST_COLUMNS:,} are read", where=path)
    _refuse_other_files(cells, path)
    layout = layout_of(cells, delimiter, log, naming)
    if not USABLE.intersection(layout.names):
        raise InputError(
            f"has no column of a training log: {_some(cells)}", where=path, hint=_wanted()
        )
    return layout


def layout_of(
    cells: Sequence[str], delimiter: str, log: RepairLog, naming: Naming | None = None
) -> Layout:
    """The layout of a header's cells. Columns the schema does not know are text for now."""
    written = [_clean(cell) for cell in cells]
    known = naming(written) if naming is not None else {}
    names = _canonical_names([known.get(name, name) for name in written])
    renamed = [
        f"{shown(old)} as {new}"
        for old, cell, new in zip(written, cells, names, strict=True)
        if new in CANONICAL_OF.values() or spec_of(new) is not None
        if cell.strip('"') != new
    ]
    if renamed:
        log.note("renamed-columns", count=len(renamed), detail=", ".join(renamed))
    unique, repeated = _unique(names)
    if repeated:
        log.note("duplicate-columns", count=len(repeated), detail=", ".join(map(shown, repeated)))
    kinds = tuple(spec.kind if (spec := spec_of(name)) else Kind.TEXT for name in unique)
    return Layout(tuple(unique), kinds, tuple(cells), delimiter, naming=naming)


def settle(layout: Layout, lines: Sequence[str], log: RepairLog) -> Layout:
    """The layout once some rows have been looked at: decimal comma, numbers or text, the step."""
    # Most columns of a log of ours are settled by their name: looking at 200 cells of each takes as
    # long as parsing a small log.
    asked = [
        i
        for i, name in enumerate(layout.names)
        if layout.delimiter != "," or name == "step" or spec_of(name) is None
    ]
    some = lines[:SAMPLE] if len(asked) > 1 else lines[:: max(1, len(lines) // _FEW)]
    rows = [split_cells(line.removesuffix("\r"), layout.delimiter) for line in some]
    rows = [row for row in rows if len(row) == len(layout.names) and tuple(row) != layout.header]
    columns = {layout.names[i]: [row[i] for row in rows if not is_absent(row[i])] for i in asked}
    if layout.delimiter != "," and _comma_is_decimal(columns):
        log.note("decimal-comma")
        layout = replace(layout, decimal=",")
    kinds = tuple(
        Kind.FLOAT if spec_of(name) is None and _numeric(columns[name], layout.decimal) else kind
        for name, kind in zip(layout.names, layout.kinds, strict=True)
    )
    wrapped = any(WRAPPED.search(line.encode()) for line in lines[:SAMPLE] if "(" in line)
    layout = replace(layout, kinds=kinds, wrapped=wrapped)
    return _settle_step(layout, columns.get("step", []), bool(rows), log)


def _settle_step(layout: Layout, cells: list[str], rows: bool, log: RepairLog) -> Layout:
    """A step column that holds no steps is kept under another name, and rows are counted."""
    if "step" not in layout.names:
        log.note("missing-step-column", detail="none is named so")
        return layout
    digits = "".join(cells)
    if digits.isascii() and digits.isdigit() and max(map(len, cells)) < 16:
        return layout  # as nearly every log has them
    bad = [cell for cell in cells if parse_step(cell, layout.decimal) is None]
    if not rows or (cells and len(bad) <= _MOST_BAD_STEPS * len(cells)):
        return replace(layout, float_steps=any(map(_FLOAT_STEP.fullmatch, cells)))
    why = f"it holds {shown(bad[0])}" if cells else "it is empty"
    log.note("missing-step-column", detail=why)
    index = layout.names.index("step")
    names = (*layout.names[:index], "step (as written)", *layout.names[index + 1 :])
    kind = Kind.FLOAT if _numeric(cells, layout.decimal) else Kind.TEXT
    kinds = (*layout.kinds[:index], kind, *layout.kinds[index + 1 :])
    return replace(layout, names=names, kinds=kinds)


def _numeric(cells: list[str], decimal: str) -> bool:
    return bool(cells) and all(parse_number(cell, decimal) is not None for cell in cells)


def _comma_is_decimal(columns: dict[str, list[str]]) -> bool:
    cells = [cell.strip() for name, column in columns.items() for cell in column if name != "step"]
    commas = sum(bool(_DECIMAL_COMMA.fullmatch(cell)) for cell in cells)
    points = sum("." in cell and "," not in cell for cell in cells)
    return commas > points


def _clean(cell: str) -> str:
    """A name without what the eye does not see."""
    return "".join(char for char in cell.strip().strip('"').strip() if char.isprintable())


def _canonical_names(written: Sequence[str]) -> list[str]:
    """Each column's name in the schema, where it has one that no better match has taken."""
    keys = [re.sub(r"[\s-]+", "_", name.lower()) for name in written]
    taken = {name for name in written if spec_of(name) is not None}
    names = list(written)
    for find in (lambda key: key, CANONICAL_OF.get):  # another case first, then another name
        for i, key in enumerate(keys):
            target = find(key)
            if target is None or spec_of(target) is None or target in taken:
                continue
            if spec_of(names[i]) is None:
                names[i] = target
                taken.add(target)
    return names


def _unique(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names with a number put to repeated and empty ones, and those that were repeated."""
    unique: list[str] = []
    repeated: list[str] = []
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            repeated.append(name)
        candidate, k = name or f"column {i + 1}", 2
        while candidate in seen:
            candidate, k = f"{name or 'column'} ({k})", k + 1
        seen.add(candidate)
        unique.append(candidate)
    return unique, repeated


def _refuse_other_files(cells: list[str], path: Path) -> None:
    """Say what a file is that is no CSV, or has lost its header."""
    text = "".join(cells)
    odd = sum(not char.isprintable() for char in text) + text.count("\ufffd")
    if odd >= _FEWEST_ODD and odd * 20 > len(text):
        raise InputError("is binary, not a CSV", where=path, hint=_wanted())
    if text.lstrip().startswith(("{", "[{")):
        raise InputError("is JSON, not a CSV", where=path, hint=_wanted())
    if all(parse_number(cell) is not None or is_absent(cell) for cell in cells):
        raise InputError(
            f"has no header line; it begins with {shown(','.join(cells))}",
            where=path,
            hint="put the names of the columns on the first line, such as step,loss",
        )


def _some(cells: Sequence[str]) -> str:
    return "it has " + ", ".join(shown(cell) for cell in cells[:6]) + (" …" * (len(cells) > 6))


def _wanted() -> str:
    return (
        "a step log is a CSV with a header that names step, loss, lr, grad_l2_pre_clip …; "
        "--map loss=NAME says which column is which"
    )

"""Boxes of ``| key | value |`` lines, as OpenAI Baselines' logger prints them and its descendants.

guided-diffusion and improved-diffusion, stable-baselines3, Spinning Up. Keys below a section
(``| train/ | |``) are indented. Numbers have three digits, the step of a diffusion model too. Its
loss scale is told as a power of two that grows by a thousandth a step and falls by one where a
gradient is not finite, of which a line of its own tells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.numbers import NUMBER, number, quick
from forensics.runlog.scanner.records import RecordRows
from forensics.runlog.scanner.rounded_steps import ROUNDED, told_apart
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_LINE = re.compile(
    rb"(?m)^[ \t]*(?:"
    rb"\|[ \t]?([^|\n]{1,80})\|[ \t]*(?:(" + NUMBER + rb")|[^|\n]{0,80})[ \t]*\|[ \t]*$"
    rb"|(-{8,})[ \t]*$|Found NaN, decreased lg_loss_scale to (" + NUMBER + rb"))"
)
"""A key and its number, the edge of a box, or a note of a step that was skipped."""
_STEPS = ("step", "steps", "total_timesteps", "total timesteps", "iteration", "itr", "epoch")
"""What boxes call their count, the likeliest first."""
_LOG_SCALE = "lg_loss_scale"
_FEWEST = 2


class _Box(NamedTuple):
    """What one box tells.

    Attributes:
        step: as printed.
        cells: name → number.
        skipped: steps that were skipped since the box before.
        scale: what the last of those left of the loss scale, as a power of two.
    """

    step: int
    cells: dict[str, float]
    skipped: int = 0
    scale: float | None = None


def _sniff(head: Head) -> Match | None:
    found = [name_columns(box.cells) for box in _boxes([head.text])]
    telling = [names for names in found if not USABLE.isdisjoint(names.values())]
    if len(telling) < _FEWEST:
        return None
    return Match(CERTAIN - 0.02, "boxes of | key | value | lines with a step")


def _boxes(blocks: Iterable[bytes]) -> Iterator[_Box]:
    """The boxes of a text that tell a step; last what follows them, if a step was skipped there."""
    cells: dict[str, float] = {}
    section, skipped, last = "", 0, -1
    scale: float | None = None
    for block in blocks:
        for key, figure, edge, noted in _LINE.findall(block):
            if noted:
                skipped, scale = skipped + 1, number(noted)
            elif edge:
                if (step := _step(cells)) is not None:
                    yield _Box(step, cells, skipped, scale)
                    skipped, scale, last = 0, None, step
                cells, section = {}, ""
            else:
                name = key.decode("utf-8", "replace").strip()
                if not figure and name.endswith("/"):
                    section = name
                elif figure and (told := quick(figure)) is not None:
                    cells[section + name] = told
    if skipped and last >= 0:
        yield _Box(last + skipped, {}, skipped, scale)


def _step(cells: dict[str, float]) -> int | None:
    """The count of a box, which is no metric of it."""
    names = {name.rpartition("/")[2].lower(): name for name in cells}
    for name in _STEPS:
        if name in names and 0 <= cells[names[name]] < 2.0**63:
            return int(cells.pop(names[name]))
    return None


def _read(source: LogSource, reading: Reading) -> StepTable:
    printed = [box.step for box in _boxes(source.blocks())]
    steps, changed = told_apart(printed)
    rows = RecordRows(source.log, reading, size=source.size)
    skips, scaled = 0, False
    for step, box in zip(steps, _boxes(source.blocks()), strict=True):
        rows.add(_record(box), step)
        skips += box.skipped
        scaled |= _LOG_SCALE in box.cells
    notes = [ROUNDED] if changed else []
    if skips:
        notes.append(f"{skips:,} step{'s' * (skips != 1)} skipped for a non-finite gradient")
    facts = LogFacts(
        meanings={"loss": Meaning.MEAN, "grad_l2_pre_clip": Meaning.MEAN},
        notes=tuple(notes),
        precision="fp16" if scaled else "",
    )
    return rows.table(boxed_table.name, facts, source.path)


def _record(box: _Box) -> dict[str, float]:
    record = dict(box.cells)
    power = record.pop(_LOG_SCALE, box.scale)
    if power is not None and abs(power) < 1000:
        record["scaler_scale"] = 2.0**power
    if box.skipped:
        record["skipped_steps"] = box.skipped
    return record


boxed_table = Importer(
    name="boxed-table",
    description="boxes of keys and values: guided-diffusion, stable-baselines3, Spinning Up",
    sniff=_sniff,
    read=_read,
    columns=True,
)

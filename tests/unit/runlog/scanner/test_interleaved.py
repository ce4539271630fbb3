"""Lines between records belong to the one that follows, wherever blocks end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.scanner.interleaved import Dated, Interleaved
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.steps import StepTable

LAYOUT = Layout(
    start=rb"step (?P<step>\d+) *(?=\|)",
    gap=rb"\| *",
    key=rb"[a-z]+",
    equals=rb": *",
    value=rb"[^|\n]*",
    column={"loss": "loss"}.get,
    mark=b"step",
)
BETWEEN = re.compile(rb"skip!|val (?P<at>\d+)")
LINE = st.sampled_from(["record", "record", "skip", "val", "val elsewhere", "noise", "cut"])


def read(blocks: list[bytes]) -> StepTable:
    rows = Rows(RepairLog())
    waiting = 0

    def take(match: re.Match[bytes]) -> Dated | None:
        nonlocal waiting
        if match["at"] is not None:
            return int(match["at"]), {"val_loss": 7.0}
        waiting += 1
        return None

    def cells() -> dict[str, Cell]:
        nonlocal waiting
        count, waiting = waiting, 0
        return {"skipped_steps": count} if count else {}

    log = Interleaved(
        LabelledRecords(LAYOUT, rows),
        rows,
        between=BETWEEN,
        needles=(b"skip!", b"val "),
        take=take,
        cells=cells,
    )
    for block in blocks:
        log.read(block)
    return rows.table("it", LogFacts(interval=1), must_tell=False)


def story(lines: list[str]) -> Iterator[tuple[bytes, int | None, dict[str, float]]]:
    """Each line, and the step and cells of the row it makes or completes."""
    step, waiting, at = 0, 0, 0
    for line in lines:
        if line == "record":
            step += 10
            at = step
            cells = {"loss": 2.5} | ({"skipped_steps": waiting} if waiting else {})
            yield b"step %d | loss: 2.5 | eta: 1:02:03 |\n" % step, step, cells
            waiting = 0
        elif line == "skip":
            waiting += 1
            yield b"oh, skip! again\n", None, {}
        elif line.startswith("val"):
            at = max(at, step + 5 * (line == "val elsewhere"))
            yield b"val %d\n" % at, at, {"val_loss": 7.0}
        elif line == "noise":
            yield b"step by step | we go\n", None, {}


@settings(deadline=None, max_examples=200)
@given(st.lists(LINE, min_size=1, max_size=60))
def test_it_tells_what_a_reader_line_by_line_tells(lines: list[str]) -> None:
    blocks, expected = [b""], dict[int, dict[str, float]]()
    parts = story([line for line in lines if line != "cut"])
    for line in lines:
        if line == "cut":
            blocks.append(b"")
            continue
        text, step, cells = next(parts)
        blocks[-1] += text
        if step is not None:
            expected[step] = {**expected.get(step, {}), **cells}
    if not expected:
        return
    table = read([block for block in blocks if block])
    assert table.step.tolist() == sorted(expected)
    for name in ("loss", "val_loss", "skipped_steps"):
        there = table.present(name).tolist()
        assert there == [name in expected[step] for step in sorted(expected)]
        if any(there):
            found = table[name].tolist()
            for row, step in enumerate(sorted(expected)):
                assert not there[row] or found[row] == expected[step][name]

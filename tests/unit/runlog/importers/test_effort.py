"""Four times as much of anything takes four times as long, however it is repeated.

Sixteen times would be a search that runs from each place of a text to its end: a log that a program
filled with one thing must not stop a report. Times are of the processor, and held against each
other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.runlog.importers.samples import SAMPLES
from tests.unit.runlog.importers.test_fuzz import read

SIZE = 20_000
TOO_MUCH = 9.0
"""Times as long that four times as much may take: 4 and what a busy machine adds."""
LITTLE = 0.4
"""Seconds that are nothing, whatever they are a multiple of."""


def last_line(sample: bytes) -> bytes:
    lines = [line for line in sample.replace(b"\r", b"\n").split(b"\n") if line.strip()]
    return lines[-1].strip()


PIECES: dict[str, Callable[[bytes], bytes]] = {
    "a log without line ends": lambda sample: b" ".join(sample.split()) + b" ",
    "the beginning of a record": lambda sample: last_line(sample)[: len(last_line(sample)) // 2],
    "redraws": lambda sample: b"\r" + last_line(sample)[:-2],
    "cells that look like records": lambda sample: b"| loss 1 | step 1",
    "another program's lines": lambda sample: b"[INFO] 12 of some other numbers = 3.5\n",
}


def seconds(path: Path, name: str, piece: bytes, size: int) -> float:
    sample = SAMPLES[name].encode()
    start = time.process_time()
    read(path, sample + piece * (size // len(piece) + 1) + b"\n" + sample, name)
    return time.process_time() - start


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_effort_grows_as_the_text_does(name: str, tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    for what, piece_of in PIECES.items():
        piece = piece_of(SAMPLES[name].encode()) or b"x"
        taken = seconds(path, name, piece, 4 * SIZE)
        if taken > LITTLE:
            # Once more: the first one may have imported what nothing in this process had yet.
            taken = min(taken, seconds(path, name, piece, 4 * SIZE))
            before = seconds(path, name, piece, SIZE)
            assert taken < TOO_MUCH * before, f"{what}: {before:.2f} s, then {taken:.2f} s"

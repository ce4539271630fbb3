"""What a log ends in, and what it only told on its way."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Status
from forensics.runlog.run import load_run
from forensics.runlog.scanner.ending import crash_after

RECORDS = "".join(f"step: {i} loss: {3 - i / 60:.4f} grad_norm: 1.0\n" for i in range(1, 61))
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'


def ended(text: str) -> str:
    return crash_after(text.encode(), lambda rest: b"step:" in rest)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (f"{TRACE}torch.OutOfMemoryError: CUDA out of memory.\n", "torch.OutOfMemoryError: CUDA"),
        ("RuntimeError: CUDA error: an illegal memory access\n", "RuntimeError: CUDA error"),
        ("CUDA out of memory. Tried to allocate 2 GiB\n", "CUDA out of memory."),
        ("Killed\n", "Killed"),
        ("run.sh: line 3: 17 Killed    python t.py\n", "run.sh: line 3: 17 Killed"),
        ("Segmentation fault (core dumped)\n", "Segmentation fault"),
        ("[E ProcessGroupNCCL] Watchdog caught collective operation timeout: x\n", "[E Proc"),
        ("slurmstepd: error: *** STEP 1.0 CANCELLED DUE TO TIME LIMIT ***\n", "slurmstepd"),
        (TRACE, "a traceback that was cut off"),
        (f"{TRACE}mylib.Oops: no data\n", "mylib.Oops: no data"),
        (f"{TRACE}KeyboardInterrupt\nRuntimeError: of a worker\n", "RuntimeError: of a worker"),
    ],
)
def test_the_line_of_death_is_told(end: str, said: str) -> None:
    assert ended(RECORDS + end).startswith(said)


@pytest.mark.parametrize(
    "text",
    [
        RECORDS,
        f"{RECORDS}done, no error\nsaved to out/\n",
        f"{TRACE}OSError: retried\n{RECORDS}",
        f"{RECORDS}Exception ignored in: <function X>\n{TRACE}OSError: closed\n",
        f"{RECORDS}Error rate: 0.3\nA RuntimeError was handled.\n",
    ],
)
def test_what_was_survived_is_no_end(text: str) -> None:
    assert ended(text) == ""


def test_a_sound_log_that_ends_in_a_crash_is_not_called_healthy(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{RECORDS}{TRACE}torch.OutOfMemoryError: CUDA out of memory.\n")
    diagnosis = diagnose(load_run(log))
    assert diagnosis.run.ended == "ended with torch.OutOfMemoryError after step 60"
    assert diagnosis.verdict.status is Status.UNDECIDED
    assert "after step 60 with torch.OutOfMemoryError: CUDA out" in diagnosis.verdict.summary


def test_who_stopped_it_by_hand_is_told_and_accused_of_nothing(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{RECORDS}{TRACE}KeyboardInterrupt\n")
    diagnosis = diagnose(load_run(log))
    assert diagnosis.run.ended == "interrupted after step 60"
    assert diagnosis.verdict.status is Status.HEALTHY

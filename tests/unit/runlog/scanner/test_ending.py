"""What a log ends in, and what it only told on its way."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Status
from forensics.runlog.run import load_joined, load_run
from forensics.runlog.scanner.ending import crash_after
from tests.unit.runlog.importers.samples import SAMPLES

RECORDS = "".join(f"step: {i} loss: {3 - i / 60:.4f} grad_norm: 1.0\n" for i in range(1, 61))
TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'


def ended(text: str) -> str:
    crash = crash_after(text.encode(), lambda rest: b"step:" in rest)
    return crash.text if crash else ""


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
        (
            "[rank3]:[E1115 10:11:12.123 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)="
            "600000) ran for 600010 milliseconds before timing out.\n",
            "[E1115 10:11:12.123 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught",
        ),
        ("Command terminated by signal 9\n", "Command terminated by signal 9"),
        ("Terminated\n", "Terminated"),
        ("run.sh: line 9: 77 Terminated              python train.py\n", "run.sh: line 9: 77 Term"),
        ("[1]  + 1234 killed     python train.py\n", "+ 1234 killed"),
        ("Killed: 9\n", "Killed: 9"),
        ("srun: error: node3: task 5: Out Of Memory\n", "srun: error: node3"),
        ("=>> PBS: job killed: walltime 3621 exceeded limit 3600\n", "=>> PBS: job killed"),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.\n", "TERM_RUNLIMIT"),
        (
            f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            "  traceback : Signal 9 (SIGKILL) received by PID 4711\n",
            "traceback : Signal 9 (SIGKILL)",
        ),
        (
            "".join(f"[rank0]: {line}\n" for line in TRACE.splitlines())
            + "[rank0]: torch.OutOfMemoryError: CUDA out of memory.\n",
            "torch.OutOfMemoryError: CUDA",
        ),
        (f"{TRACE}KeyError: 0\n", "KeyError: 0"),
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
        f"{RECORDS}MeanAbsoluteError: 0.12\nRelativeError: 3.1e-02\nWordError: 12.5%\n",
        f"{RECORDS}Killed 3 stale workers\nAborted early stopping: no gain\nTerminated cleanly\n",
        f"{RECORDS}Exception in thread Thread-3 (_pin_memory_loop):\n{TRACE}EOFError\n",
        f"{RECORDS}--- Logging error ---\n{TRACE}ValueError: I/O operation on closed file.\n",
        f"{RECORDS}Error in atexit._run_exitfuncs:\n{TRACE}OSError: closed\n",
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
    end = "after step 60 with torch.OutOfMemoryError: CUDA out of memory (line 64)."
    assert end in diagnosis.verdict.summary
    assert diagnosis.run.learned == ()


def test_who_stopped_it_by_hand_is_told_and_accused_of_nothing(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{RECORDS}{TRACE}KeyboardInterrupt\n")
    diagnosis = diagnose(load_run(log))
    assert diagnosis.run.ended == "interrupted after step 60"
    assert diagnosis.run.learned == ("the log ends with KeyboardInterrupt (line 64)",)
    assert diagnosis.verdict.status is Status.HEALTHY


CSV = "step,loss\n" + "".join(f"{i},{3 - i / 60:.4f}\n" for i in range(1, 61))
JSON = "".join(f'{{"step": {i}, "loss": {3 - i / 60:.4f}}}\n' for i in range(1, 61))
OOM = "torch.OutOfMemoryError: CUDA out of memory.\n"


@pytest.mark.parametrize("log", [CSV, JSON, SAMPLES["keras-csv"], SAMPLES["hf-stdout"]])
@pytest.mark.parametrize("packed", [False, True])
def test_logs_of_every_kind_end_in_what_follows_their_rows(
    log: str, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "it.log"
    data = (log + TRACE + OOM).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    facts = load_run(path).steps.facts
    assert facts is not None
    assert facts.ended == OOM.strip()
    assert facts.ended_line == data.count(b"\n")


@pytest.mark.parametrize("log", [CSV, JSON])
def test_rows_after_an_exception_say_that_it_was_survived(log: str, tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    rows = log.splitlines(keepends=True)
    path.write_text("".join([*rows[:30], TRACE, OOM, *rows[30:]]))
    table = load_run(path).steps
    assert table.facts is not None
    assert table.facts.ended == ""
    assert table.step[-1] == 60


def test_the_line_is_that_of_the_death_and_not_of_another_like_it(tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    path.write_text(
        f"{TRACE}{OOM}{RECORDS}\r  5%|   | 1/60\r  6%|   | 2/60\nlast words\n{OOM}{OOM}bye\n"
    )
    facts = load_run(path).steps.facts
    assert facts is not None
    assert facts.ended_line == 4 + 60 + 2 + 1


def test_a_crash_in_the_second_of_two_files_has_its_line_there(tmp_path: Path) -> None:
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text(CSV)
    two.write_text(CSV.replace("\n", "\n1", 60).replace("\n11,", "\n61,") + TRACE + OOM)
    facts = load_joined([one, two]).steps.facts
    assert facts is not None
    assert facts.ended_line == 61 + 4


def test_a_faulty_log_tells_beside_its_fault_how_it_ended(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    bad = "".join(f"step: {i} loss: nan grad_norm: nan\n" for i in range(61, 70))
    log.write_text(f"{RECORDS}{bad}{TRACE}{OOM}")
    diagnosis = diagnose(load_run(log))
    assert diagnosis.verdict.status is Status.FAULTY
    assert diagnosis.run.learned == (f"the log ends with {OOM.strip().rstrip('.')} (line 73)",)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2024-03-01T00:00:00 ***", ""),
        ("slurmstepd: error: *** JOB 1 CANCELLED AT x DUE TO TIME LIMIT ***", " (time limit)"),
        ("=>> PBS: job killed: walltime 3621 exceeded limit 3600", ""),
    ],
)
def test_a_scheduler_that_cancelled_it_is_named_and_nothing_is_called_healthy(
    line: str, told: str, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"{RECORDS}{line}\n")
    diagnosis = diagnose(load_run(log))
    assert diagnosis.run.ended == f"cancelled by its scheduler{told} after step 60"
    assert diagnosis.verdict.status is Status.UNDECIDED


def test_a_traceback_below_a_csv_is_no_damage_of_it_and_a_stray_line_is(tmp_path: Path) -> None:
    log = tmp_path / "m.csv"
    log.write_text(CSV + TRACE + OOM)
    assert [f.message for f in diagnose(load_run(log)).findings if f.rule == "broken-log"] == []
    lines = CSV.splitlines(keepends=True)
    log.write_text("".join([*lines[:20], "what is this\n" * 6, *lines[20:], TRACE, OOM]))
    assert [f.rule for f in diagnose(load_run(log)).findings].count("broken-log") == 1


def test_many_lines_of_death_cost_little() -> None:
    text = (RECORDS + "abcError: gone\n" * 4000).encode()
    start = time.process_time()
    calls = 0

    def is_record(rest: bytes) -> bool:
        nonlocal calls
        calls += 1
        return b"step:" in rest

    assert crash_after(text, is_record) is not None
    assert calls < 20
    assert time.process_time() - start < 20

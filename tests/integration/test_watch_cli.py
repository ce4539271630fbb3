"""``forensics watch`` beside a process that writes: what ends it, and with which exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.unit.runlog.importers.line_logs import megatron

Watching = subprocess.Popen[str]
SOON = 40.0


@contextmanager
def watching(path: object, *options: str, interval: float = 0.1) -> Iterator[Watching]:
    command = [sys.executable, "-m", "forensics", "watch", str(path), "--interval", str(interval)]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def ended(process: Watching) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=SOON)
    return process.returncode, out, err


def said(process: Watching, text: str) -> None:
    """Wait until it says something on standard error."""
    assert process.stderr is not None
    limit = time.monotonic() + SOON
    while time.monotonic() < limit:
        if text in process.stderr.readline():
            return
    raise AssertionError(f"never said {text!r}")


def healthy(first: int, last: int) -> str:
    return "".join(megatron(s, loss=f"{3 - s / 100:.6E}") for s in range(first, last + 1))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_run_that_goes_wrong_ends_it_with_1(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(healthy(1, 30))
    with watching(log) as process:
        said(process, "watching")
        append(log, healthy(31, 50))
        time.sleep(0.5)
        assert process.poll() is None
        append(log, "".join(megatron(s, loss="", norm="nan") for s in (51, 52, 53)))
        code, out, _ = ended(process)
    assert code == 1
    lines = [line for line in out.splitlines() if "nonfinite-loss" in line]
    assert len(lines) == 1
    assert "critical" in lines[0]
    assert "step 51" in lines[0]


def test_a_file_that_comes_late_and_a_run_that_falls_silent(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with watching(log, "--wait", "30", "--until-idle", "1.5") as process:
        time.sleep(0.3)
        log.write_text("loading data\n")
        said(process, "(so far)")
        append(log, healthy(1, 30))
        code, out, err = ended(process)
    assert (code, out) == (0, "")
    assert "nothing was written for 1.5 s; no finding of error or worse" in err


def test_a_line_that_is_not_finished_is_left_alone(tmp_path: Path) -> None:
    """``lm loss: 2.0E`` and then ``+05`` would be a loss of 2 and no spike; and the reverse."""
    log = tmp_path / "train.log"
    whole = healthy(1, 40)
    log.write_text(whole + megatron(41, loss="NaN")[:-60])
    with watching(log, "--until-idle", "60") as process:
        said(process, "watching")
        time.sleep(0.6)
        assert process.poll() is None
        log.write_text(whole + megatron(41, loss="NaN") + megatron(42, loss="NaN"))
        assert ended(process)[0] == 1


def test_the_last_line_without_an_end_is_read_when_nobody_writes(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(healthy(1, 40) + megatron(41, loss="NaN").rstrip("\n"))
    with watching(log, "--until-idle", "0.5") as process:
        assert ended(process)[0] == 1


def skipping(first: int, last: int) -> str:
    """Enough to be told, and not enough to end a watch for what is critical."""
    return "".join(megatron(s, scale="1.0", skipped=1) for s in range(first, last + 1))


def test_a_log_that_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(healthy(1, 300) + skipping(301, 340))
    with watching(log, "--fail-on", "critical") as process:
        assert process.stdout is not None
        assert process.stdout.readline() != ""  # it has looked
        log.write_text(healthy(1, 5))
        said(process, "begins anew")
        other = tmp_path / "next.log"
        other.write_text("".join(megatron(s, loss="NaN") for s in range(1, 5)))
        other.replace(log)
        assert ended(process)[0] == 1


def test_less_severe_findings_are_told_and_end_nothing(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(healthy(1, 300) + skipping(301, 340))
    with watching(log, "--until-idle", "0.5", "--fail-on", "critical") as process:
        code, out, _ = ended(process)
    assert code == 0
    assert "  error     high-skip-rate  " in out
    assert "  info  " not in out


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(healthy(1, 10))
    with watching(log) as process:
        said(process, "watching")
        process.send_signal(signal.SIGINT)
        code, _, err = ended(process)
    assert code == 130
    assert "Traceback" not in err


def test_sigterm_is_143_and_said(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(healthy(1, 10))
    with watching(log) as process:
        said(process, "watching")
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)
    assert code == 143
    assert err == "forensics: terminated\n"


def test_a_log_that_is_taken_away_and_comes_back(tmp_path: Path) -> None:
    log, aside = tmp_path / "train.log", tmp_path / "aside"
    log.write_text(healthy(1, 300) + skipping(301, 340))
    with watching(log, "--fail-on", "critical", "--until-idle", "30") as process:
        assert process.stdout is not None
        assert process.stdout.readline() != ""  # it has looked
        log.rename(aside)
        said(process, "is gone; waiting for it to come back")
        append(aside, healthy(341, 343) + megatron(344, loss="NaN"))
        aside.rename(log)
        code, out, err = ended(process)
    assert code == 1
    assert "nonfinite-loss" in out
    assert out.count("high-skip-rate") <= 1  # told before, and not again
    assert "begins anew" not in err


def test_the_end_tells_how_the_program_ended(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(healthy(1, 40) + "torch.OutOfMemoryError: CUDA out of memory.\n")
    with watching(log, "--until-idle", "0.5") as process:
        code, _, err = ended(process)
    assert code == 0
    end = "the log ends with torch.OutOfMemoryError: CUDA out of memory (line 41)"
    assert f"no finding of error or worse; {end}" in err


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with watching(tmp_path / "pipe") as process:
        code, _, err = ended(process)
    assert code == 2
    assert "a pipe is read by `report -`" in err


def test_a_recorded_run_that_has_ended(tmp_path: Path) -> None:
    with watching(Path(__file__).parents[2] / "sample_runs" / "healthy-gpt") as process:
        code, out, err = ended(process)
    assert (code, out) == (0, "")
    assert "the run has ended; no finding of error or worse" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.log"], "--wait SECONDS waits for it"),
        (["gone.log", "--wait", "0.2"], "did not come within 0.2 s"),
        (["-"], "a pipe is read by `report -`"),
        (["notes.txt", "--until-idle", "0.3"], "notes.txt"),
        (["notes.txt", "--fail-on", "loud"], "--fail-on"),
    ],
)
def test_what_cannot_be_watched_is_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    done = subprocess.run(
        [sys.executable, "-m", "forensics", "watch", "--interval", "0.1", *arguments],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr

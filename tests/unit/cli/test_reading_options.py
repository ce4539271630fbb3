"""Who waits at a terminal is told how far reading is; a pipe hears nothing."""

from __future__ import annotations

import gzip
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from forensics.cli import reading_options
from forensics.cli.reading_options import judging_progress, reading_of
from forensics.diagnose.engine import diagnose
from forensics.errors import InputError
from forensics.runlog.run import load_run
from tests.unit.diagnose.step_logs import calm, run_of

pty = pytest.importorskip("pty")

ROWS = 140_000
"""Enough of each log for more than two blocks."""


def as_csv() -> bytes:
    return b"iteration,train/loss,note\n" + b"".join(
        b"%d,2.5,%s\n" % (n, b"x" * 24) for n in range(ROWS)
    )


def as_own_csv() -> bytes:
    header = b"step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale\n"
    return header + b"".join(b"%d,0.001,1.2345678,1.0,2.5,0,,65536.0\n" % n for n in range(ROWS))


def as_json() -> bytes:
    return b"".join(b'{"step": %d, "loss": 2.5, "lr": 0.001}\n' % n for n in range(ROWS))


def as_lines() -> bytes:
    return b"".join(b"s:%d trl:2.5000 lr:0.000100 norm:1.250\n" % n for n in range(ROWS))


LOGS = [as_csv, as_own_csv, as_json, as_lines, lambda: gzip.compress(as_csv(), 0)]
NAMES = ["csv", "own csv", "json lines", "lines", "gzip"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path, str], bytes]]:
    """Reads a log at a terminal at which nobody has patience; gives what that shows."""
    master, slave = pty.openpty()
    monkeypatch.setattr(reading_options, "_PATIENCE", -1.0)
    monkeypatch.setattr(reading_options, "_PAUSE", 0.0)

    def read(path: Path, name: str = "") -> bytes:
        stream = os.fdopen(slave, "w", closefd=False)
        with stream, monkeypatch.context() as patch, suppress(InputError):
            patch.setattr("sys.stderr", stream)
            load_run(path, reading_of(name, ()))
        seen = b""
        while select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 1 << 16)
        return seen

    yield read
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize("text", LOGS, ids=NAMES)
def test_a_terminal_sees_how_far_it_is(
    text: Callable[[], bytes], shown: Callable[..., bytes], tmp_path: Path
) -> None:
    path = tmp_path / "it.log"
    path.write_bytes(text())
    seen = shown(path)
    assert b"reading: 2 of " in seen
    assert b" left" in seen
    assert seen.endswith(b"\r\x1b[K"), "the line is wiped at the end"


def test_the_line_is_wiped_before_an_error(shown: Callable[..., bytes], tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    path.write_bytes(b"s:0 trl\n" * 600_000)
    seen = shown(path, "llm-c")
    assert b"reading: 2 of " in seen
    assert seen.endswith(b"\r\x1b[K")


def test_a_pipe_hears_nothing() -> None:
    assert reading_of("", ()).progress is None
    assert judging_progress() is None


def test_a_terminal_sees_how_many_rules_have_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reading_options, "_PATIENCE", -1.0)
    monkeypatch.setattr(reading_options, "_PAUSE", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    diagnose(run_of(calm(50)).run, progress=judging_progress())
    seen = capsys.readouterr().err
    assert re.search(r"judging: 1 of \d+ rules, 0:0\d left", seen)
    assert seen.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("done", "seconds", "told"),
    [
        (10 << 20, 2.0, "reading: 10 of 40 MiB (25 %), 0:06 left"),
        (1 << 20, 100.0, "reading: 1 of 40 MiB (2 %), 65:00 left"),
        (0, 1.0, "reading: 0 of 40 MiB (0 %)"),
    ],
)
def test_what_is_told(done: int, seconds: float, told: str) -> None:
    of = 40 << 20
    assert reading_options._read(done, of) + reading_options._left(done, of, seconds) == told

"""The lock of a run directory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forensics.errors import ExitCode, UsageError
from forensics.runlog import lock
from forensics.runlog.lock import LOCK_NAME, Holding, LockHolder, RunLock, read_lock

HOST = socket.gethostname()


def leave_lock(run: Path, **fields: object) -> None:
    holder = {"pid": 1, "host": HOST, "started": "2026-01-01T00:00:00+00:00", "birth": 0}
    (run / LOCK_NAME).write_text(json.dumps({**holder, **fields}))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_live_holder_is_refused_by_name_even_on_resume(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        for takeover in (False, True):
            with pytest.raises(UsageError) as caught:
                RunLock(tmp_path, takeover=takeover).acquire()
            assert caught.value.exit_code is ExitCode.USAGE
            line = caught.value.line()
            assert f"process {os.getpid()} on {HOST}" in line
            assert "--resume" in line
            assert "--overwrite" in line
        assert (tmp_path / LOCK_NAME).exists()
    assert list(tmp_path.iterdir()) == []


def test_release_is_safe_to_repeat_and_removes_only_ones_own(tmp_path: Path) -> None:
    ours = RunLock(tmp_path)
    ours.acquire()
    ours.release()
    leave_lock(tmp_path)
    ours.release()
    assert (tmp_path / LOCK_NAME).exists()


def test_a_dead_holder_is_taken_over_only_when_told_to(tmp_path: Path) -> None:
    leave_lock(tmp_path, pid=dead_pid())
    with pytest.raises(UsageError, match=r"is gone; --resume continues.*--overwrite"):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path, takeover=True):
        holder = read_lock(tmp_path / LOCK_NAME)
        assert holder is not None
        assert holder.pid == os.getpid()
        assert holder.state() is Holding.LIVE


def test_a_pid_that_another_process_has_now_is_dead(tmp_path: Path) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    leave_lock(tmp_path, pid=os.getpid(), birth=1)
    assert read_lock(tmp_path / LOCK_NAME).state() is Holding.DEAD  # type: ignore[union-attr]


def test_another_host_cannot_be_asked(tmp_path: Path) -> None:
    leave_lock(tmp_path, host="elsewhere")
    with pytest.raises(UsageError, match="cannot be asked"):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path, takeover=True):
        pass


def test_a_run_that_another_host_still_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_lock(tmp_path, host="elsewhere", pid=7)
    log = tmp_path / "steps.csv"
    log.write_text("step,loss\n")
    monkeypatch.setattr(lock, "_LOOK_S", 0.01)
    monkeypatch.setattr(time, "sleep", lambda _: log.write_text(f"{log.read_text()}1,1\n"))
    said: list[str] = []
    with pytest.raises(UsageError, match="in use by process 7 on elsewhere"):
        RunLock(tmp_path, takeover=True, say=said.append).acquire()
    (line,) = said
    assert "to see whether process 7 on elsewhere still writes" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == [LOCK_NAME, "steps.csv"]


@pytest.mark.parametrize("age", [61.0, -3600.0])
def test_a_run_that_another_host_has_left_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float
) -> None:
    leave_lock(tmp_path, host="elsewhere")
    (tmp_path / "steps.csv").write_text("step,loss\n")
    then = time.time() - age  # its clock may have been ahead, too
    os.utime(tmp_path / "steps.csv", (then, then))
    monkeypatch.setattr(lock, "QUIET_S", 60.0 if age > 0 else 0.05)
    with RunLock(tmp_path, takeover=True):
        assert read_lock(tmp_path / LOCK_NAME).state() is Holding.LIVE  # type: ignore[union-attr]


def test_a_stale_lock_that_another_process_took_over_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_lock(tmp_path, pid=dead_pid())
    winner = RunLock(tmp_path, takeover=True)
    real = RunLock._set_aside

    def lose_the_race(self: RunLock, judged: LockHolder) -> None:
        monkeypatch.setattr(RunLock, "_set_aside", real)
        winner.acquire()  # between the look and the removal
        real(self, judged)

    monkeypatch.setattr(RunLock, "_set_aside", lose_the_race)
    with pytest.raises(UsageError, match="in use by"):
        RunLock(tmp_path, takeover=True).acquire()
    winner.release()
    assert list(tmp_path.iterdir()) == []


def test_release_leaves_the_lock_of_whoever_took_it_over(tmp_path: Path) -> None:
    ours = RunLock(tmp_path)
    ours.acquire()
    leave_lock(tmp_path, host="elsewhere")
    ours.release()
    assert read_lock(tmp_path / LOCK_NAME).host == "elsewhere"  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "host": 1}', "[" * 5000, "null"])
def test_a_damaged_lock_is_an_unknown_holder(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_NAME).write_text(text)
    assert read_lock(tmp_path / LOCK_NAME) == LockHolder()
    with pytest.raises(UsageError, match="unknown process"):
        RunLock(tmp_path).acquire()


def test_no_lock_is_none(tmp_path: Path) -> None:
    assert read_lock(tmp_path / LOCK_NAME) is None


@pytest.mark.parametrize("pid", [2**31, 2**80, -5])
def test_absurd_pids_are_not_alive(pid: int) -> None:
    assert LockHolder(pid=pid, host=HOST).state() is not Holding.LIVE

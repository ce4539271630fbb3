"""Ctrl-C while a store does not answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from forensics.cli import interrupting
from forensics.cli.interrupting import end_in_time
from forensics.runlog.stores import disk
from forensics.runlog.stores.patience import PATIENCE

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are told by a pipe there")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The codes that the process would have ended with; the first one sets ``signal``."""
    codes: list[int] = []
    monkeypatch.setattr(interrupting, "GRACE_S", 0.05)
    monkeypatch.setattr(os, "_exit", codes.append)
    before = signal.set_wakeup_fd(-1)
    end_in_time()
    yield codes
    told = signal.set_wakeup_fd(before)
    os.close(told)  # the listener hears the end


def interrupted(seconds: float) -> None:
    def wait() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(seconds)

    with pytest.raises(KeyboardInterrupt):
        wait()


def test_who_is_stuck_in_a_store_is_ended_and_nothing_stays(
    ended: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    made = disk.folder()
    with PATIENCE.asked("s3://mute/x"):
        interrupted(5)
        for _ in range(100):
            if ended:
                break
            threading.Event().wait(0.05)
    assert ended == [130]
    assert capsys.readouterr().err == "forensics: interrupted\n"
    assert not made.exists()


def test_who_is_not_ends_by_himself(ended: list[int]) -> None:
    interrupted(5)
    threading.Event().wait(0.2)
    assert ended == []

"""Children that contend for one run directory."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from forensics.errors import UsageError
from forensics.record import manifest_keeper
from forensics.runlog import lock as lock_module
from forensics.runlog.lock import RunLock
from tests.fire.training import record

NO_PROCESS = 2**30
"""A process id that no system gives."""


def contend(run: str, log: str, rounds: int) -> int:
    """Take the lock over again and again, and leave it behind as a killed process does.

    ``log`` gets a line ``in`` and a line ``out`` for each time that the directory was ours.
    """
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    chance = random.Random(os.getpid())
    taken = 0
    while taken < rounds:
        lock = RunLock(run, takeover=True)
        try:
            lock.acquire()
        except UsageError:
            continue
        os.write(file, f"in {os.getpid()}\n".encode())
        time.sleep(chance.random() * 0.002)
        os.write(file, f"out {os.getpid()}\n".encode())
        leave_behind(Path(run))
        taken += 1
    return 0


def leave_behind(run: Path) -> None:
    """Turn the lock into that of a process that is gone."""
    path = run / lock_module.LOCK_NAME
    holder = json.loads(path.read_text())
    left = path.with_name(f".left.{os.getpid()}")
    left.write_text(json.dumps({**holder, "pid": NO_PROCESS}))
    os.replace(left, path)


class JumpingClock(datetime):
    """Each look at it is a day or two before or after the last."""

    chance = random.Random(3)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Some time within four days of the true one."""
        return datetime.now(tz) + timedelta(days=cls.chance.uniform(-2, 2))


def record_by_a_jumping_clock(out: str, told: dict[str, Any]) -> int:
    """Record while the clock of the machine jumps."""
    manifest_keeper.datetime = JumpingClock  # type: ignore[misc]
    lock_module.datetime = JumpingClock  # type: ignore[misc]
    real = time.time
    time.time = lambda: real() + JumpingClock.chance.uniform(-2e5, 2e5)
    return record(out, told)

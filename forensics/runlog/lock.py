"""The lock of a run directory: two recordings into one directory would ruin both."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from forensics.errors import UsageError
from forensics.frozen import dataclass

LOCK_NAME = "run.lock"


class Holding(Enum):
    """Is the process that took a lock still there?"""

    LIVE = "live"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class LockHolder:
    """Who holds a lock.

    Attributes:
        pid: process id; 0 when the file could not be read.
        host: name of its machine.
        started: UTC time the lock was taken, ISO 8601.
        birth: when the process began, in the kernel's own count; tells a reused pid. 0: unknown.
    """

    pid: int = 0
    host: str = ""
    started: str = ""
    birth: int = 0

    def state(self) -> Holding:
        """Live, dead, or unknown (another machine, or an unreadable lock)."""
        if self.pid <= 0 or self.host != socket.gethostname():
            return Holding.UNKNOWN
        if not _alive(self.pid):
            return Holding.DEAD
        birth = _birth(self.pid)
        reused = bool(self.birth and birth and birth != self.birth)
        return Holding.DEAD if reused else Holding.LIVE


class RunLock:
    """The lock file of one run directory; use it as a context manager or by hand.

    Args:
        run_dir: the run directory; it must exist.
        takeover: take a lock over whose process is gone or cannot be asked (another machine).
            Only ``--resume`` and ``--overwrite`` say so.
    """

    def __init__(self, run_dir: str | os.PathLike[str], *, takeover: bool = False) -> None:
        self.path = Path(run_dir) / LOCK_NAME
        self.takeover = takeover
        self._held = False

    def acquire(self, *, takeover: bool | None = None) -> None:
        """Take the lock.

        Raises:
            UsageError: it is held: by a live process, or by a dead one and ``takeover`` is off.
            OSError: the lock file cannot be written.
        """
        allowed = self.takeover if takeover is None else takeover
        while not self._create():
            holder = read_lock(self.path)
            if holder is None:
                continue  # released between the two looks
            state = holder.state()
            if state is Holding.LIVE or not allowed:
                raise _refusal(self.path.parent, holder, state)
            self._set_aside()
        self._held = True

    def release(self) -> None:
        """Give the lock back; safe to call twice."""
        if self._held:
            self._held = False
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _create(self) -> bool:
        """Create the lock file; False when there is one. Only one of two racers creates it."""
        mine = LockHolder(
            pid=os.getpid(),
            host=socket.gethostname(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            birth=_birth(os.getpid()),
        )
        # Written under a name of its own and then linked, so that nobody reads half a lock.
        own = self.path.with_name(f".{LOCK_NAME}.{os.getpid()}.tmp")
        own.write_text(json.dumps(asdict(mine)), encoding="utf-8")
        try:
            os.link(own, self.path)
        except FileExistsError:
            return False
        except (OSError, NotImplementedError):  # a file system without hard links
            return self._create_plainly(own)
        finally:
            own.unlink(missing_ok=True)
        return True

    def _create_plainly(self, own: Path) -> bool:
        try:
            with self.path.open("xb") as file:
                file.write(own.read_bytes())
        except FileExistsError:
            return False
        return True

    def _set_aside(self) -> None:
        """Remove a stale lock; of two processes that try, the rename lets one succeed."""
        grave = self.path.with_name(f".{LOCK_NAME}.{os.getpid()}.stale")
        try:
            os.replace(self.path, grave)
        except FileNotFoundError:
            return
        grave.unlink(missing_ok=True)


def read_lock(path: Path) -> LockHolder | None:
    """Who holds the lock at ``path``; None when there is no lock."""
    try:
        data = json.loads(path.read_bytes()[:4096])
        return LockHolder(
            pid=int(data["pid"]),
            host=str(data["host"]),
            started=str(data.get("started", "")),
            birth=int(data.get("birth", 0)),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return LockHolder()


def _refusal(run_dir: Path, holder: LockHolder, state: Holding) -> UsageError:
    who = f"process {holder.pid} on {holder.host} (since {holder.started})"
    if state is Holding.LIVE:
        return UsageError(
            f"in use by {who}",
            where=run_dir,
            hint="wait for it or stop it, then --resume or --overwrite; or choose another --out",
        )
    if holder.pid <= 0:
        who = "an unknown process"
    tail = "is gone" if state is Holding.DEAD else "cannot be asked from here"
    return UsageError(
        f"locked by {who}, which {tail}",
        where=run_dir,
        hint="--resume continues the run, --overwrite begins it anew",
    )


def _alive(pid: int) -> bool:
    """Is there a process of this id on this machine?"""
    if os.name == "nt":
        return _alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    except OverflowError:
        return False
    return True


def _alive_on_windows(pid: int) -> bool:
    import ctypes

    query_limited_information = 0x1000
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    handle = kernel.OpenProcess(query_limited_information, False, pid)
    if not handle:
        return False
    kernel.CloseHandle(handle)
    return True


def _birth(pid: int) -> int:
    """Start time of a process in clock ticks since boot (Linux); 0 where it cannot be told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # Field 22; the name in field 2 may hold spaces and brackets.
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0

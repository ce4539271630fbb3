"""The lock of a run directory: two recordings into one directory would ruin both."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from forensics.errors import UsageError
from forensics.frozen import dataclass

LOCK_NAME = "run.lock"
QUIET_S = 60.0
"""Seconds that a run whose process cannot be asked (it is on another machine) must have been quiet
before it is taken over: longer than most steps take, and than NFS clients cache a file's size."""
_LOOK_S = 0.5
_GROWING = ("steps.csv", "run.json")
"""What a recording writes as it goes on."""


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
        if self.pid <= 0 or self.host != _host():
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
        say: told in one line that, and why, taking it will last.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        takeover: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(run_dir) / LOCK_NAME
        self.takeover = takeover
        self._say = say
        self._held = False

    def acquire(self, *, takeover: bool | None = None) -> None:
        """Take the lock.

        Raises:
            UsageError: it is held: by a live process (one on another machine still writes), or
                by a dead one and ``takeover`` is off.
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
            if state is Holding.UNKNOWN and self._still_written(holder):
                raise _refusal(self.path.parent, holder, Holding.LIVE)
            self._set_aside(holder)
        self._held = True

    def release(self) -> None:
        """Give the lock back; safe to call twice, and no harm to one that was taken over."""
        if self._held:
            self._held = False
            holder = read_lock(self.path)
            if holder is not None and (holder.pid, holder.host) == (os.getpid(), _host()):
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
            host=_host(),
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

    def _set_aside(self, judged: LockHolder) -> None:
        """Remove the stale lock that was judged, and no other that has come in its place.

        Of several processes that judge the same file only one at a time looks and removes.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            _exclude_others(descriptor)
            if _is_at(descriptor, self.path) and read_lock(self.path) == judged:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _still_written(self, holder: LockHolder) -> bool:
        """Does a process that cannot be asked go on writing? Waits until the run is quiet."""
        before = _last_write(self.path.parent)
        if before is None:
            return False
        # The file server's clock on both sides: that of the other machine may differ from ours.
        age = (self._server_time() - before) / 1e9
        end = time.monotonic() + min(max(QUIET_S - age, 0.0), QUIET_S)
        if end - time.monotonic() > 1 and self._say is not None:
            self._say(
                f"{self.path.parent}: waiting up to {end - time.monotonic():.0f} s to see whether "
                f"process {holder.pid} on {holder.host} still writes"
            )
        while time.monotonic() < end:
            time.sleep(min(_LOOK_S, max(end - time.monotonic(), 0.0)))
            if _last_write(self.path.parent) != before:
                return True
        return False

    def _server_time(self) -> int:
        """Nanoseconds since the epoch, by the clock that stamps the files of the run."""
        probe = self.path.with_name(f".{LOCK_NAME}.{os.getpid()}.time")
        try:
            probe.write_bytes(b"")
            return probe.stat().st_mtime_ns
        finally:
            probe.unlink(missing_ok=True)


def _host() -> str:
    return socket.gethostname()


def _exclude_others(descriptor: int) -> None:
    """Wait until no other process looks at this very file; nothing where the system has no lock."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is_at(descriptor: int, path: Path) -> bool:
    """Is the open file the one that has the name now?"""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _last_write(run_dir: Path) -> int | None:
    """When the run was last written, ns since the epoch; None where it has no such file."""
    found = []
    for name in _GROWING:
        # Opened, not only asked for: that makes an NFS client look at the server.
        with suppress(OSError), (run_dir / name).open("rb") as file:
            found.append(os.fstat(file.fileno()).st_mtime_ns)
    return max(found, default=None)


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

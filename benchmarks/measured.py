"""What a benchmark hands to the runner: tables of cells, goals held or missed, and how to time.

Both sides of every ratio are measured in one run, in turn, A B A B …, so that a machine that slows
down slows both. Medians are quoted, with the least and the greatest beside them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        columns: its head.
        rows: cells as they are printed.
        notes: sentences that stand below it.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """As GitHub shows it."""
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join((drawn, *self.notes))


@dataclass(frozen=True)
class Goal:
    """One goal: what it is about, what it asks for, what was measured, whether that is enough."""

    what: str
    asked: str
    measured: str
    met: bool


@dataclass(frozen=True)
class Result:
    """What one benchmark found."""

    tables: tuple[Table, ...]
    goals: tuple[Goal, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For the file that the runner keeps."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The inverse of ``to_json``."""
        tables = (
            Table(tuple(t["columns"]), tuple(map(tuple, t["rows"])), tuple(t["notes"]))
            for t in data["tables"]
        )
        return cls(tuple(tables), tuple(Goal(**goal) for goal in data["goals"]))


@dataclass(frozen=True)
class Cost:
    """What one process took: wall and processor seconds, the peak of its resident memory in MiB.

    ``ended``: its exit status; None where it ran past its time limit and was ended.
    """

    wall: float
    processor: float
    peak: float
    ended: int | None = 0


def run_process(command: Sequence[str], limit: float | None = None) -> Cost:
    """Run a process to its end, its output thrown away, and tell what it took.

    Args:
        command: the program and its arguments.
        limit: seconds after which it is ended.
    """
    began = time.perf_counter()
    null = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2)
    pid = os.posix_spawnp(command[0], list(command), process_environment(), file_actions=null)
    ended = limit is None or _ends_within(pid, limit - (time.perf_counter() - began))
    if not ended:
        os.kill(pid, 9)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    peak = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    code = os.waitstatus_to_exitcode(status) if ended else None
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak, code)


def _ends_within(pid: int, seconds: float) -> bool:
    """Wait for a child without reaping it: its usage is read afterwards."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.002)
    return False


def process_environment() -> dict[str, str]:
    """For every measured process: compiled modules may be kept, or each would compile them anew."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def times(ratios: Iterable[float], digits: int = 2) -> tuple[str, str]:
    """The median of some ratios, and their range: ``×1.52`` and ``1.40 to 1.61``."""
    found = sorted(ratios)
    middle = statistics.median(found)
    return f"×{middle:.{digits}f}", f"{found[0]:.{digits}f} to {found[-1]:.{digits}f}"


def goal_of_ratio(what: str, ratios: Sequence[float], most: float, digits: int = 2) -> Goal:
    """A goal of the kind *at most so many times*."""
    middle = statistics.median(ratios)
    return Goal(what, f"≤ ×{most:g}", f"×{middle:.{digits}f}", middle <= most)


def machine() -> str:
    """Processor, cores, memory, system, Python and the packages that matter, in one line."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    def of(package: str) -> str:
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return f"no {package}"

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(of(package) for package in ("torch", "pyarrow"))
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else "processor unknown"


def commit() -> str:
    """The commit that was measured; a ``+`` where the package has uncommitted changes."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + ("+" if head and _git("status", "--porcelain", "--", "forensics") else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()

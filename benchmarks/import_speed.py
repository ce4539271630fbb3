"""How fast logs of other programs are read, and in how much memory.

    python benchmarks/import_speed.py --megabytes 200 [--only llm-c torchtitan] [--through report]

Each log is written to a temporary file and read by a process of its own. Speed is bytes by its
processor time, starting Python included. Memory is the most that the process held of its own
(anonymous: without files and libraries that are mapped), looked at a hundred times a second; where
the system does not tell that, it is its resident peak.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.foreign_logs import NAMES, parts
from benchmarks.measured import Goal, Result, Table

LOAD = """
import sys
from forensics import load_run
steps = load_run(sys.argv[1]).steps
print(steps.source_format, len(steps))
"""
VERB = "import sys; from forensics.cli import main; sys.argv = ['forensics', *sys.argv[1:]]; main()"
COMMON = ("llama-factory", "hf-stdout", "csv")
LEAST_MB_S = 40
_PAUSE = 0.01
"""Seconds between two looks at a process's memory."""


def write(path: Path, name: str, size: int) -> None:
    """Write a log of a format until the file has a size."""
    with path.open("wb") as file:
        for part in parts(name):
            file.write(part)
            if file.tell() >= size:
                break


def command(through: str, path: Path) -> list[str]:
    """What is measured: reading alone, or a whole verb."""
    arguments = {
        "load": [LOAD, str(path)],
        "report": [VERB, "report", str(path)],
        "convert": [VERB, "convert", str(path), "--out", "-"],
    }
    return [sys.executable, "-c", *arguments[through]]


def measure(arguments: list[str]) -> tuple[str, float, float]:
    """What a process prints, its processor seconds and the most memory it had, MiB."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.DEVNULL)
        most = 0.0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            most = max(most, anonymous(process.pid))
            time.sleep(_PAUSE)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
    resident = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    if process.returncode:
        text = f"failed {process.returncode}"
    return text, usage.ru_utime + usage.ru_stime, most or resident


def anonymous(pid: int) -> float:
    """MiB of memory that a process has of its own; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in status.split("\n") if line[:8] == "RssAnon:") / 1024


def measure_formats(names: Sequence[str], megabytes: int, through: str) -> Result:
    """A row a format; the goal is that of the slowest log of lines."""
    rows, speeds = [], {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("events.out.tfevents.1" if name == "tensorboard" else "it.log")
            write(path, name, megabytes * 10**6)
            size = path.stat().st_size / 1e6
            text, seconds, memory = measure(command(through, path))
        said = text.split() if through == "load" else [name, "0"]
        read = f"{int(said[1]):,}" if said[0] == name and int(said[1]) else " ".join(said)
        read = read if through == "load" else "–"
        rows.append((name, read, f"{size / seconds:.0f} MB/s", f"{memory:.0f} MiB"))
        speeds[name] = size / seconds
    slowest = min(speeds, key=lambda name: speeds[name])
    goal = Goal(
        f"slowest of the logs ({slowest}), by processor time",
        f"≥ {LEAST_MB_S} MB/s",
        f"{speeds[slowest]:.0f} MB/s",
        speeds[slowest] >= LEAST_MB_S,
    )
    return Result((Table(("format", "rows", "speed", "own memory"), tuple(rows)),), (goal,))


def measure_all(quick: bool) -> Result:
    """For the page: what most trainings write."""
    return measure_formats(COMMON, 2 if quick else 60, "load")


def main() -> None:
    """Measure every log and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="FORMAT")
    parser.add_argument("--through", choices=("load", "report", "convert"), default="load")
    options = parser.parse_args()
    for table in measure_formats(options.only, options.megabytes, options.through).tables:
        print(table.markdown())


if __name__ == "__main__":
    main()

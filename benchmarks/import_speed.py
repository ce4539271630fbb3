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
from pathlib import Path

from foreign_logs import NAMES, parts

LOAD = """
import sys
from forensics import load_run
steps = load_run(sys.argv[1]).steps
print(steps.source_format, len(steps))
"""
VERB = "import sys; from forensics.cli import main; sys.argv = ['forensics', *sys.argv[1:]]; main()"
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
        "convert": [VERB, "convert", str(path), "--out", os.devnull, "--overwrite"],
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


def main() -> None:
    """Measure every log and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="FORMAT")
    parser.add_argument("--through", choices=("load", "report", "convert"), default="load")
    options = parser.parse_args()
    print("| format | rows | MB/s | peak memory |\n| --- | --- | --- | --- |")
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("events.out.tfevents.1" if name == "tensorboard" else "it.log")
            write(path, name, options.megabytes * 10**6)
            size = path.stat().st_size / 1e6
            text, seconds, memory = measure(command(options.through, path))
        said = text.split() if options.through == "load" else [name, "0"]
        rows = f"{int(said[1]):,}" if said[0] == name and int(said[1]) else " ".join(said)
        rows = rows if options.through == "load" else "–"
        print(f"| {name} | {rows} | {size / seconds:.0f} | {memory:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()

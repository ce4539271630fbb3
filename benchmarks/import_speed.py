"""How fast logs of other programs are read, and in how much memory.

    python benchmarks/import_speed.py --megabytes 2000

Each log is written to a temporary file and read by a process of its own. Speed is bytes by its
processor time, memory its peak; both include starting Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

READ = """
import resource, sys, time
from forensics import load_run
steps = load_run(sys.argv[1]).steps
used = resource.getrusage(resource.RUSAGE_SELF)
print(steps.source_format, len(steps), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


def llama_factory() -> Iterator[str]:
    """Records of ten steps each, as JSON lines."""
    step = 0
    while True:
        step += 10
        record = {"current_steps": step, "total_steps": 10**9, "loss": 2.0 + step % 97 / 1000}
        record |= {"lr": 1e-5, "epoch": step / 1e5, "percentage": 0.23}
        yield json.dumps({**record, "elapsed_time": "0:32:48", "remaining_time": "9:21:39"}) + "\n"


def hf_stdout() -> Iterator[str]:
    """A progress bar that is redrawn every step, and a printed record every tenth."""
    step = 0
    while True:
        step += 1
        yield f"\r {step % 100:3}%|####6     | {step}/900000000 [14:17<3:32:25,  1.15s/it]"
        if step % 10 == 0:
            loss = 2.0 + step % 97 / 1000
            yield f"{'':37}\r{{'loss': {loss}, 'grad_norm': 1.25, 'learning_rate': 1e-05}}\n"


def csv() -> Iterator[str]:
    """Another tool's columns."""
    yield "iteration,train/loss,grad_norm,learning_rate\n"
    step = 0
    while True:
        step += 1
        yield f"{step},{2.0 + step % 97 / 1000},{1.0 + step % 31 / 100},1e-05\n"


LOGS: dict[str, Callable[[], Iterator[str]]] = {
    "llama-factory": llama_factory,
    "hf-stdout": hf_stdout,
    "csv": csv,
}


def write(path: Path, lines: Iterator[str], size: int) -> None:
    """Write lines until the file has a size."""
    with path.open("w", buffering=1 << 20) as file:
        written = 0
        while written < size:
            written += file.write(next(lines))


def main() -> None:
    """Measure every log and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--only", choices=LOGS)
    options = parser.parse_args()
    print("| format | rows | MB/s | peak memory |\n| --- | --- | --- | --- |")
    for name, lines in LOGS.items():
        if options.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "it.log"
            write(path, lines(), options.megabytes * 10**6)
            command = [sys.executable, "-c", READ, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        form, rows, seconds, memory = done.stdout.split()
        speed = options.megabytes / float(seconds)
        print(f"| {form} | {int(rows):,} | {speed:.0f} | {float(memory):.0f} MiB |")


if __name__ == "__main__":
    main()

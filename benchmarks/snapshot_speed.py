"""What a question to a large store of snapshots costs: time, and bytes read.

A store of 3,000 parameters × 10,000 snapshots is written as the recorder writes it, in network
order, with one non-finite gradient at 73 % of the run. Each question is then asked in a process of
its own, with the modules imported; bytes are those that the process read through the system
(``rchar``). *Opening* reads the footers; the others' times are after opening.

    python benchmarks/snapshot_speed.py [--parameters 3000] [--snapshots 10000] [--runs 7]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Goal, Result, Table
from forensics.runlog.params import ParamWriter

EVERY = 10
"""Steps between snapshots."""
ASK = """
import sys, time
from pathlib import Path
import numpy as np, pyarrow.parquet
from forensics.runlog.params import ParamStore

def read():
    return int(Path("/proc/self/io").read_text().split()[1])

def top(store, step):
    rows = store.at(step, ["grad_l2"])
    assert len(rows), step
    order = np.argsort(-rows.values["grad_l2"])[:5]
    return [rows.names[i] for i in order]

def first(store, step):
    rows = store.first_nonfinite()
    assert len(rows) == 1, rows
    return rows.names

def course(store, step):
    return store.matrix("grad_l2").values[:, 0]

store, ask, step = ParamStore(sys.argv[1]), globals()[sys.argv[2]], int(sys.argv[3])
for question in (lambda: store.repairs + (store.at(-1, []),), lambda: ask(store, step)):
    bytes_before, began = read(), time.perf_counter()
    question()
    print(time.perf_counter() - began, read() - bytes_before)
"""
ASKED = {
    "first": ("first non-finite parameter", 0.3),
    "top": ("top five of a step", 0.05),
    "course": ("one statistic, everything", None),
}
"""Questions, and the goal of each in seconds after opening."""


def write_store(directory: Path, parameters: int, snapshots: int) -> float:
    """Write the store; processor seconds that the writer took for it."""
    names = [f"blocks.{i // 12}.part{i % 12}.weight" for i in range(parameters)]
    rng, taken = np.random.default_rng(0), 0.0
    level = rng.normal(size=parameters)
    none = np.zeros(parameters, np.int64)
    with ParamWriter(directory) as writer:
        for i in range(snapshots):
            grads = np.exp(level + 0.2 * rng.normal(size=parameters))
            bad = none.copy()
            if i == snapshots * 73 // 100:
                bad[parameters // 2], grads[parameters // 2] = 3, np.nan
            cells = {
                "grad_l2": grads,
                "grad_absmax": grads * rng.uniform(0.05, 0.15, parameters),
                "grad_nonfinite": bad,
                "value_l2": np.exp(level / 2 + i / snapshots + 1e-4 * rng.normal(size=parameters)),
                "value_nonfinite": none,
                "update_l2": 3e-4 * np.exp(0.1 * rng.normal(size=parameters)),
                "v_ratio": np.exp(0.1 * rng.normal(size=parameters)),
            }
            began = time.process_time()
            writer.append(i * EVERY, names, "param", cells)
            taken += time.process_time() - began
    return taken


def ask(directory: Path, question: str, step: int) -> list[tuple[float, int]]:
    """Seconds and bytes read, of opening and of the question, in a fresh process."""
    command = [sys.executable, "-c", ASK, str(directory), question, str(step)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = (line.split() for line in done.stdout.splitlines())
    return [(float(seconds), int(count)) for seconds, count in lines]


def measure(parameters: int, snapshots: int, runs: int) -> Result:
    """The table: what is asked, its time, and the share of the store that is read for it."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "params"
        taken = write_store(directory, parameters, snapshots)
        size = sum(path.stat().st_size for path in directory.iterdir())
        step = snapshots * 7 // 10 * EVERY
        found = {
            question: [ask(directory, question, step) for _ in range(runs if asked[1] else 3)]
            for question, asked in ASKED.items()
        }
    opening = [answer[0] for answers in found.values() for answer in answers]
    rows, goals = [_row("opening", opening, size)], []
    for question, (told, most) in ASKED.items():
        answers = [answer[1] for answer in found[question]]
        rows.append(_row(told, answers, size))
        middle = statistics.median(seconds for seconds, _ in answers)
        if most is not None:
            goals.append(Goal(told, f"≤ {most} s", f"{middle:.4f} s", middle <= most))
    floats = parameters * snapshots * 5
    note = (
        f"{parameters:,} parameters × {snapshots:,} snapshots of seven statistics: "
        f"{size / 1e6:,.0f} MB, {size / floats:.1f} bytes a value that is no count; writing one "
        f"snapshot takes {taken / snapshots * 1e3:.2f} ms of processor time."
    )
    head = ("asked", "time", "spread", "read", "of the store")
    return Result((Table(head, tuple(rows), (note,)),), tuple(goals))


def _row(told: str, answers: list[tuple[float, int]], size: int) -> tuple[str, ...]:
    seconds = sorted(one for one, _ in answers)
    count = max(one for _, one in answers)
    return (
        told,
        f"{statistics.median(seconds) * 1e3:.1f} ms",
        f"{seconds[0] * 1e3:.1f} to {seconds[-1] * 1e3:.1f}",
        f"{count / 1e6:.1f} MB",
        f"{count / size:.2%}",
    )


def measure_all(quick: bool) -> Result:
    """For the page."""
    return measure(100, 300, 2) if quick else measure(3_000, 10_000, 9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parameters", type=int, default=3_000)
    parser.add_argument("--snapshots", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    for table in measure(options.parameters, options.snapshots, options.runs).tables:
        print(table.markdown())


if __name__ == "__main__":
    main()

"""How long a report takes beside a process that only imports, and one that only reads the file.

Every figure is a whole process: start-up included, output thrown away. The two sides of a ratio run
in turn, A B A B …, so that a machine that slows down slows both; medians of the pairs' ratios are
quoted. Beside the wall-clock ratio stands that of the processor's time, which other work on the
machine disturbs less. A second table says what a report's stages cost: starting, reading the file,
and all rules together, in seconds of the processor.

    python benchmarks/report_speed.py [--rows 2000 1000000] [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Cost, Goal, Result, Table, goal_of_ratio, run_process, times

ROWS = (2_000, 20_000, 200_000, 1_000_000, 10_000_000)
MEMORY_GOALS = {1_000_000: 350, 10_000_000: 1_536}
"""MiB of resident memory at most, by rows."""

IMPORT_ONLY = "import click, pyarrow.csv, numpy"
READ_ONLY = """
import sys, pyarrow as pa, pyarrow.csv as pc
types = {"step": pa.int64(), "lr": pa.float64(), "grad_l2_pre_clip": pa.float64(),
         "grad_l2_post_clip": pa.float64(), "loss": pa.float64(), "skipped": pa.int64(),
         "skip_reason": pa.string(), "scaler_scale": pa.float64()}
options = pc.ConvertOptions(column_types=types, null_values=["", "NA", "None", "null"])
pc.read_csv(sys.argv[1], convert_options=options)
"""
REPORT = (
    "import sys; from forensics.cli import main; sys.argv = ['forensics', *sys.argv[1:]]; main()"
)
STAGES = """
import os, sys, time
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does, and the next one
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
import forensics.cli.report, forensics.diagnose.rules
from forensics.diagnose.engine import diagnose
from forensics.runlog.run import load_run
times = [0.0, time.process_time()]
run = load_run(sys.argv[1])
times.append(time.process_time())
diagnose(run)
times.append(time.process_time())
print(*(after - before for before, after in zip(times, times[1:])))
"""


def write_log(path: Path, rows: int) -> None:
    """A healthy fp16 log with a regular sawtooth, as the recorder writes it."""
    rng = np.random.default_rng(0)
    warmup, interval, scale, clean = 500, 2000, 65536.0, 0
    with path.open("w") as out:
        out.write(
            "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale\n"
        )
        noise = rng.normal(size=(rows, 2))
        for step in range(rows):
            lr = 3e-4 * min(1.0, (step + 1) / warmup)
            loss = float(2.0 + 6.0 * (step + 10.0) ** -0.3 + 0.05 * noise[step, 0])
            norm = float(np.exp(-0.5 + 0.25 * noise[step, 1]))
            if scale > 65536.0:
                out.write(f"{step},{lr!r},inf,,{loss!r},1,nonfinite_grad:head.weight,{scale!r}\n")
                scale, clean = scale / 2, 0
                continue
            out.write(f"{step},{lr!r},{norm!r},{min(norm, 1.0)!r},{loss!r},0,,{scale!r}\n")
            clean += 1
            if clean == interval:
                scale, clean = scale * 2, 0


def compare(rows: int, runs: int, path: Path) -> tuple[tuple[str, ...], list[Goal]]:
    """One row of the table, the report beside the bare process it is held against; its goals."""
    beside, code, limit = "reading alone", READ_ONLY, 2.0
    if rows <= 10_000:
        beside, code, limit = "importing alone", IMPORT_ONLY, 2.5
    limit = 2.5 if rows > 1_000_000 else limit
    bare_one = [sys.executable, "-c", code, str(path)]
    report_one = [sys.executable, "-c", REPORT, "report", str(path)]
    _checked(bare_one), _checked(report_one)  # fills the file cache
    pairs = [(_checked(bare_one), _checked(report_one)) for _ in range(runs)]
    wall = [report.wall / bare.wall for bare, report in pairs]
    processor = [report.processor / bare.processor for bare, report in pairs]
    bare_s = statistics.median(bare.wall for bare, _ in pairs)
    report_s = statistics.median(report.wall for _, report in pairs)
    peak = max(report.peak for _, report in pairs)
    cells = (f"{rows:,}", f"{beside} {bare_s:.2f} s", f"{report_s:.2f} s", *times(wall))
    goals = [goal_of_ratio(f"report of {rows:,} rows ÷ {beside}", wall, limit)]
    if rows in MEMORY_GOALS:
        most = MEMORY_GOALS[rows]
        told = f"memory of a report of {rows:,} rows"
        goals.append(Goal(told, f"≤ {most:,} MiB", f"{peak:,.0f} MiB", peak <= most))
    return (*cells, *times(processor), f"{peak:,.0f} MiB"), goals


def _checked(command: list[str]) -> Cost:
    cost = run_process(command)
    if cost.ended != 0:
        raise SystemExit(f"a measured process failed ({cost.ended}): {' '.join(command[2:])[:80]}")
    return cost


def stages(rows: int, runs: int, path: Path) -> tuple[str, ...]:
    """One row of the second table: medians of the processor seconds of each stage."""
    command = [sys.executable, "-c", STAGES, str(path)]
    measured = [
        [float(text) for text in subprocess.check_output(command, text=True).split()]
        for _ in range(runs)
    ]
    start, read, judge = (statistics.median(one) for one in zip(*measured, strict=True))
    return f"{rows:,}", f"{start:.2f} s", f"{read:.2f} s", f"{judge:.2f} s"


def measure(rows_of: Sequence[int], runs: int) -> Result:
    """Both tables, for logs of so many rows; of more than a million a third of the runs."""
    first, second, goals = [], [], []
    for rows in rows_of:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps.csv"
            write_log(path, rows)
            repeated = runs if rows <= 1_000_000 else max(2, runs // 3)
            cells, asked = compare(rows, repeated, path)
            first.append(cells)
            goals += asked
            second.append(stages(rows, min(repeated, 5), path))
    head = ("rows", "beside", "report", "ratio, wall", "spread", "ratio, processor", "spread")
    stages_head = ("rows", "start", "read", "all rules")
    tables = Table((*head, "peak memory"), tuple(first)), Table(stages_head, tuple(second))
    return Result(tables, tuple(goals))


def measure_all(quick: bool) -> Result:
    """For the page."""
    return measure([2_000, 20_000] if quick else ROWS, 2 if quick else 9)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    for table in measure(options.rows, options.runs).tables:
        print(table.markdown(), end="\n\n")


if __name__ == "__main__":
    main()

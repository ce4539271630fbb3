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
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

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
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does
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


def run(code: str, *arguments: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak resident MiB of one Python process."""
    started = time.perf_counter()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code, *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"a measured process failed: {code.strip().splitlines()[0]}")
    peak = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    return seconds, usage.ru_utime + usage.ru_stime, peak


def compare(rows: int, runs: int, path: Path) -> str:
    """One line of the table: the report beside the bare process it is held against."""
    beside, limit = (IMPORT_ONLY, 2.5) if rows <= 10_000 else (READ_ONLY, 2.0)
    limit = 2.5 if rows > 1_000_000 else limit
    arguments = () if beside is IMPORT_ONLY else (str(path),)
    run(beside, *arguments), run(REPORT, "report", str(path))  # fills the file cache
    pairs = [(run(beside, *arguments), run(REPORT, "report", str(path))) for _ in range(runs)]
    ratio = statistics.median(report[0] / bare[0] for bare, report in pairs)
    cpu = statistics.median(report[1] / bare[1] for bare, report in pairs)
    bare_s = statistics.median(bare[0] for bare, _ in pairs)
    report_s = statistics.median(report[0] for _, report in pairs)
    peak = max(report[2] for _, report in pairs)
    name = "import only" if beside is IMPORT_ONLY else "read only"
    return (
        f"| {rows:,} | {name} {bare_s:.2f} s | {report_s:.2f} s | ×{ratio:.2f} | ×{cpu:.2f} "
        f"| ≤ {limit} | {peak:.0f} MiB |"
    )


def stages(rows: int, runs: int, path: Path) -> str:
    """One line of the second table: medians of the processor seconds of each stage."""
    command = [sys.executable, "-c", STAGES, str(path)]
    measured = [
        [float(text) for text in subprocess.check_output(command, text=True).split()]
        for _ in range(runs)
    ]
    start, read, judge = (statistics.median(one) for one in zip(*measured, strict=True))
    return f"| {rows:,} | {start:.2f} s | {read:.2f} s | {judge:.2f} s |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| rows | beside | report | ratio, wall | ratio, processor | goal | peak memory |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    second = ["", "| rows | start | read | all rules |", "| --- | --- | --- | --- |"]
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "steps.csv"
            write_log(path, rows)
            print(compare(rows, options.runs, path), flush=True)
            second.append(stages(rows, options.runs, path))
    print("\n".join(second))


if __name__ == "__main__":
    main()

"""How ``forensics scan`` grows with workers, over many small runs.

    python benchmarks/scan_speed.py --runs 10000 --workers 1 2 4 8
    python benchmarks/scan_speed.py --runs 2000 --engine dask

The runs are written to a temporary directory, 200 steps each, as the recorder writes them; every
fifth goes bad. Each scan is a process of its own. What a scan of 16 of them takes with as many
workers is taken off, as its start-up: speed is what the other runs took.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Cost, Goal, Result, Table, machine, run_process

STEPS = 200
FEW = 16
"""Runs of the scan that tells the start-up."""
GOAL = 200.0
"""Runs a second of processor time."""
HEADER = "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale"


def write_run(directory: Path, chance: random.Random, *, sick: bool) -> None:
    """One small run in mixed precision; a sick one has NaN losses in its second half."""
    bad_from = chance.randrange(STEPS // 2, STEPS) if sick else STEPS
    lines = [HEADER]
    for step in range(STEPS):
        if step >= bad_from:
            lines.append(f"{step},0.001,nan,,nan,1,nonfinite_loss,65536.0")
            continue
        norm = 1.5 + math.exp(-step / 50) + chance.gauss(0, 0.1)
        loss = 2 + 2 * math.exp(-step / 60) + chance.gauss(0, 0.05)
        lines.append(f"{step},0.001,{norm!r},{min(norm, 1.0)!r},{loss!r},0,,65536.0")
    directory.mkdir(parents=True)
    (directory / "steps.csv").write_text("\n".join(lines) + "\n")


def write_runs(root: Path, count: int) -> None:
    """So many runs, 100 a folder."""
    chance = random.Random(0)
    for i in range(count):
        write_run(root / f"{i // 100:04}" / f"run-{i:06}", chance, sick=i % 5 == 0)


def scan(root: Path, workers: int, engine: str) -> Cost:
    """What a scan of all of them takes."""
    command = [sys.executable, "-m", "forensics", "scan", str(root), "--jobs", str(workers)]
    cost = run_process([*command, "--engine", engine, "--format", "json"])
    if cost.ended:
        raise SystemExit(f"the scan ended with exit code {cost.ended}")
    return cost


def measure(runs: int, workers: Sequence[int], engine: str = "pool") -> Result:
    """A row for each number of workers."""
    rows: list[tuple[str, ...]] = []
    speeds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        all_of_them, few = Path(folder) / "all", Path(folder) / "few"
        write_runs(all_of_them, runs)
        write_runs(few, FEW)
        for count in workers:
            start, whole = scan(few, count, engine), scan(all_of_them, count, engine)
            wall, processor = whole.wall - start.wall, whole.processor - start.processor
            speeds.append((runs - FEW) / processor)
            rate = f"{(runs - FEW) / wall:,.0f}"
            cells = (f"{count}", f"{start.wall:.1f} s", f"{whole.wall:.1f} s", rate)
            rows.append((*cells, f"{speeds[-1]:,.0f}"))
            print(*rows[-1], sep=" | ", flush=True)
    head = ("workers", "start-up", "whole scan", "runs a second", "runs a second of processor time")
    best = speeds[0]
    goal = Goal(
        "scan, small runs a second a core", f"≥ {GOAL:g}", f"{best:,.0f} a second", best >= GOAL
    )
    return Result((Table(head, tuple(rows)),), (goal,))


def measure_all(quick: bool = False) -> Result:
    """For the runner of all benchmarks."""
    counts = [n for n in (1, 2, 4, 8, 16) if n <= (os.cpu_count() or 1)]
    return measure(200 if quick else 10_000, counts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--engine", choices=("pool", "dask"), default="pool")
    options = parser.parse_args()
    result = measure(options.runs, options.workers, options.engine)
    print(machine(), result.tables[0].markdown(), sep="\n\n")


if __name__ == "__main__":
    main()

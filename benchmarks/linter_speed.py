"""How long a report takes beside the public linters of training logs, on the same healthy log.

Whole processes, start included, in turn. The linters get the four columns that they read (step,
loss, learning rate, gradient norm); the report gets the whole log of eight and applies every rule.
Each has a time limit; one that runs into it is not tried on a longer log.

    python benchmarks/linter_speed.py [--rows 2000 100000 1000000] [--runs 3] [--limit 120]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Cost, Goal, Result, Table, run_process, times
from benchmarks.report_speed import REPORT, write_log
from benchmarks.rivals import COLUMNS, available, installed_version

ROWS = (2_000, 100_000, 1_000_000)
LIMIT_S = 90.0
SHORT_S = 10.0
"""Seconds of a linter's own above which one run is enough: start-up and chance no longer count."""


def reduced(path: Path, out: Path) -> None:
    """The columns that the linters read, under the names that they know."""
    with path.open() as source, out.open("w") as target:
        names = source.readline().rstrip("\n").split(",")
        kept = [i for i, name in enumerate(names) if name in COLUMNS]
        target.write(",".join(COLUMNS[names[i]] for i in kept) + "\n")
        for line in source:
            cells = line.rstrip("\n").split(",")
            target.write(",".join(cells[i] for i in kept) + "\n")


def beside(report: list[str], other: list[str], runs: int, limit: float) -> list[tuple[Cost, Cost]]:
    """Pairs of what a linter and the report took; empty where the linter failed or took too long.

    An exit code of 1 is a linter's way of saying that it found something.
    """
    pairs: list[tuple[Cost, Cost]] = []
    while len(pairs) < runs:
        taken = run_process(other, limit)
        if taken.ended not in (0, 1):
            return []
        pairs.append((taken, run_process(report)))
        if taken.processor > SHORT_S:
            break
    return pairs


def measure(rows_of: Sequence[int], runs: int, limit: float) -> Result:
    """A row a linter and length of log."""
    linters, notes = available()
    notes.insert(0, f"A dash: not done within {limit:.0f} s, here or on a shorter log.")
    rows: list[tuple[str, ...]] = []
    goals, over = [], set()
    for count in rows_of:
        ratios: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            whole, four = Path(folder) / "steps.csv", Path(folder) / "log.csv"
            write_log(whole, count)
            reduced(whole, four)
            report = [sys.executable, "-c", REPORT, "report", str(whole)]
            run_process(report)
            for linter in linters:
                name = f"{linter.name} {installed_version(linter.name)}"
                pairs: list[tuple[Cost, Cost]] = []
                if linter.name not in over:
                    pairs = beside(report, linter.command(four), runs, limit)
                if not pairs:
                    over.add(linter.name)
                    rows.append((f"{count:,}", name, *("–",) * 6))
                    continue
                rows.append((f"{count:,}", name, *_cells(pairs)))
                ratios[linter.name] = [a.processor / b.processor for a, b in pairs]
        if count == 1_000_000 and ratios:
            goals.append(_goal(ratios))
    head = ("rows", "linter", "its time", "report's", "ratio, wall", "ratio, processor")
    return Result(
        (Table((*head, "its memory", "report's"), tuple(rows), tuple(notes)),), tuple(goals)
    )


def _cells(pairs: list[tuple[Cost, Cost]]) -> tuple[str, ...]:
    wall = statistics.median(taken.wall for taken, _ in pairs)
    own = statistics.median(report.wall for _, report in pairs)
    ratio, processor = (
        " (".join(times([getattr(a, clock) / getattr(b, clock) for a, b in pairs], 1)) + ")"
        for clock in ("wall", "processor")
    )
    peaks = (max(pair[side].peak for pair in pairs) for side in (0, 1))
    return f"{wall:.2f} s", f"{own:.2f} s", ratio, processor, *(f"{p:,.0f} MiB" for p in peaks)


def _goal(ratios: dict[str, list[float]]) -> Goal:
    """The fastest of the linters must take three times as long, or longer."""
    fastest = min(ratios, key=lambda name: statistics.median(ratios[name]))
    middle = statistics.median(ratios[fastest])
    told = f"fastest linter ({fastest}) ÷ report, 1,000,000 rows, processor time"
    return Goal(told, "≥ ×3", f"×{middle:.1f}", middle >= 3)


def measure_all(quick: bool) -> Result:
    """For the page."""
    return measure((2_000,), 1, 30.0) if quick else measure(ROWS, 5, LIMIT_S)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that each may take")
    options = parser.parse_args()
    for table in measure(options.rows, options.runs, options.limit).tables:
        print(table.markdown())


if __name__ == "__main__":
    main()

"""Run every benchmark and write what it measured into docs/performance.md.

    python benchmarks/run_all.py                   # all of them: twenty minutes on two quiet cores
    python benchmarks/run_all.py --only report     # one or several, the others' figures stay
    python benchmarks/run_all.py --resume          # those that the last, broken-off run lacks
    python benchmarks/run_all.py --quick           # small sizes, printed only: does all of it work?

Each benchmark runs in a process of its own, with a time limit; one that fails or takes too long
leaves its part of the page as it was, is named at the end, and makes the exit code 1. What was
measured is kept under build/benchmarks as JSON, as soon as it is there.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import (
    ROOT,
    Goal,
    Result,
    Table,
    commit,
    machine,
    process_environment,
)

PAGE = ROOT / "docs" / "performance.md"
KEPT = ROOT / "build" / "benchmarks"
PARTS: Mapping[str, str] = {
    "report": "report_speed",
    "linters": "linter_speed",
    "recorder": "record_step",
    "recorded": "record_disk",
    "snapshots": "snapshot_speed",
    "bisect": "bisect_speed",
    "inspect": "inspect_speed",
    "imports": "import_speed",
    "faults": "fault_location",
    "corpus": "linter_scores",
}
"""The parts of the page, and the module whose ``measure_all(quick)`` gives each."""
LIMIT_S = 900
"""Seconds that one benchmark may take."""
GOALS = "goals"
_BLOCK = r"(<!-- measured: {name} -->\n).*?(<!-- end -->)"


def rewritten(page: str, name: str, text: str) -> str:
    """The page with one block put anew; ValueError where it has no such block, or several."""
    pattern = re.compile(_BLOCK.format(name=re.escape(name)), re.DOTALL)
    page, count = pattern.subn(lambda block: f"{block[1]}{text}\n{block[2]}", page)
    if count != 1:
        raise ValueError(f"{count} blocks '<!-- measured: {name} -->' in the page, not one")
    return page


def with_goals(page: str, name: str, goals: Sequence[Goal]) -> str:
    """The page with one part's rows of the table of goals put anew, the others' as they are."""
    block = re.search(_BLOCK.format(name=GOALS), page, re.DOTALL)
    told = {part: [] for part in PARTS} if block is None else _goal_rows(block.group())
    told[name] = [
        (name, goal.what, goal.asked, goal.measured, "met" if goal.met else "**missed**")
        for goal in goals
    ]
    rows = tuple(row for part in PARTS for row in told[part])
    return rewritten(page, GOALS, Table(("part", "what", "goal", "measured", ""), rows).markdown())


def _goal_rows(block: str) -> dict[str, list[tuple[str, ...]]]:
    """The rows that stand in the table, by part."""
    found: dict[str, list[tuple[str, ...]]] = {name: [] for name in PARTS}
    for line in block.splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if cells[0] in found:
            found[cells[0]].append(cells)
    return found


def block_of(entry: Mapping[str, Any]) -> str:
    """One part's tables, and where and when they were measured."""
    result = Result.from_json(entry["result"])
    told = (
        f"*{entry['day']}, commit {entry['commit']}, {entry['seconds'] / 60:.1f} minutes. "
        f"{entry['machine']}; load {entry['load']:.1f} when it began.*"
    )
    return "\n\n".join([*(table.markdown() for table in result.tables), told])


def write_page(name: str, entry: Mapping[str, Any]) -> None:
    """Put what was measured of one part into the page."""
    page = rewritten(PAGE.read_text(), name, block_of(entry))
    goals = Result.from_json(entry["result"]).goals
    PAGE.write_text(with_goals(page, name, goals))


def measure(name: str, quick: bool, path: Path) -> None:
    """In the process of one benchmark: measure, and keep the outcome in a file."""
    module = importlib.import_module(f"benchmarks.{PARTS[name]}")
    began, load = time.monotonic(), os.getloadavg()[0]
    result: Result = module.measure_all(quick)
    entry = {
        "day": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "load": load,
        "seconds": time.monotonic() - began,
        "result": result.to_json(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(entry, indent=1))
    temporary.replace(path)


def start(name: str, quick: bool, path: Path) -> bool:
    """Run one benchmark in a process of its own; False where it failed."""
    own = [sys.executable, str(Path(__file__).resolve()), "--only", name, "--into", str(path)]
    print(f"-- {name}", flush=True)
    try:
        subprocess.run(
            [*own, *(["--quick"] if quick else [])],
            check=True,
            cwd=ROOT,
            env=process_environment(),
            timeout=LIMIT_S,
        )
    except subprocess.CalledProcessError as error:
        print(f"{name} failed (exit code {error.returncode})", flush=True)
        return False
    except subprocess.TimeoutExpired:
        print(f"{name} took more than {LIMIT_S} s and was ended", flush=True)
        return False
    print(block_of(json.loads(path.read_text())), flush=True)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes; leaves the page alone")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--resume", action="store_true", help="keep what is less than a day old")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.into is not None:
        measure(given.only[0], given.quick, given.into)
        return 0
    folder = KEPT / "quick" if given.quick else KEPT
    failed = []
    for name in given.only:
        path = folder / f"{name}.json"
        if given.resume and path.exists() and time.time() - path.stat().st_mtime < 86_400:
            print(f"-- {name}: measured before", flush=True)
        elif not start(name, given.quick, path):
            failed.append(name)
        elif not given.quick:
            write_page(name, json.loads(path.read_text()))
    if failed:
        print(f"not measured: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

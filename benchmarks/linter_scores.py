"""What the public linters see of the labelled logs of tests/corpus, beside this tool's report.

One log of every n-th kind, healthy and faulty, up to a length; all read the same file, a CSV of the
columns that the linters know, and a report of the run's own directory is judged beside it.

How it is judged, so that nobody loses by words: the roots are put into families (what is not
finite, divergence, spike, …). *Named* is a log in whose findings, of any severity, one of a right
family occurs; its step and its place in the list do not count. *In reach* are the logs whose root
belongs to a family that the linter has a check for and the file shows. An *alarm* is a finding at
warning or above on a healthy log. A linter that fails or takes too long has said nothing.

    python benchmarks/linter_scores.py [--every 3] [--seed 100] [--rows 20000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Result, Table
from benchmarks.report_speed import REPORT
from benchmarks.rivals import COLUMNS, Linter, Said, available, installed_version, lint
from tests.corpus.case import Case
from tests.corpus.scoring import corpora
from tests.corpus.write import write

LIMIT_S = 30.0
FAMILIES: dict[str, str] = {
    "nonfinite": "nonfinite-loss nonfinite-gradient nonfinite-step-applied nonfinite-parameter "
    "nonfinite-validation norm-overflow poisoned-state masked-nonfinite recurring-sample "
    "dead-run rank-divergence clip-contamination",
    "divergence": "loss-divergence gradient-explosion instability-at-warmup-end "
    "learning-rate-fault depth-growth weight-growth",
    "spike": "loss-spike gradient-spike stale-second-moment dominant-parameter "
    "gradient-explosion instability-at-warmup-end",
    "oscillation": "loss-oscillation",
    "not learning": "loss-plateau gradient-vanishing gradient-underflow depth-decay dead-run "
    "update-ratio frozen-parameter stuck-log",
    "overfitting": "overfitting",
    "learning rate": "learning-rate-fault loss-plateau",
    "clipping": "clipping-every-step clipping-frequent clip-before-unscale clipping-ineffective",
    "log": "broken-log stuck-log resume-seam",
}
"""Rules that a finding of each family may stand for: a finding too many rather than one too few."""
SHOWN = frozenset(COLUMNS)


@dataclass(frozen=True)
class Log:
    """One log of the sample: the file that all read, the run's directory, and its label's roots.

    ``root``: the rules that are right; empty where the log is healthy.
    """

    name: str
    path: Path
    directory: Path
    root: frozenset[str]

    @property
    def families(self) -> frozenset[str]:
        """Those that the root belongs to."""
        return frozenset(f for f, rules in FAMILIES.items() if self.root & set(rules.split()))


def sample(every: int, seed: int, most: int, folder: Path) -> tuple[list[Log], int]:
    """The logs, on disk, and how many more were too long or hold no loss."""
    kept, left = [], 0
    for corpus in corpora():
        for name in list(corpus.makers)[::every]:
            case = corpus.case(name, seed)
            if not 2 <= len(case.run.steps) <= most or "loss" not in case.run.steps:
                left += 1
                continue
            home = folder / name
            write(case, home)
            log = folder / f"{name}.csv"
            _write_columns(case, log)
            roots = frozenset(expect.rule for expect in case.label.roots)
            kept.append(Log(name, log, home, roots if case.label.faulty else frozenset()))
    return kept, left


def _write_columns(case: Case, path: Path) -> None:
    """The columns that the linters read, as far as the log has them; absent cells stay empty."""
    steps = case.run.steps
    there = [name for name in COLUMNS if name in steps and steps.present(name).any()]
    columns = [
        np.where(steps.present(name), [repr(v) for v in steps[name].tolist()], "") for name in there
    ]
    lines = [",".join(COLUMNS[name] for name in there), *map(",".join, zip(*columns, strict=True))]
    path.write_text("\n".join(lines) + "\n")


def of_report(path: Path) -> list[Said] | None:
    """The findings of ``forensics report``: rules and severities."""
    command = [sys.executable, "-c", REPORT, "report", str(path), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None
    (report,) = json.loads(done.stdout)["reports"]
    return [(one["rule"], one["severity"]) for one in report["findings"]]


def _score(
    name: str,
    logs: list[Log],
    say: Callable[[Log], list[Said] | None],
    right: Callable[[str, Log], bool],
    reach: Callable[[Log], bool],
) -> tuple[str, ...]:
    """One row: named of all faulty logs and of those in reach, healthy with an alarm, fails."""
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(say, logs))
    named = {
        log.name: any(right(finding, log) for finding, _ in findings or ())
        for log, findings in zip(logs, said, strict=True)
    }
    faulty = [log for log in logs if log.root]
    within = [log for log in faulty if reach(log)]
    healthy = [found for log, found in zip(logs, said, strict=True) if not log.root]
    alarms = sum(any(level != "info" for _, level in found or ()) for found in healthy)
    return (
        name,
        f"{sum(named[log.name] for log in faulty)} of {len(faulty)}",
        f"{sum(named[log.name] for log in within)} of {len(within)}",
        f"{alarms} of {len(healthy)}",
        str(sum(found is None for found in said)),
    )


def _of_linter(linter: Linter, logs: list[Log]) -> tuple[str, ...]:
    return _score(
        f"{linter.name} {installed_version(linter.name)}",
        logs,
        lambda log: lint(linter, log.path, LIMIT_S),
        lambda finding, log: bool(log.families & set(linter.means.get(finding, ()))),
        lambda log: bool(log.families & linter.sees),
    )


def measure(every: int, seed: int, most: int) -> Result:
    """A row a linter, and two of the report."""
    linters, notes = available()
    with tempfile.TemporaryDirectory() as folder:
        logs, left = sample(every, seed, most, Path(folder))
        rows = [_of_linter(linter, logs) for linter in linters]
        for name, path in (
            ("report of the same file", lambda log: log.path),
            ("report of the run directory", lambda log: log.directory),
        ):
            rows.append(
                _score(
                    name,
                    logs,
                    lambda log, path=path: of_report(path(log)),  # type: ignore[misc]
                    lambda rule, log: rule in log.root,
                    lambda log: True,
                )
            )
    notes.insert(
        0,
        f"Kinds of logs: every {every} of the corpus, seed {seed}; left out are {left} that are "
        f"longer than {most:,} rows or hold no loss.",
    )
    head = ("tool", "root named", "… in reach", "healthy logs with an alarm", "failed or too slow")
    return Result((Table(head, tuple(rows), tuple(notes)),))


def measure_all(quick: bool) -> Result:
    """For the page."""
    return measure(60, 100, 2_000) if quick else measure(3, 100, 20_000)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=3, help="take every n-th kind of log")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--rows", type=int, default=20_000, help="leave longer logs out")
    options = parser.parse_args()
    for table in measure(options.every, options.seed, options.rows).tables:
        print(table.markdown())


if __name__ == "__main__":
    main()

"""What each dependency costs: processor time to import it, and bytes on disk.

Each import is a process of its own, beside a bare Python, in turn; the median of the differences
is quoted in starts of Python itself, for machines differ. What a package imports itself is counted
with it: the figures do not add up. ``--write`` puts the last two columns of the table in
``docs/dependencies.md`` anew.

    python benchmarks/dependencies.py [--runs 7] [--write]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "dependencies.md"
IMPORTED = {
    "jinja2": "jinja2",
    "matplotlib": "matplotlib.figure, matplotlib.backends.backend_agg",
    "pyarrow": "pyarrow.csv",
    "rich": "rich.progress",
    "tensorboard": "tensorboard.backend.event_processing.event_file_loader",
}
"""What the program imports of a package, where it is not the package itself."""
TOOLS = frozenset(("mypy", "ruff", "pandas-stubs", "pytest-xdist", "pytest-cov"))
"""Never imported by what they serve."""
ROW = re.compile(r"^\| `(?P<name>[\w-]+)`[^|\n]*\|(?:[^|\n]*\|){5}$", re.MULTILINE)


def processor_seconds(code: str) -> float:
    """Of one Python process that runs ``code``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def environment() -> dict[str, str]:
    """As the command line sets it: no pool of threads for the few sums that a report needs."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def import_cost(package: str, runs: int) -> float:
    """Importing it, in starts of a bare Python."""
    code = f"import {IMPORTED.get(package, package.replace('-', '_'))}"
    processor_seconds(code)  # compiles what it loads, once
    bare, whole = [], []
    for _ in range(runs):
        bare.append(processor_seconds("pass"))
        whole.append(processor_seconds(code))
    extra = [more - less for more, less in zip(whole, bare, strict=True)]
    return statistics.median(extra) / statistics.median(bare)


def megabytes(package: str) -> float:
    """What its own files take on disk, compiled ones included."""
    files = importlib.metadata.files(package) or []
    paths = [Path(str(file.locate())) for file in files]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def measured(name: str, runs: int) -> tuple[str, str]:
    """The two cells of a package."""
    try:
        size = f"{megabytes(name):,.1f} MB"
    except importlib.metadata.PackageNotFoundError:
        return "not installed", "not installed"
    return ("–" if name in TOOLS else f"×{import_cost(name, runs):.1f}"), size


def main() -> None:
    """Print the table's measured cells, or write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="renew docs/dependencies.md")
    options = parser.parse_args()

    def renewed(row: re.Match[str]) -> str:
        *kept, _, _, end = row.group().split("|")
        cells = measured(row["name"], options.runs)
        print(f"{row['name']:<14} import {cells[0]:>7}   on disk {cells[1]:>10}", flush=True)
        return "|".join((*kept, *(f" {cell} " for cell in cells), end))

    text = ROW.sub(renewed, PAGE.read_text())
    if options.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()

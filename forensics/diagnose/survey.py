"""Many runs at once: where they are, and one row for each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from forensics.diagnose.engine import Overrides, diagnose
from forensics.diagnose.finding import Diagnosis, Finding, Severity, Status
from forensics.diagnose.signals import Signals
from forensics.errors import ForensicsError, InputError, StoreError
from forensics.frozen import dataclass
from forensics.runlog.run import Run, load_run
from forensics.runlog.stores.scheme import is_uri

MARKS = ("steps.csv", "steps.csv.gz", "run.json")
"""Files that make a directory a run."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which rules judge the runs, and with which thresholds; picklable."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    thresholds: Overrides | None = None


@dataclass(frozen=True, kw_only=True)
class SurveyRow:
    """One run of many.

    Attributes:
        path: of the run, as it was found.
        status: word of the verdict, or ``unreadable``.
        severity: of the worst finding; None where there is none, or the run is unreadable.
        root: id of the rule that is the root cause, or empty; for what only a bisection shows, what
            that located, such as ``ValueError``.
        step: first step of the root, or None.
        wasted: share of the steps that taught nothing: skipped, or a non-finite loss or norm.
        steps: rows of the log.
        summary: the verdict in a sentence, or why the run cannot be read.
    """

    path: str
    status: str
    severity: Severity | None = None
    root: str = ""
    step: int | None = None
    wasted: float = 0.0
    steps: int = 0
    summary: str = ""

    @property
    def readable(self) -> bool:
        """Could it be judged at all?"""
        return self.status != UNREADABLE

    @property
    def sick(self) -> bool:
        """Was something found that no healthy run does?"""
        return self.severity is not None and self.severity > Severity.INFO

    @property
    def order(self) -> tuple[float, float, str]:
        """Worst first; what ended without a verdict, or cannot be read, before what is healthy."""
        worst = -float(self.severity or 0) if self.sick else _NOT_SICK.get(self.status, 0.0)
        return (worst, -self.wasted, self.path)


UNREADABLE = "unreadable"
_NOT_SICK = {Status.UNDECIDED.value: -0.75, UNREADABLE: -0.5, Status.INSUFFICIENT_DATA.value: -0.25}
"""Order of the runs in which no rule found a fault: one that raised is not among the healthy."""


class Search:
    """What a search for runs tells beside the runs.

    Attributes:
        passed: files that are called like logs and are none.
        failed: why a place in a store could not be searched.
        marks: by the URI of a run what ``fingerprint`` would say of it.
    """

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[ForensicsError] = []
        self.marks: dict[str, str] = {}


def find_runs(places: Sequence[str], search: Search | None = None) -> Iterator[str]:
    """The runs in and below some directories, each once, in order of name.

    A directory that is a run is not searched further: what is in it belongs to it. In others a log
    of another program is a run, and a directory whose logs are views or parts of one run is. A
    file is taken as a log. A directory that cannot be listed is given as if it were a run, so that
    its row says why. Links to directories are not followed.

    Args:
        places: directories and files, and URIs of either.
        search: takes what else is found.
    """
    seen: set[str] = set()
    search = search or Search()
    for place in places:
        found = _runs_elsewhere if is_uri(place) else _runs_at
        for path in found(place, search):
            real = path if is_uri(path) else os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                yield path


def _runs_elsewhere(place: str, search: Search) -> Iterator[str]:
    from forensics.runlog.stores.searching import search_mirror_of

    try:
        mirror = search_mirror_of(place)
    except (InputError, StoreError) as error:
        search.failed.append(error)
        return
    below = Search()
    for path in _runs_at(str(mirror.path), below):
        uri = mirror.uri_of(Path(path)) or path
        search.marks[uri] = mirror.fingerprint(Path(path))
        yield uri
    for name in mirror.apart:
        uri = mirror.uri_apart(name)
        search.marks[uri] = mirror.fingerprint(name)
        yield uri
    search.passed.extend(mirror.uri_of(Path(path)) or path for path in below.passed)
    search.passed.extend(mirror.passed)


def _runs_at(place: str, search: Search) -> Iterator[str]:
    if not os.path.isdir(place):
        yield place
        return
    from forensics.runlog.log_search import search_folder

    closed: list[str] = []
    for directory, below, files in os.walk(place, onerror=lambda e: closed.append(e.filename)):
        if any(mark in files for mark in MARKS):
            below.clear()
            yield directory
            continue
        found = search_folder(Path(directory), files, below)
        below[:] = found.below
        search.passed.extend(map(str, found.passed))
        yield from map(str, found.places)
    yield from sorted(closed)


def survey_one(path: str, choice: Choice) -> SurveyRow:
    """Judge one run; what cannot be read becomes a row that says so."""
    try:
        run = load_run(path)
        diagnosis = diagnose(
            run,
            select=choice.select,
            ignore=choice.ignore,
            thresholds=choice.thresholds,
            excerpts=False,
        )
    except ForensicsError as error:
        return unreadable(path, error.what)
    except (OSError, MemoryError, RecursionError) as error:
        return unreadable(path, str(error) or type(error).__name__)
    return _row(path, diagnosis, run)


def unreadable(path: str, reason: str) -> SurveyRow:
    """The row of a run that could not be judged."""
    return SurveyRow(path=path, status=UNREADABLE, summary=reason)


def _row(path: str, diagnosis: Diagnosis, run: Run) -> SurveyRow:
    verdict = diagnosis.verdict
    root = None if verdict.root is None else diagnosis.findings[verdict.root]
    return SurveyRow(
        path=path,
        status=verdict.status.value,
        severity=max((finding.severity for finding in diagnosis.findings), default=None),
        root=_named(root, run) if root else "",
        step=root.first_step if root else None,
        wasted=_wasted(Signals(run)),
        steps=diagnosis.run.steps,
        summary=verdict.summary,
    )


def _named(root: Finding, run: Run) -> str:
    """The rule's id; what no rule of the log shows has what a bisection located for a name."""
    from forensics.diagnose.bisection_file import bisection_of
    from forensics.diagnose.located import RULE, located_as

    result = bisection_of(run)[0] if root.rule == RULE else None
    return root.rule if result is None else located_as(result)


def _wasted(signals: Signals) -> float:
    if len(signals) == 0:
        return 0.0
    return float(np.mean(signals.skipped | signals.loss_bad | signals.norm_bad))


def worst(rows: Sequence[SurveyRow]) -> Severity | None:
    """The worst finding of all."""
    return max((row.severity for row in rows if row.severity is not None), default=None)


def shown_path(path: str) -> str:
    """The path as short as it can be told from here."""
    if is_uri(path):
        return path
    absolute, here = Path(path).absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else path

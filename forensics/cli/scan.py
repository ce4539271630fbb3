"""``forensics scan``: many runs, a row each."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from forensics.cli.output_options import look, output_options, put, spare_the_input
from forensics.cli.streams import say
from forensics.diagnose.catalogue import Catalogue
from forensics.diagnose.finding import Severity
from forensics.diagnose.survey import Choice, Search, SurveyRow, find_runs, shown_path, worst
from forensics.diagnose.survey_pool import survey
from forensics.errors import (
    ExitCode,
    ForensicsError,
    InputError,
    OutputError,
    UsageError,
    without_secrets,
)
from forensics.render.output import choose_format
from forensics.runlog.stores.scheme import is_uri
from forensics.settings import SEVERITIES, load_settings

Engine = Callable[..., list[SurveyRow]]
"""``(paths, choice=, jobs=, on_row=) → rows``, worst first."""


@click.command(short_help="Judge many runs: a table, worst first.")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...", type=click.Path())
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    help="Processes. Default: as many as pay, up to the processors.",
)
@click.option(
    "--engine",
    type=click.Choice(("pool", "dask")),
    default="pool",
    help="Who judges: processes of this machine, or a dask cluster. Default: pool.",
)
@click.option("--scheduler", metavar="ADDR", help="Of dask; default: processes started here.")
@click.option(
    "--catalogue",
    metavar="FILE",
    type=click.Path(),
    help="Keep the rows in this Parquet file; judge only runs that changed since.",
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit 1 on a finding this severe or worse in any run. Default: never.",
)
@click.option("--config", metavar="FILE", type=click.Path(), help="Settings, as of `report`.")
@click.option("--verbose", "-v", is_flag=True, help="Name the files that are no training logs.")
@output_options
def scan(
    directories: tuple[str, ...],
    jobs: int | None,
    engine: str,
    scheduler: str | None,
    catalogue: str | None,
    fail_on: str | None,
    config: str | None,
    verbose: bool,
    form: str | None,
    out: Path | None,
) -> ExitCode:
    """Judge many runs: a table, worst first.

    Every run in and below DIR (a directory, or its URI in a store) is judged: a directory with
    steps.csv or run.json, and each log of another program, known by what is in it. What tells of
    one run (a rotated log, a Trainer's checkpoints) is one row; a run that cannot be read is a row
    that says why.

    \b
    Examples:
      forensics scan runs
      forensics scan runs /scratch/*/runs --jobs 8 --fail-on error
      forensics scan runs --format json --out scan.json
      forensics scan runs --catalogue scan.parquet
      forensics scan s3://bucket/runs --jobs 8
      forensics scan /shared/runs --engine dask --scheduler tcp://10.0.0.1:8786

    Exit code: 0 done, 1 findings at or above --fail-on, 2 a DIR that does not exist, no run found
    or none that can be read, or with --fail-on none that severe but one that cannot be read.
    """
    if catalogue is not None and is_uri(catalogue):
        hint = "keep it on this machine, and copy it to the store"
        raise UsageError("a catalogue is a file of this machine", where="--catalogue", hint=hint)
    if scheduler is not None and engine != "dask":
        raise UsageError("is an option of --engine dask", where="--scheduler")
    settings = load_settings(config)
    search = Search()
    there = list(filter(_is_there, directories))
    paths = list(find_runs(there, search))
    gone = [*map(_gone, set(directories).difference(there)), *search.failed]
    if not paths and gone:
        raise gone[0]
    if not paths:
        where = ", ".join(directories)
        _tell_passed(search.passed, verbose=verbose)
        hint = (
            "a run has steps.csv or run.json; a log is named like one, as train.log or metrics.csv"
        )
        raise InputError("holds no run and no training log", where=where, hint=hint)
    spare_the_input(out, map(str, paths))
    choice = Choice(
        select=settings.select, ignore=settings.ignore, thresholds=dict(settings.thresholds)
    )
    kept = None if catalogue is None else Catalogue(Path(catalogue), choice)
    known = [] if kept is None else kept.known(paths, search.marks)
    judged = partial(_engine(engine, scheduler), choice=choice, jobs=jobs)
    rows = _survey(paths, known, judged, kept, gone)
    shown = [replace(row, path=without_secrets(row.path)) for row in rows]
    put(_rendered(shown, choose_format(form, out), out), out)
    _tell_passed(search.passed, verbose=verbose)
    for error in gone:
        say(error.line())
    limit = Severity[fail_on.upper()] if fail_on else settings.fail_on
    return _exit_code(rows, limit, missing=bool(gone))


def _tell_passed(passed: Sequence[str], *, verbose: bool) -> None:
    """Which files were taken for no logs, or how many."""
    if verbose:
        for path in passed:
            say(f"{shown_path(path)}: no training log")
    elif passed:
        files = "1 file that is" if len(passed) == 1 else f"{len(passed):,} files that are"
        say(f"passed over {files} no training log{'s' * (len(passed) > 1)}; --verbose names them")


def _is_there(place: str) -> bool:
    """Is it? A store is asked when it is searched."""
    return is_uri(place) or os.path.lexists(place)


def _gone(place: str) -> ForensicsError:
    from forensics.runlog.meant import no_such

    return no_such(Path(place))


def _engine(name: str, scheduler: str | None) -> Engine:
    """What judges the runs; dask is imported only where it is asked for."""
    if name == "pool":
        return survey
    from forensics.diagnose.survey_dask import survey_on_dask

    return partial(survey_on_dask, scheduler=scheduler)


def _survey(
    paths: Sequence[str],
    known: Sequence[SurveyRow],
    judged: Engine,
    kept: Catalogue | None,
    failed: list[ForensicsError],
) -> list[SurveyRow]:
    """Judge those that the catalogue does not know as they are, and put them into it.

    A catalogue that cannot be written costs no table: why goes to ``failed``.
    """
    left = set(paths) - {row.path for row in known}
    rows = _with_bar([path for path in paths if path in left], judged, kept) if left else []
    if kept is not None:
        try:
            kept.save()
        except OutputError as error:
            failed.append(error)
        say(f"{kept.path}: {len(known):,} of {len(paths):,} runs as they were, not judged again")
    return sorted((*known, *rows), key=lambda row: row.order)


def _with_bar(paths: Sequence[str], judged: Engine, kept: Catalogue | None) -> list[SurveyRow]:
    """Judge them, with a bar where somebody watches; what is done before a Ctrl-C is kept."""
    shown = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with click.progressbar(length=len(paths), label="judging", file=shown) as bar:

        def on_row(row: SurveyRow) -> None:
            bar.update(1)
            if kept is not None:
                kept.add(row)

        try:
            return judged(paths, on_row=on_row)
        except BaseException:
            if kept is not None:
                with suppress(OutputError):  # how it was interrupted is what is to be told
                    kept.save()
            raise


def _rendered(rows: Sequence[SurveyRow], form: str, out: Path | None) -> str:
    if form == "json":
        from forensics.render.scan_json import render_scan_json

        return render_scan_json(rows)
    if form == "markdown":
        from forensics.render.scan_markdown import render_scan_markdown

        return render_scan_markdown(rows)
    from forensics.render.scan_text import render_scan_text

    return render_scan_text(rows, **look(out))


def _exit_code(rows: Sequence[SurveyRow], limit: Severity | None, *, missing: bool) -> ExitCode:
    found = worst(rows)
    if limit is not None and found is not None and found >= limit:
        return ExitCode.FINDINGS
    readable = [row.readable for row in rows]
    unjudged = not any(readable) if limit is None else not all(readable)
    return ExitCode.USAGE if missing or unjudged else ExitCode.DONE

"""``forensics convert``: a log of another program as a step table."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click

from forensics.cli.output_options import spare_the_input
from forensics.cli.reading_options import judging_progress, reading_of, reading_options
from forensics.cli.streams import say, write_stdout
from forensics.errors import ExitCode, OutputError, UsageError
from forensics.runlog.log_facts import PER_STEP, LogFacts
from forensics.runlog.run import Run, load_joined, load_run
from forensics.runlog.steps import StepTable

MANY_ROWS = 250_000
"""Rows whose writing takes about a second."""


@click.command(short_help="Write a log of another program as a steps.csv.")
@click.argument("paths", nargs=-1, metavar="PATH...", type=click.Path())
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The table; - is standard output.",
)
@reading_options
@click.option("--report", "reported", is_flag=True, help="Then print the report on it.")
@click.option("--formats", is_flag=True, help="List the formats that can be read, and exit.")
def convert(
    paths: tuple[str, ...],
    out: Path | None,
    format_in: str,
    mapping: tuple[str, ...],
    reported: bool,
    formats: bool,
) -> ExitCode:
    """Write a log of another program as a steps.csv.

    Several PATHs are parts of one run, oldest first; `-` is standard input. What was inferred,
    and what the table cannot hold, is said on standard error.

    \b
    Examples:
      forensics convert trainer_state.json --out steps.csv
      forensics convert train.log.1 train.log --out steps.csv --report
      forensics convert history.csv --map loss=train/total --out steps.csv
      forensics convert --formats
    """
    if formats:
        write_stdout(_formats())
        return ExitCode.DONE
    if not paths or out is None:
        raise UsageError("needs a PATH and --out", hint="`forensics convert --help` explains")
    spare_the_input(out, paths)
    if str(out) == "-" and reported:
        raise UsageError("--report and --out - would print into each other")
    reading = replace(reading_of(format_in, mapping), most_rows=None)
    run = load_run(paths[0], reading) if len(paths) == 1 else load_joined(paths, reading)
    _write(run.steps, out)
    for line in _told(run):
        say(line)
    if reported:
        write_stdout(_report(run))
    return ExitCode.DONE


def _formats() -> str:
    from forensics.runlog.importers import IMPORTERS

    width = max(len(importer.name) for importer in IMPORTERS)
    return "".join(f"{i.name:<{width}}   {i.description}\n" for i in IMPORTERS)


def _write(table: StepTable, out: Path) -> None:
    from forensics.runlog.atomic import replacing
    from forensics.runlog.table_csv import write_table

    if str(out) == "-":
        text = io.StringIO()
        write_table(table, text)
        write_stdout(text.getvalue())
        return
    try:
        if out.exists() and not out.is_file():
            with out.open("w", encoding="utf-8", newline="") as file:
                write_table(table, file)
            return
        with (
            replacing(out.resolve()) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
            _bar(len(table)) as written,
        ):
            write_table(table, file, written=written)
    except OSError as error:
        hint = "choose another --out"
        raise OutputError(error.strerror or str(error), where=out, hint=hint) from error


@contextmanager
def _bar(rows: int) -> Iterator[Callable[[int], object] | None]:
    """A bar with the time left, where somebody watches and it takes long enough."""
    if rows < MANY_ROWS or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=rows, label="writing", file=sys.stderr) as bar:
        yield bar.update


def _told(run: Run) -> Iterator[str]:
    """What the reader recognised and inferred, and what the table does not hold."""
    table = run.steps
    facts = table.facts or LogFacts()
    rows = f"{len(table):,} row{'' if len(table) == 1 else 's'}"
    why = f" ({facts.reason})" if facts.reason else ""
    place = "standard input" if str(run.path) == "-" else run.named()
    yield f"{place}: {rows} read as {table.source_format}{why}"
    for note in facts.notes:
        yield f"inferred: {note}"
    for name, meaning in facts.meanings.items():
        if table.has(name):
            yield f"{name} is {meaning.value}"
    if facts.unit != PER_STEP:
        yield f"its rows are {facts.unit}s: the step column counts those"
    for what in facts.unknown:
        yield f"this log does not tell {what}"
    for repair in run.repairs:
        yield f"repair: {repair.message}"
    aside = sum(map(len, run.superseded))
    if aside:
        yield f"not written: {aside:,} rows of earlier runs or before restarts"


def _report(run: Run) -> str:
    from forensics.diagnose.engine import diagnose
    from forensics.render.output import look_of, render

    return render([diagnose(run, progress=judging_progress())], "text", look=look_of(sys.stdout))

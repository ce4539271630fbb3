"""``forensics report``: what went wrong in a run, and what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from forensics.cli.output_options import put, report_output_options, spare_the_input
from forensics.cli.reading_options import judging_progress, reading_of, reading_options
from forensics.cli.streams import say
from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis, Severity
from forensics.errors import ExitCode, InputError, StoreError, UsageError, without_secrets
from forensics.render.output import REPORT_FORMATS, choose_format, look_of, render
from forensics.runlog.reading import Reading
from forensics.runlog.run import load_joined, load_run
from forensics.settings import SEVERITIES, Settings, check_rules, load_settings


@click.command(short_help="Say what went wrong in a run, and what to do about it.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path())
@report_output_options
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit 1 on a finding this severe or worse. Default: never.",
)
@click.option("--select", multiple=True, metavar="RULE", help="Run only this rule. Repeatable.")
@click.option("--ignore", multiple=True, metavar="RULE", help="Leave this rule out. Repeatable.")
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    help="Settings. Default: the nearest forensics.toml, or pyproject.toml with [tool.forensics].",
)
@reading_options
@click.option("--join", is_flag=True, help="The PATHs are parts of one run, oldest first.")
@click.option("--verbose", "-v", is_flag=True, help="Every finding in full, every rule's outcome.")
def report(
    paths: tuple[str, ...],
    form: str | None,
    out: Path | None,
    fail_on: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    config: str | None,
    format_in: str,
    mapping: tuple[str, ...],
    join: bool,
    verbose: bool,
) -> ExitCode:
    """Say what went wrong in a run, and what to do about it.

    PATH is a run directory or its steps.csv, or a log of another program: a Trainer's state or
    output, Megatron, DeepSpeed, Lightning, TensorBoard, W&B, any CSV or JSONL … It is known by what
    is in it, may be gzip- or zstd-compressed, and `-` is standard input. Several are told one after
    the other.

    \b
    Examples:
      forensics report runs/x
      forensics report runs/* --format json --out reports.json
      forensics report runs/x --out report.html
      forensics report runs/x/steps.csv --fail-on error
      forensics report trainer_state.json
      forensics report s3://bucket/runs/x
      tail -n +1 train.log | forensics report -
      forensics report metrics.csv --map loss=train/total --map lr=rate

    Exit code: 0 done, 1 findings at or above --fail-on, 2 a PATH that cannot be read.
    """
    spare_the_input(out, paths)
    form = choose_format(form, out, REPORT_FORMATS)
    _no_page_on_a_terminal(form, out)
    settings = load_settings(config)
    check_rules(select, where="--select")
    check_rules(ignore, where="--ignore")
    chosen = replace(settings, select=select or settings.select, ignore=(*settings.ignore, *ignore))
    diagnoses, errors = _diagnose_all(
        paths, chosen, reading_of(format_in, mapping), join, keep_runs=form == "html"
    )
    text = render(
        diagnoses,
        form,
        look=look_of(sys.stdout) if out is None else None,
        verbose=verbose,
        errors=errors,
        settings=str(settings.source or ""),
    )
    if diagnoses or form == "json":
        put(text, out)
    for error in errors:
        say(error["message"])
    if errors:
        return ExitCode.USAGE
    limit = Severity[fail_on.upper()] if fail_on else settings.fail_on
    worst = max((f.severity for d in diagnoses for f in d.findings), default=None)
    reached = limit is not None and worst is not None and worst >= limit
    return ExitCode.FINDINGS if reached else ExitCode.DONE


def _no_page_on_a_terminal(form: str, out: Path | None) -> None:
    """A page is read by a browser; a pipe may take it there."""
    if form == "html" and out is None and sys.stdout.isatty():
        raise UsageError("a page needs a file", where="--format html", hint="--out report.html")


def _diagnose_all(
    paths: Sequence[str], settings: Settings, reading: Reading, join: bool, *, keep_runs: bool
) -> tuple[list[Diagnosis], list[dict[str, str]]]:
    """The diagnosis of each run that can be read, and path and message of each that cannot.

    Without ``keep_runs`` a run is let go once it is judged: else every log stays in memory.
    """
    diagnoses, errors = [], []
    for path in paths[:1] if join else paths:
        try:
            diagnosis = diagnose(
                load_joined(paths, reading) if join else load_run(path, reading),
                select=settings.select,
                ignore=settings.ignore,
                thresholds=settings.thresholds,
                progress=judging_progress(),
            )
        except (InputError, StoreError) as error:
            errors.append({"path": without_secrets(path), "message": error.line()})
        else:
            diagnoses.append(diagnosis if keep_runs else replace(diagnosis, source=None))
    return diagnoses, errors

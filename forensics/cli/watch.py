"""``forensics watch``: follow a run that goes on, and stop when something is wrong with it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from forensics.cli.reading_options import reading_of, reading_options
from forensics.cli.streams import say, write_stdout
from forensics.diagnose.engine import diagnose
from forensics.diagnose.facts import last_line
from forensics.diagnose.finding import Diagnosis, Finding, Severity
from forensics.diagnose.news import News
from forensics.errors import ExitCode, InputError, StoreError, TerminatedError, UsageError
from forensics.render.safe_text import visible
from forensics.runlog.growing import GrowingLog
from forensics.runlog.run import Run
from forensics.runlog.stores.scheme import is_uri
from forensics.settings import SEVERITIES, Settings, check_rules, load_settings

if TYPE_CHECKING:
    from forensics.runlog.reading import Reading
    from forensics.runlog.stores.growing import GrowingPlace

_SHARE = 9
"""Times as long as a reading took, at least, is waited for the next one."""
_TICK = 0.5
"""Seconds between two looks for a file that is not there yet."""


@click.command(short_help="Follow a run that goes on; exit 1 when something is wrong.")
@click.argument("path", metavar="PATH", type=click.Path())
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    default="error",
    show_default=True,
    help="Exit 1 at the first finding this severe or worse.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Look this often; less often where reading takes long.",
)
@click.option(
    "--until-idle",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="SECONDS",
    help="Exit 0 when nothing was written for so long. Default: a recorded run's end, or Ctrl-C.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0.0),
    default=0.0,
    metavar="SECONDS",
    help="Wait so long for a PATH that is not there yet.",
)
@click.option("--select", multiple=True, metavar="RULE", help="Run only this rule. Repeatable.")
@click.option("--ignore", multiple=True, metavar="RULE", help="Leave this rule out. Repeatable.")
@click.option("--config", metavar="FILE", type=click.Path(), help="Settings, as of `report`.")
@reading_options
def watch(
    path: str,
    fail_on: str,
    interval: float,
    until_idle: float | None,
    wait: float,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    config: str | None,
    format_in: str,
    mapping: tuple[str, ...],
) -> ExitCode:
    """Follow a run that goes on; exit 1 when something is wrong.

    PATH is a log of any kind that `report` reads, a run directory, or a directory with a log in it;
    here or in a store (s3://…), where a log is read whole whenever it has changed.
    Each new finding of a warning or worse is a line. A job script can stop a dying run by it:

    \b
      python train.py > train.log 2>&1 &
      forensics watch train.log --until-idle 1800; [ $? -eq 1 ] && kill %1

    \b
    Examples:
      forensics watch runs/x
      forensics watch train.log --fail-on critical --interval 60
      forensics watch slurm-1234.out --wait 600 --until-idle 1800

    Exit code: 0 the run ended, or was idle for --until-idle; 1 a finding at or above --fail-on;
    2 a PATH that is not there or no log; 130 Ctrl-C; 143 SIGTERM.
    """
    if path == "-" or Path(path).is_fifo() or Path(path).is_char_device():
        raise UsageError("follows a file", where=path, hint="a pipe is read by `report -`")
    settings = load_settings(config)
    check_rules(select, where="--select")
    check_rules(ignore, where="--ignore")
    chosen = replace(settings, select=select or settings.select, ignore=(*settings.ignore, *ignore))
    reading = replace(reading_of(format_in, mapping), progress=None)
    log = _log(path, reading)
    with _told_when_terminated():
        _await(log, wait)
        watcher = _Watcher(log, chosen, Severity[fail_on.upper()])
        return watcher.follow(interval, until_idle)


def _log(path: str, reading: Reading) -> GrowingLog | GrowingPlace:
    """What is followed: a file of this machine, or objects of a store."""
    if not is_uri(path):
        return GrowingLog(Path(path), reading)
    from forensics.runlog.stores.growing import GrowingPlace

    return GrowingPlace(path, reading)


@contextmanager
def _told_when_terminated() -> Iterator[None]:
    """SIGTERM ends the watch as Ctrl-C does, beside the ranks of a launcher, too."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        raise TerminatedError

    before = None
    with suppress(ValueError):  # not in the main thread, which alone may say what signals do
        before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _await(log: GrowingLog | GrowingPlace, wait: float) -> None:
    """Wait for the file.

    Raises:
        InputError: it did not come.
    """
    limit = time.monotonic() + wait
    while not log.is_there():
        left = limit - time.monotonic()
        if left <= 0:
            hint = f"it did not come within {wait:g} s" if wait else "--wait SECONDS waits for it"
            raise InputError("no such file or directory", where=log.path, hint=hint)
        time.sleep(min(_TICK, left))


class _Watcher:
    """Diagnoses a growing log again and again, and tells what is new.

    Args:
        log: what is followed.
        settings: rules and thresholds.
        limit: the severity that ends it.
    """

    def __init__(self, log: GrowingLog | GrowingPlace, settings: Settings, limit: Severity) -> None:
        self._log = log
        self._settings = settings
        self._limit = limit
        self._news = News()
        self._error: InputError | StoreError | None = None
        self._run: Run | None = None
        self._missed = False

    def follow(self, interval: float, until_idle: float | None) -> ExitCode:
        """Look until a finding is severe enough, or the run has ended."""
        say(f"watching {self._log.path} for findings of {self._limit.word} or worse")
        grew = time.monotonic()
        while True:
            began = time.monotonic()
            if self._log.changed():
                grew, self._missed = began, False
                if self._look():
                    return ExitCode.FINDINGS
            elif self._log.gone and not self._missed:
                self._missed = True
                say(f"{self._log.path} is gone; waiting for it to come back")
            if self._has_ended():
                return self._end("the run has ended")
            took = time.monotonic() - began
            pause = max(interval, _SHARE * took)
            if until_idle is not None:
                left = grew + until_idle - time.monotonic()
                if left <= 0:
                    return self._end(f"nothing was written for {until_idle:g} s")
                pause = min(pause, left)
            time.sleep(pause)

    def _look(self, *, ended: bool = False) -> bool:
        """Read and judge it once; is there a finding that ends the watch?"""
        if self._log.restarted:
            say(f"{self._log.path} begins anew")
            self._news.forget()
        try:
            self._run = self._log.load(ended=ended)
            diagnosis = self._diagnosis(self._run)
        except (InputError, StoreError) as error:
            if self._error is None or error.what != self._error.what:
                say(f"{error.line()} (so far)")
            self._error = error
            return False
        self._error = None
        new = self._news.of(diagnosis)
        # Notes are told where they are asked for, as by `report`.
        told = [f for f in new if f.severity >= min(Severity.WARNING, self._limit)]
        write_stdout("".join(map(_line, told)))
        return any(finding.severity >= self._limit for finding in new)

    def _diagnosis(self, run: Run) -> Diagnosis:
        return diagnose(
            run,
            select=self._settings.select,
            ignore=self._settings.ignore,
            thresholds=self._settings.thresholds,
        )

    def _has_ended(self) -> bool:
        manifest = self._run.manifest if self._run is not None else None
        return manifest is not None and manifest.ended is not None

    def _end(self, why: str) -> ExitCode:
        """Look a last time, at a last line without a line end, too.

        Raises:
            InputError: there was no record of a training at all.
        """
        if self._look(ended=True):
            return ExitCode.FINDINGS
        if self._error is not None:
            raise self._error
        say(f"{why}; no finding of {self._limit.word} or worse{self._last_words()}")
        return ExitCode.DONE

    def _last_words(self) -> str:
        """What the log ends with, where it tells how the program ended."""
        words = last_line(self._run.steps.facts) if self._run is not None else ""
        return f"; the log ends with {words}" if words else ""


def _line(finding: Finding) -> str:
    """A finding on one line."""
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    message = visible(" ".join(finding.message.split()))
    return f"{now}  {finding.severity.word:<8}  {finding.rule}  {message}\n"

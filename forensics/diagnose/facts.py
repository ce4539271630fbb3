"""The facts of a run that a report opens with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import numpy as np

from forensics.diagnose.finding import RunFacts
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import clause, number, percent, span, steps
from forensics.runlog.log_facts import INTERRUPT, LogFacts
from forensics.runlog.manifest import Manifest
from forensics.runlog.run import Run
from forensics.runlog.steps import FloatArray, StepTable

NOTABLE_SKIPS = 0.05
"""Share of skipped steps above which superseded rows are worth a word; the same share that makes a
recording warn, and a healthy scaler stays far below it."""
SURE = 0.9
"""Confidence from which the reader of a foreign log is not worth a word."""
MOST_BRACKETS = 6
"""Stretches with skipped steps that are told one by one."""
_SINCE_1970 = 1e9
"""Seconds from which a first reading is the time of day, not time that has gone: it is of 2001."""
_QUEUE = re.compile(r"CANCELLED(?:.*DUE TO ([A-Z ]+[A-Z]))?|(?:PBS|TERM_[A-Z]+): job killed")
"""How a scheduler says that it ended a job, and why where it does."""


def facts_of(signals: Signals, summary: str = "") -> RunFacts:
    """The run's facts, from its manifest where there is one, else from the log itself.

    Args:
        signals: of the run.
        summary: the verdict's, where what it tells need not be told again.
    """
    run = signals.run
    rows = len(signals)
    manifest = run.manifest
    learned = run.steps.facts or LogFacts()
    return RunFacts(
        path=run.named(),
        steps=rows,
        first_step=signals.step_at(0) if rows else None,
        last_step=signals.step_at(rows - 1) if rows else None,
        source_format=run.steps.source_format,
        precision=signals.precision,
        scaler=_scaler(signals),
        clip_threshold=manifest.max_norm if manifest is not None else None,
        duration_s=_duration(signals),
        ended=_ended(manifest) if manifest is not None else _crashed(signals),
        repairs=tuple(repair.message for repair in run.repairs),
        superseded=tuple(_superseded(run)),
        missing=manifest.missing if manifest is not None else (),
        interval=signals.interval,
        unit=learned.unit,
        counted=any(repair.kind == "missing-step-column" for repair in run.repairs),
        doubt=learned.reason if learned.confidence < SURE else "",
        learned=(*learned.notes, *_brackets(signals), *_last_words(learned, summary)),
    )


def _last_words(learned: LogFacts, summary: str) -> Iterator[str]:
    line = last_line(learned)
    if line and line not in summary:
        yield f"the log ends with {line}"


def _brackets(signals: Signals) -> Iterator[str]:
    """Skipped steps that the log dates only to the steps of a row."""
    brackets = signals.table.skip_brackets
    if all(b.last_step == b.first_step for b in brackets):  # then each skip has a row of its own
        return
    told = [
        f"{b.count:,} in {b.first_step:,}–{b.last_step:,}"
        if b.last_step > b.first_step
        else f"{b.count:,} at {b.first_step:,}"
        for b in brackets[:MOST_BRACKETS]
    ]
    more = len(brackets) - len(told)
    told += [f"{sum(b.count for b in brackets[-more:]):,} later"] if more > 0 else []
    total = sum(bracket.count for bracket in brackets)
    yield f"skipped {steps(total)}: {', '.join(told)}"


def _scaler(signals: Signals) -> bool | None:
    """Was a loss scaler at work: as run.json says, else as the logged scale shows."""
    if signals.policy is not None:
        return signals.policy.enabled
    return signals.scaler_active if signals.has("scaler_scale") else None


def _duration(signals: Signals) -> float | None:
    """Seconds of training: by the log's own clock, else by the segments of run.json."""
    if signals.has("time_s"):
        clock = signals.column("time_s")
        clock = clock[np.isfinite(clock) & (clock >= 0)]
        if len(clock):
            return _elapsed(clock)
    manifest = signals.run.manifest
    return _segments_duration(manifest) if manifest is not None else None


def _elapsed(clock: FloatArray) -> float:
    """Seconds that a clock of elapsed time has told, shape (N,): it starts near 0 in every segment.

    A fall far down marks a resume; a small one is a clock that was set back, and counts nothing.
    """
    before = np.concatenate(([0.0 if clock[0] < _SINCE_1970 else clock[0]], clock[:-1]))
    resumed = np.where(clock < before / 2, clock, 0.0)
    return float(np.where(clock >= before, clock - before, resumed).sum())


def _segments_duration(manifest: Manifest) -> float | None:
    """Wall-clock seconds of all segments; None where one has no end (it runs, or was killed).

    None, too, where one ends before it begins: the clock was set back, and nothing tells by what.
    """
    total = 0.0
    for segment in manifest.segments:
        try:
            begin = datetime.fromisoformat(segment.started)
            end = datetime.fromisoformat(segment.ended or "")
            lasted = (end - begin).total_seconds()
        except (ValueError, TypeError):  # not a time, or one with and one without a zone
            return None
        if lasted < 0:
            return None
        total += lasted
    return total if total > 0 else None


def _ended(manifest: Manifest) -> str:
    """How the run ended, unless it simply finished."""
    ended = manifest.ended
    if ended is None:
        return "no end recorded (killed, or still running)" if manifest.segments else ""
    at = "" if ended.step is None else f" at step {ended.step:,}"
    message = ended.message.removeprefix(f"step {ended.step}: ")  # the alarm's words begin so
    said = f": {clause(message)}" if message else ""
    words = {
        "finished": "",
        "interrupted": f"interrupted{at}",
        "alarm": f"stopped by its alarm{at}{said}",
        "exception": f"raised{at}{said}",
    }
    return words.get(ended.how, f"{ended.how}{at}{said}")


def _crashed(signals: Signals) -> str:
    """What another program's log ends in after its last record."""
    learned = signals.table.facts
    if learned is None or not learned.ended:
        return ""
    ended = learned.ended
    after = f" after {learned.unit} {signals.last_step:,}" if len(signals) else ""
    if ended.startswith(INTERRUPT):
        return f"interrupted{after}"
    queue = _QUEUE.search(ended)
    if queue is not None:
        why = f" ({queue.group(1).lower()})" if queue.group(1) else ""
        return f"cancelled by its scheduler{why}{after}"
    return f"ended with {ended.partition(': ')[0]}{after}"


def last_line(learned: LogFacts | None) -> str:
    """The line in which a log says how the program ended, and where it is; empty without one."""
    if learned is None or not learned.ended:
        return ""
    place = f" (line {learned.ended_line:,})" if learned.ended_line is not None else ""
    return f"{learned.ended.rstrip('.')}{place}"


def _superseded(run: Run) -> Iterator[str]:
    """What was wrong in rows that are no part of this run any more, a clause a stretch."""
    for table in run.superseded:
        signals = Signals(replace(run, steps=table, superseded=()))
        trouble = _trouble(signals)
        earlier = any(table is other for other in run.steps.earlier)
        other_run = earlier and _is_another_run(table, run.steps)
        if trouble or other_run:
            place = "log" if run.path.is_dir() else "file"
            whose = f"an earlier run in this {place}" if earlier else "replaced by a resume"
            where = span(signals.step_at(0), signals.step_at(len(signals) - 1))
            judged = f" ({steps(len(table))}), is not judged here" if other_run else ""
            told = f": {trouble}" if trouble else ""
            yield f"{whose}, {where}{judged}{told}{_how_to_judge(run) if other_run else ''}"


def _is_another_run(table: StepTable, judged: StepTable) -> bool:
    """Did the counter start again after these rows? Else a restart took up their time line."""
    return len(table) > 0 and len(judged) > 0 and int(table.step[0]) <= int(judged.step[0])


def _how_to_judge(run: Run) -> str:
    """How to judge the first run of several in a file; empty where it cannot be cut off so."""
    begins = [repair.line for repair in run.steps.repairs if repair.kind == "second-run"]
    log = run.path / "steps.csv" if run.path.is_dir() else run.path
    whole = len(run.steps.earlier) == 1 and log.suffix not in (".gz", ".zip")
    if not whole or not log.is_file() or not begins or begins[0] is None:
        return ""
    return (
        f"; to judge it: head -n {begins[0] - 1} {shlex.quote(run.named(log))} > earlier.csv, "
        f"then report on that"
    )


def _trouble(signals: Signals) -> str:
    """What was wrong in some rows, in a clause; empty where nothing was."""
    rows = len(signals)
    parts = []
    bad = np.flatnonzero(signals.loss_bad)
    if len(bad):
        row = int(bad[0])
        loss = number(float(signals.loss[row]))
        parts.append(f"the loss was {loss} from step {signals.step_at(row):,} on")
    skips = int(signals.skipped.sum())
    if skips > 1 and skips > NOTABLE_SKIPS * rows:
        parts.append(f"{skips:,} of {rows:,} steps ({percent(skips / rows)}) were skipped")
    return " and ".join(parts)

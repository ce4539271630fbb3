"""The result of a bisection, put together from what is known: advice, the next command, words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forensics.diagnose.bisection_result import BisectionResult, BisectStatus, Persistence
from forensics.diagnose.wording import steps as step_count
from forensics.replay.bisect_options import Options
from forensics.replay.narrowing import Suspicion
from forensics.replay.remedy import remedies
from forensics.replay.start_states import StateSearch
from forensics.runlog.run import Run


def answer_of(
    run: Run, options: Options, fields: Mapping[str, Any], notes: Sequence[str]
) -> BisectionResult:
    """The result from those of its fields that are known.

    Args:
        run: that was bisected.
        options: what was asked for.
        fields: by name, as far as they are known.
        notes: what else the user must know.
    """
    known = {"status": BisectStatus.NOT_BISECTABLE, **fields}
    step = known.get("first_bad_step")
    if step is not None:
        known["remedy"] = _remedy(run, known, step)
    known["notes"] = tuple(dict.fromkeys(notes))
    known["next_command"] = _next_command(run, options, known)
    return BisectionResult(path=str(run.path), **known)


def looked_at(suspicion: Suspicion, states: StateSearch, sound: Sequence[int]) -> str:
    """What was looked at, where nothing is bad.

    Args:
        suspicion: what the log says.
        states: what the saved states say.
        sound: steps that were looked into.
    """
    rows = suspicion.rows
    text = f"nothing is bad in {rows:,} {'row' if rows == 1 else 'rows'}"
    tested = sum(state.verdict == "good" for state in states.verdicts)
    if tested:
        text += f" and {tested:,} saved {'state' if tested == 1 else 'states'}"
    if suspicion.routine:
        text += f"; {step_count(suspicion.routine)} skipped: the loss scaler at work"
    if sound:
        text += f"; {step_count(len(sound))} replayed, and what was applied is right"
    return text


def _remedy(run: Run, known: Mapping[str, Any], step: int) -> tuple[str, ...]:
    rows = np.flatnonzero(run.steps.step == step)
    skipped = bool(len(rows)) and "skipped" in run.steps and bool(run.steps["skipped"][rows[0]])
    return remedies(
        known.get("origin"),
        known.get("growth"),
        known.get("what_if", ()),
        first_bad_step=step,
        samples=known.get("samples", ()),
        reproduces=known.get("reproduces"),
        persistence=known.get("persistence", Persistence.UNKNOWN),
        skipped=skipped,
        checkpoints=known.get("checkpoints", ()),
    )


def _next_command(run: Run, options: Options, known: Mapping[str, Any]) -> str:
    """The one command that brings the reader further."""
    path = shlex.quote(str(run.path))
    if known.get("capsule"):
        return f"forensics capsule run {shlex.quote(known['capsule'])}"
    if known["status"] is BisectStatus.PARTIAL:
        return f"forensics bisect {path}{options.as_command()}"
    if known.get("reproduces"):
        folder = shlex.quote(str(run.path / f"capsule-{known['first_bad_step']}"))
        return f"forensics bisect {path}{options.as_command()} --no-what-if --capsule {folder}"
    return ""

"""Capsules of known faults, and running their scripts."""

from __future__ import annotations

import runpy
from pathlib import Path

from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.replay.capsule import write_capsule
from forensics.replay.tracing.step_forensics import audit_step
from tests.unit.replay.faulty import before_step


def result_of(step, origin, samples=()):
    return BisectionResult(
        path="x",
        status=BisectStatus.LOCATED,
        first_bad_step=step,
        origin=origin,
        samples=tuple(samples),
    )


def write(home: Path, recipe: str, step: int, samples=(), **settings) -> Path:
    with before_step(home, recipe, step, **settings) as (session, before):
        origin = audit_step(session, before=before)
        made = write_capsule(home / "capsule", session, before, result_of(step, origin, samples))
    assert made.confirmed, made.notes
    assert made.size == sum(f.stat().st_size for f in made.path.iterdir())
    return made.path


def run_script(path: Path) -> int:
    """Run a script as Python would; its exit code."""
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0

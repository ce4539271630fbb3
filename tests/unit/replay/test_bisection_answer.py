"""The answer of a bisection: what is said beside what was found."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus, FaultKind, Origin, Persistence
from forensics.diagnose.finding import Finding, Severity
from forensics.replay.bad import parse_bad
from forensics.replay.bisect_options import Options
from forensics.replay.bisection_answer import answer_of
from forensics.replay.narrowing import Suspicion
from forensics.runlog.manifest import Manifest, ScalerPolicy
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

OPTIONS = Options(
    predicate=parse_bad(None),
    recipe=None,
    from_step=None,
    until_step=None,
    what_if=False,
    further_steps=0,
    tolerance=None,
    device=None,
    capsule=None,
    progress=lambda *_: None,
)


@pytest.mark.parametrize(
    ("operator", "row", "late"),
    [("buffer:table", 130, True), ("buffer:table", 0, False), ("aten.log", 130, False)],
)
def test_a_bad_tensor_that_is_read_later_is_told_with_that_step(operator, row, late):
    steps = StepTable.from_arrays({"loss": [1.0, 1.0]})
    run = Run(path=Path("run"), steps=steps)
    origin = Origin(kind=FaultKind.NAN, phase="forward", operator=operator, summary="bad.")
    fields = {"status": BisectStatus.LOCATED, "first_bad_step": 0, "origin": origin}
    suspicion = Suspicion(step=row, why="loss is NaN")
    told = answer_of(run, OPTIONS, suspicion, fields, ["first"])
    words = "the rows before step 130 are sound: that is the first step that shows it (loss is NaN)"
    assert told.notes == (("first", words) if late else ("first",))


@pytest.mark.parametrize(
    ("scaling", "guard"),
    [(False, "skip the step where the norm before the clip is not finite."), (True, "every path.")],
)
def test_a_bad_step_that_was_taken_is_told_with_what_guards_against_it(scaling, guard):
    columns = {"loss": [1.0, math.nan, math.nan], "skipped": [0, 0, 0]}
    manifest = Manifest(scaler=ScalerPolicy(enabled=scaling))
    run = Run(path=Path("run"), steps=StepTable.from_arrays(columns), manifest=manifest)
    fields = {"status": BisectStatus.LOCATED, "persistence": Persistence.TRANSIENT}
    told = answer_of(run, OPTIONS, Suspicion(), {**fields, "first_bad_step": 1}, [])
    assert told.damage_stayed
    assert told.remedy[-1].startswith("Start anew, or from a state of your own from before step 1")
    assert told.remedy[-1].endswith(guard)
    ended = answer_of(run, OPTIONS, Suspicion(), {**fields, "first_bad_step": 2}, [])
    assert (ended.damage_stayed, ended.remedy) == (False, ())


@pytest.mark.parametrize(
    ("bad", "step_0", "next_command"),
    [
        (None, 1.0, "forensics bisect run --recipe mine.py --bad 'loss>30'"),
        (None, 60.0, "forensics bisect run --recipe mine.py --bad 'loss>30' --from 50"),
        ("norm>9", 1.0, ""),  # who asked for a condition has got the answer to it
    ],
)
def test_where_nothing_is_non_finite_the_report_s_spike_is_bisected_next(bad, step_0, next_command):
    losses = [step_0, *[1.0] * 149, 900.0, *[1.0] * 49]
    run = Run(path=Path("run"), steps=StepTable.from_arrays({"loss": losses}))
    spike = Finding(
        rule="loss-spike", severity=Severity.WARNING, message="", first_step=150, last_step=150
    )
    options = replace(OPTIONS, recipe="mine.py", from_step=20 if step_0 > 1 else None)
    options = replace(options, predicate=parse_bad(bad))
    told = answer_of(run, options, Suspicion(root=spike), {}, [])
    assert told.status is BisectStatus.NOT_BISECTABLE
    assert told.next_command == next_command

"""The answer of a bisection: what is said beside what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus, FaultKind, Origin
from forensics.replay.bad import parse_bad
from forensics.replay.bisect_options import Options
from forensics.replay.bisection_answer import answer_of
from forensics.replay.narrowing import Suspicion
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

"""Evidence says what was written, and nothing else."""

from __future__ import annotations

from pathlib import Path

from forensics.diagnose.signals import Signals
from forensics.render.phrases import points
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable


def test_what_was_not_written_is_no_nan_in_evidence() -> None:
    table = StepTable.from_arrays({"loss": [1.0, float("nan"), None, 4.0]})
    signals = Signals(Run(path=Path("x.csv"), steps=table))
    assert signals.evidence("loss", signals.loss, [0, 1, 2, 3]).steps == (0, 1, 3)
    nothing = signals.evidence("loss", signals.loss, [2])
    assert nothing.values == ()
    assert points(nothing) == "not written at these steps"

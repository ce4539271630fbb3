"""From a run, or from what was found out about it, to what its pictures need."""

from __future__ import annotations

from forensics.diagnose.chart_parts import ChartSeries
from forensics.diagnose.chart_series import chart_series
from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis
from forensics.errors import InputError
from forensics.runlog.run import Run


def diagnosed(run: Run | Diagnosis) -> tuple[ChartSeries, Diagnosis]:
    """The series of a run and its diagnosis.

    Raises:
        InputError: the diagnosis does not hold the run it is of.
    """
    diagnosis = diagnose(run) if isinstance(run, Run) else run
    source = run if isinstance(run, Run) else run.source
    if source is None:
        hint = "plot the run, or what diagnose_run gives"
        raise InputError("the diagnosis does not hold its run", hint=hint)
    return chart_series(source, diagnosis), diagnosis

"""From a run to its diagnosis and back, as a notebook writes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics import diagnose_run
from forensics.diagnose.chart_source import diagnosed
from forensics.errors import InputError
from tests.unit.diagnose.step_logs import FP32, NAN, calm, run_of, with_values


def test_a_run_says_its_own_diagnosis_and_that_remembers_the_run() -> None:
    run = run_of(calm(60, loss=with_values(calm(60)["loss"], 30, NAN)), FP32).run
    diagnosis = run.diagnose()
    assert diagnosis.source is run
    assert repr(diagnosis) == repr(diagnose_run(run))  # NaN in its evidence equals no NaN
    assert [f.rule for f in diagnosis.findings] == ["nonfinite-loss"]


def test_where_it_came_from_is_no_part_of_what_is_told() -> None:
    diagnosis = run_of(calm(40), FP32).run.diagnose()
    bare = replace(diagnosis, source=None)
    assert bare == diagnosis
    assert repr(bare) == repr(diagnosis)


def test_run_and_diagnosis_give_the_same_series() -> None:
    run = run_of(calm(40), FP32).run
    (one, told), (two, _) = diagnosed(run), diagnosed(run.diagnose())
    assert told == run.diagnose()
    assert [c.name for c in one.charts] == [c.name for c in two.charts]
    assert (one.charts[0].series[0].low == two.charts[0].series[0].low).all()


def test_without_its_run_a_diagnosis_cannot_be_drawn() -> None:
    with pytest.raises(InputError, match="does not hold its run"):
        diagnosed(replace(run_of(calm(4)).run.diagnose(), source=None))

"""``bisect.json``: what is written is read again, and what a stranger wrote is checked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.bisection_file import (
    bisection_document,
    bisection_from_json,
    bisection_of,
    flat_fields,
    log_fingerprint,
)
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.unit.render.sample_bisections import SAMPLES, bit_flip, growth

CONTRACT = {
    *("status", "reason", "first_bad_step", "root_step", "phase", "kind", "operator"),
    *("autograd_node", "module", "parameter", "parameters", "element", "source_line", "samples"),
    *("reproduces", "persistence", "faithful_until", "cross_device", "what_if", "checkpoints"),
    "capsule",
}


def log(losses: list[Any], first: int = 0) -> StepTable:
    steps = list(range(first, first + len(losses)))
    return StepTable.from_arrays({"step": steps, "loss": losses})


def run(steps: StepTable, document: Any) -> Run:
    return Run(path=Path("runs/x"), steps=steps, bisection=document)


def stored(result: BisectionResult, steps: StepTable) -> Any:
    return json.loads(json.dumps(bisection_document(result, steps), allow_nan=False))


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_written_is_read_again(name: str) -> None:
    result = SAMPLES[name]()
    steps = log([1.0] * 10)
    read, notes = bisection_of(run(steps, stored(result, steps)))
    assert notes == ()
    # NaN is not equal to itself: compare what is printed.
    assert repr(read) == repr(result)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_key_of_the_contract_is_there(name: str) -> None:
    assert flat_fields(SAMPLES[name]()).keys() >= CONTRACT


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("samples", "all", "samples should be a list"),
        ("first_bad_step", "5", "first_bad_step should be a number"),
        ("first_bad_step", -1, "first_bad_step is no step"),
        ("first_bad_step", 10**30, "first_bad_step is no step"),
        ("operator", {"$": 1}, "operator should be text"),
        ("what_if", [{"change": 3}], "change should be text"),
        ("growth", [], "growth should be an object"),
        ("departure", 7, "departure should be an object"),
        ("reproduces", 1, "reproduces should be true or false"),
    ],
)
def test_a_field_of_the_wrong_type_is_left_out_and_told(field: str, value: Any, said: str) -> None:
    steps = log([1.0] * 10)
    document = stored(bit_flip(), steps)
    document["bisection"][field] = value
    result, notes = bisection_of(run(steps, document))
    assert result is not None
    assert result.status is BisectStatus.LOCATED
    assert any(said in note for note in notes)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"bisection": []},
        {"bisection": {}},
        {"bisection": {"status": "fine"}},
        {"bisection": {"status": 3}},
        {"format_version": 99, "bisection": {"status": "located"}},
        {"bisection": {"status": "located"}},
        {"bisection": {"status": "located"}, "log": "yes"},
        {"bisection": {"status": "located"}, "log": {"last_step": 1e300}},
        {"bisection": {"status": "located"}, "log": {"last_step": 10**40}},
    ],
)
def test_what_is_no_bisection_is_not_used_and_said(document: Any) -> None:
    result, notes = bisection_of(run(log([1.0]), document))
    assert result is None
    assert len(notes) >= 1


def test_a_run_without_one_says_nothing() -> None:
    assert bisection_of(run(log([1.0]), None)) == (None, ())


def test_rows_that_come_later_change_nothing() -> None:
    document = stored(bit_flip(), log([1.0] * 7))
    assert bisection_of(run(log([1.0] * 9), document))[0] is not None


def test_rows_that_changed_make_it_stale() -> None:
    document = stored(bit_flip(), log([1.0] * 7))
    other = log([1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    result, notes = bisection_of(run(other, document))
    assert result is None
    assert "bisect again" in notes[0]


def test_the_fingerprint_tells_nan_from_absent() -> None:
    assert log_fingerprint(log([1.0, math.nan])) != log_fingerprint(log([1.0, None]))
    assert log_fingerprint(log([1.0, math.nan])) == log_fingerprint(log([1.0, math.nan]))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=150)
@given(field=st.sampled_from(sorted(flat_fields(growth()))), value=anything)
def test_nothing_in_the_file_makes_the_reader_fall(field: str, value: Any) -> None:
    data = {**stored(growth(), log([1.0]))["bisection"], field: value}
    result, _ = bisection_from_json(data)
    assert result is None or isinstance(result.status, BisectStatus)

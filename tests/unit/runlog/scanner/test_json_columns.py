"""A block of JSON lines read at once gives what its records give one by one, or is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.json_columns import json_columns
from forensics.runlog.scanner.records import RecordRows
from forensics.runlog.steps import StepTable

FIRST = {"step": 0, "loss": 2.5, "lr": 0.1, "note": "begun", "x y": 1}


def lines_of(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def table_of(text: bytes, at_once: bool) -> tuple[StepTable, bool]:
    rows = RecordRows(RepairLog(), Reading())
    rows.add(FIRST)
    taken = at_once and rows.add_columns(text)
    if not taken:
        rows.add_all([json.loads(line) for line in text.splitlines()])
    return rows.table("it", LogFacts(interval=1), None), taken


def same(one: StepTable, two: StepTable) -> None:
    assert {name for name in one if one.has(name)} == {name for name in two if two.has(name)}
    for name in one:
        if one.has(name):
            np.testing.assert_array_equal(one.present(name), two.present(name))
            there = one.present(name)
            np.testing.assert_array_equal(one[name][there], two[name][there])


NUMBERS = st.one_of(
    st.floats(), st.integers(-(2**70), 2**70), st.none(), st.integers(0, 9), st.just(2.0)
)
CELLS = st.one_of(
    NUMBERS,
    st.sampled_from(["NaN", "0.5", "text", "2024-01-01 10:00:00", 'a "b" ;c', "", [1, 2], True]),
)
RECORD = st.fixed_dictionaries(
    {"loss": CELLS, "lr": NUMBERS}, optional={"note": CELLS, "x y": NUMBERS}
).flatmap(lambda record: st.permutations(list(record.items())).map(dict))
RECORDS = st.lists(RECORD, min_size=1, max_size=12)


@settings(deadline=None, max_examples=200)
@given(RECORDS)
@example([{"loss": 2.5, "lr": 1}, {"loss": float("nan"), "lr": 0.5}])
@example([{"loss": "NaN", "lr": 1.0}, {"loss": 2.5, "lr": 1.0}])
@example([{"loss": None, "lr": 1.0}, {"loss": 2.5, "lr": 1.0}])
@example([{"loss": 2.5, "lr": 1.0, "note": "a"}, {"loss": 2.5, "lr": 1.0, "note": "7"}])
@example([{"loss": 0.5, "lr": 2.0}, {"lr": None, "loss": 0.25}])
@example([{"loss": 0.5, "lr": 2.0}, {"lr": 3.0, "loss": 0.25}])
@example([{"loss": 2, "lr": 2**69}, {"loss": 2, "lr": 3}])
def test_at_once_and_one_by_one_are_the_same(records: list[dict[str, Any]]) -> None:
    text = lines_of([{"step": n, **record} for n, record in enumerate(records, 1)])
    same(table_of(text, True)[0], table_of(text, False)[0])


def test_plain_records_are_read_at_once() -> None:
    plain = [{"step": n, "loss": 2.5, "lr": 1e-4} for n in range(1, 9)]
    assert table_of(lines_of(plain), True)[1]
    with_text = [{**record, "note": "fine"} for record in plain]
    assert table_of(lines_of(with_text), True)[1]
    gaps = [{**record, **({"x y": 3.0} if n % 2 else {})} for n, record in enumerate(plain)]
    assert table_of(lines_of(gaps), True)[1]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1}\n{"a": 2',
        b'{"a": 1}\nprose\n',
        b'{"a": 1} {"a": 2}\n{"a":\n3}\n',
        b'{"a": nan}\n{"a": 1.0}\n',
        b'{"a": 1.0}\n{"a": nan}\n',
        b'{"a": 1.0}\n{"a": None}\n',
        b'{"a": 1.0}\n{"a": }\n',
        b'{"a": 1, "a": 2}\n{"a": 1, "a": 2}\n',
        b'{"a": 1.0}\n{"a": true}\n',
        b"[1]\n[2]\n",
        b'{"a": 1.0}\n\n{"a": 2.0}\n',
    ],
)
def test_what_is_not_one_object_a_line_is_refused(text: bytes) -> None:
    assert json_columns(text) is None


def test_keys_that_are_written_within_a_text_are_no_keys() -> None:
    records = [{"a": 1.0, "b": "x"}, {"a": 2.0, "b": ', "b": '}]
    found = json_columns(lines_of(records))
    assert found is not None
    assert found["a"] is not None
    assert found["a"].values.tolist() == [1.0, 2.0]
    assert found["b"] is None

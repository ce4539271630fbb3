"""Whatever a log holds, an importer gives a table or a clear error: no traceback, no loop."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forensics.errors import ForensicsError
from forensics.runlog.importers import IMPORTERS
from forensics.runlog.importers.detect import detect
from forensics.runlog.reading import Reading
from forensics.runlog.run import load_run
from forensics.runlog.scanner.source import head_of
from tests.unit.runlog.importers.samples import FILES, SAMPLES

FUZZ = settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = sorted(SAMPLES)
ONE_DOCUMENT = (
    *("hf-trainer-state", "hf-model-card", "json-history"),
    *("tensorboard-scalar", "mlflow"),
)


def read(path: Path, data: bytes, name: str = "") -> None:
    """Read some bytes; a table must be one, and an error one of ours that says where."""
    path.write_bytes(data)
    try:
        table = load_run(path, Reading(format_in=name)).steps
    except ForensicsError:
        return
    step = table.step
    assert (step[1:] > step[:-1]).all()
    for column in table.columns.values():
        assert len(column.values) == len(column.present) == len(step)


def test_every_importer_has_a_sample_and_knows_it(tmp_path: Path) -> None:
    assert {importer.name for importer in IMPORTERS} - {"tensorboard"} == set(SAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_the_sample_is_detected_and_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / FILES.get(name, "it.log")
    path.write_text(SAMPLES[name])
    choice = detect(head_of(path))
    assert choice is not None
    assert choice.importer.name == name
    table = load_run(path).steps
    assert table.source_format == name
    assert len(table) >= 1
    assert table.facts is not None
    assert table.facts.reason


@pytest.mark.parametrize("name", NAMES)
def test_each_sniff_is_quiet_about_the_others(name: str, tmp_path: Path) -> None:
    """Nobody else is as sure of a sample as its own importer is."""
    path = tmp_path / "it.log"
    path.write_text(SAMPLES[name])
    head = head_of(path)
    sure = {i.name: m.confidence for i in IMPORTERS if (m := i.sniff(head)) is not None}
    assert max(sure, key=lambda n: sure[n]) == name


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_cut_anywhere(name: str, data: st.DataObject, tmp_path: Path) -> None:
    whole = SAMPLES[name].encode()
    end = data.draw(st.integers(0, len(whole)))
    start = data.draw(st.sampled_from([0, 0, data.draw(st.integers(0, end))]))
    read(
        tmp_path / FILES.get(name, "cut.log"),
        whole[start:end],
        data.draw(st.sampled_from(["", name])),
    )


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_lines_shuffled_and_repeated(name: str, data: st.DataObject, tmp_path: Path) -> None:
    lines = SAMPLES[name].encode().splitlines(keepends=True)
    order = data.draw(st.lists(st.sampled_from(range(len(lines))), max_size=2 * len(lines)))
    read(tmp_path / "shuffled.log", b"".join(lines[i] for i in order), name)


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_bytes_overwritten(name: str, data: st.DataObject, tmp_path: Path) -> None:
    text = bytearray(SAMPLES[name].encode())
    junk = st.one_of(st.binary(max_size=12), st.sampled_from([b"nan", b"-inf", b"1e999", b"\r\n"]))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(junk)
        text[at : at + len(piece)] = piece
    read(
        tmp_path / FILES.get(name, "hurt.log"), bytes(text), data.draw(st.sampled_from(["", name]))
    )


@pytest.mark.parametrize("importer", IMPORTERS, ids=lambda i: i.name)
@settings(FUZZ, max_examples=10)
@given(junk=st.binary(max_size=400))
def test_any_bytes(importer: object, junk: bytes, tmp_path: Path) -> None:
    read(tmp_path / "junk.log", junk, importer.name)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", [n for n in NAMES if not n.endswith("csv") and n not in ONE_DOCUMENT]
)
def test_numbers_are_kept_when_a_preamble_comes_first(name: str, tmp_path: Path) -> None:
    """Lines that are no records before the first one change nothing (in formats of lines)."""
    plain, late = tmp_path / "plain.log", tmp_path / "late.log"
    plain.write_text(SAMPLES[name])
    late.write_text("Loading 3 shards\nconfig: seed=1\n" + SAMPLES[name])
    one, two = load_run(plain).steps, load_run(late, Reading(format_in=name)).steps
    np.testing.assert_array_equal(one.step, two.step)
    assert list(one) == list(two)
    for column in one:
        np.testing.assert_array_equal(one[column], two[column])


@pytest.mark.parametrize("name", NAMES)
def test_long_runs_of_one_kind_end_soon(name: str, tmp_path: Path) -> None:
    """What makes a careless pattern search from each character to the end of the text."""
    sample = SAMPLES[name].encode()
    for filler in (b"1", b"a", b"{'", b"| "):
        start = time.process_time()
        read(tmp_path / "long.log", filler * (100_000 // len(filler)) + b"\n" + sample, name)
        assert time.process_time() - start < 10

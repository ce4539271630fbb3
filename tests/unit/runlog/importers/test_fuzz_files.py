"""Damage to whole files: dirt over all lines, other formats, archives, parts, mixtures."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Outcome
from forensics.errors import ForensicsError, InputError
from forensics.render.json_report import render_json
from forensics.render.text_report import render_text
from forensics.runlog.csv_reader.spans import reading_only
from forensics.runlog.reading import Reading
from forensics.runlog.run import Run, load_joined, load_run
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.samples import FILES, SAMPLES

FUZZ = settings(
    deadline=None, max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
NAMES = sorted(SAMPLES)
ODD = [b"nan", b"-inf", b"1e999", b"9" * 400, b"-1", b"0x1F", b"1,234,567", b"1e-400", b"\xff\xfe"]


def is_sound(table: StepTable) -> bool:
    """Ascending steps, columns of one length, and nothing of that kind set aside."""
    tables = [table, *table.earlier]
    ascending = all((t.step[1:] > t.step[:-1]).all() for t in tables)
    lengths = {
        len(c.values) == len(c.present) == len(t) for t in tables for c in t.columns.values()
    }
    return ascending and lengths <= {True}


def loaded(path: Path, name: str = "") -> Run | None:
    """The run, which must be sound; None where the error is one of ours."""
    try:
        run = load_run(path, Reading(format_in=name))
    except ForensicsError:
        return None
    assert is_sound(run.steps)
    return run


def tell(run: Run) -> None:
    """Judge and render it: no rule may fail on what an importer gave."""
    diagnosis = diagnose(run)
    assert [r for r in diagnosis.rules if r.outcome is Outcome.FAILED] == []
    assert render_text(diagnosis)
    json.loads(render_json([diagnosis]))


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_what_is_left_of_a_damaged_log_can_be_judged_and_told(
    name: str, data: st.DataObject, tmp_path: Path
) -> None:
    text = bytearray(SAMPLES[name].encode())
    digits = [i for i, byte in enumerate(text) if chr(byte).isdigit()]
    for at in sorted(data.draw(st.lists(st.sampled_from(digits), max_size=6)), reverse=True):
        text[at : at + 1] = data.draw(st.sampled_from(ODD))
    path = tmp_path / "it.log"
    path.write_bytes(bytes(text))
    run = loaded(path, name)
    if run is not None:
        tell(run)


@pytest.mark.parametrize("name", NAMES)
def test_every_other_format_is_refused_or_read_and_never_fails(name: str, tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    path.write_text(SAMPLES[name])
    for other in NAMES:
        loaded(path, other)


def coloured(text: str) -> str:
    return "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines())


def ranked(text: str) -> str:
    return "".join(f"[default{i % 3}]:{line}\n" for i, line in enumerate(text.splitlines()))


def windows(text: str) -> str:
    return text.replace("\n", "\r\n")


def with_nuls(text: str) -> str:
    return text + "\0" * 512


def blank(text: str) -> str:
    return text.replace("\n", "\n\n")


def in_a_container(text: str) -> str:
    lines = [json.dumps({"log": f"{line}\n", "stream": "stdout"}) for line in text.splitlines()]
    return "\n".join(lines).replace('": ', '":').replace(', "', ',"') + "\n"


DIRT = [coloured, ranked, windows, with_nuls, blank, in_a_container]
PARTED = ("composer", "olmo")
"""Formats whose records are lines that belong together: a blank one parts them."""
NO_LINES = ("hf-trainer-state", "hf-model-card", "jsonl", "llama-factory", "wandb-history")
LINES = [n for n in NAMES if n not in NO_LINES and not re.search("csv|json|scalar|history", n)]


@pytest.mark.parametrize("dirt", DIRT)
@pytest.mark.parametrize("name", LINES)
def test_dirt_over_all_lines_changes_no_number(
    name: str, dirt: Callable[[str], str], tmp_path: Path
) -> None:
    if dirt is blank and name in PARTED:
        return
    clean, dirty = (tmp_path / how / FILES.get(name, "it.log") for how in ("clean", "dirty"))
    clean.parent.mkdir()
    dirty.parent.mkdir()
    clean.write_text(SAMPLES[name])
    dirty.write_text(dirt(SAMPLES[name]), newline="")
    one, two = load_run(clean).steps, load_run(dirty).steps
    assert two.source_format == name
    np.testing.assert_array_equal(one.step, two.step)
    for column in one:
        np.testing.assert_array_equal(one[column], two[column])


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_dirt_and_damage_together(name: str, data: st.DataObject, tmp_path: Path) -> None:
    text = SAMPLES[name]
    for dirt in data.draw(st.lists(st.sampled_from(DIRT), max_size=3)):
        text = dirt(text)
    raw = text.encode()
    raw = raw[data.draw(st.integers(0, 40)) : data.draw(st.integers(len(raw) // 2, len(raw)))]
    path = tmp_path / "it.log"
    path.write_bytes(raw)
    loaded(path, data.draw(st.sampled_from(["", name])))


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_archives_cut_or_hurt(name: str, data: st.DataObject, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(SAMPLES[name].encode()))
    at = data.draw(st.integers(0, len(packed) - 1))
    if data.draw(st.booleans()):
        packed = packed[:at]
    else:
        packed[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "it.log.gz"
    path.write_bytes(bytes(packed))
    loaded(path)


@pytest.mark.parametrize("name", NAMES)
@FUZZ
@given(data=st.data())
def test_the_beginning_and_the_end_alone(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """As a log that is watched is read."""
    path = tmp_path / "it.log"
    path.write_text(SAMPLES[name])
    size = path.stat().st_size
    cuts = sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2)))
    with reading_only(path, [(0, cuts[0]), (cuts[1], size)]):
        loaded(path, data.draw(st.sampled_from(["", name])))


@settings(FUZZ, max_examples=60)
@given(data=st.data())
def test_any_files_joined(data: st.DataObject, tmp_path: Path) -> None:
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4))
    paths = [tmp_path / f"{i}.log" for i in range(len(names))]
    for path, name in zip(paths, names, strict=True):
        text = SAMPLES[name].encode()
        path.write_bytes(text[: data.draw(st.sampled_from([len(text), len(text) // 2, 0]))])
    try:
        table = load_joined(paths).steps
    except ForensicsError:
        return
    assert is_sound(table)


@settings(FUZZ, max_examples=60)
@given(data=st.data())
def test_any_files_in_a_directory(data: st.DataObject, tmp_path: Path) -> None:
    folder = tmp_path / str(data.draw(st.uuids()))
    for name in data.draw(st.lists(st.sampled_from(NAMES), max_size=4)):
        where = folder / data.draw(st.sampled_from([".", "checkpoint-10", "a/b", "val"]))
        where.mkdir(parents=True, exist_ok=True)
        suffix = data.draw(st.sampled_from(["log", "json", "csv", "log.1"]))
        (where / f"{data.draw(st.sampled_from('ab'))}.{suffix}").write_text(SAMPLES[name])
    folder.mkdir(exist_ok=True)
    try:
        assert is_sound(load_run(folder).steps)
    except InputError:
        return

"""A run of the real ``transformers.Trainer``, bisected through its own resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics import bisect_run, render_bisect_text
from forensics.diagnose.bisection_result import BisectStatus
from tests.unit.replay.trainers import trained
from tests.unit.replay.trainers.conftest import Prepare, bisected, contents

pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of every kind and release

MAKE = "make_huggingface"


def test_a_bad_sample_is_found_with_its_operator_and_nothing_is_written(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(ZERO=7)
    trained.make_huggingface().train()
    before = contents(tmp_path)
    assert {"told.txt", "out/diary.txt", "out/checkpoint-12/optimizer.pt"} < set(before)
    result = bisected(tmp_path / "run", MAKE, what_if=True, further_steps=2)
    origin = result.origin
    assert origin is not None
    assert (result.first_bad_step, origin.operator, origin.phase) == (0, "aten.log", "forward")
    assert "loudness = energy.log()" in origin.source_line
    assert origin.parameters[0] == "last.bias"
    assert len(result.samples) == 1
    assert result.reproduces
    assert "fp64" in {what.change for what in result.what_if}
    (tmp_path / "run" / "bisect.json").unlink()
    assert contents(tmp_path) == before
    assert "capsule" not in result.next_command


def test_a_poisoned_weight_is_found_from_the_checkpoint_before_it(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(POISON=9)
    trained.make_huggingface().train()
    result = bisected(tmp_path / "run", MAKE)
    assert (result.first_bad_step, result.replayed_from) == (9, 8)
    assert result.origin is not None
    assert result.origin.operator == "param:last.weight"
    assert result.origin.parameter == "last.weight"


def test_a_healthy_run_is_healthy_bit_for_bit(tmp_path: Path, prepare: Prepare) -> None:
    prepare()
    trained.make_huggingface().train()
    result = bisected(tmp_path / "run", MAKE)
    assert result.status is BisectStatus.HEALTHY
    assert (result.tolerance, result.compared, result.departure) == (0.0, 12, None)


def test_other_data_are_never_told_as_the_recorded_run(tmp_path: Path, prepare: Prepare) -> None:
    """The bad sample comes in the same step, as its place in the shuffled data is the same."""
    prepare(ZERO=3)
    trained.make_huggingface().train()
    prepare(ZERO=3, DATA=5)
    result = bisected(tmp_path / "run", MAKE)
    assert (result.first_bad_step, result.status) == (3, BisectStatus.LOCATED)
    assert (result.origin, result.reproduces, result.samples) == (None, None, ())
    assert any("this replay is another training than the recorded one" in n for n in result.notes)


def test_a_healthy_record_stays_so_whatever_the_data_are_now(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare()
    trained.make_huggingface().train()
    prepare(DATA=5)
    sound = bisected(tmp_path / "run", MAKE, until_step=3)
    assert "looked into closely" not in sound.reason
    assert any("this replay is another training than the recorded one" in n for n in sound.notes)
    prepare(ZERO=3)
    bad = bisected(tmp_path / "run", MAKE, until_step=3)
    assert (bad.status, bad.origin) == (BisectStatus.NOT_BISECTABLE, None)
    assert any("where the record is sound" in note for note in bad.notes)


def test_what_only_bf16_rounds_away_is_finite_in_fp32(tmp_path: Path, prepare: Prepare) -> None:
    prepare(BF16=1, ROUNDS=1)
    trained.make_huggingface().train()
    result = bisected(tmp_path / "run", MAKE, what_if=True, further_steps=0)
    assert result.first_bad_step == 0
    assert result.origin is not None
    assert result.origin.operator == "aten.log"
    assert {what.change: what.finite for what in result.what_if}["fp32"] is True


def test_a_resume_without_random_numbers_is_passed_over_and_told(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(POISON=6)
    trained.make_huggingface().train()
    (tmp_path / "out" / "checkpoint-4" / "rng_state.pth").unlink()
    result = bisected(tmp_path / "run", MAKE)
    assert (result.first_bad_step, result.replayed_from) == (6, 0)
    (note,) = [note for note in result.notes if "resume" in note]
    assert note.startswith("from the state of step 4 the trainer's own resume does not go on")
    assert "in step 4 " in note
    assert "bit-identical" in render_bisect_text(result)


def test_without_a_recipe_the_states_are_judged_by_their_health(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(POISON=9)
    trained.make_huggingface().train()
    result = bisect_run(tmp_path / "run")
    assert {c.step: c.verdict for c in result.checkpoints}[12] == "bad"
    assert any("name the function that makes the trainer" in note for note in result.notes)


def test_a_function_that_returns_something_else_is_told_what_is_wanted(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare()
    trained.make_huggingface().train()
    result = bisected(tmp_path / "run", "make_nothing")
    assert any("make_nothing() returned a str, which is no trainer" in n for n in result.notes)
    ended = bisected(tmp_path / "run", "make_from_arguments")
    assert any("raised SystemExit: 2" in n and "give its parser a list" in n for n in ended.notes)

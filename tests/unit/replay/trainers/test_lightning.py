"""A run of the real Lightning ``Trainer``, bisected through its own resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.diagnose.bisection_result import BisectStatus, Persistence
from tests.unit.replay.trainers import trained
from tests.unit.replay.trainers.conftest import Prepare, bisected, contents

pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of every kind and release

MAKE = "make_lightning"


def fit() -> None:
    trainer, *given = trained.make_lightning()
    trainer.fit(*given)


def test_a_bad_sample_is_found_with_its_operator_and_nothing_is_written(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(ZERO=21)
    fit()
    before = contents(tmp_path)
    assert {"diary.txt", "own.ckpt"} < set(before)
    result = bisected(tmp_path / "run", MAKE, what_if=True, further_steps=2)
    origin = result.origin
    assert origin is not None
    assert (result.first_bad_step, origin.operator, origin.phase) == (5, "aten.log", "forward")
    assert "loudness = energy.log()" in origin.source_line
    assert (origin.module, origin.parameters[0]) == ("net", "net.last.bias")
    assert result.samples == (1,)
    assert result.persistence is Persistence.TRANSIENT
    (tmp_path / "run" / "bisect.json").unlink()
    assert contents(tmp_path) == before


def test_a_trial_that_ends_midway_leaves_nothing_frozen(tmp_path: Path, prepare: Prepare) -> None:
    prepare(ZERO=14)
    trainer, *given = trained.make_pair()
    trainer.fit(*given)
    result = bisected(tmp_path / "run", "make_pair", what_if=True, further_steps=2)
    assert (result.first_bad_step, result.samples, result.tolerance) == (3, (2,), 0.0)
    assert result.persistence is Persistence.TRANSIENT
    outcomes = {trial.change: trial.finite for trial in result.what_if}
    assert outcomes["fp64"] is None  # what it draws by itself is fp32: the step raises
    assert outcomes["without the guilty samples"] is True


def test_with_accumulation_the_sample_is_counted_over_the_micro_batches(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(ZERO=21, ACCUMULATION=2)
    fit()
    result = bisected(tmp_path / "run", MAKE)
    assert (result.first_bad_step, result.samples) == (2, (5,))
    assert result.departure is None
    assert result.persistence is Persistence.TRANSIENT


def test_an_end_of_an_epoch_is_resumed_from(tmp_path: Path, prepare: Prepare) -> None:
    prepare(DROPOUT=0.0)
    fit()
    spoil(tmp_path, step=10)
    result = bisected(tmp_path / "run", MAKE)
    assert (result.replayed_from, result.tolerance) == (8, 0.0)
    assert result.reproduces is False


def test_a_resume_in_the_middle_of_an_epoch_is_passed_over_and_told(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(ZERO=25, EVERY=4, DROPOUT=0.0)
    fit()
    result = bisected(tmp_path / "run", MAKE)
    assert (result.first_bad_step, result.replayed_from, result.departure) == (6, 0, None)
    (note,) = [note for note in result.notes if "resume" in note]
    assert note.startswith("from the state of step 4 the trainer's own resume does not go on")


def test_a_shuffled_healthy_run_is_healthy_bit_for_bit(tmp_path: Path, prepare: Prepare) -> None:
    prepare(SHUFFLE=1, ACCUMULATION=2, EVERY=4)
    fit()
    result = bisected(tmp_path / "run", MAKE)
    assert result.status is BisectStatus.HEALTHY, result
    assert (result.tolerance, result.compared) == (0.0, 8)


def test_a_state_that_would_run_code_is_not_handed_to_the_trainer(
    tmp_path: Path, prepare: Prepare
) -> None:
    prepare(ZERO=25)
    fit()
    (state,) = (tmp_path / "states").glob("*step=8.ckpt")
    held: dict[str, Any] = torch.load(state, weights_only=True)
    torch.save({**held, "hyper_parameters": Touch(tmp_path / "touched")}, state)
    result = bisected(tmp_path / "run", MAKE, from_step=8)
    assert not (tmp_path / "touched").exists()
    assert result.replayed_from in (None, 0)


class Touch:
    """Unpickled, it leaves a mark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def spoil(tmp_path: Path, *, step: int) -> None:
    """The loss of one recorded row becomes NaN."""
    log = tmp_path / "run" / "steps.csv"
    lines = log.read_text().splitlines()
    place = lines[0].split(",").index("loss")
    cells = lines[step + 1].split(",")
    assert cells[0] == str(step)
    cells[place] = "nan"
    lines[step + 1] = ",".join(cells)
    log.write_text("\n".join(lines) + "\n")

"""A recorded training, trained again: the same rows, from any state, as often as wanted."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.replay.session import Session
from forensics.runlog.run import load_run
from tests.unit.replay.recordings import USER_FILE, open_run, quiet, record

# -- the same training -----------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 4, 8])
def test_every_row_comes_out_bit_for_bit_from_every_state(session: Session, start: int) -> None:
    assert session.go_to(start) == start
    replayed = [session.run_step() for _ in range(start, 10)]
    assert [session.departure(step) for step in replayed] == [None] * len(replayed)
    assert all(step.digest for step in replayed)
    assert not any(step.bad for step in replayed)


def test_it_starts_from_the_newest_state_at_or_before_a_step(session: Session) -> None:
    assert session.states() == (0, 4, 8, 10)
    assert session.go_to(7) == 4
    assert session.step_index == 4


def test_a_step_can_be_run_again_from_memory(session: Session) -> None:
    session.go_to(4)
    session.run_step()
    before = session.capture()
    first = [session.run_step().log for _ in range(3)]
    for _ in range(2):
        session.restore(before)
        assert session.step_index == 5
        assert [session.run_step().log for _ in range(3)] == first


def test_a_departure_names_the_first_column_that_differs(user_run: Path, tmp_path: Path) -> None:
    """A row that somebody has edited by one bit of one number."""
    shutil.copytree(user_run / "run", tmp_path / "run")
    log = tmp_path / "run" / "steps.csv"
    lines = log.read_text().splitlines()
    cells = lines[6].split(",")
    true = float(cells[4])
    cells[4] = repr(math.nextafter(true, math.inf))
    log.write_text("\n".join([*lines[:6], ",".join(cells), *lines[7:]]) + "\n")
    with open_run(tmp_path / "run", recipe=f"{user_run / 'mine.py'}:mine") as session:
        found = [session.departure(session.run_step()) for _ in range(10)]
    assert [d.step for d in found if d] == [5]
    departed = found[5]
    assert departed is not None
    assert departed.column == "loss"
    assert departed.replayed == true
    with open_run(
        tmp_path / "run", recipe=f"{user_run / 'mine.py'}:mine", tolerance=1e-9
    ) as session:
        assert [session.departure(session.run_step()) for _ in range(10)] == [None] * 10


def test_a_flipped_bit_of_a_weight_shows_in_the_digest(session: Session) -> None:
    session.go_to(4)
    weight = session.training.model[0].weight.data  # type: ignore[index]
    weight.view(torch.int32)[0, 0] ^= 1
    departure = session.departure(session.run_step())
    assert departure is not None
    assert departure.step == 4


@pytest.mark.parametrize(
    "recipe", ["healthy-gpt", "healthy-cnn", "update-forgotten", "fp16-overflow"]
)
def test_own_loops_and_scalers_come_back_from_memory(recipe: str, tmp_path: Path) -> None:
    """What no checkpoint holds, too: how far a scaler is between unscale and update."""
    run = record(recipe, tmp_path / "run", steps=6)
    with open_run(run) as session:
        for _ in range(2):
            session.run_step()
        before = session.capture()
        first = [repr(session.run_step()) for _ in range(3)]
        session.restore(before)
        assert [repr(session.run_step()) for _ in range(3)] == first


def test_a_training_that_raises_is_told_and_can_be_gone_back_from(tmp_path: Path) -> None:
    kind = find_recipe("update-forgotten")
    config = replace(kind.defaults, steps=200)
    with pytest.raises(Exception, match="unscale_"):
        record_run(
            kind(config),
            config,
            RecordOptions(out=tmp_path / "run", checkpoint_every=50),
            say=quiet,
        )
    run = load_run(tmp_path / "run")
    last = int(run.steps.step[-1])
    with open_run(tmp_path / "run") as session:
        session.go_to(last)
        while session.step_index < last:
            session.run_step()
        before = session.capture()
        for _ in range(2):
            session.restore(before)
            assert session.run_step().bad
            raised = session.run_step()
            assert raised.log is None
            assert raised.bad == ("exception",)
            assert "unscale_() has already been called" in raised.exception


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on import
def test_a_compiled_model_is_replayed_eagerly(tmp_path: Path) -> None:
    (tmp_path / "compiled.py").write_text(
        USER_FILE.replace("    def loss", "    model = torch.compile(model)\n    def loss", 1)
    )
    reference = f"{tmp_path / 'compiled.py'}:mine"
    with torch.compiler.set_stance("force_eager"):
        kind = find_recipe(reference)
        config = Config(steps=3)
        record_run(kind(config), config, RecordOptions(out=tmp_path / "run"), say=quiet)
    with open_run(tmp_path / "run", recipe=reference) as session:
        assert session.departure(session.run_step()) is None
        assert torch._dynamo.utils.counters["frames"]["total"] == 0


# -- what is bad -----------------------------------------------------------------------------


def test_bad_places_are_named_in_the_step_that_makes_them(tmp_path: Path) -> None:
    run = record("batchnorm-poisoned", tmp_path / "run", steps=40)
    with open_run(run) as session:
        session.go_to(36)
        bad = {}
        while session.step_index < 40:
            step = session.run_step()
            if step.bad:
                bad[step.step] = step.bad
    assert min(bad) == 37
    assert all(place.startswith("buffer:") for place in bad[37])

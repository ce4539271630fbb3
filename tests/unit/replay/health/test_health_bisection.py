"""Bisecting a folder of saved states by health alone: order, loads, and what is said."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.errors import InputError, UsageError
from forensics.replay.bisection import Judgement, State, search
from forensics.replay.health import state_judge
from forensics.replay.health.health_bisection import bisect_health
from forensics.replay.health.state_series import series_in
from forensics.replay.saved_states.step_names import Position, Unit, position_in_name
from tests.unit.replay.recordings import record
from tests.unit.replay.saved_states.states import (
    training_state,
    write_distributed,
    write_safetensors,
    write_sharded,
)

NAN = float("nan")


def series(folder: Path, count: int, bad_from: int, *, name: str = "step-{:08d}.pt") -> Path:
    """States 0, 100 … of which those from an index on are bad."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        torch.save(training_state(100 * i, bad=i >= bad_from), folder / name.format(100 * i))
    return folder


def verdicts(result: BisectionResult) -> dict[int, str]:
    return {state.step: state.verdict for state in result.checkpoints}


def loads(result: BisectionResult) -> int:
    return sum(state.verdict != "untested" for state in result.checkpoints)


@pytest.mark.parametrize(
    ("name", "unit", "number"),
    [
        ("step-00000040.pt", Unit.STEP, 40),
        ("step-00000040.nonfinite.pt", Unit.STEP, 40),
        ("epoch=3-step=1200.ckpt", Unit.STEP, 1200),
        ("checkpoint-500", Unit.STEP, 500),
        ("global_step1000", Unit.STEP, 1000),
        ("iter_0000500", Unit.STEP, 500),
        ("model_iter_70000.pth", Unit.STEP, 70000),
        ("ckpt_7.pt", Unit.STEP, 7),
        ("checkpoint.pth.tar", None, 0),
        ("epoch_12.pth", Unit.EPOCH, 12),
        ("model_12.pt", Unit.NUMBER, 12),
        ("resnet50-0676ba61.pth", Unit.NUMBER, 61),
        ("model-00001-of-00002.safetensors", None, 0),
        ("best.pt", None, 0),
        ("step-99999999999999999999.pt", None, 0),
    ],
)
def test_positions_in_names(name: str, unit: Unit | None, number: int) -> None:
    assert position_in_name(name) == (Position(unit, number) if unit else None)


def test_the_first_bad_state_and_what_is_bad_in_it(tmp_path: Path) -> None:
    result = bisect_health(series(tmp_path / "s", 9, 6))
    assert result.status is BisectStatus.LOCATED
    assert result.first_bad_step is None  # a state is not a step
    assert (verdicts(result)[500], verdicts(result)[600]) == ("good", "bad")
    assert result.bad_tensors == ("model.2.weight", "optimizer.state.1.exp_avg")
    bad = next(state for state in result.checkpoints if state.step == 600)
    assert bad.reason == (
        "model.2.weight (param): 1 NaN of 8; optimizer.state.1.exp_avg (optimizer of 0.bias): "
        "1 Inf of 4"
    )
    assert bad.path.endswith("step-00000600.pt")
    assert "step-00000500.pt" in result.remedy[0]
    assert "the random generators" in result.missing
    assert any("between step 500 and 600. What health cannot" in note for note in result.notes)
    assert result.next_command == ""  # what an inspection would show is told already


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_more_states_are_looked_into_than_promised(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 60))
    bad_from = data.draw(st.integers(1, count))
    unreadable = data.draw(st.sets(st.integers(0, count - 1), max_size=4)) - {0, count - 1}
    asked: list[int] = []

    def test(index: int) -> Judgement:
        asked.append(index)
        if index in unreadable:
            return Judgement(state=State.UNTESTABLE)
        return Judgement(state=State.BAD if index >= bad_from else State.GOOD)

    found = search(count, test)
    met = len(unreadable & set(asked))
    assert len(asked) == len(set(asked)) == found.loads
    assert found.loads <= math.ceil(math.log2(count)) + 2 + met
    if bad_from < count:
        assert found.first_bad is not None
        assert found.last_good is not None
        assert found.last_good < bad_from <= found.first_bad
        assert set(range(found.last_good + 1, found.first_bad)) <= unreadable


def test_ends_are_enough_where_nothing_is_bad(tmp_path: Path) -> None:
    result = bisect_health(series(tmp_path / "s", 7, 99))
    assert result.status is BisectStatus.NOT_BISECTABLE
    assert "the states at the ends, step 0 and 600, are finite" in result.reason
    # What lies between them was not looked into, so the next command looks.
    assert result.next_command == f"forensics inspect {result.path}"
    assert "the 5 between them were not looked into" in result.reason
    assert loads(result) == 2


def test_all_bad(tmp_path: Path) -> None:
    result = bisect_health(series(tmp_path / "s", 4, 0))
    assert result.status is BisectStatus.NOT_BISECTABLE
    assert result.reason.startswith("already the oldest state that can be read, step 0, is bad")
    assert result.bad_tensors
    assert not result.remedy


def test_nothing_can_be_read(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"step-{i}.pt").write_bytes(b"PK\x03\x04")
    result = bisect_health(tmp_path)
    assert result.status is BisectStatus.NOT_BISECTABLE
    assert result.reason.startswith("no state can be read; the first: is cut off")
    assert set(verdicts(result).values()) == {"untestable"}


def test_what_cannot_be_read_between_is_said(tmp_path: Path) -> None:
    folder = series(tmp_path / "s", 5, 3)
    (folder / "step-00000200.pt").write_bytes(b"rubbish")
    result = bisect_health(folder)
    assert verdicts(result) == {
        0: "good",
        100: "good",
        200: "untestable",
        300: "bad",
        400: "bad",
    }
    assert any("1 state between" in note for note in result.notes)


def test_a_range(tmp_path: Path) -> None:
    folder = series(tmp_path / "s", 9, 6)
    result = bisect_health(folder, from_step=300, until_step=650)
    assert result.status is BisectStatus.LOCATED
    assert all(verdicts(result)[step] == "untested" for step in (0, 100, 200, 700, 800))
    with pytest.raises(UsageError, match="no state lies in the range: there are 0 to 800"):
        bisect_health(folder, from_step=5000)


def test_an_infinity_that_was_finite_before_is_bad(tmp_path: Path) -> None:
    for i in range(4):
        state = training_state(i)
        state["best"] = 0.5 if i < 2 else float("inf")
        state["mask_value"] = float("-inf")
        torch.save(state, tmp_path / f"step-{i}.pt")
    result = bisect_health(tmp_path)
    assert result.bad_tensors == ("best",)
    assert (verdicts(result)[1], verdicts(result)[2]) == ("good", "bad")


def test_files_of_one_step_are_one_state(tmp_path: Path) -> None:
    for i in range(4):
        torch.save(training_state(i), tmp_path / f"G_{i}.pth")
        torch.save(training_state(i, bad=i > 1), tmp_path / f"D_{i}.pth")
    result = bisect_health(tmp_path)
    assert verdicts(result) == {0: "good", 1: "good", 2: "bad", 3: "bad"}


def test_of_several_files_of_a_step_the_bad_one_is_named_and_the_merge_is_said(
    tmp_path: Path,
) -> None:
    for i in range(4):
        torch.save(training_state(i), tmp_path / f"model-step-{i}.ckpt")
        torch.save(training_state(i, bad=i > 1), tmp_path / f"step-{i}.pt")
    result = bisect_health(tmp_path)
    bad = next(state for state in result.checkpoints if state.verdict == "bad")
    assert bad.path.endswith("/step-2.pt")
    assert result.checkpoints[2].path.endswith("/step-2.pt")
    assert "model-step-1.ckpt" in result.remedy[0]
    assert "/step-1.pt" in result.remedy[0]
    assert "such as model-step-0.ckpt and step-0.pt" in result.notes[0]


def test_folders_of_parts(tmp_path: Path) -> None:
    for i in range(4):
        folder = tmp_path / f"global_step{i}"
        folder.mkdir()
        torch.save(training_state(bad=i > 1)["model"], folder / "model_states.pt")
        torch.save({"optimizer": training_state()["optimizer"]}, folder / "optim_states.pt")
    result = bisect_health(tmp_path)
    assert verdicts(result) == {0: "good", 1: "good", 2: "bad", 3: "bad"}
    assert "the optimizer's state" not in result.missing
    assert not any("taken as one state" in note for note in result.notes)
    assert f"({tmp_path / 'global_step1'})" in result.remedy[0]


@pytest.mark.parametrize("kind", ["sharded", "distributed", "safetensors"])
def test_other_formats(kind: str, tmp_path: Path) -> None:
    for i in (1, 2, 3):
        bad = i > 1
        if kind == "sharded":
            write_sharded(tmp_path / f"checkpoint-{i}", bad=bad, step=i)
        elif kind == "distributed":
            write_distributed(tmp_path / f"step_{i}", training_state(i, bad=bad))
        else:
            write_safetensors(
                tmp_path / f"step_{i}.safetensors", {"w": torch.tensor([NAN if bad else 1.0])}
            )
    result = bisect_health(tmp_path)
    assert verdicts(result) == {1: "good", 2: "bad", 3: "untested"} or verdicts(result) == {
        1: "good",
        2: "bad",
        3: "bad",
    }


def test_a_mixed_folder(tmp_path: Path) -> None:
    folder = series(tmp_path / "s", 4, 2, name="ckpt_{}.pt")
    write_safetensors(folder / "ckpt_400.safetensors", {"w": torch.tensor([NAN])})
    torch.save(training_state()["model"], folder / "best.pt")
    torch.save(training_state(250, bad=True), folder / "last.pt")  # its step is inside
    (folder / "latest.pt").symlink_to("ckpt_300.pt")
    (folder / "notes.txt").write_text("nothing")
    (folder / "log.csv").write_text("step,loss\n")
    torch.save(training_state()["optimizer"], folder / "optimizer.pt")
    result = bisect_health(folder)
    assert list(verdicts(result)) == [0, 100, 200, 250, 300, 400]
    assert (verdicts(result)[100], verdicts(result)[200]) == ("good", "bad")
    assert "best.pt tells no step and had to be left out of the order." in result.notes


def test_epochs_and_steps_are_not_mixed(tmp_path: Path) -> None:
    model = training_state()["model"]
    for name in ("epoch_1.pt", "epoch_2.pt", "step_100.pt", "step_200.pt"):
        torch.save(model, tmp_path / name)
    found = series_in(tmp_path)
    assert [candidate.number for candidate in found.candidates] == [100, 200]
    assert found.unit is Unit.STEP
    (note,) = found.notes
    assert note == "epoch_1.pt, epoch_2.pt tell no step and had to be left out of the order."


def test_without_any_step_the_time_of_writing_orders(tmp_path: Path) -> None:
    for i, name in enumerate(("c.pt", "a.pt", "b.pt")):
        torch.save(training_state(bad=name == "b.pt")["model"], tmp_path / name)
        os.utime(tmp_path / name, (1000 + i, 1000 + i))
    result = bisect_health(tmp_path)
    assert [Path(state.path).name for state in result.checkpoints] == ["c.pt", "a.pt", "b.pt"]
    assert result.status is BisectStatus.LOCATED
    assert "No state tells its step" in result.notes[0]


def test_one_folder_of_shards_is_one_state(tmp_path: Path) -> None:
    result = bisect_health(write_sharded(tmp_path / "checkpoint-500", bad=True))
    assert verdicts(result) == {500: "bad"}


def test_a_folder_without_states(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no saved state"):
        bisect_health(tmp_path)
    with pytest.raises(InputError, match="cannot be listed"):
        bisect_health(tmp_path / "nowhere")


def test_an_interruption_leaves_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = series(tmp_path / "s", 5, 3)
    true = state_judge.examine_state
    seen: list[Path] = []

    def interrupted(path: Path, **options: Any) -> Any:
        seen.append(path)
        if len(seen) > 2:
            raise KeyboardInterrupt
        return true(path, **options)

    monkeypatch.setattr(state_judge, "examine_state", interrupted)
    result = bisect_health(folder)
    assert result.status is BisectStatus.PARTIAL
    assert (verdicts(result)[0], verdicts(result)[400]) == ("good", "bad")


def test_progress(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    bisect_health(series(tmp_path / "s", 5, 3), progress=lambda *now: told.append(now))
    assert told[0] == ("looking into saved states", 0, 5)
    assert [done for _, done, _ in told] == list(range(len(told)))


def test_health_files_of_a_run_spare_every_look(tmp_path: Path) -> None:
    run = record("bad-sample", tmp_path / "run")
    result = bisect_health(run)
    assert {state.verdict for state in result.checkpoints} == {"good"}
    assert "by their health files" in result.reason
    verified = bisect_health(run, verify=True)
    assert "2 of 4 looked into" in verified.reason


def test_a_history_that_is_not_monotone_is_said(tmp_path: Path) -> None:
    folder = series(tmp_path / "s", 5, 99)
    for i, path in enumerate(sorted(folder.glob("*.pt"))):
        finite = str(i not in (1, 4)).lower()
        path.with_suffix(".health.json").write_text(f'{{"finite": {finite}, "bad": []}}')
    result = bisect_health(folder)
    assert result.status is BisectStatus.LOCATED
    assert "restarted" in result.notes[0]
    assert "step-00000000.pt" in result.remedy[0]
    assert "step-00000100.pt" in result.next_command

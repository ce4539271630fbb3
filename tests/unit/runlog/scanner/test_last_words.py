"""A loss that is named only by the line a trainer stops with."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forensics.runlog.run import load_run
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.logs import column, read


def records(last: int, every: int = 10, first: int = 0) -> str:
    return "".join(
        f"step {n} loss {3 - n / 1000:.3f} lr 0.01\n" for n in range(first, last + 1, every)
    )


def ends_bad(table: StepTable) -> bool:
    return math.isnan(table["loss"][-1])


@pytest.mark.parametrize(
    "words",
    [
        "Loss is nan, stopping training",
        "Loss is inf, stopping training",
        "FloatingPointError: Loss became infinite or NaN!",
        "AssertionError: loss become infinite or NaN!",
        "ValueError: The loss returned in `training_step` is nan.",
        "Batch 17: Invalid loss, terminating training",
        "WARNING: non-finite loss, ending training tensor([nan, 0.2], device='cuda:0')",
        "RuntimeError: Rank 3: found NaN in local forward loss calculation. Device: 3",
        "Model diverged with loss = NaN.",
    ],
)
def test_the_loss_is_read_as_nan_until_the_next_record(tmp_path: Path, words: str) -> None:
    table = read(tmp_path, records(120) + words + "\n")
    assert table.step.tolist()[-2:] == [120, 130]
    assert ends_bad(table)
    assert column(table, "covered_steps")[-1] == 10
    assert column(table, "lr")[-1] is None
    assert table.facts is not None
    assert words[:60] in table.facts.notes[-1]


def test_a_step_that_is_told_is_that_step(tmp_path: Path) -> None:
    words = "FloatingPointError: Loss became infinite or NaN at iteration=123!\n"
    table = read(tmp_path, records(120) + "Traceback (most recent call last):\n  f()\n" + words)
    assert table.step.tolist()[-1] == 123
    assert column(table, "covered_steps")[-1] == 1


def test_a_count_that_cannot_be_the_next_is_no_step(tmp_path: Path) -> None:
    words = "ValueError: loss is nan at step 7 of the epoch\n"
    assert read(tmp_path, records(120) + words).step.tolist()[-1] == 130


@pytest.mark.parametrize(
    "text",
    [
        records(50) + "Loss is nan, stopping training\n" + records(100, first=60),
        records(100) + "loss is nan, skipping the batch after an error\n",
        records(100) + "Error: eval loss is nan\n",
        records(100) + "Error: val loss is nan\n",
        records(100) + "the loss is finite, stopping\n",
        records(100) + "Stopped.\n",
    ],
)
def test_what_was_survived_or_is_no_training_loss_adds_nothing(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, text)
    assert table.step.tolist()[-1] == 100
    assert not ends_bad(table)


def test_a_loss_that_is_logged_as_nan_says_enough(tmp_path: Path) -> None:
    text = records(100) + "step 110 loss nan lr 0.01\nLoss is nan, stopping training\n"
    assert read(tmp_path, text).step.tolist()[-1] == 110


def test_the_report_tells_it(tmp_path: Path) -> None:
    from forensics.diagnose.engine import diagnose

    path = tmp_path / "it.log"
    path.write_text(records(120) + "Loss is nan, stopping training\n")
    (finding, *_) = diagnose(load_run(path)).findings
    assert finding.rule == "nonfinite-loss"
    assert (finding.earliest_step, finding.first_step) == (121, 130)

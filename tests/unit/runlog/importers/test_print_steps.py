"""Where a loop's prints tell their steps: above them, in front, behind a name, in a bar."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.runlog.log_facts import PER_EPOCH, EpochCount
from forensics.runlog.run import load_run
from forensics.runlog.scanner.printed_counts import UNNUMBERED
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.logs import column, read, same


def of_prints(tmp_path: Path, text: str) -> StepTable:
    table = read(tmp_path, text)
    assert table.source_format == "print-lines"
    return table


def notes_of(table: StepTable) -> tuple[str, ...]:
    assert table.facts is not None
    return table.facts.notes


@pytest.mark.parametrize(
    "shape",
    [
        "========= Step {n}/100 =========\n  • Loss: {x}\n  • Avg Reward: 0.31\n",
        "   --> TIME: now -- STEP: 5/99 -- GLOBAL_STEP: {n}\n     | > loss: {x}  (1.2)\n",
        "I0101 10:00:00.123 140 writer.py:48] [{n}] accuracy=0.5, loss={x}\n",
        "[{n}]\ttrain-logloss:{x}\teval-logloss:0.5\n",
        "2024-02-03 08:08:56,118 INFO     iteration {n}/1000\nINFO     loss={x}, entropy=7.5\n",
        "Train loss {n} {x} Grad Norm 1.234567 3.45s/it\n",
        "2020-12-22 08:05:25,238-INFO: iter: {n}, lr: 0.01, 'loss': '{x}', eta: 1:02:43\n",
    ],
)
def test_the_step_is_found_wherever_it_stands(tmp_path: Path, shape: str) -> None:
    steps = list(range(10, 121, 10))
    losses = ["2.5", "2.25", "0.125", "nan", "3.5", "1e-1"] * 2
    text = "".join(shape.format(n=n, x=x) for n, x in zip(steps, losses, strict=True))
    table = of_prints(tmp_path, text)
    assert table.step.tolist() == steps
    assert same(column(table, "loss"), [float(x) for x in losses])


def test_the_norm_behind_a_counted_loss_is_read(tmp_path: Path) -> None:
    text = "".join(f"Train loss {n} {3 - n / 10:.6f} Grad Norm 1.25 3.45s/it\n" for n in range(9))
    table = of_prints(tmp_path, text)
    assert table["grad_l2_pre_clip"].tolist() == [1.25] * 9


def test_parts_of_a_loss_below_a_step_are_not_the_loss(tmp_path: Path) -> None:
    block = (
        "--> STEP: 1/9 -- GLOBAL_STEP: {n}\n | > decoder_loss: 0.7  (0.7)\n | > loss: {x}  (1)\n"
    )
    table = of_prints(tmp_path, "".join(block.format(n=25 * n, x=3 - n / 8) for n in range(1, 13)))
    assert table.step.tolist() == list(range(25, 301, 25))
    assert table["loss"][0] == 2.875


def test_a_bar_of_keras_3_counts_within_its_epoch(tmp_path: Path) -> None:
    bar = "\r\x1b[1m{b}/10\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m1s\x1b[0m 2ms/step"
    text = "".join(
        f"Epoch {e}/3\n"
        + "".join(bar.format(b=b) + f" - loss: {4 - e}.{10 - b}" for b in (1, 5))
        + bar.format(b=10)
        + f" - loss: {4 - e}.0 - val_loss: 2.5\n"
        for e in (1, 2, 3)
    )
    table = of_prints(tmp_path, text)
    assert table.step.tolist() == [1, 5, 10, 11, 15, 20, 21, 25, 30]
    assert same(column(table, "val_loss")[:3], [None, None, 2.5])


def test_metrics_below_a_title_of_a_validation_are_its_own(tmp_path: Path) -> None:
    text = "".join(
        f"INFO: Epoch {e} - elapsed: 12.3 - train metrics:\n\tAccuracy: 0.5\n\tLoss: {3 - e / 10}\n"
        f"INFO: Epoch {e} - elapsed: 2.3 - Test metrics:\n\tAccuracy: 0.5\n\tLoss: {4 - e / 10}\n"
        for e in range(1, 13)
    )
    table = of_prints(tmp_path, text)
    assert table.step.tolist() == list(range(1, 13))
    assert table.facts is not None
    assert table.facts.unit == PER_EPOCH
    assert same(column(table, "loss")[:2], [2.9, 2.8])
    assert same(column(table, "val_loss")[:2], [3.9, 3.8])


def test_bars_that_are_printed_at_their_end_alone_are_counted(tmp_path: Path) -> None:
    bar = "Train epoch [1/1]: 100%|####| 16/16 [00:30<00:00,  1.9s/it, act_loss={x}, reward=0.3]\n"
    table = of_prints(tmp_path, "".join(bar.format(x=n / 100) for n in range(1, 13)))
    assert table.step.tolist() == list(range(1, 13))
    assert UNNUMBERED in notes_of(table)
    assert table["loss"][-1] == 0.12


def test_a_number_in_brackets_that_never_moves_is_no_step(tmp_path: Path) -> None:
    text = "".join(f"[4711] loss={3 - n / 10:.2f}, lr=0.1\n" for n in range(12))
    table = of_prints(tmp_path, text)
    assert len(table) == 12


def test_a_loss_in_one_word_with_its_number_stays_one(tmp_path: Path) -> None:
    """Two numbers behind a name are a step and a loss only where nothing else counts."""
    text = "".join(f"step {n} loss 2 0.{n:02}\n" for n in range(10, 22))
    table = of_prints(tmp_path, text)
    assert table.step.tolist() == list(range(10, 22))


def test_one_step_of_several_processes_stays_one(tmp_path: Path) -> None:
    table = of_prints(tmp_path, "".join(f"step 7/90 loss 2.5{rank}\n" for rank in range(8)))
    assert table.step.tolist() == [7]


def test_a_count_in_brackets_goes_before_a_number_behind_the_loss(tmp_path: Path) -> None:
    text = "".join(f"[{n}/90] loss 5 0.25\n" for n in range(1, 9))
    assert of_prints(tmp_path, text).step.tolist() == list(range(1, 9))


@pytest.mark.parametrize(
    ("batches", "last", "told"),
    [
        (range(0, 60, 10), 50, "epoch 3, 20 of 60"),  # from 0, as PyTorch's examples do
        (range(10, 61, 10), 60, "epoch 3, 20 of 60"),
        (range(0, 61, 20), 60, ""),  # the last of an epoch is the 0 of the next
    ],
)
def test_a_step_that_is_numbered_through_is_told_as_the_log_counts(
    tmp_path: Path, batches: range, last: int, told: str
) -> None:
    text = "".join(
        f"Train Epoch: {epoch} [{at}/60 ({at * 100 // 60}%)]\tLoss: "
        f"{'nan' if (epoch, at) >= (3, 20) else 2.0 + at / 1000}\n"
        for epoch in range(1, 5)
        for at in batches
    )
    table = of_prints(tmp_path, text)
    assert table.facts is not None
    count = table.facts.epoch_count
    assert (count.told(140) if count else "") == told
    report = diagnose(load_run(tmp_path / "it.log"))
    words = f"In the log's own count step 140 is {told}."
    assert (words in report.verdict.summary) == bool(told)
    if count:
        assert count.told(60 + last) == f"epoch 2, {last} of 60"


def test_the_first_epoch_of_the_count_need_not_be_the_first() -> None:
    assert EpochCount(7, 100, from_zero=True).told(100) == "epoch 8, 0 of 100"
    assert EpochCount(7, 100, from_zero=False).told(100) == "epoch 7, 100 of 100"
    assert EpochCount(1, 60_000, from_zero=True).told(92_000) == "epoch 2, 32,000 of 60,000"

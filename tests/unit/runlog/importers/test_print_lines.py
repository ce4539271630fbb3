"""What loops print of themselves, each in its own words; and prose, which is no log."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forensics.errors import InputError
from forensics.runlog.importers.detect import detect
from forensics.runlog.run import load_run
from forensics.runlog.scanner.printed_counts import ANEW, UNNUMBERED, Count, numbered
from forensics.runlog.scanner.source import head_of
from forensics.runlog.steps import StepTable


def table_of(tmp_path: Path, lines: list[str], end: str = "\n") -> StepTable:
    path = tmp_path / "train.out"
    path.write_text(end.join(lines) + end)
    table = load_run(path).steps
    assert table.source_format == "print-lines"
    return table


@pytest.mark.parametrize(
    "shape",
    [
        "step {n} loss {x} lr 0.001",
        "step {n}: loss={x}, lr=1e-3",
        "2026-01-02 03:04:05 INFO step {n}/500 train loss = {x} lr: 0.001",
        "[{n}/500] Loss: {x} LR: 0.001",
        "Epoch 1 [{n:>4}/1000] Loss: {x} (lr 0.001)",
        "Iteration {n} | train_loss {x} | lr 0.001",
        "Training:  3%|##  | {n}/500 [00:10<00:20,  9.87it/s, lr=0.001, loss={x}]",
    ],
)
def test_named_numbers_are_read_with_their_steps(tmp_path: Path, shape: str) -> None:
    steps = [0, 10, 20, 30, 40]
    losses = ["2.5", "2.25", "1e-1", "nan", "-3"]
    lines = [shape.format(n=n, x=x) for n, x in zip(steps, losses, strict=True)]
    table = table_of(tmp_path, ["Loading 3 files, loss is cross entropy", *lines, "done"])
    assert table.step.tolist() == steps
    assert table["loss"][[0, 1, 2, 4]].tolist() == [2.5, 2.25, 0.1, -3.0]
    assert math.isnan(table["loss"][3])
    assert table.present("loss").all()
    assert set(table["lr"].tolist()) == {0.001}


def test_a_bar_that_redraws_itself_is_read(tmp_path: Path) -> None:
    bars = [
        f"{n}%|#{' ' * (9 - n)}| {n}/9 [00:0{n}<?, ?it/s, loss={3 - n / 9:.3g}]" for n in range(9)
    ]
    table = table_of(tmp_path, bars, end="\r")
    assert table.step.tolist() == list(range(9))


def test_batches_of_known_epochs_are_numbered_through(tmp_path: Path) -> None:
    lines = [
        f"Epoch {e}, batch {b}/4: train loss = {9 - e}.{b}" for e in (1, 2) for b in range(1, 5)
    ]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert table["loss"][4] == 7.1


def test_batches_of_epochs_whose_length_is_not_told_are_counted_and_it_is_said(
    tmp_path: Path,
) -> None:
    lines = [f"Epoch {e}, batch {b}: train loss = {9 - e}.{b}" for e in (1, 2) for b in range(3)]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [1, 2, 3, 4, 5, 6]
    assert table.facts is not None
    assert table.facts.notes == (ANEW,)


def test_a_line_an_epoch_counts_epochs_and_the_validation_is_kept_apart(tmp_path: Path) -> None:
    table = table_of(tmp_path, [f"Epoch {e}: loss={9 - e}.5 val_loss={e}.25" for e in range(1, 6)])
    assert table.facts is not None
    assert (table.facts.unit, table.step.tolist()) == ("epoch", [1, 2, 3, 4, 5])
    assert table["loss"].tolist() == [8.5, 7.5, 6.5, 5.5, 4.5]
    assert table["val_loss"].tolist() == [1.25, 2.25, 3.25, 4.25, 5.25]


def test_losses_alone_are_numbered_and_it_is_said(tmp_path: Path) -> None:
    table = table_of(tmp_path, [f"loss: {3 - i / 20:.2f}" for i in range(12)])
    assert table.step.tolist() == list(range(1, 13))
    assert table.facts is not None
    assert table.facts.notes == (UNNUMBERED,)


def test_a_restart_stays_one() -> None:
    counts = [Count(None, n, None) for n in (10, 20, 30, 20, 30)]
    assert numbered(counts).steps == [10, 20, 30, 20, 30]


def test_bars_that_begin_anew_are_numbered_through() -> None:
    counts = [Count(None, n, 3) for n in (1, 2, 3, 1, 2, 3)]
    assert numbered(counts).steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "text",
    [
        "At step 10 the loss 2.1 looked fine. We then tried lr 0.001 and it broke.\n",
        "In epoch 3 we saw a loss of 2.5, while epoch 4 gave loss 2.4 on two machines.\n"
        "After step 7 loss 3 was all we had; nobody knew why.\n",
        "def train():\n    loss = 0\n    step = 1\n    for batch in data:\n        loss += 1\n",
        "| method | loss | step |\n| ours | 2.1 | 10 |\n| theirs | 2.3 | 20 |\n",
        "The loss was 2.1.\n" * 30,
    ],
)
def test_prose_is_no_log(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text + "Nothing else was said of it.\n" * 30)
    assert detect(head_of(path)) is None
    with pytest.raises(InputError):
        load_run(path)

"""What loops print of themselves, each in its own words; and prose, which is no log."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
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
    assert table.step.tolist() == [0, 1, 2, 3, 4, 5]
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


@pytest.mark.parametrize(
    "epoch", ["[{e}/90][{n:>4}/500]", "[{e}] [{n}/500]", "[{e}/90], [{n}/500]"]
)
def test_batches_in_nested_counters_are_not_merged(tmp_path: Path, epoch: str) -> None:
    lines = [
        f"INFO Train: {epoch.format(e=e, n=n)}\tlr 0.1\tloss {9 - e}.{n} (8.0)\tmem 14MB"
        for e in (3, 4)
        for n in range(0, 500, 100)
    ]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [100 * n for n in range(10)]
    assert table["loss"][5] == 5.0


def test_the_step_of_the_whole_run_goes_before_one_within(tmp_path: Path) -> None:
    lines = [
        f"inner iter: {n % 4}/ 4 | global iter: {n:>6}/ 500| tot_loss: {n}.5 | rl_loss: 0.1"
        for n in range(8, 20)
    ]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == list(range(8, 20))
    assert table["loss"][0] == 8.5


def test_headings_tell_the_epoch_of_the_lines_below_them(tmp_path: Path) -> None:
    lines = []
    for epoch in (1, 2, 3):
        lines += [f"Epoch {epoch}/3", "-" * 10]
        lines += [f"iter: {n}, loss: {4 - epoch}.{n}" for n in (20, 40, 60)]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [20, 40, 60, 80, 100, 120, 140, 160, 180]
    assert not table.earlier


def test_lines_before_the_first_heading_are_of_the_epoch_before(tmp_path: Path) -> None:
    lines = [f"iter: {n}, loss: 2.{n}" for n in (20, 40)]
    lines += ["Epoch 1/2 took 9 s", *(f"iter: {n}, loss: 1.{n}" for n in (20, 40))]
    assert table_of(tmp_path, lines).step.tolist() == [20, 40, 60, 80]


@pytest.mark.parametrize(
    "validation",
    [
        "Epoch {e} [{n}/4] Test Loss: {x}",
        "Validation: Epoch {e} [{n}/4] loss: {x}",
        "[valid] epoch {e}, {n}/4: loss = {x}",
        "Epoch {e} average val loss: {x}",
    ],
)
def test_a_validation_is_no_training_step(tmp_path: Path, validation: str) -> None:
    lines = []
    for epoch in range(1, 5):
        lines += [f"Epoch {epoch} [{n}/4] Loss: {5 - epoch}.{n}" for n in (2, 4)]
        lines.append(validation.format(e=epoch, n=4, x=f"{9 - epoch}.0"))
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [2, 4, 6, 8, 10, 12, 14, 16]
    assert table["loss"].tolist() == [4.2, 4.4, 3.2, 3.4, 2.2, 2.4, 1.2, 1.4]
    assert table["val_loss"][1::2].tolist() == [8.0, 7.0, 6.0, 5.0]


def test_a_line_an_epoch_sums_up_what_its_batches_told(tmp_path: Path) -> None:
    lines = []
    for epoch in range(1, 4):
        lines += [f"Epoch [{epoch}/3], Step [{n}/40], Loss: {n}.5" for n in (10, 20, 30, 40)]
        lines.append(f"Epoch {epoch} done: train loss: 25.5, val loss: {epoch}.25")
    table = table_of(tmp_path, lines)
    assert len(table) == 12
    assert table["loss"].tolist() == [10.5, 20.5, 30.5, 40.5] * 3
    assert table["val_loss"][3::4].tolist() == [1.25, 2.25, 3.25]


def test_the_bars_of_keras_are_lines_of_one_shape(tmp_path: Path) -> None:
    lines = []
    for epoch in (1, 2):
        lines.append(f"Epoch {epoch}/2")
        for n in range(1, 11):
            bar = "=" * n + ">" + "." * (10 - n)
            lines.append(f"{n:>3}/10 [{bar}] - ETA: {10 - n}s - loss: {3 - epoch}.{n}")
    assert table_of(tmp_path, lines).step.tolist() == list(range(1, 21))


def test_a_bar_that_begins_anew_shows_what_the_last_ended_with(tmp_path: Path) -> None:
    lines = [
        f"Epoch {e}: {n * 10}%|##| {n}/10 [00:01<00:02, 9.0it/s, loss={3 - e}.{n}]"
        for e in (0, 1)
        for n in range(0, 11, 2)
    ]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    assert table["loss"][6] == 2.2


def test_a_name_may_have_a_remark(tmp_path: Path) -> None:
    lines = [f"iter {n} | step {n // 4}: loss train (curr): {n}.5, val: None" for n in range(1, 9)]
    assert table_of(tmp_path, lines)["loss"][0] == 1.5


def test_lines_of_parts_beside_those_that_count_are_no_rows(tmp_path: Path) -> None:
    lines = []
    for n in range(0, 200, 10):
        lines += [f"epoch:0 || iter:{n} || Loss:{30 - n / 10}", f"->> conf loss:{n}.5"]
        lines.append("->> box loss:4.25")
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == list(range(0, 200, 10))
    assert table["loss"][:3].tolist() == [30.0, 29.0, 28.0]


def test_lines_below_a_validations_heading_are_its_own(tmp_path: Path) -> None:
    def batches(of: int, more: str = "") -> list[str]:
        return [f"batch count: {n}/{of}, iter: {n}, loss: {of}.{n}{more}" for n in (10, 20, 30)]

    lines = []
    for epoch in (1, 2):
        lines += [f"Training at epoch {epoch}", *batches(31, ", aux: 9.5")]
        lines += [f"[2023-03-10 19:58:38] Validation at epoch {epoch}", *batches(32)]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [10, 20, 30, 40, 50, 60]
    assert table["loss"].tolist() == [31.1, 31.2, 31.3] * 2
    assert table["val_loss"][2] == 32.1


def test_a_heading_of_a_validation_that_prints_nothing_hides_no_training(tmp_path: Path) -> None:
    lines = []
    for epoch in (1, 2, 3):
        lines += [f"iter {n}/30, loss: {4 - epoch}.{n}" for n in (10, 20, 30)]
        lines.append("Validation done")
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == list(range(10, 100, 10))
    assert "val_loss" not in table


def test_words_and_colons_of_chinese_tutorials(tmp_path: Path) -> None:
    lines = []
    for epoch in range(12):
        lines += [f"训练次数：{100 * (2 * epoch + n)}, Loss：{2.5 - epoch / 20}" for n in (1, 2)]
        lines.append(f"整体测试集上的Loss: {262.5 - epoch}")
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == list(range(100, 2500, 100))
    assert table["loss"][0] == 2.5
    assert table["val_loss"][1] == 262.5


def test_cells_that_only_blanks_part_are_no_table_of_bars(tmp_path: Path) -> None:
    lines = [f"Step {n} | loss:{n}.25 lr:2e-05 tokens:9 grad_norm:0.75" for n in range(1, 9)]
    table = table_of(tmp_path, lines)
    assert table["loss"][:2].tolist() == [1.25, 2.25]
    assert table["grad_l2_pre_clip"].tolist() == [0.75] * 8
    assert table["lr"].tolist() == [2e-5] * 8


def test_a_percentage_is_no_step(tmp_path: Path) -> None:
    lines = [
        f"Steps:   1%|1    | {n}/900 [00:09<16:00,  9.70s/it, loss={3 - n / 90:.2f}, lr=1e-6]"
        for n in range(1, 9)
    ]
    assert table_of(tmp_path, lines).step.tolist() == list(range(1, 9))


def test_a_bar_that_is_full_at_the_end_of_each_epoch_tells_epochs(tmp_path: Path) -> None:
    lines = []
    for epoch in range(40, 50):
        lines += [f"Epoch {epoch}/90", f"6/6 [======] - 186s 31s/step - loss: {90 - epoch}.5"]
    table = table_of(tmp_path, lines)
    assert table.facts is not None
    assert (table.facts.unit, table.step.tolist()) == ("epoch", list(range(40, 50)))


def test_parts_of_a_loss_alone_are_no_log(tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    parts = ("gen", "kl", "feat", "mel")
    path.write_text("".join(f" | > loss_{part}: {n}.5\n" for n in range(20) for part in parts))
    assert detect(head_of(path)) is None


def test_the_pair_in_front_of_a_tutorials_line_is_epoch_and_batch(tmp_path: Path) -> None:
    lines = [f"[{e}, {n:>5}] loss: {3 - e}.{n}" for e in (1, 2) for n in (2000, 4000, 6000)]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [2000, 4000, 6000, 8000, 10000, 12000]
    assert table["loss"][3] == 1.2


def test_a_validation_that_is_worded_as_the_training_is_told_by_what_it_counts_to(
    tmp_path: Path,
) -> None:
    lines = []
    for epoch in (0, 1, 2):
        for of, level in ((50, 3), (20, 7)):
            lines += [f"Epoch: [{epoch}][{n}/{of}]\tLoss {level}.{n}" for n in range(0, of, 10)]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == list(range(0, 150, 10))
    assert table["loss"].max() < 4
    assert table["val_loss"][4] == 7.0
    assert not table.earlier


def test_a_batch_that_counts_to_no_end_follows_the_epoch(tmp_path: Path) -> None:
    """WeNet's ``Batch 4/200``, which each rank prints, with the CV's among them."""
    lines = [
        f"2023-01-30 18:47:0{rank},107 DEBUG TRAIN Batch {epoch}/{batch} "
        f"loss {9 - epoch}.{batch} loss_att 10.9 lr 0.0003 rank {rank}"
        for epoch in (0, 1)
        for batch in (0, 100, 200)
        for rank in (0, 1)
    ]
    cv = "2023-01-30 18:49:55,773 DEBUG CV Batch 0/{} loss 28.5 history loss 27.9 rank 0"
    lines[6:6] = [cv.format(batch) for batch in (0, 100, 200)]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [0, 100, 200, 201, 301, 401]
    assert table["loss"].tolist() == [9.0, 9.1, 9.2, 8.0, 8.1, 8.2]
    assert table["val_loss"][table.present("val_loss")].tolist() == [28.5]


def test_a_batch_between_bars_is_of_the_epoch_on_its_line(tmp_path: Path) -> None:
    """Demucs, whose ``Grad`` is the norm of the gradients."""
    lines = [
        line
        for epoch in (1, 2, 3)
        for line in (
            *(
                f"[solver][INFO] - Train | Epoch {epoch} | {at}/9 | 0.89 it/sec | "
                f"Loss 0.{at}1 | Grad 0.{epoch}"
                for at in (3, 6)
            ),
            f"[solver][INFO] - Train Summary | Epoch {epoch} | Loss=0.5 | Grad=0.7",
            f"[solver][INFO] - Valid Summary | Epoch {epoch} | Loss=0.6 | Nsdr=6.4",
        )
    ]
    table = table_of(tmp_path, lines)
    assert table.step.tolist() == [3, 6, 12, 15, 21, 24]
    assert table["grad_l2_pre_clip"].tolist() == [0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    assert table["val_loss"][table.present("val_loss")].tolist() == [0.6, 0.6, 0.6]


def test_lines_whose_units_or_remarks_change_later_are_still_the_loops(tmp_path: Path) -> None:
    fill = "and so on " * 20
    lines = [
        f"step {n} loss {'nan' if n > 3990 else 2.5} eta {eta} mem {mem} {fill}{best}"
        for n in range(1, 4001)
        for eta in ("1 day, 0:12:01" if n < 3500 else "23:59:59",)
        for mem in ("812MB" if n < 3000 else "1.1GB",)
        for best in ("" if n < 3990 else "*best*",)
    ]
    table = table_of(tmp_path, [*lines, "Resumed from step 9000 where the loss was 2.1"])
    assert table.step.tolist() == list(range(1, 4001))
    assert np.isnan(table["loss"]).sum() == 10


def test_a_validation_between_lines_that_count_needs_three_of_its_kind(tmp_path: Path) -> None:
    lines: list[str] = []
    for epoch in range(1, 4):
        for at in range(0, 6400, 640):
            loss = 2.0 / (epoch + at / 6400)
            lines.append(f"Train Epoch: {epoch} [{at}/6400 ({at // 64}%)]\tLoss: {loss:.6f}")
        lines.append(f"Test set: Average loss: {1 / epoch:.4f}, Accuracy: 9000/10000 (90%)")
        lines.append("Best loss so far: 0.0001")
    table = table_of(tmp_path, lines)
    assert len(table) == 30
    told = table.present("val_loss")
    assert table["val_loss"][told].tolist() == pytest.approx([1.0, 0.5, 0.3333])
    assert table.facts is not None
    assert "[640/6400 …] may count samples and not steps, as in PyTorch's examples" in (
        table.facts.notes
    )


@pytest.mark.parametrize("line", ["[{n}/938 ({p}%)]", "[{n}/60000]"])
def test_counts_of_batches_are_steps(line: str, tmp_path: Path) -> None:
    stride = 1 if "%" in line else 640
    counts = [line.format(n=n * stride, p=n) for n in range(1, 40)]
    table = table_of(tmp_path, [f"Train {count} loss: 2.5" for count in counts])
    assert table.facts is not None
    assert not any("samples" in note for note in table.facts.notes)

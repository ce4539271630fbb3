"""Composer, ESPnet, icefall and insightface."""

from __future__ import annotations

from pathlib import Path

from tests.unit.runlog.importers.line_logs import icefall
from tests.unit.runlog.importers.logs import column, read, same

NAN = float("nan")
AT = "[gpu1] 2026-01-02 03:04:05,678 (trainer:762) "


def test_composer_counts_by_its_own_clock(tmp_path: Path) -> None:
    text = "".join(
        f"[epoch={e}][batch={b}/3]:\n\t Train time/epoch: {e}\n"
        f"\t Train time/batch: {3 * e + b - 1}\n"
        f"\t Train loss/train/total: {'nan' if (e, b) == (1, 2) else 2.5}\n"
        f"\t Train l2_norm/grad/global: 1.25\n\t Train lr-DecoupledAdamW/group0: 0.0001\n"
        f"\t Train metrics/train/LanguagePerplexity: 9.5\n"
        for e in (0, 1)
        for b in (1, 2, 3)
    )
    table = read(tmp_path, text)
    assert table.source_format == "composer"
    assert table.step.tolist() == list(range(6))
    assert same(column(table, "loss"), [2.5, 2.5, 2.5, 2.5, NAN, 2.5])
    assert column(table, "grad_l2_pre_clip") == [1.25] * 6
    assert column(table, "lr") == [1e-4] * 6


def test_composer_lines_that_a_console_filled_with_blanks(tmp_path: Path) -> None:
    text = "".join(
        f"[batch={b}/90]:{' ' * 40}\n\t Train time/batch: {b - 1}{' ' * 20}\n"
        f"\t Train loss/train/total: {b}.5   \n\t Train metrics/train/LanguageCrossEntropy: 0.25\n"
        for b in range(1, 5)
    )
    table = read(tmp_path, text)
    assert table.source_format == "composer"
    assert column(table, "loss") == [1.5, 2.5, 3.5, 4.5]


def espnet(epoch: int, first: int, last: int, norm: str = "12.5") -> str:
    return (
        f"{AT}INFO: {epoch}epoch:train:{first}-{last}batch: iter_time=0.1, loss_ctc=9.5, "
        f"loss=2.5, grad_norm={norm}, clip=100.000, loss_scale=1.024e+03, optim0_lr0=1.0e-05\n"
    )


def test_espnet_goes_on_from_epoch_to_epoch_and_brackets_its_skips(tmp_path: Path) -> None:
    skip = f"{AT}WARNING: The grad norm is nan. Skipping updating the model.\n"
    text = espnet(1, 1, 10) + skip + skip + espnet(1, 11, 20, "nan")
    table = read(tmp_path, text + espnet(2, 1, 10) + skip + espnet(2, 11, 20))
    assert table.source_format == "espnet"
    assert table.step.tolist() == [10, 20, 30, 40]
    brackets = [(b.first_step, b.last_step, b.count) for b in table.skip_brackets]
    assert brackets == [(11, 20, 2), (31, 40, 1)]
    assert same(column(table, "grad_l2_pre_clip"), [12.5, NAN, 12.5, 12.5])
    assert column(table, "scaler_scale") == [1024.0] * 4


def test_icefall_takes_the_batch_and_not_the_running_loss(tmp_path: Path) -> None:
    text = "".join(
        f"2026-01-02 03:04:05,678 INFO [train.py:898] (0/4) Epoch {e}, batch {b}, loss[loss="
        f"{e}.25, simple_loss=9.5, over 12.00 frames. ], tot_loss[loss=7.5, over 9.00 frames. ], "
        f"batch size: 30, lr: 4.50e-02, grad_scale: 0.0078125\n"
        for e in (1, 2)
        for b in (0, 50, 100)
    )
    table = read(tmp_path, text)
    assert table.source_format == "icefall"
    assert table.step.tolist() == [0, 50, 100, 101, 151, 201]
    assert column(table, "loss") == [1.25] * 3 + [2.25] * 3
    assert column(table, "scaler_scale")[0] == 0.0078125


def test_insightface_rounds_a_small_scale_to_nothing(tmp_path: Path) -> None:
    text = "".join(
        f"Training: 2026-01-02 03:04:05,678-Speed 3000.12 samples/sec   Loss 41.5   "
        f"LearningRate 0.100000   Epoch: 0   Global Step: {s}   Fp16 Grad Scale: {g}   "
        "Required: 2 h\n"
        for s, g in ((100, 2), (200, 1), (300, 0))
    )
    table = read(tmp_path, text)
    assert table.source_format == "insightface"
    assert table.step.tolist() == [100, 200, 300]
    assert column(table, "scaler_scale") == [2.0, 1.0, 0.25]
    assert table.facts is not None
    assert any("below 0.5" in note for note in table.facts.notes)


def test_icefalls_ranks_warn_of_the_same_small_scale(tmp_path: Path) -> None:
    small = "2024-01-14 WARNING [train.py:9] ({}/2) Grad scale is small: {}\n"
    text = "".join(icefall(b) for b in (0, 50, 100))
    text += "".join(small.format(rank, scale) for scale in (1e-4, 1e-5) for rank in (0, 1))
    table = read(tmp_path, text + "RuntimeError: grad_scale is too small, exiting: 1e-05\n")
    assert table.step.tolist() == [0, 50, 100, 101, 102]
    assert column(table, "scaler_scale")[3:] == [1e-4, 1e-5]


def test_icefall_warns_of_a_small_scale_and_validates(tmp_path: Path) -> None:
    text = "".join(icefall(b) for b in (0, 50))
    text += "2022 INFO [train.py:861] (0/8) Epoch 1, validation: loss=2.5, simple_loss=2.4\n"
    text += icefall(100)
    text += "".join(
        f"2022 WARNING [train.py:900] (0/8) Grad scale is small: {2.0**-k}\n" for k in (7, 8)
    )
    table = read(tmp_path, text + "RuntimeError: grad_scale is too small, exiting: 1e-05\n")
    assert table.step.tolist() == [0, 50, 100, 101, 102, 103]
    assert column(table, "val_loss")[1] == 2.5
    assert column(table, "scaler_scale") == [1.0, 1.0, 1.0, 2.0**-7, 2.0**-8, 1e-5]


def test_espnet_validates_and_ends_with_skipped_updates(tmp_path: Path) -> None:
    skip = "[gpu1] 2026 (trainer:698) WARNING: The grad norm is inf. Skipping updating the model.\n"
    text = espnet(1, 1, 100) + espnet(1, 101, 200)
    text += "[gpu1] 2026 (trainer:338) INFO: 1epoch results: [train] loss=90, time=1 minute, "
    text += "[valid] loss_ctc=3.0, loss=81.5, acc=0.5, time=2 seconds\n"
    table = read(tmp_path, text + espnet(2, 1, 100) + skip * 3)
    assert table.step.tolist() == [100, 200, 300, 303]
    assert column(table, "val_loss")[1] == 81.5
    assert column(table, "skipped_steps") == [0, 0, 0, 3]
    assert column(table, "covered_steps") == [100, 100, 100, 3]

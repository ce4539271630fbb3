"""mmcv and mmengine, the MetricLogger, NeMo and kohya: lines of trainers and their bars."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forensics.runlog.log_facts import PER_EPOCH, Meaning
from tests.unit.runlog.importers.logs import column, read, same
from tests.unit.runlog.importers.samples import lines_of

NAN = float("nan")
MMCV = "2026-01-02 03:04:05,678 - mmseg - INFO - "


def test_iterations_that_restart_in_every_epoch_go_on(tmp_path: Path) -> None:
    text = "".join(
        f"{MMCV}Epoch [{e}][{i}/25]\tlr: 1.000e-03, eta: 1 day, 2:03:04, loss_cls: 0.1, "
        f"loss: 2.5, grad_norm: {'nan' if (e, i) == (2, 10) else 1.5}\n"
        for e in (1, 2)
        for i in (10, 20)
    )
    table = read(tmp_path, text + f"{MMCV}Epoch(val) [2][13]\tbbox_mAP: 0.4590\n")
    assert table.source_format == "openmmlab-text"
    assert table.step.tolist() == [10, 20, 35, 45]
    assert same(column(table, "grad_l2_pre_clip"), [1.5, 1.5, NAN, 1.5])
    assert table.facts is not None
    assert table.facts.meanings["grad_l2_pre_clip"] is Meaning.MEAN


def test_iteration_based_and_newer_lines(tmp_path: Path) -> None:
    old = "".join(
        f"{MMCV}Iter [{i}/400]\tlr: 1.000e-03, eta: 0:01:02, loss: 2.5\n" for i in (50, 100)
    )
    new = "".join(
        f"01/02 03:04:05 - mmengine - INFO - Epoch(train)  [1][ {i}/100]  base_lr: 9.0e-01 lr: "
        f"1.0000e-03  eta: 0:01:02  time: 0.1  grad_norm: 3.5000  loss: 2.5000  loss_cls: 1.0\n"
        for i in (50, 100)
    )
    for text in (old, new):
        table = read(tmp_path, text)
        assert table.step.tolist() == [50, 100]
        assert column(table, "loss") == [2.5, 2.5]
        assert column(table, "lr") == [1e-3, 1e-3]


def test_mmcv_json_restarts_and_its_validation_belongs_to_the_record_before(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [{"env_info": "x", "seed": 0}]
    for e in (1, 2):
        records += [
            {"mode": "train", "epoch": e, "iter": i, "lr": 0.1, "loss": 2.5} for i in (10, 20, 30)
        ]
        records.append({"mode": "val", "epoch": e, "iter": 7, "lr": 0.1, "mIoU": e / 10})
    table = read(tmp_path, lines_of(records))
    assert table.step.tolist() == [10, 20, 30, 40, 50, 60]
    assert column(table, "mIoU") == [None, None, 0.1, None, None, 0.2]
    assert table.facts is not None
    assert "30 iterations" in table.facts.notes[0]


def test_mmengine_json_whose_validation_is_numbered_by_epochs(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [
        {"lr": 0.1, "data_time": 0.1, "loss": 2.5, "time": 0.5, "epoch": 1, "step": s}
        for s in range(1, 40)
    ]
    records.append({"coco/bbox_mAP": 0.25, "data_time": 0.1, "time": 0.2, "step": 1})
    table = read(tmp_path, lines_of(records))
    assert table.source_format == "openmmlab-json"
    assert table.step.tolist() == list(range(1, 40))
    assert column(table, "coco/bbox_mAP")[-1] == 0.25
    assert column(table, "coco/bbox_mAP")[0] is None


def metric_line(epoch: int, done: int, norm: str, mean: str) -> str:
    return (
        f"Epoch: [{epoch}]  [{done:4}/100]  eta: 0:00:09  lr: 0.001  min_lr: 0.5  loss: 2.5000 "
        f"(2.6000)  loss_scale: 8192.0000 (8646.0600)  grad_norm: {norm} ({mean})  time: 0.4\n"
    )


def test_a_mean_that_turns_nan_dates_the_bad_step_to_one_row(tmp_path: Path) -> None:
    text = metric_line(0, 80, "0.4", "nan") + metric_line(1, 0, "0.4", "0.4")
    text += metric_line(1, 20, "0.5", "nan") + metric_line(1, 40, "0.6", "nan")
    table = read(tmp_path, text + "Averaged stats: lr: 0.001  loss: 9.0 (9.0)\n")
    assert table.step.tolist() == [80, 100, 120, 140]
    assert same(column(table, "grad_l2_pre_clip"), [0.4, 0.4, NAN, 0.6])
    assert column(table, "scaler_scale") == [8192.0] * 4
    assert column(table, "lr") == [0.001] * 4
    assert table.facts is not None
    assert table.facts.step_base == 0
    assert any("read as NaN" in note for note in table.facts.notes)


def test_detr_lines_without_means(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch: [0]  [{i}/50]  eta: 0:01:02  lr: 0.000100  class_error: 95.45  loss: 46.6053\n"
        for i in (0, 10, 20)
    )
    assert read(tmp_path, text).step.tolist() == [0, 10, 20]


def test_a_line_an_epoch(tmp_path: Path) -> None:
    records = [{"train_lr": 0.1, "train_loss": 2.5, "test_loss": 3.0, "epoch": e} for e in (0, 1)]
    table = read(tmp_path, lines_of([{**r, "test_acc1": 5.0, "n_parameters": 7} for r in records]))
    assert table.source_format == "metric-logger-json"
    assert table.step.tolist() == [0, 1]
    assert column(table, "val_loss") == [3.0, 3.0]
    assert table.facts is not None
    assert table.facts.unit == PER_EPOCH


def nemo_line(step: int, validation: float) -> str:
    return (
        f"Training epoch 0, iteration {step}/149 | lr: 3e-05 | global_step: {step} | "
        f"reduced_train_loss: 1.25 | train_step_timing in s: 0.03 | val_loss: {validation}\n"
    )


def test_a_validation_that_is_repeated_is_taken_where_it_changes(tmp_path: Path) -> None:
    text = "".join(nemo_line(s, 4.5 if s < 3 else 4.0) for s in range(6))
    assert column(read(tmp_path, text), "val_loss") == [None, None, None, 4.0, None, None]


def test_states_of_a_nemo_bar_that_were_copied_into_one_line(tmp_path: Path) -> None:
    text = ", ".join(
        f"Epoch 0:   3%|3   | {n + 2}/900 [2:12<76:14, 14.05s/it, loss=nan, v_num=, "
        f"reduced_train_loss={n}.5, gradient_norm=1.25, global_step={n}.0"
        for n in range(1, 9)
    )
    table = read(tmp_path, "Loss=3.9, throughput=19.0, " + text + "\n")
    assert table.source_format == "nemo"
    assert table.step.tolist() == list(range(1, 9))
    assert column(table, "loss")[:3] == [1.5, 2.5, 3.5]
    assert column(table, "grad_l2_pre_clip") == [1.25] * 8


def test_the_nan_of_a_nemo_bar_is_not_the_loss(tmp_path: Path) -> None:
    text = "".join(
        f"\rEpoch 0: :   2%|2  | {s}/100 [00:05<04:10, loss=nan, v_num=3, "
        f"reduced_train_loss=2.50, global_step={s}.0, consumed_samples=8.0]"
        for s in range(4)
    )
    table = read(tmp_path, text + "\n")
    assert table.source_format == "nemo"
    assert column(table, "loss") == [2.5] * 4


def test_kohya_takes_the_average_of_its_bar(tmp_path: Path) -> None:
    text = "".join(
        f"\rsteps:   1%|1  | {s}/744 [00:30<36:53,  3.02s/it, avr_loss={'nan' if s > 2 else 0.125}]"
        for s in range(1, 5)
    )
    table = read(tmp_path, text)
    assert np.isnan(table["loss"]).tolist() == [False, False, True, True]
    assert table.facts is not None
    assert table.facts.planned_steps == 744
    assert table.facts.meanings["loss"] is Meaning.SMOOTHED


def test_iterations_of_an_epoch_are_found_in_any_order_of_keys(tmp_path: Path) -> None:
    """The usual order is read without parsing; both ways tell how long an epoch is."""
    records = [
        {"mode": mode, "epoch": epoch, "iter": n, "lr": 0.1, "loss": 2.5, "time": 1, "data_time": 1}
        for epoch in (1, 2)
        for mode, n in (("train", 50), ("train", 100), ("val", 7))
    ]
    backwards = [dict(reversed(record.items())) for record in records]
    env = '{"env_info": "x"}\n'
    for lines in (records, backwards):
        table = read(tmp_path, env + lines_of(lines))
        assert table.source_format == "openmmlab-json"
        assert table.step.tolist() == [50, 100, 150, 200]

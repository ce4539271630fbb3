"""Lightning, Keras, Ultralytics, Weights & Biases and plain CSV files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import InputError
from forensics.runlog.foreign_logs import read_foreign
from forensics.runlog.log_facts import PER_EPOCH
from forensics.runlog.reading import Reading
from tests.unit.runlog.importers.logs import column, read, same
from tests.unit.runlog.importers.samples import lines_of

NAN, INF = float("nan"), float("inf")


def test_lightning_rows_of_one_step_are_put_together(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "epoch,lr-SGD,step,train_loss_epoch,train_loss_step,val_auc,val_loss\r\n"
        "0,,49,,2.5,,\r\n0,0.1,49,,,,\r\n0,,99,,2.0,,\r\n0,,99,,,nan,2.25\r\n0,,99,2.2,,,\r\n",
        name="metrics.csv",
    )
    assert table.source_format == "lightning-csv"
    assert table.step.tolist() == [49, 99]
    assert column(table, "loss") == [2.5, 2.0]
    assert column(table, "lr") == [0.1, None]
    assert column(table, "val_loss") == [None, 2.25]
    assert table["covered_steps"].tolist() == [50, 50]


def test_lightning_header_written_anew_when_a_metric_appears(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "epoch,step,train_loss\n0,0,2.5\n0,1,2.0\nepoch,step,train_loss,val_loss\n0,2,1.5,1.75\n",
    )
    assert column(table, "loss") == [2.5, 2.0, 1.5]
    assert column(table, "val_loss") == [None, None, 1.75]


def test_lightning_of_older_versions_has_epoch_and_step_last(tmp_path: Path) -> None:
    table = read(tmp_path, "train_loss,train_acc,epoch,step\n2.5,0.5,0,49\n2.0,0.6,1,99\n")
    assert table.source_format == "lightning-csv"
    assert table.facts is not None
    assert table.facts.step_base == 0
    assert table["covered_steps"].tolist() == [50, 50]


def test_a_table_of_settings_is_no_log(tmp_path: Path) -> None:
    rows = "".join(f"64,{n},0.0{n},{n}.5\n" for n in range(1, 6))
    with pytest.raises(InputError, match="rows look like experiments"):
        read(tmp_path, "hidden_size,n_layers,learning_rate,total_time\n" + rows)
    with pytest.raises(InputError, match="rows look like experiments"):
        read(tmp_path, lines_of([{"n_layers": n, "learning_rate": 0.5 / n} for n in (1, 2, 3)]))


def test_a_table_of_results_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows look like experiments"):
        read(tmp_path, "Model,train_loss,val_loss\nsmall,2.5,2.6\nbig,2.0,2.2\nwide,1.5,2.0\n")
    with pytest.raises(InputError, match="rows look like experiments"):
        read(tmp_path, lines_of([{"trial": n, "lr": 0.5 / n, "loss": 1.0 / n} for n in (1, 2, 3)]))
    with pytest.raises(InputError, match="rows look like experiments"):
        read(tmp_path, json.dumps([{"trial": n, "loss": 1.0 / n} for n in (1, 2, 3)], indent=1))
    same_model = read(tmp_path, "model,loss\n" + "".join(f"small,{3.0 / n}\n" for n in (1, 2, 3)))
    assert column(same_model, "loss") == [3.0, 1.5, 1.0]


def test_keras_counts_epochs(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.1,2.5,0.1,2.6\n1,0.2,2.0,NA,NA\n",
        name="training.log",
    )
    assert table.source_format == "keras-csv"
    assert table.step.tolist() == [0, 1]
    assert column(table, "val_loss") == [2.6, None]
    assert table.facts is not None
    assert table.facts.unit == PER_EPOCH
    assert table.interval == 1


def test_ultralytics_padded_from_0_with_an_infinite_validation(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "       epoch,  train/box_loss,  train/cls_loss,  metrics/recall(B),  val/box_loss,"
        "  val/cls_loss,  lr/pg0,  lr/pg1\n"
        "           0,            1.5,             2.0,               0.5,           1.0,"
        "           inf,    0.1,    0.2\n"
        "           1,            1.25,            1.75,              0.5,           1.0,"
        "           nan,    0.1,    0.2\n",
        name="results.csv",
    )
    assert table.source_format == "ultralytics-csv"
    assert column(table, "loss") == [3.5, 3.0]
    assert same(column(table, "val_loss"), [INF, NAN])
    assert column(table, "lr_1") == [0.2, 0.2]
    assert table.facts is not None
    assert table.facts.step_base == 0


def test_ultralytics_compact_from_1_with_a_clock(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "epoch,time,train/box_loss,train/dfl_loss,metrics/mAP50(B),val/box_loss,lr/pg0\n"
        "1,2.5,1.5,0.5,0.1,1.0,0.01\n2,5.0,1.0,0.5,0.2,1.0,0.01\n",
    )
    assert column(table, "loss") == [2.0, 1.5]
    assert column(table, "time_s") == [2.5, 5.0]
    assert table.facts is not None
    assert table.facts.step_base == 1


def test_ultralytics_of_v10_has_two_assignments(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "epoch,train/box_om,train/cls_om,train/box_oo,train/cls_oo,metrics/mAP50(B),val/box_om,"
        "val/cls_oo,lr/pg0\n1,1.0,2.0,1.5,2.5,0.1,1.0,2.0,0.01\n2,0.5,1.0,1.0,1.5,0.2,0.5,1.0,0.01\n",
    )
    assert table.source_format == "ultralytics-csv"
    assert column(table, "loss") == [7.0, 4.0]
    assert column(table, "val_loss") == [3.0, 1.5]


def test_ultralytics_of_one_loss_sums_nothing_up(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "  epoch,  train/loss,  test/loss,metrics/accuracy_top1,  lr/0\n"
        "  0,  2.5,  2.75,  0.5,  0.01\n  1,  2.0,  2.5,  0.6,  0.01\n",
    )
    assert column(table, "loss") == [2.5, 2.0]
    assert column(table, "val_loss") == [2.75, 2.5]
    assert column(table, "lr") == [0.01, 0.01]
    assert table.facts is not None
    assert table.facts.notes == ()


def test_a_table_of_runs_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="table of runs"):
        read(
            tmp_path,
            '"Name","State","Created","Runtime","lr","train/loss"\n'
            '"a-1","finished","2026-01-02","60","0.1","2.5"\n"b-2","failed","x","9","0.1","2.0"\n',
        )


def test_rows_within_an_epoch_are_not_taken_for_keras(tmp_path: Path) -> None:
    table = read(tmp_path, "epoch,batch,loss\n0,0,2.5\n0,1,2.0\n1,0,1.5\n1,1,1.25\n")
    assert table.source_format == "csv"
    assert column(table, "loss") == [2.5, 2.0, 1.5, 1.25]


SCALAR = "Wall time,Step,Value\n1700000000.5,10,2.5\n1700000009.5,20,2.0\n"


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("run-.-tag-train_loss.csv", "loss"),
        ("run-x_version_0-tag-Loss_val (1).csv", "val_loss"),
        ("run-a-tag-grad_norm.csv", "grad_l2_pre_clip"),
    ],
)
def test_a_downloaded_scalar_is_what_its_file_is_called(
    name: str, target: str, tmp_path: Path
) -> None:
    points = "[[1700000000.5, 10, 2.5], [1700000009.5, 20, 2.0]]"
    for text, file in ((SCALAR, name), (points, name.replace(".csv", ".json"))):
        table = read(tmp_path, text, name=file)
        assert table.source_format == "tensorboard-scalar"
        assert table.step.tolist() == [10, 20]
        assert column(table, target) == [2.5, 2.0]


def test_a_downloaded_scalar_by_another_name_has_to_be_mapped(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not say which"):
        read(tmp_path, SCALAR, name="curve.csv")
    table = read(tmp_path, SCALAR, name="curve.csv", mapping={"loss": "Value"})
    assert column(table, "loss") == [2.5, 2.0]


def test_scalars_of_one_run_are_put_side_by_side(tmp_path: Path) -> None:
    loss, norm = tmp_path / "run-a-tag-loss.csv", tmp_path / "run-a-tag-grad_norm.csv"
    loss.write_text(SCALAR)
    norm.write_text(SCALAR.replace("2.5", "0.5"))
    table = read_foreign([loss, norm], Reading())
    assert column(table, "loss") == [2.5, 2.0]
    assert column(table, "grad_l2_pre_clip") == [0.5, 2.0]


def test_wandb_chart_takes_the_metric_and_not_its_extremes(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        '"Step","my - run-1 - train/loss","my - run-1 - train/loss__MIN",'
        '"my - run-1 - train/loss__MAX"\n"10","2.5","2.0","3.0"\n"20","NaN","NaN","NaN"\n',
    )
    assert table.source_format == "wandb-csv"
    assert table.step.tolist() == [10, 20]
    assert same(column(table, "loss"), [2.5, NAN])


def test_wandb_chart_of_two_runs_reads_the_first_and_says_so(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        '"Step","a - loss","a - loss__MIN","a - loss__MAX","b - loss","b - loss__MIN",'
        '"b - loss__MAX"\n"1","2.5","2.5","2.5","9","9","9"\n',
    )
    assert column(table, "loss") == [2.5]
    assert table.facts is not None
    assert any("several runs" in note for note in table.facts.notes)


def test_wandb_history_takes_the_trainers_step(tmp_path: Path) -> None:
    records = [
        {"_step": i, "_runtime": 2.0 * i, "_timestamp": 1.7e9, "train/global_step": 50 * i}
        | {"train/loss": "NaN" if i == 3 else 2.0, "train/grad_norm": "Infinity" if i == 3 else 1.0}
        for i in range(1, 5)
    ]
    table = read(tmp_path, lines_of(records))
    assert table.source_format == "wandb-history"
    assert table.step.tolist() == [50, 100, 150, 200]
    assert same(column(table, "loss"), [2.0, 2.0, NAN, 2.0])
    assert same(column(table, "grad_l2_pre_clip"), [1.0, 1.0, INF, 1.0])


def test_any_csv_and_any_json_lines_by_their_names(tmp_path: Path) -> None:
    csv = read(tmp_path, "iteration,Train Loss,gnorm\n3,2.5,1.5\n4,2.0,1.25\n")
    jsonl = read(
        tmp_path,
        lines_of([{"iter": s, "losses/total_loss": v} for s, v in ((3, 2.5), (4, 2.0))])
        + "not a record\n",
    )
    for table in (csv, jsonl):
        assert table.step.tolist() == [3, 4]
        assert column(table, "loss") == [2.5, 2.0]
    assert column(csv, "grad_l2_pre_clip") == [1.5, 1.25]
    assert "stray-lines" in {repair.kind for repair in jsonl.repairs}


def test_other_numbers_are_kept_beside_the_known_ones(tmp_path: Path) -> None:
    table = read(tmp_path, lines_of([{"step": 1, "loss": 2.0, "reward/mean": 0.25, "note": "x"}]))
    np.testing.assert_array_equal(table["reward/mean"], [0.25])
    assert "note" not in table


def test_a_csv_without_steps_whose_rows_are_epochs_is_numbered_by_them(tmp_path: Path) -> None:
    for text in (
        "epoch,train_loss,val_loss\n1,2.5,2.6\n2,2.0,2.5\n3,1.5,2.4\n",
        lines_of([{"epoch": e, "train_loss": 2.0, "val_loss": 2.5} for e in (1, 2, 3)]),
    ):
        table = read(tmp_path, text)
        assert table.step.tolist() == [1, 2, 3]
        assert table.facts is not None
        assert table.facts.unit == PER_EPOCH
        assert "missing-step-column" not in {repair.kind for repair in table.repairs}


def test_rows_within_an_epoch_are_counted(tmp_path: Path) -> None:
    table = read(tmp_path, "epoch,train_loss\n1,2.5\n1,2.0\n2,1.5\n")
    assert table.step.tolist() == [0, 1, 2]
    assert table.facts is not None
    assert table.facts.unit != PER_EPOCH


def test_a_loss_by_another_name_is_found_and_said(tmp_path: Path) -> None:
    table = read(tmp_path, lines_of([{"step": s, "policy_loss": 0.5, "lr": 0.1} for s in (1, 2)]))
    assert column(table, "loss") == [0.5, 0.5]
    assert any("'policy_loss' as loss" in repair.message for repair in table.repairs)


def test_many_records_alike_and_records_one_by_one_give_the_same(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [
        {"step": s, "loss": 2.0 / s, "skipped": s % 7 == 0, "skip_reason": 3, "note": s}
        for s in range(1, 40)
    ]
    together = read(tmp_path, lines_of(records))
    mixed = [dict(reversed(r.items())) if i % 2 else r for i, r in enumerate(records)]
    apart = read(tmp_path, lines_of(mixed))
    for name in ("step", "loss", "skipped", "note"):
        np.testing.assert_array_equal(together[name], apart[name])
    assert together["skipped"].sum() == 5


def test_objects_within_a_record_are_looked_into(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [
        {
            "step": s,
            "metrics": {"loss": 3.0 / s, "grad_norm": 1.5, "more": {"acc": 0.5}},
            "note": {"_type": "x"},
        }
        for s in range(1, 12)
    ]
    table = read(tmp_path, lines_of(records))
    assert column(table, "loss") == [3.0 / s for s in range(1, 12)]
    assert column(table, "metrics/more/acc") == [0.5] * 11
    assert "note/_type" not in table
    assert table.facts is not None
    assert table.facts.reason == "JSON lines with grad_l2_pre_clip, loss"


def test_a_record_without_a_step_is_of_the_step_before_it(tmp_path: Path) -> None:
    records: list[dict[str, object]] = [{"lr": 0.5, "batch_size": 32}]
    for s in (10, 20, 30):
        records += [{"step": s, "loss": 3.0 - s / 10}, {"val_loss": 4.0 - s / 10}]
    table = read(tmp_path, lines_of([*records, {"loss": 1.25, "time": 9}]))
    assert table.step.tolist() == [10, 20, 30]
    assert column(table, "loss") == [2.0, 1.0, 0.0]
    assert column(table, "val_loss") == [3.0, 2.0, 1.0]
    assert not table.has("lr")
    (left,) = [r for r in table.repairs if r.kind == "undated-records"]
    assert (left.count, left.lossy) == (2, False)


def test_many_records_without_any_step_are_counted(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(f'{{"loss": {i % 7}}}\n' for i in range(10_050)))
    assert table.step.tolist() == list(range(10_050))
    assert column(table, "loss")[-1] == 10_049 % 7


def test_json_lines_of_something_else_name_what_they_hold(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no key of a training log: it has 'user', 'metrics/rmse'"):
        read(tmp_path, lines_of([{"user": "a", "metrics": {"rmse": 2.0}}] * 3))


def test_a_cell_that_says_no_log_is_absent(tmp_path: Path) -> None:
    table = read(
        tmp_path, "Epoch,Training Loss,Validation Loss\n1,No log,3.0\n2,2.5,2.75\n3,2.0,2.5\n"
    )
    assert column(table, "loss") == [None, 2.5, 2.0]
    assert not any(repair.lossy for repair in table.repairs)


def test_epochs_written_with_their_name_or_their_end(tmp_path: Path) -> None:
    for form in ("Epoch {}", "{}/80", "epoch: {}/80"):
        rows = "".join(f"{form.format(e)},{3.0 / e},{3.5 / e}\n" for e in range(1, 6))
        table = read(tmp_path, "Epoch,Loss,Val_Loss\n" + rows)
        assert table.step.tolist() == [1, 2, 3, 4, 5]
        assert table.facts is not None
        assert table.facts.unit == PER_EPOCH
        assert not any(repair.lossy for repair in table.repairs)


def test_a_last_line_of_json_that_is_cut_is_called_so(tmp_path: Path) -> None:
    whole = lines_of([{"step": s, "loss": 3.0 / s} for s in (1, 2, 3)])
    table = read(tmp_path, whole + '{"step": 4, "lo')
    assert table.step.tolist() == [1, 2, 3]
    assert [repair.kind for repair in table.repairs] == ["torn-last-line"]
    assert "stray-lines" in {r.kind for r in read(tmp_path, '{"step": 0, "lo\n' + whole).repairs}


def test_objects_at_the_end_of_lines(tmp_path: Path) -> None:
    lines = ["starting", 'args {"lr": 0.5, "epochs": 3}']
    for s in range(1, 5):
        lines.append(f'[03:04:0{s}] INFO: {{"step": {s}, "train": {{"loss": {3.0 / s}}}}}')
        lines.append(f'[03:04:0{s}] DEBUG: {{"queue": {s}}}')
    table = read(tmp_path, "\n".join([*lines, 'WARN {"step": 9, "lo']) + "\n")
    assert table.source_format == "json-in-lines"
    assert table.step.tolist() == [1, 2, 3, 4]
    assert column(table, "loss") == [3.0 / s for s in range(1, 5)]
    assert "queue" not in table
    assert not any(repair.lossy for repair in table.repairs)


def test_a_healthy_scalers_flag_logged_every_fifty_steps_is_one_step(tmp_path: Path) -> None:
    rows = "".join(f"{i * 50},2.5,{int(i == 20)}\n" for i in range(40))
    table = read(tmp_path, "step,loss,step_skipped\n" + rows)
    assert table["skipped_steps"].sum() == 1
    assert table.skip_brackets[0].first_step == 951

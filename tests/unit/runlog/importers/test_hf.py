"""The Hugging Face Trainer and LLaMA-Factory: states, printed records, JSON lines."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from forensics.errors import InputError
from forensics.runlog.log_facts import Meaning
from tests.unit.runlog.importers.logs import column, read, same
from tests.unit.runlog.importers.samples import hf_state, lines_of

NAN = float("nan")


def state(records: list[dict[str, object]], **more: object) -> str:
    return json.dumps({"best_metric": None, **more, "log_history": records})


def test_training_evaluation_and_the_closing_summary(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        state(
            [
                {"loss": 2.5, "learning_rate": 1e-4, "grad_norm": 1.25, "epoch": 0.5, "step": 50},
                {"eval_loss": 2.25, "eval_runtime": 9.0, "epoch": 0.5, "step": 50},
                {"loss": 2.0, "learning_rate": 5e-5, "grad_norm": 0.75, "epoch": 1.0, "step": 100},
                {"train_loss": 2.25, "train_runtime": 60.0, "total_flos": 1e15, "step": 100},
            ],
            max_steps=100,
        ),
    )
    assert table.source_format == "hf-trainer-state"
    assert table.step.tolist() == [50, 100]
    assert column(table, "loss") == [2.5, 2.0]
    assert column(table, "grad_l2_pre_clip") == [1.25, 0.75]
    assert column(table, "val_loss") == [2.25, None]
    assert "eval_runtime" not in table
    assert table.facts is not None
    assert table.facts.meanings["loss"] is Meaning.MEAN
    assert (table.facts.step_base, table.facts.planned_steps) == (1, 100)
    assert table.interval == 50


def test_a_filtered_nan_is_restored_and_said(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        state(
            [
                {"loss": 3.5, "grad_norm": 2.0, "step": 10},
                {"loss": 0.0, "grad_norm": NAN, "step": 20},
                {"loss": 0.0, "grad_norm": 0.0, "step": 30},
            ]
        ),
    )
    assert same(column(table, "loss"), [3.5, NAN, 0.0])
    assert table.facts is not None
    assert any("loss 0.0 beside a non-finite" in note for note in table.facts.notes)


def test_a_bare_list_of_records(tmp_path: Path) -> None:
    records = [{"loss": 3.0 / s, "learning_rate": 1e-5, "epoch": s / 9, "step": s} for s in (1, 2)]
    table = read(tmp_path, json.dumps([*records, {"eval_loss": 2.0, "epoch": 0.25, "step": 2}]))
    assert table.source_format == "hf-trainer-state"
    assert column(table, "loss") == [3.0, 1.5]
    assert column(table, "val_loss") == [None, 2.0]


def test_the_lag_of_newer_versions_is_no_skip_in_a_list_or_csv_either(tmp_path: Path) -> None:
    records = json.loads(warming(set(), newer=True, lag=1))["log_history"]
    for r in records:
        r["epoch"] = r["step"] / 1000
    names = ["loss", "grad_norm", "learning_rate", "epoch", "step"]
    rows = "".join(",".join(str(r[n]) for n in names) + ",,,\n" for r in records)
    summary = ",,,1.0,200,,60.0,2.25\n"
    csv = ",".join([*names, "eval_loss", "train_runtime", "train_loss"]) + "\n" + rows + summary
    for text, form in ((json.dumps(records), "hf-trainer-state"), (csv, "hf-history-csv")):
        table = read(tmp_path, text)
        assert table.source_format == form
        assert table.skip_brackets == ()
        assert table.has("skipped_steps")
        assert column(table, "loss") == [2.0] * 20
        assert table.facts is not None
        assert (table.facts.step_base, table.facts.meanings["loss"]) == (1, Meaning.MEAN)


def test_a_history_as_csv_has_its_evaluations_and_its_filtered_nan(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "eval_loss,eval_runtime,learning_rate,grad_norm,loss,epoch,step\n"
        ",,1e-4,2.0,3.5,0.5,10\n2.5,9.0,,,,0.5,10\n,,1e-4,nan,0.0,1.0,20\n,,1e-4,1.5,2.5,1.5,30\n",
    )
    assert same(column(table, "loss"), [3.5, NAN, 2.5])
    assert column(table, "val_loss") == [2.5, None, None]
    assert table.facts is not None
    assert any("loss 0.0 beside" in note for note in table.facts.notes)


def test_a_state_that_logged_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty log_history"):
        read(tmp_path, state([], max_steps=100))


def test_a_document_that_is_cut_gives_the_records_that_are_whole(tmp_path: Path) -> None:
    whole = hf_state()
    table = read(tmp_path, whole[: len(whole) * 2 // 3])
    assert 4 < len(table) < 12
    assert table.step.tolist() == [10 * (i + 1) for i in range(len(table))]
    assert {"torn-document"} <= {repair.kind for repair in table.repairs}


def warming(skipped: set[int], *, newer: bool, lag: int = 0) -> str:
    records = []
    for step in range(10, 201, 10):
        taken = step - sum(s <= step for s in skipped) - lag
        records.append({"loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-7 * taken, "step": step})
    return state(records, max_steps=1000, **({"best_global_step": None} if newer else {}))


def test_skips_that_only_the_rate_shows(tmp_path: Path) -> None:
    table = read(tmp_path, warming({2, 5, 77}, newer=False))
    found = [(b.first_step, b.last_step, b.count) for b in table.skip_brackets]
    assert found == [(1, 10, 2), (71, 80, 1)]


def test_the_lag_of_newer_versions_is_no_skip(tmp_path: Path) -> None:
    assert read(tmp_path, warming(set(), newer=True, lag=1)).skip_brackets == ()
    table = read(tmp_path, warming({77}, newer=True, lag=1))
    assert [(b.first_step, b.count) for b in table.skip_brackets] == [(71, 1)]


BAR = "{:3d}%|#####     | {}/{} [00:01<02:03,  1.10s/it]"


def test_printed_records_take_their_step_from_the_bar(tmp_path: Path) -> None:
    text = "Loading\n"
    for step in range(1, 31):
        text += "\r" + BAR.format(step // 4, step, 120)
        if step % 10 == 0:
            text += f"     \r{{'loss': {3 - step / 10}, 'grad_norm': nan, 'epoch': 0.1}}\n"
        if step == 20:
            text += "\r" + BAR.format(50, 4, 8) + "\r{'eval_loss': 2.5, 'eval_runtime': 1.0}\n"
    table = read(tmp_path, text)
    assert table.source_format == "hf-stdout"
    assert table.step.tolist() == [10, 20, 30]
    assert column(table, "val_loss") == [None, 2.5, None]
    assert all(math.isnan(value) for value in table["grad_l2_pre_clip"])


def test_a_bar_that_is_a_step_behind_is_put_right(tmp_path: Path) -> None:
    text = ""
    for step in range(10, 201, 10):
        shown = step - 1 if step in (50, 120) else step
        text += f"\r{BAR.format(1, shown, 400)}\n{{'loss': 1.0, 'learning_rate': 1e-05}}\n"
    assert read(tmp_path, text).step.tolist() == list(range(10, 201, 10))


def test_values_in_quotes_and_no_bars(tmp_path: Path) -> None:
    text = "logging_steps=25,\n"
    for i in range(4):
        text += f"{{'loss': '{2 - i / 4}', 'grad_norm': '1.5', 'learning_rate': '1e-05'}}\n"
    table = read(tmp_path, text)
    assert table.step.tolist() == [25, 50, 75, 100]
    assert column(table, "loss") == [2.0, 1.75, 1.5, 1.25]
    assert "missing-step-column" in {repair.kind for repair in table.repairs}


def test_printed_records_of_ranks_in_a_notebook(tmp_path: Path) -> None:
    lines = [f"[rank0]: {{'loss': {2 - i / 4}, 'learning_rate': 1e-05}}\n" for i in range(4)]
    document = {"cells": [{"cell_type": "code", "outputs": [{"text": lines}]}]}
    assert column(read(tmp_path, json.dumps(document, indent=1)), "loss") == [2.0, 1.75, 1.5, 1.25]


def factory(step: int, **more: object) -> dict[str, object]:
    return {"current_steps": step, "total_steps": 60, "epoch": step / 10, **more}


def test_llama_factory_rows_of_training_and_evaluation(tmp_path: Path) -> None:
    records = [factory(5, loss=2.5, lr=1e-5), factory(5, eval_loss=2.75), factory(10, loss=2.0)]
    table = read(tmp_path, lines_of(records))
    assert table.step.tolist() == [5, 10]
    assert column(table, "val_loss") == [2.75, None]
    assert table.facts is not None
    assert table.facts.planned_steps == 60


def test_llama_factory_older_names_and_nulls(tmp_path: Path) -> None:
    records = [factory(s, loss=2.5, learning_rate=1e-5, reward=None) for s in (5, 10, 15)]
    table = read(tmp_path, lines_of(records))
    assert column(table, "lr") == [1e-5] * 3


def test_llama_factory_appended_by_a_second_run(tmp_path: Path) -> None:
    records = [factory(s, loss=3.0) for s in range(5, 61, 5)]
    records += [factory(s, loss=2.0) for s in range(5, 61, 5)]
    table = read(tmp_path, lines_of(records))
    assert (table["loss"] == 2.0).all()
    assert [len(old) for old in table.earlier] == [12]


def test_a_prediction_run_is_read_and_said_to_have_no_loss(tmp_path: Path) -> None:
    table = read(tmp_path, lines_of([factory(s, percentage=s) for s in range(5, 61, 5)]))
    assert len(table) == 12
    assert not table.has("loss")
    assert table.facts is not None
    assert "loss" in table.facts.unknown[0]


@pytest.mark.parametrize("spelling", ["NaN", '"nan"', '"NaN"'])
def test_nan_in_every_spelling(tmp_path: Path, spelling: str) -> None:
    text = f'{{"current_steps": 5, "total_steps": 9, "loss": {spelling}}}\n'
    assert same(column(read(tmp_path, text), "loss"), [NAN])


def test_a_large_state_on_one_line_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["forensics.runlog.importers.hf_trainer_state"]
    monkeypatch.setattr(module, "_LARGEST", 1 << 20)
    rows = 25_000
    text = "".join(
        f'{{"loss": 2.5, "grad_norm": 1.25, "learning_rate": 1e-05, "epoch": 1.0, "step": {i}, '
        f'"rewards/chosen": 0.12345678901234567, "logps/rejected": -321.1234567890123, '
        f'"note": "{"x" * 90}"}},'
        for i in range(1, rows + 1)
    )
    table = read(tmp_path, f'{{"log_history": [{text[:-1]}], "max_steps": {rows}}}')
    assert len(text) > 3 << 21  # several blocks
    assert len(table) == rows
    assert table.facts is not None
    assert table.facts.planned_steps == rows


def test_overflows_after_the_last_record_are_not_lost(tmp_path: Path) -> None:
    def bar(n: int) -> str:
        return f" 14%|#4        | {n}/900 [13:55<86:19, 2.41s/it]"

    def note(was: int) -> str:
        return (
            "[2023-06-07 22:16:00,018] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] "
            f"OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {was}, reducing to {was // 2}\n"
        )

    records = "".join(
        f"{bar(n)}\n{{'loss': 2.5, 'learning_rate': 0.001, 'epoch': 0.{n}}}\n" for n in (10, 20, 30)
    )
    text = records + bar(30) + note(8) + bar(31) + note(4) + bar(32) + note(2)
    table = read(tmp_path, text + "Exception: Current loss scale already at minimum\n")
    assert table.step.tolist() == [10, 20, 30, 33]
    assert column(table, "skipped_steps")[-1] == 3
    assert column(table, "scaler_scale")[-1] == 1.0
    assert column(table, "loss")[-1] is None


def test_the_table_of_a_model_card(tmp_path: Path) -> None:
    rows = [
        "No log | 1.0 | 46 | 3.5 | 0.9",
        "2.5 | 2.0 | 92 | 2.75 | 0.5",
        "2.0 | 3.0 | 138 | nan | ",
    ]
    for decimal in (".", ","):
        table = read(
            tmp_path,
            "# card\n\nText | with | bars\n\n"
            "| Training Loss | Epoch | Step | Validation Loss | Wer |\n"
            "|:---:|:---:|:---:|:---:|:---:|\n"
            + "".join(f"| {row} |\n".replace(".", decimal) for row in rows)
            + "\n| Other | Step |\n|---|---|\n| 1 | 2 |\n",
            name="README.md",
        )
        assert table.source_format == "hf-model-card"
        assert table.step.tolist() == [46, 92, 138]
        assert column(table, "loss") == [None, 2.5, 2.0]
        assert same(column(table, "val_loss"), [3.5, 2.75, NAN])
        assert column(table, "Wer") == [0.9, 0.5, None]
        assert table.facts is not None
        assert table.facts.meanings["loss"] is Meaning.MEAN


def swift(step: int, **more: object) -> dict[str, object]:
    return {**more, "epoch": step / 40, "global_step/max_steps": f"{step}/60", "percentage": "5%"}


def test_ms_swift_has_its_step_in_each_record(tmp_path: Path) -> None:
    records = [
        swift(1, loss=3.0, grad_norm=1.5, learning_rate=1e-5),
        swift(5, loss=2.5, grad_norm=1.25, learning_rate=1e-5),
        swift(5, eval_loss=2.75, eval_runtime=9.0),
        swift(10, loss=0.0, grad_norm=NAN, learning_rate=1e-5),
        swift(60, train_loss=2.5, train_runtime=60.0),
    ]
    printed = "[INFO:swift] args\n" + "".join(f"{r}\n" for r in records)
    mixed = "[INFO:swift] args\n" + lines_of(records[:3]) + "saved\n" + lines_of(records[3:])
    for text, form in (
        (lines_of(records), "ms-swift"),
        (mixed, "ms-swift"),
        (printed, "hf-stdout"),
    ):
        table = read(tmp_path, text)
        assert table.source_format == form
        assert table.step.tolist() == [1, 5, 10]
        assert same(column(table, "loss"), [3.0, 2.5, NAN])
        assert column(table, "val_loss") == [None, 2.75, None]
        assert table.facts is not None
        assert table.facts.planned_steps == 60
        assert not any(repair.lossy for repair in table.repairs)
        assert "global_step/max_steps" not in table

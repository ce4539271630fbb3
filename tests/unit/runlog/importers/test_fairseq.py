"""fairseq: its dialects, overflows at which updates stand still, scales that print as 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Finding, Severity
from forensics.runlog.log_facts import Meaning
from forensics.runlog.run import load_run
from tests.unit.runlog.importers.line_logs import fairseq_epoch, fairseq_object, fairseq_text
from tests.unit.runlog.importers.logs import column, read

NOTES = {
    "new": "2021-03-08 12:33:12 | INFO | fairseq.trainer | NOTE: gradient overflow detected, "
    "ignoring gradient, setting loss scale to: {}\n",
    "middle": "2023-06-13 17:37:40 | INFO | fairseq.trainer | NOTE: overflow detected, setting "
    "loss scale to: {}\n",
    "2019": "| WARNING: overflow detected, setting loss scale to: {}\n",
}


@pytest.mark.parametrize("writer", [fairseq_text, fairseq_object, fairseq_epoch])
@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
def test_an_overflow_belongs_to_the_record_after_it(tmp_path: Path, writer, note: str) -> None:  # type: ignore[no-untyped-def]
    text = writer(100) + writer(200) + note.format(64.0) + writer(300, scale="64")
    table = read(tmp_path, text)
    assert table.source_format == "fairseq"
    assert table.step.tolist() == [100, 200, 300]
    assert column(table, "skipped_steps")[-1] == 1
    assert column(table, "covered_steps")[-1] == 101  # a hundred updates, and an attempt
    assert column(table, "scaler_scale") == [128.0, 128.0, 64.0]
    assert table.facts is not None
    assert table.facts.meanings["grad_l2_pre_clip"] is Meaning.MEAN


def test_overflows_after_the_last_record_are_attempts_of_their_own(tmp_path: Path) -> None:
    text = fairseq_epoch(10198, scale="0.500")
    text += "| epoch 027 | valid on 'valid' subset | valid_loss 8.30 | num_updates 10198\n"
    table = read(tmp_path, text + "".join(NOTES["2019"].format(2.0**-n) for n in (2, 3, 4)))
    assert table.step.tolist() == [10198, 10199, 10200, 10201]
    assert column(table, "scaler_scale") == [0.5, 0.5, 0.25, 0.125]
    assert column(table, "val_loss")[0] == 8.3
    assert column(table, "skipped_steps")[1:] == [1, 1, 1]


def test_a_scale_that_prints_as_0_was_rounded(tmp_path: Path) -> None:
    text = fairseq_text(100, scale="0.0001") + fairseq_text(200, scale="0")
    table = read(tmp_path, text)
    assert column(table, "scaler_scale") == [0.0001, 2.0**-15]
    assert table.facts is not None
    assert any("printed as 0" in note for note in table.facts.notes)


def test_the_bar_of_tqdm_and_validations(tmp_path: Path) -> None:
    def bar(step: int) -> str:
        return (
            f"\repoch 001:   1%|#   | {step}/1000 [00:10<10:00,  1.5it/s, loss=3.125, ppl=9.2, "
            f"num_updates={step}, lr=0.0001, gnorm=0.5, clip=0, loss_scale=128]"
        )

    text = bar(10) + bar(20) + "\n2023-06-13 | INFO | valid | epoch 001 | valid on 'valid' subset "
    text += "| loss 12.144 | nll_loss 10.956 | num_updates 20 | best_loss 12.1\n" + bar(30) + "\n"
    table = read(tmp_path, text)
    assert table.step.tolist() == [10, 20, 30]
    assert column(table, "loss") == [3.125] * 3
    assert column(table, "val_loss") == [None, 12.144, None]


def test_json_validations_and_summaries_of_epochs(tmp_path: Path) -> None:
    text = fairseq_object(10) + fairseq_object(20)
    text += '2021 | INFO | valid | {"epoch": 1, "valid_loss": "3.5", "valid_num_updates": "20"}\n'
    table = read(tmp_path, text + fairseq_object(30))
    assert column(table, "val_loss") == [None, 3.5, None]
    assert column(table, "lr") == [2e-5] * 3


def test_nan_and_what_it_was_clipped_to(tmp_path: Path) -> None:
    text = "2021 | INFO | fairseq_cli.train | {'optimization': {'clip_norm': 2.5, 'lr': [0.1]}}\n"
    table = read(tmp_path, text + fairseq_text(1) + fairseq_text(2, loss="nan", norm="nan"))
    assert table["loss"][0] == 3.1
    assert table["loss"][1] != table["loss"][1]
    assert table.facts is not None
    assert table.facts.clip_threshold == 2.5


def test_objects_under_hydra_and_summaries_of_epochs_beside_them(tmp_path: Path) -> None:
    text = "".join(
        fairseq_object(step).replace("2021-03-08 12:31:36 | INFO | train_inner | ", LOGGED)
        for step in (10, 20)
    )
    text += "[2021-03-08 12:33:12,123][fairseq.trainer][INFO] - NOTE: gradient overflow detected, "
    text += "ignoring gradient, setting loss scale to: 64.0\n"
    text += fairseq_object(30).replace("2021-03-08 12:31:36 | INFO | train_inner | ", LOGGED)
    text += LOGGED.replace("train_inner", "train") + SUMMARY
    table = read(tmp_path, text)
    assert table.step.tolist() == [10, 20, 30]
    assert column(table, "loss") == [3.1] * 3
    assert column(table, "skipped_steps")[-1] == 1


LOGGED = "[2021-03-08 12:31:36,123][train_inner][INFO] - "
SUMMARY = '{"epoch": 1, "train_loss": "5.5", "train_num_updates": "31", "train_lr": "1e-05"}\n'


def test_summaries_of_epochs_alone(tmp_path: Path) -> None:
    text = "".join(
        "2021 | INFO | train | " + SUMMARY.replace('"31"', f'"{100 * epoch}"')
        for epoch in (1, 2, 3)
    )
    table = read(tmp_path, text)
    assert table.step.tolist() == [100, 200, 300]
    assert column(table, "loss") == [5.5] * 3
    assert column(table, "lr") == [1e-5] * 3


def test_three_decimals_round_away_more(tmp_path: Path) -> None:
    text = fairseq_text(100, scale="0.062") + fairseq_text(200, scale="0.000")
    assert column(read(tmp_path, text), "scaler_scale") == [0.062, 2.0**-11]


def test_a_scale_below_1_is_usual_until_it_nears_the_floor(tmp_path: Path) -> None:
    def log(scales: list[str]) -> str:
        return "".join(
            fairseq_text(100 * n, scale=scale, loss=f"{9 - n / 100:.2f}")
            for n, scale in enumerate(scales, 1)
        )

    usual = log(["0.062"] * 3 + ["0.031"] * 5 + ["0.016"] * 20)
    assert not found(tmp_path, usual)
    table = read(tmp_path, usual)
    assert table.facts is not None
    assert table.facts.scaler is not None
    assert table.facts.scaler.floor == 1e-4
    (finding,) = found(tmp_path, log(["0.0625"] * 8 + ["0.0156", "0.0039", "0.0010", "0.0002"]))
    assert finding.rule == "loss-scale-collapse"
    assert "below 0.0001 the trainer ends the run" in finding.message
    assert not found(tmp_path, "Namespace(min_loss_scale=1e-08, fp16=True)\n" + usual)


def found(folder: Path, text: str) -> list[Finding]:
    path = folder / "judged.log"
    path.write_text(text)
    return [f for f in diagnose(load_run(path)).findings if f.severity > Severity.INFO]


def test_overflows_without_any_record_are_not_told_as_after_the_last_one(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(NOTES["2019"].format(2.0**-n) for n in (1, 2, 3)))
    assert table.step.tolist() == [1, 2, 3]
    assert table.facts is not None
    assert table.facts.notes[-1] == "no record tells a step, down to a loss scale of 0.125"

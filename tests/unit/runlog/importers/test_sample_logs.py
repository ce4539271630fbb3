"""What is known of real logs, checked where FORENSICS_SAMPLE_LOGS names a folder that has them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run, load_run
from forensics.runlog.steps import StepTable

FOLDER = os.environ.get("FORENSICS_SAMPLE_LOGS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="FORENSICS_SAMPLE_LOGS is not set")


def sample(name: str) -> Run:
    path = Path(FOLDER) / name
    if not path.exists():
        pytest.skip(f"{name} is not in the folder")
    return load_run(path)


def brackets(table: StepTable) -> list[tuple[int, int, int]]:
    return [(b.first_step, b.last_step, b.count) for b in table.skip_brackets]


HEALTHY = (
    "meglm-n4-skip10.out",
    "mds-3d-ds-on.out",
    "ds-sft-opt1.3b.log",
    "ds-rm-opt350m.log",
    "ex-fairseq-nat-overflow.txt",
    "hf-chatglm-stdout.txt",
    "hf-lora-lr0step1.json",
    "hf-mt5-ok.json",
    "hf-whisper-flemish-10skip.json",
    "lf-evalrows.jsonl",
    "lf-noloss.jsonl",
    "lf-v2-lr.jsonl",
    "ex-torchtitan-2389-dupranks.txt",
    "llmc-main.log",
    "mae-log.txt",
    "mng-soap.txt",
    "mm-old.log",
    "mm-old.log.json",
    "mmengine-rtmdet.scalars.json",
    "ex-nemo2-lines.txt",
    "pl-slm-ok.csv",
    "t5-tb.tfevents",
    "yolo-new-time.csv",
    "yolo-ok.csv",
)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_raises_nothing(name: str) -> None:
    found = diagnose(sample(name)).findings
    assert [f.message for f in found if f.severity >= Severity.WARNING] == []


def scarce_skips(table: StepTable) -> None:
    assert brackets(table) == [(1, 25, 2), (101, 125, 1), (351, 375, 1)]


def ten_skips(table: StepTable) -> None:
    found = brackets(table)
    assert sum(count for _, _, count in found) == 10
    assert found[0] == (1, 100, 3)
    assert found[-1] == (11901, 12000, 1)
    assert table.step[-1] == 15000


def no_skips(table: StepTable) -> None:
    assert brackets(table) == []


def filtered_nan(table: StepTable) -> None:
    assert table.step.tolist() == [10, 20]
    assert np.isnan(table["grad_l2_pre_clip"]).all()
    assert table["loss"][0] > 1e4
    assert np.isnan(table["loss"][1])


def lone_overflows(table: StepTable) -> None:
    assert np.isnan(table["grad_l2_pre_clip"]).tolist() == [True, False, False, True, False]
    assert np.isfinite(table["loss"]).all()


def bars(table: StepTable) -> None:
    assert table.step.tolist() == list(range(10, 811, 10))
    assert table.interval == 10


def nan_from_218(table: StepTable) -> None:
    assert int(np.argmax(np.isnan(table["loss"]))) == 218
    assert np.isnan(table["loss"][218:]).all()


def validation_inf(table: StepTable) -> None:
    assert np.isposinf(table["val_loss"]).all()
    assert np.isfinite(table["loss"]).all()
    assert table.step[0] == 0


def overfit(table: StepTable) -> None:
    assert table["val_loss"][0] == pytest.approx(4.21, abs=5e-3)
    assert table["val_loss"][-1] == pytest.approx(5.49, abs=5e-3)
    assert table["loss"][-1] == pytest.approx(1.66, abs=5e-3)


def gradient_first(table: StepTable) -> None:
    assert np.isnan(table["grad_l2_pre_clip"][0])
    assert table["loss"][0] == pytest.approx(8.74, abs=5e-3)
    assert table.step[1] == 10
    assert np.isnan(table["loss"][1])


def restarting(table: StepTable) -> None:
    assert (np.diff(table.step) > 0).all()
    assert not table.earlier
    assert table["epoch"][-1] > 1
    assert np.isfinite(table["loss"]).all()


def mean_turned_nan(table: StepTable) -> None:
    assert np.isnan(table["grad_l2_pre_clip"]).tolist() == [True, False]
    assert np.isfinite(table["loss"]).all()


def bad_mean_good_median(table: StepTable) -> None:
    assert np.isfinite(table["grad_l2_pre_clip"]).all()
    assert table.facts is not None
    assert any("non-finite" in note for note in table.facts.notes)


def stale_validation(table: StepTable) -> None:
    assert table.step.tolist() == [120, 121]
    assert "val_loss" not in table


def nan_average(table: StepTable) -> None:
    assert np.isnan(table["loss"]).all()


def one_norm_spike(table: StepTable) -> None:
    assert table.step.tolist() == list(range(19560))
    norm = table["grad_l2_pre_clip"]
    assert int(np.argmax(norm[5000:])) + 5000 == 9025
    assert norm[9025] == pytest.approx(2.02)
    assert np.median(norm) == pytest.approx(0.27)


def two_loss_spikes(table: StepTable) -> None:
    at = {int(step): value for step, value in zip(table.step, table["loss"], strict=True)}
    assert (at[918] < 4, at[919] > 5, at[946] < 4, at[947] > 5) == (True,) * 4
    assert len(table) == 6001


def no_gradient(table: StepTable) -> None:
    assert (table["grad_l2_pre_clip"] == 0).all()
    assert table["loss"].min() > 10
    assert table.interval == 10


def ranks_merged(table: StepTable) -> None:
    assert table.step.tolist() == [4, 5]
    assert table["grad_l2_pre_clip"].tolist() == [26.625, 46.5]


def nineteen_skips(table: StepTable) -> None:
    assert brackets(table) == [(1, 10, 10), (11, 20, 8), (21, 30, 1)]
    assert table["loss"][1] == pytest.approx(12.03, abs=5e-3)
    assert table["loss"][2] == pytest.approx(22.48, abs=5e-3)
    assert not table.present("loss")[0]
    assert table.facts is not None
    assert table.facts.precision == "fp16"


def jump_at_three(table: StepTable) -> None:
    at = {int(step): value for step, value in zip(table.step, table["loss"], strict=True)}
    assert at[1] == pytest.approx(12.44, abs=5e-3)
    assert at[3] == pytest.approx(41.03, abs=5e-3)
    assert not table.has("scaler_scale")
    assert not table.has("grad_l2_pre_clip")


def vanished_losses(table: StepTable) -> None:
    assert table.step.tolist() == [5426, 5427, 5428]
    assert np.isnan(table["loss"]).all()
    assert table.present("loss").all()
    assert np.isnan(table["grad_l2_pre_clip"]).all()


def stuck_scale(table: StepTable) -> None:
    assert sum(count for _, _, count in brackets(table)) == 1586
    assert table.step[-1] == 2500
    assert table["scaler_scale"][-1] == 1
    assert table.present("grad_l2_pre_clip").tolist() == [True, True, False, False]


def a_scaler_at_work(table: StepTable) -> None:
    assert sum(count for _, _, count in brackets(table)) == 139
    assert (brackets(table)[0], table.step[-1]) == ((1, 10, 6), 7360)
    assert table.facts is not None
    assert any("67 of 139 overflows" in note for note in table.facts.notes)


def first_ten(table: StepTable) -> None:
    assert table.step[:10].tolist() == list(range(1, 11))
    assert table["skipped_steps"][:10].tolist() == [1] * 10
    assert table["scaler_scale"][9] == 128
    assert table["scaler_scale"][0] == 65536


def collapse_and_abort(table: StepTable) -> None:
    scales = table["scaler_scale"][table.present("scaler_scale")]
    assert scales[0] == 0.5
    assert scales[-1] == pytest.approx(2.44e-4, rel=1e-2)  # in force when it last overflowed
    assert table.facts is not None
    assert any("0.00012207" in note for note in table.facts.notes)


def numbers_as_strings(table: StepTable) -> None:
    assert table.step.tolist() == [1, 2, 3, 4]
    assert table["loss"].tolist() == [16.475, 16.446, 25.22, 18.079]
    assert table["skipped_steps"].tolist() == [0, 0, 2, 0]


def one_overflow(table: StepTable) -> None:
    assert table["loss"][:2].tolist() == [3.139, 3.14]
    assert brackets(table)[-1][2] == 1
    assert table["val_loss"][table.present("val_loss")].tolist() == [12.144]


KNOWN: dict[str, tuple[str, Callable[[StepTable], None]]] = {
    "hf-whisper-lv2-4skip.json": ("hf-trainer-state", scarce_skips),
    "hf-whisper-flemish-10skip.json": ("hf-trainer-state", ten_skips),
    "hf-lora-lr0step1.json": ("hf-trainer-state", no_skips),
    "hf-mt5-ok.json": ("hf-trainer-state", no_skips),
    "ex-collegeadvisor-loss0.json": ("hf-trainer-state", filtered_nan),
    "ex-timemoe-71-sparse-gradnan.txt": ("hf-stdout", lone_overflows),
    "hf-chatglm-stdout.txt": ("hf-stdout", bars),
    "lf-evalrows.jsonl": ("llama-factory", no_skips),
    "lf-v2-lr.jsonl": ("llama-factory", no_skips),
    "mm-old.log": ("openmmlab-text", restarting),
    "mm-old.log.json": ("openmmlab-json", restarting),
    "mmengine-rtmdet.scalars.json": ("openmmlab-json", restarting),
    "ex-mmocr-32-gradnan.txt": ("openmmlab-text", mean_turned_nan),
    "ex-beit-598-gradnan.txt": ("metric-logger-text", bad_mean_good_median),
    "ex-nemo2-lines.txt": ("nemo", stale_validation),
    "ex-kohya-avrloss-nan.txt": ("kohya", nan_average),
    "llmc-main.log": ("llm-c", one_norm_spike),
    "mng-soap.txt": ("modded-nanogpt", two_loss_spikes),
    "olmo-20m-zero-grad.log": ("olmo", no_gradient),
    "ex-torchtitan-2389-dupranks.txt": ("torchtitan", ranks_merged),
    "meglm-n4-skip10.out": ("megatron-lm", nineteen_skips),
    "mds-3d-ds-on.out": ("megatron-deepspeed", jump_at_three),
    "ex-mds-396-gradnan.txt": ("megatron-deepspeed", vanished_losses),
    "ex-mds-scale1-skip1586.txt": ("megatron-deepspeed", stuck_scale),
    "ds-sft-opt1.3b.log": ("deepspeed", a_scaler_at_work),
    "ds-rm-opt350m.log": ("deepspeed", first_ten),
    "ex-fairseq-512-collapse.txt": ("fairseq", collapse_and_abort),
    "ex-fairseq-json-13b.txt": ("fairseq", numbers_as_strings),
    "ex-fairseq-nat-overflow.txt": ("fairseq", one_overflow),
    "pl-pinn-nan.csv": ("lightning-csv", nan_from_218),
    "yolo-anpr-inf.csv": ("ultralytics-csv", validation_inf),
    "keras-voice.log": ("keras-csv", overfit),
    "tb-brain-gradnan-a.tfevents": ("tensorboard", gradient_first),
}
"""File → the importer that must know it, and what must be read from it."""


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_is_known_is_read(name: str) -> None:
    source_format, check = KNOWN[name]
    run = sample(name)
    assert run.steps.source_format == source_format
    check(run.steps)


RULES = {
    "ex-mds-396-gradnan.txt": {"nonfinite-loss"},
    "ex-mds-scale1-skip1586.txt": {"high-skip-rate"},
    "ex-fairseq-512-collapse.txt": {"loss-scale-collapse"},
    "llmc-main.log": {"gradient-spike"},
    "mng-soap.txt": {"loss-spike"},
    "olmo-20m-zero-grad.log": {"gradient-vanishing"},
    "ex-collegeadvisor-loss0.json": {"nonfinite-loss"},
    "pl-pinn-nan.csv": {"nonfinite-loss", "dead-run"},
    "yolo-anpr-inf.csv": {"nonfinite-validation"},
    "keras-voice.log": {"overfitting"},
    "tb-brain-gradnan-a.tfevents": {"nonfinite-loss", "dead-run"},
}
"""File → rules that must fire on it."""


@pytest.mark.parametrize("name", sorted(RULES))
def test_what_is_known_to_be_wrong_is_found(name: str) -> None:
    assert RULES[name] <= {finding.rule for finding in diagnose(sample(name)).findings}

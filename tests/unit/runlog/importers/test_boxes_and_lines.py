"""Boxes, tables and lines of trainers that are not Hugging Face's: what is read of each."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.errors import InputError
from forensics.runlog.log_facts import PER_EPOCH
from forensics.runlog.run import load_run
from forensics.runlog.scanner.rounded_steps import ROUNDED
from tests.unit.runlog.importers.line_logs import (
    box,
    darknet,
    diffusion,
    marian,
    opennmt,
    verl,
    yolo,
)
from tests.unit.runlog.importers.logs import column, read, same


def serious(path: Path) -> list[str]:
    found = diagnose(load_run(path)).findings
    return [f"{f.rule}@{f.first_step}" for f in found if f.severity >= Severity.WARNING]


class TestVerl:
    def test_a_line_a_step_with_its_rewards(self, tmp_path: Path) -> None:
        table = read(tmp_path, "".join(verl(n) for n in range(1, 31)))
        assert table.source_format == "verl"
        assert table.step.tolist() == list(range(1, 31))
        assert table["loss"][0] == -0.012
        assert table["grad_l2_pre_clip"][0] == 0.231
        assert table["lr"][0] == 1e-6
        assert table["critic/rewards/mean"][-1] == 0.3
        assert serious(tmp_path / "it.log") == []

    def test_a_norm_that_turns_nan_dates_the_fault(self, tmp_path: Path) -> None:
        lines = [
            verl(n, loss=f"0.0{n % 7}1", norm="nan" if n > 20 else "0.231") for n in range(1, 41)
        ]
        read(tmp_path, "".join(lines))
        assert serious(tmp_path / "it.log")[0] == "nonfinite-gradient@21"
        read(tmp_path, "{'actor': {'dtype': 'float16'}}\n" + "".join(lines))
        assert serious(tmp_path / "it.log") == []  # it may be a loss scaler that finds its scale

    def test_values_in_numpys_words_and_new_keys_are_read(self, tmp_path: Path) -> None:
        text = verl(1).replace("-0.012", "np.float64(-0.5)") + verl(2, loss="0.25")
        more = verl(3).replace(" - timing_s", " - val-core/math/acc/mean@1:0.5 - timing_s")
        table = read(tmp_path, text * 1 + more + verl(4))
        assert same(column(table, "loss"), [-0.5, 0.25, -0.012, -0.012])

    def test_a_rate_in_thousandths_is_one(self, tmp_path: Path) -> None:
        text = "".join(f"step:{n} - train/loss:2.5 - train/lr(1e-3):0.010\n" for n in range(1, 13))
        table = read(tmp_path, text)
        assert same(column(table, "lr"), [1e-5] * 12)

    def test_a_rate_that_was_rounded_away_is_absent(self, tmp_path: Path) -> None:
        table = read(tmp_path, "".join(verl(n, rate="0.000") for n in range(1, 31)))
        assert not table.present("lr").any()


class TestBoxes:
    def test_a_diffusion_models_scale_is_a_power_of_two(self, tmp_path: Path) -> None:
        text = "".join(diffusion(10 * n, power=20 + n / 100) for n in range(30))
        table = read(tmp_path, "creating model and diffusion...\n" + text)
        assert table.source_format == "boxed-table"
        assert table.step.tolist() == list(range(0, 300, 10))
        assert table["scaler_scale"][0] == 2.0**20
        assert table["loss"][3] == 0.0134
        assert table.facts is not None
        assert table.facts.precision == "fp16"
        assert serious(tmp_path / "it.log") == []

    def test_notes_between_boxes_are_skipped_steps(self, tmp_path: Path) -> None:
        note = "Found NaN, decreased lg_loss_scale to 19.01\n"
        text = diffusion(0) + diffusion(10) + 2 * note + diffusion(20) + diffusion(30) + note
        table = read(tmp_path, text)
        assert same(column(table, "skipped_steps")[2:], [2, None, 1])
        assert table.step[-1] == 31
        assert table["scaler_scale"][-1] == pytest.approx(2**19.01)

    def test_steps_with_three_digits_are_told_apart(self, tmp_path: Path) -> None:
        table = read(tmp_path, "".join(diffusion(10900 + 10 * n) for n in range(40)))
        assert table.step.tolist() == list(range(10900, 11300, 10))
        assert table.facts is not None
        assert ROUNDED in table.facts.notes

    def test_sections_name_their_keys_and_rewards_are_known(self, tmp_path: Path) -> None:
        def one(n: int, loss: str) -> str:
            cells = {"rollout/": "", "ep_rew_mean": f"{20 + n}", "time/": "", "fps": "152"}
            cells |= {"total_timesteps": str(2048 * n), "train/": "", "learning_rate": "0.0003"}
            return box(cells | {"loss": loss, "value_loss": "39.5"})

        losses = ["13.7", "9.5", "21.2"] * 10
        table = read(tmp_path, "".join(one(n, x) for n, x in enumerate(losses, 1)))
        assert table.step[:2].tolist() == [2048, 4096]
        assert table["loss"][:3].tolist() == [13.7, 9.5, 21.2]
        assert table["lr"][0] == 0.0003
        assert table["rollout/ep_rew_mean"][0] == 21
        assert serious(tmp_path / "it.log") == []

    def test_a_table_of_results_is_no_log(self, tmp_path: Path) -> None:
        text = "\n".join(["| Model | Loss |", "|-------|------|", "| a | 2.5 |", "| b | 2.1 |"])
        with pytest.raises(InputError):
            read(tmp_path, text, "README.txt")


class TestConsoleTables:
    HEADER = "epoch     train_loss  valid_loss  accuracy  time    \n"

    def test_a_row_is_an_epoch(self, tmp_path: Path) -> None:
        rows = "".join(f"{n:<10}{3 - n / 10:.6f}    {2.9:.6f}    0.51  00:12\n" for n in range(8))
        table = read(tmp_path, self.HEADER + rows)
        assert table.source_format == "console-table"
        assert table.facts is not None
        assert table.facts.unit == PER_EPOCH
        assert same(column(table, "loss")[:2], [3.0, 2.9])
        assert table["val_loss"][0] == 2.9

    def test_what_was_not_measured_is_absent_and_nan_is_nan(self, tmp_path: Path) -> None:
        rows = "0  2.5  #na#  0.5  00:12\n1  nan  nan  0.5  00:12\n2  nan  nan  0.5  00:12\n"
        table = read(tmp_path, self.HEADER + rows)
        assert same(column(table, "val_loss"), [None, math.nan, math.nan])
        assert same(column(table, "loss"), [2.5, math.nan, math.nan])

    def test_a_line_of_dashes_may_follow_the_names(self, tmp_path: Path) -> None:
        text = (
            "  epoch    train_loss    valid_loss     dur\n-------  ------------  ----------  ----\n"
        )
        text += "".join(
            f"      {n}        0.{70 - n}05        0.6749  0.0321\n" for n in range(1, 6)
        )
        table = read(tmp_path, text)
        assert table.step.tolist() == [1, 2, 3, 4, 5]
        assert table["loss"][0] == 0.6905


def test_darknets_lines_among_those_of_its_layers(tmp_path: Path) -> None:
    layer = "Region 82 Avg IOU: 0.283213, Class: 0.5, Obj: 0.5, No Obj: 0.5, .5R: 0.2, count: {}\n"
    losses = ["731.25"] * 60 + ["nan"] * 60
    lines = (layer.format(n % 13) + darknet(n, loss=x) for n, x in enumerate(losses, 1))
    table = read(tmp_path, "".join(lines))
    assert table.source_format == "darknet"
    assert table.step.tolist() == list(range(1, 121))
    assert table["lr"][0] == 0.001
    assert math.isnan(table["loss"][60])
    assert table["loss"][59] == 731.25


def test_opennmts_reports_and_validations(tmp_path: Path) -> None:
    text = "".join(opennmt(50 * n, loss="-nan" if n == 9 else "7.31") for n in range(1, 10))
    table = read(tmp_path, text.replace("-nan", "nan") + "Validation perplexity: 54.5982\n")
    assert table.step.tolist() == list(range(50, 451, 50))
    assert math.isnan(table["loss"][-1])
    assert table["val_loss"][-1] == pytest.approx(4.0, abs=1e-4)
    assert table.facts is not None
    assert table.facts.planned_steps == 100_000


def test_marians_reports(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(marian(500 * n) for n in range(1, 13)))
    assert table.step.tolist() == list(range(500, 6001, 500))
    assert table["loss"][0] == 9.31337643
    assert table["lr"][0] == 3e-5
    assert table["grad_l2_pre_clip"][0] == 1.2345


class TestMlflow:
    @staticmethod
    def run_folder(tmp_path: Path, metrics: dict[str, list[tuple[str, int]]]) -> Path:
        run = tmp_path / "mlruns" / "0" / "abc"
        for name, points in metrics.items():
            file = run / "metrics" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            lines = (
                f"{1690000000000 + i} {value} {step}\n" for i, (value, step) in enumerate(points)
            )
            file.write_text("".join(lines))
        (run / "meta.yaml").write_text("run_id: abc\n")
        return run

    def test_a_metric_is_read_with_those_beside_it(self, tmp_path: Path) -> None:
        run = self.run_folder(
            tmp_path,
            {
                "train/loss": [(str(3 - n / 10), 10 * n) for n in range(10)],
                "grad_norm": [("nan" if n == 4 else "1.5", 20 * n) for n in range(5)],
                "system/gpu_0_power": [("300.0", 0)],
            },
        )
        for path in (run / "metrics" / "train" / "loss", run, run / "metrics"):
            table = load_run(path).steps
            assert table.source_format == "mlflow"
            assert table.step.tolist() == list(range(0, 100, 10))
            assert same(column(table, "loss")[:2], [3.0, 2.9])
            norms = [1.5, None, 1.5, None, 1.5, None, 1.5, None, math.nan, None]
            assert same(column(table, "grad_l2_pre_clip"), norms)

    def test_values_without_a_step_are_counted(self, tmp_path: Path) -> None:
        run = self.run_folder(tmp_path, {"loss": [(str(3 - n / 10), 0) for n in range(5)]})
        table = load_run(run / "metrics" / "loss").steps
        assert table.step.tolist() == [0, 1, 2, 3, 4]

    def test_of_a_step_the_last_value_counts(self, tmp_path: Path) -> None:
        run = self.run_folder(tmp_path, {"loss": [("3.0", 0), ("2.0", 1), ("2.5", 1), ("1.0", 2)]})
        table = load_run(run / "metrics" / "loss").steps
        assert same(column(table, "loss"), [3.0, 2.5, 1.0])

    def test_a_metric_of_no_column_is_named_with_what_to_type(self, tmp_path: Path) -> None:
        text = "".join(f"{1690000000000 + n} 0.5 {n}\n" for n in range(5))
        with pytest.raises(InputError, match="--map loss=wer"):
            read(tmp_path, text, "wer")
        assert read(tmp_path, text, "wer", mapping={"loss": "wer"})["loss"][0] == 0.5


class TestYolosConsole:
    def test_a_row_is_an_epoch_and_the_parts_are_summed(self, tmp_path: Path) -> None:
        states = yolo(1, losses="9.0  9.0  9.0", done="1/16") + yolo(1) + yolo(2)
        table = read(tmp_path, states + yolo(3, losses="nan  0.5  1.0"))
        assert table.source_format == "ultralytics-text"
        assert table.step.tolist() == [1, 2, 3]
        assert same(column(table, "loss"), [2.6356, 2.6356, math.nan])
        assert table["train/cls_loss"][0] == 0.4706
        assert table.facts is not None
        assert table.facts.unit == PER_EPOCH

    def test_the_total_that_yolov7_tells_is_the_loss(self, tmp_path: Path) -> None:
        head = "     Epoch   gpu_mem       box       obj       cls     total    labels  img_size\n"
        rows = "".join(
            f"      {n}/29     4.3G   0.05   0.03   0.02   0.11   123   640: 100%|#| 9/9\n"
            for n in range(4)
        )
        table = read(tmp_path, head + rows)
        assert table.step.tolist() == [0, 1, 2, 3]
        assert table["loss"].tolist() == [0.11] * 4


class TestDictsInLines:
    def test_a_dict_of_python_behind_its_step_is_read(self, tmp_path: Path) -> None:
        text = "".join(
            f"[10:00:00] model.py:5 - step {n}: {{'train/loss': {'nan' if n == 3 else 2.5}, "
            f"'train/grad_norm': np.float64(1.5), 'note': None}}\n"
            for n in range(1, 6)
        )
        table = read(tmp_path, text)
        assert table.source_format == "json-in-lines"
        assert table.step.tolist() == [1, 2, 3, 4, 5]
        assert same(column(table, "loss"), [2.5, 2.5, math.nan, 2.5, 2.5])
        assert table["grad_l2_pre_clip"][0] == 1.5

    def test_its_own_step_goes_before_the_one_in_front(self, tmp_path: Path) -> None:
        line = "step 9: {{'train/loss': 2.5, 'train/step': {n}}}\n"
        table = read(tmp_path, "".join(line.format(n=n) for n in range(5)))
        assert table.step.tolist() == [0, 1, 2, 3, 4]

"""Megatron-LM and what grew from it: vanished losses, counters, notes between the records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.runlog.log_facts import Meaning
from forensics.runlog.run import load_run
from tests.unit.runlog.importers.line_logs import engine, megatron, overflow
from tests.unit.runlog.importers.logs import column, read, same

NAN = float("nan")


def brackets(table: object) -> list[tuple[int, int, int]]:
    return [(b.first_step, b.last_step, b.count) for b in table.skip_brackets]  # type: ignore[attr-defined]


def test_counters_are_per_interval_and_a_loss_of_skipped_ones_is_no_nan(tmp_path: Path) -> None:
    text = megatron(10, loss="", norm="", scale="4194304.0", skipped=10)
    text += megatron(20, scale="65536.0", norm="", skipped=6) + megatron(30, skipped=0)
    table = read(tmp_path, text)
    assert table.source_format == "megatron-lm"
    assert table.interval == 10
    assert brackets(table) == [(1, 10, 10), (11, 20, 6)]
    assert same(column(table, "loss"), [None, 2.5, 2.5])
    facts = table.facts
    assert facts is not None
    assert facts.planned_steps == 100
    assert facts.precision == "fp16"
    assert facts.meanings["loss"] is Meaning.MEAN


def test_a_loss_that_vanished_is_nan(tmp_path: Path) -> None:
    text = "".join(megatron(s) for s in (1, 2, 3)) + megatron(4, loss="", norm="nan")
    table = read(tmp_path, text + megatron(5, loss="", norm="nan"))
    assert same(column(table, "loss"), [2.5, 2.5, 2.5, NAN, NAN])
    assert table.facts is not None
    assert any("2 records without a loss read as NaN" in note for note in table.facts.notes)


def test_skipped_iterations_whose_loss_was_nan(tmp_path: Path) -> None:
    text = "".join(megatron(10 * n) for n in (1, 2))
    text += megatron(30, loss="", norm="", skipped=10, nans=4)
    text += megatron(40, loss="", norm="", skipped=10)
    assert same(column(read(tmp_path, text), "loss"), [2.5, 2.5, NAN, None])


def test_a_log_that_never_prints_a_loss_is_not_all_nan(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(megatron(s, loss="") for s in range(1, 6)))
    assert "loss" not in table
    assert table.facts is not None
    assert "losses" in table.facts.unknown


def test_placeholders_of_deepspeed_are_left_out(tmp_path: Path) -> None:
    text = "".join(megatron(s, scale="-1.0", norm="0.000") for s in (1, 2, 3))
    table = read(tmp_path, text.replace("lm loss", "lm-loss"))
    assert table.source_format == "megatron-deepspeed"
    assert not table.has("scaler_scale")
    assert not table.has("grad_l2_pre_clip")
    assert table["loss"].tolist() == [2.5] * 3


def test_under_deepspeed_a_skip_has_a_note_a_stale_norm_and_a_count_of_0(tmp_path: Path) -> None:
    text = megatron(1, norm="1.500")
    text += overflow("65536", "32768") * 1 + megatron(2, norm="1.500", scale="32768.0")
    text += megatron(3, norm="0.900", scale="32768.0")
    table = read(tmp_path, text)
    assert brackets(table) == [(2, 2, 1)]
    assert column(table, "grad_l2_pre_clip") == [1.5, None, 0.9]
    assert table["scaler_scale"].tolist()[2] == 32768.0


def test_the_scale_in_force_at_a_skip_is_the_one_before_its_update(tmp_path: Path) -> None:
    text = megatron(1, scale="65536.0") + megatron(2, scale="32768.0", skipped=1, loss="")
    table = read(tmp_path, text + megatron(3, scale="32768.0"))
    assert table["scaler_scale"].tolist() == [65536.0, 65536.0, 32768.0]


def test_ranks_tell_of_the_same_overflow(tmp_path: Path) -> None:
    ranks = "".join(overflow("65536", "32768", rank) for rank in range(4))
    glued = ranks.replace("\n", "")  # and may run into one line
    for notes in (ranks, glued + "\n"):
        table = read(tmp_path, "".join(megatron(10 * n) for n in (1, 2)) + notes + megatron(30))
        assert brackets(table) == [(21, 30, 1)]


def test_the_engines_counter_goes_before_the_notes(tmp_path: Path) -> None:
    text = "".join(megatron(s) + engine(s, 0) for s in range(1, 6))
    text += "…\n" + megatron(300) + engine(300, 120)
    table = read(tmp_path, text + megatron(301) + engine(301, 121))
    assert sum(b.count for b in table.skip_brackets) in (120, 121)
    assert max(b.count for b in table.skip_brackets) == 120


def test_validation_and_records_of_other_cells(tmp_path: Path) -> None:
    text = megatron(10) + megatron(20)
    text += " validation loss at iteration 20 | lm loss value: 2.25E+00 | lm loss PPL: 9.4E+00 | \n"
    text += megatron(30).replace("| loss scale", "| load_balancing_loss: 1.0E+00 | loss scale")
    text += " validation loss at iteration 35 on validation set | lm loss value: 2.00E+00 |\n"
    table = read(tmp_path, text + megatron(40))
    assert table.step.tolist() == [10, 20, 30, 35, 40]
    assert column(table, "val_loss") == [None, 2.25, None, 2.0, None]
    assert column(table, "loss") == [2.5, 2.5, 2.5, None, 2.5]


@pytest.mark.parametrize(
    "text",
    [
        # GPT-NeoX
        " samples/sec: 12.3 | iteration {s:8}/   320 | elapsed time per iteration (ms): 81.2 | "
        "learning rate: 1.000E-04 | approx flops per GPU: 43.2TFLOPS | lm_loss: 2.5E+00 | "
        "loss scale: 65536.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        "\n",
        # the first versions, and GLM
        " iteration {s:8}/   320 | elapsed time per iteration (ms): 81.2 | learning rate 1.000E-04 "
        "| lm loss 2.5E+00 | loss scale 65536.0 |\n",
        # with a date in front and more cells, as newer ones
        " [2024-05-01 10:00:00] iteration {s:8}/     320 | consumed samples:          80 | elapsed "
        "time per iteration (ms): 81.2 | throughput per GPU (TFLOP/s/GPU): 101.3 | "
        "learning rate: 1.000E-04 | global batch size:     8 | lm loss: 2.5E+00 | "
        "loss scale: 65536.0 | grad norm: 1.5 | num zeros: 12.0 | params norm: 99.0 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n",
    ],
)
def test_versions(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, "".join(text.format(s=10 * n) for n in (1, 2, 3)))
    assert table.source_format in ("megatron-lm", "megatron-deepspeed")
    assert table.step.tolist() == [10, 20, 30]
    assert table["loss"].tolist() == [2.5] * 3
    assert table["lr"].tolist() == [1e-4] * 3
    assert table["scaler_scale"].tolist() == [65536.0] * 3


@pytest.mark.parametrize("prefix", ["[default7]:", "0: ", "[rank0]: ", "\x1b[32mINFO\x1b[0m "])
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    lines = "".join(megatron(s) for s in range(1, 9)).splitlines(keepends=True)
    table = read(tmp_path, "".join(prefix + line for line in lines))
    assert table.step.tolist() == list(range(1, 9))


def test_a_line_of_another_rank_at_the_end_of_a_record(tmp_path: Path) -> None:
    tail = "[Rank 7] (after 20 iterations) memory (MB) | allocated: 21633.0 | reserved: 29116.0"
    text = "".join(megatron(s)[:-1] + tail + "\n" * (s % 2) for s in range(1, 9))
    table = read(tmp_path, text)
    assert table.step.tolist() == list(range(1, 9))
    assert table["grad_l2_pre_clip"].tolist() == [0.75] * 8


def test_records_that_ran_into_one_line(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(megatron(s) for s in range(1, 9)).replace("|\n", "|") + "\n")
    assert table.step.tolist() == list(range(1, 9))
    assert table["loss"].tolist() == [2.5] * 8


def test_what_the_arguments_say(tmp_path: Path) -> None:
    options = "".join(
        f"  {name} {'.' * (40 - len(name))} {value}\n"
        for name, value in (
            ("bf16", "False"),
            ("clip_grad", "1.0"),
            ("fp16", "True"),
            ("hysteresis", "2"),
            ("initial_loss_scale", "4294967296"),
            ("loss_scale_window", "500"),
            ("min_loss_scale", "1.0"),
        )
    )
    facts = read(tmp_path, options + "".join(megatron(s) for s in range(1, 4))).facts
    assert facts is not None
    assert facts.clip_threshold == 1.0
    assert facts.precision == "fp16"
    assert facts.scaler is not None
    assert facts.scaler.initial_scale == 2.0**32
    assert (facts.scaler.growth_interval, facts.scaler.hysteresis) == (500, 2)


def test_a_rollback_is_cut_at_the_seam(tmp_path: Path) -> None:
    text = "".join(megatron(s) for s in range(1, 41))
    text += "".join(megatron(s, loss="2.0E+00") for s in range(31, 51))
    table = read(tmp_path, text)
    assert table.step.tolist() == list(range(1, 51))
    assert table["loss"].tolist() == [2.5] * 30 + [2.0] * 20
    assert len(table.earlier) == 1
    assert [repair.line for repair in table.repairs] == [None] * len(table.repairs)


def test_many_blocks_are_one_log(tmp_path: Path) -> None:
    """Larger than a block, with notes: each is counted once, for the record that follows."""
    rows = 12_000
    text = "".join(
        overflow("65536", "32768") * (s % 1000 == 0) + megatron(s, total=rows)
        for s in range(1, rows + 1)
    )
    assert len(text) > 3 << 20
    table = read(tmp_path, text)
    assert table.step.tolist() == list(range(1, rows + 1))
    assert [b.first_step for b in table.skip_brackets] == list(range(1000, rows + 1, 1000))


def test_a_healthy_start_of_the_scaler_raises_nothing(tmp_path: Path) -> None:
    scale = 2.0**32
    lines = []
    for step in range(1, 400):
        skipped = int(step <= 17)
        scale /= 1 + skipped
        loss = "" if skipped else f"{2 + 8 / (1 + step / 40):.6E}"
        lines.append(megatron(step, loss=loss, norm="" if skipped else f"{0.7 + step % 5 / 9:.3f}",
                              scale=f"{scale:.1f}", skipped=skipped))  # fmt: skip
    path = tmp_path / "it.log"
    path.write_text("".join(lines))
    found = diagnose(load_run(path)).findings
    assert [f.message for f in found if f.severity >= Severity.WARNING] == []
    assert np.isfinite(load_run(path).steps["scaler_scale"]).all()


def test_a_log_in_which_no_record_has_a_loss_says_what_that_may_mean(tmp_path: Path) -> None:
    table = read(tmp_path, "".join(megatron(n, loss="", norm="", scale="1.0") for n in range(1, 4)))
    assert "loss" not in table
    assert table.facts is not None
    assert any("leaves out where it is NaN" in note for note in table.facts.notes)

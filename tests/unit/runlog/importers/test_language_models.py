"""torchtitan, OLMo, nanoGPT, llm.c and relatives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import InputError
from forensics.runlog.reading import Reading
from tests.unit.runlog.importers.logs import column, read, same

NAN = float("nan")
TITAN = "[titan] 2026-01-02 03:04:05,678 - root - INFO - "


def titan(step: int, loss: str, norm: str = "1.5000") -> str:
    return (
        f"{TITAN}\x1b[31mstep: {step:2}  \x1b[32mloss: {loss:>7}  \x1b[38;2;180;60;0mgrad_norm: "
        f"{norm:>7}  \x1b[34mmemory: 66.91GiB(37.51%)  \x1b[36mtps: 10,050  mfu: 13.99%\x1b[39m\n"
    )


def test_torchtitan_in_colours_from_several_ranks(tmp_path: Path) -> None:
    text = "".join(titan(s, f"{7 - s / 8:.5f}") * 3 for s in (1, 2, 3))
    table = read(tmp_path, text + titan(4, "nan", "nan"))
    assert table.source_format == "torchtitan"
    assert table.step.tolist() == [1, 2, 3, 4]
    assert same(column(table, "loss"), [6.875, 6.75, 6.625, NAN])
    assert table["tokens_per_s"][0] == 10050.0
    assert {repair.kind for repair in table.repairs} == {"merged-ranks"}


def test_ranks_that_ran_into_one_line(tmp_path: Path) -> None:
    text = (titan(1, "7.5") + titan(2, "7.25")).replace("\n", "", 1)
    assert column(read(tmp_path, text), "loss") == [7.5, 7.25]


def olmo(step: str, **metrics: str) -> str:
    lines = "".join(f"    {name.replace('__', '/')}={value}\n" for name, value in metrics.items())
    return f"2026-01-02 03:04:05\thost:0\tolmo.train:990\tINFO\t[step={step},epoch=0]\n{lines}"


def test_olmo_records_of_several_lines_with_thousands(tmp_path: Path) -> None:
    text = "INFO Configuration\n"
    for step in ("999/2,500", "1,000/2,500", "1,001/2,500"):
        text += olmo(
            step,
            train__CrossEntropyLoss="7.25",
            optim__total_grad_norm="0.0",
            optim__learning_rate_group0="1e-4",
            throughput__device__tokens_per_second="83,461",
            grad__other_l2_norm="9.0",
        )
    table = read(tmp_path, text + "INFO done\n")
    assert table.source_format == "olmo"
    assert set(table["epoch"].tolist()) == {0.0}
    assert table.step.tolist() == [999, 1000, 1001]
    assert column(table, "grad_l2_pre_clip") == [0.0] * 3
    assert column(table, "lr") == [1e-4] * 3
    assert table.facts is not None
    assert table.facts.planned_steps == 2500


def test_an_olmo_record_across_the_end_of_a_block_is_whole(tmp_path: Path) -> None:
    padding = {f"grad__p{i}_norm": "0.123456789" for i in range(60)}
    rows = 1500  # more than two blocks
    text = "".join(
        olmo(f"{s}", train__CrossEntropyLoss=f"{s}.5", **padding) for s in range(1, rows + 1)
    )
    assert len(text) > 2 << 20
    table = read(tmp_path, text)
    np.testing.assert_array_equal(table["loss"], np.arange(1, rows + 1) + 0.5)


def test_nanogpt_iterations_and_evaluations(tmp_path: Path) -> None:
    text = "number of parameters: 123.59M\nstep 0: train loss 10.9871, val loss 10.9788\n"
    text += "iter 0: loss 10.5, time 45.00ms, mfu -100.00%\niter 10: loss 9.5, time 4ms, mfu 3%\n"
    table = read(tmp_path, text)
    assert table.source_format == "nanogpt"
    assert table.step.tolist() == [0, 10]
    assert column(table, "loss") == [10.5, 9.5]
    assert column(table, "val_loss") == [10.9788, None]


def test_modded_nanogpt_after_its_source_code_and_twice(tmp_path: Path) -> None:
    code = 'print0(f"step:{step+1}/{args.num_iterations} train_loss:{loss.item():.4f}")\n' * 400
    run = "step:0/40 val_loss:11.0149 train_time:305ms step_avg:nanms\n" + "".join(
        f"step:{s}/40 train_loss:{11 - s / 8:.4f} train_time:24179ms step_avg:nanms\n"
        for s in range(1, 21)
    )
    table = read(tmp_path, code + run + run)
    assert table.source_format == "modded-nanogpt"
    assert table.step.tolist() == list(range(21))
    assert column(table, "loss")[:3] == [None, 10.875, 10.75]
    assert [len(old) for old in table.earlier] == [21]
    assert table.facts is not None
    assert table.facts.planned_steps == 40


def test_a_very_long_preamble_is_looked_through(tmp_path: Path) -> None:
    text = "# a line of source code that tells nothing at all of a training\n" * 20_000
    assert len(text) > 1 << 20
    assert read(tmp_path, text + titan(1, "2.5") + titan(2, "2.0")).step.tolist() == [1, 2]


def test_a_mapping_says_nothing_to_lines(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read(tmp_path, titan(1, "2.5"), mapping={"loss": "tps"})
    assert Reading().plain


def test_llm_c_rates_that_print_as_zero_are_absent(tmp_path: Path) -> None:
    text = "s:0 tel:11.0\ns:0 trl:11.0 lr:0.000001 norm:15.37\ns:1 trl:10.5 lr:0.000000 norm:2.00\n"
    table = read(tmp_path, text + "s:2 eval:0.2445\n")
    assert table.source_format == "llm-c"
    assert column(table, "lr")[:2] == [1e-6, None]
    assert column(table, "val_loss")[:2] == [11.0, None]
    assert table.facts is not None
    assert table.facts.notes


def test_llm_c_console_and_relatives(tmp_path: Path) -> None:
    console = "".join(
        f"step {s:4}/19560 | loss {11 - s}.009113 (+nanz)| norm 15.3696 (-0.1z)| lr 8.57e-07 | "
        "3056.36 ms\n"
        for s in (1, 2)
    )
    relative = "".join(
        f"step {s:5} | loss: {11 - s}.009113 | lr 8.57e-07 | norm: 15.3696 | dt: 276.51ms\n"
        for s in (1, 2)
    )
    percent = "".join(
        f"step {s:05}/21400 ({s / 214:.2f}%) | loss: {11 - s}.009113 | grad norm: 15.3696 | "
        "lr: 8.57e-07 | dt: 1.00ms | tok/sec: 1,000 | mfu: 1.2\n"
        for s in (1, 2)
    )
    for text in (console, relative, percent):
        table = read(tmp_path, text)
        assert table.source_format == "step-table"
        assert column(table, "loss") == [10.009113, 9.009113]
        assert column(table, "grad_l2_pre_clip") == [15.3696] * 2
        assert column(table, "lr") == [8.57e-07] * 2


def test_olmo_core(tmp_path: Path) -> None:
    text = "".join(
        f"2025-01-01T00:00:00.123Z\thost:0\tolmo_core.train.callbacks.console_logger:103\tINFO\t"
        f"[step={s}/1000,epoch=1,eta=1h]\n    optim/LR (group 0)=0.0001\n"
        f"    optim/total grad norm=1.250\n    train/CE loss=10.3\n    train/PPL=29,732\n"
        for s in (10, 20, 30)
    )
    for prefix in ("", "0: "):
        lines = "".join(prefix + line for line in text.splitlines(keepends=True))
        table = read(tmp_path, lines)
        assert table.step.tolist() == [10, 20, 30]
        assert column(table, "loss") == [10.3] * 3
        assert column(table, "lr") == [1e-4] * 3
        assert column(table, "grad_l2_pre_clip") == [1.25] * 3


def test_modded_nanogpt_without_training_losses(tmp_path: Path) -> None:
    text = "".join(
        f"step:{s}/1750 val_loss:{11 - s / 500:.4f} train_time:{s}ms step_avg:1.0ms\n"
        * (s % 125 == 0)
        + f"step:{s + 1}/1750 train_time:{s}ms step_avg:1.0ms\n"
        for s in range(0, 500)
    )
    table = read(tmp_path, text)
    assert table.source_format == "modded-nanogpt"
    assert table.step[-1] == 500
    assert table["val_loss"][table.present("val_loss")].tolist() == [11.0, 10.75, 10.5, 10.25]


def test_torchtitan_validation_is_no_training(tmp_path: Path) -> None:
    text = titan(1, "7.5") + titan(2, "7.25")
    text += f"{TITAN}validate step:  2  loss:  7.12500  memory: 20.1GiB(21.20%)  tps: 9,000\n"
    table = read(tmp_path, text + titan(3, "7.0"))
    assert column(table, "loss") == [7.5, 7.25, 7.0]
    assert column(table, "val_loss") == [None, 7.125, None]


def test_nanogpt_in_a_notebook(tmp_path: Path) -> None:
    lines = [f"iter {n}: loss {4 - n / 10:.4f}, time 12.31ms, mfu -100.00%\n" for n in range(9)]
    cell = {"cell_type": "code", "outputs": [{"output_type": "stream", "text": lines}]}
    table = read(tmp_path, json.dumps({"cells": [cell]}, indent=1), "it.ipynb")
    assert table.source_format == "nanogpt"
    assert table.step.tolist() == list(range(9))
    assert table["loss"][8] == 3.2


def test_nanogpt_evaluations_alone(tmp_path: Path) -> None:
    text = "".join(
        f"step {n}: train loss {4 - n / 1000:.4f}, val loss {4.1 - n / 1000:.4f}\n"
        for n in (0, 250, 500)
    )
    table = read(tmp_path, text)
    assert column(table, "loss") == [4.0, 3.75, 3.5]
    assert table.facts is not None
    assert any("estimates" in note for note in table.facts.notes)


def test_colours_that_lost_their_escape_character(tmp_path: Path) -> None:
    text = "".join(titan(s, f"{7 - s / 8:.3f}") for s in (1, 2, 3)).replace("\x1b", "")
    assert "[31mstep" in text
    table = read(tmp_path, text)
    assert table.source_format == "torchtitan"
    assert column(table, "loss") == [6.875, 6.75, 6.625]
    assert column(table, "grad_l2_pre_clip") == [1.5] * 3

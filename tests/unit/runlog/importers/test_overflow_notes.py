"""DeepSpeed's and Apex' notes: counters, hysteresis, ranks, two engines, and no step at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.runlog.run import load_run
from tests.unit.runlog.importers.line_logs import STAMP, engine, overflow
from tests.unit.runlog.importers.logs import column, read


def brackets(table: object) -> list[tuple[int, int, int]]:
    return [(b.first_step, b.last_step, b.count) for b in table.skip_brackets]  # type: ignore[attr-defined]


def test_the_counter_is_cumulative_and_hysteresis_leaves_the_scale_alone(tmp_path: Path) -> None:
    text = overflow("65536") + overflow("65536", "32768") + engine(10, 2) + engine(20, 2)
    text += overflow("32768") + engine(30, 3)
    table = read(tmp_path, text)
    assert table.source_format == "deepspeed"
    assert table.step.tolist() == [10, 20, 30]
    assert brackets(table) == [(1, 10, 2), (21, 30, 1)]
    assert column(table, "scaler_scale") == [32768.0, None, 32768.0]
    facts = table.facts
    assert facts is not None
    assert facts.scaler is not None
    assert (facts.scaler.initial_scale, facts.scaler.hysteresis) == (65536.0, 2)
    assert "2 of 3 overflows left the loss scale alone (hysteresis)" in facts.notes


def test_iterations_that_are_told_are_exact_and_0_based(tmp_path: Path) -> None:
    def fused(iteration: int, was: float) -> str:
        at = f"{STAMP} [fused_optimizer.py:362:_update_scale] "
        ranks = f"{at}\nGrad overflow on iteration {iteration}\n"
        scale = f"{at}Reducing dynamic loss scale from {was} to {was / 2}\n"
        return ranks * 3 + scale * 2 + ranks + scale

    text = "".join(fused(n, 65536 / 2**n) for n in range(3)) + engine(10, 3) + engine(20, 3)
    table = read(tmp_path, text)
    assert table.step.tolist() == [1, 2, 3, 10, 20]
    assert column(table, "skipped_steps") == [1, 1, 1, 0, 0]
    assert column(table, "scaler_scale")[:3] == [65536.0, 32768.0, 16384.0]


def test_of_two_engines_the_first_is_read(tmp_path: Path) -> None:
    text = "".join(
        engine(10 * n, n, "1e-05") + overflow("64", "32") + engine(10 * n, 7 * n, "5e-06")
        for n in range(1, 5)
    )
    table = read(tmp_path, text)
    assert table.step.tolist() == [10, 20, 30, 40]
    assert table["lr"].tolist() == [1e-5] * 4
    assert [count for _, _, count in brackets(table)] == [1, 1, 1, 1]
    assert table.facts is not None
    assert any("two engines" in note for note in table.facts.notes)


def test_pipeline_losses(tmp_path: Path) -> None:
    text = "".join(
        overflow("64", "32") * (s == 3)
        + f"steps: {s} loss: {3 - s / 10:.4f} iter time (s): 1.206 samples/sec: 26.538\n"
        for s in range(1, 6)
    )
    table = read(tmp_path, text)
    assert table["loss"].tolist() == pytest.approx([2.9, 2.8, 2.7, 2.6, 2.5])
    assert brackets(table) == [(3, 3, 1)]


OLD = (
    "[deepscale] OVERFLOW! Rank {rank} Skipping step. "
    "Attempted loss scale: {was}, reducing to {now}\n"
)


def test_notes_between_the_states_of_a_bar(tmp_path: Path) -> None:
    text = ""
    for step in range(0, 51, 5):
        text += f"\r {2 * step:3}%|##    | {step}/50 [00:{step:02}<01:00, 1.0s/it]"
        if step == 20:
            text += (
                "\n"
                + OLD.format(rank=0, was=256, now=256.0)
                + OLD.format(rank=6, was=256, now=256.0)
            )
        if step == 35:
            text += "\n" + OLD.format(rank=0, was=256.0, now=128.0)
    table = read(tmp_path, text + "\n")
    assert table.source_format == "deepspeed"
    assert brackets(table) == [(21, 25, 1), (36, 40, 1)]
    assert table.facts is not None
    assert "2 overflows, dated by the progress bar around the notes" in table.facts.notes


def test_notes_alone_are_numbered_and_ranks_are_not_counted_twice(tmp_path: Path) -> None:
    text = "".join(
        OLD.format(rank=rank, was=was, now=now)
        for was, now in ((256, 256.0), (256.0, 128.0))
        for rank in (6, 0, 13)
    )
    table = read(tmp_path, text)
    assert column(table, "scaler_scale") == [256.0, 256.0, 128.0]
    assert table.facts is not None
    assert "2 overflows, of which 1 left the loss scale alone" in table.facts.notes
    assert "at which steps it overflowed" in table.facts.unknown


APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"


def test_a_few_notes_of_apex_are_a_scaler_at_work(tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    path.write_text("epoch 1\n" + APEX.format(32768.0) + "epoch 2\n" + APEX.format(16384.0))
    run = load_run(path)
    assert run.steps.source_format == "apex"
    assert column(run.steps, "scaler_scale") == [65536.0, 32768.0, 16384.0]
    assert [f for f in diagnose(run).findings if f.severity >= Severity.WARNING] == []


def test_a_scale_that_apex_halves_to_nothing_is_found(tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    path.write_text("".join(APEX.format(2.0**n) for n in range(15, -120, -1)))
    rules = {f.rule for f in diagnose(load_run(path)).findings if f.severity >= Severity.ERROR}
    assert "loss-scale-collapse" in rules


def test_notes_between_the_records_of_a_trainer(tmp_path: Path) -> None:
    text = ""
    for step in range(5, 61, 5):
        text += f"\r {step:3}%|##    | {step}/60 [00:{step - 1:02}<01:00, 1.0s/it]"
        if step in (20, 35):
            text += "\n" + "".join(OLD.format(rank=r, was=256.0, now=128.0) for r in (0, 1))
        text += f"   {{'loss': {3 - step / 100}, 'learning_rate': 1e-05, 'epoch': {step / 60}}}\n"
    table = read(tmp_path, text)
    assert table.source_format == "hf-stdout"
    assert brackets(table) == [(16, 20, 1), (31, 35, 1)]
    assert column(table, "scaler_scale")[3] == 128.0
    assert column(table, "loss")[-1] == pytest.approx(2.4)


def test_losses_that_each_micro_batch_prints(tmp_path: Path) -> None:
    def printed(step: int, loss: float) -> str:
        return "".join(
            f"Epoch: 0, Step: {step}, Rank: {rank}, loss = {loss + rank}\n" for rank in (0, 1)
        )

    text = "".join(printed(s, 3 - s / 10) + engine(s + 1, 0) * (s % 5 == 4) for s in range(10))
    text += printed(10, float("nan")) + printed(11, 1.5) + engine(15, 0)
    table = read(tmp_path, text)
    assert table.step.tolist() == [5, 10, 15]
    assert table["loss"][:2].tolist() == pytest.approx([2.6, 2.1])
    assert table["loss"][2] != table["loss"][2]


def test_a_note_before_the_first_that_is_dated_comes_right_before_it(tmp_path: Path) -> None:
    logged = f"{STAMP} [Rank 0] Overflow detected. Skipping step. Attempted loss scale: {{}}, "
    logged += "reducing to {}\n"
    text = logged.format(64.0, 32.0)
    for iteration, scale in ((5, 32.0), (6, 16.0)):
        text += f"{STAMP} [fused_optimizer.py:382:_update_scale]\nGrad overflow on iteration "
        text += f"{iteration}\n" + logged.format(scale, scale / 2)
    table = read(tmp_path, text)
    assert table.step.tolist() == [5, 6, 7]  # 0-based iterations
    assert column(table, "skipped_steps") == [1, 1, 1]
    assert not table.repairs


TOLD_BY_DEEPSPEED = (
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}"
)
TOLD_BY_APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {1}"


@pytest.mark.parametrize(
    ("name", "note"), [("deepspeed", TOLD_BY_DEEPSPEED), ("apex", TOLD_BY_APEX)]
)
def test_notes_between_lines_of_the_loop_are_counted_for_the_line_after_them(
    tmp_path: Path, name: str, note: str
) -> None:
    lines = [f"epoch 1 step {n}/90 loss {3 - n / 90:.2f} lr 0.01" for n in range(10, 60, 10)]
    notes = [note.format(2.0 * s, 1.0 * s) for s in (64, 32, 16)]
    table = read(tmp_path, "\n".join([*lines[:3], *notes[:2], *lines[3:], notes[2]]) + "\n")
    assert table.source_format == name
    assert table.step.tolist() == [10, 20, 30, 40, 50, 51]
    assert column(table, "skipped_steps") == [None, None, None, 2, None, 1]
    assert column(table, "scaler_scale")[3] == 32.0
    assert column(table, "loss")[0] == 2.89
    assert table.facts is not None
    assert "3 overflows noted between the lines" in table.facts.notes


def test_of_steps_that_print_no_line_when_they_are_skipped(tmp_path: Path) -> None:
    note = "OVERFLOW! Skipping step. Attempted loss scale: {}\n"
    line = "Train iter {:8} loss {}.5 Grad Norm 9.75 3.22s/it\n"
    text = note.format(256.0) + note.format(128.0) + line.format(16, 7)
    text += note.format(64.0) + "".join(line.format(n, 30 - n) for n in range(18, 24))
    table = read(tmp_path, text)
    assert table.step.tolist() == [14, 15, 16, 17, *range(18, 24)]
    assert column(table, "skipped_steps")[:5] == [1, 1, None, 1, None]
    assert column(table, "scaler_scale")[:4] == [None, 128.0, None, 64.0]
    assert column(table, "loss")[2:5] == [7.5, None, 12.5]


def test_ranks_that_apex_does_not_name_tell_of_one_overflow(tmp_path: Path) -> None:
    lines = [f"step {n}/90 loss 2.{n}" for n in range(10, 60, 10)]
    ranks = [TOLD_BY_APEX.format(0, 64.0)] * 4 + [TOLD_BY_APEX.format(0, 32.0) * 4]
    table = read(tmp_path, "\n".join([*lines[:2], *ranks, *lines[2:]]) + "\n")
    assert column(table, "skipped_steps") == [None, None, 2, None, None]


@pytest.mark.parametrize(
    ("told", "rows"),
    [
        ([64.0] * 4 + [32.0] * 4 + [16.0] * 4, 3),  # four ranks
        ([64.0, 32.0, 16.0, 16.0, 16.0], 5),  # one, and a floor
    ],
)
def test_apex_notes_alone_are_counted_once_a_step(
    tmp_path: Path, told: list[float], rows: int
) -> None:
    table = read(tmp_path, "".join(TOLD_BY_APEX.format(0, scale) + "\n" for scale in told))
    assert len(table) == rows + 1  # and the scale after the last
    assert table["scaler_scale"][:3].tolist() == [128.0, 64.0, 32.0]


def test_a_note_behind_a_bar_belongs_to_the_next_state_of_the_bar(tmp_path: Path) -> None:
    text = "".join(
        f"[losses/total_loss: {n}.5 | losses/value_loss: 7.6]:  1%|#  | {n}/900 [00:0{n}<01:00, "
        f"1.2it/s]{overflow('64', '32').strip() if n == 5 else ''}\n"
        for n in range(1, 9)
    )
    table = read(tmp_path, text)
    assert table.source_format == "deepspeed"
    assert table.step.tolist() == list(range(1, 9))
    assert column(table, "skipped_steps")[4:6] == [None, 1]
    assert column(table, "loss")[4] == 5.5


def test_a_loss_that_the_loop_prints_beside_the_engines_counters(tmp_path: Path) -> None:
    def log(first: str, second: str) -> list[float | None]:
        lines = {"loss": "INFO - [Rank 0] Loss: {n}.5\n", "record": "{record}"}
        text = "".join(
            lines[part].format(n=n, record=engine(10 * n, 0))
            for n in range(1, 6)
            for part in (first, second)
        )
        text = text + "[Rank 1] Loss: 99.0\n" + "eval loss: 77.0\n"
        return column(read(tmp_path, overflow("64", "32") + text), "loss")

    assert log("loss", "record") == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert log("record", "loss") == [1.5, 2.5, 3.5, 4.5, 5.5]

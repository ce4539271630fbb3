"""The facts a report opens with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.facts import facts_of
from forensics.diagnose.finding import RunFacts
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Ended, Manifest, ScalerPolicy, Segment
from forensics.runlog.run import Run, load_run
from forensics.runlog.steps import Repair, StepTable

NAN = float("nan")


def facts(
    columns: dict[str, list[float]] | None = None,
    manifest: Manifest | None = None,
    superseded: tuple[StepTable, ...] = (),
) -> RunFacts:
    table = StepTable.from_arrays(columns or {"step": [0, 1, 2], "loss": [3.0, 2.0, 1.0]})
    run = Run(path=Path("runs/x"), steps=table, manifest=manifest, superseded=superseded)
    return facts_of(Signals(run))


def test_a_bare_log_tells_its_extent_and_nothing_it_cannot_know() -> None:
    assert facts() == RunFacts(
        path="runs/x", steps=3, first_step=0, last_step=2, source_format="forensics"
    )


def test_an_empty_log_has_no_first_step() -> None:
    made = facts({"step": []})
    assert (made.steps, made.first_step, made.last_step) == (0, None, None)


def test_precision_scaler_and_clip_come_from_the_manifest() -> None:
    made = facts(
        manifest=Manifest(precision="bf16", max_norm=0.5, scaler=ScalerPolicy(enabled=False))
    )
    assert (made.precision, made.scaler, made.clip_threshold) == ("bf16", False, 0.5)


@pytest.mark.parametrize(
    ("scale", "precision", "scaler"),
    [([65536.0, 65536.0, 32768.0], "fp16", True), ([1.0, 1.0, 1.0], "", False)],
)
def test_without_a_manifest_the_scale_tells(
    scale: list[float], precision: str, scaler: bool
) -> None:
    made = facts({"step": [0, 1, 2], "scaler_scale": scale})
    assert (made.precision, made.scaler) == (precision, scaler)


def test_the_clock_of_the_log_adds_up_over_resumes_and_gaps() -> None:
    clock = [1.0, 2.0, NAN, 4.0, 0.5, 2.5]  # 4 s, then a resume that ran for 2.5 s
    made = facts({"step": list(range(6)), "time_s": clock})
    assert made.duration_s == pytest.approx(6.5)


def test_a_clock_that_is_set_back_takes_no_time_and_gives_none() -> None:
    clock = [10.0, 20.0, 19.5, 30.0]
    assert facts({"step": list(range(4)), "time_s": clock}).duration_s == pytest.approx(30.5)
    of_day = [1.7e9, 1.7e9 + 5, 1.7e9 + 9]
    assert facts({"step": [0, 1, 2], "time_s": of_day}).duration_s == pytest.approx(9.0)
    back = Segment(started="2026-01-02T00:00:00+00:00", ended="2026-01-01T00:00:00+00:00")
    sound = Segment(started="2026-01-02T00:00:00+00:00", ended="2026-01-09T00:00:00+00:00")
    assert facts(manifest=Manifest(segments=(back, sound))).duration_s is None


def test_without_a_clock_the_segments_tell_unless_one_never_ended() -> None:
    first = Segment(started="2026-01-01T00:00:00+00:00", ended="2026-01-01T01:00:00+00:00")
    second = Segment(
        start_step=2, started="2026-01-02T00:00:00+00:00", ended="2026-01-02T00:30:00+00:00"
    )
    killed = Segment(started="2026-01-03T00:00:00+00:00", ended=None)
    assert facts(manifest=Manifest(segments=(first, second))).duration_s == 5_400
    assert facts(manifest=Manifest(segments=(first, killed))).duration_s is None
    assert (
        facts(manifest=Manifest(segments=(Segment(started="soon", ended="x"),))).duration_s is None
    )
    assert facts(manifest=Manifest()).duration_s is None


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended("finished", 20), ""),
        (Ended("interrupted", 1_400), "interrupted at step 1,400"),
        (
            Ended("alarm", 9, "100 skips in a row"),
            "stopped by its alarm at step 9: 100 skips in a row",
        ),
        (
            Ended("alarm", 9, "step 9: the last 100 steps were all skipped"),
            "stopped by its alarm at step 9: the last 100 steps were all skipped",
        ),
        (Ended("exception", 7, "ValueError: no"), "raised at step 7: ValueError: no"),
        (Ended("exception"), "raised"),
        (Ended("eaten", 1), "eaten at step 1"),
        (None, "no end recorded (killed, or still running)"),
    ],
)
def test_how_the_run_ended(ended: Ended | None, said: str) -> None:
    assert facts(manifest=Manifest(segments=(Segment(),), ended=ended)).ended == said


def test_what_the_recording_could_not_write_is_told() -> None:
    lost = ("params: 2 writes failed between steps 1 and 2 (No space left on device)",)
    assert facts(manifest=Manifest(missing=lost)).missing == lost
    assert facts().missing == ()


def test_repairs_of_all_parts_are_told() -> None:
    table = StepTable.from_arrays({"step": [0], "loss": [1.0]})
    table = StepTable(table.columns, repairs=(Repair("torn-last-line", "the last line was cut"),))
    run = Run(path=Path("x"), steps=table, part_repairs=(Repair("broken-part", "ranks"),))
    assert facts_of(Signals(run)).repairs == ("the last line was cut", "ranks")


def test_trouble_in_superseded_rows_is_told() -> None:
    table = StepTable.from_arrays(
        {
            "step": np.arange(40, 60),
            "loss": [1.0] * 5 + [NAN] * 15,
            "skipped": [0] * 5 + [1] * 15,
        }
    )
    assert facts(superseded=(table,)).superseded == (
        "replaced by a resume, steps 40 to 59: the loss was NaN from step 45 on and "
        "15 of 20 steps (75 %) were skipped",
    )


def test_an_earlier_run_in_the_same_file_is_told_apart_from_a_resume() -> None:
    earlier = StepTable.from_arrays({"step": [0, 1], "loss": [1.0, NAN]})
    table = StepTable.from_arrays({"step": [0, 1], "loss": [2.0, 1.0]})
    table = replace(table, earlier=(earlier,))
    run = Run(path=Path("x"), steps=table, superseded=table.earlier)
    assert facts_of(Signals(run)).superseded == (
        "an earlier run in this file, steps 0 to 1 (2 steps), is not judged here: "
        "the loss was NaN from step 1 on",
    )


def test_an_earlier_run_says_how_it_can_be_judged(tmp_path: Path) -> None:
    one = [f"{i},{2.0 + (i % 3) / 10}" for i in range(30)]
    log = tmp_path / "two.csv"
    log.write_text("\n".join(["step,loss", *one, *one[:20]]) + "\n")
    (told,) = facts_of(Signals(load_run(log))).superseded
    assert told == (
        f"an earlier run in this file, steps 0 to 29 (30 steps), is not judged here; to judge it: "
        f"head -n 31 {log} > earlier.csv, then report on that"
    )
    cut = tmp_path / "earlier.csv"
    cut.write_text("".join(log.read_text().splitlines(keepends=True)[:31]))
    assert load_run(cut).steps.step.tolist() == list(range(30))


def test_healthy_superseded_rows_are_not_worth_a_word() -> None:
    healthy = StepTable.from_arrays(
        {"step": np.arange(40, 60), "loss": [1.0] * 20, "skipped": [0] * 19 + [1]}
    )
    assert facts(superseded=(healthy, StepTable.from_arrays({}))).superseded == ()


@pytest.mark.parametrize(
    ("progress", "last", "counted"),
    [('"progress": {"global_step": %d}, ', 1450, False), ("", 29, True)],
)
def test_steps_of_an_object_within_a_record_are_found_else_rows_are_counted(
    progress: str, last: int, counted: bool, tmp_path: Path
) -> None:
    lines = [
        "{"
        + (progress % (50 * i) if progress else "")
        + f'"metrics": {{"train": {{"loss": {9 - i / 9}}}}}}}'
        for i in range(30)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines) + "\n")
    told = facts_of(Signals(load_run(log)))
    assert (told.last_step, told.counted) == (last, counted)

"""The words that every format shares."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from forensics.diagnose.finding import Evidence, Finding, RunFacts, Severity, Status, Verdict
from forensics.render.phrases import (
    duration,
    facts_line,
    message,
    points,
    remedies,
    span,
    tally,
)
from tests.unit.render.sample_diagnoses import facts, forward_overflow, outcomes, undecided


def finding(first: int, last: int, **changes: object) -> Finding:
    made = Finding(
        rule="loss-spike", severity=Severity.WARNING, message="m", first_step=first, last_step=last
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_facts_line_tells_what_is_known_in_order() -> None:
    assert facts_line(facts()) == "12,480 steps · fp16, GradScaler · clip at 1 · 3 h 12 min"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "fp16", "scaler": False}, "fp16, no loss scaler"),
        ({"precision": "bf16", "scaler": False}, "bf16"),
        ({"precision": "bf16", "scaler": True}, "bf16, GradScaler"),
        ({"precision": "fp16", "scaler": None}, "fp16"),
        ({"precision": "", "scaler": None}, ""),
    ],
)
def test_a_scaler_is_told_where_it_matters(changes: dict[str, object], said: str) -> None:
    line = facts_line(facts(clip_threshold=None, duration_s=None, **changes))
    assert line == " · ".join(["12,480 steps", *([said] if said else [])])


def test_a_scaler_of_another_trainer_has_no_name() -> None:
    assert "fp16, loss scaler" in facts_line(facts(source_format="deepspeed"))


@pytest.mark.parametrize(
    ("steps", "first", "last", "said"),
    [
        (1, 0, 0, "1 step"),
        (1, 7, 7, "1 row, step 7"),
        (20, 40, 59, "20 steps, 40 to 59"),
        (50, 0, 4_900, "50 rows, 0 to 4,900"),
        (0, None, None, "no steps"),
    ],
)
def test_the_extent_says_which_steps(
    steps: int, first: int | None, last: int | None, said: str
) -> None:
    run = RunFacts(
        path="x", steps=steps, first_step=first, last_step=last, source_format="forensics"
    )
    assert facts_line(run) == said


def test_rows_that_were_counted_are_never_called_steps() -> None:
    run = replace(facts(), steps=300, first_step=0, last_step=299, interval=1, counted=True)
    assert facts_line(run).startswith("300 rows, counted: the log names no steps")
    spaced = replace(run, interval=25, first_step=25, last_step=7500)
    told = "300 rows, one every 25 steps, 25 to 7,500, counted: the log names no steps"
    assert facts_line(spaced).startswith(told)


def test_a_foreign_log_and_an_early_end_are_told() -> None:
    line = facts_line(facts(source_format="hf-trainer", ended="interrupted at step 9"))
    assert "read as hf-trainer" in line
    assert line.endswith("interrupted at step 9")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.42, "0.42 s"),
        (45.2, "45 s"),
        (99.6, "2 min"),
        (59 * 60 + 40, "1 h"),
        (11_520, "3 h 12 min"),
        (47.999 * 3600, "2 d"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [(8_217, 8_217, "8,217"), (38, 39, "38 → 39"), (38, 12_479, "38 → end")],
)
def test_spans(first: int, last: int, said: str) -> None:
    assert span(finding(first, last), facts()) == said


def test_a_finding_from_first_to_last_step_is_the_whole_run() -> None:
    assert span(finding(0, 12_479), facts()) == "whole run"


def test_the_last_step_alone_is_a_step_not_an_end() -> None:
    assert span(finding(12_479, 12_479), facts()) == "12,479"


def test_the_subject_opens_a_message_that_does_not_name_it() -> None:
    assert message(finding(0, 0, subject="head.weight")) == "head.weight: m"
    assert message(finding(0, 0, subject="m")) == "m"


def test_points_of_a_long_series_leave_out_the_middle() -> None:
    evidence = Evidence(
        signal="loss", steps=tuple(range(12)), values=(*range(11), math.nan), threshold=5.0
    )
    told = points(evidence)
    assert told.startswith("0 at 0, 1 at 1")
    assert told.endswith("NaN at 11 (limit 5)")
    assert "5 at 5" not in told
    assert "…" in told
    assert "5 at 5" in points(evidence, None)


def test_a_loss_scale_is_a_power_of_two() -> None:
    evidence = Evidence(signal="scaler_scale", steps=(1,), values=(2.0**-83,), threshold=2.0**-128)
    assert points(evidence) == "2^-83 at 1 (limit 2^-128)"


def test_advice_is_the_roots_first_then_of_unrelated_faults_never_of_consequences_or_notes() -> (
    None
):
    told = [finding.rule for finding, _ in remedies(forward_overflow())]
    assert told == ["nonfinite-loss", "learning-rate-fault"]


def test_the_same_advice_is_given_once() -> None:
    assert len(remedies(undecided())) == 1


def test_the_tally_names_reasons_while_they_are_few() -> None:
    diagnosis = replace(
        forward_overflow(),
        rules=outcomes(a="clear", b="skipped: no x", c="skipped: no x", d="skipped: no y"),
    )
    assert tally(diagnosis, verbose=False).startswith(
        "1 rule clear · 3 skipped (no x: b, c; no y: d)"
    )
    assert tally(diagnosis, verbose=False, terse=True).startswith(
        "1 rule clear · 3 skipped (--verbose says why)"
    )
    assert tally(diagnosis, verbose=True).startswith("1 rule clear · 3 skipped · 1 repair")


def test_many_reasons_and_many_names_are_counted() -> None:
    four = outcomes(a="skipped: 1", b="skipped: 2", c="skipped: 3", d="skipped: 4")
    assert "--verbose says why" in tally(replace(forward_overflow(), rules=four), verbose=False)
    names = outcomes(a="skipped: no x", b="skipped: no x", c="skipped: no x", d="skipped: no x")
    assert "no x: a, b and 2 more" in tally(replace(forward_overflow(), rules=names), verbose=False)


def test_a_failed_rule_repairs_and_settings_are_never_left_out() -> None:
    diagnosis = replace(undecided(), run=facts(repairs=tuple(f"repair {n}" for n in range(5))))
    told = tally(diagnosis, verbose=False, settings="forensics.toml")
    assert "1 rule failed, a bug of ours: stuck-log (KeyError: 'loss')" in told
    assert "5 repairs: repair 0, repair 1, repair 2, 2 more (--verbose)" in told
    assert told.endswith("settings from forensics.toml")


def test_a_verdict_without_root_advises_on_what_is_unrelated() -> None:
    diagnosis = replace(
        forward_overflow(),
        verdict=Verdict(status=Status.UNDECIDED, summary="s", unrelated=(0, 3)),
    )
    assert [f.rule for f, _ in remedies(diagnosis)] == ["nonfinite-loss", "learning-rate-fault"]


def test_a_start_between_two_snapshots_is_a_range() -> None:
    sparse = replace(finding(8_200, 12_479), earliest_step=8_101)
    assert span(sparse, facts()) == "8,101–8,200 → end"
    assert span(replace(sparse, last_step=8_200), facts()) == "8,101–8,200"
    assert span(replace(sparse, earliest_step=8_200), facts()) == "8,200 → end"


def test_points_may_be_of_layers_and_an_unknown_limit_is_none() -> None:
    layers = Evidence(signal="x", steps=(0, 0), values=(0.5, 0.25), places=("layer 11", "layer 10"))
    assert points(layers) == "0.5 at layer 11, 0.25 at layer 10"
    unknown = Evidence(signal="x", steps=(3,), values=(1.0,), threshold=math.nan)
    assert points(unknown) == "1 at 3"

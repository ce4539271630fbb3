"""The text report: order, width, what is left out, and nothing a stranger wrote acts on it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from forensics.diagnose.finding import Diagnosis, Status, Verdict
from forensics.render.safe_text import display_width
from forensics.render.text_report import render_text
from tests.unit.render.sample_diagnoses import (
    SAMPLES,
    facts,
    forward_overflow,
    healthy,
    hostile,
    losses_only,
    outcomes,
    undecided,
)

LABEL = re.compile(r"^[A-Z]{2,9}(?= )", re.MULTILINE)
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def test_the_order_is_verdict_findings_why_what_to_do_next() -> None:
    assert LABEL.findall(render_text(forward_overflow())) == [
        "VERDICT",
        "FINDINGS",
        "CAUSE",
        "OPEN",
        "DO",
        "NEXT",
    ]


@pytest.mark.parametrize("name", [n for n in SAMPLES if n != "hostile"])
@pytest.mark.parametrize("width", [40, 50, 60, 80, 100])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_asked(name: str, width: int, verbose: bool) -> None:
    text = render_text(SAMPLES[name](), width=width, verbose=verbose)
    report = text.partition("\nNEXT ")[0]  # words of a command stay whole
    lines = (text if width >= 60 else report).splitlines()
    assert max(display_width(line) for line in lines) <= width


@pytest.mark.parametrize("verbose", [False, True])
def test_nothing_hostile_reaches_the_terminal(verbose: bool) -> None:
    text = render_text(hostile(), verbose=verbose)
    assert all(line.isprintable() for line in text.splitlines())
    assert text.count("\\x1b[31mred") >= 6


@pytest.mark.parametrize("name", SAMPLES)
def test_plain_ascii_and_colour_say_the_same(name: str) -> None:
    diagnosis = SAMPLES[name]()
    assert render_text(diagnosis, ascii_only=True, verbose=True).isascii()
    assert STYLE.sub("", render_text(diagnosis, colour=True)) == render_text(diagnosis)


def test_colour_marks_severity_and_verdict() -> None:
    text = render_text(forward_overflow(), colour=True)
    assert "\x1b[1;31mVERDICT\x1b[0m" in text
    assert "\x1b[1;31mcritical\x1b[0m" in text
    assert "\x1b[33mwarning\x1b[0m" in text
    assert "\x1b[1;32mVERDICT\x1b[0m" in render_text(healthy(), colour=True)


def test_a_healthy_run_is_told_in_three_lines() -> None:
    diagnosis = replace(healthy(), findings=())
    assert len(render_text(diagnosis).splitlines()) == 3


def test_notes_on_a_healthy_run_are_named_and_told_in_full_when_asked() -> None:
    assert "notes: gradient-spike (--verbose)" in " ".join(render_text(healthy()).split())
    assert "norm 21 at step 4,100" not in render_text(healthy())
    assert "norm 21 at step 4,100" in render_text(healthy(), verbose=True)


def test_what_a_log_cannot_tell_is_said_even_on_a_healthy_run() -> None:
    assert "OPEN      No gradient norms" in render_text(losses_only())


def test_root_comes_first_then_what_follows_then_the_rest() -> None:
    lines = [line for line in render_text(forward_overflow()).splitlines() if "→" in line]
    table = [
        line for line in lines if line[10:].startswith(("critical", "error", "warning", "info"))
    ]
    assert [line.split()[-1] for line in table][:3] == ["root", "follows", "follows"]
    assert "learning-rate-fault" in table[3]


def test_what_was_told_above_is_not_told_again_in_the_findings() -> None:
    text = " ".join(render_text(forward_overflow()).split())
    assert text.count("loss is NaN from step 8,218 on") == 1
    assert text.count("loss scale fell from 65,536 to 2^-128") == 1


def test_a_timeline_entry_that_repeats_the_verdict_keeps_only_its_title() -> None:
    diagnosis = forward_overflow()
    detail = diagnosis.verdict.timeline[2].detail
    told = replace(diagnosis, verdict=replace(diagnosis.verdict, summary=f"{detail.capitalize()}."))
    text = " ".join(render_text(told).split())
    assert text.casefold().count(detail.casefold()) == 1


def test_episodes_of_one_rule_are_one_row_until_all_are_asked_for() -> None:
    text = render_text(undecided())
    assert text.count("clipping-every-step  ") == 1
    assert "12 episodes, the last from 11,000 on" in text
    assert render_text(undecided(), verbose=True).count("clipping-every-step  ") == 12


def test_many_rows_are_folded_with_their_count() -> None:
    text = render_text(undecided())
    assert "… and 3 more (3 info): --verbose shows them" in text
    assert "made-up-13" not in text
    assert "made-up-13" in render_text(undecided(), verbose=True)


def test_the_next_command_is_whole_and_last_of_the_advice() -> None:
    text = render_text(forward_overflow())
    assert "NEXT      forensics bisect --ckpt-dir runs/gpt-7b/checkpoints\n\n" in text


def test_a_long_command_can_still_be_pasted() -> None:
    diagnosis = forward_overflow()
    folder = "runs/" + "deep/" * 20 + "checkpoints"
    command = f"forensics bisect --ckpt-dir {folder}"
    text = render_text(replace(diagnosis, verdict=replace(diagnosis.verdict, next_command=command)))
    assert "NEXT      forensics bisect --ckpt-dir \\\n" in text
    assert f"  {folder}\n" in text


def test_verbose_tells_every_rule_that_did_not_fire_and_every_repair() -> None:
    text = render_text(forward_overflow(), verbose=True)
    assert "CLEAR     norm-overflow, gradient-spike" in text
    assert "SKIPPED   no activation statistics: activation-overflow-risk" in text
    assert "REPAIRS   the last line was cut and is dropped" in text
    assert "do: Scaler settings do not help." in text


def test_what_a_resume_replaced_is_told_under_the_facts() -> None:
    run = facts(superseded=("replaced by a resume, steps 40 to 59: the loss was NaN",))
    lines = render_text(replace(healthy(), run=run)).splitlines()
    assert lines[1] == "  replaced by a resume, steps 40 to 59: the loss was NaN"


def test_what_could_not_be_recorded_is_told_under_the_facts() -> None:
    run = facts(missing=("steps.csv: 1 write failed at step 9 (No space left on device)",))
    text = " ".join(render_text(replace(healthy(), run=run)).split())
    assert "not recorded: steps.csv: 1 write failed at step 9 (No space left" in text


def test_settings_that_changed_the_judgement_are_named() -> None:
    assert "settings from forensics.toml" in render_text(healthy(), settings="forensics.toml")
    assert "settings from x.toml" in render_text(forward_overflow(), settings="x.toml")


def test_a_diagnosis_of_next_to_nothing_is_still_a_report() -> None:
    verdict = Verdict(status=Status.INSUFFICIENT_DATA, summary="too little to judge: 2 steps")
    text = render_text(
        Diagnosis(run=facts(steps=2, last_step=1), verdict=verdict, rules=outcomes())
    )
    assert "VERDICT   too little to judge: 2 steps" in text
    assert "FINDINGS" not in text


def test_findings_of_the_same_steps_are_no_episodes() -> None:
    diagnosis = undecided()
    first = next(f for f in diagnosis.findings if f.rule == "clipping-every-step")
    other = replace(first, message="another column is the same", subject="")
    verdict = replace(diagnosis.verdict, root=None, consequences=(), unrelated=(0, 1))
    text = render_text(replace(diagnosis, findings=(first, other), verdict=verdict))
    assert "in the same steps another column is the same" in text
    assert "episodes" not in text

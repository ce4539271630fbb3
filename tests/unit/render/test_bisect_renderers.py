"""A bisection told as text, JSON and Markdown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    CheckpointVerdict,
    Departure,
    Growth,
    Persistence,
    WhatIf,
)
from forensics.render.bisect_json import render_bisect_json
from forensics.render.bisect_markdown import render_bisect_markdown
from forensics.render.bisect_text import render_bisect_text
from forensics.render.bisection_phrases import again, details, outcome, replay, samples, states
from forensics.render.safe_text import display_width
from tests.unit.render.sample_bisections import (
    SAMPLES,
    bad_sample,
    bit_flip,
    growth,
    hostile,
    raised,
)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_line_is_wider_than_the_page(name: str, width: int) -> None:
    result = replace(SAMPLES[name](), next_command="", capsule="")
    for line in render_bisect_text(result, width=width).splitlines():
        assert display_width(line) <= width, line


@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_reaches_a_terminal_or_a_page_unmade_safe(name: str) -> None:
    for text in (render_bisect_text(SAMPLES[name]()), render_bisect_markdown(SAMPLES[name]())):
        assert all(char.isprintable() or char == "\n" for char in text)
        assert text.endswith("\n")
        assert "\n\n\n" not in text


def test_a_strangers_texts_open_no_markdown_and_no_html() -> None:
    told = render_bisect_markdown(hostile())
    before_fence = told.partition("### Next")[0]
    assert "<b>" not in before_fence
    assert "|`" not in before_fence


@pytest.mark.parametrize("name", SAMPLES)
def test_json_is_strict_and_has_words_for_enums(name: str) -> None:
    result = SAMPLES[name]()
    text = render_bisect_json(result)
    assert text.isascii()
    body = json.loads(text, parse_constant=lambda _: pytest.fail("NaN"))["bisection"]
    assert body["status"] == result.status.value
    assert body["persistence"] == result.persistence.value
    assert body["kind"] == (result.origin.kind.value if result.origin else "")


def test_ascii_pages_hold_ascii_alone() -> None:
    assert render_bisect_text(growth(), ascii_only=True).isascii()


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        (
            WhatIf(change="", from_step=9, until_step=59, finite=True),
            "finite, and for the next 50 steps",
        ),
        (
            WhatIf(change="", from_step=4, until_step=59, finite=True),
            "finite from step 4 to 59",
        ),
        (WhatIf(change="", from_step=9, until_step=9, finite=True), "finite"),
        (WhatIf(change="", from_step=9, until_step=9, finite=False, first_bad_step=9), "still bad"),
        (
            WhatIf(change="", from_step=4, until_step=7, finite=False, first_bad_step=7),
            "bad at 7, from step 4 on",
        ),
        (WhatIf(change="", from_step=9, until_step=9, finite=None), "cannot be tried"),
    ],
)
def test_the_outcome_of_a_change(trial: WhatIf, said: str) -> None:
    assert outcome(trial, 9) == said


def test_two_answers_to_again() -> None:
    assert again(growth()) == "reproduces (3 replays, all alike), and persists after the step"
    assert again(bad_sample()).endswith("and is over after the step")
    stayed = again(replace(bad_sample(), damage_stayed=True))
    assert stayed.endswith("is skipped; the run took it, and its damage stayed")
    assert again(bit_flip()).startswith("does not reproduce: 3 replays")
    assert again(replace(bit_flip(), reproduces=None)) == ""


def test_an_exception_ended_the_run_and_is_not_over() -> None:
    once = replace(raised(), persistence=Persistence.TRANSIENT)
    assert again(once) == "reproduces, and ended the run"
    assert again(replace(once, persistence=Persistence.PERSISTENT)).endswith(
        "persists after the step"
    )


def test_samples_are_blamed_only_where_the_step_is_sound_without_them() -> None:
    assert samples(bad_sample()) == "sample 7 of 16 (by index) alone goes bad"
    still = WhatIf(
        change="without the guilty samples",
        from_step=30,
        until_step=30,
        finite=False,
        first_bad_step=30,
    )
    assert "not a bad batch" in samples(replace(bad_sample(), what_if=(still,)))
    many = replace(bad_sample(), samples=tuple(range(12)), batch_size=64)
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 4 more of 64" in samples(many)
    noted = replace(bad_sample(), samples=(), samples_note="no single sample is to blame")
    assert samples(noted) == "no single sample is to blame"


def test_how_faithful_the_replay_was() -> None:
    assert replay(growth()) == "replayed 8,000 → 8,218: faithful, all 219 rows bit-identical"
    assert "alike within 0.001" in replay(replace(growth(), tolerance=1e-3))
    gone = Departure(step=8100, column="loss", recorded=0.1, replayed=None)
    told = replay(replace(growth(), departure=gone))
    assert told.endswith(
        "departs from the record at step 8,100 (loss: 0.1 recorded, nothing replayed)"
    )
    assert replay(replace(growth(), replayed_from=None)) == ""
    assert "no row to compare" in replay(replace(growth(), compared=0))


def test_states_are_counted_by_verdict() -> None:
    one = (CheckpointVerdict(step=4, verdict="good"),)
    assert states(replace(growth(), checkpoints=one)) == "1 checkpoint, of step 4: good"
    assert states(replace(growth(), checkpoints=())) == "no saved state"


@pytest.mark.parametrize(
    ("rate", "said"), [(1.004, "grows 0.4 % a step"), (3.0, "grows ×3 a step"), (0.9, "falls 10 %")]
)
def test_a_growth_has_a_rate(rate: float, said: str) -> None:
    grown = Growth(
        signal="loss", since_step=3, until_step=9, rate=rate, first_value=1.0, last_value=2.0
    )
    lines = dict(details(replace(growth(), growth=grown)))
    assert said in lines["root"]


def test_a_partial_answer_still_shows_what_was_located() -> None:
    text = render_bisect_text(replace(growth(), status=BisectStatus.PARTIAL, reason="stopped"))
    assert "VERDICT   interrupted: stopped" in text
    assert "FIRST BAD STEP  8,218" in text


def test_an_empty_result_is_told_in_a_few_lines() -> None:
    result = BisectionResult(path="x", status=BisectStatus.NOT_BISECTABLE)
    assert render_bisect_text(result).splitlines()[-1] == "VERDICT   not bisectable."

"""The replay of a capsule, told three ways; its texts are a stranger's."""

from __future__ import annotations

import json
import math

from forensics.diagnose.capsule_verdict import CapsuleVerdict, FaultFacts
from forensics.render.capsule_json import render_capsule_json
from forensics.render.capsule_markdown import render_capsule_markdown
from forensics.render.capsule_text import render_capsule_text

FAULT = FaultFacts(
    place="loss",
    kind="inf",
    phase="forward",
    operator="aten.bmm",
    module="blocks.11.attn",
    loss=math.nan,
    summary="aten.bmm in blocks.11.attn made Inf: inputs abs-max 412 and 187.",
    source_line="model.py:88  scores = q @ k.mT",
)


def _verdict(**changed) -> CapsuleVerdict:
    fields = {
        "path": "capsule",
        "run": "runs/x",
        "step": 8218,
        "samples": (1, 5),
        "batch_size": 8,
        "confirmed": True,
        "expected": FAULT,
        "found": FAULT,
    }
    return CapsuleVerdict(**{**fields, **changed})


def test_the_answer_comes_first_then_where_and_which_samples() -> None:
    text = render_capsule_text(_verdict())
    lines = text.splitlines()
    assert lines[0].startswith("ANSWER    confirmed: in step 8,218 aten.bmm in blocks.11.attn made")
    assert "WHERE     model.py:88  scores = q @ k.mT" in lines
    assert "SAMPLES   1, 5 of 8" in lines
    assert all(len(line) <= 80 for line in lines)


def test_what_is_otherwise_is_told() -> None:
    sound = FaultFacts(loss=2.0)
    differs = ("bad place: none where loss was", "operator: none where aten.bmm was")
    text = render_capsule_text(_verdict(confirmed=False, found=sound, differences=differs))
    assert "not confirmed: in step 8,218 it is sound." in text
    assert "EXPECTED  aten.bmm in blocks.11.attn made Inf" in text
    assert "DIFFERS   bad place: none where loss was\n          operator: none" in text


def test_json_has_every_field_and_no_bare_nan() -> None:
    told = json.loads(render_capsule_json(_verdict()), parse_constant=_refuse)
    assert told["format_version"] == 1
    capsule = told["capsule"]
    assert capsule["samples"] == [1, 5]
    assert capsule["found"]["loss"] == "NaN"


def _refuse(constant: str) -> None:
    raise AssertionError(f"bare {constant}")


def test_a_strangers_texts_do_nothing_to_terminal_or_page() -> None:
    evil = FaultFacts(place="loss", summary="\x1b[2J | <script> \u202e `x` \r\n# head")
    verdict = _verdict(found=evil, run="\x1b]0;owned\x07")
    text = render_capsule_text(verdict)
    assert "\x1b" not in text
    assert "\u202e" not in text
    page = render_capsule_markdown(verdict)
    assert "\x1b" not in page
    assert "<script>" not in page
    assert "\n# head" not in page


def test_exceptions_and_places_are_told_where_there_is_no_summary() -> None:
    assert FaultFacts(exception="ValueError: no").told() == "it raises ValueError: no"
    assert FaultFacts(place="grad").told() == "a gradient is not finite"
    assert FaultFacts(place="buffer").told() == "the buffer is not finite"
    assert FaultFacts().told() == "it is sound"

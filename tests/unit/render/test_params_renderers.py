"""The story of the parameters as text, Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import forensics
from forensics.diagnose.param_facts import (
    BadState,
    FirstBad,
    Mover,
    ParamSeries,
    ParamStory,
    Standing,
)
from forensics.render.params_json import render_params_json
from forensics.render.params_markdown import render_params_markdown
from forensics.render.params_text import bar, render_params_text

NAN = float("nan")
EVIL = "\x1b[31mhead\n| \u202e<b>\x9b2J"


def standing(name: str, grad: float = 1.0, **changes: object) -> Standing:
    row = Standing(
        name=name,
        grad_l2=grad,
        share=0.25,
        growth=1.1,
        value_l2=12.5,
        update_ratio=1e-3,
        nonfinite=0,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def story(**changes: object) -> ParamStory:
    value = ParamStory(
        path="runs/x",
        snapshots=120,
        first_step=0,
        last_step=1190,
        parameters=148,
        pattern="",
        step=1180,
        asked=None,
        grad_l2=2.0,
        usual_growth=1.3,
        top=(standing("blocks.11.attn.q.weight", 38.0, growth=38.0), standing("head.weight")),
        movers=(Mover(name="blocks.11.attn.q.weight", since=900, growth=38.0),),
        first_bad=FirstBad(
            step=1190,
            name="blocks.11.attn.q.weight",
            what="gradient",
            elements=12,
            bad=3,
            total=148,
            finite_before="head.weight",
            finite_after="blocks.10.fc.weight",
            origin="The value was born in backward between head.weight and it.",
        ),
        routine=2,
        bad_state=BadState(step=1190, kind="buffer", name="bn.running_var", finite_at=1180),
        profile=(standing("embed"), standing("blocks.0", 0.01), standing("blocks.1", 1e-9)),
        series=(
            ParamSeries(
                name="head.weight",
                steps=(0, 10),
                grad_l2=(1.0, NAN),
                growth=(NAN, 2.0),
                value_l2=(3.0, 3.0),
                update_ratio=(NAN, 1e-3),
            ),
        ),
    )
    return replace(value, **changes)  # type: ignore[arg-type]


def test_text_tells_all_of_it_within_80_columns() -> None:
    text = render_params_text(story())
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("BAD") < text.index("MOVED") < text.index("LARGEST") < text.index("LAYERS")
    flat = " ".join(text.split())
    for told in (
        "step 1,180, the last sound snapshot before it went bad",
        "step 1,190: gradient of blocks.11.attn.q.weight, 12 elements; 3 of 148 parameters bad",
        "nearer the loss): head.weight",
        "Finite again after it: blocks.10.fc.weight",
        "buffer bn.running_var is non-finite at step 1,190, still finite at step 1,180",
        "Besides, overflows that the loss scaler skipped (2 snapshots)",
        "The value was born in backward between head.weight and it",
        "900→ blocks.11.attn.q.weight ×38",
        "OVER TIME head.weight",
    ):
        assert told in flat


def test_text_says_what_is_not_known() -> None:
    text = render_params_text(story(movers=(), usual_growth=NAN, first_bad=None, routine=0))
    assert "too few snapshots" in text
    assert "no parameter or gradient was non-finite" in text
    assert "no parameter has left its own baseline" in render_params_text(story(movers=()))
    row = next(line for line in text.splitlines() if line.strip().startswith("10 "))
    assert row.split() == ["10", "–", "×2", "3", "0.001"]


def test_text_tells_a_snapshot_without_gradients_from_the_one_it_shows() -> None:
    why = "no gradient was taken at step 30: the loss is NaN, backward did not run"
    flat = " ".join(render_params_text(story(step=20, asked=30, no_gradient=why)).split())
    assert "step 20, the last snapshot with gradients, gradient norm 2. No gradient was" in flat
    assert "the loss is NaN, backward did not run" in flat
    bare = story(step=30, asked=30, no_gradient=why, grad_l2=NAN)
    flat = " ".join(render_params_text(bare).split())
    assert "backward did not run, and no snapshot before it has one" in flat


def test_text_does_not_call_an_overflow_finite() -> None:
    one = story(first_bad=None, routine=1, overflowed=True)
    flat = " ".join(render_params_text(one).split())
    assert "nothing but overflows that the loss scaler skipped (1 snapshot, this one" in flat
    assert "no parameter or gradient was non-finite" not in flat


def test_text_names_a_bad_parameter_in_the_table() -> None:
    text = render_params_text(story(top=(standing("fc.weight", NAN, nonfinite=7),)))
    assert "7 bad" in text


def test_colour_says_what_is_bad_beside_the_word() -> None:
    sick = render_params_text(story(top=(standing("a.weight", NAN, nonfinite=3),)), colour=True)
    assert "\x1b[1;31mBAD\x1b[0m" in sick
    assert "\x1b[1;31m3 bad\x1b[0m" in sick
    assert "\x1b[33mMOVED\x1b[0m" in sick
    assert "\x1b[1;32mBAD\x1b[0m" in render_params_text(story(first_bad=None), colour=True)


def test_bars_are_on_a_log_scale() -> None:
    assert len(bar(1.0, 1.0)) == 12
    assert len(bar(0.01, 1.0)) == 6
    assert [bar(v, 1.0) for v in (1e-9, 0.0, NAN, float("inf"))] == ["", "", "", ""]


def test_a_long_name_goes_on_below() -> None:
    name = "model.layers.31.self_attn.rotary_embedding.query_projection.weight"
    text = render_params_text(story(top=(standing(name),)))
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.strip() for line in text.split("LARGEST")[1].split("LAYERS")[0].splitlines()]
    first, *below = [line for line in lines[1:] if line]
    assert first.split("  ")[0] + "".join(below) == name


@pytest.mark.parametrize("colour", [False, True])
def test_no_text_of_a_log_reaches_the_terminal_raw(colour: bool) -> None:
    text = render_params_text(
        story(path=EVIL, pattern=EVIL, top=(standing(EVIL),), profile=(standing(EVIL),) * 2),
        colour=colour,
    )
    for char in "\x9b\u202e":
        assert char not in text
    assert "\x1b[31mhead" not in text
    if not colour:
        assert "\x1b" not in text
    assert "\\x1b" in text


def test_ascii_only_is_ascii() -> None:
    assert render_params_text(story(), ascii_only=True).isascii()


def test_json_is_strict_and_tells_unknown_from_nonfinite() -> None:
    rows = (standing("a", NAN, nonfinite=7, growth=NAN), standing("b", NAN, update_ratio=NAN))
    text = render_params_json(story(top=rows))
    data = json.loads(text, parse_constant=pytest.fail)
    assert (data["format_version"], data["tool"]) == (1, "forensics")
    assert data["version"] == forensics.__version__
    told = data["params"]
    assert told["top"][0]["grad_l2"] == "NaN"
    assert told["top"][0]["growth"] is None
    assert told["top"][1]["grad_l2"] is None
    assert told["first_bad"]["finite_before"] == "head.weight"
    assert told["series"][0]["grad_l2"] == [1.0, None]
    assert render_params_json(story(path=EVIL)).isascii()


def test_markdown_escapes_what_a_log_may_hold() -> None:
    text = render_params_markdown(story(top=(standing(EVIL),), first_bad=None))
    assert "\x1b" not in text
    assert "<b>" not in text
    row = next(line for line in text.splitlines() if "head" in line and line.startswith("|"))
    assert row.replace("\\|", "").count("|") == 7
    assert "| Layers in network order | norm |" in text

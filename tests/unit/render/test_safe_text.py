"""Nothing a log holds may act on a terminal, a width or a Markdown page."""

from __future__ import annotations

import html
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.finding import Diagnosis, RunFacts, Status, TimelineEntry, Verdict
from forensics.render.safe_text import (
    LONGEST,
    display_width,
    map_texts,
    markdown,
    plain_ascii,
    visible,
)
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

ANY_TEXT = st.text(st.characters(), max_size=60)  # surrogates and controls included


def test_terminal_escapes_are_written_out() -> None:
    assert visible("\x1b[2J\x07\x9b31m") == "\\x1b[2J\\x07\\x9b31m"


def test_line_breaks_overrides_and_odd_spaces_do_not_get_through() -> None:
    assert visible("a\r\nb\tc\u2028d\u202ee\u00a0f") == "a\\r\\nb\\tc\\u2028d\\u202ee f"


def test_a_byte_of_a_file_name_that_is_no_utf8_is_shown_as_that_byte() -> None:
    assert visible(b"r\xe9sum\xe9".decode("utf-8", "surrogateescape")) == "r\\xe9sum\\xe9"


def test_what_people_write_is_left_alone() -> None:
    text = "loss ×38 → NaN · 日本 café ≥ 2"
    assert visible(text) == text


def test_a_megabyte_is_cut_and_says_so() -> None:
    shown = visible("x" * 1_000_000)
    assert shown == "x" * LONGEST + "… (1,000,000 characters)"


@settings(deadline=None, max_examples=200)
@given(ANY_TEXT)
def test_visible_text_is_printable_and_stays_as_it_is(text: str) -> None:
    once = visible(text)
    assert once.isprintable()
    assert visible(once) == once


@settings(deadline=None, max_examples=200)
@given(ANY_TEXT)
def test_plain_text_is_ascii(text: str) -> None:
    assert plain_ascii(visible(text)).isascii()


def test_our_own_signs_have_plain_spellings() -> None:
    assert plain_ascii("6,900→ ×38 ≥ 2 · a … b – c") == "6,900-> x38 >= 2 | a ... b - c"


def test_widths_of_wide_and_combining_characters() -> None:
    assert display_width("abc") == 3
    assert display_width("日本") == 4
    assert display_width("e\u0301") == 1


def test_markdown_specials_are_escaped() -> None:
    assert markdown("a|b `c` *d* [e](f) <b> ~g~ $h$ \\") == (
        "a\\|b \\`c\\` \\*d\\* \\[e\\](f) &lt;b&gt; \\~g\\~ \\$h\\$ \\\\"
    )


def test_names_with_underscores_stay_readable() -> None:
    assert markdown("grad_l2_pre_clip") == "grad_l2_pre_clip"
    assert markdown("__init__ and _x_") == "\\_\\_init\\_\\_ and \\_x\\_"


def test_what_opens_a_block_is_escaped_at_the_start_only() -> None:
    assert markdown("# head") == "\\# head"
    assert markdown("- item") == "\\- item"
    assert markdown("1. first") == "1\\. first"
    assert markdown("step 1. then - and #2") == "step 1. then - and #2"


def _rendered(text: str) -> str:
    """What a Markdown renderer shows of inline text: escapes and entities undone."""
    return html.unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text))


@settings(deadline=None, max_examples=300)
@given(ANY_TEXT)
def test_markdown_renders_as_the_text_itself(text: str) -> None:
    assert _rendered(markdown(text)) == visible(text)


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("|`*_<>[]~$\\a1 "), max_size=20))
def test_no_markdown_special_is_left_bare(text: str) -> None:
    bare = re.sub(r"\\.", "", markdown(text))
    assert not set(bare) & set("|`*<>[]~$")


def test_map_texts_reaches_every_text_and_no_enum() -> None:
    verdict = Verdict(
        status=Status.FAULTY,
        summary="a",
        root=3,
        undecided=("b",),
        timeline=(TimelineEntry(when="c", title="d", detail="e"),),
    )
    changed = map_texts(verdict, str.upper)
    assert changed.status is Status.FAULTY
    assert changed == Verdict(
        status=Status.FAULTY,
        summary="A",
        root=3,
        undecided=("B",),
        timeline=(TimelineEntry(when="C", title="D", detail="E"),),
    )


def test_map_texts_leaves_alone_what_a_value_came_from() -> None:
    facts = RunFacts(path="a", steps=0, first_step=None, last_step=None, source_format="f")
    run = Run(path=Path("a"), steps=StepTable.from_arrays({"loss": [1.0]}))
    verdict = Verdict(status=Status.HEALTHY, summary="b")
    changed = map_texts(Diagnosis(run=facts, verdict=verdict, source=run), str.upper)
    assert changed.source is run
    assert (changed.run.path, changed.verdict.summary) == ("A", "B")

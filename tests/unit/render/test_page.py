"""A page wraps to its width, keeps what belongs together, and breaks commands a shell can join."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.render.ansi import BOLD
from forensics.render.page import MARGIN, Cell, Page, break_command, wrap
from forensics.render.safe_text import display_width

PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), max_size=200)


@settings(deadline=None, max_examples=200)
@given(PRINTABLE, st.integers(8, 60))
def test_wrapping_keeps_the_width_and_every_character(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(display_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_a_unit_stays_with_its_number() -> None:
    assert wrap("about 34 % of it", 9) == ["about", "34 % of", "it"]


def test_a_value_stays_with_its_step() -> None:
    assert wrap("2.41 at 8,217, NaN at 8,218", 18) == ["2.41 at 8,217,", "NaN at 8,218"]


@pytest.mark.parametrize("arrow", ["→", "->"])
def test_an_arrow_stays_with_what_it_points_to(arrow: str) -> None:
    assert wrap(f"still bad {arrow} not it", 12) == ["still bad", f"{arrow} not it"]


def test_readings_set_apart_are_broken_between_not_inside() -> None:
    assert wrap("loss 1.43   norm 0.8   scale 65,536", 26) == [
        "loss 1.43   norm 0.8",
        "scale 65,536",
    ]


def test_a_long_name_is_broken_after_its_separators() -> None:
    lines = wrap("model.layers.11.self_attn.q_proj.weight", 20)
    assert lines == ["model.layers.11.", "self_attn.q_proj.", "weight"]


def test_no_width_is_too_small_to_end() -> None:
    assert wrap("ab 日", 0) == ["a", "b", "日"]
    assert wrap("日本", 1) == ["日", "本"]


def test_an_empty_text_is_one_empty_line() -> None:
    assert wrap("", 10) == [""]


def test_labels_stand_in_the_margin_and_lines_below_hang() -> None:
    page = Page(60)
    page.labelled("DO", "one two three four five six seven eight nine ten eleven twelve")
    first, second = page.text().splitlines()
    assert first.startswith("DO" + " " * (MARGIN - 2) + "one")
    assert second.startswith(" " * MARGIN)
    assert second.strip()


def test_cells_wrap_side_by_side() -> None:
    page = Page(60)
    page.row([Cell("8,218→", 7), Cell("loss-scale-collapse", 11), Cell("x", 5)], indent=2)
    assert page.text().splitlines() == ["  8,218→   loss-scale-  x", "           collapse"]


def test_colour_is_painted_after_measuring_and_only_where_asked() -> None:
    plain, coloured = Page(60), Page(60, colour=True)
    for page in (plain, coloured):
        page.row([Cell("error", 8, "31"), Cell("rule", 6)])
        page.labelled("NEXT", "go", code=BOLD)
    assert "\x1b" not in plain.text()
    assert coloured.text().splitlines()[0] == "\x1b[31merror\x1b[0m     rule"
    undone = coloured.text().replace("\x1b[31m", "").replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert undone == plain.text()


def test_whatever_enters_a_page_is_made_safe() -> None:
    page = Page(60, ascii_only=True)
    page.paragraph("a\x1b[0m → b")
    page.labelled("DO", "c\nd")
    page.row([Cell("e\x07", 10)])
    page.command("NEXT", "run '\x1b'")
    assert page.text().isascii()
    assert "\x1b" not in page.text()
    assert "\x07" not in page.text()
    assert len(page.text().splitlines()) == 4


def test_blank_lines_are_single_and_never_first() -> None:
    page = Page()
    page.blank()
    page.paragraph("a")
    page.blank()
    page.blank()
    page.paragraph("b")
    page.blank()
    assert page.text() == "a\n\nb\n"


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=8))
def test_a_broken_command_is_the_same_command_to_a_shell(words: list[str]) -> None:
    command = shlex.join(words)
    joined = "\n".join(break_command(command, 30)).replace(" \\\n", "")
    assert shlex.split(joined) == words


def test_a_command_is_broken_between_words_to_fit() -> None:
    lines = break_command("forensics bisect --ckpt-dir runs/a/checkpoints", 30)
    assert lines == ["forensics bisect --ckpt-dir \\", "  runs/a/checkpoints"]


@pytest.mark.parametrize("command", ["a 'unclosed " + "x" * 30, 'say "' + "y " * 20 + '"'])
def test_a_command_quoted_in_another_way_is_left_whole(command: str) -> None:
    assert break_command(command, 20) == [command]

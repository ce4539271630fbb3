"""A table on a page: widths, alignment, long cells."""

from __future__ import annotations

from forensics.render.page import Page
from forensics.render.table import TextRow, put_table


def lines(rows: list[TextRow], width: int = 80, **options: int) -> list[str]:
    page = Page(width)
    put_table(page, ("name", "norm", "share"), rows, **options)
    return page.text().splitlines()


def test_numbers_stand_to_the_right_below_each_other() -> None:
    told = lines([TextRow(("a", "1.5", "9 %")), TextRow(("bb", "12,000", "10 %"))])
    assert told == ["  name    norm  share", "  a        1.5    9 %", "  bb    12,000   10 %"]


def test_a_first_cell_that_is_too_long_goes_on_below() -> None:
    told = lines([TextRow(("blocks.11.attention.query_projection.weight", "1", "2"))], width=40)
    assert max(map(len, told)) <= 40
    assert "".join(told[1].split()[:1] + [line.strip() for line in told[2:]]).startswith(
        "blocks.11"
    )
    assert told[-1].strip().endswith("weight")


def test_cells_are_made_safe_before_they_are_measured() -> None:
    told = lines([TextRow(("a\x1b[2Jb", "1", "2")), TextRow(("c", "1", "2"))])
    assert "\x1b" not in "".join(told)
    assert told[1].index("  1") == told[2].index("1") - 2


def test_an_empty_table_is_its_header() -> None:
    assert lines([]) == ["  name  norm  share"]


def test_wide_characters_keep_the_columns_straight() -> None:
    told = lines([TextRow(("層", "1", "2")), TextRow(("ab", "1", "2"))])
    assert told[1].replace("層", "xx") == told[2].replace("ab", "xx")

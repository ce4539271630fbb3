"""A slow pattern is tried only in lines that hold a needle, and each line once."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.scanner.near import matches_near

PATTERN = re.compile(rb"a(\d)|b(\d)")
TEXT = st.lists(st.sampled_from([b"a1", b"b2", b"x", b"a", b" ", b"\n"]), max_size=40).map(b"".join)


@settings(deadline=None, max_examples=200)
@given(TEXT)
def test_it_finds_what_the_pattern_alone_finds(text: bytes) -> None:
    found = [match.span() for match in matches_near(PATTERN, text, (b"a", b"b"))]
    assert found == [match.span() for match in PATTERN.finditer(text)]


def test_lines_without_a_needle_are_passed_over() -> None:
    text = b"a1 here\nb2\nb2 here\n"
    assert [m.group() for m in matches_near(PATTERN, text, (b"here",))] == [b"a1", b"b2"]

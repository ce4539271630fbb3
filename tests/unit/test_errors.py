"""What a user is told when something is wrong: where, what, and what to do."""

from __future__ import annotations

from forensics.errors import InputError


def test_a_message_says_where_what_and_what_to_do() -> None:
    assert InputError("is empty", where="x.csv", hint="look again").line() == (
        "x.csv: is empty; look again"
    )
    assert InputError("is\n  empty").line() == "is empty"


def test_a_place_of_any_length_leaves_the_reason_whole() -> None:
    path = "/scratch/" + "deep/" * 2000 + "steps.csv"
    error = InputError("no such file or directory", where=path, hint="check the path")
    line = error.line()
    assert len(line) < 600
    assert line.startswith("/scratch/deep/")
    assert "deep/steps.csv (10,018 characters): no such file or directory; check the path" in line
    assert error.where == path


def test_a_message_that_ends_as_a_sentence_goes_on_to_the_hint() -> None:
    line = InputError("Target 5 is out of bounds.", where="step 77", hint="look").line()
    assert line == "step 77: Target 5 is out of bounds; look"

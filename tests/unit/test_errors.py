"""What a user is told when something is wrong: where, what, and what to do."""

from __future__ import annotations

import pytest

from forensics.errors import ForensicsError, InputError


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


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("http://me:hunter2@host/x.log", "http://…@host/x.log"),
        ("s3://AKIA1:hunter2@bucket/x", "s3://…@bucket/x"),
        ("https://h/x?a=1&X-Amz-Signature=hunter2&b=2", "https://h/x?a=1&X-Amz-Signature=…&b=2"),
        ("https://h/x?sig=hunter2", "https://h/x?sig=…"),
        ("https://h/x?se=1&sv=2#hunter", "https://h/x?se=1&sv=2#hunter"),
        (f"https://h/x?h={'hunter2' * 6}&n=1", "https://h/x?h=…&n=1"),
        ("https://h/x?code=hunter2&barcode=7", "https://h/x?code=…&barcode=7"),
        ("https://ghp_hunter2@host/x", "https://…@host/x"),
        ("sftp://me@host:22/x", "sftp://me@host:22/x"),
        ("http://me:hun ter@2@host/a@b", "http://…@host/a@b"),
        ("http://me:hun/ter2@host/x", "http://…@host/x"),
        ("http://host:8080/mail@x", "http://host:8080/mail@x"),
        ("github://me:mine@main/x.csv", "github://me:mine@main/x.csv"),
        ("zip://a.csv::s3://b/mail@x", "zip://a.csv::s3://b/mail@x"),
        ("s3://b/x?region=eu-west-1", "s3://b/x?region=eu-west-1"),
        ("s3://b/mail@host:80/x", "s3://b/mail@host:80/x"),
        ("runs/a:b@c?key=d", "runs/a:b@c?key=d"),
    ],
)
def test_a_message_tells_the_place_without_its_secrets(place: str, told: str) -> None:
    error = ForensicsError("cannot be reached", where=place, hint=f"try {place}")
    assert error.line() == f"{told}: cannot be reached; try {told}"
    assert str(error) == error.line()

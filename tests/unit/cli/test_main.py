"""``main``: every way a verb can end has its exit code and, where needed, one line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

import forensics
from forensics.cli import main
from forensics.cli.verbs import VERBS, Verb


@pytest.fixture(autouse=True)
def _end_verb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    verb = Verb("tests.unit.cli.raising_verbs", "end", "End.")
    monkeypatch.setitem(VERBS, "end", verb)  # type: ignore[arg-type]
    monkeypatch.delenv("FORENSICS_DEBUG", raising=False)
    return iter([None])


@pytest.mark.parametrize(
    ("way", "code", "line"),
    [
        ("well", 0, ""),
        ("findings", 1, ""),
        ("input", 2, "forensics: a\\x1b.csv: is empty; write a row\n"),
        ("click", 2, "forensics: no good; `forensics --help` explains\n"),
        ("alarm", 3, "forensics: too many skips\n"),
        ("training", 4, "forensics: ValueError: no\n"),
        ("ctrl-c", 130, "forensics: interrupted\n"),
        ("ctrl-c-in-a-class", 130, "forensics: interrupted\n"),
        ("abort", 130, "forensics: interrupted\n"),
    ],
)
def test_each_end_has_its_code_and_at_most_one_line(
    way: str, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["end", way]) == code
    assert capsys.readouterr() == ("", line)


def test_a_bug_is_70_in_one_line_that_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["end", "bug"]) == 70
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("forensics: internal error: KeyError: ")
    assert "a bug in forensics" in said
    assert "FORENSICS_DEBUG=1" in said


def test_the_traceback_of_a_bug_is_there_for_who_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORENSICS_DEBUG", "1")
    assert main(["end", "bug"]) == 70
    assert "raising_verbs.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["end"], "end: Missing argument 'WAY'; `forensics end --help` explains"),
        (["end", "well", "--count", "x"], "'x' is not a valid integer"),
        (["end", "well", "--nope"], "No such option"),
        (["--nope"], "No such option"),
        (["reprot"], "there is no verb 'reprot'; did you mean report?"),
        (["zzz"], "verbs are report, bisect"),
    ],
)
def test_wrong_usage_is_2_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_path_in_place_of_a_verb_is_answered_with_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"did you mean `forensics report {tmp_path}`?" in capsys.readouterr().err


def test_a_reader_that_left_is_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forensics.cli.discard_stdout", lambda: None)
    assert main(["end", "pipe"]) == 0
    assert capsys.readouterr().err == ""


def test_no_argument_and_help_list_the_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == alone
    for name, verb in VERBS.items():
        assert f"  {name} " in alone
        assert verb.help.split()[-1] in alone


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"forensics {forensics.__version__}\n"


def test_a_poor_encoding_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["end", "signs"]) == 0
    assert raw.getvalue() == b"\\xd7\\u2192\n"

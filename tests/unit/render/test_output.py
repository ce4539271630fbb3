"""How a report goes out: which look a stream gets, and files that are whole or untouched."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest

from forensics.errors import OutputError, UsageError
from forensics.render import output
from forensics.render.output import (
    REPORT_FORMATS,
    Look,
    choose_format,
    look_of,
    render,
    write_file,
)
from tests.unit.render.sample_diagnoses import forward_overflow, healthy


class Stream(io.StringIO):
    """A stream of an encoding, perhaps a terminal."""

    def __init__(self, *, terminal: bool = False, encoding: str | None = "utf-8") -> None:
        super().__init__()
        self._terminal = terminal
        self._encoding = encoding

    @property
    def encoding(self) -> str | None:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("columns")
@pytest.mark.parametrize(
    ("stream", "env", "look"),
    [
        (Stream(), {}, Look(width=80, colour=False, ascii_only=False)),
        (Stream(terminal=True), {"TERM": "xterm"}, Look(width=100, colour=True)),
        (Stream(terminal=True), {"TERM": "dumb"}, Look(width=100)),
        (Stream(terminal=True), {"NO_COLOR": "1"}, Look(width=100)),
        (Stream(terminal=True), {"NO_COLOR": ""}, Look(width=100, colour=True)),
        (Stream(encoding="latin-1"), {}, Look(ascii_only=True)),
        (Stream(encoding=None), {}, Look(ascii_only=True)),
        (Stream(encoding="no-such-codec"), {}, Look(ascii_only=True)),
        (Stream(), {"LANG": "C", "LC_CTYPE": "C.UTF-8"}, Look(ascii_only=True)),
        (Stream(), {"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, Look(ascii_only=True)),
        (Stream(), {"LANG": "C.UTF-8"}, Look()),
    ],
)
def test_the_look_follows_the_stream_and_the_environment(
    stream: Stream, env: dict[str, str], look: Look
) -> None:
    assert look_of(stream, env) == look


@pytest.mark.parametrize(
    ("wanted", "out", "form"),
    [
        (None, None, "text"),
        (None, "a.json", "json"),
        (None, "a.MD", "markdown"),
        (None, "a.txt", "text"),
        ("text", "a.json", "text"),
        ("json", None, "json"),
        (None, "lr-0.001", "text"),
        (None, "a.log", "text"),
        ("text", "a.dat", "text"),
    ],
)
def test_the_format_is_the_one_asked_for_else_the_files(
    wanted: str | None, out: str | None, form: str
) -> None:
    assert choose_format(wanted, Path(out) if out else None) == form


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "a.pdf",
            "a picture is none of its formats; `forensics plot RUN --out FILE` draws; end it",
        ),
        ("a.html", "only a report is a page; end it in .txt, .json, .md, or choose"),
        ("a.jsn", "no format has this ending; end it in .txt, .json, .md"),
    ],
)
def test_an_ending_that_says_no_format_is_refused(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{name}: {said}")):
        choose_format(None, Path(name))


@pytest.mark.parametrize("name", ["a.html", "a.HTM"])
def test_a_report_may_be_a_page(name: str) -> None:
    assert choose_format(None, Path(name), REPORT_FORMATS) == "html"
    assert render([healthy()], "html").startswith("<!doctype html>")


def test_several_texts_are_set_apart() -> None:
    text = render([healthy(), forward_overflow()], "text", look=Look(width=90))
    assert "\n\nruns/gpt-7b\n  12,480 steps" in text
    assert not text.endswith("\n\n")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")
    write_file("new → text", target)
    assert target.read_text(encoding="utf-8") == "new → text"
    assert os.listdir(tmp_path) == ["report.txt"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.txt"
    target.write_text("old")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left on device"):
        write_file("new text", target)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.txt"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to("real.txt")
    write_file("new", link)
    assert link.is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_what_is_no_file_is_written_to_not_replaced(tmp_path: Path) -> None:
    write_file("text", Path(os.devnull))
    assert not Path(os.devnull).is_file()
    with pytest.raises(OutputError, match="choose another --out"):
        write_file("text", tmp_path)


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        write_file("text", tmp_path / "none" / "report.txt")
    assert caught.value.exit_code == 2
    assert str(tmp_path / "none") in caught.value.line()


def test_signs_are_those_that_a_report_prints() -> None:
    assert set("×→·…≥") <= set(output._SIGNS)

"""The first milliseconds of the command line."""

from __future__ import annotations

import signal
import sys
import types

import pytest

from forensics.__main__ import run


def test_an_interrupt_while_the_command_line_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "forensics.cli", Interrupted("forensics.cli"))
    assert run() == 130
    assert capsys.readouterr().err == "forensics: interrupted\n"


def test_it_runs_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_to: list[tuple[object, object]] = []
    monkeypatch.setattr(signal, "signal", lambda number, action: set_to.append((number, action)))
    monkeypatch.setattr(sys, "argv", ["forensics", "--version"])
    assert run() == 0
    assert capsys.readouterr().out.startswith("forensics ")
    # An interrupt after the answer must not change the exit code.
    assert set_to == [(signal.SIGINT, signal.SIG_IGN)]

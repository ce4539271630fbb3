"""The table of verbs: true, complete, and cheap to list."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

import forensics.cli
from forensics.cli import forensics_group
from forensics.cli.verbs import VERBS


def command(name: str) -> click.Command:
    found = forensics_group.get_command(click.Context(forensics_group), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_where_the_table_says_and_says_the_same_of_itself(name: str) -> None:
    verb = VERBS[name]
    assert getattr(import_module(verb.module), verb.attribute) is command(name)
    assert command(name).name == name
    assert command(name).get_short_help_str(limit=200) == verb.help
    first_line = (command(name).help or "").splitlines()[0]
    assert first_line == verb.help


@pytest.mark.parametrize("name", VERBS)
def test_the_help_of_each_verb_has_an_example(name: str) -> None:
    text = command(name).help or ""
    assert f"  forensics {name} " in text


@pytest.mark.parametrize("name", ["report", "watch", "scan"])
def test_a_signal_that_comes_while_a_table_is_read_is_not_lost(name: str) -> None:
    program = f"""
import os, signal, sys
import click
from forensics.cli import forensics_group
forensics_group.get_command(click.Context(forensics_group), {name!r})
from pyarrow import PythonFile, csv

class Table:
    closed = False
    rows = [b"step,loss\\n1,2\\n"]
    def read(self, size):
        os.kill(os.getpid(), signal.SIGTERM)
        return self.rows.pop() if self.rows else b""

got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
csv.read_csv(PythonFile(Table(), mode="r"))
assert got
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_command_is_left_out_of_the_table() -> None:
    folder = Path(forensics.cli.__path__[0])
    commands = {p.stem for p in folder.glob("*.py") if "@click.command" in p.read_text("utf-8")}
    assert commands == {verb.module.rsplit(".", 1)[1] for verb in VERBS.values()}


def test_an_unknown_verb_has_no_command() -> None:
    assert forensics_group.get_command(click.Context(forensics_group), "nope") is None

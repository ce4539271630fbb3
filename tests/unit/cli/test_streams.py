"""What is said on standard error."""

from __future__ import annotations

from forensics.cli.streams import wrapped


def test_a_long_message_is_wrapped_and_its_command_stays_whole() -> None:
    command = "`forensics report " + " ".join(f"runs/job{i}.log" for i in range(9)) + "`"
    text = f"forensics: runs: holds 9 logs, {'of many kinds ' * 6}; {command} judges each of them"
    lines = wrapped(text, 80).splitlines()
    assert any(command in line for line in lines)
    assert all(len(line) <= 80 for line in lines if command not in line)
    assert " ".join(" ".join(lines).split()) == text


def test_a_short_message_stays_one_line() -> None:
    assert wrapped("forensics: interrupted", 80) == "forensics: interrupted"

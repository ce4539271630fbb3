"""A verb that ends in each way a verb can end."""

from __future__ import annotations

import sys

import click

from forensics.errors import ExitCode, InputError, RecordingStoppedError, TrainingRaisedError


class _Interrupted:
    """Ctrl-C that comes while a class is made."""

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


@click.command()
@click.argument("way")
@click.option("--count", type=int, default=0)
def end(way: str, count: int) -> ExitCode | None:
    """End in the way that is asked for."""
    ways: dict[str, BaseException] = {
        "input": InputError("is empty", where="a\x1b.csv", hint="write\na row"),
        "alarm": RecordingStoppedError("too many skips"),
        "training": TrainingRaisedError("ValueError: no"),
        "bug": KeyError("loss\x1b"),
        "ctrl-c": KeyboardInterrupt(),
        "abort": click.Abort(),
        "click": click.ClickException("no good"),
        "pipe": BrokenPipeError(),
    }
    if way == "ctrl-c-in-a-class":
        type("Made", (), {"field": _Interrupted()})
    if way in ways:
        raise ways[way]
    if way == "signs":
        sys.stdout.write("×→\n")
        return None
    return ExitCode.FINDINGS if way == "findings" else None

"""Standard output and standard error: what must hold whatever the terminal or the reader does."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

import click


def never_fail_to_print() -> None:
    """Write out what a stream's encoding lacks, and into nothing where a stream is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell's ``>&-``
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def say(message: str) -> None:
    """One line on standard error, whatever the message holds; wrapped where a person reads it."""
    from forensics.errors import without_secrets
    from forensics.render.safe_text import visible

    with suppress(OSError):  # nobody listens any more
        text = f"forensics: {visible(without_secrets(' '.join(message.split())))}"
        if sys.stderr.isatty():
            text = wrapped(text, _columns())
        click.echo(text, err=True)


def printed(text: os.PathLike[str] | str) -> str:
    """A path or a text for standard output: whole, but for what a terminal would act on."""
    from forensics.render.safe_text import visible

    text = str(text)
    return text if text.isprintable() else visible(text)


def _columns() -> int:
    """Columns of the terminal behind standard error; 80 where it does not tell."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return 80


def wrapped(text: str, width: int) -> str:
    """A message in lines of at most ``width``; a command in backticks stays whole, to be copied."""
    import textwrap

    held = re.sub(r"`[^`]*`", lambda command: command.group().replace(" ", "\0"), text)
    lines = textwrap.wrap(
        held, max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def write_stdout(text: str) -> None:
    """Write a whole text to standard output.

    A reader that went away (``head``, a pager) has enough: that is no error, so that the exit
    code still tells what was found. Other failures (a full disk) raise OutputError.
    """
    from forensics.errors import OutputError

    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise OutputError(error.strerror or str(error), where="standard output") from error


def discard_stdout() -> None:
    """Send what is still buffered nowhere, so that Python's flush at exit does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

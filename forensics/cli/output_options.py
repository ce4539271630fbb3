"""``--format`` and ``--out`` of the verbs that print one document, and where it goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from forensics.cli.streams import write_stdout
from forensics.errors import OutputError
from forensics.render.output import (
    FORMATS,
    REPORT_FORMATS,
    Look,
    choose_format,
    look_of,
    write_file,
)
from forensics.runlog.manifest import MANIFEST_NAME
from forensics.runlog.run import STEP_LOGS
from forensics.runlog.stores.scheme import is_uri

F = TypeVar("F", bound=Callable[..., Any])


def output_options(command: F) -> F:
    """Add ``--format`` (as ``form``) and ``--out``."""
    return _options(command, FORMATS, ".json, .md")


def report_output_options(command: F) -> F:
    """The same, where the document may be a page."""
    return _options(command, REPORT_FORMATS, ".json, .md, .html")


def _options(command: F, formats: Sequence[str], endings: str) -> F:
    def known(context: click.Context, _: click.Parameter, out: Path | None) -> Path | None:
        """Refuse an ending that says no format now, not after minutes of work."""
        choose_format(context.params.get("form"), out, formats)
        return out

    add_out = click.option(
        "--out",
        type=click.Path(path_type=Path),
        callback=known,
        help="Write here; whole or not at all.",
    )
    add_format = click.option(
        "--format",
        "form",
        is_eager=True,  # known before --out is looked at
        type=click.Choice(formats),
        help=f"Default: what --out ends in ({endings}), else text.",
    )
    return add_format(add_out(command))


def put(text: str, out: Path | None) -> None:
    """Write the document to its file, or to standard output."""
    write_file(text, out) if out else write_stdout(text)


def spare_the_input(out: Path | None, paths: Iterable[str]) -> None:
    """Refuse to write over what is read: a log is the only evidence there is.

    Raises:
        OutputError: ``out`` is one of the paths, or the log or manifest of one of the runs, or
            lies in a store.
    """
    if out is None:
        return
    _refuse_store(out)
    if not os.path.isfile(out):
        return
    for path in (Path(path) for path in paths if path != "-"):
        home = path if os.path.isdir(path) else path.parent
        parts = (home / name for name in (*STEP_LOGS, MANIFEST_NAME))
        if any(os.path.exists(part) and os.path.samefile(out, part) for part in (path, *parts)):
            raise OutputError("is what is to be read", where=out, hint="choose another --out")


def _refuse_store(out: Path) -> None:
    """Nothing is written to a store; a path has lost one slash of what names one."""
    uri = str(out).replace(":/", "://", 1)
    if is_uri(uri) and not out.parent.exists():
        what, hint = "is written to files of this machine only", "write it here, and copy it there"
        raise OutputError(what, where=f"--out {uri}", hint=hint)


def look(out: Path | None) -> dict[str, Any]:
    """Width, colour and signs of text: the terminal's, or plain in a file."""
    return asdict(look_of(sys.stdout) if out is None else Look())

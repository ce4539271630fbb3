"""How a report goes out: which format, which look, and a file that is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from forensics.diagnose.finding import Diagnosis
from forensics.errors import OutputError, UsageError
from forensics.frozen import dataclass

FORMATS = ("text", "json", "markdown")
REPORT_FORMATS = (*FORMATS, "html")
"""Those of a report; no other document has a page."""
PIPE_WIDTH = 80
"""Columns where nobody's terminal tells."""
WIDEST = 100
"""Columns at most: longer lines are harder to read, however wide the terminal."""
_BY_SUFFIX = {
    ".json": "json",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
}
_TEXTS = ("", ".txt", ".text", ".log", ".out")
_PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg")
_SIGNS = "×→·…≥≤"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What text may use on its way out."""

    width: int = PIPE_WIDTH
    colour: bool = False
    ascii_only: bool = False


def look_of(stream: TextIO, environment: Mapping[str, str] | None = None) -> Look:
    """How text must look on a stream: its terminal's width, colour, and signs it can print.

    Colour needs a terminal that is not ``dumb``, and no ``NO_COLOR``. Signs that are not ASCII
    need an encoding that has them and a locale other than a plain ``C`` that the user asked for.
    """
    env = os.environ if environment is None else environment
    terminal = stream.isatty()
    width = PIPE_WIDTH
    if terminal:
        import shutil

        width = min(shutil.get_terminal_size((PIPE_WIDTH, 24)).columns, WIDEST)
    dumb = env.get("TERM", "") == "dumb"
    colour = terminal and not dumb and not env.get("NO_COLOR")
    return Look(width=width, colour=colour, ascii_only=not _prints_signs(stream, env))


def _prints_signs(stream: TextIO, env: Mapping[str, str]) -> bool:
    # Python turns a C locale into UTF-8 for itself and sets LC_CTYPE, but the terminal behind
    # LANG=C may still know ASCII alone.
    if (env.get("LC_ALL") or env.get("LANG") or "") in ("C", "POSIX"):
        return False
    try:
        _SIGNS.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def choose_format(wanted: str | None, out: Path | None, formats: Sequence[str] = FORMATS) -> str:
    """The format asked for, else the one of ``formats`` the file's name ends in, else text.

    Raises:
        UsageError: the file's ending is none of theirs, nor one of a text's.
    """
    if wanted or out is None:
        return wanted or "text"
    ending = out.suffix.lower()
    if ending in _TEXTS or ending[1:].isdigit():  # runs-0.5 has no ending
        return "text"
    named = _BY_SUFFIX.get(ending)
    if named is None or named not in formats:
        raise UsageError(_no_format(ending, formats), where=out, hint=_endings(ending, formats))
    return named


def _no_format(ending: str, formats: Sequence[str]) -> str:
    if ending in _PICTURES:
        return "a picture is none of its formats"
    return "only a report is a page" if ending in _BY_SUFFIX else "no format has this ending"


def _endings(ending: str, formats: Sequence[str]) -> str:
    """What the name may end in, and who makes pictures."""
    first = {form: suffix for suffix, form in reversed(_BY_SUFFIX.items())}
    known = [suffix for form, suffix in reversed(first.items()) if form in formats]
    draws = "`forensics plot RUN --out FILE` draws; " if ending in _PICTURES else ""
    return f"{draws}end it in .txt, {', '.join(known)}, or choose with --format"


def render(
    diagnoses: Sequence[Diagnosis],
    form: str,
    *,
    look: Look | None = None,
    verbose: bool = False,
    errors: Sequence[Mapping[str, str]] = (),
    settings: str = "",
) -> str:
    """All diagnoses in one format.

    Args:
        diagnoses: in the order the runs were given.
        form: one of ``REPORT_FORMATS``.
        look: how text looks; default: 80 columns, no colour, all signs.
        verbose: findings in full, and every rule's outcome.
        errors: path and message of each run that could not be read (JSON and HTML tell them).
        settings: the file that changed rules or thresholds, if any: the reader must know.
    """
    if form == "json":
        from forensics.render.json_report import render_json

        return render_json(diagnoses, errors=errors, settings=settings)
    if form == "html":
        from forensics.render.html.report import render_html

        return render_html(diagnoses, errors=errors, settings=settings)
    if form == "markdown":
        from forensics.render.markdown_report import render_markdown

        return "\n".join(render_markdown(d, verbose=verbose, settings=settings) for d in diagnoses)
    from forensics.render.text_report import render_text

    look = look or Look()
    return "\n".join(
        render_text(
            diagnosis,
            width=look.width,
            colour=look.colour,
            ascii_only=look.ascii_only,
            verbose=verbose,
            settings=settings,
        )
        for diagnosis in diagnoses
    )


def write_file(data: str | bytes, out: Path) -> None:
    """Write a file whole or not at all; text as UTF-8.

    Raises:
        OutputError: it cannot be written; what was there is as it was.
    """
    from forensics.runlog.atomic import atomic_write

    try:
        if out.exists() and not out.is_file():  # a pipe or /dev/null: nothing to be kept whole
            out.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
        else:
            # Through a link to the file it names: else the link would be replaced.
            atomic_write(out.resolve(), data)
    except OSError as error:
        hint = "choose another --out"
        raise OutputError(error.strerror or str(error), where=out, hint=hint) from error

"""A page of text for a terminal: labelled paragraphs and columns, wrapped to a width.

Every text that enters a page is made safe here, so that no caller can forget it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from forensics.frozen import dataclass
from forensics.render.ansi import BOLD, painted
from forensics.render.safe_text import display_width, plain_ascii, visible

NARROWEST = 40
"""Columns that a page needs; a narrower terminal wraps by itself."""
MARGIN = 10
"""Columns of the labels at the left: VERDICT, FINDINGS, DO, NEXT."""
_WORD = re.compile(r" *[^ ]+")
# A number keeps its unit, and the step it was seen at; an arrow keeps what it points to.
_GLUE = re.compile(
    r" (?=%)| (?=at [\d-])|(?<= at) (?=[\d-])|(?<=step) (?=\d)|(?<=→) (?=\S)|(?<=->) (?=\S)"
)
_APART = "   "  # sets readings apart: loss 2.41   norm 2.1
_BREAK_AFTER = re.compile(r".*[/._,=:-]", re.DOTALL)
_NO_BREAK = "\x00"  # cannot occur in safe text


@dataclass(frozen=True)
class Cell:
    """One cell of a row: its text, the columns it may take, and its colour."""

    text: str
    width: int
    code: str = ""


class Page:
    """Lines of text, gathered top to bottom.

    Args:
        width: columns that no line exceeds (a command that can be pasted may).
        colour: paint with ANSI codes.
        ascii_only: spell out what is not ASCII.
    """

    def __init__(self, width: int = 80, *, colour: bool = False, ascii_only: bool = False) -> None:
        self.width = max(width, NARROWEST)
        self._colour = colour
        self.ascii_only = ascii_only
        self._lines: list[str] = []

    def text(self) -> str:
        """The page, ending in one newline; no line ends in a space."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n") + "\n"

    def blank(self) -> None:
        """An empty line, never two in a row nor at the top."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def raw(self, line: str) -> None:
        """One line as it is: made of safe text, perhaps painted."""
        self._lines.append(line)

    def paragraph(
        self, text: str, *, indent: int = 0, hang: int | None = None, code: str = ""
    ) -> None:
        """A wrapped paragraph; lines after the first are indented by ``hang``."""
        after = indent if hang is None else hang
        first, *rest = wrap(self.safe(text), self.width - max(indent, after))
        self._lines.append(" " * indent + self.paint(first, code))
        self._lines += [" " * after + self.paint(line, code) for line in rest]

    def labelled(self, label: str, text: str, *, code: str = BOLD) -> None:
        """A paragraph with a label in the margin; an empty label continues the last one."""
        for number, line in enumerate(wrap(self.safe(text), self.width - MARGIN)):
            self._lines.append(self.margin(label if number == 0 else "", code) + line)

    def row(self, cells: Sequence[Cell], *, indent: int = 0, label: str | None = None) -> None:
        """Cells side by side, two columns apart, each wrapped within its own width."""
        wrapped = [wrap(self.safe(cell.text), cell.width) for cell in cells]
        for number, parts in enumerate(zip_longest(*wrapped, fillvalue="")):
            start = " " * indent
            if label is not None:
                start = self.margin(label if number == 0 else "")
            line = "  ".join(
                self.paint(part, cell.code) + " " * (cell.width - display_width(part))
                for part, cell in zip(parts, cells, strict=True)
            )
            self._lines.append(start + line)

    def command(self, label: str, command: str) -> None:
        """A command line that stays whole when pasted: a backslash breaks it between words."""
        lines = break_command(self.safe(command), self.width - MARGIN)
        for number, line in enumerate(lines):
            self._lines.append(self.margin(label if number == 0 else "") + line)

    def margin(self, label: str, code: str = BOLD) -> str:
        """The label, padded to the margin."""
        return self.paint(label, code) + " " * (MARGIN - len(label))

    def paint(self, text: str, code: str) -> str:
        """The text in a colour, where this page has colours."""
        return painted(text, code) if self._colour else text

    def safe(self, text: str) -> str:
        """The text as this page may print it."""
        text = visible(text)
        return plain_ascii(text) if self.ascii_only else text


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` columns, at least one; a longer word is broken.

    Runs of spaces inside a line are kept (they set numbers apart); a unit stays with its number.
    """
    lines: list[str] = []
    line = ""
    for word in _WORD.findall(_glued(text, width)):
        if display_width(line + word) <= width:
            line = line + word if line else word.lstrip(" ")
            continue
        if line:
            lines.append(line)
        *full, line = _pieces(word.lstrip(" "), width)
        lines += full
    lines.append(line)
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _glued(text: str, width: int) -> str:
    """The text with spaces that must not break a line made unbreakable."""
    chunks = text.split(_APART)
    if len(chunks) > 1:
        short = [
            chunk.replace(" ", _NO_BREAK) if len(chunk) < width // 2 else chunk for chunk in chunks
        ]
        text = _APART.join(short)
    return _GLUE.sub(_NO_BREAK, text)


def _pieces(word: str, width: int) -> list[str]:
    """A word in pieces that fit, broken after a path's or a name's separators where it has any."""
    pieces = []
    while display_width(word) > width and len(word) > 1:
        head = word[: max(width, 1)]
        while display_width(head) > width and len(head) > 1:
            head = head[:-1]
        separated = _BREAK_AFTER.match(head)
        if separated and separated.end() > width // 2:
            head = head[: separated.end()]
        pieces.append(head)
        word = word[len(head) :]
    return [*pieces, word]


def break_command(command: str, width: int) -> list[str]:
    """The command on one line, or on several that a shell joins again; words are never broken."""
    import shlex

    if len(command) <= width:
        return [command]
    try:
        words = [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:
        words = []
    if " ".join(words) != command:  # quoted in another way than ours: leave it alone
        return [command]
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 <= width:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(f"  {word}")
    return lines

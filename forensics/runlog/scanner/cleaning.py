"""Log text as a person saw it: without colours, redrawn bars, rank prefixes and notebook escapes.

What a file needs is judged once by its head; each block then costs one search for every kind of
dirt, and a substitution only where there is some.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from forensics.frozen import dataclass

_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BARE_COLOUR = re.compile(rb"\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m")
"""A colour whose escape character was lost when the text was copied: ``[31m``, ``[0m``."""
_BACKSPACES = re.compile(rb"[^\n]?\x08")
RANK_PREFIX = re.compile(
    rb"^(?:\[(?:default|rank|Rank |RANK)?\d{1,6}\]:?[ \t]?|(?:rank|Rank) ?\d{1,6}: ?|\d{1,6}: "
    rb"|\[\d{1,4},(?:mpirank:)?\d{1,6}(?:,[\w-]{1,40})?\](?:<std(?:out|err)>:?|:)[ \t]?"
    rb"|\[[A-Za-z][\w.-]{0,60}:\d{1,4}\]:[ \t]?"
    rb"|\([\w: ]{0,60}pid=\d{1,9}(?:, ip=[\d.]{7,15})?\) ?)",
    re.MULTILINE,
)
"""``[default7]:``, ``[rank0]:``, ``rank 3:``, srun's ``0: ``, mpirun's ``[1,0]<stdout>:``,
torchrun's ``[host:3]:``, and Ray's ``(RayTrainWorker pid=9, ip=10.0.0.1)``."""
_ESCAPED = re.compile(rb"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b'"': b'"', b"\\": b"\\", b"/": b"/"}
_QUOTED_LINE = re.compile(rb'^[ \t]*"(.*?)"?,?$', re.MULTILINE)
_NOTEBOOK = (b'"cell_type"', b'"output_type"')
_DOCKER_LINE = re.compile(rb'^\{"log":"(.*)","stream":"\w+"(?:,"[^}]*)?\}$', re.MULTILINE)
_MESSAGE_LINE = re.compile(
    rb'^\{(?>(?:[^\n]*?,)?[ ]?"(?:MESSAGE|message|msg|textPayload|log)":[ ]?")'
    rb'((?:[^"\\\n]|\\.)*+)"'
    rb"[^\n]*\}$",
    re.MULTILINE,
)
"""A line of a program as journald, Docker's drivers and cluster loggers wrap it.

Atomic: of a long document with many such keys the first one is tried, not each.
"""
_METRICS = re.compile(rb'"(?:[\w/]*loss|step|epoch|global_step)":')
"""Beside a message these are the record, and the message is none."""
_WRAPPED = 0.5
"""Share of a file's lines that are wrapped, where they are."""
_NARROWEST, _WIDEST = 60, 400
"""Columns of a terminal whose lines may have been broken."""
_NUMBER = re.compile(rb"\d{1,18}")
_FIGURES = re.compile(rb"\d[\d.]*|nan|-?inf")
_FEWEST_BROKEN = 4
_MOST_PIECES = 32
"""Full lines that one record is broken into: more of them are records of one length."""
_FEWEST_COLOURS = 2
_LOOKED_AT = 500
"""Lines by which it is judged whether all are wrapped."""


@dataclass(frozen=True)
class Dirt:
    """What the text of one file needs beyond what every text is searched for.

    Attributes:
        notebook: the lines are strings of a notebook's JSON.
        docker: the lines are JSON records of a container's log driver.
        messages: the lines are JSON records, in each of which a message is the program's line.
        ranks: most lines begin with the number of a rank.
        width: lines were broken at this width; 0 where they were not.
        colours: there are colours without their escape character.
    """

    notebook: bool = False
    docker: bool = False
    messages: bool = False
    ranks: bool = False
    width: int = 0
    colours: bool = False


def dirt_of(head: bytes) -> Dirt:
    """Judge a file by its first part."""
    start = head[:4096]
    notebook = start.lstrip().startswith(b"{") and any(mark in head for mark in _NOTEBOOK)
    docker = not notebook and _DOCKER_LINE.match(head) is not None
    messages = not notebook and not docker and start.startswith(b"{") and _is_wrapped(head)
    plain = clean(head, Dirt(notebook=notebook, docker=docker, messages=messages))
    colours = len(_BARE_COLOUR.findall(plain)) >= _FEWEST_COLOURS
    if colours:
        plain = _BARE_COLOUR.sub(b"", plain)
    lines = [line for line in plain.split(b"\n")[:-1] if line.strip()]
    prefixes = [match.group() for line in lines if (match := RANK_PREFIX.match(line))]
    ranks = len(prefixes) >= 2 and len(prefixes) * 2 > len(lines) and not _count_on(prefixes)
    width = 0 if ranks else _broken_at(lines)
    return Dirt(notebook, docker, messages, ranks, width, colours)


def _count_on(prefixes: list[bytes]) -> bool:
    """Does the number in front of the lines rise from each to the next? Then it is no rank."""
    numbers = [int(found.group()) for text in prefixes if (found := _NUMBER.search(text))]
    return len(numbers) >= _FEWEST_BROKEN and all(a < b for a, b in pairwise(numbers))


def _is_wrapped(head: bytes) -> bool:
    """Are most lines JSON with a message in it, which tells a loss as no key beside it does?"""
    lines = [line for line in head.split(b"\n")[:_LOOKED_AT] if line.strip()]
    found = [match for line in lines if (match := _MESSAGE_LINE.match(line))]
    beside = any(
        _METRICS.search(match.string[: match.start(1)] + match.string[match.end(1) :])
        for match in found
    )
    told = any(b"loss" in match.group(1).lower() for match in found)
    return told and not beside and len(found) > _WRAPPED * len(lines)


def _broken_at(lines: list[bytes]) -> int:
    """The width at which a terminal broke the lines; 0 where it did not.

    None is longer, many have exactly that width, and what follows those does not begin as other
    lines do: many a log has records of one length.
    """
    lengths = Counter(map(len, lines))
    widest = max(lengths, default=0)
    if not _NARROWEST <= widest <= _WIDEST or lengths[widest] < _FEWEST_BROKEN:
        return 0
    ends = sum(len(before) == widest > len(line) for before, line in pairwise(lines))
    if ends * _MOST_PIECES < lengths[widest]:
        return 0
    after = [(len(before) == widest, _shape(line)) for before, line in pairwise(lines)]
    begun = {shape for follows, shape in after if not follows} | {_shape(lines[0])}
    follow_on = [shape for follows, shape in after if follows]
    # What a terminal broke is not indented; lines below a heading are.
    strange = sum(shape not in begun and shape[:2] != b"  " for shape in follow_on)
    return widest if strange * 2 > len(follow_on) and strange >= _FEWEST_BROKEN - 1 else 0


def _shape(line: bytes) -> bytes:
    """How a line begins, whatever its numbers are."""
    return _FIGURES.sub(b"0", line[:16])[:5]


def clean(block: bytes, dirt: Dirt) -> bytes:
    """A block of whole lines without what is not text of the log.

    A carriage return becomes a line end, so that each state of a progress bar is a line.
    """
    if dirt.notebook:
        block = _unescaped(_QUOTED_LINE.sub(rb"\1", block))
    elif dirt.docker:
        # Each line has its own end, and that of its record.
        block = _unescaped(_DOCKER_LINE.sub(rb"\1", block)).replace(b"\n\n", b"\n")
    elif dirt.messages:
        block = _unescaped(_MESSAGE_LINE.sub(rb"\1", block)).replace(b"\n\n", b"\n")
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    if dirt.colours:
        block = _BARE_COLOUR.sub(b"", block)
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x08" in block:
        block = _BACKSPACES.sub(b"", block)
    if b"\0" in block:
        block = block.replace(b"\0", b"")
    if dirt.ranks:
        block = RANK_PREFIX.sub(b"", block)
    if dirt.width:
        block = re.sub(rb"^([^\n]{%d})\n" % dirt.width, rb"\1", block, flags=re.MULTILINE)
    return block


def _unescaped(block: bytes) -> bytes:
    if b"\\" not in block:
        return block
    return _ESCAPED.sub(_escaped, block)


def _escaped(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    if len(code) == 5:
        return chr(int(code[1:], 16)).encode("utf-8", errors="replace")
    return _ESCAPES.get(code, match.group(0))

"""Prints of several processes that ran into one line: the ends of the lines came after both."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from forensics.runlog.scanner.printed_lines import printed_line

_BEGINNING = re.compile(rb"[^\d\n]{4,60}(?=\d)")
_LETTERS = re.compile(rb"[A-Za-z]")
_FEWEST_LETTERS = 3


class Glue:
    """Takes lines apart in which a second print begins as the others do.

    Args:
        lines: of the head of a log.
        shapes: of the lines that are the loop's.
    """

    def __init__(self, lines: Iterable[bytes], shapes: frozenset[bytes]) -> None:
        leads: Counter[bytes] = Counter()
        for line in lines:
            match = _BEGINNING.match(line)
            lead = match.group() if match else b""
            # Where each line holds it twice, the second one is no beginning.
            if len(_LETTERS.findall(lead)) >= _FEWEST_LETTERS and line.count(lead) == 1:
                found = printed_line(line)
                leads[lead] += found is not None and found.shape in shapes
        best = leads.most_common(1)
        self._lead = best[0][0] if best and best[0][1] else b""
        self._begins = re.compile(re.escape(self._lead) + rb"(?=\d)")

    def pieces(
        self, pieces: Iterable[bytes | re.Match[bytes]]
    ) -> Iterator[bytes | re.Match[bytes]]:
        """Pieces of a log, each of its lines taken apart; what is no line stays as it is."""
        for piece in pieces:
            if isinstance(piece, bytes) and self._lead and piece.count(self._lead) > 1:
                yield from self.parts(piece)
            else:
                yield piece

    def parts(self, line: bytes) -> list[bytes]:
        """The prints in a line; the line itself where it holds but one."""
        if not self._lead or line.count(self._lead) < 2:
            return [line]
        starts = [match.start() for match in self._begins.finditer(line)]
        cuts = [0, *(start for start in starts if start), len(line)]
        return [line[a:b] for a, b in pairwise(cuts)]

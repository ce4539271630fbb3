"""What a reader mends, gathered: one repair a kind with its count, not one a line."""

from __future__ import annotations

from dataclasses import replace

from forensics.frozen import dataclass
from forensics.runlog.steps import Repair


@dataclass(frozen=True)
class RepairKind:
    """How one kind of repair is told.

    Attributes:
        message: a clause; ``{n}`` is the count, ``{s}`` an s unless the count is 1, ``{detail}``
            what the first one was about.
        lossy: was a row or a value lost, or is it in doubt?
    """

    message: str
    lossy: bool = False


KINDS: dict[str, RepairKind] = {
    # the file
    "byte-order-mark": RepairKind("byte-order mark passed over"),
    "other-encoding": RepairKind("{detail} text read as such"),
    "bad-encoding": RepairKind("{n} line{s} with bytes that are no UTF-8", lossy=True),
    "torn-document": RepairKind(
        "the JSON document is cut or damaged; the records that are whole are read", lossy=True
    ),
    "torn-gzip": RepairKind("the compressed file ends early; what came before is read", lossy=True),
    "nul-bytes": RepairKind("{n} NUL byte{s} passed over, as a crash leaves them", lossy=True),
    "crlf": RepairKind("Windows line ends"),
    "cr-line-ends": RepairKind("line ends are bare carriage returns"),
    # the header
    "delimiter": RepairKind("cells are separated by {detail}"),
    "decimal-comma": RepairKind("numbers have a decimal comma"),
    "renamed-columns": RepairKind("read {detail}"),
    "duplicate-columns": RepairKind("column{s} named twice: {detail}; the first is used"),
    "missing-step-column": RepairKind("no step column ({detail}); the row number is taken"),
    "undated-records": RepairKind("{n} record{s} without a step passed over"),
    "preamble": RepairKind("{n} line{s} before the header passed over"),
    "repeated-header": RepairKind("header repeated {n} time{s}, passed over"),
    "changed-header": RepairKind("{n} further header{s} with other columns, read as such"),
    # the rows
    "torn-last-line": RepairKind("last line cut, dropped", lossy=True),
    "doubtful-last-cell": RepairKind(
        "last line has no newline: its last cell may be cut and is left out", lossy=True
    ),
    "unterminated-last-line": RepairKind("last line has no newline, but is whole"),
    "torn-rows": RepairKind("{n} cut row{s} dropped", lossy=True),
    "glued-rows": RepairKind(
        "{n} line{s} of a cut row and a whole one run together; the whole one is kept", lossy=True
    ),
    "short-rows": RepairKind("{n} row{s} with missing cells", lossy=True),
    "extra-cells": RepairKind("{n} row{s} with empty cells too many"),
    "overlong-rows": RepairKind("{n} row{s} with more cells than columns dropped", lossy=True),
    "stray-lines": RepairKind("{n} stray line{s} passed over: {detail}", lossy=True),
    # the cells
    "bad-steps": RepairKind("{n} row{s} dropped whose step is no whole number: {detail}", True),
    "float-steps": RepairKind("steps are written with a fraction of zero"),
    "negative-steps": RepairKind("{n} step{s} below zero"),
    "odd-numbers": RepairKind("{n} number{s} in a foreign spelling: {detail}"),
    "unparsable-cells": RepairKind("{n} cell{s} taken as absent, being no number: {detail}", True),
    "missing-cells": RepairKind("{n} empty cell{s} in {detail}, taken as absent"),
    # the order
    "unordered-steps": RepairKind("rows were not in order of step ({n} step{s} back); sorted"),
    "repeated-steps": RepairKind("{n} step{s} written again from {detail} on; the last is kept"),
    "abandoned-steps": RepairKind("{n} row{s} after step {detail} from before a restart set aside"),
    "merged-ranks": RepairKind(
        "{n} step{s} written up to {detail} times, as by several ranks, put together"
    ),
    "merged-rows": RepairKind("{n} line{s} put together with others of the same step"),
    "epoch-steps": RepairKind(
        "steps count anew in each epoch: numbered through, an epoch taken to have {detail}"
    ),
    "thinned-rows": RepairKind(
        "{n} row{s} like those around them left out, to bound memory: of {detail} steps one is "
        "kept, and each that stands out"
    ),
    "second-run": RepairKind(
        "the step counter starts again at {detail}: {n} row{s} of an earlier run set aside"
    ),
}


class RepairLog:
    """Gathers repairs by kind, in the order first met.

    Args:
        most_rows: rows from which on a reader may leave out some of those alike; None for never.
    """

    def __init__(self, most_rows: int | None = None) -> None:
        self.most_rows = most_rows
        self._found: dict[str, Repair] = {}
        self._details: dict[str, str] = {}
        self._taken: dict[str, Repair] = {}

    def note(
        self,
        kind: str,
        *,
        line: int | None = None,
        step: int | None = None,
        count: int = 1,
        detail: str = "",
    ) -> None:
        """Note one repair, or more of one kind; line, step and detail of the first are kept.

        Line 0 is none: rows of a log of another program do not know theirs.
        """
        known = self._found.get(kind)
        if known is None:
            self._details[kind] = detail
            known = Repair(kind, "", line or None, step, KINDS[kind].lossy, 0)
        self._found[kind] = replace(known, count=known.count + count)

    def take(self, repair: Repair) -> None:
        """Take over a repair that was noted elsewhere, in its own words."""
        known = self._taken.get(repair.message)
        self._taken[repair.message] = repair if known is None else known

    def count(self, kind: str) -> int:
        """How many of a kind were noted."""
        return self._found[kind].count if kind in self._found else 0

    def repairs(self) -> tuple[Repair, ...]:
        """All of them, a clause each."""
        noted = tuple(
            replace(
                repair,
                message=KINDS[kind].message.format(
                    n=f"{repair.count:,}",
                    s="" if repair.count == 1 else "s",
                    detail=self._details[kind],
                ),
            )
            for kind, repair in self._found.items()
        )
        return (*self._taken.values(), *noted)


def shown(text: str) -> str:
    """A text from a stranger's file in a message: short, on one line, no control characters."""
    flat = "".join(char if char.isprintable() else "?" for char in text[:41])
    return f"'{flat[:40]}…'" if len(flat) > 40 else f"'{flat}'"

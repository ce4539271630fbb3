"""The replay of a capsule as text."""

from __future__ import annotations

from forensics.diagnose.capsule_verdict import CapsuleVerdict
from forensics.render.ansi import BAD, GOOD
from forensics.render.page import Page


def render_capsule_text(
    verdict: CapsuleVerdict, *, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> str:
    """The answer, then what proves it; the texts may be a stranger's, they are made safe here."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    code = GOOD if verdict.confirmed else BAD
    page.labelled("ANSWER", verdict.answer(), code=code)
    for label, text in capsule_lines(verdict):
        page.labelled(label.upper(), text)
    return page.text()


def capsule_lines(verdict: CapsuleVerdict) -> list[tuple[str, str]]:
    """Label and text of every line below the answer."""
    found = verdict.found
    operator = " · ".join(part for part in (found.operator, found.autograd_node) if part)
    if not verdict.confirmed:
        lines = [("expected", f"{verdict.expected.told()}.")]
    else:
        lines = [("where", found.source_line), ("operator", operator), ("module", found.module)]
    lines += [("samples", verdict.batch()), ("run", verdict.run)]
    lines += [("differs" if not i else "", text) for i, text in enumerate(verdict.differences)]
    lines += [("note" if not i else "", text) for i, text in enumerate(verdict.notes)]
    return [(label, text) for label, text in lines if text]

"""The replay of a capsule as Markdown."""

from __future__ import annotations

from forensics.diagnose.capsule_verdict import CapsuleVerdict
from forensics.render.capsule_text import capsule_lines
from forensics.render.safe_text import markdown


def render_capsule_markdown(verdict: CapsuleVerdict) -> str:
    """The answer, and a list of what proves it; a stranger's texts are escaped."""
    blocks = [f"## {markdown(verdict.path)}", f"**Answer:** {markdown(verdict.answer())}"]
    items, last = [], ""
    for label, text in capsule_lines(verdict):
        last = label or last
        items.append(f"- {last}: {markdown(text)}")
    return "\n\n".join([*blocks, "\n".join(items)]) + "\n"

"""The story of the parameters as Markdown, for an issue or a notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forensics.diagnose.param_facts import ParamStory, Standing
from forensics.diagnose.wording import factor
from forensics.render.params_text import first_bad, numbers, where
from forensics.render.safe_text import markdown

_COLUMNS = ("norm", "share", "growth", "weight", "update/weight")


def render_params_markdown(story: ParamStory) -> str:
    """The same facts as the text, in tables; the texts of a log are escaped."""
    lines = [
        f"## Parameters of {markdown(story.path)}",
        "",
        f"- Looked at: {markdown(where(story))}",
        f"- First bad: {markdown(first_bad(story))}",
    ]
    if story.bad_state is not None:
        lines.append(f"- {markdown(story.bad_state.sentence())}")
    lines += [
        f"- Moved from step {mover.since:,}: {markdown(mover.name)} {factor(mover.growth)} its own "
        "baseline"
        for mover in story.movers
    ]
    if not math.isnan(story.usual_growth):
        lines.append(f"- Median parameter: {factor(story.usual_growth)}")
    lines += _table("Largest by gradient norm", story.top)
    lines += _table("Layers in network order", story.profile)
    return "\n".join(lines) + "\n"


def _table(title: str, rows: Sequence[Standing]) -> list[str]:
    if not rows:
        return []
    head = [f"| {title} | {' | '.join(_COLUMNS)} |", f"|---|{'---:|' * len(_COLUMNS)}"]
    return ["", *head, *(f"| {markdown(r.name)} | {' | '.join(numbers(r))} |" for r in rows)]

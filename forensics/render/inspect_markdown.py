"""Saved states as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.diagnose.state_health import StateHealth
from forensics.render.inspect_phrases import (
    HEADER,
    MOST_BAD,
    bad_cells,
    facts,
    largest,
    missing,
    notes,
    numbers,
    verdict,
)
from forensics.render.safe_text import markdown


def render_inspect_markdown(states: Sequence[StateHealth]) -> str:
    """A section a state: verdict, the bad tensors, the largest values, what a resume lacks."""
    return "\n".join(_state(health) for health in states)


def _state(health: StateHealth) -> str:
    parts = [
        f"## {markdown(str(health.path))}",
        markdown(facts(health)),
        f"**{markdown(verdict(health))}**",
    ]
    if health.bad:
        head = [f"| {' | '.join(HEADER)} |", "|---|---|---:|---:|---:|---:|"]
        rows = [
            f"| {' | '.join(markdown(cell) for cell in bad_cells(bad))} |"
            for bad in health.bad[:MOST_BAD]
        ]
        parts.append("\n".join([*head, *rows]))
        if len(health.bad) > MOST_BAD:
            parts.append(f"… and {len(health.bad) - MOST_BAD:,} more")
    told = [f"largest {kind}: {value} in {name}" for kind, value, name in largest(health)]
    told += [numbers(health)] if health.numbers else []
    told += [f"missing for a resume: {missing(health)}", *notes(health)]
    parts.append("\n".join(f"- {markdown(line)}" for line in told))
    return "\n\n".join(parts) + "\n"

"""A diagnosis in the output of a notebook's cell: verdict, chain of events and findings."""

from __future__ import annotations

from forensics.diagnose.finding import Diagnosis
from forensics.render.html.templates import environment
from forensics.render.html.view import STATUS_WORDS, finding_views, summary_of
from forensics.render.phrases import facts_line, remedies, tally

MOST_ROWS = 12
"""Findings that are shown; more are counted."""


def render_html_summary(diagnosis: Diagnosis) -> str:
    """A fragment of HTML without scripts and without styles that reach beyond it.

    Args:
        diagnosis: what to tell; whatever its texts hold is escaped.
    """
    findings = finding_views(diagnosis)
    advice = remedies(diagnosis)
    return (
        environment()
        .get_template("summary.html.j2")
        .render(
            diagnosis=diagnosis,
            status=STATUS_WORDS[diagnosis.verdict.status],
            facts=facts_line(diagnosis.run),
            summary=summary_of(diagnosis),
            findings=findings[:MOST_ROWS],
            more=max(len(findings) - MOST_ROWS, 0),
            remedy=advice[0][1] if advice else diagnosis.verdict.remedy,
            tally=tally(diagnosis, verbose=True),
        )
    )

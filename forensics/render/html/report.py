"""The report as one HTML file: no network, no server, no script but its own.

The charts are drawn by uPlot 1.6.32 (MIT), whose 51 kB travel with this package: plotly's Python
package brings 4.8 MB of script, bokeh's 1.3 MB and eight more packages, and neither keeps a page
with a strict content-security policy. uPlot draws a hundred thousand points in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

import forensics
from forensics.diagnose.finding import Diagnosis
from forensics.render.html.templates import (
    SCRIPTS,
    STYLES,
    asset,
    content_security_policy,
    environment,
    json_for_script,
)
from forensics.render.html.view import run_view

PLACES = 6_000
"""Stretches of steps a chart has: six for each pixel of a wide page, so a zoom shows more."""
CLOSE_UP = 12_000
"""Rows around the findings of a run that have a stretch of their own besides."""
LEAST_PLACES = 500
ALL_PLACES = 30_000
"""Stretches of all runs of a page together; many runs get fewer each."""
ALL_CLOSE_UP = 24_000
"""Rows around the findings of all runs together."""


def render_html(
    diagnoses: Sequence[Diagnosis],
    *,
    errors: Sequence[Mapping[str, str]] = (),
    settings: str = "",
) -> str:
    """One page on any number of runs, each in a section of its own; ends in a newline.

    Args:
        diagnoses: in the order the runs were given. Charts, parameters, bisection and
            configuration come from their ``source``; without it they are left out.
        errors: ``{"path", "message"}`` of each run that could not be read.
        settings: the file that changed rules or thresholds, if any.
    """
    count = max(len(diagnoses), 1)
    places = max(LEAST_PLACES, min(PLACES, ALL_PLACES // count))
    close_up = min(CLOSE_UP, ALL_CLOSE_UP // count)
    runs = [
        run_view(diagnosis, f"run-{number}", places=places, close_up=close_up, settings=settings)
        for number, diagnosis in enumerate(diagnoses, start=1)
    ]
    data = {run.key: {"charts": run.chart_data, "markdown": run.markdown} for run in runs}
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            runs=runs,
            errors=errors,
            version=forensics.__version__,
            policy=content_security_policy(),
            styles=[Markup(asset(name)) for name in STYLES],
            scripts=[Markup(asset(name)) for name in SCRIPTS],
            data=json_for_script(data),
        )
    )

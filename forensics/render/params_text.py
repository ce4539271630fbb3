"""The story of the parameters as text: what went bad, who moved first, who is large, by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forensics.diagnose.finding import Severity
from forensics.diagnose.param_facts import FirstBad, ParamSeries, ParamStory, Standing
from forensics.diagnose.wording import counted, factor, number, percent
from forensics.render.ansi import BAD, BOLD, GOOD, severity_code
from forensics.render.page import Page
from forensics.render.table import TextRow, put_table

MOST_MOVERS = 8
"""Movers told one by one; the first ones are what matters."""
BAR = 12
"""Columns of the longest bar of the profile."""
DECADES = 4.0
"""Decades of gradient norm that a bar spans; what is smaller has none."""


def render_params_text(
    story: ParamStory, *, width: int = 80, colour: bool = False, ascii_only: bool = False
) -> str:
    """The whole story; its texts may be anything, they are made safe here."""
    page = Page(width, colour=colour, ascii_only=ascii_only)
    page.paragraph(f"{story.path}   {_extent(story)}", hang=2, code=BOLD)
    page.blank()
    page.labelled("AT", where(story))
    page.labelled("BAD", first_bad(story), code=GOOD if story.first_bad is None else BAD)
    if story.bad_state is not None:
        page.labelled("", story.bad_state.sentence())
    _movers(page, story)
    _table(page, "LARGEST by gradient norm", story.top)
    _profile(page, story)
    for series in story.series:
        _series(page, series)
    return page.text()


def _extent(story: ParamStory) -> str:
    chosen = f" matching {story.pattern}" if story.pattern else ""
    return (
        f"{counted(story.snapshots, 'snapshot')}, steps {story.first_step:,} to "
        f"{story.last_step:,} · {counted(story.parameters, 'parameter')}{chosen}"
    )


def where(story: ParamStory) -> str:
    """Which snapshot is looked at, and why."""
    at = f"step {story.step:,}"
    total = f", gradient norm {number(story.grad_l2)}" if not math.isnan(story.grad_l2) else ""
    if story.no_gradient:
        if math.isnan(story.grad_l2):
            return f"{at}. {_sentence(story.no_gradient)}, and no snapshot before it has one"
        return f"{at}, the last snapshot with gradients{total}. {_sentence(story.no_gradient)}"
    if story.asked is not None:
        near = "" if story.asked == story.step else f", the last snapshot before {story.asked:,}"
        return f"{at}{near}{total}"
    if story.first_bad is not None and story.step < story.first_bad.step:
        return f"{at}, the last sound snapshot before it went bad{total}"
    return f"{at}, the last snapshot with finite gradients{total}"


def first_bad(story: ParamStory) -> str:
    """Who went non-finite first, and what brackets it."""
    overflows = f"overflows that the loss scaler skipped ({counted(story.routine, 'snapshot')}"
    overflows += ", this one among them)" if story.overflowed else ")"
    if story.first_bad is None and story.routine:
        return f"nothing but {overflows}"
    if story.first_bad is None:
        return "no parameter or gradient was non-finite"
    beside = f". Besides, {overflows}" if story.routine else ""
    return f"step {story.first_bad.step:,}: {_culprit(story.first_bad)}{beside}"


def _sentence(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def _culprit(bad: FirstBad) -> str:
    elements = f", {counted(bad.elements, 'element')}" if bad.elements else ""
    text = f"{bad.what} of {bad.name}{elements}; {bad.bad:,} of {bad.total:,} parameters bad"
    if bad.finite_before:
        text += f". Still finite just before it (nearer the loss): {bad.finite_before}"
    if bad.finite_after:
        text += f". Finite again after it: {bad.finite_after}"
    return f"{text}. {bad.origin.rstrip('.')}" if bad.origin else text


def _movers(page: Page, story: ParamStory) -> None:
    """Who left the own baseline, the first one first."""
    if not story.movers:
        known = not math.isnan(story.usual_growth)
        usual = f" (median parameter {factor(story.usual_growth)})" if known else ""
        few = "too few snapshots before to know what was normal"
        calm = f"no parameter has left its own baseline{usual}"
        page.labelled("MOVED", calm if known else few)
        return
    for number_, mover in enumerate(story.movers[:MOST_MOVERS]):
        page.labelled(
            "" if number_ else "MOVED",
            f"{mover.since:,}→ {mover.name} {factor(mover.growth)} its own baseline",
            code=severity_code(Severity.WARNING),
        )
    more = len(story.movers) - MOST_MOVERS
    rest = f"{more} more; " if more > 0 else ""
    page.labelled("", f"{rest}the median parameter {factor(story.usual_growth)}")


def _table(page: Page, title: str, rows: Sequence[Standing]) -> None:
    if not rows:
        return
    page.blank()
    header = (title, "norm", "share", "growth", "weight", "upd/wt")
    put_table(page, header, [TextRow((row.name, *numbers(row)), _codes(row)) for row in rows])


def _codes(row: Standing) -> tuple[str, ...]:
    """The colours of a row: what is not finite stands out."""
    return ("", BAD if row.nonfinite else "", "", "", "", "")


def numbers(row: Standing) -> tuple[str, ...]:
    """Norm, share, growth, weight norm and update ratio, as a table shows them."""
    norm = f"{row.nonfinite:,} bad" if row.nonfinite else known(row.grad_l2)
    return (
        norm,
        "–" if row.nonfinite or math.isnan(row.share) else _share(row.share),
        "–" if math.isnan(row.growth) else factor(row.growth),
        known(row.value_l2),
        known(row.update_ratio),
    )


def _share(share: float) -> str:
    return "<0.1 %" if share < 1e-3 else percent(share)


def known(value: float) -> str:
    """A number, or a dash where it is not known."""
    return "–" if math.isnan(value) else number(value)


def _profile(page: Page, story: ParamStory) -> None:
    """One line a layer, with a bar on a log scale."""
    if len(story.profile) < 2:
        return
    page.blank()
    header = ("LAYERS", "", "norm", "share", "growth", "weight", "upd/wt")
    top = max((row.grad_l2 for row in story.profile if math.isfinite(row.grad_l2)), default=0.0)
    rows = [
        TextRow((f"{row.name} ({row.parameters})", bar(row.grad_l2, top), *numbers(row)))
        for row in story.profile
    ]
    put_table(page, header, rows, left=2)


def bar(value: float, top: float) -> str:
    """A bar whose length is the logarithm of the value, over four decades below the largest."""
    if not (value > 0 and math.isfinite(value) and top > 0):
        return ""
    share = 1 + math.log10(value / top) / DECADES
    return "#" * max(1, round(BAR * share)) if share > 0 else ""


def _series(page: Page, series: ParamSeries) -> None:
    page.blank()
    page.paragraph(f"OVER TIME {series.name}", hang=2, code=BOLD)
    rows = [
        TextRow(
            (
                f"{series.steps[i]:,}",
                known(series.grad_l2[i]),
                "–" if math.isnan(series.growth[i]) else factor(series.growth[i]),
                known(series.value_l2[i]),
                known(series.update_ratio[i]),
            )
        )
        for i in range(len(series.steps))
    ]
    put_table(page, ("step", "norm", "growth", "weight", "upd/wt"), rows, left=0)

"""The parameters of a run as the rows of one table."""

from __future__ import annotations

import math

from forensics.diagnose.param_facts import FirstBad, ParamStory, Standing
from forensics.diagnose.param_story import param_story
from forensics.diagnose.wording import counted, factor, number, percent, sentence
from forensics.errors import InputError
from forensics.frozen import dataclass
from forensics.runlog.run import Run

MOST_ROWS = 2_000
"""Rows of the table, the largest gradients first; a page with more is slow on a phone."""


@dataclass(frozen=True, kw_only=True)
class ParamCell:
    """A number: as it is shown, and as it is sorted (empty where it is unknown)."""

    shown: str
    sorted: str = ""


@dataclass(frozen=True, kw_only=True)
class ParamRow:
    """One parameter: its name, shape, numbers, and what is to be said of it in words."""

    name: str
    shape: str
    grad: ParamCell
    share: ParamCell
    growth: ParamCell
    value: ParamCell
    update: ParamCell
    note: str


@dataclass(frozen=True, kw_only=True)
class ParamsView:
    """The table and the sentences above it; ``scope`` says which parameters are in it."""

    step: int
    snapshots: int
    scope: str
    sentences: tuple[str, ...]
    rows: tuple[ParamRow, ...]


def params_view(run: Run) -> ParamsView | None:
    """The table, or None where the run has no snapshots."""
    try:
        story = param_story(run, top=MOST_ROWS)
    except InputError:
        return None
    manifest = run.manifest
    known = () if manifest is None else manifest.parameters
    shapes = {info.name: " × ".join(map(str, info.shape)) or "scalar" for info in known}
    moved = {mover.name: mover.since for mover in story.movers}
    return ParamsView(
        step=story.step,
        snapshots=story.snapshots,
        scope=_scope(story),
        sentences=_sentences(story),
        rows=tuple(_row(one, shapes, moved, story.first_bad) for one in story.top),
    )


def _scope(story: ParamStory) -> str:
    shown, total = len(story.top), story.parameters
    if shown == total:
        return f"{counted(total, 'parameter')}."
    which = "the largest gradients" if shown == MOST_ROWS else "those with a gradient"
    return f"{shown:,} of {total:,} parameters, {which}."


def _sentences(story: ParamStory) -> tuple[str, ...]:
    told = []
    bad = story.first_bad
    if bad is not None:
        count = f", {bad.bad:,} of {bad.total:,} parameters bad in that step"
        told.append(f"First non-finite: the {bad.what} of {bad.name} at step {bad.step:,}{count}.")
        told += [sentence(bad.origin)] if bad.origin else []
    if story.movers:
        first = story.movers[0]
        told.append(
            f"First to leave its own baseline: {first.name}, since step {first.since:,}, "
            f"{factor(first.growth)} by step {story.step:,}."
        )
    if story.bad_state is not None:
        told.append(sentence(story.bad_state.sentence()))
    return tuple(told)


def _row(
    one: Standing, shapes: dict[str, str], moved: dict[str, int], bad: FirstBad | None
) -> ParamRow:
    notes = []
    if bad is not None and bad.name == one.name:
        notes.append(f"first non-finite, at {bad.step:,}")
    if one.nonfinite:
        notes.append(f"{one.nonfinite:,} non-finite elements")
    if one.name in moved:
        notes.append(f"left its baseline at {moved[one.name]:,}")
    return ParamRow(
        name=one.name,
        shape=shapes.get(one.name, ""),
        grad=_cell(one.grad_l2, number(one.grad_l2)),
        share=_cell(one.share, percent(one.share) if math.isfinite(one.share) else ""),
        growth=_cell(one.growth, factor(one.growth)),
        value=_cell(one.value_l2, number(one.value_l2)),
        update=_cell(one.update_ratio, number(one.update_ratio)),
        note="; ".join(notes),
    )


def _cell(value: float, shown: str) -> ParamCell:
    if math.isnan(value):
        return ParamCell(shown="–")
    return ParamCell(shown=shown, sorted=repr(value) if math.isfinite(value) else "1e999")

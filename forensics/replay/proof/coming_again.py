"""Guilty samples that come again in the next epoch: a trial leaves them out there, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, uint8

from forensics.diagnose.bisection_result import WhatIf
from forensics.errors import NotReplayableError
from forensics.replay.proof.trial_plans import Plan
from forensics.replay.rerun.changes import Changes, batch_size, selected
from forensics.replay.rerun.remote_batch import RemoteBatch
from forensics.replay.session import Session

MOST = 8
"""Further steps that they are left out of: each costs a trial from the beginning."""


def without_them_later(
    session: Session,
    plan: Plan,
    trial: WhatIf,
    samples: Sequence[int],
    again: Callable[[Plan], WhatIf],
) -> WhatIf:
    """A trial without the samples that went bad later, made anew without them there, too.

    Args:
        session: that replays.
        plan: of the trial.
        trial: what it came to.
        samples: those left out of its first step.
        again: carries a plan through from the same state.

    Returns:
        The trial; ``comes_again`` names the steps that the same samples were left out of as well.
    """
    first, later, left_out = trial.from_step, trial.first_bad_step, dict(plan.changes.drop)
    while trial.finite is False and later is not None and later not in left_out:
        if len(left_out) > MOST:
            return replace(trial, note="the same samples come again and again")
        same = _same(session, (first, samples), later)
        if not same:
            return replace(trial, note=f"step {later:,} holds no sample that is equal to these")
        left_out[later] = same
        anew = again(replace(plan, changes=replace(plan.changes, drop=left_out)))
        if anew.finite is None:  # they are the whole batch of that step
            return replace(trial, note="the same samples again")
        trial, later = anew, anew.first_bad_step
    further = tuple(step for step in sorted(left_out) if step > first)
    if not trial.finite or not further:
        return trial
    steps = ", ".join(f"{step:,}" for step in further)
    return replace(trial, comes_again=further, note=f"{trial.note}, and again at {steps}")


def _same(session: Session, guilty: tuple[int, Sequence[int]], later: int) -> tuple[int, ...]:
    """The samples of a step that equal guilty ones of another, bit for bit; labels count, too."""
    step, samples = guilty
    try:
        wanted = set(_contents(session, step, samples).values())
        size = sum(map(batch_size, session.batch(later)))
        found = _contents(session, later, range(size))
        return tuple(index for index, content in found.items() if content in wanted)
    except Exception:  # noqa: BLE001 - a recipe's batch() and select() raise what they like
        return ()


def _contents(session: Session, step: int, samples: Sequence[int]) -> dict[int, tuple[Any, ...]]:
    """What some samples of a step are made of, by index."""
    batches = session.batch(step)
    if any(isinstance(batch, RemoteBatch) for batch in batches):
        raise NotReplayableError("another process holds them", where=f"step {step}")
    found = {}
    for index in samples:
        changes = Changes(keep={step: (index,)})
        ((_, sample),) = selected(session.recipe, batches, step, changes)
        found[index] = _bytes(sample)
    return found


def _bytes(sample: Any) -> tuple[Any, ...]:
    """What a sample is made of: NaN equals NaN here."""
    if isinstance(sample, Tensor):
        plain = sample.detach().cpu().contiguous()
        return (str(plain.dtype), tuple(plain.shape), plain.view(-1).view(uint8).numpy().tobytes())
    entries = sample.values() if isinstance(sample, Mapping) else sample
    if isinstance(sample, Mapping | tuple | list):
        return tuple(_bytes(entry) for entry in entries)
    return ()

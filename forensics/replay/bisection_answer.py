"""The result of a bisection, put together from what is known: advice, the next command, words."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    Departure,
    FaultKind,
    Origin,
    Persistence,
)
from forensics.diagnose.spike_condition import spike_options
from forensics.diagnose.unguarded import damage_stayed, guard
from forensics.diagnose.wording import number
from forensics.diagnose.wording import steps as step_count
from forensics.replay.bad import NONFINITE
from forensics.replay.bisect_options import Options
from forensics.replay.narrowing import Suspicion
from forensics.replay.proof.flip import Hit
from forensics.replay.proof.remedy import remedies
from forensics.replay.start_states import StateSearch
from forensics.replay.trainers.contract import names_a_maker
from forensics.runlog.run import Run


def answer_of(
    run: Run,
    options: Options,
    suspicion: Suspicion,
    fields: Mapping[str, Any],
    notes: Sequence[str],
) -> BisectionResult:
    """The result from those of its fields that are known.

    Args:
        run: that was bisected.
        options: what was asked for.
        suspicion: what the log says.
        fields: by name, as far as they are known.
        notes: what else the user must know.
    """
    known = {"status": BisectStatus.NOT_BISECTABLE, **fields}
    step = known.get("first_bad_step")
    if step is not None:
        if step == suspicion.step:
            known["bad"] = suspicion.why
        known["damage_stayed"] = damage_stayed(run.steps, step)
        known["remedy"] = _remedy(run, known, step)
    late = _shows_later(known.get("origin"), step, suspicion)
    known["notes"] = tuple(dict.fromkeys((*notes, *late)))
    known["next_command"] = _next_command(run, options, known) or _by_the_spike(
        run, options, known, suspicion
    )
    return BisectionResult(path=str(run.path), **known)


def _shows_later(origin: Origin | None, step: int | None, suspicion: Suspicion) -> tuple[str, ...]:
    """That a bad tensor of the state does no harm until a later step reads it."""
    held = origin is not None and origin.operator.startswith(("buffer:", "param:", "extra:"))
    if not held or step is None or suspicion.step is None or suspicion.step <= step:
        return ()
    return (
        f"the rows before step {suspicion.step:,} are sound: that is the first step that shows it "
        f"({suspicion.why})",
    )


def looked_at(
    suspicion: Suspicion, states: StateSearch, sound: Sequence[int], *, condition: str = NONFINITE
) -> str:
    """What was looked at, where nothing is bad.

    Args:
        suspicion: what the log says.
        states: what the saved states say.
        sound: steps that were looked into.
        condition: what was asked for.
    """
    rows = f"{suspicion.rows:,} {'row' if suspicion.rows == 1 else 'rows'}"
    if condition != NONFINITE:
        return f"{condition} holds in none of {rows}"
    text = f"nothing is bad in {rows}"
    tested = sum(state.verdict == "good" for state in states.verdicts)
    if tested:
        text += f" and {tested:,} saved {'state' if tested == 1 else 'states'}"
    if suspicion.routine:
        text += f"; {step_count(suspicion.routine)} skipped: the loss scaler at work"
    if sound:
        text += f"; {step_count(len(sound))} looked into closely, and what was applied is right"
    return text


def outside_origin(
    hit: Hit | None, gone: Departure, bad_step: int, row: Mapping[str, Any]
) -> Origin:
    """The origin of a fault that no replay repeats.

    Args:
        hit: the value that was changed, where a saved state shows it.
        gone: the first row in which the replay is not the record.
        bad_step: the first bad row of the record.
        row: that row.
    """
    kind = _kind_of(row)
    until = f" up to step {gone.step - 1:,}" if gone.step else ""
    sound = f" and sound at step {bad_step:,}, where the record is not"
    summary = (
        f"A replay is the record bit for bit{until}{'' if kind is FaultKind.APPLIED else sound}: "
        f"from step {gone.step:,} on it was made of other values. Hardware, data or code that the "
        "recording does not know changed them."
    )
    if hit is None:
        return Origin(kind=kind, phase="outside", operator="outside", summary=summary)
    owner = hit.owner or hit.name
    element = str(list(hit.index))
    return Origin(
        kind=kind,
        phase="outside",
        operator="outside",
        module=owner.rpartition(".")[0],
        parameter=hit.name,
        parameters=(owner,),
        element=element,
        summary=f"{_told_of(hit, element, gone)} {summary}",
    )


def _kind_of(row: Mapping[str, Any]) -> FaultKind:
    """How a recorded row is bad; ``applied`` where every number in it is finite."""
    values = [row.get(name) for name in ("loss", "grad_l2_pre_clip", "lr", "scaler_scale")]
    numbers = [value for value in values if isinstance(value, float)]
    if row.get("norm_overflow"):
        return FaultKind.NORM_OVERFLOW
    if any(map(math.isnan, numbers)):
        return FaultKind.NAN
    return FaultKind.INF if any(map(math.isinf, numbers)) else FaultKind.APPLIED


def _told_of(hit: Hit, element: str, gone: Departure) -> str:
    """The changed value in one or two sentences."""
    name = f"{hit.name}{element}"
    was, became = number(hit.replayed), number(hit.recorded)
    if hit.bit is None:
        bit = ", which is one bit of the exponent" if hit.one_bit else ""
        state = f"in the saved state of step {hit.state:,}"
        return f"{name} is {became} {state} and {was} in the replay{bit}."
    return (
        f"{name} was {was} and became {became} before step {hit.state:,} computed with it: bit "
        f"{hit.bit} of it flipped. With that bit flipped the replay gives the recorded row of step "
        f"{gone.step:,} bit for bit."
    )


def _remedy(run: Run, known: Mapping[str, Any], step: int) -> tuple[str, ...]:
    rows = np.flatnonzero(run.steps.step == step)
    skipped = bool(len(rows)) and "skipped" in run.steps and bool(run.steps["skipped"][rows[0]])
    return remedies(
        known.get("origin"),
        known.get("growth"),
        known.get("what_if", ()),
        first_bad_step=step,
        samples=known.get("samples", ()),
        ranks=() if known.get("samples_note") else known.get("bad_ranks", ()),
        # Without an origin the code or the machine may differ: nothing is advised on its memory.
        reproduces=known.get("reproduces") if known.get("origin") is not None else None,
        persistence=known.get("persistence", Persistence.UNKNOWN),
        skipped=skipped,
        raised=known.get("raised", False),
        guard=guard(scaling=_scales(run)) if known["damage_stayed"] else "",
        checkpoints=known.get("checkpoints", ()),
    )


def _scales(run: Run) -> bool:
    policy = run.manifest.scaler if run.manifest is not None else None
    return policy is not None and policy.enabled


def _by_the_spike(
    run: Run, options: Options, known: Mapping[str, Any], suspicion: Suspicion
) -> str:
    """Where nothing is non-finite and the report's root is a spike: the bisection of that."""
    vain = known["status"] is BisectStatus.NOT_BISECTABLE and options.predicate.text == NONFINITE
    told = spike_options(run.steps, suspicion.root) if vain and suspicion.root is not None else ""
    again = replace(options, from_step=None) if "--from" in told else options
    path = shlex.quote(str(run.path))
    return f"forensics bisect {path}{again.as_command()}{told}" if told else ""


def _next_command(run: Run, options: Options, known: Mapping[str, Any]) -> str:
    """The one command that brings the reader further."""
    path = shlex.quote(str(run.path))
    if known.get("capsule"):
        recipe = f" --recipe {shlex.quote(options.recipe)}" if options.recipe else ""
        return f"forensics capsule run {shlex.quote(known['capsule'])}{recipe}"
    if known["status"] is BisectStatus.PARTIAL:
        return f"forensics bisect {path}{options.as_command()}"
    origin = known.get("origin")
    several = run.manifest is not None and run.manifest.world_size > 1
    worth = origin is not None and origin.operator != "batch"
    worth = worth and (not several or known.get("rank") is not None)
    worth = worth and not names_a_maker(options.recipe)  # of a trainer's step there is no capsule
    if known.get("reproduces") and worth:
        folder = shlex.quote(str(run.path / f"capsule-{known['first_bad_step']}"))
        return f"forensics bisect {path}{options.as_command()} --no-what-if --capsule {folder}"
    return ""

"""Replaying a capsule: does it still do what it was written for?"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from forensics.diagnose.bisection_result import Origin
from forensics.diagnose.capsule_verdict import CapsuleVerdict, FaultFacts
from forensics.errors import InputError, NotReplayableError
from forensics.record.training_state import restore_state
from forensics.replay.capsule.contents import (
    BATCH,
    RECIPE,
    STATE,
    CapsuleFacts,
    load_part,
    part,
    read_facts,
)
from forensics.replay.capsule.whole_state import restore_beyond
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session, open_session
from forensics.replay.suspects import place_of
from forensics.replay.tracing.step_forensics import audit
from forensics.runlog.json_fields import FieldError
from forensics.runlog.manifest import Manifest
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

Say = Callable[[str], None]


def run_capsule(
    path: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    device: str | None = None,
    say: Say = lambda line: None,
) -> CapsuleVerdict:
    """Replay the step that a capsule holds, under the trace, and compare.

    Nothing in the capsule can run code. The recipe is looked up among the installed ones; one that
    was copied into the capsule is loaded only where ``recipe`` names its file.

    Args:
        path: the capsule's folder.
        recipe: a registered name or ``file.py:name``; by default the registered recipe that was
            recorded.
        device: to replay on; by default the recorded kind where this machine has it.
        say: told what differs from the recording's machine.

    Raises:
        InputError: it is no capsule, is damaged, or does not fit the recipe.
        NotReplayableError: the recipe cannot be had.
    """
    directory = Path(path)
    facts = read_facts(directory)
    with open_capsule(directory, facts, recipe=recipe, device=device, say=say) as session:
        examination = audit(session)
        origin, replayed = examination.origin, examination.replayed
        found = expected_of(origin, replayed)
        differences = _differences(facts.expected, found)
        row = session.departure(replayed) if replayed is not None and not facts.samples else None
        if row is not None:
            differences.append(f"{row.column} is {row.replayed} where {row.recorded} was recorded")
        return CapsuleVerdict(
            path=str(directory),
            run=facts.run,
            step=facts.step,
            samples=facts.samples,
            batch_size=facts.batch_size,
            confirmed=_same(facts.expected, found),
            expected=facts.expected,
            found=found,
            differences=tuple(differences),
            notes=tuple(session.notes),
        )


def expected_of(origin: Origin | None, replayed: ReplayedStep | None) -> FaultFacts:
    """What a step did, as a capsule keeps it."""
    log = replayed.log if replayed is not None else None
    return FaultFacts(
        place=place_of(replayed) if replayed is not None else "",
        kind=origin.kind.value if origin else "",
        phase=origin.phase if origin else "",
        operator=origin.operator if origin else "",
        module=origin.module if origin else "",
        autograd_node=origin.autograd_node if origin else "",
        parameter=origin.parameter if origin else "",
        loss=log.loss if log is not None else None,
        exception=replayed.exception if replayed is not None else "",
        summary=origin.summary if origin else "",
        source_line=origin.source_line if origin else "",
    )


def open_capsule(
    directory: Path,
    facts: CapsuleFacts,
    *,
    recipe: str | None = None,
    device: str | None = None,
    say: Say = lambda line: None,
) -> Session:
    """A session that stands before the capsule's step, with the capsule's batch.

    Raises:
        InputError, NotReplayableError: as ``run_capsule``.
    """
    if facts.recipe_file and recipe is None:
        name = f":{facts.recipe_name}" if facts.recipe_name else ""
        raise NotReplayableError(
            f"its recipe is the file {RECIPE}, a copy of {Path(facts.recipe_file).name}, "
            "and a file is loaded only if you name it",
            where=directory,
            hint=f"read it, then: --recipe {directory / RECIPE}{name}",
        )
    session = open_session(_as_run(directory, facts), recipe=recipe, device=device, say=say)
    try:
        path = part(directory, STATE)
        state = load_part(directory, STATE)
        try:
            restore_state(session.training, state, where=path)
            restore_beyond(session.training, session.recipe, state)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"is damaged ({error})", where=path) from error
        session.step_index = facts.step
        session.bad_state()  # what is not finite by nature shows before the step
        if facts.batch_stored:
            _give(session, load_part(directory, BATCH))
    except BaseException:
        session.close()
        raise
    return session


def _as_run(directory: Path, facts: CapsuleFacts) -> Run:
    """The run that a capsule was cut out of, as far as it holds it."""
    names = {name for row in facts.rows for name in row} - {"step"}
    cells = {name: [row.get(name) for row in facts.rows] for name in names}
    steps = [row.get("step") for row in facts.rows]
    try:
        return Run(
            path=directory,
            steps=StepTable.from_arrays({"step": steps, **cells}),
            manifest=Manifest.from_json(facts.manifest),
        )
    except (FieldError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"is damaged: {error}", where=directory) from error


def _give(session: Session, saved: Any) -> None:
    """Let the recipe hand out the saved batch; what its ``batch`` does besides still happens."""
    if not isinstance(saved, list):
        raise InputError("is no list of micro-batches", where=BATCH)
    for tensor in filter(torch.is_tensor, tree_leaves(saved)):
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise InputError("declares more elements than it holds", where=BATCH)
    made = session.recipe.batch

    def batch(step: int) -> list[Any]:
        with suppress(Exception):  # the data need not be on this machine
            made(step)
        return saved

    session.recipe.batch = batch  # type: ignore[method-assign]


def _same(expected: FaultFacts, found: FaultFacts) -> bool:
    """The same fault: its place, and its operator where one was told."""
    if expected.place != found.place:
        return False
    named = ("kind", "phase", "operator", "module")
    return all(getattr(expected, name) == getattr(found, name) for name in named)


def _differences(expected: FaultFacts, found: FaultFacts) -> list[str]:
    words = {"place": "bad place", "autograd_node": "node of backward"}
    lines = []
    for name in ("place", "kind", "phase", "operator", "module", "autograd_node", "parameter"):
        was, now = getattr(expected, name), getattr(found, name)
        if was != now:
            lines.append(f"{words.get(name, name)}: {now or 'none'} where {was or 'none'} was")
    return lines

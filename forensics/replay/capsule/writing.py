"""Writing a capsule: the smallest thing that reproduces a bad step, whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from forensics.diagnose.bisection_result import BisectionResult, Origin
from forensics.diagnose.capsule_verdict import FaultFacts
from forensics.errors import ForensicsError, NotReplayableError
from forensics.record.extra_columns import param_digest
from forensics.record.parameters import tracked_parameters
from forensics.record.portable import NotPortableError, portable
from forensics.record.recipe import Batch
from forensics.replay.capsule.contents import (
    BATCH,
    FACTS,
    OPERATOR,
    RECIPE,
    REPRO,
    REPRO_OPERATOR,
    STATE,
    CapsuleFacts,
)
from forensics.replay.capsule.folder import copy, new_folder, save, write
from forensics.replay.capsule.operator_inputs import (
    CaughtOperator,
    OperatorCatch,
    buffers_of,
    catchable,
)
from forensics.replay.capsule.running import expected_of, run_capsule
from forensics.replay.capsule.scripts import operator_script, repro_script
from forensics.replay.capsule.whole_state import whole_state
from forensics.replay.rerun.changes import Changes, batch_size, select_samples
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.session import Session
from forensics.replay.suspects import place_of
from forensics.replay.tracing.step_forensics import audit, examine

_PRIVATE = "_forensics_recipe_"
"""Prefix of the module name under which a user's file is loaded."""


@dataclass(frozen=True, kw_only=True)
class Capsule:
    """A capsule that was written.

    Attributes:
        path: its folder.
        size: bytes on disk.
        samples: how many samples it holds.
        confirmed: a replay from what was written did the same.
        notes: what it lacks, a clause each.
    """

    path: Path
    size: int
    samples: int
    confirmed: bool
    notes: tuple[str, ...] = ()


def write_capsule(
    directory: str | os.PathLike[str],
    session: Session,
    before: MemoryState,
    result: BisectionResult,
    *,
    overwrite: bool = False,
) -> Capsule:
    """Write the state just before the bad step, its batch, the recipe and the expected answer.

    Of the batch only the guilty samples are kept, where they go bad by themselves. The folder is
    made under another name, replayed, and renamed when it is whole.

    Args:
        directory: a new or empty folder; with ``overwrite`` also one that holds a capsule.
        session: of the run; a state has to be restored before it is used again.
        before: the state just before the bad step.
        result: tells the origin and the guilty samples.
        overwrite: replace the capsule that is there.

    Raises:
        OutputError: the folder cannot be written, or holds something else.
        NotReplayableError: a replay from the state does not go bad: there is nothing to keep.
    """
    target = Path(directory)
    with new_folder(target, overwrite=overwrite) as home:
        facts = _fill(home, session, before, result)
        confirmed, note = _confirm(home, session)
    notes = [note, *facts.missing]
    return Capsule(
        path=target,
        size=sum(file.stat().st_size for file in target.iterdir()),
        samples=len(facts.samples) or facts.batch_size,
        confirmed=confirmed,
        notes=tuple(line for line in notes if line),
    )


def _confirm(home: Path, session: Session) -> tuple[bool, str]:
    """Replay what was written, before it gets its name; it takes a training of its own."""
    _make_room(session)
    source = _source_of(session)
    reference = f"{source}:{session.recipe.name}" if source else session.recipe.name
    try:
        verdict = run_capsule(home, recipe=reference, device=str(session.device))
    except ForensicsError as error:
        return False, f"its own replay failed: {error.line()}"
    if verdict.confirmed:
        return True, ""
    return False, f"its own replay did otherwise: {'; '.join(verdict.differences)}"


def _make_room(session: Session) -> None:
    """Let go of moments and gradients: whoever goes on with the session restores a state first."""
    for optimizer in session.training.optimizers:
        optimizer.state.clear()
    for parameter in session.model.parameters():
        parameter.grad = None


def _fill(
    home: Path, session: Session, before: MemoryState, result: BisectionResult
) -> CapsuleFacts:
    samples, expected, origin = _smallest(session, before, result)
    caught, why_not = _caught(session, before, origin, samples)
    gradients = _needs_gradients(session, before)
    session.restore(before)
    state, missing = whole_state(session.training, session.recipe, before.step, gradients=gradients)
    save(state, home / STATE)
    size = sum(map(batch_size, session.batch(before.step)))
    stored, note = _save_batch(home / BATCH, session, before.step, samples)
    source = _source_of(session)
    facts = CapsuleFacts(
        step=before.step,
        run=str(session.run.path),
        manifest=session.manifest.to_json(),
        rows=_rows(session, before.step),
        expected=expected,
        samples=samples,
        batch_size=size,
        batch_stored=stored,
        recipe_file=str(source.name) if source else "",
        replayed_by=session.recipe.name,
        operator=caught.name if caught else "",
        operator_note=why_not,
        missing=(*missing, *note),
    )
    if source is not None:
        facts = replace(facts, recipe_sha256=copy(source, home / RECIPE))
    if caught is not None:
        save({"args": caught.args, "kwargs": caught.kwargs}, home / OPERATOR)
        write(home / REPRO_OPERATOR, operator_script(caught.name, caught.kind))
    script = repro_script(
        step=before.step,
        summary=expected.summary or f"It goes bad in: {expected.place}.",
        recipe_source=RECIPE if source else "",
        recipe_name=session.recipe.name,
    )
    write(home / REPRO, script)
    write(home / FACTS, facts.to_text())
    return facts


def _smallest(
    session: Session, before: MemoryState, result: BisectionResult
) -> tuple[tuple[int, ...], FaultFacts, Origin | None]:
    """The samples to keep (none: all of them), and what the step does on them."""
    session.restore(before)
    whole = audit(session, before=before)
    assert whole.replayed is not None
    if not whole.replayed.bad and whole.origin is None:
        raise NotReplayableError(
            "a replay of the step is sound, so there is nothing to keep",
            where=f"step {before.step}",
        )
    if result.samples:
        session.restore(before)
        part = examine(session, changes=_only(before.step, result.samples))
        assert part.replayed is not None
        same_place = place_of(part.replayed) == place_of(whole.replayed)
        if same_place and _operator(part.origin) == _operator(whole.origin):
            return result.samples, expected_of(part.origin, part.replayed), part.origin
    return (), expected_of(whole.origin, whole.replayed), whole.origin


def _operator(origin: Origin | None) -> str:
    """A batch of one may go bad in the same place for a reason of its own."""
    return origin.operator if origin is not None else ""


def _rows(session: Session, step: int) -> tuple[dict[str, Any], ...]:
    """The bad step's row, the one before it, one that was taken, and that of the highest rate."""
    table = session.run.steps
    earlier = table.step < step
    wanted = {step - 1, step}
    if "skipped" in table and (taken := np.flatnonzero(earlier & (table["skipped"] == 0))).size:
        wanted.add(int(table.step[taken[-1]]))
    if "lr" in table and (present := np.flatnonzero(table.present("lr"))).size:
        wanted.add(int(table.step[present[np.argmax(np.nan_to_num(table["lr"][present]))]]))
    rows = (session.recorded(s) for s in sorted(wanted))
    return tuple(row for row in rows if row is not None)


def _caught(
    session: Session, before: MemoryState, origin: Origin | None, samples: Sequence[int]
) -> tuple[CaughtOperator | None, str]:
    """The failing operator's inputs, or why there are none."""
    why_not = catchable(origin)
    if why_not or origin is None:
        return None, why_not
    session.restore(before)
    catch = OperatorCatch(origin, buffers_of(session.model))
    session.run_step(changes=_only(before.step, samples), trace=catch.wrap, check_state=False)
    if catch.caught is None:
        return None, catch.note or f"the call of {origin.operator} was not met again"
    return catch.caught, ""


def _needs_gradients(session: Session, before: MemoryState) -> bool:
    """Does the step go by gradients that the one before it left? A loop that zeroes them does not.

    They would take as much room as the weights.
    """
    if not session.own_loop:
        return False
    seen = []
    for keep in (True, False):
        session.restore(before)
        if not keep:
            for parameter in session.model.parameters():
                parameter.grad = None
        replayed = session.run_step()
        parameters = tracked_parameters(session.model, session.training.optimizers)
        seen.append(repr((replayed.log, replayed.bad, param_digest(parameters))))
    return seen[0] != seen[1]


def _only(step: int, samples: Sequence[int]) -> Changes:
    return Changes(keep={step: tuple(samples)}) if samples else Changes()


def _save_batch(
    path: Path, session: Session, step: int, samples: Sequence[int]
) -> tuple[bool, tuple[str, ...]]:
    batches = select_samples(session.recipe, session.batch(step), step, _only(step, samples))
    try:
        plain = portable(_copied(batches), "batch")
        if not _same_types(plain, batches):
            raise NotPortableError("it is of types that a safe load does not know")
    except NotPortableError as error:
        return False, (f"the batch is not stored ({error}): the recipe makes it again",)
    save(plain, path)
    return True, ()


def _copied(batch: Batch) -> Any:
    """On the CPU, and free of the larger tensors that it may be cut from."""
    if isinstance(batch, Tensor):
        return batch.detach().to("cpu", copy=True).contiguous()
    if isinstance(batch, dict):
        return {key: _copied(value) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(_copied(value) for value in batch)
    return batch


def _same_types(plain: Any, batch: Any) -> bool:
    if type(plain) is not type(batch):
        return False
    if isinstance(batch, dict):
        return all(_same_types(plain[key], batch[key]) for key in batch)
    if isinstance(batch, list | tuple):
        return all(map(_same_types, plain, batch))
    return True


def _source_of(session: Session) -> Path | None:
    """The user's file that the recipe was loaded from; None for an installed one."""
    name = type(session.recipe).__module__
    module = sys.modules.get(name)
    if not name.startswith(_PRIVATE) or module is None or module.__file__ is None:
        return None
    return Path(module.__file__)

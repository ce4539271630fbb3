"""``bisect_run``: to the first bad step, operator and sample of a recorded run, and its proof.

The log comes first, then the saved states, then the replay; the step that is found is run again
under the trace, and what it shows is proven by further replays. Each part lives in a module of its
own; here they are put together.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath

from forensics.diagnose.bisection_file import NAME, bisection_document, bisection_of
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.diagnose.next_command import recipe_option
from forensics.errors import InputError, NotReplayableError, UsageError
from forensics.record.ranks.world import current_world
from forensics.replay.bad import NONFINITE, parse_bad
from forensics.replay.bisect_options import Options, Progress
from forensics.replay.bisection import State
from forensics.replay.capsule.folder import check_folder
from forensics.replay.health.health_bisection import bisect_health
from forensics.replay.inquiry import Inquiry
from forensics.replay.ranks.crew import Crew
from forensics.replay.ranks.leading import check_ranks, on_all_ranks
from forensics.replay.saved_states.noted_states import with_noted_states
from forensics.runlog.atomic import atomic_write
from forensics.runlog.manifest import NewerSchemaError
from forensics.runlog.run import Run, load_run


def bisect_run(
    path: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    bad: str | None = None,
    from_step: int | None = None,
    until_step: int | None = None,
    what_if: bool = True,
    further_steps: int = 50,
    tolerance: float | None = None,
    device: str | None = None,
    capsule: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> BisectionResult:
    """Bisect a run to its first bad step, and prove what is found by replay.

    The answer is kept as ``bisect.json`` in the run directory, where ``report`` finds it.

    Args:
        path: a run directory, its ``checkpoints`` folder, or any folder of saved states. Without
            a recipe that can be had, saved states are judged by their health alone.
        recipe: what trains the run: a registered name or ``file.py:name``. A file is loaded only
            where it is named here, never because a run directory names it.
        bad: what counts as bad, as ``parse_bad`` takes it; default ``nonfinite``.
        from_step: look at nothing before this step.
        until_step: look at nothing after this step.
        what_if: try changes by replay, and find out which make the fault go away.
        further_steps: steps that each change is tried for.
        tolerance: relative difference up to which a replayed row is the recorded one; default:
            the same bits where that can be expected, else 1e-3.
        device: replay on this device; default: the recorded kind where this machine has it.
        capsule: folder for the smallest thing that reproduces the bad step; None makes none.
        overwrite: replace the capsule that lies in that folder.
        progress: told what is under way.

    Under an initialised ``torch.distributed`` of as many ranks as the run was trained on, every
    rank calls it: all replay, each its own share, and each gets rank 0's result.

    Returns:
        The result. After a KeyboardInterrupt it is what is known until then, with the status
        ``PARTIAL``.

    Raises:
        UsageError: a condition or range that makes no sense.
        InputError: the path or the recipe cannot be read.
        OutputError: the capsule's folder holds something else; nothing was replayed.
    """
    if from_step is not None and until_step is not None and until_step < from_step:
        raise UsageError("ends before it begins", where=f"--from {from_step} --until {until_step}")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise UsageError("is no tolerance", where=f"--tolerance {tolerance}", hint="such as 1e-3")
    world, source = current_world(), Path(path)
    options = Options(
        predicate=parse_bad(bad),
        recipe=recipe,
        from_step=from_step,
        until_step=until_step,
        what_if=what_if,
        further_steps=further_steps,
        tolerance=tolerance,
        device=device,
        capsule=None if capsule is None else Path(capsule),
        progress=progress or (lambda *_: None),
        overwrite=overwrite,
    )
    if world.size == 1:
        return _bisect(source, options)

    def with_others(crew: Crew) -> BisectionResult:
        return _bisect(source, replace(options, crew=crew))

    return on_all_ranks(world, recipe, device, with_others)


def _bisect(source: Path, options: Options) -> BisectionResult:
    """On the one rank that decides."""
    if options.capsule is not None:
        check_folder(options.capsule, overwrite=options.overwrite)
    run = _run_of(source)
    if run is None:
        return _folder(source, options)
    if options.crew is not None:
        trained = 1 if run.manifest is None else run.manifest.world_size
        check_ranks(trained, options.crew.size, source, options.as_command())
        options.crew.of(run.path)
    run = with_noted_states(run)
    inquiry = Inquiry(run, options)
    try:
        result = inquiry.result()
    except NotReplayableError as error:
        result = _without_replay(run, inquiry, error)
    return _kept(run, _told_of_capsule(result, options))


def _told_of_capsule(result: BisectionResult, options: Options) -> BisectionResult:
    """Where a capsule was wanted and there is nothing to keep, the answer says so."""
    told = any(note.startswith("no capsule") for note in result.notes)
    if options.capsule is None or result.capsule or told:
        return result
    why = "no replay reproduces the fault" if result.reproduces is False else "nothing to keep"
    return replace(result, notes=(*result.notes, f"no capsule: {why}"))


def _run_of(path: Path) -> Run | None:
    """The run of a run directory, or of the ``checkpoints`` folder inside one; None for neither.

    Raises:
        InputError: there is no such path, or a file that is no log.
    """
    if path.is_dir() and path.name == "checkpoints":
        try:
            return load_run(path.parent)
        except InputError:
            return None
    try:
        return load_run(path)
    except NewerSchemaError:
        raise
    except InputError:
        if path.is_dir():
            return None
        raise


def _folder(path: Path, options: Options) -> BisectionResult:
    """A folder of saved states that is no run: judged by health alone."""
    if options.predicate.text != NONFINITE:
        raise UsageError(
            "is a condition on rows, and this folder has no log",
            where=f"--bad {options.predicate.text}",
            hint="name the run directory",
        )
    result = bisect_health(
        path,
        from_step=options.from_step,
        until_step=options.until_step,
        progress=options.progress,
    )
    if options.recipe is None:
        return result
    note = (
        "The recipe was not used: without the run.json of a recorded run nothing says which config "
        "and data these states belong to."
    )
    return replace(result, notes=(*result.notes, note))


def _without_replay(run: Run, inquiry: Inquiry, error: NotReplayableError) -> BisectionResult:
    """What log and saved states tell by themselves, and what a replay would add."""
    suspicion, options = inquiry.suspicion, inquiry.options
    what = f"the recipe {error.what}" if error.what.startswith("was ") else error.what
    hint = f"; {error.hint}" if error.hint else ""
    why = f"No replay, so no operator: {what}{hint}".rstrip(".?") + "."
    result = BisectionResult(
        path=str(run.path), status=BisectStatus.NOT_BISECTABLE, reason=inquiry.looked_at()
    )
    if run.checkpoints and options.predicate.text == NONFINITE:
        with suppress(InputError, UsageError):
            result = bisect_health(
                run.path,
                from_step=options.from_step,
                until_step=options.until_step,
                progress=options.progress,
            )
    result = replace(
        result,
        path=str(run.path),
        notes=(*result.notes, why),
        next_command=_with_recipe(run, options, error) or result.next_command,
    )
    bad = [state.step for state in result.checkpoints if state.verdict == State.BAD.value]
    if suspicion.step is None or (bad and min(bad) <= suspicion.step):
        return result
    notes = (f"The tensors listed are bad in the saved state of step {min(bad):,}.",) if bad else ()
    result = replace(result, notes=(*notes, why))
    return replace(
        result,
        status=BisectStatus.LOCATED,
        reason=f"the log says {suspicion.step:,}: {suspicion.why}",
        first_bad_step=suspicion.step,
        bad=suspicion.why,
        root_step=suspicion.step,
    )


def _with_recipe(run: Run, options: Options, error: NotReplayableError) -> str:
    """The same with the recipe's file: the recorded one, or for the user to fill in if it is gone.

    It is only told: no file that a run.json names is run without the user's typing it.
    """
    recipe = run.manifest.recipe if run.manifest is not None else {}
    name, file = recipe.get("name"), recipe.get("file")
    config = error.what.startswith("the recorded config")
    if error.where != "recipe" or options.recipe is not None or config:
        return ""
    if not isinstance(name, str) or not isinstance(file, str):
        return ""
    shown = f"path/to/{PurePath(file).name or 'FILE.py'}:{name}"
    command = f"forensics bisect {shlex.quote(str(run.path))}{options.as_command()}"
    if own := recipe_option(run):
        return command + own
    return f"{command} --recipe {shlex.quote(shown)}"


def _kept(run: Run, result: BisectionResult) -> BisectionResult:
    """Keep the result in the run directory; where it cannot be written, the answer says so."""
    if not run.path.is_dir():
        return result
    earlier, _ = bisection_of(run)
    if result.status is BisectStatus.PARTIAL and earlier and earlier.status is not result.status:
        note = f"{NAME} still holds the answer of an earlier, whole bisection"
        return replace(result, notes=(*result.notes, note))
    text = json.dumps(bisection_document(result, run.steps), allow_nan=False, indent=1)
    try:
        atomic_write(run.path / NAME, text + "\n")
    except OSError as error:
        note = f"{NAME} could not be kept in the run directory ({error.strerror or error})"
        return replace(result, notes=(*result.notes, note))
    return result

"""A recorded training, trained again: brought to a saved state, and stepped."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from forensics.diagnose.bisection_result import Departure
from forensics.errors import ForensicsError, NoBatchError, NotReplayableError
from forensics.record.assembly import assemble, to_device, told
from forensics.record.checkpoints import load_checkpoint
from forensics.record.health import BadTensor, HealthScan
from forensics.record.precision import Precision
from forensics.record.readback import read_scalars
from forensics.record.recipe import Batch, Recipe, Training
from forensics.record.tensor_norms import l2_norms
from forensics.record.threads import threads_for
from forensics.record.training_state import gather_state, restore_state
from forensics.replay.ranks.crew import Crew
from forensics.replay.rerun.changes import Changes, applied, selected, widen, widened_batch
from forensics.replay.rerun.loop import Loop, make_loop
from forensics.replay.rerun.memory_state import MemoryState, capture, let_go, put_back
from forensics.replay.rerun.plain_build import plain_build
from forensics.replay.rerun.rank_shares import RankShares, streams_of
from forensics.replay.rerun.rebuild import Rebuilt, Say
from forensics.replay.rerun.replayed_step import ReplayedStep, bad_in_row
from forensics.replay.rerun.row_comparison import (
    RecordedRows,
    compare_rows,
    tolerance_between,
    whatever_the_loop_did,
)
from forensics.replay.rerun.state_labels import label_of
from forensics.replay.saved_states.adopted_state import adopted_state
from forensics.replay.saved_states.finder import state_root
from forensics.replay.saved_states.mapped_file import refuse_outside
from forensics.replay.tracing.tensor_stats import float_tensors
from forensics.replay.what_trained import what_trained
from forensics.runlog.checkpoint_files import read_checkpoint_info
from forensics.runlog.manifest import Manifest
from forensics.runlog.run import CheckpointInfo, Run

AS_RECORDED = Changes()

Trace = Callable[[Callable[[], Any]], Any]
"""``run → loss``: calls ``run`` once, which trains the step and returns its loss."""


def open_session(
    run: Run,
    *,
    recipe: str | None = None,
    device: str | None = None,
    tolerance: float | None = None,
    say: Say = print,
    crew: Crew | None = None,
) -> Session:
    """Make a run's training ready to be replayed; it stands before step 0, as built.

    Args:
        run: with its manifest.
        recipe: names another than ``run.json`` does: a registered name or ``file.py:name``.
        device: to replay on; by default the recorded type where this machine has it.
        tolerance: relative, for the comparison of rows; by default bit for bit where that can be
            expected, else 1e-3.
        say: told what the user should know.
        crew: the other ranks of a run of several, where they replay their own share.

    Raises:
        NotReplayableError: the run cannot be trained again here; the reason is for the user.
        InputError, UsageError: the recipe that the user names cannot be loaded.
    """
    manifest, found = what_trained(run, recipe=recipe, device=device, say=say)
    session = Session(run, manifest, found, tolerance, crew)
    try:
        session.start()
    except BaseException:
        session.close()
        raise
    return session


class Session:
    """A training under replay.

    Attributes:
        manifest: of the recorded run.
        recipe, config, training: as rebuilt.
        device: where the replay runs.
        cross_device: recorded on another type of device.
        notes: what differs from the recording, a sentence each.
        other_code: the recipe is not what was recorded, as far as can be told.
        step_index: the next step.
        batches: the micro-batches of the step under way, or of the last one.
        untestable: by step of the saved states that could not be loaded, the reason.
        lacking: by step of the states that others saved, what is left as the recipe builds it.
        unscheduled: a state had a schedule and the recipe none: the rate stays that of the state.
        shares: of the ranks that trained; several are replayed rank by rank.
    """

    def __init__(
        self,
        run: Run,
        manifest: Manifest,
        found: Rebuilt,
        tolerance: float | None,
        crew: Crew | None = None,
    ) -> None:
        self.run, self.manifest = run, manifest
        self.config, self.device = found.config, found.device
        self.cross_device, self.other_code = found.cross_device, found.other_code
        self.notes = found.notes
        self.tolerance = tolerance_between(exact=found.exact, wanted=tolerance)
        self.step_index = 0
        self.batches: list[Batch] = []
        self.untestable: dict[int, str] = {}
        self.lacking: dict[int, list[str]] = {}
        self.unscheduled = False
        self.shares = RankShares(manifest.world_size, crew)
        self._found = found
        self._rows = RecordedRows(run.steps)
        self._digests = self.tolerance == 0 and run.steps.has("param_digest")
        self._saved = {c.step: c for c in run.checkpoints if not c.set_aside}
        self._loops: dict[tuple[str | None, float | None], Loop] = {}
        self._built = self._wide = False
        self._settings = ExitStack()
        self._settings.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads_for(manifest.threads))
        self.recipe: Recipe
        self.training: Training
        self._scan: HealthScan

    # -- states ---------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The module under training."""
        return self.training.model

    @property
    def own_loop(self) -> bool:
        """Has the recipe a step of its own?"""
        return self._found.kind.step is not None

    def states(self) -> tuple[int, ...]:
        """The steps that a replay can start from, ascending; step 0 is built afresh."""
        return tuple(sorted({0, *(s for s in self._saved if s not in self.untestable)}))

    def start(self) -> None:
        """Build the training anew, as it was before step 0."""
        self._drop_loops()
        if self._built:
            let_go(self.training)  # a captured state may hold on to it
        self.recipe = self._found.kind(self.config)
        with plain_build(self.shares.size):
            self.training = assemble(
                self.recipe, self.config, self._found.precision, self._found.device
            )
        self._built = True
        self.shares.prepare(self.training, self.recipe, self.config.seed)
        self._eager()
        self.step_index, self._wide = 0, False
        self._scan = HealthScan(self.training.model, self.training.optimizers)
        self._scan_state()

    def go_to(self, step: int) -> int:
        """Load the newest saved state at or before ``step``; returns the step it is before.

        A state that cannot be read is noted in ``untestable`` and passed over.
        """
        for candidate in sorted((s for s in self._saved if s <= step), reverse=True):
            if candidate in self.untestable:
                continue
            try:
                self._load(self._saved[candidate])
            except (ForensicsError, KeyError, TypeError) as error:
                what = error.what if isinstance(error, ForensicsError) else str(error)
                self.untestable[candidate] = what
                continue
            return candidate
        self.start()
        return 0

    def bad_state(self) -> tuple[str, ...]:
        """What is not finite in the state before the next step, as ``ReplayedStep.bad`` has it."""
        if self._seems_finite():
            return ()
        return tuple(dict.fromkeys(label_of(tensor) for tensor in self._scan_state()))

    def capture(self) -> MemoryState:
        """The state before the next step, copied in memory."""
        if self._wide:
            raise NotReplayableError("the training is widened for a trial", where="capture")
        return capture(self.training, self.recipe, self.step_index, gradients=self.own_loop)

    def restore(self, state: MemoryState) -> None:
        """Back to a captured state, which can be used again."""
        self._drop_loops()
        self.training, self.recipe = state.training, state.trained
        put_back(self.training, self.recipe, state)
        self.step_index, self._wide = state.step, False

    def saved(self, info: CheckpointInfo) -> dict[str, Any]:
        """A saved state as it lies on disk; InputError where it cannot be read."""
        refuse_outside(info.path, state_root(info.path, self.run.path))
        if read_checkpoint_info(info.path) is not None:
            return load_checkpoint(info.path)
        state, self.lacking[info.step] = adopted_state(info.path, self.training, info.step)
        return state

    def _load(self, info: CheckpointInfo) -> None:
        self.start()
        state = self.saved(info)  # only now: what the session stood at before is let go of
        if state.get("schedulers") and not self.training.schedulers:
            state, self.unscheduled = {**state, "schedulers": []}, True
        restore_state(self.training, state, where=info.path)
        self.shares.load(self.training, state, info.step)
        self.step_index = info.step
        self._scan_state()

    # -- one step -------------------------------------------------------------------------

    def batch(self, step: int) -> list[Batch]:
        """The micro-batches of a step, on the device; of several ranks one after the other.

        Raises:
            NoBatchError: the recipe raised.
        """
        try:
            return [to_device(b, self.device) for b in self.shares.batch(self.recipe, step)]
        except ForensicsError:
            raise
        except (Exception, SystemExit) as error:
            raise NoBatchError(told(error), where=f"the data of step {step:,}") from error

    def run_step(
        self,
        *,
        changes: Changes = AS_RECORDED,
        trace: Trace | None = None,
        check_state: bool = True,
    ) -> ReplayedStep:
        """Train the next step; what it raises is in the result.

        Args:
            changes: what to do otherwise than the record.
            trace: wraps the step, such as in an operator trace.
            check_state: look for non-finite values in the state after the step, too; without it
                only the row and the gradients are judged, which costs nothing.

        Raises:
            NotReplayableError: the change cannot be made here.
        """
        step = self.step_index
        chosen = selected(self.recipe, self.batch(step), step, changes)
        batches = [batch for _, batch in chosen]
        if (wide := changes.widened) is not None:
            batches = [widened_batch(batch, wide) for batch in batches]
            self._widen(wide)
        self.batches = batches
        loop = self._loop(changes)
        self.shares.begin(loop.state, step, [place for place, _ in chosen], wide)
        error: BaseException | None = None
        self.step_index = step + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told when it was recorded
            with applied(changes, self.training, own_loop=self.own_loop):
                try:
                    self._train(loop, batches, trace)
                except NotReplayableError:
                    raise
                except (Exception, SystemExit) as raised:  # noqa: BLE001 - evidence, whatever it is
                    error = raised
        return self._result(step, loop, error, check_state)

    def recorded(self, step: int) -> dict[str, Any] | None:
        """The recorded row of a step, present cells by column; None where there is none."""
        return self._rows.row(step)

    def departure(
        self, replayed: ReplayedStep, recorded: dict[str, Any] | None = None
    ) -> Departure | None:
        """Where a replayed step differs from its recorded row; None where it does not.

        Args:
            replayed: the step.
            recorded: its row, where it has been looked up already.
        """
        recorded = recorded or self._rows.row(replayed.step)
        if recorded is None or replayed.log is None:
            return None
        if not self.manifest.recipe and not self.own_loop:
            recorded = whatever_the_loop_did(recorded)
        return compare_rows(recorded, replayed.log, replayed.digest, self.tolerance)

    def close(self) -> None:
        """Put the thread count and the compiler's stance back."""
        self._drop_loops()
        self._settings.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------

    def _train(self, loop: Loop, batches: list[Batch], trace: Trace | None) -> None:
        run = loop.runner(self.training, self.recipe, batches, keep_loss=trace is not None)
        if trace is None:
            run()
        else:
            trace(run)

    def _result(
        self, step: int, loop: Loop, error: BaseException | None, check_state: bool
    ) -> ReplayedStep:
        recorder = loop.recorder
        bad = [*self.shares.end(loop.state), *bad_in_row(recorder.last, recorder.nonfinite_grads)]
        if check_state:
            bad += [label_of(tensor) for tensor in self._scan_state()]
        if error is not None:
            bad.append("exception")
        return ReplayedStep(
            step=step,
            log=recorder.last,
            exception=told(error) if error is not None else "",
            error=error,
            bad=tuple(dict.fromkeys(bad)),
            digest=recorder.digest,
        )

    def _loop(self, changes: Changes) -> Loop:
        """The loop for a change; made anew after the state has been put back."""
        key = (None, None) if self.own_loop else (changes.precision, changes.max_norm)
        if key not in self._loops:
            self._drop_loops()
            self._loops[key] = make_loop(
                self.training,
                self.config,
                self._precision(changes),
                changes,
                own_loop=self.own_loop,
                first_step=self.step_index,
                arrival_order=self.manifest.arrival_order,
                wants_digest=self._wants_digest,
                streams=streams_of(self.training),
                crew=self.shares.crew,
            )
        return self._loops[key]

    def _precision(self, changes: Changes) -> Precision:
        recorded = self._found.precision
        if changes.precision is None:
            return recorded
        name = "fp32" if changes.precision == "fp64" else changes.precision
        return Precision(name, recorded.device_type)

    def _wants_digest(self) -> bool:
        return self._digests and self._rows.has(self.step_index - 1, "param_digest")

    def _drop_loops(self) -> None:
        for loop in self._loops.values():
            loop.close()
        self._loops.clear()

    def _widen(self, dtype: torch.dtype) -> None:
        if not self._wide:
            self._drop_loops()
            widen(self.training, dtype)
            self._wide = True

    def _scan_state(self) -> list[BadTensor]:
        state, _ = gather_state(self.training, self.step_index, {})
        return self._scan.scan(state)[0]

    @torch.no_grad()
    def _seems_finite(self) -> bool:
        """Is every norm of the state finite? A fraction of the scan's cost; never wrong if so."""
        training = self.training
        held: list[Any] = [*training.model.parameters(), *training.model.buffers()]
        held += [list(state.values()) for o in training.optimizers for state in o.state.values()]
        others = [training.ema, *training.extra.values()]
        held += [owner.state_dict() for owner in others if hasattr(owner, "state_dict")]
        return all(map(math.isfinite, read_scalars(l2_norms(list(float_tensors(held))))))

    def _eager(self) -> None:
        """A compiled model is replayed operator by operator: a fused kernel hides its inside."""
        compiled = any(type(m).__name__ == "OptimizedModule" for m in self.training.model.modules())
        if compiled:
            self._settings.enter_context(torch.compiler.set_stance("force_eager"))

"""The reference step of many ranks, of which this process is rank 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from forensics.record.recipe import Batch
from forensics.record.train_step import AmpTrainState
from forensics.replay.ranks.crew import Crew, dtypes_of
from forensics.replay.ranks.messages import Picks, Report, TrainShare, as_error
from forensics.replay.ranks.share import are_reduced, average, own_report
from forensics.replay.rerun.emulated_ranks import EmulatedRanks
from forensics.replay.rerun.remote_batch import RemoteBatch
from forensics.replay.tracing.other_ranks import reduced, take_in
from forensics.replay.tracing.step_trace import running_tracer
from forensics.runlog.schema import SKIP_NONFINITE_LOSS


class RealRanks(EmulatedRanks):
    """Rank 0 trains its own share, the others theirs, and the gradients are really reduced.

    What follows the reduction (unscale, clip, optimizer, schedule) is the same on all ranks, and
    is done here alone.

    Attributes:
        crew: the other ranks; set before the first step.
    """

    crew: Crew

    def _accumulate(self, micro_batches: Sequence[Batch]) -> tuple[float, float, str]:
        """Every rank's forward and backward at once, and the mean of their gradients."""
        picks, own = _picks(self.ranks, micro_batches)
        parameters = [p for _, p in self.parameters]
        tracer = running_tracer()
        with _disable_current_modes():
            self.crew.train(self._order(picks, traced=tracer is not None), self.model)
        report, error = own_report(lambda: self._own_share(own), parameters)
        with _disable_current_modes():
            reports = self.crew.report(report)
            if tracer is not None:
                take_in(tracer, [trace for trace in self.crew.traces() if trace is not None])
            if are_reduced(reports):
                average(self.crew.exchange, reports, parameters)
            else:
                for parameter in parameters:
                    parameter.grad = None
            self.crew.trained()
            self.streams.put(report.stream for report in reports[1:])
            reason = self._take(reports, error)
            if tracer is not None:
                reduced(tracer, parameters, [p.grad for p in parameters])
        return next(iter(self.losses.values())), self._scale_of(reports), reason

    def _own_share(self, own: Sequence[Batch]) -> tuple[float, float, str]:
        if not own:
            return math.nan, float(self._scale), ""
        return AmpTrainState._accumulate(self, own)

    def _order(self, picks: dict[int, Picks], *, traced: bool) -> TrainShare:
        return TrainShare(
            step=self.step_index,
            picks=picks,
            precision=self.precision.name,
            scale=float(self._scale) if self.scaler.is_enabled() else None,
            widened=self.widened,
            dtypes=dtypes_of(self.model),
            modes=[module.training for module in self.model.modules()],
            streams=self.streams.all(),
            traced=traced,
        )

    def _take(self, reports: Sequence[Report], error: BaseException | None) -> str:
        """Keep what the ranks came to; returns why the step is skipped.

        Raises:
            Exception: what the first rank that raised did.
        """
        used = [rank for rank in range(len(reports)) if rank in self.ranks]
        self.losses = {r: loss for r in used if (loss := reports[r].loss) is not None}
        self.bad_gradients = tuple(r for r in used if reports[r].bad_gradient)
        self.raised = tuple(r for r in used if reports[r].refusal is not None)
        if self.raised:
            refusal = reports[self.raised[0]].refusal
            assert refusal is not None
            raise error if error is not None else as_error(refusal)
        skipping = next((r for r in used if reports[r].bad_loss), None)
        return "" if skipping is None else f"{SKIP_NONFINITE_LOSS}:rank {skipping}"

    def _scale_of(self, reports: Sequence[Report]) -> float:
        return next(reports[rank].scale for rank in self.losses)


def _picks(
    ranks: Sequence[int], micro_batches: Sequence[Any]
) -> tuple[dict[int, Picks], list[Batch]]:
    """What the other ranks use of their batches, and rank 0's own micro-batches."""
    picks: dict[int, Picks] = {}
    own: list[Batch] = []
    for rank, batch in zip(ranks, micro_batches, strict=True):
        if isinstance(batch, RemoteBatch):
            picks[rank] = (*picks.get(rank, ()), (batch.place, batch.samples))
        else:
            own.append(batch)
    return picks, own

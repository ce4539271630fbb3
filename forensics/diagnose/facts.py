"""The facts of a run that a report opens with."""

from __future__ import annotations

from forensics.diagnose.finding import RunFacts
from forensics.diagnose.signals import Signals


def facts_of(signals: Signals) -> RunFacts:
    """The run's facts, from its manifest where there is one, else from the log itself."""
    run = signals.run
    rows = len(signals)
    manifest = run.manifest
    return RunFacts(
        path=str(run.path),
        steps=rows,
        first_step=signals.step_at(0) if rows else None,
        last_step=signals.step_at(rows - 1) if rows else None,
        source_format=run.steps.source_format,
        precision=signals.precision,
        scaler=signals.scaler_active if signals.has("scaler_scale") else None,
        clip_threshold=manifest.max_norm if manifest is not None else None,
        repairs=tuple(repair.message for repair in run.steps.repairs),
    )

"""Whence a run can go on, by the saved states that it knows of."""

from __future__ import annotations

from forensics.runlog.run import Run


def whence(run: Run, step: int) -> str:
    """``Resume from a checkpoint before step 59``, or that there is none.

    Args:
        run: whose checkpoints and noted states are asked; without a ``run.json`` nobody noted any.
        step: the state before it is still sound, and no later one.
    """
    resume = f"Resume from a checkpoint before step {step:,}"
    manifest = run.manifest
    if manifest is None or any(0 < part.start_step <= step for part in manifest.segments):
        return resume  # what it went on from before is a state of its own
    known = [c.step for c in run.checkpoints if c.healthy is not False]
    known += [state.step for state in manifest.states]
    # A copy of a run may lack its checkpoints: the manifest knows some of them.
    known += [at for at in manifest.checkpoints.values() if at is not None]
    if any(at <= step for at in known):
        return resume
    if known or run.checkpoints:
        return f"Start anew (no saved state is from before step {step:,})"
    return f"Start anew, or from a state of your own from before step {step:,} (the run names none)"

"""Norms of the parameters at the states that a replay can reach: which of them has grown."""

from __future__ import annotations

import torch

from forensics.record.parameters import tracked_parameters
from forensics.record.readback import read_scalars
from forensics.record.tensor_norms import l2_norms
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.session import Session

STATES = 4
"""Saved states that are loaded at most, where snapshots do not tell."""


@torch.no_grad()
def parameter_norms(session: Session) -> dict[str, float]:
    """The L2 norm of every parameter and floating buffer as the session stands; one blocking read.

    Those that no optimizer holds are among them: the average of a teacher can grow, too.
    """
    named = dict(tracked_parameters(session.model, session.training.optimizers))
    for name, tensor in (*session.model.named_parameters(), *session.model.named_buffers()):
        if tensor.is_floating_point() and tensor.numel():
            named.setdefault(name, tensor)
    norms = read_scalars(l2_norms(list(named.values())))
    return dict(zip(named, norms, strict=True))


def norms_until(session: Session, before: MemoryState) -> dict[int, dict[str, float]]:
    """The norms just before a step and at a few earlier states; the session is put back there.

    Args:
        session: anywhere.
        before: the state before the step.
    """
    session.restore(before)
    found = {before.step: parameter_norms(session)}
    earlier = [step for step in session.states() if step < before.step]
    chosen = earlier[:: max(1, -(-len(earlier) // STATES))]
    for step in chosen:
        at = session.go_to(step)
        found[at] = parameter_norms(session)
    session.restore(before)
    return found

"""What the optimizer does to the size of a gradient, as far as run.json names it."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.signals import Signals
from forensics.runlog.schema import SKIP_OTHER

_ADAPTIVE = ("ada", "lamb", "rmsprop", "lion", "shampoo", "soap", "muon", "novograd")
"""Parts of the names of optimizers whose update does not grow with the gradient."""


def divides_by_its_size(signals: Signals) -> bool | None:
    """Does the update keep its size whatever the gradient's (Adam and its like)? None: unknown."""
    manifest = signals.run.manifest
    name = str(manifest.optimizer.get("name", "")).lower() if manifest is not None else ""
    return any(part in name for part in _ADAPTIVE) if name else None


def never_stepped(signals: Signals) -> bool:
    """Were all steps of the run skipped, though nothing in it called for a skip?

    Finite loss and norm, no loss scaler, and no reason named: a loop that forgets the step. Where
    some steps were taken a guard of the loop may have refused the rest.
    """
    if len(signals) == 0 or signals.scaling.active is not False:
        return False
    finite = np.isfinite(signals.loss) & np.isfinite(signals.norm)
    unnamed = signals.skip_reason(0) in ("", SKIP_OTHER)
    return bool(unnamed and signals.skipped.all() and finite.all())


def holds_none_of_the_model(signals: Signals) -> bool:
    """Does run.json say that the optimizers hold parameters, and none of them the model's own?"""
    info = signals.parameter_info.values()
    own = [one for one in info if not one.name.startswith("optimizers.")]
    wanted = any(one.requires_grad for one in own)
    return wanted and len(own) < len(info) and all(one.group < 0 for one in own)


NEVER_STEPPED = "The loop does not call optimizer.step(), or calls it of another optimizer."
STEP_IT = (
    "Call optimizer.step() after each backward, of the optimizer that the recorder was given. If a "
    "condition in the loop guards the step, look why it never holds: loss and norm are finite."
)


def climbs_the_loss(signals: Signals) -> bool:
    """Was the optimizer made to maximize what backward is called on?"""
    manifest = signals.run.manifest
    return manifest is not None and manifest.optimizer.get("maximize") is True

"""Precision, loss scaling and devices do not fit together.

What it detects
    A loss scale that moves in bf16 or fp32; fp16 with a scale fixed at 1; autocast on another
    device than the optimizer's. One finding each.

Why it matters
    bf16 and fp32 need no loss scale: its overflows cost steps for nothing. fp16 without one loses
    small gradients. Autocast on the wrong device does nothing at all, in silence.

Evidence
    run.json, and the loss scale in the log.

Silent when
    run.json does not state the precision, or a scaler is set up and has had no time to move.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import power_of_two
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """How often a scale must move to be at work."""

    moves: int = threshold(1, "a scale that is not used never moves")


@rule(thresholds=Thresholds, parts=("manifest",))
def precision_mismatch(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding a mismatch."""
    manifest = signals.run.manifest
    if manifest is None:
        return
    scaling = signals.scaling
    moves = len(scaling.falls) + len(scaling.growths)
    if manifest.precision in ("bf16", "fp32") and moves >= thresholds.moves:
        yield _needless_scaler(signals, manifest.precision)
    if manifest.precision == "fp16" and scaling.active is False and signals.has("scaler_scale"):
        yield _missing_scaler(signals)
    autocast, device = (
        name.partition(":")[0] for name in (manifest.autocast_device, manifest.device)
    )
    if autocast and device and autocast != device:
        yield _wrong_device(signals, autocast, device, manifest.precision)


def _needless_scaler(signals: Signals, precision: str) -> Finding:
    scaling = signals.scaling
    moves = np.sort(np.concatenate((scaling.falls.rows, scaling.growths.rows)))
    low, high = (power_of_two(2.0 ** float(f(scaling.scales.log2))) for f in (np.min, np.max))
    return Finding(
        rule="precision-mismatch",
        severity=Severity.WARNING,
        message=f"a loss scaler is at work in {precision}: the scale moves between {low} and "
        f"{high}, which {precision} does not need",
        first_step=signals.step_at(int(moves[0])),
        last_step=signals.last_step,
        evidence=(signals.evidence("scaler_scale", signals.scale, moves),),
        cause="The scaler was left switched on when the precision changed.",
        remedy="GradScaler(enabled=False): the call sites may stay as they are.",
    )


def _missing_scaler(signals: Signals) -> Finding:
    rows = [0, len(signals) - 1]
    return Finding(
        rule="precision-mismatch",
        severity=Severity.WARNING,
        message="fp16 without loss scaling: the scale is 1 at every step",
        first_step=signals.step_at(0),
        last_step=signals.last_step,
        evidence=(signals.evidence("scaler_scale", signals.scale, rows),),
        cause="No GradScaler, or a disabled one: gradients below 2^-24 become 0 in fp16.",
        remedy="Use a GradScaler with fp16, or bf16 where the device has it, which needs none.",
    )


def _wrong_device(signals: Signals, autocast: str, device: str, precision: str) -> Finding:
    return Finding(
        rule="precision-mismatch",
        severity=Severity.ERROR,
        message=f"autocast is for {autocast} while the optimizer's parameters are on {device}: "
        f"nothing runs in {precision or 'lower precision'}",
        first_step=signals.step_at(0) if len(signals) else 0,
        last_step=signals.last_step,
        cause=f"autocast({autocast!r}) leaves operations on {device} as they are.",
        remedy=f"autocast({device!r}, dtype=…): take the device from the parameters.",
    )

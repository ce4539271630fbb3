"""The loss swings up and down from step to step without falling.

What it detects
    Stretches of 256 losses whose lag-1 autocorrelation, after a straight line is taken out, is
    below -0.4 (lower still in shorter logs), with swings of more than 2 %, over which the loss
    does not fall. Neighbouring stretches are one episode.

Why it matters
    Each step overshoots the valley and the next one comes back: the learning rate is above the
    stable range of the steepest direction, and half of the work undoes the other half.

Evidence
    A dozen neighbouring losses, where the swing is plain to see.

Silent when
    The loss falls meanwhile, the swings are small, fewer than 60 losses are finite, or the log
    holds rewards: the loss of a policy gradient swings with its sign. Noise alone
    has an autocorrelation of 0 ± 0.06 in 256 steps; batches in a fixed order have a period of
    their own, which is stronger than that of two steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.clipping import clip_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.reward_driven import no_measure
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.schedule import rate_state
from forensics.diagnose.series import MAD_TO_SIGMA, episodes, median, row_medians, sigma
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent, span
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

TURNS = 0.7
"""Share of turning points above which a stretch is looked at closely."""


@dataclass(frozen=True)
class Thresholds:
    """What counts as a swing."""

    window: int = threshold(256, "white noise stays within ±0.25 in 20,000 steps' windows")
    least: int = threshold(60, "fewer losses do not tell swings from noise")
    correlation: float = threshold(-0.4, "0 of 360 healthy simulated runs, 20 of 20 with period 2")
    errors: float = threshold(5.0, "standard errors 1/√n of the autocorrelation of noise")
    swing: float = threshold(0.02, "healthy pre-training noise is 1 to 3 % of the loss")
    fall: float = threshold(0.02, "a loss that falls by as much over the stretch is learning")
    gap: int = threshold(4, "stretches; swings that pause for a thousand steps are the same ones")
    told: int = threshold(12, "a reader at night reads no more")


@rule(thresholds=Thresholds, needs=("loss",))
def loss_oscillation(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode."""
    rows, loss = signals.finite_loss.rows, signals.finite_loss.values
    size = min(thresholds.window, len(rows))
    if size < thresholds.least or no_measure(signals):
        return
    blocks = loss[: len(loss) // size * size].reshape(-1, size)
    likely = _turns_often(blocks)
    correlation, swing, level = np.zeros((3, len(blocks)))
    correlation[likely], swing[likely], level[likely] = _swings(blocks[likely])
    limit = min(thresholds.correlation, -thresholds.errors / np.sqrt(size))
    found = (correlation < limit) & (swing > thresholds.swing * np.abs(level))
    found = _alternates(blocks, found)
    for a, b in episodes(np.flatnonzero(found), thresholds.gap)[: thresholds.told]:
        if not _falls(blocks[a : b + 1], thresholds.fall, float(swing[a : b + 1].max())):
            first, last = _ends(loss, a * size, (b + 1) * size, size)
            rho = median(correlation[a : b + 1])
            where = rows[first : last + 1]
            yield _finding(signals, where, rho, float(swing[a]), float(level[a]))


def _ends(loss: FloatArray, start: int, end: int, size: int) -> tuple[int, int]:
    """The first and the last swing, by cumulative sums of the products of neighbours.

    Args:
        loss: the finite losses.
        start: where the first block begins.
        end: where the last block ends.
        size: of a block; the ends are looked for up to one block further out.
    """

    def products(a: int, b: int) -> FloatArray:
        piece = loss[max(a, 0) : min(b, len(loss))]
        centred = np.clip(piece - level, -4 * spread, 4 * spread)
        return np.append(0.0, -centred[1:] * centred[:-1])

    level, spread = median(loss[start:end]), sigma(loss[start:end])
    half = 0.5 * float(np.mean(products(start, end)))
    before = np.cumsum(products(start - size, start + size) - half)
    after = np.cumsum(products(end - size, end + size) - half)
    first = max(start - size, 0) + int(np.argmin(before))
    last = max(end - size, 0) + int(np.argmax(after))
    return min(first, last), max(first, last)


def _turns_often(blocks: FloatArray) -> BoolArray:
    """Blocks in which most values are a peak or a trough: a quick look, which outliers cannot fool.

    Two thirds of the values of white noise are; with an autocorrelation of -0.4 it is 0.75.
    """
    rises = blocks[:, 1:] > blocks[:, :-1]
    return np.asarray((rises[:, 1:] ^ rises[:, :-1]).mean(axis=1) > TURNS, dtype=bool)


def _swings(blocks: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lag-1 autocorrelation, robust size of the swings and level of each block."""
    level = row_medians(blocks)
    centred, scale = _detrended(blocks)
    power = np.maximum((centred * centred).sum(axis=1), 1e-300)
    correlation = (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / power
    return correlation, MAD_TO_SIGMA * row_medians(np.abs(centred)) * scale, level


def _alternates(blocks: FloatArray, chosen: BoolArray) -> BoolArray:
    """Is no longer period stronger than that of 2? Batches in a fixed order have their own."""
    if not chosen.any():
        return chosen
    found = chosen.copy()
    centred, _ = _detrended(blocks[chosen])
    power = np.abs(np.fft.rfft(centred, 2 * blocks.shape[1], axis=1)) ** 2
    by_lag = np.fft.irfft(power, axis=1)[:, : blocks.shape[1] // 3]
    by_lag /= np.maximum(by_lag[:, :1], 1e-300) * (1 - np.arange(by_lag.shape[1]) / blocks.shape[1])
    found[chosen] = by_lag[:, 2] >= by_lag[:, 3:].max(axis=1) - 0.1
    return found


def _detrended(blocks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Blocks less a straight line each, in units of their largest value, which is returned too.

    Values beyond 4 standard deviations are cut: one spike must not hide the swings.
    """
    size = blocks.shape[1]
    at = np.arange(size) - (size - 1) / 2
    scale = np.maximum(np.abs(blocks).max(axis=1, keepdims=True), 1e-300)
    centred = blocks / scale - (row_medians(blocks) / scale[:, 0])[:, None]
    spread = MAD_TO_SIGMA * row_medians(np.abs(centred))
    bound = np.maximum(4 * spread, 1e-300)[:, None]
    np.clip(centred, -bound, bound, out=centred)
    centred -= centred.mean(axis=1, keepdims=True)
    centred -= (centred @ at / (at @ at))[:, None] * at
    return centred, scale[:, 0]


def _falls(blocks: FloatArray, share: float, swing: float) -> bool:
    """Is the loss lower in the second half of the stretch, by the share or by a swing?"""
    flat = blocks.ravel()
    pairs = (flat[:-1] + flat[1:]) / 2  # in the middle of the swings
    half = len(pairs) // 2
    before, after = median(pairs[:half]), median(pairs[half:])
    return bool(before - after > max(share * abs(before), 3 * swing / np.sqrt(half)))


def _finding(
    signals: Signals, rows: IntArray, correlation: float, swing: float, level: float
) -> Finding:
    first, last = signals.step_at(int(rows[0])), signals.step_at(int(rows[-1]))
    size = f"{percent(swing / abs(level))} of it" if level else number(swing)
    return Finding(
        rule="loss-oscillation",
        severity=Severity.WARNING,
        message=(
            f"the loss swings from step to step in {span(first, last)}, about {number(level)} by "
            f"{size}, without falling (autocorrelation of neighbours {correlation:.2f})"
        ),
        first_step=first,
        last_step=last,
        evidence=(signals.evidence("loss", signals.loss, rows[:12]),),
        cause=_cause(signals, int(rows[0])),
        remedy=_remedy(signals, int(rows[0]), first),
    )


def _cause(signals: Signals, row: int) -> str:
    state = rate_state(signals, row)
    told = f" ({state.text})" if state.text else ""
    return (
        f"The learning rate is above the stable range: each step overshoots{told}. Two kinds of "
        f"batches in turn, or very small ones, look alike."
    )


def _remedy(signals: Signals, row: int, first: int) -> str:
    rate = signals.lr[row]
    half = f", from {number(float(rate))}," if np.isfinite(rate) and rate > 0 else ""
    text = f"Halve the learning rate{half} from before step {first:,} until the swings are gone"
    clip = clip_of(signals)
    inside = slice(row, row + 256)
    if clip.known and clip.seen[inside].any() and clip.clipped[inside].mean() > 0.5:
        return (
            f"{text}; most steps here are clipped, so each has nearly the same length whatever "
            f"the gradient says, which keeps swings alive."
        )
    return f"{text}; a larger batch helps where the noise of single batches is behind it."

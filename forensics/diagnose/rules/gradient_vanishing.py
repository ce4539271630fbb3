"""The gradient norm falls away to nothing while the loss does not.

What it detects
    Medians of 5 norms below 1e-7, or below 1e-4 of the early median, for at least 150 norms (in a
    short log for three eighths of it), told with how it came to that: from the start, at once, or
    gradually. A norm of exactly 0 counts where the loss is switched off with it: exactly 0 to the
    end, without having been on its way there.

Why it matters
    What gets no gradient learns nothing. Unlike a NaN it raises no alarm: the run goes on and
    costs as much as before.

Evidence
    The norm early, before and in the episode, and the loss in the same steps.

Silent when
    The loss fell as much as the norm, or fell on while the norm did (a sound fit to the last bit,
    a margin that is met); or the log prints so few decimals that a small norm reads as 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from forensics.diagnose.blocks import blocks, first_where
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.finite import FiniteSeries, KeptRows
from forensics.diagnose.optimizer_facts import holds_none_of_the_model
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import median, medians_of_five, runs_of, sigma
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent
from forensics.diagnose.zero_loss import switched_off
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray

SIZE = 5
"""Norms in a block: one or two zeros among them say nothing."""


@dataclass(frozen=True)
class Thresholds:
    """How small is nothing, and for how long."""

    least: float = threshold(1e-7, "an update of Adam's eps of 1e-8 and less is lost")
    share: float = threshold(1e-4, "healthy norms fall by 1 to 2 decades from their start")
    rows: int = threshold(150, "norms: longer than any pause of a sound loop")
    part: float = threshold(0.375, "of a short log up to there, in place of 150 norms")
    off: int = threshold(30, "norms that suffice where the loss is switched off with them")
    early: int = threshold(100, "norms that say what was usual at the start")
    told: int = threshold(12, "a reader at night reads no more")


@dataclass(frozen=True)
class _Episode:
    """A stretch without gradient; rows of the table.

    Attributes:
        first: its first row.
        last: its last row.
        fall: the last row before it with a norm near the early median, or None.
        sudden: the last decades of the fall took fewer than 10 rows.
        early: early median of the norm.
        level: median of the norm in the stretch.
        lasts: to the end of the log.
        off: the loss is exactly 0 as well, and nothing led there.
    """

    first: int
    last: int
    fall: int | None
    sudden: bool
    early: float
    level: float
    lasts: bool
    off: bool = False


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip",))
def gradient_vanishing(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode."""
    off = switched_off(signals)
    for episode in _episodes(signals, thresholds, off):
        if off is not None and episode.level == 0 and abs(episode.first - off) <= SIZE:
            yield _finding(signals, replace(episode, off=True))
        elif not _is_fit(signals, episode) and not _is_censored(signals, episode):
            yield _finding(signals, episode)


def _episodes(signals: Signals, limits: Thresholds, off: int | None) -> list[_Episode]:
    norms = signals.norm
    head = norms[first_where(len(norms), lambda at: np.isfinite(norms[at]), limits.early)]
    early = median(head[head > 0])
    limit = max(limits.least, limits.share * early) if np.isfinite(early) else limits.least
    if not any((norms[at] < limit).any() for at in blocks(len(norms))):
        return []
    series = FiniteSeries.of(norms)
    rows, norm = series.rows, series.values
    fives = medians_of_five(norm)
    first, last = runs_of(fives < limit)
    # Early in a log three eighths of it are enough; what comes later changes nothing about that.
    enough = np.clip(limits.part * (last + 1), 3, limits.rows // SIZE)
    if off is not None:  # two witnesses need less time than one
        with_loss = rows[first * SIZE] >= off - SIZE
        enough = np.where(with_loss, np.minimum(enough, limits.off // SIZE), enough)
    long = last - first + 1 >= enough
    pairs = zip(first[long][: limits.told], last[long][: limits.told], strict=True)
    return [_episode(rows, norm, limit, early, int(a) * SIZE, int(b + 1) * SIZE) for a, b in pairs]


def _episode(
    rows: KeptRows, norm: FloatArray, limit: float, early: float, start: int, end: int
) -> _Episode:
    """The exact ends of the stretch that the blocks found."""
    high = np.flatnonzero(norm[: start + SIZE + SIZE // 2] >= limit)
    first = int(high[-1]) + 1 if len(high) else 0
    after = np.flatnonzero(norm[end:] >= limit)
    last = end + int(after[0]) - 1 if len(after) else len(norm) - 1
    # Norms settle after the first steps; what was usual just before is the later level.
    before = median(norm[: first or 1])
    usual = np.flatnonzero(norm[:first] >= 0.3 * np.fmin(early, before))
    above = np.flatnonzero(norm[:first] >= 100 * limit)
    return _Episode(
        first=int(rows[first]),
        last=int(rows[last]),
        fall=int(rows[usual[-1]]) if len(usual) else None,
        sudden=len(above) > 0 and first - int(above[-1]) < 10,
        early=early,
        level=median(norm[first : last + 1]),
        lasts=len(after) == 0,
    )


def _loss_near(signals: Signals, row: int, before: int, after: int) -> float:
    return median(signals.loss[max(0, row - before) : row + after])


def _is_fit(signals: Signals, episode: _Episode) -> bool:
    """Did the loss fall as far as the norm, or while the norm fell?"""
    start = _loss_near(signals, 0, 0, 20)
    losses = signals.loss[episode.first : episode.last + 1]
    inside = median(losses)
    if not (np.isfinite(start) and np.isfinite(inside)):
        return False
    if episode.first == 0:  # the norm never fell: then only a falling loss shows that it learns
        return bool(abs(_loss_near(signals, episode.last, 20, 1)) < 0.8 * abs(start))
    if abs(inside) <= min(0.5, 10 * episode.level / max(episode.early, 1e-300)) * abs(start):
        return True
    if episode.fall is None or episode.sudden:
        return False
    at_fall = _loss_near(signals, episode.fall, 10, 10)
    noise = float(np.nan_to_num(sigma(np.diff(losses[:100]))))
    exact = noise < 1e-6 * abs(at_fall)  # without noise (a full batch) any fall shows learning
    least = 0.0 if exact else max(0.05 * abs(at_fall), 2 * noise)
    return bool(at_fall - inside > least and inside < 0.8 * start)


def _is_censored(signals: Signals, episode: _Episode) -> bool:
    """Does the log print too few decimals for norms as small as these, while training works?"""
    if episode.level != 0 or not np.isfinite(episode.early):
        return False
    norm = signals.norm[: episode.first]
    sample = norm[np.isfinite(norm) & (norm != 0)][:200]
    coarse = bool((np.round(sample, 4) == sample).all())
    return coarse and len(sample) > 0 and float(sample.min()) < 0.1 and episode.early < 1.0


def _finding(signals: Signals, episode: _Episode) -> Finding:
    around = [0, 1, (episode.fall or 0), episode.first - 1, episode.first, episode.first + 1]
    around.append((episode.first + episode.last) // 2)
    dead = episode.level == 0 and episode.lasts
    return Finding(
        rule="gradient-vanishing",
        severity=Severity.ERROR if dead else Severity.WARNING,
        message=_message(signals, episode),
        first_step=signals.step_at(episode.first),
        last_step=signals.last_step if episode.lasts else signals.step_at(episode.last),
        evidence=(
            signals.evidence("grad_l2_pre_clip", signals.norm, around),
            signals.evidence("loss", signals.loss, around),
        ),
        cause=_cause(signals, episode),
        remedy=_remedy(signals, episode),
    )


def _message(signals: Signals, episode: _Episode) -> str:
    first = f"{signals.step_at(episode.first):,}"
    level = number(episode.level)
    rows = episode.last - episode.first + 1
    loss = median(signals.loss[episode.first : episode.last + 1])
    still = f", while the loss stays at {number(loss)}" if np.isfinite(loss) else ""
    if episode.off:
        still = ", and the loss is exactly 0 with it"
    until = (
        f"for the last {percent(rows / len(signals))} of the run"
        if episode.lasts
        else f"until step {signals.step_at(episode.last):,}"
    )
    if episode.first == 0 or not np.isfinite(episode.early):
        where = "throughout" if episode.lasts else until
        return f"the gradient norm is {level} from step {first} on, {where}{still}"
    return (
        f"the gradient norm fell from {number(episode.early)} to {level} by step {first} and stays "
        f"there {until}{still}"
    )


def _cause(signals: Signals, episode: _Episode) -> str:
    half = " In fp16 gradients below 6e-8 become 0." if signals.precision == "fp16" else ""
    if episode.off:
        return (
            "The loss was switched off from one step to the next, so it is no fit: batches without "
            "labels or with all of them masked, a weight or mask of 0, or a nan_to_num that turns "
            "a NaN loss into 0."
        )
    if episode.level == 0 and holds_none_of_the_model(signals):
        return (
            "The optimizer holds none of the model's parameters, as run.json says, but others that "
            "get no gradient: it was made from a copy of the model, or before the model was "
            "replaced."
        )
    if episode.level == 0:
        return (
            f"A graph cut between loss and weights (detach, no_grad, .item), units that are all "
            f"dead, or a loss that is constant.{half}"
        )
    if episode.first == 0 or not np.isfinite(episode.early):
        return (
            f"Gradients shrink on their way through the layers: saturated sigmoids or tanh, or an "
            f"initialisation that is too narrow.{half}"
        )
    if episode.sudden:
        return (
            f"It happened at once: units saturated or died in one large update, or the graph was "
            f"cut there.{half}"
        )
    return f"Activations saturate little by little, or logits have grown beyond any softmax.{half}"


def _remedy(signals: Signals, episode: _Episode) -> str:
    if episode.off:
        first = f"{signals.step_at(episode.first):,}"
        return (
            f"Count the labels that are left in the batch of step {first}, and print the loss of "
            f"single samples before it is masked, weighted or cleaned; resume from before {first}."
        )
    if episode.level == 0 and holds_none_of_the_model(signals):
        return (
            "Make the optimizer from the parameters of the model that is trained, after the last "
            "deepcopy, wrapper or replaced layer, and start again."
        )
    if episode.first == 0 or not np.isfinite(episode.early):
        return (
            "Look at the gradient norms layer by layer at the first step: where they break off the "
            "graph is cut; where they decay, use another initialisation, ReLU-like units or "
            "normalisation."
        )
    since = f"{signals.step_at(episode.first):,}"
    scaling = ", and use a loss scaler" if _unscaled_fp16(signals) else ""
    return (
        f"Look at activations and gradients layer by layer around step {since}, and resume from "
        f"before it with a lower learning rate{scaling}."
    )


def _unscaled_fp16(signals: Signals) -> bool:
    return signals.precision == "fp16" and not signals.scaler_active

"""What to do: what the replays proved, where to resume, and advice that is marked as such."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forensics.diagnose.bisection_result import (
    CheckpointVerdict,
    FaultKind,
    Growth,
    Origin,
    Persistence,
    WhatIf,
)
from forensics.replay.growth import RISEN
from forensics.replay.proof.trial_plans import (
    BF16,
    CLIP,
    FP32,
    FP64,
    HALF_RATE,
    SCALE_ONE,
    TENTH_RATE,
    WITHOUT_BATCH,
    WITHOUT_SAMPLES,
)
from forensics.replay.tracing.operator_advice import advice_for, is_lost_to_rounding, is_product

AT_MOST = 4
"""Sentences: who reads them does so at night."""


def remedies(
    origin: Origin | None,
    growth: Growth | None,
    table: Sequence[WhatIf],
    *,
    first_bad_step: int,
    samples: Sequence[int] = (),
    ranks: Sequence[int] = (),
    reproduces: bool | None = None,
    persistence: Persistence = Persistence.UNKNOWN,
    skipped: bool = False,
    raised: bool = False,
    guard: str = "",
    checkpoints: Sequence[CheckpointVerdict] = (),
) -> tuple[str, ...]:
    """At most four sentences, the proven ones first.

    Nothing is proposed that the run did already: such a change is not in the table.

    Args:
        origin: where the fault is, as far as it is known.
        growth: what grew until then, or None.
        table: what was tried.
        first_bad_step: the bad step.
        samples: the guilty ones.
        ranks: whose batches they are of, where several ranks trained.
        reproduces: what ``again`` said.
        persistence: of the fault.
        skipped: the record says that the optimizer did not step.
        raised: the bad step raised, which ended the run.
        guard: what would have kept the step out of the weights, a clause; empty where the record
            does not show that it was taken and its damage stayed.
        checkpoints: the saved states; the newest good one before the root is named.
    """
    root = growth.since_step if growth is not None else first_bad_step
    over = persistence is Persistence.TRANSIENT and growth is None and reproduces is not False
    if over and not guard and (sound := _sound_after(checkpoints, first_bad_step, skipped)):
        resume = [f"Nothing has to be undone: {sound}."]
    else:
        taught = _is_taught(origin)
        resume = [*_resume(checkpoints, root, growth, lasting=not over, taught=taught)]
    if guard:
        resume = [_guarded(resume or [_anew(first_bad_step)], guard if over else "")]
    if over and (raised or (origin is not None and origin.kind is FaultKind.EXCEPTION)):
        again = f", once it is mended: it comes to step {first_bad_step:,} again."
        resume = [text.replace(", the last good one.", again) for text in resume]
    if reproduces is False:
        return tuple([*_not_reproduced(origin), *resume][:AT_MOST])
    leave = f"{_samples(samples)} out of {_whose(ranks)}"
    proven = [*_proven(table, growth, leave, first_bad_step, persistence)]
    excluded = [*_excluded(table)]
    found = [*proven[:2], *([*resume, *excluded] if guard else [*excluded, *resume])]
    advice = _advice(origin, growth, table)
    if advice and _cause_is_known(origin):  # what makes the step finite is beside the point
        lost = origin is not None and is_lost_to_rounding(origin)
        found = [*(proven[:1] if lost else []), *resume]
    if advice:
        sentence = f"{_capital(advice)} (advice, not proven here)."
        found = [*found[: AT_MOST - 1], sentence]
    return tuple(found[:AT_MOST])


def _anew(step: int) -> str:
    """Where the run knows of no saved state at all; a loop may have saved some by itself."""
    return (
        f"Start anew, or from a state of your own from before step {step:,} (the run names none)."
    )


def _guarded(resume: Sequence[str], guard: str) -> str:
    """Whence to go on, and what must be different then."""
    text = " ".join(resume)
    return f"{text.removesuffix('.')}; {guard}." if guard else text


def _whose(ranks: Sequence[int]) -> str:
    """The batch, or those of some ranks."""
    if not ranks:
        return "the batch"
    named = ", ".join(map(str, ranks))
    return f"rank {named}'s batch" if len(ranks) == 1 else f"the batches of ranks {named}"


def _is_taught(origin: Origin | None) -> bool:
    """Is it in the weights though they are finite: wrong updates, or a value that was changed?"""
    if origin is None:
        return False
    changed = origin.operator == "outside" and bool(origin.parameters)
    return changed or origin.kind in (FaultKind.APPLIED, FaultKind.GROWTH)


def _cause_is_known(origin: Origin | None) -> bool:
    """Does the origin itself say what the loop does wrong?"""
    if origin is None:
        return False
    of_schedule = any(link.phase == "scheduler" for link in origin.chain)
    return origin.kind is FaultKind.APPLIED or of_schedule or _is_reset(origin)


def _is_reset(origin: Origin | None) -> bool:
    """Did the loss scale jump before the step, as after a resume that forgot it?"""
    return origin is not None and any(
        link.what == "loss scale" and link.phase == "outside" for link in origin.chain
    )


def _advice(origin: Origin | None, growth: Growth | None, table: Sequence[WhatIf]) -> str:
    """What usually helps, unless it was tried in vain; at the end of a growth, what grew."""
    if _is_reset(origin):
        return "save and load the GradScaler's state with the model's: its scale was set anew"
    grew = growth is not None or (origin is not None and origin.kind is FaultKind.GROWTH)
    if origin is not None and grew and "not divided by" in origin.summary:
        return "divide the loss of each micro-batch by their number"
    if growth is not None and growth.cause.startswith("no optimizer"):
        return f"mend what changes {growth.signal.rpartition(' ')[2]} in each step"
    if origin is None or (grew and not is_product(origin)):
        return _against_growth(growth, table) if grew else ""
    refuted = any(t.finite is False and t.change.startswith(CLIP) for t in table)
    return advice_for(origin, clip_fails=refuted)


def _against_growth(growth: Growth | None, table: Sequence[WhatIf]) -> str:
    """What helps against a growth; nothing where a lower rate is proven to."""
    rates = {t.change: t.finite for t in table if t.change in (HALF_RATE, TENTH_RATE)}
    if True in rates.values():
        return ""
    if growth is None:
        return "find what makes it grow"
    if RISEN in growth.cause:
        return f"end the rise of the learning rate earlier: {growth.cause}"
    of_log = not growth.signal.startswith("param_l2")
    if of_log and rates.get(HALF_RATE) is False and TENTH_RATE not in rates:
        return "lower the learning rate by much more than half, or warm it up"
    return f"find what makes {growth.signal} grow"


def _not_reproduced(origin: Origin | None) -> Iterator[str]:
    yield "A replay from the same state is sound, so no change of the training cures it."
    if origin is None or origin.operator == "outside":
        yield (
            "Test this machine's memory and its ECC counters, or train on another one "
            "(advice, not proven here)."
        )


def _proven(
    table: Sequence[WhatIf],
    growth: Growth | None,
    leave: str,
    step: int,
    lasting: Persistence,
) -> Iterator[str]:
    """What made it finite, the least costly change first.

    At the end of a growth the data only decide when: leaving some out is no cure.
    """
    finite = {trial.change: trial for trial in table if trial.finite}
    if growth is not None or (lasting is Persistence.PERSISTENT and _goes_no_further(table, step)):
        finite.pop(WITHOUT_SAMPLES, None)
        finite.pop(WITHOUT_BATCH, None)
    if WITHOUT_SAMPLES in finite:
        trial = finite[WITHOUT_SAMPLES]
        yield f"Leave {leave} of step {step:,}{_again(trial)}: {_carries_on(trial, step)}."
    elif WITHOUT_BATCH in finite:
        yield f"Skip the batch of step {step:,}: {_carries_on(finite[WITHOUT_BATCH], step)}."
    but = ", but does not stop the growth" if growth is not None else ""
    half = next((name for name in (BF16, FP32) if name in finite), None)
    if half is not None:
        yield f"{half} carries it on: {_proof(finite[half], step)}{but}."
    elif FP64 in finite and FP32 not in {trial.change for trial in table}:
        yield f"fp64 carries it on: {_proof(finite[FP64], step)}{but or ', so fp32 is too narrow'}."
    if SCALE_ONE in finite:
        yield f"A lower loss scale cures it: with 1 {_proof(finite[SCALE_ONE], step)}."
    for change, trial in finite.items():
        if change in (HALF_RATE, TENTH_RATE) or change.startswith(CLIP):
            yield (
                f"{_capital(change)} from step {trial.from_step:,} on: {_carries_on(trial, step)}."
            )


def _again(trial: WhatIf) -> str:
    """The later steps that the samples come again in."""
    shown = ", ".join(f"{step:,}" for step in trial.comes_again[:4])
    more = " and more" if len(trial.comes_again) > 4 else ""
    return f", and wherever the same comes again (step {shown}{more})" if shown else ""


def _goes_no_further(table: Sequence[WhatIf], step: int) -> bool:
    """Did the trials without data end at the bad step itself?"""
    ends = [t.until_step for t in table if t.change in (WITHOUT_SAMPLES, WITHOUT_BATCH)]
    return all(end <= step for end in ends)


def _excluded(table: Sequence[WhatIf]) -> Iterator[str]:
    """What is not to blame, so that nobody spends a night on it."""
    bad = {trial.change: trial.note for trial in table if trial.finite is False}
    if bad.get(FP32):
        yield "It is not a precision problem: fp32 goes bad, too."
    elif "mathematics" in bad.get(FP64, "") and FP32 not in {trial.change for trial in table}:
        yield "It is mathematics, not rounding: fp64 goes bad, too."


def _sound_after(checkpoints: Sequence[CheckpointVerdict], step: int, skipped: bool) -> str:
    """Why a fault that is over has left nothing to undo; empty where it may have."""
    if skipped:
        return "the step was skipped, and left no damage"
    later = [c.step for c in checkpoints if c.step > step and c.verdict == "good"]
    return f"the saved state of step {min(later):,} is sound" if later else ""


def _resume(
    checkpoints: Sequence[CheckpointVerdict],
    root: int,
    growth: Growth | None,
    *,
    lasting: bool,
    taught: bool,
) -> Iterator[str]:
    """From which state, and before what; ``taught``: finite states hold what it taught them."""
    good = [c.step for c in checkpoints if c.verdict == "good" and c.step <= root]
    if good and max(good) == 0 and growth is not None:
        since = "at step 0" if not root else f"at step {root:,}, and no later state is from before"
        yield f"Start anew: the growth began {since}."
        return
    later = any(c.step > root and (taught or c.verdict == "bad") for c in checkpoints)
    if good and max(good) == 0 and lasting:
        yield f"Start anew once it is mended: it acts from step {root:,} on."
        return
    why = "before the growth began" if growth is not None else "the last good one"
    if good and max(good) == root and lasting and growth is None:
        yield f"Mend it first: from step-{root}, the last good state, it fails at once."
        return
    if good:
        carries = "; a later state carries the fault" if lasting and later else ""
        yield f"Resume from step-{max(good)}, {why}{carries}."
    elif checkpoints:
        yield f"Start anew: no saved state is from before step {root:,}, where it began."


def _carries_on(trial: WhatIf, step: int) -> str:
    stays = "the run stays finite" if trial.stays == WhatIf.stays else trial.stays
    return f"{stays}, {_proof(trial, step)}"


def _proof(trial: WhatIf, step: int) -> str:
    """By what it is proven, such as ``proven for 50 steps``."""
    further = trial.until_step - step
    if further <= 0:
        return f"proven for step {step:,} alone"
    return f"proven for {further:,} step{'s' if further > 1 else ''} after it"


def _samples(samples: Sequence[int]) -> str:
    shown = ", ".join(map(str, samples[:4]))
    more = f" and {len(samples) - 4} more" if len(samples) > 4 else ""
    return f"sample{'s' if len(samples) > 1 else ''} {shown}{more}"


def _capital(text: str) -> str:
    """A sentence's first letter; names of precisions stay as they are."""
    return text if text.startswith(("fp", "bf")) else text[:1].upper() + text[1:]

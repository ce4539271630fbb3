"""A run that an exception ended: what is known of it where no rule found a fault."""

from __future__ import annotations

import re

import numpy as np

from forensics.diagnose.facts import last_line
from forensics.diagnose.finding import TimelineEntry
from forensics.diagnose.signals import Signals
from forensics.diagnose.timeline import last_healthy
from forensics.diagnose.wording import clause, factor, number
from forensics.frozen import dataclass
from forensics.runlog.log_facts import INTERRUPT

GIB = float(1 << 30)
"""Bytes of a GiB."""
GROWN = 1.2
"""Times its early value from which the peak of memory is worth a word: a leak, longer batches."""


@dataclass(frozen=True)
class Raised:
    """How a run ended, for the verdict.

    Attributes:
        summary: what was raised, and that nothing before it is a fault.
        cause: what usually raises this.
        remedy: what to do about it.
        undecided: what the log cannot tell.
        timeline: the last healthy step, and the step that raised.
    """

    summary: str
    cause: str
    remedy: str
    undecided: tuple[str, ...]
    timeline: tuple[TimelineEntry, ...]


@dataclass(frozen=True)
class _Kind:
    """A kind of exception: what its message holds, what is behind it and what to do."""

    pattern: re.Pattern[str]
    cause: str
    remedy: str


def _kind(pattern: str, cause: str, remedy: str) -> _Kind:
    return _Kind(re.compile(pattern, re.IGNORECASE), cause, remedy)


SHAPE = _kind(
    r"more than 1 value per channel|shapes? cannot be multiplied|size mismatch|must match|"
    r"shape mismatch|sizes of tensors|invalid for input of size|stack expects each tensor",
    "The batch has another shape than those before it. The last batch of an epoch is smaller, "
    "and a single sample is too few for BatchNorm.",
    "Print the shapes of that batch; if it is the last one of an epoch, set drop_last=True in "
    "the data loader, else mend or leave out that sample.",
)
KINDS = (
    _kind(
        r"out of memory|OutOfMemory|alloc_failed|MemoryError",
        "A batch, or what was kept from earlier ones, did not fit into memory.",
        "If it is the first steps, make the micro-batch smaller and accumulate more of them, or "
        "recompute activations. If it is later, look for the longest sample of that step, and for "
        "tensors kept over steps: losses summed without .item(), outputs put into a list.",
    ),
    _kind(
        r"device-side assert|index out of range|out of bounds|Target \d+ is out",
        "An index is outside its table: a label that is no class, or a token that is not in the "
        "vocabulary, in the batch of that step.",
        "Compare the least and the largest label and token of that batch with the sizes of the "
        "model; on a GPU, run it with CUDA_LAUNCH_BLOCKING=1 or on the CPU to see the right line.",
    ),
    SHAPE,
    _kind(
        r"returned nan values|nan or inf|contains? nan|non-?finite|invalid values",
        "A check in the training met a NaN or an Inf before the log could show it.",
        "Replay that step: the operator that made the value is what to mend, not the check.",
    ),
    _kind(
        r"NCCL|ProcessGroup|gloo|rendezvous|collective|watchdog|Broken pipe|Connection reset",
        "Another process of the job ended or did not answer; this one was only waiting for it.",
        "Look for the rank whose log ends first: its error came before this one.",
    ),
    _kind(
        r"No space left|Disk quota|Errno 28|Read-only file system",
        "The disk was full, or closed to writing.",
        "Make room, keep fewer checkpoints, and resume.",
    ),
    _kind(
        r"DataLoader|StopIteration|FileNotFoundError|UnidentifiedImage|UnicodeDecode|No such file|"
        r"zipfile|EOFError|Errno 2\b",
        "The data could not be read: a file that is missing or damaged, or a data set that ended "
        "before the training did.",
        "Read the samples of that step by themselves; with num_workers=0 the traceback names the "
        "file.",
    ),
)
"""Kinds of exceptions by their message; the first that matches is told."""
MISFIT = _kind(
    r"",
    "No batch has passed: model, data and loss do not fit each other.",
    "Print the shapes of one batch and of each module's output, and compare them with what the "
    "layers and the loss expect.",
)
"""A wrong shape in the very first step."""
OTHER = _kind(
    r"",
    "The training's own code raised it; the numbers until then are sound.",
    "Read the traceback from its end to the last line of your own code, and run that step again "
    "with its batch.",
)


def raised(signals: Signals) -> Raised | None:
    """How an exception ended the run; None where none is known, or somebody interrupted it."""
    learned = signals.table.facts
    if learned is not None and learned.ended and not learned.ended.startswith(INTERRUPT):
        after = f" after {learned.unit} {signals.last_step:,}" if len(signals) else ""
        told = f"The log ends{after} with {last_line(learned)}. Nothing before it is a fault."
        return _raised(signals, told, learned.ended, None)
    manifest = signals.run.manifest
    ended = manifest.ended if manifest is not None else None
    if ended is None or ended.how != "exception":
        return None
    at = "" if ended.step is None else f" at step {ended.step:,}"
    how = clause(ended.message)
    told = f"The training raised{at}: {how}. Nothing in the log before it is a fault."
    return _raised(signals, told, ended.message, ended.step)


def _raised(signals: Signals, summary: str, message: str, step: int | None) -> Raised:
    kind = next((kind for kind in KINDS if kind.pattern.search(message)), OTHER)
    if len(signals) == 0 and kind is SHAPE:
        kind = MISFIT
    lines = [entry for _, entry in last_healthy(signals, len(signals))]
    if step is not None:
        name = clause(message).partition(":")[0]
        lines.append(TimelineEntry(when=f"{step:,}", title="raised", detail=name))
    memory = _memory(signals) if kind is KINDS[0] else ""
    return Raised(
        summary=summary,
        cause=f"{kind.cause}{memory}",
        remedy=kind.remedy,
        undecided=_open(step),
        timeline=tuple(lines),
    )


def _open(step: int | None) -> tuple[str, ...]:
    if step is None:
        return ()
    return (
        f"What raised is in no log: look at the line that the traceback names, and at what step "
        f"{step:,} was given, its batch first.",
    )


def _memory(signals: Signals) -> str:
    """What the peak of memory did, as a sentence; empty where it is not logged."""
    peak = signals.column("peak_memory_bytes")
    known = peak[np.isfinite(peak) & (peak > 0)]
    if len(known) < 2:
        return ""
    first, last = float(known[: max(len(known) // 10, 1)].max()), float(known[-1])
    ends = f"{number(last / GIB)} GiB"
    if last < GROWN * first:
        return f" The peak of memory stood at {ends}: nothing piled up, that step needed more."
    return f" The peak of memory had grown {factor(last / first)} to {ends}: something piles up."

"""What a log ends in after its last record: the exception or the signal a training died of."""

from __future__ import annotations

import re
from collections.abc import Callable

from forensics.runlog.log_facts import INTERRUPT

TAIL = 64 << 10
"""Bytes at the end of a log in which a crash is looked for."""
_LONGEST = 160
_NAMED = rb"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception|Interrupt|Failure)"
_DEATHS = (
    rb"(?P<raised>" + _NAMED + rb"(?::[^\n]*)?)",
    rb"(?P<memory>CUDA out of memory[^\n]*)",
    rb"(?P<cuda>CUDA error: [^\n]*)",
    rb"(?P<killed>(?:[^\s:]{1,60}: (?:line )?\d+: +\d+ )?Killed\b[^\n]{0,80})",
    rb"(?P<signal>(?:Segmentation fault|Bus error|Floating point exception|Aborted"
    rb"|Fatal Python error)[^\n]{0,80})",
    rb"(?P<thrown>terminate called [^\n]*)",
    rb"(?P<nccl>[^\n]{0,200}Watchdog caught collective operation timeout[^\n]{0,80})",
    rb"(?P<slurm>slurmstepd: error: [^\n]*(?:CANCELLED|oom|OOM|Exceeded)[^\n]*)",
)
_DEATH = re.compile(rb"(?m)^(?:" + rb"|".join(_DEATHS) + rb")\s*$")
_TRACEBACK = re.compile(rb"(?m)^Traceback \(most recent call last\):")
_EXCEPTION = re.compile(rb"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?::|\s*$)")
_SWALLOWED = re.compile(rb"Exception ignored in[^\n]*\n(?:Traceback[^\n]*\n(?:[ \t][^\n]*\n)*)?\Z")
"""An exception that Python printed and went on, as in an object's end."""
_SECOND_HAND = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", INTERRUPT)
"""What is raised because another process or a person ended the training."""


def crash_after(tail: bytes, is_record: Callable[[bytes], bool]) -> str:
    """The first line of death at the end of a log; empty where the log just ends.

    Args:
        tail: the last part of the clean text.
        is_record: does a text hold records of the training? What comes before one was survived.

    Returns:
        Such as ``torch.cuda.OutOfMemoryError: CUDA out of memory. …``, at most 160 characters.
    """
    deaths = [m for m in _DEATH.finditer(tail) if not _SWALLOWED.search(tail, 0, m.start())]
    traces = [m.start() for m in _TRACEBACK.finditer(tail)]
    while deaths and is_record(tail[deaths[0].end() :]):
        deaths = deaths[1:]
    if not deaths:
        if not traces or is_record(tail[traces[-1] :]):
            return ""
        return _raised(tail, traces[-1])
    told = [_told(death.group()) for death in deaths]
    own = [text for text in told if not any(name in text for name in _SECOND_HAND)]
    return (own or told)[0]


def _raised(tail: bytes, start: int) -> str:
    """What a traceback says was raised: its first line that is not indented."""
    if _SWALLOWED.search(tail, 0, start):
        return ""
    lines = tail[start:].splitlines()[1:]
    last = next((line for line in lines if line.strip() and line[:1] not in (b" ", b"\t")), b"")
    if not last:
        return "a traceback that was cut off"
    return _told(last) if _EXCEPTION.match(last) else ""


def _told(line: bytes) -> str:
    text = " ".join(line.decode("utf-8", errors="replace").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

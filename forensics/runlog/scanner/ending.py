"""What a log ends in after its last record: the exception or the signal a training died of."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

from forensics.frozen import dataclass
from forensics.runlog.log_facts import INTERRUPT
from forensics.runlog.scanner.cleaning import RANK_PREFIX

TAIL = 64 << 10
"""Bytes at the end of a log in which a crash is looked for."""
_LONGEST = 160
_LONGEST_TRACE = 8 << 10
"""Bytes of the longest traceback that is taken for one which Python passed over."""
_NAMED = rb"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception|Interrupt|Failure)"
_SHELL = rb"(?:[^\s:]{1,60}: (?:line )?\d+: +\d+ |(?:\[\d+\])? {0,4}[+-]? {0,4}(?:\d+ )?)?"
"""What a shell puts before the fate of a process: ``run.sh: line 3: 17 ``, ``[1]+  ``."""
_REST = rb"(?:: \d+)?(?: \(core dumped\))?(?:\s{2,}[^\n]{0,200})?"
"""What may follow it: the command, at some distance. ``Killed 3 stale workers`` is no fate."""
_DEATHS = (
    rb"(?P<raised>" + _NAMED + rb"(?::[^\n]*)?)",
    rb"(?P<memory>CUDA out of memory[^\n]*)",
    rb"(?P<cuda>CUDA error: [^\n]*)",
    rb"(?P<fate>" + _SHELL + rb"(?:Killed|killed|Terminated|terminated|Segmentation fault"
    rb"|segmentation fault|Bus error|Floating point exception|Aborted|Illegal instruction)"
    + _REST
    + rb")",
    rb"(?P<fatal>Fatal Python error[^\n]{0,80})",
    rb"(?P<thrown>terminate called [^\n]*)",
    rb"(?P<nccl>[^\n]{0,200}Watchdog caught collective operation timeout[^\n]*)",
    rb"(?P<slurm>slurmstepd: error: [^\n]*(?:CANCELLED|oom|OOM|Exceeded)[^\n]*)",
    rb"(?P<srun>srun: error: [^\n]*(?:Killed|Out Of Memory|Segmentation fault|Aborted)[^\n]{0,80})",
    rb"(?P<command>Command (?:exited with non-zero status|terminated by signal) \d+)",
    rb"(?P<queue>=>> PBS: job killed[^\n]*|TERM_[A-Z]+: job killed[^\n]*)",
    rb"(?P<elastic>(?:traceback *: )?Signal \d+ \(SIG\w+\) received by PID \d+"
    rb"|[^\n]{0,120}Received \d+ death signal[^\n]{0,80})",
)
_WORDS = (
    *(b"Traceback", b"Error", b"Exception", b"Interrupt", b"Failure", b"illed", b"erminated"),
    *(b"egmentation fault", b"Bus error", b"Floating point", b"Aborted", b"Illegal instruction"),
    *(b"Fatal Python", b"CUDA", b"terminate called", b"Watchdog", b"slurmstepd", b"srun:"),
    *(b"PBS:", b"TERM_", b"Signal ", b"death signal", b"Command "),
)
"""Of which one is in every line of death: most logs have none, and nothing is to be compiled."""
_TRACEBACK = re.compile(rb"(?m)^[ \t]{0,8}Traceback \(most recent call last\):")
_EXCEPTION = re.compile(rb"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?::|\s*$)")
_MEASURED = re.compile(rb"\w+:\s*[-+]?[\d.]+(?:e[-+]?\d+)?\s*%?\s*$")
"""``MeanAbsoluteError: 0.12`` is a metric, unless a traceback ends in it."""
_SWALLOWED = re.compile(
    rb"(?:Exception ignored in|Exception in thread|Error in atexit|Task exception was never"
    rb"|--- Logging error)[^\n]*\n"
    rb"(?:future: [^\n]*\n)?(?:Traceback[^\n]*\n(?:[ \t][^\n]*\n)*)?\Z"
)
"""An exception that Python printed and went on, as in an object's end or another thread."""
_SECOND_HAND = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException", INTERRUPT)
"""What is raised because another process or a person ended the training."""


@dataclass(frozen=True)
class Crash:
    """What a log ends in.

    Attributes:
        text: such as ``torch.cuda.OutOfMemoryError: CUDA out of memory. …``, at most 160
            characters.
        line: the line it is of, without a rank in front.
        nth: which of such lines it is, from the end.
    """

    text: str
    line: bytes
    nth: int


def crash_after(tail: bytes, is_record: Callable[[bytes], bool]) -> Crash | None:
    """The first line of death at the end of a log; None where the log just ends.

    Args:
        tail: the last part of the clean text.
        is_record: does a text hold records of the training? What comes before one was survived.
    """
    if not any(word in tail for word in _WORDS):
        return None
    # torchrun puts the rank before what a process writes on standard error, its end alone maybe.
    tail = RANK_PREFIX.sub(b"", tail)
    traces = [m.start() for m in _TRACEBACK.finditer(tail)]
    deaths = [
        death
        for death in _death().finditer(tail)
        if not _swallowed(tail, death.start())
        if traces or not _MEASURED.fullmatch(death.group("raised") or b"")
    ]
    survived = bisect_left(deaths, True, key=lambda death: not is_record(tail[death.end() :]))
    deaths = deaths[survived:]
    if not deaths:
        if not traces or is_record(tail[traces[-1] :]):
            return None
        return _raised(tail, traces[-1])
    told = [_crash(tail, death.start(), death.group()) for death in deaths]
    own = [crash for crash in told if not any(name in crash.text for name in _SECOND_HAND)]
    return (own or told)[0]


@cache
def _death() -> re.Pattern[bytes]:
    return re.compile(rb"(?m)^[ \t]{0,8}(?:" + rb"|".join(_DEATHS) + rb")\s*$")


def _swallowed(tail: bytes, start: int) -> bool:
    """Was what is told there printed by Python, which went on?"""
    return _SWALLOWED.search(tail, max(start - _LONGEST_TRACE, 0), start) is not None


def _raised(tail: bytes, start: int) -> Crash | None:
    """What a traceback says was raised: its first line that is not indented."""
    if _swallowed(tail, start):
        return None
    at = start
    for line in tail[start:].splitlines(keepends=True):
        if at > start and line.strip() and line[:1] not in (b" ", b"\t"):
            return _crash(tail, at, line) if _EXCEPTION.match(line) else None
        at += len(line)
    first = tail[start:].partition(b"\n")[0]
    return Crash("a traceback that was cut off", first, tail.count(first, start))


def _crash(tail: bytes, start: int, line: bytes) -> Crash:
    line = line.strip()
    return Crash(_told(line), line, tail.count(line, start))


def lines_of_end(crash: Crash, raw: bytes) -> int:
    """How many lines of a file, blank ones left out, are its end and no rows: the traceback too."""
    at = _place(crash, raw)
    if at < 0:
        return 0
    trace = raw.rfind(b"Traceback (most recent call last):", 0, at)
    between = raw[trace:at].splitlines()[1:] if trace >= 0 else []
    if all(line[:1] in (b" ", b"\t", b"[") or not line.strip() for line in between):
        at = trace if trace >= 0 else at
    return sum(bool(line.strip()) for line in raw[at:].splitlines())


def line_of(crash: Crash, raw: bytes, newlines: int) -> int | None:
    """The line of a file that a crash is in, from 1; None where its text is not there as it is.

    Args:
        crash: as found in the clean text.
        raw: the last part of the file, as it is.
        newlines: how many the whole file has.
    """
    at = _place(crash, raw)
    return None if at < 0 else newlines - raw.count(b"\n", at) + 1


def _place(crash: Crash, raw: bytes) -> int:
    """Where the line of a crash is in the file's last part; negative where it is not as it was."""
    at = len(raw)
    for _ in range(crash.nth):
        at = raw.rfind(crash.line, 0, at)
        if at < 0:
            break
    return at


def _told(line: bytes) -> str:
    text = " ".join(line.decode("utf-8", errors="replace").split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

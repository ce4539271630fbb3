"""What can go wrong for a user: every error says where, what, and what to do."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process says to the shell; a contract for job scripts."""

    DONE = 0
    FINDINGS = 1
    USAGE = 2
    STOPPED_BY_ALARM = 3
    TRAINING_RAISED = 4
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: to be taken as Ctrl-C is, so that what is open is closed and said."""


LONGEST_PLACE = 400
"""Characters of a place that a message shows; longer ones lose their middle, never the reason."""


def _shortened(place: str) -> str:
    if len(place) <= LONGEST_PLACE:
        return place
    half = LONGEST_PLACE // 2
    return f"{place[:half]}…{place[-half:]} ({len(place):,} characters)"


_SIGNER = (
    r"(?i)(?<=://)(?:[^/?#@:\s]*:(?![\s:]|\d+(?:[/?#]|\Z))(?:[^/?#\n]*|\S*?)"
    r"|(?:(?<=https://)|(?<=http://))[^/?#@\s]+)@"
)
"""User and password; on the web the user alone is often a token."""
_SIGNATURE = (
    r"(?i)([?&][\w.-]*(?:signature|credential|token|secret|passw(?:or)?d|key|auth|jwt|session|hmac"
    r"|policy)=|[?&](?:sig|pass|pwd|code|md5|hash)=)[^&#\s]*[^&#\s:;,.]"
)
_LONG_VALUE = r"([?&][\w.-]+=)[\w%+/=-]{32,}"
"""What is as long as that in a query is no word, but signs it."""
_REPOSITORY = r"(?i)git(?:hub)?://"
"""``github://owner:repository@branch/path`` has no password there."""


def without_secrets(text: str) -> str:
    """Leaves out of URIs a user with password, and what signs a query: messages end up in logs."""
    if "://" not in text:
        return text
    if re.match(_REPOSITORY, text) is None:
        text = re.sub(_SIGNER, "…@", text)
    return re.sub(_LONG_VALUE, r"\1…", re.sub(_SIGNATURE, r"\1…", text))


class ForensicsError(Exception):
    """A problem that is the user's to solve, told in one line and never as a traceback.

    Args:
        what: what is wrong, as a short clause.
        where: the file, option or step it is about.
        hint: what to do about it.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, what: str, *, where: object = None, hint: str | None = None) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint
        super().__init__(self.line())

    def line(self) -> str:
        """The whole message on one line: ``where: what; what to do``."""
        head = f"{_shortened(self.where)}: {self.what}" if self.where else self.what
        # What another library says of itself may end as a sentence does.
        text = f"{head.removesuffix('.')}; {self.hint}" if self.hint else head
        return without_secrets(" ".join(text.split()))


class InputError(ForensicsError):
    """A file or directory that cannot be read as what it should be."""


class OutputError(ForensicsError):
    """A file or stream that cannot be written."""


class UsageError(ForensicsError):
    """A combination of options or settings that makes no sense."""


class MissingExtraError(UsageError):
    """A part that needs an optional dependency which is not installed."""


class NotReplayableError(ForensicsError):
    """A run, or a change of it, that cannot be trained again here."""


class NoBatchError(ForensicsError):
    """The data of a step that cannot be had: what the recipe's ``batch`` raised is its cause."""


class RecordingStoppedError(ForensicsError):
    """A recording that its own alarm stopped; everything is on disk."""

    exit_code = ExitCode.STOPPED_BY_ALARM


class TrainingRaisedError(ForensicsError):
    """The recorded training raised an exception; the run says which."""

    exit_code = ExitCode.TRAINING_RAISED


class StoreError(ForensicsError):
    """A store of objects, or a web server, that does not answer or lets nobody in."""

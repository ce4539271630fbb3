"""Colour by plain ANSI codes.

A report needs bold and four colours. rich would draw them too, and would take longer to import
than the whole report takes to make.
"""

from __future__ import annotations

from forensics.diagnose.finding import Severity, Status

BOLD = "1"
GOOD = "1;32"
"""What is proven sound."""
BAD = "1;31"
"""What is proven bad."""
DIM = "2"
_OF_SEVERITY = {
    Severity.CRITICAL: "1;31",
    Severity.ERROR: "31",
    Severity.WARNING: "33",
    Severity.INFO: "36",
}
_OF_STATUS = {
    Status.FAULTY: "1;31",
    Status.UNDECIDED: "1;33",
    Status.INSUFFICIENT_DATA: "1;33",
    Status.HEALTHY: "1;32",
}


def painted(text: str, code: str) -> str:
    """The text in a colour; blank padding and empty codes stay as they are."""
    return f"\x1b[{code}m{text}\x1b[0m" if code and text.strip() else text


def severity_code(severity: Severity) -> str:
    """The colour of a severity."""
    return _OF_SEVERITY[severity]


def status_code(status: Status) -> str:
    """The colour of a verdict."""
    return _OF_STATUS[status]

"""Where the command line starts: ``python -m forensics`` and the script of that name."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any


def run() -> int:
    """Run the command line; an interrupt while it is still being imported is no traceback."""
    try:
        from forensics.cli import main

        _end_in_order_at_sigterm()
        code = main()
        # All is said. Unless it is ignored, an interrupt while libraries are torn down would end
        # the process by the signal, whatever its exit code was to be.
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except KeyboardInterrupt:
        sys.stderr.write("forensics: interrupted\n")
        return 130


def _end_in_order_at_sigterm() -> None:
    """A time limit's SIGTERM ends a verb as Ctrl-C does: no half-written file is left behind.

    Not where a launcher runs several ranks: one that waits for another would not hear it.
    """
    from forensics.errors import TerminatedError

    def default() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def end(number: int, frame: Any) -> None:
        del number, frame
        default()  # a second one ends it at once
        raise TerminatedError

    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    with suppress(ValueError):  # not in the main thread, which alone may say what signals do
        if alone and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, end)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=default)


if __name__ == "__main__":
    sys.exit(run())

"""Where the command line starts: ``python -m forensics`` and the script of that name."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any


def run() -> int:
    """What a shell starts: the command line, and an end that keeps its exit code."""
    sys.unraisablehook = _interrupt_again
    code = answer()
    if code in (130, 143) or os.environ.get("WORLD_SIZE", "1") != "1":
        # Threads of libraries are stopped midway, or wait for other ranks: as Python tears them
        # down some abort, and the shell sees a crash.
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    return code


def answer() -> int:
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


def _interrupt_again(unraisable: Any) -> None:
    """An interrupt that came within a callback of the garbage collector would be lost there."""
    lost = isinstance(unraisable.exc_value, KeyboardInterrupt)
    if not lost or not hasattr(signal, "pthread_kill"):  # not on Windows
        sys.__unraisablehook__(unraisable)
        return
    import threading

    number = signal.SIGINT
    if type(unraisable.exc_value).__name__ == "TerminatedError":
        number = signal.SIGTERM
        _end_in_order_at_sigterm()
    here = threading.get_ident()
    later = threading.Timer(0.01, signal.pthread_kill, (here, number))
    later.daemon = True
    later.start()


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

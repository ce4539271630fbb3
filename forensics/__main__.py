"""Where the command line starts: ``python -m forensics`` and the script of that name."""

import signal
import sys
from contextlib import suppress


def run() -> int:
    """Run the command line; an interrupt while it is still being imported is no traceback."""
    try:
        from forensics.cli import main

        code = main()
        # All is said. Unless it is ignored, an interrupt while libraries are torn down would end
        # the process by the signal, whatever its exit code was to be.
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except KeyboardInterrupt:
        sys.stderr.write("forensics: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())

"""Where the command line starts: ``python -m forensics`` and the script of that name."""

import sys


def run() -> int:
    """Run the command line; an interrupt while it is still being imported is no traceback."""
    try:
        from forensics.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("forensics: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())

"""``python -m forensics``: the command line without its script."""

import sys

from forensics.cli import main

if __name__ == "__main__":
    sys.exit(main())

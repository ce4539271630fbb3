"""Which paths are no paths of this machine: ``s3://bucket/runs/x`` and the like."""

from __future__ import annotations

import os
import re

PATTERN = r"(?i:(?:[a-z][a-z0-9+.-]*::)*(?P<scheme>[a-z][a-z0-9+.-]+)://)"
"""With fsspec's chains, as ``zip://x.csv::s3://…``. A single letter is a drive of Windows. Not
compiled here: most runs are files of this machine, and their report imports this module."""


def is_uri(path: str | os.PathLike[str]) -> bool:
    """Does a path name a place in a store, on the web, or (``file://``) here by a URI?"""
    text = os.fspath(path)
    return "://" in text and re.match(PATTERN, text) is not None

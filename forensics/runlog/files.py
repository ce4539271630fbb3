"""Changing a run directory safely: whole files, one writer, and resumes that destroy nothing."""

from forensics.runlog.atomic import atomic_write, replacing
from forensics.runlog.lock import LOCK_NAME, RunLock
from forensics.runlog.superseding import supersede

__all__ = ["LOCK_NAME", "RunLock", "atomic_write", "replacing", "supersede"]

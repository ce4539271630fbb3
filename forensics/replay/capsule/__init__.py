"""The capsule: the smallest thing that reproduces a bad step, and its replay.

A folder that is self-contained but for the recipe's code: ``state.pt`` (the state just before the
step), ``batch.pt`` (the guilty samples, or the whole batch), ``capsule.json`` (the run's manifest,
the recorded row, the expected answer), ``repro.py``; and, where an operator made the first
non-finite value, its inputs alone as ``op.pt`` with ``repro_op.py``.
"""

from forensics.diagnose.capsule_verdict import CapsuleVerdict
from forensics.replay.capsule.running import run_capsule
from forensics.replay.capsule.writing import Capsule, write_capsule

__all__ = ["Capsule", "CapsuleVerdict", "run_capsule", "write_capsule"]

"""The rules, in report order: one file each, its name is the rule's id."""

from __future__ import annotations

from forensics.diagnose.rule import Rule
from forensics.diagnose.rules.nonfinite_loss import nonfinite_loss

RULES: tuple[Rule, ...] = (nonfinite_loss,)

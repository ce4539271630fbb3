"""The findings as a reader meets them: root, consequences, the rest; episodes of a rule together.

Text, pictures and pages share this order, so that a number in one is the same finding in another.
"""

from __future__ import annotations

from forensics.diagnose.finding import Diagnosis, Finding
from forensics.frozen import dataclass

ROOT = "root"
FOLLOWS = "follows"


@dataclass(frozen=True)
class FindingGroup:
    """Episodes of one rule that stand in the same relation to the verdict.

    Attributes:
        findings: the episodes, in the order of the diagnosis.
        relation: ``root``, ``follows`` or empty.
    """

    findings: tuple[Finding, ...]
    relation: str

    @property
    def head(self) -> Finding:
        """The worst of them, and the first of equals."""
        return min(self.findings, key=lambda f: (-f.severity, f.first_step))


def report_order(diagnosis: Diagnosis, *, apart: bool = False) -> list[FindingGroup]:
    """Root, consequences, then the unrelated; episodes of one rule together unless ``apart``."""
    verdict, findings = diagnosis.verdict, diagnosis.findings
    related = [(i, ROOT) for i in ([] if verdict.root is None else [verdict.root])]
    related += [(i, FOLLOWS) for i in verdict.consequences]
    known = {i for i, _ in related}
    related += [(i, "") for i in range(len(findings)) if i not in known]
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for i, relation in related:
        key = (findings[i].rule, relation, str(i) if apart else "")
        groups.setdefault(key, []).append(findings[i])
    return [FindingGroup(tuple(group), key[1]) for key, group in groups.items()]

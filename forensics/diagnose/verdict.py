"""The verdict: one root, what followed from it, what stays open, and the next command.

No score is involved. ``explanations.py`` says which finding explains which. A root is a finding
that nothing explains; among several, the one whose chain reaches the worst damage is told, the
earliest of those first. What its chain does not reach is unrelated and told as such.
"""

from __future__ import annotations

from dataclasses import replace

from forensics.diagnose.explanations import explains, may_be_root
from forensics.diagnose.finding import (
    Finding,
    Outcome,
    RuleOutcome,
    Severity,
    Status,
    Verdict,
)
from forensics.diagnose.lost_rows import lost_rows, tells_lost_rows
from forensics.diagnose.next_command import command_for_exception, next_command
from forensics.diagnose.open_questions import not_judged, open_questions
from forensics.diagnose.raised import raised
from forensics.diagnose.signals import Signals
from forensics.diagnose.timeline import timeline
from forensics.diagnose.wording import sentence, start_of
from forensics.diagnose.wording import steps as step_count

MOST_WEIGHED = 200
"""Findings that are weighed against each other (pairs grow with the square); the worst come first,
and a log with more episodes than this has no chain worth telling beyond them."""
_SPIKES = ("loss-spike", "gradient-spike")
_CARRY_SPIKES = (
    "loss-divergence",
    "gradient-explosion",
    "gradient-vanishing",
    "learning-rate-fault",
    "loss-oscillation",
    "depth-growth",
)
"""Roots in whose course the loss and the norm jump: the batch is not to blame for that."""
TOO_SHORT = 10
"""Rows below which silence means nothing: no detector has a past to compare with."""


def weigh(
    signals: Signals,
    findings: tuple[Finding, ...],
    outcomes: tuple[RuleOutcome, ...],
    left_out: int = 0,
) -> Verdict:
    """Weigh the findings into one verdict.

    Args:
        signals: the run.
        findings: most severe first, then by step; the verdict's indices point here.
        outcomes: every rule's outcome, for what could not be judged.
        left_out: how many rules were not asked.
    """
    serious = [i for i, f in enumerate(findings) if f.severity >= Severity.WARNING]
    if all(tells_lost_rows(findings[i]) for i in serious):
        return replace(_silent(signals, outcomes, left_out), unrelated=tuple(serious))
    weighed = findings[:MOST_WEIGHED]
    chains = _chains(_edges(signals, weighed), len(weighed))
    root = _root(signals, weighed, chains)
    if root is None:
        return _rootless(signals, findings)
    consequences = sorted(chains[root] - {root}, key=lambda i: (findings[i].first_step, i))
    rest = tuple(i for i in range(len(findings)) if i != root and i not in chains[root])
    chain = tuple(findings[i] for i in consequences)
    return Verdict(
        status=Status.FAULTY,
        summary=_summary(findings[root], chain) + _as_the_log_counts(signals, findings[root]),
        root=root,
        consequences=tuple(consequences),
        unrelated=rest,
        undecided=open_questions(signals, findings[root], findings),
        timeline=timeline(signals, findings[root], chain),
        next_command=next_command(signals, findings[root]),
    )


def retold(findings: tuple[Finding, ...], verdict: Verdict) -> tuple[Finding, ...]:
    """The findings, where a spike that is part of the root's story claims no cause of its own."""
    root = None if verdict.root is None else findings[verdict.root]
    if root is None or root.rule not in _CARRY_SPIKES:
        return findings
    said = f"It is part of the same trouble: {root.rule} since step {start_of(root)}."
    inside = {i for i in verdict.consequences if findings[i].rule in _SPIKES}
    return tuple(
        replace(finding, cause=said, remedy="It goes when that goes.") if i in inside else finding
        for i, finding in enumerate(findings)
    )


def _edges(signals: Signals, findings: tuple[Finding, ...]) -> dict[int, set[int]]:
    """Direct consequences of each finding; where two explain each other, the first line wins."""
    edges: dict[int, set[int]] = {i: set() for i in range(len(findings))}
    for a in range(len(findings)):
        for b in range(a + 1, len(findings)):
            forward = explains(signals, findings[a], findings[b])
            backward = explains(signals, findings[b], findings[a])
            if forward is not None and (backward is None or forward <= backward):
                edges[a].add(b)
            elif backward is not None:
                edges[b].add(a)
    return edges


def _chains(edges: dict[int, set[int]], count: int) -> list[set[int]]:
    """Everything reachable from each finding, itself included."""
    chains = []
    for start in range(count):
        reached, todo = {start}, [start]
        while todo:
            new = edges[todo.pop()] - reached
            reached |= new
            todo += new
        chains.append(reached)
    return chains


def _root(signals: Signals, findings: tuple[Finding, ...], chains: list[set[int]]) -> int | None:
    """The unexplained finding whose chain holds the worst damage; the earliest of equals."""
    explained = {i for start, chain in enumerate(chains) for i in chain if i != start}
    candidates = [i for i in range(len(findings)) if may_be_root(signals, findings[i])]
    # A circle of explanations has no unexplained member: then any of them may open the story.
    free = [i for i in candidates if i not in explained] or candidates

    def order(i: int) -> tuple[int, int, int]:
        damage = max(findings[j].severity for j in chains[i])
        return (-damage, findings[i].first_step, i)

    worst = min(free, key=order, default=None)
    if worst is None or -order(worst)[0] < Severity.WARNING:
        return None
    return worst


def _rootless(signals: Signals, findings: tuple[Finding, ...]) -> Verdict:
    """Symptoms alone: something is wrong, and the log does not show what is behind it."""
    first = findings[0]
    questions = open_questions(signals, first, findings)
    return Verdict(
        status=Status.UNDECIDED,
        summary=f"{sentence(first.message)} The log does not show what is behind it.",
        unrelated=tuple(range(len(findings))),
        undecided=questions,
        timeline=timeline(signals, first, ()),
        next_command=next_command(signals, first),
    )


def _silent(signals: Signals, outcomes: tuple[RuleOutcome, ...], left_out: int) -> Verdict:
    """No finding at warning or above: healthy, as far as the log can tell."""
    if left_out and not outcomes:
        return Verdict(
            status=Status.INSUFFICIENT_DATA, summary="nothing was judged: no rule was asked"
        )
    rows = len(signals)
    gaps = not_judged(signals)
    if left_out > len(outcomes):  # a rule or two are left out on purpose
        gaps = (f"Rules asked: {len(outcomes):,} of {len(outcomes) + left_out:,}.", *gaps)
    end = raised(signals)
    if end is not None:
        return Verdict(
            status=Status.UNDECIDED,
            summary=end.summary,
            undecided=(*end.undecided, *gaps),
            timeline=end.timeline,
            next_command=command_for_exception(signals),
            cause=end.cause,
            remedy=end.remedy,
        )
    failed = [o.rule for o in outcomes if o.outcome is Outcome.FAILED]
    if failed:
        gaps = (*gaps, f"rules that failed: {', '.join(failed)}")
    if rows < TOO_SHORT or not (signals.has("loss") or signals.has("grad_l2_pre_clip")):
        summary = f"too little to judge: {signals.told_rows(rows)} logged"
        if rows >= TOO_SHORT and (signals.skips_known.any() or signals.has("scaler_scale")):
            summary = (
                f"only the loss scaler could be judged: nothing is wrong with it{_lost(signals)}"
            )
        return Verdict(status=Status.INSUFFICIENT_DATA, summary=summary, undecided=gaps)
    lost = _lost_rows(signals)
    if lost:
        return Verdict(status=Status.UNDECIDED, summary=lost, undecided=gaps)
    return Verdict(status=Status.HEALTHY, summary=_healthy(signals, gaps), undecided=gaps)


def _lost_rows(signals: Signals) -> str:
    """What the log cannot say because its rows could not be written; empty where all were."""
    lost = lost_rows(signals)
    if not lost:
        return ""
    return (
        f"Rows were lost: {lost[0].clause}. The {step_count(len(signals))} that were written show "
        f"no fault; what happened in the others is not known."
    )


def _covered(signals: Signals) -> int:
    """How many steps the log is about."""
    if signals.interval == 1:
        return len(signals)
    return signals.last_step - signals.table.first_of(0) + 1


def _lost(signals: Signals) -> str:
    skips = int(signals.lost_steps.sum())
    return f" ({step_count(skips)} of {_covered(signals):,} skipped)" if skips else ""


def _healthy(signals: Signals, gaps: tuple[str, ...]) -> str:
    skips = int(signals.lost_steps.sum())
    rows = _covered(signals)
    text = "healthy."
    if skips:
        text = f"healthy. {step_count(skips)} of {rows:,} skipped{_whose_skips(signals)}."
    if gaps:
        text = text.replace("healthy.", "healthy as far as this log can tell.", 1)
    return text


def _whose_skips(signals: Signals) -> str:
    """That the loss scaler made the skips, where there is one and it was not for the loss."""
    for_the_loss = bool((signals.skipped & signals.loss_bad).any())
    scaled = signals.precision not in ("fp32", "bf16")
    return ": the loss scaler at work" if scaled and not for_the_loss else ""


def _as_the_log_counts(signals: Signals, root: Finding) -> str:
    """Where that is in the log's own words, where its steps are numbered through; else empty."""
    facts = signals.table.facts
    if facts is None or facts.epoch_count is None:
        return ""
    step = root.first_step
    return f" In the log's own count step {step:,} is {facts.epoch_count.told(step)}."


def _summary(root: Finding, chain: tuple[Finding, ...]) -> str:
    """The answer in one or two sentences: the root, and the worst that came of it."""
    told = {f.rule: f for f in chain if f.severity > Severity.INFO}
    ends = ("dead-run", "nonfinite-step-applied", "loss-scale-collapse", "loss-divergence")
    after = [told[rule].message for rule in ends if rule in told][:1]
    return " ".join(sentence(text) for text in (root.message, *after))

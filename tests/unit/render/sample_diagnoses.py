"""Diagnoses made by hand: what renderers must be able to tell, without any rule running."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from forensics.diagnose.chart_axis import Axis, Layout
from forensics.diagnose.excerpts import Excerpt
from forensics.diagnose.finding import (
    Diagnosis,
    Evidence,
    Finding,
    Outcome,
    RuleOutcome,
    RunFacts,
    Severity,
    Status,
    TimelineEntry,
    Verdict,
)

HOSTILE = "\x1b[31mred\x07\u202e | `x` <b>*_bold_*</b> [l](http://e) \r\n# head \udce9"
"""A name as a log may hold it: escapes, a bell, an override, Markdown, HTML, a broken byte."""


def outcomes(**rules: str) -> tuple[RuleOutcome, ...]:
    """Outcomes by rule: ``clear``, ``fired``, or ``skipped: reason``, ``failed: reason``."""
    made = []
    for name, text in rules.items():
        outcome, _, reason = text.partition(": ")
        made.append(
            RuleOutcome(rule=name.replace("_", "-"), outcome=Outcome(outcome), reason=reason)
        )
    return tuple(made)


def facts(**changes: object) -> RunFacts:
    """Facts of a long fp16 run."""
    values: dict[str, object] = {
        "path": "runs/gpt-7b",
        "steps": 12_480,
        "first_step": 0,
        "last_step": 12_479,
        "source_format": "forensics",
        "precision": "fp16",
        "scaler": True,
        "clip_threshold": 1.0,
        "duration_s": 11_520.0,
    }
    return RunFacts(**{**values, **changes})  # type: ignore[arg-type]


def _around_the_overflow() -> Iterator[Excerpt]:
    """Loss and norm of steps 6,797 to the end: the norm grows until the loss is NaN."""
    grown = np.geomspace(0.6, 2.1, 32)
    for column, values in (("loss", np.linspace(2.6, 2.41, 32)), ("grad_l2_pre_clip", grown)):
        low = np.concatenate((values, np.full(96, np.nan)))
        yield Excerpt(
            column=column,
            unit="step",
            first_step=6_797,
            last_step=12_479,
            low=low,
            high=low,
            bad=np.isnan(low) & (column == "loss"),
            begin=32,
            end=128,
            axis=Axis(Layout.LINEAR),
        )


def forward_overflow() -> Diagnosis:
    """A forward pass that overflows from some step on, and everything that follows."""
    loss = Evidence(signal="loss", steps=(8_216, 8_217, 8_218), values=(2.43, 2.41, math.nan))
    scale = Evidence(
        signal="scaler_scale", steps=(8_217, 8_250, 8_362), values=(65_536.0, 2.0**-17, 2.0**-128)
    )
    findings = (
        Finding(
            rule="nonfinite-loss",
            severity=Severity.CRITICAL,
            message="loss is NaN from step 8,218 on (last finite value 2.41 at 8,217)",
            first_step=8_218,
            last_step=12_479,
            evidence=(loss,),
            cause="The forward pass overflows in fp16: norms grew for 1,300 steps before it.",
            remedy="Find what makes blocks.11.attn grow since 6,900 and resume from before it "
            "(step-6000); in bf16 if the device has it.",
            excerpts=tuple(_around_the_overflow()),
        ),
        Finding(
            rule="dead-run",
            severity=Severity.CRITICAL,
            message="nothing was learned from step 8,218 on (34 % of the run)",
            first_step=8_218,
            last_step=12_479,
            remedy="Stop such a run early: an alarm on skips does.",
        ),
        Finding(
            rule="loss-scale-collapse",
            severity=Severity.ERROR,
            message="loss scale fell from 65,536 to 2^-128 without one growth",
            first_step=8_218,
            last_step=12_479,
            evidence=(scale,),
            remedy="Scaler settings do not help.",
        ),
        Finding(
            rule="learning-rate-fault",
            severity=Severity.WARNING,
            message="the rate moved on 9 skipped steps",
            first_step=400,
            last_step=8_100,
            evidence=(Evidence(signal="lr", steps=(400, 401), values=(3e-4, 2.9e-4)),),
            remedy="Step the scheduler only when the optimizer stepped.",
        ),
        Finding(
            rule="clipping-frequent",
            severity=Severity.INFO,
            message="18 % of steps until 6,900; norm quantiles 50/90/99 %: 0.6, 1.2, 2.4",
            first_step=0,
            last_step=6_900,
            remedy="Nothing to do.",
        ),
    )
    verdict = Verdict(
        status=Status.FAULTY,
        summary="Stalled since step 8,218: the forward pass overflows in every step. Nothing was "
        "learned in the last 34 % of the run.",
        root=0,
        consequences=(1, 2),
        unrelated=(3, 4),
        undecided=("Which operator overflows first: a replay of step 8,218 decides.",),
        timeline=(
            TimelineEntry(
                when="6,900→",
                title="lead-up",
                detail="blocks.11.attn.q.weight: gradient norm ×38 by 8,217; the other 147 "
                "parameters ×1.3",
            ),
            TimelineEntry(
                when="8,217",
                title="last healthy step",
                detail="loss 2.41   norm 2.1 (median 0.6)   scale 65,536   lr 0.0003",
            ),
            TimelineEntry(
                when="8,218→",
                title="nonfinite-loss",
                detail="loss is NaN from step 8,218 on (last finite value 2.41 at 8,217)",
            ),
            TimelineEntry(
                when="8,218→",
                title="dead-run",
                detail="nothing was learned from step 8,218 on (34 % of the run)",
            ),
        ),
        next_command="forensics bisect --ckpt-dir runs/gpt-7b/checkpoints",
    )
    return Diagnosis(
        run=facts(
            ended="interrupted at step 12,480", repairs=("the last line was cut and is dropped",)
        ),
        verdict=verdict,
        findings=findings,
        rules=outcomes(
            nonfinite_loss="fired",
            dead_run="fired",
            loss_scale_collapse="fired",
            learning_rate_fault="fired",
            clipping_frequent="fired",
            norm_overflow="clear",
            gradient_spike="clear",
            activation_overflow_risk="skipped: no activation statistics",
            rank_divergence="skipped: no per-rank logs (one rank only)",
        ),
    )


def healthy() -> Diagnosis:
    """A healthy fp16 run with a recovered spike."""
    return Diagnosis(
        run=facts(path="runs/ok", steps=20_000, last_step=19_999, duration_s=None),
        verdict=Verdict(
            status=Status.HEALTHY,
            summary="healthy. 9 steps of 20,000 skipped: the loss scaler at work.",
        ),
        findings=(
            Finding(
                rule="gradient-spike",
                severity=Severity.INFO,
                message="norm 21 at step 4,100, ×35 its median; back after 3 steps",
                first_step=4_100,
                last_step=4_102,
            ),
        ),
        rules=outcomes(
            gradient_spike="fired",
            nonfinite_loss="clear",
            dead_run="clear",
            rank_divergence="skipped: no per-rank logs (one rank only)",
        ),
    )


def losses_only() -> Diagnosis:
    """A log of losses alone: what could not be judged is said."""
    return Diagnosis(
        run=facts(path="log.csv", precision="", scaler=None, clip_threshold=None, duration_s=None),
        verdict=Verdict(
            status=Status.HEALTHY,
            summary="healthy as far as this log can tell.",
            undecided=("No gradient norms: exploding or clipped gradients could not be judged.",),
        ),
        rules=outcomes(nonfinite_loss="clear", norm_overflow="skipped: no grad_l2_pre_clip column"),
    )


def undecided() -> Diagnosis:
    """Symptoms without a root, many episodes of one rule, and a rule that failed."""
    spikes = tuple(
        Finding(
            rule="clipping-every-step",
            severity=Severity.WARNING,
            message=f"all 300 steps from {step:,} on were clipped",
            first_step=step,
            last_step=step + 299,
            remedy="Check first whether the loss is summed.",
        )
        for step in range(0, 12_000, 1_000)
    )
    others = tuple(
        Finding(
            rule=f"made-up-{number}",
            severity=Severity.INFO,
            message=f"observation {number}",
            first_step=number,
            last_step=number,
        )
        for number in range(14)
    )
    return Diagnosis(
        run=facts(),
        verdict=Verdict(
            status=Status.UNDECIDED,
            summary="Every step is clipped. The log does not show what is behind it.",
            unrelated=tuple(range(len(spikes) + len(others))),
            next_command="forensics rules clipping-every-step",
        ),
        findings=spikes + others,
        rules=outcomes(clipping_every_step="fired", stuck_log="failed: KeyError: 'loss'"),
    )


def hostile() -> Diagnosis:
    """Every text a stranger can set holds something that must not reach a terminal or a page."""
    finding = Finding(
        rule="nonfinite-parameter",
        severity=Severity.CRITICAL,
        message=f"gradient of {HOSTILE} is Inf",
        first_step=0,
        last_step=0,
        subject=HOSTILE,
        evidence=(Evidence(signal=HOSTILE, steps=(0,), values=(-math.inf,), threshold=math.inf),),
        cause=HOSTILE,
        remedy=HOSTILE,
    )
    return Diagnosis(
        run=facts(
            path=f"runs/{HOSTILE}",
            steps=1,
            last_step=0,
            ended=f"raised: {HOSTILE}",
            repairs=(HOSTILE,),
            superseded=(HOSTILE,),
            source_format=HOSTILE,
        ),
        verdict=Verdict(
            status=Status.FAULTY,
            summary=HOSTILE,
            root=0,
            undecided=(HOSTILE,),
            timeline=(TimelineEntry(when="0", title=HOSTILE, detail=HOSTILE),),
            next_command=f"forensics params '{HOSTILE}' ```",
        ),
        findings=(finding,),
        rules=(
            RuleOutcome(rule="stuck-log", outcome=Outcome.SKIPPED, reason=HOSTILE),
            RuleOutcome(rule="dead-run", outcome=Outcome.FAILED, reason=HOSTILE),
        ),
    )


def empty() -> Diagnosis:
    """A log without rows."""
    return Diagnosis(
        run=RunFacts(
            path="steps.csv", steps=0, first_step=None, last_step=None, source_format="forensics"
        ),
        verdict=Verdict(status=Status.INSUFFICIENT_DATA, summary="too little to judge: 0 steps"),
    )


SAMPLES: Mapping[str, Callable[[], Diagnosis]] = {
    "forward-overflow": forward_overflow,
    "healthy": healthy,
    "losses-only": losses_only,
    "undecided": undecided,
    "hostile": hostile,
    "empty": empty,
}

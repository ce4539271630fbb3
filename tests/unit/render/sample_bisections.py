"""Bisections made by hand: one of each kind that a renderer must tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    ChainLink,
    CheckpointVerdict,
    Departure,
    FaultKind,
    Growth,
    Origin,
    Persistence,
    TensorFacts,
    WhatIf,
)

RUN = "runs/gpt-7b"


def _states(*verdicts: str, every: int = 1000, reason: str = "") -> tuple[CheckpointVerdict, ...]:
    return tuple(
        CheckpointVerdict(
            step=i * every,
            verdict=verdict,
            reason=reason if verdict in ("bad", "untestable") else "",
            path=f"step-{i * every:08d}.pt",
        )
        for i, verdict in enumerate(verdicts)
    )


def growth() -> BisectionResult:
    """Attention scores that overflow fp16 after a long growth."""
    return BisectionResult(
        path=RUN,
        status=BisectStatus.LOCATED,
        reason="all states are finite: the log says 8,218",
        first_bad_step=8218,
        root_step=6900,
        origin=Origin(
            kind=FaultKind.GROWTH,
            phase="forward",
            operator="aten.bmm",
            module="blocks.11.attn",
            parameter="blocks.11.attn.q.weight",
            parameters=("blocks.11.attn.q.weight",),
            source_line="model.py:88  scores = q @ k.mT",
            inputs=(
                TensorFacts(
                    dtype="float16",
                    shape=(8, 8, 512, 64),
                    absmax=412.0,
                    nan=0,
                    inf=0,
                    numel=2097152,
                ),
                TensorFacts(
                    dtype="float16",
                    shape=(8, 8, 64, 512),
                    absmax=187.0,
                    nan=0,
                    inf=0,
                    numel=2097152,
                ),
            ),
            output=TensorFacts(
                dtype="float16",
                shape=(8, 8, 512, 512),
                absmax=65472.0,
                nan=0,
                inf=311,
                numel=16777216,
            ),
            chain=(
                ChainLink(phase="forward", what="aten.bmm", name="blocks.11.attn", kind="inf"),
                ChainLink(phase="forward", what="aten._softmax", name="blocks.11.attn", kind="nan"),
                ChainLink(phase="loss", what="loss", kind="nan"),
            ),
            summary="The product of finite inputs passes 65,504, the largest number of fp16.",
        ),
        growth=Growth(
            signal="abs-max of the scores",
            since_step=6900,
            until_step=8217,
            rate=1.004,
            first_value=340.0,
            last_value=65100.0,
            cause="the learning rate reached its peak",
        ),
        samples=(),
        batch_size=8,
        reproduces=True,
        replays=3,
        persistence=Persistence.PERSISTENT,
        faithful_until=8218,
        compared=219,
        replayed_from=8000,
        replayed_until=8218,
        what_if=(
            WhatIf(change="fp32", from_step=8218, until_step=8268, finite=True),
            WhatIf(change="bf16", from_step=8218, until_step=8268, finite=True),
            WhatIf(
                change="loss scale 1",
                from_step=8218,
                until_step=8218,
                finite=False,
                first_bad_step=8218,
                note="not the scaler",
            ),
            WhatIf(
                change="half the learning rate",
                from_step=8000,
                until_step=8391,
                finite=False,
                first_bad_step=8391,
            ),
            WhatIf(
                change="clip at 1",
                from_step=8000,
                until_step=8000,
                finite=None,
                note="the run clips at 1 already",
            ),
        ),
        remedy=(
            "bf16 carries it on (proven for 50 steps) but does not stop the growth.",
            "Resume before 6,900.",
        ),
        checkpoints=_states(*["untested"] * 8, "good", *["untested"] * 4),
        capsule="runs/gpt-7b/capsule-8218",
        next_command="forensics capsule run runs/gpt-7b/capsule-8218",
    )


def bad_sample() -> BisectionResult:
    """One NaN in the data."""
    return BisectionResult(
        path="runs/x",
        status=BisectStatus.LOCATED,
        reason="the log says 30: loss is NaN",
        first_bad_step=30,
        root_step=30,
        origin=Origin(
            kind=FaultKind.NAN,
            phase="input",
            operator="input",
            element="[7, 3]",
            output=TensorFacts(
                dtype="float32",
                shape=(16, 8),
                absmax=2.9,
                nan=1,
                inf=0,
                numel=128,
                name="micro-batch 0",
            ),
            summary="The batch itself holds a NaN.",
        ),
        samples=(7,),
        batch_size=16,
        reproduces=True,
        replays=3,
        persistence=Persistence.TRANSIENT,
        faithful_until=30,
        compared=31,
        replayed_from=0,
        replayed_until=30,
        what_if=(
            WhatIf(
                change="fp32",
                from_step=30,
                until_step=30,
                finite=False,
                first_bad_step=30,
                note="not a precision problem",
            ),
            WhatIf(change="without sample 7", from_step=30, until_step=80, finite=True),
        ),
        remedy=("Drop or mend sample 7 of step 30.",),
        checkpoints=_states("good", "untested", every=20),
    )


def silent() -> BisectionResult:
    """Nothing non-finite anywhere; the clip saw scaled gradients."""
    return BisectionResult(
        path="runs/clip",
        status=BisectStatus.LOCATED,
        reason="nothing in the log or the states is non-finite; what was applied was checked",
        first_bad_step=0,
        root_step=0,
        origin=Origin(
            kind=FaultKind.APPLIED,
            phase="clip",
            operator="clip",
            parameters=("layers.0.weight", "layers.0.bias", "head.weight", "head.bias"),
            source_line="train.py:41  clip_grad_norm_(model.parameters(), 1.0)",
            summary="The clip saw gradients that were still scaled by 65,536: the threshold in "
            "force was 1.5e-5, not 1.",
        ),
        reproduces=True,
        replays=2,
        persistence=Persistence.PERSISTENT,
        faithful_until=0,
        compared=1,
        replayed_from=0,
        replayed_until=0,
        batch_size=16,
        remedy=("Call scaler.unscale_(optimizer) before clip_grad_norm_.",),
        checkpoints=_states("good", "good", every=100),
    )


def bit_flip() -> BisectionResult:
    """A replay that stays clean: something outside the program changed a weight."""
    return BisectionResult(
        path="runs/flip",
        status=BisectStatus.LOCATED,
        reason="the log says 6: loss is NaN",
        first_bad_step=5,
        root_step=5,
        origin=Origin(
            kind=FaultKind.INF,
            phase="outside",
            operator="outside",
            module="body",
            parameter="body.weight",
            parameters=("body.weight",),
            element="[3, 1]",
            summary="The recorded value is 2^127 times the replayed one: one bit of its exponent.",
        ),
        reproduces=False,
        replays=3,
        persistence=Persistence.TRANSIENT,
        faithful_until=4,
        departure=Departure(step=5, column="param_digest", recorded="a1", replayed="b2"),
        compared=7,
        replayed_from=0,
        replayed_until=6,
        remedy=("Resume from step 4; check the machine's memory.",),
        checkpoints=_states("good", every=4),
    )


def healthy() -> BisectionResult:
    """Nothing is wrong."""
    return BisectionResult(
        path="runs/ok",
        status=BisectStatus.HEALTHY,
        reason="nothing non-finite in 20,000 rows and 11 states; 9 skipped steps are the loss "
        "scaler at work; 3 steps were replayed and applied what they should",
        faithful_until=18001,
        compared=3,
        checkpoints=_states(*["good"] * 11, every=2000),
    )


def folder() -> BisectionResult:
    """A folder of saved states, without a recipe."""
    return BisectionResult(
        path="out/checkpoints",
        status=BisectStatus.LOCATED,
        reason="health alone was judged: there is no recipe to replay",
        first_bad_step=None,
        checkpoints=_states(
            "good", "untestable", "bad", "untested", every=500, reason="2 tensors are not finite"
        ),
        bad_tensors=("model.embed.weight", "optimizer.state.0.exp_avg_sq"),
        missing=("no RNG state", "no GradScaler state"),
        notes=("With a recipe, --recipe file.py:name, the step and operator can be found.",),
        next_command="forensics inspect out/checkpoints/step-00001000.pt",
    )


def partial() -> BisectionResult:
    """Interrupted on the way."""
    return BisectionResult(
        path="runs/x",
        status=BisectStatus.PARTIAL,
        reason="stopped at step 5,210 on the way to 5,400",
        faithful_until=5209,
        compared=210,
        replayed_from=5000,
        replayed_until=5209,
        checkpoints=_states("untested", *["good"] * 1, every=5000),
        notes=("Steps 5,000 to 5,209 are sound.",),
    )


def not_bisectable() -> BisectionResult:
    """No state and no recipe."""
    return BisectionResult(
        path="runs/x",
        status=BisectStatus.NOT_BISECTABLE,
        reason="there is no checkpoint to replay from; the first bad row is step 31",
    )


def raised() -> BisectionResult:
    """The step raised; the replay ran on another kind of device."""
    return BisectionResult(
        path="runs/bn",
        status=BisectStatus.LOCATED,
        reason="the run ended with an exception at step 5",
        first_bad_step=5,
        root_step=5,
        origin=Origin(
            kind=FaultKind.EXCEPTION,
            phase="forward",
            operator="F.batch_norm",
            module="bn",
            source_line="net.py:12  return self.bn(x)",
            summary="ValueError: Expected more than 1 value per channel when training",
        ),
        reproduces=True,
        replays=1,
        batch_size=1,
        faithful_until=4,
        compared=5,
        replayed_from=0,
        replayed_until=5,
        tolerance=1e-3,
        departure=Departure(step=3, column="loss", recorded=0.5, replayed=math.nan),
        cross_device=True,
        checkpoints=_states("good"),
        notes=("Recorded on cuda, replayed on cpu: only what reproduces is claimed.",),
    )


def hostile() -> BisectionResult:
    """A stranger's texts everywhere."""
    evil = "\x1b[2J|`<b>\n# x\u202e"
    return BisectionResult(
        path=f"runs/{evil}",
        status=BisectStatus.LOCATED,
        reason=evil,
        first_bad_step=1,
        root_step=1,
        origin=Origin(
            kind=FaultKind.NAN,
            phase=evil,
            operator=evil,
            autograd_node=evil,
            module=evil,
            parameter=evil,
            parameters=(evil,),
            element=evil,
            source_line=evil,
            inputs=(TensorFacts(dtype=evil, shape=(1,), absmax=math.nan, nan=1, inf=0, numel=1),),
            chain=(ChainLink(phase=evil, what=evil, name=evil, kind=evil),),
            summary=evil,
            traceback=(evil,),
        ),
        samples=(0,),
        batch_size=2,
        what_if=(
            WhatIf(
                change=evil, from_step=1, until_step=1, finite=False, first_bad_step=1, note=evil
            ),
        ),
        remedy=(evil,),
        checkpoints=(CheckpointVerdict(step=0, verdict="bad", reason=evil, path=evil),),
        bad_tensors=(evil,),
        missing=(evil,),
        capsule=evil,
        next_command=f"forensics report {evil}",
        notes=(evil,),
        departure=Departure(step=1, column=evil, recorded=evil, replayed=None),
    )


SAMPLES: Mapping[str, Callable[[], BisectionResult]] = {
    "growth": growth,
    "bad-sample": bad_sample,
    "silent": silent,
    "bit-flip": bit_flip,
    "healthy": healthy,
    "folder": folder,
    "partial": partial,
    "not-bisectable": not_bisectable,
    "raised": raised,
    "hostile": hostile,
}

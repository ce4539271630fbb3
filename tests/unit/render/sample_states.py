"""Saved states made by hand: one of each kind that a renderer must tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forensics.diagnose.state_health import BadValue, StateHealth

HOSTILE = "\x1b[2J\x1b]0;own\x07|`<b>*_x_*\u202e\n# head" + "w" * 90


def _state(**changes: Any) -> StateHealth:
    facts: dict[str, Any] = {
        "path": Path("out/ckpt_700.pt"),
        "format": "torch",
        "step": 700,
        "size": 1_234_567_890,
        "tensors": 444,
        "elements": 310_000_000,
        "dtypes": {"float32": 250_000_000, "bfloat16": 60_000_000},
        "bad": (),
        "infinite": (),
        "finite_names": frozenset({"model.embed.weight"}),
        "extremes": {
            "param": {"name": "model.head.bias", "absmax": 12.5},
            "optimizer": {"name": "optimizer.state.3.exp_avg", "absmax": 0.0123},
        },
        "numbers": {"optimizer.param_groups.0.lr": 3e-4, "scaler.scale": 2.0**-20},
    }
    return StateHealth(**{**facts, **changes})


def healthy() -> StateHealth:
    """Nothing is bad, nothing is missing."""
    return _state()


def sick() -> StateHealth:
    """A NaN, an infinite moment, and everything else there is to say."""
    bad = (
        BadValue("model.embed.weight", "param", "embed.weight", 12, 0, 4096, (64, 64), "float32",
                 (3, 17)),
        BadValue("optimizer.state.1.exp_avg_sq", "optimizer", "blocks.11.attn.q.weight", 0, 1,
                 1_048_576, (1024, 1024), "float32", (1023, 0)),
        BadValue("optimizer.param_groups.0.lr", "lr", "", 1, 0, 1),
    )  # fmt: skip
    mask = BadValue("best", "other", "", 0, 1, 1)
    return _state(
        bad=bad,
        infinite=(mask,),
        missing=("the random generators", "the position in the data"),
        risks=("model.bn.running_var is negative in places, as no square can be: its root "
               "is NaN in the next step.",),
        notes=("Objects that only code could rebuild were left as they are: argparse.Namespace.",),
    )  # fmt: skip


def ruined() -> StateHealth:
    """Everything is NaN; nothing finite is left to tell."""
    bad = tuple(
        BadValue(f"layers.{i}.weight", "param", f"layers.{i}.weight", 9, 0, 9, (3, 3), "float16",
                 (0, 0))
        for i in range(40)
    )  # fmt: skip
    return _state(
        path=Path("model.safetensors"),
        format="safetensors",
        step=None,
        size=834,
        tensors=40,
        elements=360,
        dtypes={"float16": 360},
        bad=bad,
        extremes={},
        numbers={},
        missing=("the optimizer's state",),
    )


def hostile() -> StateHealth:
    """Every text wants to do something to the terminal, the width or the page."""
    bad = BadValue(HOSTILE, "param", HOSTILE + "2", 1, 1, 2, (2,), "float32", (0,))
    return _state(
        path=Path("a" + HOSTILE),
        bad=(bad,),
        infinite=(bad,),
        extremes={"param": {"name": HOSTILE, "absmax": 1.0}},
        numbers={HOSTILE: 1.0},
        missing=(HOSTILE,),
        risks=(HOSTILE,),
        notes=(HOSTILE,),
    )


SAMPLES: Mapping[str, Callable[[], StateHealth]] = {
    "healthy": healthy,
    "sick": sick,
    "ruined": ruined,
    "hostile": hostile,
}

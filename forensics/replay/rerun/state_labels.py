"""How a bad tensor of a training's state is called in a replayed step."""

from __future__ import annotations

from forensics.record.health import BadTensor


def label_of(tensor: BadTensor) -> str:
    """As ``ReplayedStep.bad`` names it."""
    key = tensor.name.rpartition(".")[2]
    if tensor.kind == "param":
        return f"param:{tensor.parameter}"
    if tensor.kind == "buffer":
        return f"buffer:{tensor.name.removeprefix('model.')}"
    if tensor.kind == "optimizer":
        return f"optimizer:{tensor.parameter or tensor.name}.{key}"
    if tensor.kind == "ema":
        return f"ema:{tensor.parameter or tensor.name}"
    return {"lr": "lr", "scaler": "scale"}.get(tensor.kind, f"state:{tensor.name}")

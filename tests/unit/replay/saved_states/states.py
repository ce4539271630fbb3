"""Small saved states of every format, made in a folder of the test's own."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forensics.replay.checkpoint_health import examine_state
from forensics.replay.saved_states import StateValue, open_state


def trained(*, bad: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with buffers after one step of Adam; ``bad``: a NaN weight and an infinite moment."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    if bad:
        with torch.no_grad():
            model[2].weight[1, 2] = float("nan")
        optimizer.state[model[0].bias]["exp_avg"][3] = float("inf")
    return model, optimizer


def training_state(step: int = 7, *, bad: bool = False) -> dict[str, Any]:
    """What most loops save."""
    model, optimizer = trained(bad=bad)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 3},
        "step": step,
    }


def write_safetensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Path:
    """The documented format, written by hand: the package need not be installed."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    body = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        span = [len(body), len(body) + len(raw)]
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def write_distributed(folder: Path, state: dict[str, Any]) -> Path:
    """A folder of torch.distributed.checkpoint, saved by one process."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder)
    return folder


def write_sharded(folder: Path, *, safe: bool = True, bad: bool = False, step: int = 500) -> Path:
    """A Hugging Face ``checkpoint-N`` folder of two shards with everything beside it."""
    folder.mkdir(parents=True)
    model, optimizer = trained(bad=bad)
    weights = {name: v.clone() for name, v in model.state_dict().items() if v.is_floating_point()}
    names = list(weights)
    shards = {1: names[:3], 2: names[3:]}
    index = {}
    for number, held in shards.items():
        part = {name: weights[name] for name in held}
        stem = "model" if safe else "pytorch_model"
        file = folder / f"{stem}-0000{number}-of-00002.{'safetensors' if safe else 'bin'}"
        if safe:
            write_safetensors(file, part)
        else:
            torch.save(part, file)
        index.update(dict.fromkeys(held, file.name))
    stem = "model.safetensors" if safe else "pytorch_model.bin"
    (folder / f"{stem}.index.json").write_text(json.dumps({"weight_map": index}))
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save({"last_epoch": step, "_last_lr": [1e-3]}, folder / "scheduler.pt")
    torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def values(path: Path) -> dict[str, StateValue]:
    """The values of a saved state by name."""
    return {value.name: value for value in open_state(path).values()}


def bad_names(path: Path) -> dict[str, tuple[str, str, int, int]]:
    """Kind, parameter, NaN and Inf counts of what is bad in a state, by name."""
    return {b.name: (b.kind, b.parameter, b.nan, b.inf) for b in examine_state(path).bad}

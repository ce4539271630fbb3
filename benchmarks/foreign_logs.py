"""Logs of any length as other programs write them, a generator for each format that is read."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from itertools import count, islice

Text = Callable[[int], str]
"""What a program writes at its n-th record, counted from 1."""

_CLOCK = "2024-03-01 10:00:00,123"


def _loss(n: int) -> str:
    return f"{2 + n % 9973 / 10000:.4f}"


def _rate(n: int) -> str:
    return f"{1 + n % 89 / 100:.2f}e-04"


def _norm(n: int) -> str:
    return f"{0.5 + n % 509 / 1000:.3f}"


def _state(n: int) -> str:
    record = {"epoch": n / 1000, "grad_norm": float(_norm(n)), "learning_rate": float(_rate(n))}
    return json.dumps({**record, "loss": float(_loss(n)), "step": 10 * n}, indent=1) + ",\n"


def _printed(n: int) -> str:
    bars = "".join(f"\r {n % 100:3}%|####6     | {k}/900000000 [14:17<3:32:25,  1.15s/it]"
                   for k in range(10 * n - 9, 10 * n + 1))  # fmt: skip
    values = f"{{'loss': {_loss(n)}, 'grad_norm': {_norm(n)}, 'learning_rate': {_rate(n)}"
    return f"{bars}{'':37}\r{values}, 'epoch': {n / 1000}}}\n"


def _llama_factory(n: int) -> str:
    record = {"current_steps": 10 * n, "total_steps": 10**9, "loss": float(_loss(n))}
    record |= {"lr": float(_rate(n)), "epoch": n / 1e4, "percentage": 0.23}
    return json.dumps({**record, "elapsed_time": "0:32:48", "remaining_time": "9:21:39"}) + "\n"


def _history(n: int) -> str:
    record = {"_step": n, "_runtime": 2.0 * n, "_timestamp": 1.7e9 + n, "train/loss": _loss(n)}
    record |= {"train/global_step": 10 * n, "train/grad_norm": float(_norm(n))}
    return json.dumps({**record, "train/loss": float(_loss(n))}) + "\n"


def _megatron(n: int) -> str:
    return (
        f" iteration {n:8}/1000000000 | consumed samples: {n * 8:12} | elapsed time per iteration "
        f"(ms): 512.3 | learning rate: {_rate(n)} | global batch size:     8 | lm loss: {_loss(n)}"
        f"E+00 | loss scale: 65536.0 | grad norm: {_norm(n)} | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |\n"
    )


def _overflow(n: int) -> str:
    return (
        f"[{_CLOCK}] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 "
        f"Skipping step. Attempted loss scale: {65536 >> n % 9}, reducing to {32768 >> n % 9}\n"
    )


def _engine(n: int) -> str:
    return (
        f"[{_CLOCK}] [INFO] [logging.py:96:log_dist] [Rank 0] step={10 * n}, skipped={n // 50}, "
        f"lr=[{_rate(n)}, {_rate(n)}], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
        f"[{_CLOCK}] [INFO] [timer.py:199:stop] 0/{n}, RunningAvgSamplesPerSec=32.1, "
        "CurrSamplesPerSec=32.3, MemAllocated=2.1GB, MaxMemAllocated=7.3GB\n"
    )


def _with_notes(n: int) -> str:
    return (
        (_overflow(n) if n % 50 == 0 else "") + _megatron(n) + (_engine(n) if n % 10 == 0 else "")
    )


def _apex(n: int) -> str:
    note = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to"
    return (f"{note} {2.0 ** (16 - n // 200 % 9)}\n" if n % 200 == 0 else "") + (
        f"Train: [3/300][{n}/900000000]  eta 0:10:00 {n}/900000000 [12:01<3:04]\n"
    )


def _fairseq(n: int) -> str:
    return (
        f"2023-06-13 17:36:27 | INFO | train_inner | epoch 002: {n:6} / 282 loss={_loss(n)}, "
        f"nll_loss=1.2, ppl=8.8, wps=133152, ups=2.2, wpb=60468, num_updates={100 * n}, "
        f"lr={_rate(n)}, gnorm={_norm(n)}, clip=0, loss_scale=128, train_wall=45, wall={n}\n"
    )


def _torchtitan(n: int) -> str:
    return (
        f"[titan] {_CLOCK} - root - INFO - step: {n:2}  loss: {_loss(n):>8}  grad_norm: "
        f"{_norm(n)}  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%\n"
    )


def _olmo(n: int) -> str:
    return (
        f"2025-12-27 22:00:40.126\thost:0\tolmo.train:990\tINFO\t[step={n}/1000000000,epoch=0]\n"
        f"    optim/total_grad_norm={_norm(n)}\n    optim/learning_rate_group0={_rate(n)}\n"
        f"    train/CrossEntropyLoss={_loss(n)}\n    throughput/total_tokens={83461 * n:,}\n"
    )


def _composer(n: int) -> str:
    return (
        f"[batch={n}/1000000000]:\n\t Train time/batch: {n - 1}\n\t Train time/token: {83461 * n}\n"
        f"\t Train loss/train/total: {_loss(n)}\n\t Train l2_norm/grad/global: {_norm(n)}\n"
        f"\t Train lr-DecoupledAdamW/group0: {_rate(n)}\n\t Train throughput/mfu: 0.41\n"
    )


def _insightface(n: int) -> str:
    return (
        f"Training: {_CLOCK}-Speed 1234.5 samples/sec   Loss {_loss(n)}   LearningRate 0.1000   "
        f"Epoch: 0   Global Step: {10 * n}   Fp16 Grad Scale: 65536   Required: 20 hours\n"
    )


def _espnet(n: int) -> str:
    return (
        f"[host] {_CLOCK} (trainer:762) INFO: 1epoch:train:{10 * n - 9}-{10 * n}batch: "
        f"iter_time=0.1, loss_ctc=80.0, loss_att=95.1, acc=0.1, loss={_loss(n)}, backward_time=0.2,"
        f" grad_norm={_norm(n)}, clip=100.000, loss_scale=65536.0, optim_step_time=0.05, "
        f"optim0_lr0={_rate(n)}, train_time=1.2\n"
    )


def _icefall(n: int) -> str:
    return (
        f"{_CLOCK} INFO [train.py:812] (0/8) Epoch 1, batch {50 * n}, loss[loss={_loss(n)}, "
        "simple_loss=7.1, pruned_loss=6.9, over 4000.00 frames. ], tot_loss[loss=7.3, simple_loss="
        f"7.1, over 80000.00 frames. ], batch size: 50, lr: {_rate(n)}, grad_scale: 1.0\n"
    )


def _openmmlab(n: int) -> str:
    return (
        f"{_CLOCK} - mmdet - INFO - Epoch [1][{10 * n}/1000000000]\tlr: {_rate(n)}, eta: 0:21:22, "
        f"time: 0.830, memory: 3953, loss_cls: 0.5, loss: {_loss(n)}, grad_norm: {_norm(n)}\n"
    )


def _openmmlab_json(n: int) -> str:
    record = {"mode": "train", "epoch": 1, "iter": 10 * n, "lr": float(_rate(n)), "memory": 3953}
    record |= {"data_time": 0.05, "loss": float(_loss(n)), "grad_norm": float(_norm(n))}
    return json.dumps({**record, "time": 0.83}) + "\n"


def _metric_logger(n: int) -> str:
    return (
        f"Epoch: [0]  [{10 * n}/1000000000]  eta: 0:00:09  lr: 0.001000  loss: {_loss(n)} (3.1000)"
        f"  grad_norm: {_norm(n)} (0.6000)  time: 0.4944  data: 0.0001  max mem: 1915\n"
    )


def _metric_logger_json(n: int) -> str:
    record = {"train_lr": float(_rate(n)), "train_loss": float(_loss(n)), "test_loss": 2.0}
    return json.dumps({**record, "test_acc1": 71.3, "epoch": n, "n_parameters": 86567656}) + "\n"


def _nemo(n: int) -> str:
    return (
        f"Training epoch 0, iteration {n}/1000000000 | lr: {_rate(n)} | global_batch_size: 1 | "
        f"global_step: {n} | reduced_train_loss: {_loss(n)} | val_loss: {4 - n // 500 % 9 / 10}\n"
    )


_TEXTS: dict[str, tuple[str, Text]] = {
    "hf-trainer-state": ('{"max_steps": 1000000000,\n"log_history": [\n', _state),
    "hf-stdout": ("", _printed),
    "llama-factory": ("", _llama_factory),
    "lightning-csv": (
        "epoch,lr-Adam,step,train_loss,val_loss\n",
        lambda n: f"0,,{10 * n},{_loss(n)},\n" + (f"0,{_rate(n)},{10 * n},,\n"),
    ),
    "ultralytics-csv": (
        "epoch,train/box_loss,train/cls_loss,metrics/mAP50(B),val/box_loss,val/cls_loss,lr/pg0\n",
        lambda n: f"{n},{_loss(n)},0.5,0.7,1.5,2.5,{_rate(n)}\n",
    ),
    "keras-csv": ("epoch,accuracy,loss,val_loss\n", lambda n: f"{n},0.5,{_loss(n)},2.0\n"),
    "wandb-csv": (
        '"Step","sky-7 - train/loss","sky-7 - train/loss__MIN","sky-7 - train/loss__MAX"\n',
        lambda n: f'"{10 * n}","{_loss(n)}","{_loss(n)}","{_loss(n)}"\n',
    ),
    "wandb-history": ("", _history),
    "megatron-lm": ("", _megatron),
    "megatron-deepspeed": ("DeepSpeed info: version=0.9.2\n", _with_notes),
    "fairseq": ("", _fairseq),
    "torchtitan": ("", _torchtitan),
    "olmo": ("", _olmo),
    "nanogpt": (
        "step 0: train loss 10.9, val loss 10.8\n",
        lambda n: f"iter {n}: loss {_loss(n)}, time 12.31ms, mfu 41.02%\n",
    ),
    "llm-c": (
        "s:0 tel:11.0092\n",
        lambda n: f"s:{n} trl:{_loss(n)} lr:0.000{n % 300:03} norm:{_norm(n)}\n",
    ),
    "step-table": (
        "",
        lambda n: (
            f"step {n:4}/1000000000 | loss {_loss(n)} (+0.12z)| norm {_norm(n)} (-0.31z)| "
            f"lr {_rate(n)} | 300.1 ms | 45.0% bf16 MFU | 100000 tok/s\n"
        ),
    ),
    "modded-nanogpt": (
        "",
        lambda n: f"step:{n}/1000000000 train_loss:{_loss(n)} train_time:{n}ms step_avg:97.31ms\n",
    ),
    "composer": ("", _composer),
    "insightface": ("", _insightface),
    "espnet": ("", _espnet),
    "icefall": ("", _icefall),
    "openmmlab-text": ("Environment info:\n", _openmmlab),
    "openmmlab-json": ('{"env_info": "Python: 3.11", "seed": 3}\n', _openmmlab_json),
    "metric-logger-text": ("", _metric_logger),
    "metric-logger-json": ("", _metric_logger_json),
    "nemo": ("", _nemo),
    "kohya": (
        "",
        lambda n: (
            f"\rsteps:  {n % 100}%|#   | {n}/1000000000 [00:30<36:53,  3.02s/it, avr_loss="
            f"{_loss(n)}]"
        ),
    ),
    "deepspeed": ("", lambda n: (_overflow(n) if n % 5 == 0 else "") + _engine(n)),
    "apex": ("", _apex),
    "jsonl": ("", lambda n: f'{{"step": {n}, "loss": {_loss(n)}, "lr": {_rate(n)}}}\n'),
    "csv": (
        "iteration,train/loss,grad_norm,learning_rate\n",
        lambda n: f"{n},{_loss(n)},{_norm(n)},{_rate(n)}\n",
    ),
    "print-lines": ("", lambda n: f"step {n} loss {_loss(n)} lr {_rate(n)} grad_norm {_norm(n)}\n"),
}

EVENTS = "tensorboard"
NAMES = (*_TEXTS, EVENTS)
"""Every format, as ``--format-in`` calls it."""


def parts(name: str) -> Iterator[bytes]:
    """A log of a format, part by part, without end."""
    if name == EVENTS:
        yield from _events()
        return
    header, text = _TEXTS[name]
    yield header.encode()
    numbers = count(1)
    while True:
        yield "".join(map(text, islice(numbers, 2000))).encode()


def _events() -> Iterator[bytes]:
    """Event files are records with checksums, which the package's own functions make."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import masked_crc32c

    def framed(event: Event) -> bytes:
        data: bytes = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        check = struct.pack("<I", masked_crc32c(length))
        return length + check + data + struct.pack("<I", masked_crc32c(data))

    yield framed(Event(wall_time=1.7e9, file_version="brain.Event:2"))
    for n in count(1):
        for tag, text in (("train/loss", _loss(n)), ("train/grad_norm", _norm(n))):
            event = Event(wall_time=1.7e9 + n, step=n)
            event.summary.value.add(tag=tag, simple_value=float(text))
            yield framed(event)

"""Small logs of lines in shapes of our own, as trainers print them."""

from __future__ import annotations

STAMP = "[2024-03-01 10:00:00,123] [INFO]"


def megatron(
    step: int,
    *,
    loss: str = "2.5E+00",
    norm: str = "0.750",
    scale: str = "65536.0",
    skipped: int = 0,
    nans: int = 0,
    lr: str = "1.000E-04",
    total: int = 100,
) -> str:
    """A record as Megatron-LM prints it; without a loss where it is empty."""
    cells = [
        f" iteration {step:8}/{total:8} | consumed samples: {step * 8:12}",
        f"elapsed time per iteration (ms): 512.3 | learning rate: {lr}",
        "global batch size:     8",
        *([f"lm loss: {loss}"] if loss else []),
        f"loss scale: {scale}",
        *([f"grad norm: {norm}"] if norm else []),
        f"number of skipped iterations: {skipped:3}",
        f"number of nan iterations: {nans:3} |",
    ]
    return " | ".join(cells) + "\n"


def overflow(was: str, now: str = "", rank: int = 0) -> str:
    """DeepSpeed's note; without a new scale it is held by hysteresis."""
    what = f"reducing to {now}" if now else "but hysteresis is 2. Reducing hysteresis to 1"
    return (
        f"{STAMP} [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank {rank} "
        f"Skipping step. Attempted loss scale: {was}, {what}\n"
    )


def engine(step: int, skipped: int, lr: str = "1e-05") -> str:
    """DeepSpeed's counters."""
    return (
        f"{STAMP} [logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, "
        f"lr=[{lr}, {lr}], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
    )


def fairseq_text(step: int, *, loss: str = "3.1", scale: str = "128", norm: str = "0.5") -> str:
    return (
        f"2023-06-13 17:36:27 | INFO | train_inner | epoch 002: {step:6} / 282 loss={loss}, "
        f"nll_loss=1.2, ppl=8.8, wps=133152, ups=2.2, wpb=60468, num_updates={step}, "
        f"lr=0.0001, gnorm={norm}, clip=0, loss_scale={scale}, train_wall=45, wall=0\n"
    )


def fairseq_object(step: int, *, loss: str = "3.1", scale: str = "128") -> str:
    return (
        '2021-03-08 12:31:36 | INFO | train_inner | {"epoch": 1, "update": 0.1, '
        f'"loss": "{loss}", "ppl": "9", "num_updates": "{step}", "lr": "2e-05", '
        f'"gnorm": "0.5", "loss_scale": "{scale}", "wall": "105"}}\n'
    )


def fairseq_epoch(step: int, *, epoch: int = 1, scale: str = "128.000") -> str:
    return (
        f"| epoch {epoch:03} | loss 6.343 | nll_loss 4.984 | ppl 31.65 | wps 164346 | "
        f"num_updates {step} | lr 0.000626 | gnorm 0.390 | clip 0% | loss_scale {scale} | "
        "wall 23080\n"
    )


def torchtitan(step: int, *, loss: str = "7.62585", norm: str = "26.6250") -> str:
    return (
        f"[titan] 2026-02-24 19:46:17,508 - root - INFO - step: {step:2}  loss: {loss:>8}  "
        f"grad_norm: {norm}  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%\n"
    )


def olmo(step: int, *, loss: str = "10.32", norm: str = "1.25") -> str:
    return (
        f"2025-12-27 22:00:40.126\thost:0\tolmo.train:990\tINFO\t[step={step}/10000,epoch=0]\n"
        f"    optim/total_grad_norm={norm}\n    optim/learning_rate_group0=0.0003\n"
        f"    train/CrossEntropyLoss={loss}\n    throughput/total_tokens={83461 * step:,}\n"
    )


def composer(step: int, *, loss: str = "9.1") -> str:
    return (
        f"[batch={step}/4800]:\n\t Train time/batch: {step - 1}\n"
        f"\t Train loss/train/total: {loss}\n\t Train l2_norm/grad/global: 1.5\n"
        "\t Train lr-DecoupledAdamW/group0: 1e-4\n"
    )


def espnet(first: int, last: int, *, epoch: int = 1, loss: str = "90.1") -> str:
    return (
        f"[host] 2023-01-01 12:00:00,123 (trainer:762) INFO: {epoch}epoch:train:{first}-{last}"
        f"batch: iter_time=0.1, loss_ctc=80.0, loss_att=95.1, acc=0.1, loss={loss}, "
        "backward_time=0.2, grad_norm=50.2, clip=100.000, loss_scale=65536.0, "
        "optim_step_time=0.05, optim0_lr0=1.5e-06, train_time=1.2\n"
    )


def icefall(batch: int, *, epoch: int = 1, loss: str = "7.2", rank: int = 0) -> str:
    return (
        f"2022-01-01 10:00:00,123 INFO [train.py:812] ({rank}/8) Epoch {epoch}, batch {batch}, "
        f"loss[loss={loss}, simple_loss=7.1, pruned_loss=6.9, over 4000.00 frames. ], "
        "tot_loss[loss=7.3, simple_loss=7.1, over 80000.00 frames. ], batch size: 50, "
        "lr: 3.00e-03, grad_scale: 1.0\n"
    )


def insightface(step: int, *, loss: str = "42.1", scale: str = "65536") -> str:
    return (
        "Training: 2021-05-01 10:00:00,123-Speed 1234.5 samples/sec   "
        f"Loss {loss}   LearningRate 0.1000   Epoch: 0   Global Step: {step}   "
        f"Fp16 Grad Scale: {scale}   Required: 20 hours\n"
    )


def verl(step: int, *, loss: str = "-0.012", norm: str = "0.231", rate: str = "1e-06") -> str:
    return (
        f"(TaskRunner pid=41) step:{step} - global_seqlen/mean:2934.750 - actor/entropy:0.442 - "
        f"actor/pg_loss:{loss} - actor/grad_norm:{norm} - actor/lr:{rate} - "
        f"critic/rewards/mean:{step / 100:.3f} - timing_s/step:50.1\n"
    )


def box(cells: dict[str, str]) -> str:
    """A box as OpenAI Baselines' logger prints it; a key that ends in a slash is a section."""
    names = {k: k if "/" in k else f"   {k}" for k in cells} if "train/" in cells else {}
    wide = max(len(names.get(k, k)) for k in cells)
    edge = "-" * (wide + max(map(len, cells.values())) + 7) + "\n"
    rows = "".join(f"| {names.get(k, k):{wide}} | {v:8} |\n" for k, v in cells.items())
    return edge + rows + edge


def diffusion(step: int, *, loss: str = "0.0134", power: float = 20.0) -> str:
    """A box of guided-diffusion, whose numbers have three digits."""
    cells = {"grad_norm": "0.0782", "lg_loss_scale": f"{power:.3g}", "loss": loss}
    return box(cells | {"loss_q0": "0.0353", "samples": "8.07e+04", "step": f"{step:.3g}"})


def darknet(step: int, *, loss: str = "731.25") -> str:
    return (
        f" {step}: {loss}, 745.9 avg loss, 0.001000 rate, 5.12 seconds, {64 * step} images\n"
        "Loaded: 0.000041 seconds\n"
    )


def opennmt(step: int, *, loss: str = "7.31") -> str:
    return (
        f"[2024-01-01 10:00:00,000 INFO] Step {step}/100000; acc:   5.30; ppl: 1495.18; "
        f"xent: {loss}; lr: 0.00012; 2511/2204 tok/s;     31 sec\n"
    )


def marian(step: int, *, loss: str = "9.31337643") -> str:
    return (
        f"[2024-01-01 10:00:00] Ep. 1 : Up. {step} : Sen. {61392 + step:,} : Cost {loss} * "
        "1,203,333 after 2,406,666 : Time 92.34s : 13031.47 words/s : gNorm 1.2345 : "
        "L.r. 3.0000e-05\n"
    )


def yolo(epoch: int, *, losses: str = "1.081     0.4706      1.084", done: str = "16/16") -> str:
    """The console of an epoch: its header, a state of its bar, and the validation."""
    return (
        "\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        f"\r     {epoch:2}/30      6.73G      {losses}         10        640:  50%|###   | {done}"
        "\n                 Class     Images  Instances      Box(P          R      mAP50\n"
        "                   all        722       1444      0.989       0.99      0.993\n"
    )


SAMPLES = {
    "megatron-lm": "".join(megatron(step) for step in range(1, 13)),
    "megatron-deepspeed": "".join(
        overflow("65536", "32768") * (step == 5) + megatron(step) + engine(step, int(step >= 5))
        for step in range(1, 13)
    ),
    "deepspeed": overflow("65536", "32768")
    + "".join(engine(10 * n, 1) for n in range(1, 7))
    + overflow("32768", "16384")
    + "".join(engine(10 * n, 2) for n in range(7, 13)),
    "apex": "".join(
        f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {2.0**n}\n"
        for n in range(15, 3, -1)
    ),
    "fairseq": "".join(fairseq_text(100 * n) for n in range(1, 13)),
    "torchtitan": "".join(torchtitan(step) for step in range(1, 13)),
    "olmo": "".join(olmo(10 * n) for n in range(1, 13)),
    "nanogpt": "step 0: train loss 10.9, val loss 10.8\n"
    + "".join(f"iter {n}: loss {4 - n / 10:.4f}, time 12.31ms, mfu -100.00%\n" for n in range(12)),
    "llm-c": "s:0 tel:11.0092\n"
    + "".join(f"s:{n} trl:{11 - n / 10:.4f} lr:0.000001 norm:15.37\n" for n in range(12)),
    "step-table": "".join(
        f"step {n:4}/100 | loss {11 - n / 10:.6f} (+nanz)| norm 15.2 (+nanz)| lr 1.00e-06 "
        "| 300.1 ms | 45.0% bf16 MFU | 100000 tok/s\n"
        for n in range(1, 13)
    ),
    "modded-nanogpt": "".join(
        f"step:{n}/6000 train_loss:{11 - n / 10:.4f} train_time:24179ms step_avg:nanms\n"
        for n in range(1, 13)
    ),
    "composer": "".join(composer(n) for n in range(1, 13)),
    "espnet": "".join(espnet(100 * n - 99, 100 * n) for n in range(1, 13)),
    "icefall": "".join(icefall(50 * n) for n in range(12)),
    "insightface": "".join(insightface(50 * n) for n in range(1, 13)),
    "ultralytics-text": "".join(yolo(n) for n in range(1, 13)),
    "verl": "".join(verl(n) for n in range(1, 13)),
    "boxed-table": "".join(diffusion(10 * n) for n in range(12)),
    "console-table": "epoch     train_loss  valid_loss  accuracy  time    \n"
    + "".join(f"{n:<10}{3 - n / 10:.6f}    2.812345    0.512345  00:12     \n" for n in range(12)),
    "darknet": "".join(darknet(n) for n in range(1, 13)),
    "opennmt": "".join(opennmt(50 * n) for n in range(1, 13)),
    "marian": "".join(marian(500 * n) for n in range(1, 13)),
}
"""By the importer's name."""

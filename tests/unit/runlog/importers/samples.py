"""The smallest log of each format, in shapes of our own: what the fuzz tests start from."""

from __future__ import annotations

import json

from tests.unit.runlog.importers.line_logs import SAMPLES as LINES


def hf_state(rows: int = 12) -> str:
    history = [
        {"epoch": i / 10, "grad_norm": 1.5, "learning_rate": 1e-5 * i, "loss": 3.0 - i / 10}
        | {"step": 10 * i}
        for i in range(1, rows + 1)
    ]
    history.append({"epoch": 1.2, "eval_loss": 2.0, "eval_runtime": 3.0, "step": 10 * rows})
    return json.dumps(
        {"best_metric": None, "log_history": history, "max_steps": 10 * rows}, indent=1
    )


def hf_printed(rows: int = 12) -> str:
    parts = ["logging_steps=5,\n"]
    for i in range(1, rows + 1):
        parts.append(f"\r {i:3}%|##   | {5 * i}/60 [00:0{i % 10}<01:00, 1.0s/it]")
        parts.append(
            f"      {{'loss': {3 - i / 10}, 'learning_rate': {i}e-05, 'epoch': {i / 9}}}\n"
        )
    return "".join(parts)


def lines_of(records: list[dict[str, object]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


FILES = {"tensorboard-scalar": "run-1-tag-train_loss.csv", "mlflow": "loss"}
"""Names of files that say what is in them."""

SAMPLES: dict[str, str] = {
    **LINES,
    "mlflow": "".join(f"{1690000000000 + n} {3 - n / 10} {10 * n}\n" for n in range(12)),
    "hf-trainer-state": hf_state(),
    "hf-stdout": hf_printed(),
    "ms-swift": lines_of(
        [
            {"loss": 3 - i / 10, "grad_norm": 1.5, "learning_rate": 1e-5, "epoch": i / 10}
            | {"global_step/max_steps": f"{5 * i}/60", "percentage": "8%"}
            for i in range(1, 13)
        ]
    ),
    "llama-factory": lines_of(
        [
            {"current_steps": 5 * i, "total_steps": 60, "loss": 2.5, "lr": 1e-5, "epoch": 0.1 * i}
            for i in range(1, 13)
        ]
    ),
    "hf-history-csv": "loss,grad_norm,learning_rate,epoch,step,eval_loss,eval_runtime,train_loss\n"
    + "".join(f"{3 - i / 10},1.5,{i}e-05,{i / 10},{10 * i},,,\n" for i in range(1, 13))
    + ",,,1.2,120,2.0,3.5,\n,,,1.2,120,,,2.25\n",
    "hf-model-card": "# a-model\n\n### Training results\n\n"
    "| Training Loss | Epoch | Step | Validation Loss | Wer  |\n|:---:|:---:|:---:|:---:|:---:|\n"
    + "| No log        | 0.5   | 50   | 3.5             | 0.9  |\n"
    + "".join(
        f"| {3 - i / 10} | {i}.0 | {100 * i} | {3.5 - i / 10} | 0.5 |\n" for i in range(1, 12)
    )
    + "\n### Framework versions\n\n- Transformers 4.40\n",
    "json-in-lines": "Loading 3 shards\n"
    + "".join(
        f'2026-01-02 03:04:{i:02} INFO {{"step": {i}, "loss": {3 - i / 10}, "lr": 1e-05}}\n'
        for i in range(12)
    ),
    "json-history": json.dumps(
        {
            "loss": [3 - i / 10 for i in range(12)],
            "accuracy": [i / 20 for i in range(12)],
            "val_loss": [3.5 - i / 10 for i in range(12)],
        },
        indent=2,
    ),
    "tensorboard-scalar": "Wall time,Step,Value\n"
    + "".join(f"170000000{i}.5,{10 * i},{3 - i / 10}\n" for i in range(10)),
    "lightning-csv": "epoch,lr-Adam,step,train_loss,val_loss\n"
    + "".join(f"0,,{10 * i + 9},{3 - i / 10},\n0,0.001,{10 * i + 9},,\n" for i in range(12))
    + "0,,119,,2.5\n",
    "ultralytics-csv": "  epoch,  train/box_loss,  train/cls_loss,  metrics/mAP50(B),"
    "  val/box_loss,  val/cls_loss,  lr/pg0,  lr/pg1\n"
    + "".join(f"   {i},   1.{i},   2.{i},   0.5,   1.5,   2.5,  0.01,  0.02\n" for i in range(12)),
    "keras-csv": "epoch,accuracy,loss,val_loss\n"
    + "".join(f"{i},0.5,{2 - i / 10},2.0\n" for i in range(12)),
    "wandb-csv": '"Step","tidy-sky-7 - train/loss","tidy-sky-7 - train/loss__MIN",'
    '"tidy-sky-7 - train/loss__MAX"\n'
    + "".join(f'"{10 * i}","{3 - i / 10}","{3 - i / 10}","{3 - i / 10}"\n' for i in range(12)),
    "wandb-history": lines_of(
        [
            {"_step": i, "_runtime": i * 2.0, "_timestamp": 1.7e9 + i, "train/loss": 3 - i / 10}
            | {"train/global_step": 10 * i, "train/grad_norm": "NaN" if i == 5 else 1.0}
            for i in range(12)
        ]
    ),
    "openmmlab-text": "Environment info:\nPyTorch: 2.1\n"
    + "".join(
        f"2026-01-02 03:04:05,678 - mmdet - INFO - Epoch [{e}][{i}/30]\tlr: 2.000e-03, "
        f"eta: 0:21:22, time: 0.830, memory: 3953, loss_cls: 0.5, loss: {3 - e / 10}, "
        f"grad_norm: 4.25\n"
        for e in (1, 2, 3)
        for i in (10, 20, 30)
    ),
    "openmmlab-json": '{"env_info": "Python: 3.11", "seed": 3}\n'
    + lines_of(
        [
            {"mode": "train", "epoch": e, "iter": i, "lr": 0.002, "memory": 395, "loss": 3 - e / 10}
            for e in (1, 2, 3)
            for i in (10, 20, 30)
        ]
        + [{"mode": "val", "epoch": 3, "iter": 13, "lr": 0.002, "bbox_mAP": 0.25}]
    ),
    "metric-logger-text": "".join(
        f"Epoch: [{e}]  [{i:4}/30]  eta: 0:00:09  lr: 0.001000  loss: {3 - e / 10:.4f} (3.1000)  "
        "grad_norm: 0.5000 (0.6000)  time: 0.4944  data: 0.0001  max mem: 1915\n"
        for e in (0, 1)
        for i in (0, 10, 20, 29)
    ),
    "metric-logger-json": lines_of(
        [{"train_lr": 1e-4, "train_loss": 2 - e / 20, "epoch": e} for e in range(12)]
    ),
    "nemo": "".join(
        f"Training epoch 0, iteration {i}/149 | lr: 3e-05 | global_batch_size: 1 | "
        f"global_step: {i} | reduced_train_loss: {3 - i / 20} | val_loss: {4 - i // 6 / 10}\n"
        for i in range(12)
    ),
    "print-lines": "".join(f"step {i} loss {3 - i / 20:.3f} lr 0.001\n" for i in range(12)),
    "kohya": "".join(
        f"\rsteps:  {i}%|#   | {i}/744 [00:30<36:53,  3.02s/it, avr_loss={1 / (i + 9):.4f}]"
        for i in range(1, 13)
    ),
    "torchtitan": "".join(
        f"[titan] 2026-01-02 03:04:05,678 - root - INFO - step: {i:2}  loss:  {3 - i / 20:.5f}  "
        f"grad_norm: 1.2500  memory: 10.00GiB(12.51%)  tps: 10,050  mfu: 13.99%\n"
        for i in range(1, 13)
    ),
    "olmo": "".join(
        f"2026-01-02 03:04:05.678\thost:0\tolmo.train:990\tINFO\t[step={i}/2,500,epoch=0]\n"
        f"    optim/total_grad_norm=1.25\n    train/CrossEntropyLoss={3 - i / 20}\n"
        f"    throughput/device/tokens_per_second=83,461\n"
        for i in range(1, 13)
    ),
    "nanogpt": "step 0: train loss 10.9, val loss 10.8\n"
    + "".join(f"iter {i}: loss {3 - i / 20}, time 12.3ms, mfu -100.00%\n" for i in range(12)),
    "llm-c": "s:0 tel:11.0092\n"
    + "".join(f"s:{i} trl:{3 - i / 20} lr:0.000{i:03} norm:1.25\n" for i in range(12)),
    "modded-nanogpt": "step:0/60 val_loss:11.0 train_time:3ms step_avg:nanms\n"
    + "".join(
        f"step:{i}/60 train_loss:{3 - i / 20} train_time:{i}ms step_avg:nanms\n"
        for i in range(1, 12)
    ),
    "composer": "".join(
        f"[batch={i + 1}/48]:\n\t Train time/batch: {i}\n\t Train loss/train/total: {3 - i / 20}\n"
        f"\t Train lr-DecoupledAdamW/group0: 0.0001\n"
        for i in range(12)
    ),
    "espnet": "".join(
        f"[gpu1] 2026-01-02 03:04:05,678 (trainer:762) INFO: 1epoch:train:{i - 9}-{i}batch: "
        f"iter_time=0.1, loss_ctc=1.0, loss={3 - i / 200}, grad_norm=12.5, optim0_lr0=1.0e-05\n"
        for i in range(10, 121, 10)
    ),
    "icefall": "".join(
        f"2026-01-02 03:04:05,678 INFO [train.py:898] (0/4) Epoch 1, batch {50 * i}, "
        f"loss[loss={3 - i / 20}, over 1234.00 frames. ], tot_loss[loss=9.0, over 9.00 frames. ], "
        f"batch size: 30, lr: 4.50e-02, grad_scale: 8.0\n"
        for i in range(12)
    ),
    "insightface": "".join(
        f"Training: 2026-01-02 03:04:05,678-Speed 3000.12 samples/sec   Loss {3 - i / 20}   "
        f"LearningRate 0.100000   Epoch: 0   Global Step: {10 * i}   Fp16 Grad Scale: 65536   "
        f"Required: 20 hours\n"
        for i in range(1, 13)
    ),
    "jsonl": lines_of([{"step": i, "loss": 2.0 - i / 10, "lr": 1e-3} for i in range(12)]),
    "csv": "iteration,train/loss,grad_norm\n"
    + "".join(f"{i},{2 - i / 10},1.5\n" for i in range(12)),
}
"""By the importer's name; TensorBoard's files are binary and have tests of their own."""

"""A Lightning Trainer that is recorded: the three lines are marked.

    python examples/lightning_trainer.py runs/lightning
    forensics bisect runs/lightning --recipe examples/lightning_trainer.py:make_trainer

The rate is far too high: the loss grows from the first steps until it overflows.
"""

import sys

import lightning.pytorch as pl
import torch
from torch import nn

from forensics import load_run
from forensics.record.trainers.lightning import ForensicsCallback  # 1


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.3)


def make_trainer(out="runs/lightning"):
    pl.seed_everything(0, verbose=False)
    inputs = torch.randn(400, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ForensicsCallback(out)],  # 2: that is all
    )
    return trainer, Regression(), torch.utils.data.DataLoader(data, batch_size=8)


if __name__ == "__main__":
    out = sys.argv[1] if len(sys.argv) > 1 else "runs/lightning"
    trainer, module, loader = make_trainer(out)
    trainer.fit(module, loader)
    print(load_run(out).diagnose().verdict.summary)  # 3: or `forensics report runs/lightning`

"""A Hugging Face Trainer that is recorded: the three lines are marked.

    python examples/huggingface_trainer.py runs/hf

It trains a tiny Llama with weights drawn at random; nothing is downloaded. One row of its embedding
is NaN, of a token that only one sample holds. The Trainer's own log filters the NaN out.
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forensics import load_run
from forensics.record.trainers.huggingface import ForensicsCallback  # 1

out = sys.argv[1] if len(sys.argv) > 1 else "runs/hf"
VOCABULARY, BAD_TOKEN = 64, 63


class Sequences(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, BAD_TOKEN, (16,), generator=draw)
        if index == 70:
            tokens[3] = BAD_TOKEN
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
)
with torch.no_grad():
    model.model.embed_tokens.weight[BAD_TOKEN] = torch.nan

trainer = Trainer(
    model,
    TrainingArguments(
        f"{out}-output",
        max_steps=12,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=4,
        save_steps=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=Sequences(),
    callbacks=[ForensicsCallback(out)],  # 2: that is all
)
trainer.train()

print(load_run(out).diagnose().verdict.summary)  # 3: or `forensics report runs/hf`

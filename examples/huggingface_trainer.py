"""A Hugging Face Trainer that is recorded: the three lines are marked.

    python examples/huggingface_trainer.py runs/hf
    forensics bisect runs/hf --recipe examples/huggingface_trainer.py:make_trainer

It trains a tiny Llama with weights drawn at random; nothing is downloaded. One sample has no answer
in it: all its labels are masked, so that its loss is a mean over nothing. The Trainer's own log
filters the NaN out. The second command resumes from the Trainer's checkpoint before it, and finds
the operator.
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from forensics import load_run
from forensics.record.trainers.huggingface import ForensicsCallback  # 1

VOCABULARY, UNANSWERED, MASKED = 64, 40, -100


class Sequences(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, VOCABULARY, (16,), generator=draw)
        labels = torch.full_like(tokens, MASKED) if index == UNANSWERED else tokens
        return {"input_ids": tokens, "labels": labels}


def make_trainer(out="runs/hf"):
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
    return Trainer(
        model,
        TrainingArguments(
            f"{out}-output",
            max_steps=40,
            per_device_train_batch_size=1,
            learning_rate=1e-3,
            logging_steps=4,
            save_steps=10,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=Sequences(),
        callbacks=[ForensicsCallback(out)],  # 2: that is all
    )


if __name__ == "__main__":
    out = sys.argv[1] if len(sys.argv) > 1 else "runs/hf"
    make_trainer(out).train()
    print(load_run(out).diagnose().verdict.summary)  # 3: or `forensics report runs/hf`

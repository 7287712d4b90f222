"""A tiny language model on the help texts of Python, with Hugging Face's Trainer.

All that the scheduler needs is its callback: the batch size, the learning rate, stops and resumes
are its own affair. Without a scheduler it is an ordinary training. The Trainer logs to MLflow by
itself.
"""

import argparse
from pydoc_data.topics import topics

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mlflow_rlsched.training.transformers import RlschedCallback

CONTEXT = 32
TRAINING, VALIDATION = 1437, 64


class Text(Dataset):
    """Pieces of text, each with the model's own codes of its characters."""

    def __init__(self, pieces):
        self.pieces = pieces

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, index):
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


class Tiny(GPT2LMHeadModel):
    """Knows the largest batch since it was asked last, as it sees it."""

    largest = 0

    def forward(self, input_ids=None, labels=None, **more):
        if self.training:
            self.largest = max(self.largest, len(input_ids))
        return super().forward(input_ids=input_ids, labels=labels, **more)

    def tell(self, predictions):
        told, self.largest = {"largest_batch": float(self.largest)}, 0
        return told


def pieces():
    text = "".join(topics[name] for name in sorted(topics))
    codes = torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8)
    return codes[: (TRAINING + VALIDATION) * CONTEXT].view(-1, CONTEXT).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    text = pieces()
    config = GPT2Config(
        vocab_size=128,
        n_positions=CONTEXT,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = Tiny(config)
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir="trainer",
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=VALIDATION,
            learning_rate=args.lr,
            num_train_epochs=args.epochs,
            seed=args.seed,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="mlflow",
            disable_tqdm=True,
        ),
        train_dataset=Text(text[:TRAINING]),
        eval_dataset=Text(text[TRAINING:]),
        compute_metrics=model.tell,
    )
    trainer.add_callback(RlschedCallback(trainer))
    trainer.train()


if __name__ == "__main__":
    main()

"""Fine-tuning a causal language model on padded sequences of different lengths by Hugging Face's Trainer."""

import argparse
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import elastrain
from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

PAD, END = 0, 1


def sentences(count, seed):
    """Ascending and descending runs of numbers, of different lengths; the prompt carries no loss."""
    draw = random.Random(seed)
    for _ in range(count):
        first, length, stride = draw.randrange(2, 30), draw.randrange(2, 12), draw.choice([-1, 1])
        tokens = [2 + (first - 2 + stride * i) % 30 for i in range(length + 2)] + [END]
        yield {"input_ids": tokens, "labels": [-100, -100, *tokens[2:]]}


def collate(samples):
    longest = max(len(s["input_ids"]) for s in samples)
    pads = [longest - len(s["input_ids"]) for s in samples]
    return {
        "input_ids": torch.tensor([s["input_ids"] + [PAD] * n for s, n in zip(samples, pads, strict=True)]),
        "attention_mask": torch.tensor([[1] * (longest - n) + [0] * n for n in pads]),
        "labels": torch.tensor([s["labels"] + [-100] * n for s, n in zip(samples, pads, strict=True)]),
    }


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=6, help="samples that a rank computes at a time")
    parser.add_argument("--global-batch-size", type=int, default=24, help="over all ranks")
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="lm.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    config = GPT2Config(
        vocab_size=32, n_positions=32, n_embd=16, n_layer=1, n_head=2, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    trainer = ElasticTrainer(
        job=job,
        model=GPT2LMHeadModel(config),
        args=ElasticTrainingArguments(
            output_dir="out",
            per_device_train_batch_size=args.batch_size,
            global_batch_size=args.global_batch_size,
            num_train_epochs=args.epochs,
            learning_rate=args.lr,
            warmup_steps=5,
            lr_scheduler_type="cosine",
            seed=args.seed,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=list(sentences(args.samples, args.seed)),
        data_collator=collate,
    )
    trainer.train()

    if trainer.is_world_process_zero():
        state = {"model": trainer.model.state_dict(), "step": trainer.state.global_step}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)

"""Supervised fine-tuning of a small language model by TRL's SFTTrainer: prompts without loss, padded completions."""

import argparse
import random
from dataclasses import dataclass

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import elastrain
from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@dataclass
class ElasticSFTConfig(SFTConfig, ElasticTrainingArguments):  # in this order: the defaults are TRL's
    pass


class ElasticSFTTrainer(ElasticTrainer, SFTTrainer):
    pass


def questions(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        numbers = [draw.randrange(10) for _ in range(draw.randrange(1, 6))]
        said = " ".join(WORDS[n] for n in numbers)
        yield {"prompt": f"count {said} :", "completion": f" {' '.join(WORDS[(n + 1) % 10] for n in numbers)}"}


def tokenizer():
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", "<unknown>", "count", ":", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>")


def token_loss(outputs, labels, num_items_in_batch):
    """The mean over tokens in the model's own type; TRL's kernel adds gradients up in float32."""
    logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / num_items_in_batch


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=6, help="samples that a rank computes at a time")
    parser.add_argument("--global-batch-size", type=int, default=24, help="over all ranks")
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="sft.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    config = GPT2Config(
        vocab_size=16, n_positions=32, n_embd=16, n_layer=1, n_head=2, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    trainer = ElasticSFTTrainer(
        job=job,
        model=GPT2LMHeadModel(config),
        args=ElasticSFTConfig(
            output_dir="out",
            per_device_train_batch_size=args.batch_size,
            global_batch_size=args.global_batch_size,
            num_train_epochs=args.epochs,
            learning_rate=args.lr,
            seed=args.seed,
            bf16=False,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=Dataset.from_list(list(questions(args.samples, args.seed))),
        processing_class=tokenizer(),
        compute_loss_func=token_loss,
    )
    trainer.train()

    if trainer.is_world_process_zero():
        state = {"model": trainer.model.state_dict(), "step": trainer.state.global_step}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)

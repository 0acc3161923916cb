"""Preference tuning by TRL's DPOTrainer: the right answer is chosen, a backward one with a word too much rejected."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel
from trl import DPOConfig, DPOTrainer

import elastrain
from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

sys.path.append(str(Path(__file__).parents[3] / "examples" / "zoo" / "trl_sft"))
from elastic import questions, tokenizer


@dataclass
class ElasticDPOConfig(DPOConfig, ElasticTrainingArguments):  # in this order: the defaults are TRL's
    pass


class ElasticDPOTrainer(ElasticTrainer, DPOTrainer):
    pass


def pairs(count):
    for one in questions(count, seed=1):
        backward = " ".join([*reversed(one["completion"].split()), "nine"])
        yield {"prompt": one["prompt"], "chosen": one["completion"], "rejected": f" {backward}"}


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=16, n_positions=32, n_embd=16, n_layer=1, n_head=2, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    arguments = ElasticDPOConfig(
        output_dir=str(out.parent / "out"), per_device_train_batch_size=6, global_batch_size=24, num_train_epochs=4,
        learning_rate=3e-3, bf16=False, report_to=[], use_cpu=True, logging_steps=1,
    )  # fmt: skip
    trainer = ElasticDPOTrainer(
        job=job,
        model=GPT2LMHeadModel(config),
        ref_model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Dataset.from_list(list(pairs(240))),
        processing_class=tokenizer(),
    )
    trainer.train()
    if trainer.is_world_process_zero():
        torch.save({"model": trainer.model.state_dict(), "step": trainer.state.global_step}, out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)

"""A small GPT-2 of bytes, from its configuration (nothing is downloaded), trained on sources of Python's standard
library by Hugging Face's Trainer. The lines that make it elastic are marked (*).
"""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

import elastrain
from elastrain.integrations.huggingface import ElasticTrainer, ElasticTrainingArguments

BLOCK = 64  # bytes that the model sees at once


class Windows(Dataset):
    """``count`` windows of ``BLOCK`` bytes, evenly spread over the text."""

    def __init__(self, text: bytes, count: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.stride = (len(self.text) - BLOCK) // count
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self.text[index * self.stride : index * self.stride + BLOCK]
        return {"input_ids": window, "labels": window}


class Slow(ElasticTrainer):
    """Takes its time over each step, so that a person can watch a rescale."""

    def __init__(self, *args: object, step_seconds: float, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.step_seconds = step_seconds

    def compute_loss(self, *args: object, **kwargs: object) -> torch.Tensor:
        time.sleep(self.step_seconds)
        return super().compute_loss(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--out", default="out")
    options = parser.parse_args()

    library = Path(argparse.__file__).parent
    text = b"\n".join((library / name).read_bytes() for name in ("argparse.py", "typing.py", "tarfile.py", "pickle.py"))
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_positions=BLOCK, n_embd=64, n_layer=2, n_head=4, use_cache=False)
    )

    with elastrain.join() as job:  # (*)
        trainer = Slow(  # (*) ElasticTrainer instead of Trainer
            job=job,  # (*)
            step_seconds=options.step_seconds,
            model=model,
            args=ElasticTrainingArguments(  # (*) instead of TrainingArguments
                output_dir=options.out,
                global_batch_size=64,  # (*) of all ranks together
                per_device_train_batch_size=16,
                num_train_epochs=options.epochs,
                learning_rate=3e-3,
                warmup_steps=10,
                logging_steps=10,
                eval_strategy="epoch",
                use_cpu=not torch.cuda.is_available(),
                report_to=[],
            ),
            train_dataset=Windows(text, 1000),
            eval_dataset=Windows((library / "ast.py").read_bytes(), 100),
        )
        trainer.train()
        trainer.save_model()  # rank 0 does
        metrics = trainer.evaluate()
        if job.rank == 0:
            trainer.state.save_to_json(f"{options.out}/state.json")
            print(f"loss on 100 held-out windows: {metrics['eval_loss']:.4f} nats per byte")


if __name__ == "__main__":
    main()

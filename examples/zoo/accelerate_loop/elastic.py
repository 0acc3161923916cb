"""Handwritten digits in a loop with accelerate, in the shape of its own examples."""

import argparse

import torch
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elastrain
from elastrain.integrations.accelerate import ElasticAccelerator


def datasets():
    digits = load_digits()
    images, labels = torch.Tensor(digits.images).flatten(1) / 16, torch.tensor(digits.target)
    return TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])


def training_function(args, job):
    accelerator = ElasticAccelerator(
        job, mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    set_seed(args.seed)
    train_set, eval_set = datasets()
    train_dataloader = DataLoader(train_set, shuffle=True, batch_size=args.batch_size)
    eval_dataloader = DataLoader(eval_set, shuffle=False, batch_size=64)
    model = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * -(-len(train_dataloader) // args.gradient_accumulation_steps)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps * accelerator.num_processes)
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    for epoch in range(args.epochs):
        model.train()
        for images, labels in train_dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()

        model.eval()
        correct, samples = 0, 0
        for images, labels in eval_dataloader:
            with torch.no_grad():
                predictions = model(images).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, labels))
            correct += (predictions == references).sum().item()
            samples += len(references)
        accelerator.print(f"epoch {epoch}: accuracy {correct / samples:.4f}")

    accelerator.wait_for_everyone()
    state = {
        "model": accelerator.get_state_dict(model),
        "optimizer": optimizer.state_dict(),
        "scheduler": lr_scheduler.state_dict(),
        "scale": accelerator.scaler.state_dict() if accelerator.scaler else None,
    }
    accelerator.save(state, args.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], default="no")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=24, help="samples that a rank computes at a time")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", default="digits.pt")
    with elastrain.join() as job:
        training_function(parser.parse_args(), job)


if __name__ == "__main__":
    main()

"""A small language model of bytes, trained on the source of Python's standard library, which every machine has.

A plain PyTorch script; the lines that make it elastic are marked (*). With --out it leaves there what ``storm.py``
compares: the loss of every committed step and, at the end, the model.
"""

import argparse
import json
import math
import os
import socket
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import elastrain

BLOCK = 64  # bytes that the model sees at once
NOT_SOURCE = {"test", "tests", "site-packages", "dist-packages", "__pycache__"}  # differ from machine to machine


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=26, help="windows of one step, over all workers together")
    parser.add_argument("--windows", type=int, default=3000, help="size of the training set")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="least time that one step takes")
    parser.add_argument("--out", default="", help="folder for the loss of each step and for the model")
    return parser.parse_args()


class Windows(Dataset):
    """``count`` windows of ``BLOCK + 1`` bytes, evenly spread over all of the text; ``shift`` moves them (0 to 1)."""

    def __init__(self, text: torch.Tensor, count: int, shift: float = 0.0) -> None:
        last = len(text) - BLOCK - 1
        self.text = text
        self.starts = [int((i + shift) * last / count) for i in range(count)]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> torch.Tensor:
        start = self.starts[index]
        return self.text[start : start + BLOCK + 1].long()


def standard_library() -> torch.Tensor:
    """All of it as one run of bytes, in the order of the file names."""
    files = []
    for folder, inside, names in os.walk(sysconfig.get_path("stdlib")):
        inside[:] = set(inside) - NOT_SOURCE  # os.walk goes only where this list leads
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    text = b"\n".join(file.read_bytes() for file in sorted(files))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Layer(nn.Module):
    """Causal self-attention and a feed-forward network, each normalised before and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    """Bytes (batch, length) to the logits (batch, length, 256) of the byte that follows each."""

    def __init__(self, width: int = 128, layers: int = 2, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(BLOCK, width)
        self.layers = nn.Sequential(*(Layer(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.byte(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return self.norm(self.layers(x)) @ self.byte.weight.T


def rate(step: int, steps: int, warm_up: int = 40) -> float:
    """Share of the full learning rate: up linearly, then down to a tenth by a cosine."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats per byte."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def main() -> None:
    args = options()
    torch.manual_seed(args.seed)
    torch.set_default_dtype(getattr(torch, args.dtype))
    text = standard_library()

    with elastrain.join() as job:  # (*) instead of init_process_group
        net = LanguageModel(dropout=args.dropout)
        model = job.wrap(net)  # (*) instead of DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, args.steps))
        job.track(optimizer=optimizer, schedule=schedule)  # (*) what a joining worker must be given
        loader = job.dataloader(  # (*) with its sampler
            Windows(text, args.windows), global_batch_size=args.batch_size, seed=args.seed
        )
        world = 1
        if args.out:
            file = Path(args.out) / f"losses.{socket.gethostname()}.{os.getpid()}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            losses = file.open("a", buffering=1)  # by line: a killed process loses none that it wrote
            job.on_commit(lambda: print(json.dumps([job.step, world, job.loss]), file=losses))  # once per step

        for windows in job.steps(loader, steps=args.steps):  # (*) instead of the two loops over epochs and batches
            began, world = time.monotonic(), job.world_size
            loss = loss_of(model, windows)
            job.backward(loss)  # (*) instead of loss.backward(); gradients are those of the global batch now
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            time.sleep(max(0.0, args.step_seconds - (time.monotonic() - began)))

        if job.rank == 0:
            net.eval()
            with torch.no_grad():
                held_out = torch.stack(list(Windows(text, 300, shift=0.5)))
                print(f"loss on {len(held_out)} held-out windows: {loss_of(net, held_out).item():.4f} nats per byte")
            if args.out:
                torch.save(net.state_dict(), Path(args.out) / "model.pt")


if __name__ == "__main__":
    main()

"""Tokens per second of a model of GPT-2's size on one card: elastrain beside plain DDP and FSDP2, in turns.

All variants live in one process; blocks of steps alternate, and the median of the blocks counts.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))  # a program of its own, started by path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import elastrain
from bench_gpu.report import ENV_DRY

folder, dry = Path(sys.argv[1]), ENV_DRY in os.environ
WIDTH, LAYERS, HEADS, LENGTH, BATCH, VOCABULARY = (32, 2, 2, 16, 4, 64) if dry else (768, 12, 12, 1024, 8, 50304)
BLOCKS, STEPS = (2, 2) if dry else (6, 10)


class Gpt(nn.Module):
    """A decoder as GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=tokens.device)
        x = self.tokens(tokens) + self.places(torch.arange(LENGTH, device=tokens.device))
        return self.head(self.layers(x, mask=mask, is_causal=True))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean loss of predicting the next token."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(tokens)
    return nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())


def build(device: torch.device) -> Gpt:
    torch.manual_seed(0)
    model: Gpt = Gpt().to(device)
    return model


def plain(model: nn.Module, batches: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """A step of a script without elastrain."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, batches()).backward()
        optimizer.step()

    return step


def main() -> None:
    data = torch.randint(0, VOCABULARY, (64 * BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    with elastrain.join() as job:
        device = job.device
        store = dist.FileStore(str(folder / "plain"), 1)
        dist.init_process_group("gloo" if dry else "nccl", store=store, rank=0, world_size=1)
        order = iter(range(10**9))

        def batches() -> torch.Tensor:
            start = next(order) % 64 * BATCH
            return data[start : start + BATCH].to(device, non_blocking=True)

        sharded = build(device)
        for layer in (*sharded.layers.layers, sharded):
            fully_shard(layer)
        variants = {
            "DDP": plain(DistributedDataParallel(build(device)), batches),
            "FSDP2": plain(sharded, batches),
        }
        net = build(device)
        model = job.wrap(net)
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        job.track(optimizer=optimizer)
        loader = job.dataloader(TensorDataset(data), global_batch_size=BATCH)
        ours = cast("Generator[Any, None, None]", job.steps(loader, steps=10**6))

        def step() -> None:
            (tokens,) = next(ours)
            optimizer.zero_grad()
            job.backward(loss_of(model, tokens.to(device, non_blocking=True)))
            optimizer.step()

        variants["elastrain"] = step
        compiler = "eager" if dry else "inductor"
        compiled = torch.compile(build(device), backend=compiler)
        variants["DDP compiled"] = plain(DistributedDataParallel(compiled), batches)
        rates = measure(variants, device)
        ours.close()
        model.compile(backend=compiler)
        ours = cast("Generator[Any, None, None]", job.steps(loader, steps=10**6))  # ``step`` reads the new iterator
        rates |= measure({"elastrain compiled": step}, device)
        ours.close()
        dist.destroy_process_group()
    (folder / "tokens.json").write_text(json.dumps(rates))


def measure(variants: dict[str, Callable[[], None]], device: torch.device) -> dict[str, float]:
    """Tokens per second, the median of blocks that alternate."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for block in range(BLOCKS + 1):
        for name, step in variants.items():
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if block:  # the first one warms up
                seconds[name].append(time.perf_counter() - began)
    return {name: STEPS * BATCH * LENGTH / statistics.median(taken) for name, taken in seconds.items()}


main()

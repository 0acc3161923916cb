"""A transformer that FSDP2 shards over the ranks of a group; groups join and leave while it trains.

Shaped as torchtitan's training loop: meta device, tensor parallelism, activation checkpointing, torch.compile for each
block, FSDP2 with mixed precision. It learns to copy a sequence of letters. The elastic lines are marked (*).
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import TensorDataset

import elastrain  # (*)

LETTERS, LENGTH, WIDTH = 12, 8, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Embedding(2 * LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    @torch.no_grad()
    def init_weights(self) -> None:
        """The same weights on any mesh: each parameter is drawn as a whole, one after the other, and cut."""
        for number, (name, p) in enumerate(self.named_parameters()):
            whole = torch.zeros(p.shape)
            if "norm" in name and name.endswith("weight"):
                whole += 1.0
            elif name.endswith("weight"):
                whole.normal_(std=0.05, generator=torch.Generator().manual_seed(number))
            p.copy_(distribute_tensor(whole.to(p.device), p.device_mesh, p.placements, src_data_rank=None))


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--step-seconds", type=float, default=0.0, help="at least this long, to watch it")
parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
parser.add_argument(
    "--compile", choices=["no", "yes"], default="no", help="each block; on a CPU it needs a C++ compiler"
)
options = parser.parse_args()

generator = torch.Generator().manual_seed(0)
first = torch.randint(0, LETTERS, (2048, LENGTH), generator=generator)
data = TensorDataset(torch.cat([first, first], dim=1))

with elastrain.join() as job:  # (*)
    mesh = job.mesh  # (*) the ranks of this rank's group
    with torch.device("meta"):  # no rank holds the whole model at any time
        model = Transformer(options.layers)
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, options.precision), reduce_dtype=torch.float32)
    for i, layer in enumerate(model.layers):
        if "tp" in mesh.mesh_dim_names:  # spec.parallelism.tensor
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        model.layers[i] = checkpoint_wrapper(layer)
        if options.compile == "yes":
            model.layers[i].compile()
        fully_shard(model.layers[i], mesh=mesh["dp_shard"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp_shard"], mp_policy=policy)
    model.to_empty(device=job.device)
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model = job.wrap(model, optimizer=optimizer)  # (*)
    loader = job.dataloader(data, global_batch_size=64)  # (*)

    for (batch,) in job.steps(loader, steps=options.steps):  # (*)
        began = time.monotonic()
        tokens = batch.to(job.device)
        logits = model(tokens[:, :-1])[:, LENGTH - 1 :]  # the second half repeats the first
        loss = job.backward(F.cross_entropy(logits.reshape(-1, LETTERS), tokens[:, LENGTH:].reshape(-1)))  # (*)
        job.clip_grad_norm_(1.0)  # (*) the norm over all shards
        optimizer.step()
        optimizer.zero_grad()
        if job.committed and job.rank == 0 and job.step % 25 == 0:
            print(f"step {job.step}: loss {loss.item():.3f}, {job.world_size} ranks", flush=True)
        time.sleep(max(0.0, began + options.step_seconds - time.monotonic()))

if job.rank == 0:
    print(f"loss at the end: {job.loss:.6f}")

"""Long sequences: each rank along ``cp`` has a part of the tokens of every sample (context parallelism).

Attention needs the keys and values of all tokens: they are gathered over ``cp``. It learns the running sum of letters.
The elastic lines are marked (*).
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import elastrain  # (*)

WIDTH, HEADS, LETTERS, LENGTH = 16, 2, 5, 12


class Gather(torch.autograd.Function):
    """The parts of all ranks of a group, in order; the gradient of a part is the sum over them."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = x.new_empty(group.size() * len(x), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        part = gradient.new_empty(len(gradient) // ctx.group.size(), *gradient.shape[1:])
        dist.reduce_scatter_tensor(part, gradient.contiguous(), group=ctx.group)
        return part, None


class Attention(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """``group``: the ranks along ``cp``; None: this one has all tokens."""
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, _ = x.shape
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        first = 0
        if self.group is not None:  # samples, heads, tokens, …: the tokens of all ranks, in order
            first = self.group.rank() * length
            k, v = (Gather.apply(part.movedim(2, 0), self.group).movedim(0, 2) for part in (k, v))
        seen = torch.arange(k.shape[2]) <= torch.arange(first, first + length)[:, None]
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return x + self.out(y.transpose(1, 2).reshape(samples, length, WIDTH))


class Net(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(Attention(group), Attention(group))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, tokens: torch.Tensor, first: int = 0) -> torch.Tensor:
        """``first``: the place of the first of these ``tokens`` in the sequence."""
        places = torch.arange(first, first + tokens.shape[1])
        return self.head(self.layers(self.letters(tokens) + self.places(places)))


def data() -> TensorDataset:
    letters = torch.randint(0, LETTERS, (203, LENGTH), generator=torch.Generator().manual_seed(1))
    return TensorDataset(letters, letters.cumsum(1) % LETTERS)


def loss_of(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens, of which each rank has equally many."""
    return nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten())


def rest(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="at least this long, to watch it")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--out", default="", help="folder for the parameters of each rank at the end")
    options = parser.parse_args()
    with elastrain.join() as job:  # (*)
        group, place = job.mesh.get_group("cp"), job.mesh.get_local_rank("cp")  # (*)
        model = Net(group).to(getattr(torch, options.dtype))
        for layer in model.layers:
            fully_shard(layer, mesh=job.mesh["dp_shard"])  # (*)
        fully_shard(model, mesh=job.mesh["dp_shard"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        model = job.wrap(model, optimizer=optimizer)  # (*) elastrain sums the gradients over cp
        loader = job.dataloader(data(), global_batch_size=22)  # (*)
        for tokens, sums in job.steps(loader, steps=options.steps):  # (*) all ranks along cp have the same samples
            length = LENGTH // group.size()
            mine = slice(place * length, (place + 1) * length)
            loss = job.backward(loss_of(model(tokens[:, mine], mine.start), sums[:, mine]))  # (*)
            job.clip_grad_norm_(1.0)  # (*)
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.rank == 0 and job.step % 20 == 0:
                print(f"step {job.step}: loss {loss.item():.3f}, {job.world_size} ranks", flush=True)
            rest(options.step_seconds)
        if options.out:
            local = {name: p.to_local() for name, p in model.module.state_dict().items()}
            torch.save({"state": local, "loss": job.loss}, f"{options.out}/{job.rank}.pt")
    if job.rank == 0:
        print(f"loss at the end: {job.loss:.6f}")


if __name__ == "__main__":
    main()

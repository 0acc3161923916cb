"""A mixture of experts: each rank along ``ep`` has a part of the experts, and a part of the batch.

A router gives each sample to one expert. All-to-all exchanges bring samples to the ranks of their experts and back;
the layer is computed again in the backward (activation checkpoint). The elastic lines are marked (*).
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import elastrain  # (*)

WIDTH, CLASSES, EXPERTS = 16, 3, 4


class Exchange(torch.autograd.Function):
    """Rows to the ranks of a group, and their gradients back. ``give`` and ``take``: rows for and from each rank."""

    @staticmethod
    def forward(ctx, x, give, take, group):
        ctx.give, ctx.take, ctx.group = give, take, group
        out = x.new_empty(sum(take), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), take, give, group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, ctx.take, ctx.give, ctx.group), None, None, None


class Experts(nn.Module):
    """Their weights in one tensor, of which each rank along ``ep`` has some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """``x``: rows in the order of this rank's experts, which have ``counts`` of them."""
        weight = self.weight.to_local() if isinstance(self.weight, DTensor) else self.weight
        return torch.cat([part @ w for part, w in zip(x.split(counts), weight, strict=True)])


class Mixture(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """``group``: the ranks along ``ep``; None: this one has all experts."""
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS), Experts()
        self.group, self.ranks = group, 1 if group is None else group.size()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.routed, x, use_reentrant=False)

    def routed(self, x: torch.Tensor) -> torch.Tensor:
        share, choice = self.router(x).softmax(1).max(1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=EXPERTS)
        y = self.compute(x[order], counts).tanh()
        return x + torch.zeros_like(x).index_copy(0, order, y) * share[:, None]

    def compute(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """``x``: in the order of the experts, which have ``counts`` of its rows."""
        if self.group is None:
            return self.experts(x, counts.tolist())
        theirs = torch.zeros_like(counts)  # rows for this rank's experts, by rank
        dist.all_to_all_single(theirs, counts, group=self.group)
        give, take = counts.view(self.ranks, -1).sum(1).tolist(), theirs.view(self.ranks, -1).sum(1).tolist()
        x = Exchange.apply(x, give, take, self.group)
        own = torch.arange(EXPERTS // self.ranks).repeat(self.ranks).repeat_interleave(theirs)
        order = own.argsort(stable=True)
        y = self.experts(x[order], theirs.view(self.ranks, -1).sum(0).tolist())
        return Exchange.apply(torch.zeros_like(y).index_copy(0, order, y), take, give, self.group)


def net(group: dist.ProcessGroup | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, WIDTH), Mixture(group), Mixture(group), nn.Linear(WIDTH, CLASSES))


def shard(model: nn.Sequential, mesh: DeviceMesh) -> None:
    for layer in model[1:3]:
        experts = layer.experts
        part = distribute_tensor(experts.weight.data, mesh["ep"], [Shard(0)], src_data_rank=None)
        experts.weight = nn.Parameter(part)
        fully_shard(experts, mesh=mesh["dp_shard"])  # by itself: its gradients need no sum over ep
        fully_shard(layer, mesh=mesh["dp_shard"])  # the router: elastrain sums its gradients over ep
    fully_shard(model, mesh=mesh["dp_shard"])


def data(dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(203, 8, dtype=torch.float64, generator=generator)
    return TensorDataset(x.to(dtype), (x[:, :CLASSES]).argmax(1))


def loss_of(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, y)


def rest(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=0.0, help="at least this long, to watch it")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--out", default="", help="folder for the parameters of each rank at the end")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    with elastrain.join() as job:  # (*)
        model = net(job.mesh.get_group("ep")).to(dtype)  # (*)
        shard(model, job.mesh)  # (*)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        model = job.wrap(model, optimizer=optimizer)  # (*)
        loader = job.dataloader(data(dtype), global_batch_size=22)  # (*)
        for x, y in job.steps(loader, steps=options.steps):  # (*)
            loss = job.backward(loss_of(model(x), y))  # (*)
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

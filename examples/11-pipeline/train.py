"""A pipeline of two stages, each with half of the layers, in the order 1F1B; groups join and leave while it trains.

The batch of a group is cut into micro-batches. Each stage runs one forward and one backward in turn, so that at most
two micro-batches are under way. The elastic lines are marked (*).
"""

import argparse
import time
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import elastrain  # (*)

WIDTH, CLASSES, MICRO_BATCHES = 16, 3, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def whole() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, WIDTH), *(Layer() for _ in range(4)), nn.Linear(WIDTH, CLASSES))


def data(dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(203, 8, dtype=torch.float64, generator=generator)
    return TensorDataset(x.to(dtype), (x[:, :CLASSES]).argmax(1))


def loss_of(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum: micro-batches differ in length, and one may be empty."""
    return nn.functional.cross_entropy(outputs, y, reduction="sum")


def first_stage(model: nn.Module, x: torch.Tensor, group: dist.ProcessGroup) -> None:
    under_way: deque[torch.Tensor] = deque()

    def backward() -> None:
        activations = under_way.popleft()
        gradient = torch.empty_like(activations)
        dist.recv(gradient, group=group, group_src=1)
        activations.backward(gradient)

    for part in x.tensor_split(MICRO_BATCHES):
        under_way.append(model(part))
        dist.send(under_way[-1].detach(), group=group, group_dst=1)
        if len(under_way) == 2:
            backward()
    backward()


def last_stage(model: nn.Module, y: torch.Tensor, weight: float, group: dist.ProcessGroup) -> torch.Tensor:
    total, gradient = torch.zeros((), dtype=torch.float64), None
    for part in y.tensor_split(MICRO_BATCHES):
        activations = torch.empty(len(part), WIDTH, dtype=next(model.parameters()).dtype)
        dist.recv(activations, group=group, group_src=0)
        if gradient is not None:  # after the receipt: the first stage sends before it receives
            dist.send(gradient, group=group, group_dst=0)
        loss = loss_of(model(activations.requires_grad_()), part) / len(y)
        (loss * weight).backward()
        gradient = activations.grad
        total += loss.detach()
    dist.send(gradient, group=group, group_dst=0)
    return total


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
        stage, group = job.mesh.get_local_rank("pp"), job.mesh.get_group("pp")  # (*)
        layers = whole().to(dtype)
        model = layers[3:] if stage else layers[:3]
        for layer in model:
            fully_shard(layer, mesh=job.mesh["dp_shard"])  # (*)
        fully_shard(model, mesh=job.mesh["dp_shard"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        model = job.wrap(model, optimizer=optimizer)  # (*)
        loader = job.dataloader(data(dtype), global_batch_size=22)  # (*)
        for x, y in job.steps(loader, steps=options.steps):  # (*)

            def schedule(weight: float, x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor | None:
                return last_stage(model, y, weight, group) if stage else first_stage(model, x, group)

            loss = job.backward(schedule)  # (*) runs the forwards and the backwards
            job.clip_grad_norm_(1.0)  # (*) the norm over all stages
            optimizer.step()
            optimizer.zero_grad()
            if job.committed and job.rank == 0 and job.step % 20 == 0:
                print(f"step {job.step}: loss {loss.item():.3f}, {job.world_size} ranks", flush=True)
            rest(options.step_seconds)
        if options.out:
            local = {name: p.to_local() for name, p in model.module.state_dict().items()}
            torch.save({"stage": stage, "state": local, "loss": job.loss}, f"{options.out}/{job.rank}.pt")
    if job.rank == 0:
        print(f"loss at the end: {job.loss:.6f}")


if __name__ == "__main__":
    main()

"""A rate by a counter, patience, averages by hand, means over ranks, accumulation with no_sync, a file of lines."""

import copy
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from data import Points
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

HISTORY = []


class EMA:
    def __init__(self, model):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    def update(self, model):
        for n, p in model.named_parameters():
            self.shadow[n] = 0.9 * self.shadow[n] + 0.1 * p.detach()


@torch.no_grad()
def follow(teacher, model):
    for a, b in zip(teacher.parameters(), model.parameters()):
        a.mul_(0.9).add_(b, alpha=0.1)


def evaluate(model, loader, world_size):
    model.eval()
    correct, mean, batches = torch.zeros(()), torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            correct += (out.argmax(1) == y.long().clamp(0, 2)).sum()
            mean += nn.functional.cross_entropy(out, y.long().clamp(0, 2))
            batches += 1
    mean /= batches
    dist.all_reduce(correct)
    dist.all_reduce(mean)
    mean /= world_size
    model.train()
    HISTORY.append(mean.item())
    return correct.item() / len(loader.dataset), mean.item()


def main(epochs, accumulate):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    is_main = rank == 0
    torch.manual_seed(0)
    train_set, val_set = Points(160, 1), Points(54, 2)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    val = DataLoader(val_set, batch_size=9, sampler=DistributedSampler(val_set, shuffle=False))
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    teacher = copy.deepcopy(net).requires_grad_(False)
    model, ema = DDP(net), EMA(net)
    base = 0.0005 * 8 * world_size
    optimizer = torch.optim.AdamW(net.parameters(), lr=base)
    global_step, best, bad, best_epoch = 0, 1e9, 0, None
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            for group in optimizer.param_groups:
                group["lr"] = base * min(1.0, (global_step + 1) / 10) * (1 - global_step / (epochs * len(loader)))
            last = (i + 1) % accumulate == 0
            if last:
                loss = nn.functional.cross_entropy(model(x), y.long().clamp(0, 2)) / accumulate
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                ema.update(net)
                follow(teacher, net)
            else:
                with model.no_sync():
                    (nn.functional.cross_entropy(model(x), y.long().clamp(0, 2)) / accumulate).backward()
            global_step += 1
            if is_main and global_step % 4 == 0:
                with open("log.txt", "a") as f:
                    f.write(f"{global_step} {optimizer.param_groups[0]['lr']:.12f}\n")
        accuracy, loss_value = evaluate(model, val, world_size)
        if loss_value < best:
            best, bad, best_epoch = loss_value, 0, epoch
        else:
            bad += 1
        if is_main:
            average = sum(float(v.sum()) for v in ema.shadow.values()) + sum(
                float(p.sum()) for p in teacher.parameters()
            )
            print(
                f"END {epoch} {global_step} {accuracy:.6f} {loss_value:.10f} {best:.10f} {average:.10f} {len(HISTORY)}",
                flush=True,
            )
        if bad == 3:
            break
    if is_main:
        torch.save(net.state_dict(), "net.pth")
        print(f"best epoch {best_epoch}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

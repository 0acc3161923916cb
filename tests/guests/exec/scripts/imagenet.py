"""Options and meters, epochs from 1, a schedule per epoch, an evaluation with sums over ranks, the best in a global."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from data import Points
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

best = 0.0


class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total, dist.ReduceOp.SUM)
        self.sum, self.count = total.tolist()


def main():
    global best
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=6, type=int)
    parser.add_argument("--batch-size", default=16, type=int, help="of all processes")
    args = parser.parse_args()
    args.rank, args.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    args.seen = 0
    dist.init_process_group("gloo", world_size=args.world_size, rank=args.rank)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3)).double())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    train_set, val_set = Points(160, 1), Points(52, 2)
    sampler = DistributedSampler(train_set, seed=5)
    loader = DataLoader(train_set, batch_size=args.batch_size // args.world_size, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=7, sampler=DistributedSampler(val_set, shuffle=False))
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        train(loader, model, optimizer, args)
        accuracy = validate(val_loader, model)
        scheduler.step()
        is_best = accuracy > best
        best = max(accuracy, best)
        if args.rank == 0:
            print(
                f"epoch {epoch} accuracy {accuracy:.10f} best {best:.10f} lr {scheduler.get_last_lr()} {args.seen}",
                flush=True,
            )
            torch.save({"state": model.state_dict(), "best": best, "optimizer": optimizer.state_dict()}, "last.pth")
            if is_best:
                torch.save(model.state_dict(), "best.pth")


def train(loader, model, optimizer, args):
    losses = Meter()
    model.train()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y.long().clamp(0, 2))
        losses.update(loss.item(), x.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        args.seen += 1
        if i % 5 == 0 and args.rank == 0:
            print(f"batch {i} of {len(loader)}", flush=True)


def validate(loader, model):
    right = Meter()
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            right.update((model(x).argmax(1) == y.long().clamp(0, 2)).double().mean().item(), x.size(0))
    right.all_reduce()
    return right.sum / right.count


if __name__ == "__main__":
    main()

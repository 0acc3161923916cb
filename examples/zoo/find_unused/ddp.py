"""Two tasks with a head each, of which a batch trains one, and layers that are skipped at random."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self, depth=4, width=32):
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth))
        self.heads = nn.ModuleDict({"digit": nn.Linear(width, 10), "parity": nn.Linear(width, 2)})

    def forward(self, x, task, skipped):
        x = F.relu(self.stem(x))
        for number, block in enumerate(self.blocks):
            if number != skipped:
                x = x + block(x)
        return self.heads[task](x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="find_unused.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    dist.init_process_group("gloo")
    digits = load_digits()
    images, targets = torch.Tensor(digits.data) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images, targets)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size // dist.get_world_size(), sampler=sampler)

    net = Net()
    optimizer = optim.AdamW(net.parameters(), lr=args.lr)
    model = DistributedDataParallel(net, find_unused_parameters=True)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, digit in loader:
            draw = torch.Generator().manual_seed(args.seed + step)  # the same on all ranks
            task = "digit" if torch.rand((), generator=draw) < 0.5 else "parity"
            skipped = torch.randint(6, (), generator=draw)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, task, skipped), digit if task == "digit" else digit % 2)
            loss.backward()
            optimizer.step()
            step += 1
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")

    if dist.get_rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

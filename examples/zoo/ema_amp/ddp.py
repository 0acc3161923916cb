"""Mixed precision with a loss scaler, clipped gradients, an average of the weights and a cosine schedule."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@torch.no_grad()
def accuracy(model, images, targets):
    model.eval()
    return (model(images).argmax(1) == targets).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.98, help="of the average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="ema_amp.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    dist.init_process_group("gloo")
    device = torch.device("cpu")
    digits = load_digits()
    images, targets = torch.Tensor(digits.data) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1500], targets[:1500])
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size // dist.get_world_size(), sampler=sampler)

    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)).to(device)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(args.decay))
    optimizer = optim.AdamW(net.parameters(), lr=args.lr)
    model = DistributedDataParallel(net)
    scheduler = CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))
    scaler = torch.amp.GradScaler(device.type, growth_interval=20)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16):
                loss = F.cross_entropy(model(data), target)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            average.update_parameters(net)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy of the average {accuracy(average, images[1500:], targets[1500:]):.3f}")

    if dist.get_rank() == 0:
        state = {"model": net.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict()}
        torch.save(state, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

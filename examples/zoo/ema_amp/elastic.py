"""Mixed precision with a loss scaler, clipped gradients, an average of the weights and a cosine schedule."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import elastrain


@torch.no_grad()
def accuracy(model, images, targets):
    model.eval()
    return (model(images).argmax(1) == targets).float().mean().item()


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.98, help="of the average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="ema_amp.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    device = job.device
    digits = load_digits()
    images, targets = torch.Tensor(digits.data) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1500], targets[:1500])
    loader = job.dataloader(train_set, global_batch_size=args.batch_size, seed=args.seed)

    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)).to(device)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(args.decay))
    optimizer = optim.AdamW(net.parameters(), lr=args.lr)
    model = job.wrap(net, optimizer=optimizer)
    scheduler = CosineAnnealingLR(optimizer, T_max=args.epochs * loader.order.steps_per_epoch)
    scaler = torch.amp.GradScaler(device.type, growth_interval=20)
    job.track(average=average, scheduler=scheduler, scaler=scaler)
    for epoch in job.epochs(loader, args.epochs):
        for data, target in job.steps(loader, epochs=epoch + 1):
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16):
                loss = F.cross_entropy(model(data), target)
            job.backward(scaler.scale(loss))
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            average.update_parameters(net)
        if job.rank == 0:
            print(f"epoch {epoch}: accuracy of the average {accuracy(average, images[1500:], targets[1500:]):.3f}")

    if job.rank == 0:
        state = {"model": net.state_dict(), "average": average.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict()}
        torch.save(state, args.out)


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)

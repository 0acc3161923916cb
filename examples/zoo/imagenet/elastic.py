"""A residual network that classifies images, in the shape of PyTorch's ImageNet example."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import elastrain


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(4, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """Its norms are over groups of channels: batch statistics would depend on how a batch is cut over the ranks."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.layers = nn.Sequential(Block(1, 8, 1), Block(8, 16, 2), Block(16, 32, 2))
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x):
        return self.fc(self.layers(x).mean(dim=(2, 3)))


class AverageMeter:
    """The mean of a metric over samples, and its last value."""

    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.val, self.sum, self.count = 0.0, 0.0, 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    def all_reduce(self, job):
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        self.sum, self.count = job.all_reduce(total).tolist()

    def __str__(self):
        text = "{name} {val" + self.fmt + "} ({avg" + self.fmt + "})"
        return text.format(name=self.name, val=self.val, avg=self.sum / max(self.count, 1))


def accuracy(output, target, topk=(1,)):
    """How many samples have their target among the k largest outputs, for each k."""
    _, pred = output.topk(max(topk), dim=1)
    correct = pred.eq(target.view(-1, 1))
    return [correct[:, :k].sum() for k in topk]


class Best:
    """The best accuracy so far, for all ranks and for those that join later."""

    def __init__(self):
        self.acc1 = 0.0

    def state_dict(self):
        return {"acc1": self.acc1}

    def load_state_dict(self, state):
        self.acc1 = state["acc1"]


def train(job, train_loader, model, criterion, optimizer, epoch, device, args):
    losses, top1, top5 = AverageMeter("loss", ":.4e"), AverageMeter("acc@1", ":6.2f"), AverageMeter("acc@5", ":6.2f")
    model.train()
    for images, target in job.steps(train_loader, epochs=epoch + 1):
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        optimizer.zero_grad()
        job.backward(loss)
        optimizer.step()
        if job.committed:
            losses.update(loss.item(), images.size(0))
            top1.update(100 * acc1.item() / images.size(0), images.size(0))
            top5.update(100 * acc5.item() / images.size(0), images.size(0))
            if job.step % args.print_freq == 0 and job.rank == 0:
                print(f"epoch [{epoch}] step {job.step}", losses, top1, top5)
    for meter in (losses, top1, top5):
        meter.all_reduce(job)


def validate(job, val_loader, model, criterion, device):
    def metrics(batch):
        images, target = batch[0].to(device), batch[1].to(device)
        output = model(images)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        return {"loss": (criterion(output, target), images.size(0)), "acc1": acc1, "acc5": acc5}

    total, samples = job.evaluate(val_loader, metrics), len(val_loader.dataset)
    acc1, acc5 = 100 * total["acc1"] / samples, 100 * total["acc5"] / samples
    if job.rank == 0:
        print(f"validation loss {total['loss']:.4e} acc@1 {acc1:6.2f} acc@5 {acc5:6.2f}")
    return acc1


def main(job):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--print-freq", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="imagenet.pt")
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    device = job.device
    digits = load_digits()
    images, targets = torch.Tensor(digits.images).unsqueeze(1) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1500], targets[:1500])
    val_set = TensorDataset(images[1500:], targets[1500:])
    train_loader = job.dataloader(train_set, global_batch_size=args.batch_size, seed=args.seed)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    net = ResNet().to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    model = job.wrap(net, optimizer=optimizer)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    best = Best()
    job.track(scheduler=scheduler, best=best)
    for epoch in job.epochs(train_loader, args.epochs):
        train(job, train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(job, val_loader, model, criterion, device)
        scheduler.step()
        is_best = acc1 > best.acc1
        best.acc1 = max(acc1, best.acc1)
        if job.rank == 0:
            save_checkpoint(net, optimizer, scheduler, best.acc1, is_best, args.out)


def save_checkpoint(net, optimizer, scheduler, best_acc1, is_best, path):
    state = {
        "model": net.state_dict(),
        "best_acc1": best_acc1,
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    }
    torch.save(state, path)
    if is_best:
        torch.save(state, f"{path}.best")


if __name__ == "__main__":
    with elastrain.join() as job:
        main(job)

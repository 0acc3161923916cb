"""A residual network that classifies images, in the shape of PyTorch's ImageNet example."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


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

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total)
        self.sum, self.count = total.tolist()

    def __str__(self):
        text = "{name} {val" + self.fmt + "} ({avg" + self.fmt + "})"
        return text.format(name=self.name, val=self.val, avg=self.sum / max(self.count, 1))


def accuracy(output, target, topk=(1,)):
    """How many samples have their target among the k largest outputs, for each k."""
    _, pred = output.topk(max(topk), dim=1)
    correct = pred.eq(target.view(-1, 1))
    return [correct[:, :k].sum() for k in topk]


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    losses, top1, top5 = AverageMeter("loss", ":.4e"), AverageMeter("acc@1", ":6.2f"), AverageMeter("acc@5", ":6.2f")
    model.train()
    for i, (images, target) in enumerate(train_loader):
        images, target = images.to(device), target.to(device)
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        losses.update(loss.item(), images.size(0))
        top1.update(100 * acc1.item() / images.size(0), images.size(0))
        top5.update(100 * acc5.item() / images.size(0), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % args.print_freq == 0 and dist.get_rank() == 0:
            print(f"epoch [{epoch}][{i}/{len(train_loader)}]", losses, top1, top5)
    for meter in (losses, top1, top5):
        meter.all_reduce()


def validate(val_loader, model, criterion, device, args):
    losses, top1, top5 = AverageMeter("loss", ":.4e"), AverageMeter("acc@1", ":6.2f"), AverageMeter("acc@5", ":6.2f")

    def run(loader):
        with torch.no_grad():
            for images, target in loader:
                images, target = images.to(device), target.to(device)
                output = model(images)
                acc1, acc5 = accuracy(output, target, topk=(1, 5))
                losses.update(criterion(output, target).item(), images.size(0))
                top1.update(100 * acc1.item() / images.size(0), images.size(0))
                top5.update(100 * acc5.item() / images.size(0), images.size(0))

    model.eval()
    run(val_loader)
    for meter in (losses, top1, top5):
        meter.all_reduce()
    if (done := len(val_loader.sampler) * dist.get_world_size()) < len(val_loader.dataset):
        rest = Subset(val_loader.dataset, range(done, len(val_loader.dataset)))
        run(DataLoader(rest, batch_size=args.batch_size))
    if dist.get_rank() == 0:
        print("validation", losses, top1, top5)
    return top1.sum / top1.count


def main():
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

    dist.init_process_group("gloo")
    device = torch.device("cpu")
    digits = load_digits()
    images, targets = torch.Tensor(digits.images).unsqueeze(1) / 16, torch.tensor(digits.target)
    train_set = TensorDataset(images[:1500], targets[:1500])
    val_set = TensorDataset(images[1500:], targets[1500:])
    train_sampler = DistributedSampler(train_set, seed=args.seed)
    val_sampler = DistributedSampler(val_set, shuffle=False, drop_last=True)
    batch_size = args.batch_size // dist.get_world_size()
    train_loader = DataLoader(train_set, batch_size=batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, batch_size=batch_size, sampler=val_sampler)

    net = ResNet().to(device)
    model = DistributedDataParallel(net)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)
    best_acc1 = 0.0
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model, criterion, device, args)
        scheduler.step()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if dist.get_rank() == 0:
            save_checkpoint(net, optimizer, scheduler, best_acc1, is_best, args.out)
    dist.destroy_process_group()


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
    main()
